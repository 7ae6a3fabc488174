#include "core/layer/lora/adapter.h"

#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/text.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <optional>
#include <utility>

namespace stfs {
namespace {

// Keeps the order of keys, because the first matching pattern counts.
using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kDefault = "default";  // the name that PEFT gives an adapter
constexpr std::uint64_t kMostRank = 1 << 20;
// An ordered_json object is searched from its beginning, so this limits the time.
constexpr std::ptrdiff_t kMostKeys = 20'000;

// Keys that change the meaning of an adapter and are not supported.
constexpr std::array<std::string_view, 12> kRefused{"alora_invocation_tokens",
                                                    "arrow_config",
                                                    "kasa_config",
                                                    "layer_replication",
                                                    "lora_bias",
                                                    "monteclora_config",
                                                    "trainable_token_indices",
                                                    "trainable_tokens",
                                                    "use_bdlora",
                                                    "use_dora",
                                                    "use_qalora",
                                                    "velora_config"};
// Supported keys, and keys that do not affect the values.
constexpr std::array<std::string_view, 31> kKnown{"alpha_pattern",
                                                  "auto_mapping",
                                                  "base_model_name_or_path",
                                                  "bias",
                                                  "corda_config",
                                                  "ensure_weight_tying",
                                                  "eva_config",
                                                  "exclude_modules",
                                                  "fan_in_fan_out",
                                                  "inference_mode",
                                                  "init_lora_weights",
                                                  "layers_pattern",
                                                  "layers_to_transform",
                                                  "loftq_config",
                                                  "lora_alpha",
                                                  "lora_dropout",
                                                  "lora_ga_config",
                                                  "megatron_config",
                                                  "megatron_core",
                                                  "modules_to_save",
                                                  "peft_type",
                                                  "peft_version",
                                                  "qalora_group_size",
                                                  "r",
                                                  "rank_pattern",
                                                  "revision",
                                                  "runtime_config",
                                                  "target_modules",
                                                  "target_parameters",
                                                  "task_type",
                                                  "use_rslora"};
// Values of init_lora_weights, by their beginnings, with which PEFT changes the base's weights.
constexpr std::array<std::string_view, 5> kChangeBase{"pissa", "corda", "olora", "loftq",
                                                      "lora_ga"};
constexpr std::array<std::string_view, 6> kKeepBase{"true", "false",      "gaussian",
                                                    "eva",  "orthogonal", "mica"};

bool is_nothing(const OrderedJson& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty());
}

template <class Words>
bool has_word(const Words& words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

// Returns a string, or a boolean as text; "" for other types.
std::string word_of(const OrderedJson& value) {
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  return value.is_string() ? value.get<std::string>() : "";
}

bool replaces(std::string& text, std::string_view part, std::string_view by) {
  const std::size_t at = text.find(part);
  if (at == std::string::npos) return false;
  text.replace(at, part.size(), by);
  return true;
}

// The module X and the adapter's name, from a name that contains `word`: "X.lora_A.weight",
// "X.lora_A.default.weight", "X.lora_embedding_A" or "X.lora_embedding_A.default".
struct ModuleOf {
  std::string module, adapter;
};
std::optional<ModuleOf> module_before(std::string_view name, std::string_view word,
                                      std::string_view ending) {
  const std::size_t at = name.rfind("." + std::string(word));
  if (at == std::string_view::npos) return std::nullopt;
  std::string_view rest = name.substr(at + 1 + word.size());
  if (!rest.ends_with(ending)) return std::nullopt;
  rest.remove_suffix(ending.size());
  const bool is_plain = rest.empty();
  const bool is_named =
      rest.starts_with('.') && rest.size() > 1 && rest.find('.', 1) == std::string_view::npos;
  if (!is_plain && !is_named) return std::nullopt;
  return ModuleOf{std::string(name.substr(0, at)),
                  std::string(is_plain ? kDefault : rest.substr(1))};
}

// Returns true for a character that an expression matches literally, and for a dot.
bool is_literal(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' ||
         c == '.';
}

// Returns true if (.*\.)?(KEY)$ matches an ASCII name. `key` contains only characters of
// is_literal(); a dot matches any character.
bool ends_in_key(std::string_view module, std::string_view key) {
  if (module.size() < key.size()) return false;
  const std::size_t begin = module.size() - key.size();
  return (begin == 0 || module[begin - 1] == '.') &&
         std::ranges::equal(module.substr(begin), key,
                            [](char a, char b) { return a == b || b == '.'; });
}

}  // namespace

AdapterConfig::AdapterConfig(std::string file, std::string_view text) : file_(std::move(file)) {
  if (std::ranges::count(text, ':') > kMostKeys) {
    refuse("more than " + std::to_string(kMostKeys) + " keys: not a file that PEFT wrote");
  }
  const OrderedJson json =
      OrderedJson::parse(is_bounded_json(text) ? text : std::string_view(), nullptr, false);
  if (!json.is_object()) refuse("expected a JSON object");
  const auto at = [&](const char* key) -> const OrderedJson& {
    static const OrderedJson none;
    const auto found = json.find(key);
    return found == json.end() ? none : *found;
  };
  if (at("peft_type").is_null() &&
      (json.contains("fine_tune_type") || json.contains("lora_parameters"))) {
    refuse(foreign_adapter("adapters.safetensors"));
  }
  if (word_of(at("peft_type")) != "LORA") {
    refuse("peft_type is " + in_quotes(word_of(at("peft_type"))) + ": only LORA is supported");
  }
  for (const auto& [key, value] : json.items()) {
    if (is_nothing(value)) continue;
    if (has_word(kRefused, key)) {
      refuse(in_quotes(key) + " is set: such an adapter is not supported, merge it with PEFT");
    }
    if (!has_word(kKnown, key)) {
      warnings_.push_back(printable(file_) + ": " + in_quotes(key) +
                          ": unknown key, ignored: the merged weights may be wrong");
    }
  }
  const std::string bias = at("bias").is_null() ? "none" : word_of(at("bias"));
  if (bias != "none") refuse("bias is " + in_quotes(bias) + ": only \"none\" is supported");
  const std::string init =
      at("init_lora_weights").is_null() ? "true" : word_of(at("init_lora_weights"));
  const auto begins = [&](std::string_view word) { return lower_case(init).starts_with(word); };
  if (std::ranges::any_of(kChangeBase, begins)) {
    refuse("init_lora_weights is " + in_quotes(init) +
           ": it changed the weights of the base, so the adapter fits only the changed base: "
           "convert it with PEFT");
  }
  if (!has_word(kKeepBase, lower_case(init))) {
    refuse("init_lora_weights is " + in_quotes(init) + ": unknown value");
  }

  const auto rank = [&](const OrderedJson& value) {
    if (!value.is_number_unsigned() || value == 0 || value > kMostRank) {
      refuse("expected a rank from 1 to " + std::to_string(kMostRank));
    }
    return value.get<std::uint64_t>();
  };
  const auto number = [&](const OrderedJson& value) {
    if (!value.is_number() || !std::isfinite(value.get<double>())) refuse("alpha is not a number");
    return value.get<double>();
  };
  const auto flag = [&](const char* key) {
    if (!at(key).is_null() && !at(key).is_boolean()) refuse(in_quotes(key) + " is not a boolean");
    return at(key) == true;
  };
  rank_ = rank(at("r").is_null() ? OrderedJson(8U) : at("r"));
  alpha_ = at("lora_alpha").is_null() ? 8 : number(at("lora_alpha"));
  is_by_root_ = flag("use_rslora");
  fan_in_fan_out_ = flag("fan_in_fan_out");
  ties_weights_ = flag("ensure_weight_tying");
  task_ = word_of(at("task_type"));
  PatternBudget budget;
  const auto names = [&](const char* key) {
    std::vector<std::string> list;
    if (!at(key).is_null() && !at(key).is_array())
      refuse(in_quotes(key) + " is not a list of names");
    for (const auto& name : at(key)) {
      if (word_of(name).empty()) refuse(in_quotes(key) + " contains an entry that is not a name");
      if (!budget.takes(word_of(name))) refuse(in_quotes(key) + " has too many or too long names");
      list.push_back(word_of(name));
    }
    return list;
  };
  saved_modules_ = names("modules_to_save");
  parameters_ = names("target_parameters");
  constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kHeads{
      {{"SEQ_CLS", "classifier"},
       {"SEQ_CLS", "score"},
       {"TOKEN_CLS", "classifier"},
       {"TOKEN_CLS", "score"},
       {"QUESTION_ANS", "qa_outputs"}}};
  for (const auto& [task, head] : kHeads) {
    if (task == task_) saved_modules_.emplace_back(head);
  }
  const auto read_patterns = [&](const char* key, const auto& check, std::vector<Pattern>& out) {
    const OrderedJson& patterns = at(key);
    if (patterns.is_null()) return;
    if (!patterns.is_object()) refuse(in_quotes(key) + " is not an object");
    for (const auto& [expression, value] : patterns.items()) {
      if (!budget.takes(expression)) refuse(in_quotes(key) + " has too many or too long keys");
      Pattern& pattern = out.emplace_back(
          Pattern{.key = expression, .expression = {}, .value = static_cast<double>(check(value))});
      if (std::ranges::all_of(expression, is_literal)) continue;
      pattern.expression = NamePattern::parse("(.*\\.)?(" + expression + ")$");
      if (!pattern.expression) {
        refuse(in_quotes(key) + ": " + in_quotes(expression) + ": not a supported expression");
      }
    }
  };
  read_patterns("rank_pattern", rank, ranks_);
  read_patterns("alpha_pattern", number, alphas_);
}

void AdapterConfig::refuse(const std::string& rule) const {
  throw Error(ErrorCode::kAdapter, file_, rule);
}

bool AdapterConfig::saves_module_of(std::string_view tensor) const {
  const std::string name = "." + std::string(tensor);
  return std::ranges::any_of(saved_modules_, [&](const std::string& saved) {
    return name.find("." + saved + ".") != std::string::npos;
  });
}

bool AdapterConfig::is_of_language_model() const {
  return task_.empty() || task_ == "CAUSAL_LM" || task_ == "SEQ_2_SEQ_LM";
}

std::vector<std::string> AdapterConfig::parameters_of(std::string_view module) const {
  std::vector<std::string> found;
  for (const std::string& parameter : parameters_) {
    const std::string name =
        std::string(module) + parameter.substr(std::min(parameter.rfind('.'), parameter.size()));
    if (("." + name).ends_with("." + parameter)) found.push_back(name);
  }
  return found;
}

const AdapterConfig::Pattern* AdapterConfig::first_match(const std::vector<Pattern>& patterns,
                                                         std::string_view module,
                                                         MatchingWork& work) const {
  const auto refuse_name = [&] {
    refuse("its patterns cannot be matched with " + in_quotes(module));
  };
  const bool is_ascii = std::ranges::all_of(module, [](char c) { return c >= ' ' && c <= '~'; });
  if (!patterns.empty() && !is_ascii) refuse_name();
  for (const Pattern& pattern : patterns) {
    if (!pattern.expression) {
      if (ends_in_key(module, pattern.key)) return &pattern;
      continue;
    }
    if (work.is_over()) refuse("matching its patterns with the names of modules takes too long");
    ++work.done;
    const std::optional<bool> matches = pattern.expression->matches(module, work.done);
    if (!matches) refuse_name();
    if (matches.value_or(false)) return &pattern;
  }
  return nullptr;
}

AdapterConfig::Scaling AdapterConfig::scaling_of(std::string_view module,
                                                 MatchingWork& work) const {
  const Pattern* const rank = first_match(ranks_, module, work);
  const Pattern* const alpha = first_match(alphas_, module, work);
  const std::uint64_t r = rank != nullptr ? static_cast<std::uint64_t>(rank->value) : rank_;
  return {.rank = r,
          .alpha = alpha != nullptr ? alpha->value : alpha_,
          .divisor = is_by_root_ ? std::sqrt(static_cast<double>(r)) : static_cast<double>(r)};
}

AdapterTensor adapter_tensor(std::string_view name) {
  using Kind = AdapterTensor::Kind;
  std::string unwrapped(name);  // torch.compile() inserts this before any module
  while (replaces(unwrapped, "_orig_mod.", "")) {
  }
  replaces(unwrapped, ".base_model.model.", ".");  // only a part of the model is adapted
  name = unwrapped;
  for (const std::string_view wrapper : {"module.", "base_model.model."}) {
    if (name.starts_with(wrapper)) name.remove_prefix(wrapper.size());
  }
  struct Row {
    std::string_view word, ending;
    Kind kind;
  };
  constexpr std::array<Row, 4> kFactors{{{"lora_A", ".weight", Kind::kA},
                                         {"lora_B", ".weight", Kind::kB},
                                         {"lora_embedding_A", "", Kind::kEmbeddingA},
                                         {"lora_embedding_B", "", Kind::kEmbeddingB}}};
  for (const Row& row : kFactors) {
    auto found = module_before(name, row.word, row.ending);
    if (!found) continue;
    auto& [module, adapter] = *found;
    // A module inside a module that is adapted as well: nn.MultiheadAttention.
    const bool is_inner = module.ends_with(".base_layer.out_proj");
    while (replaces(module, ".base_layer.", ".")) {
    }
    return {row.kind, std::move(module), is_inner ? 2U : 1U, std::move(adapter)};
  }
  for (const char* const word : {"lora_magnitude_vector", "token_adapter", "lora_B", "lora_"}) {
    if (name.find("." + std::string(word)) != std::string_view::npos)
      return {Kind::kRefused, word, 0};
  }
  std::string target(name);
  const bool is_named = replaces(target, ".modules_to_save.default.", ".");
  if (!is_named) replaces(target, ".modules_to_save.", ".");
  replaces(target, ".base_layer.", ".");
  return {Kind::kReplacement, std::move(target), 0, std::string(is_named ? kDefault : "")};
}

std::string foreign_adapter(std::string_view name) {
  struct Row {
    std::string_view begin, part, end;  // what the name begins with, contains and ends with
    std::string_view what;
  };
  constexpr std::string_view kKohya =
      "a LoRA of kohya's sd-scripts: merge it with its networks/merge_lora.py, or load it in "
      "diffusers and save the model with fuse_lora() and save_pretrained()";
  constexpr std::string_view kDiffusers =
      "a LoRA of diffusers: merge it there with load_lora_weights(), fuse_lora() and "
      "save_pretrained()";
  constexpr std::string_view kMlx = "an adapter of MLX: merge it with mlx_lm.fuse";
  constexpr std::string_view kGguf =
      "an adapter in GGUF: merge it with llama.cpp's llama-export-lora";
  constexpr std::array<Row, 17> kRows{{{"lora_unet_", "", "", kKohya},
                                       {"lora_te", "", "", kKohya},
                                       {"lora_transformer_", "", "", kKohya},
                                       {"", ".lora_down.", "", kKohya},
                                       {"", ".lora_up.", "", kKohya},
                                       {"", ".hada_w", "", kKohya},
                                       {"", ".lokr_w", "", kKohya},
                                       {"unet.", ".lora", "", kDiffusers},
                                       {"transformer.", ".lora", "", kDiffusers},
                                       {"text_encoder", ".lora", "", kDiffusers},
                                       {"pytorch_lora_weights.", "", "", kDiffusers},
                                       {"", ".processor.", "", kDiffusers},
                                       {"", "", ".lora_a", kMlx},
                                       {"", "", ".lora_b", kMlx},
                                       {"adapters.safetensors", "", "", kMlx},
                                       {"adapters.npz", "", "", kMlx},
                                       {"", "", ".gguf", kGguf}}};
  for (const Row& row : kRows) {
    if (name.starts_with(row.begin) && name.find(row.part) != std::string_view::npos &&
        name.ends_with(row.end)) {
      return std::string(row.what);
    }
  }
  return "";
}

}  // namespace stfs
