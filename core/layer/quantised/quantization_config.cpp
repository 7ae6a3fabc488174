#include "core/layer/quantised/quantization_config.h"

#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/text.h"
#include "core/layer/quantised/layer_texts.h"
#include "core/remote/http/url.h"
#include "core/stored/base_model.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <limits>
#include <span>
#include <string_view>
#include <system_error>

namespace stfs {
namespace {

using Json = nlohmann::json;

// The maximum number of groups in config_groups, because every weight may compare all of them.
constexpr std::size_t kMaxGroups = 4096;
// The maximum length of a module's name, in bytes. A longer text is treated as an expression.
constexpr std::size_t kLongestModule = 256;

// Parses a text. Returns a discarded value if the text is not JSON or exceeds the limits of
// is_bounded_json().
Json parse(const std::string& text) {
  return Json::parse(is_bounded_json(text) ? without_infinities(text) : "", nullptr, false);
}

// Reads the members of one object. Refuses members of another type than expected.
class ConfigReader {
 public:
  ConfigReader(const Json& object, const std::string& file) : object_(object), file_(file) {}

  [[noreturn]] void refuse(const std::string& key, const std::string& rule) const {
    throw Error(ErrorCode::kQuantized, file_, in_quotes(key) + ": " + rule);
  }

  const Json* find(const char* key) const {
    const auto at = object_.find(key);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }

  std::string text(const char* key) const {
    const Json* const value = find(key);
    if (value == nullptr) return "";
    if (!value->is_string()) refuse(key, "expected a string");
    return lower_case(value->get_ref<const std::string&>());
  }

  std::optional<bool> flag(const char* key) const {
    const Json* const value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_boolean()) refuse(key, "expected true or false");
    return value->get<bool>();
  }

  std::optional<std::uint64_t> number(const char* key) const {
    const Json* const value = find(key);
    return value == nullptr ? std::nullopt : std::optional(number_of(key, *value));
  }

  std::uint64_t number_of(const char* key, const Json& value) const {
    if (value.is_number_integer() && !value.is_number_unsigned() && value.get<int64_t>() == -1) {
      return QuantizationConfig::kAll;
    }
    constexpr std::uint64_t kMost = std::uint64_t{1} << 40;
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() == 0 ||
        value.get<std::uint64_t>() > kMost) {
      refuse(key, "expected a number from 1 to 2^40, or -1");
    }
    return value.get<std::uint64_t>();
  }

  // Reads [128,128], or "128x128" in older files.
  std::optional<QuantizationConfig::Block> block(const char* key) const {
    const Json* const value = find(key);
    if (value == nullptr) return std::nullopt;
    if (const auto* text = value->get_ptr<const Json::string_t*>()) {
      std::uint64_t rows = 0;
      std::uint64_t columns = 0;
      const char* const end = text->data() + text->size();
      const auto first = std::from_chars(text->data(), end, rows);
      if (first.ptr != end && *first.ptr == 'x' &&
          std::from_chars(first.ptr + 1, end, columns).ptr == end && rows > 0 && columns > 0) {
        return std::pair(rows, columns);
      }
    } else if (value->is_array() && value->size() == 2) {
      return std::pair(number_of(key, (*value)[0]), number_of(key, (*value)[1]));
    }
    refuse(key, "expected the rows and columns of a block");
  }

 private:
  const Json& object_;
  const std::string& file_;
};

// Returns the object at a key, or nullptr if the key is missing or null.
const Json* object_at(const Json& object, const char* key, const std::string& file) {
  const auto at = object.find(key);
  if (at == object.end() || at->is_null()) return nullptr;
  if (!at->is_object()) ConfigReader(object, file).refuse(key, "expected an object");
  return &*at;
}

// Compiles the expressions of a config, within a common budget.
class Compiler {
 public:
  explicit Compiler(const std::string& file) : file_(file) {}

  QuantizationConfig::Expression compile(std::string_view text) {
    if (!budget_.takes(text)) {
      throw Error(ErrorCode::kQuantized, file_,
                  "the expressions for names of modules are too many or too long");
    }
    return {.text = std::string(text), .pattern = NamePattern::parse(text)};
  }

 private:
  const std::string& file_;
  PatternBudget budget_;
};

// Reads group number `number` of config_groups.
QuantizationConfig::Group group_of(const Json& json, std::size_t number, Compiler& compiler,
                                   QuantizationConfig& config) {
  const std::string& file = config.file;
  const ConfigReader group(json, file);
  QuantizationConfig::Group out;
  out.format = group.text("format");
  if (const Json* const targets = group.find("targets"); targets && targets->is_array()) {
    constexpr std::string_view kMark = "re:";
    for (const Json& target : *targets) {
      const auto* const text = target.get_ptr<const Json::string_t*>();
      if (text == nullptr) group.refuse("targets", "expected strings");
      if (text->starts_with(kMark)) {
        out.expressions.push_back(compiler.compile(std::string_view(*text).substr(kMark.size())));
      } else {
        out.is_of_linear = out.is_of_linear || *text == "Linear";
        config.named[*text] = number;
      }
    }
  }
  const Json* const weights = object_at(json, "weights", file);
  if (weights == nullptr) return out;
  const ConfigReader about(*weights, file);
  out.type = about.text("type");
  out.strategy = about.text("strategy");
  out.bits = about.number("num_bits");
  out.group_size = about.number("group_size");
  out.block = about.block("block_structure");
  const Json* const symmetric = about.find("symmetric");
  out.is_asymmetric = symmetric != nullptr && *symmetric == false;
  const Json* const order = about.find("actorder");
  out.needs_index =
      order != nullptr && (*order == true || *order == "group" || *order == "dynamic");
  return out;
}

// Returns true for null, false, "", "none", [] and {}.
bool is_nothing(const Json& value) {
  const auto* const text = value.get_ptr<const Json::string_t*>();
  return value.empty() || value == false || (text != nullptr && (text->empty() || *text == "none"));
}

// Keys which mean that the weights are rotated. Only a part of the model undoes such a rotation.
// Some keys, such as "online_r1_rotation", are from the config of an algorithm of Quark, and name
// rotations that are made while the model runs.
constexpr std::string_view kRotations[] = {
    "transform_config",
    "spinquant_config",
    "rotation_config",
    "rotation_configs",
    "hadamard_config",
    "rotation",
    "quarot",
    "online_r1_rotation",
    "r4",
    "online_rotation_layers",
    "online_config",
};

// Returns the key of a rotation in any object of a value, or "" if there is none.
std::string rotation_in(const Json& value) {
  if (!value.is_structured()) return "";
  for (const auto& [key, part] : value.items()) {
    // Names of modules may be keys too. They contain dots.
    const bool is_named = std::ranges::find(kRotations, key) != std::end(kRotations) ||
                          (is_key_of_rotation(key) && key.find('.') == std::string::npos);
    if (value.is_object() && is_named && !is_nothing(part)) return key;
    if (key == "name" && part == "quarot") return "quarot";
    if (std::string found = rotation_in(part); !found.empty()) return found;
  }
  return "";
}

// Keys that do not change the values, or that are read above. All libraries share one list, because
// they copy keys from each other.
// clang-format off
constexpr std::string_view kHarmless[] = {
    // keys that are read above
    "quant_method", "weight_block_size", "bits", "w_bit", "wbits", "group_size", "q_group_size", "zero_point",
    "checkpoint_format", "packing_format", "format", "version", "sym", "dynamic", "extra_config",
    "sparsity_config", "config_groups", "weight_scale_semantics", "data_type", "meta", "provider",
    "autoround_version",
    // transformers, FP8 of DeepSeek, Qwen, Mistral and fbgemm
    "activation_scheme", "fmt", "scale_fmt", "modules_to_not_convert", "ignored_layers", "dequantize",
    "activation_scale_ub", "quantization_method", "weight_scale_method", "method", "weights", "kv_cache_scheme",
    "is_checkpoint_fp8_serialized", "backend",
    // torchao
    "include_input_output_embeddings", "untie_embedding_weights", "quant_type_kwargs",
    // compressed-tensors and llm-compressor
    "ignore", "quantization_status", "global_compression_ratio", "run_compressed",
    "attention_input_activations", "input_activations", "output_activations",
    // ModelOpt
    "quant_algo", "kv_cache_quant_algo", "exclude_modules", "quantized_layers", "producer", "quantization",
    "has_zero_point", "pre_quant_scale", "smoothquant_val", "kv_cache_bits", "kv_cache_group_size", "quant_type",
    // GPTQ: AutoGPTQ, optimum, GPTQModel
    "desc_act", "act_order", "damp_percent", "damp_auto_increment", "static_groups", "true_sequential",
    "lm_head", "pack_dtype", "model_name_or_path", "model_file_base_name", "tokenizer", "dataset", "model_seqlen",
    "block_name_to_quantize", "module_name_preceding_first_block", "batch_size", "pad_token_id", "use_exllama",
    "disable_exllama", "exllama_config", "max_input_length", "cache_block_outputs", "use_cuda_fp16",
    "modules_in_block_to_quantize", "modules_in_block_to_quantize_flat", "is_marlin_format", "act_group_aware",
    "mse", "gptaq", "foem", "adapter", "quantizer", "uri",
    // AWQ
    "do_fuse", "modules_to_fuse", "fuse_max_seq_len",
    // AutoRound
    "act_bits", "act_data_type", "act_group_size", "act_sym", "act_dynamic", "amp", "enable_minmax_tuning",
    "enable_norm_bias_tuning", "enable_quanted_input", "gradient_accumulate_steps", "iters", "lr",
    "low_gpu_mem_usage", "low_cpu_mem_usage", "minmax_lr", "nsamples", "quant_block_list", "regex_config",
    "scale_dtype", "seqlen", "sampler", "seed", "supported_types", "static_attention_dtype", "static_kv_dtype",
    "static_attention_granularity", "static_kv_granularity", "super_bits", "super_group_size",
    "to_quant_block_names", "model_free", "not_use_best_mse", "train_bs", "quant_lm_head", "n_samples",
    "use_quant_input", "multimodal", "quant_nontext_module",
    // bitsandbytes
    "load_in_4bit", "load_in_8bit", "_load_in_4bit", "_load_in_8bit", "bnb_4bit_compute_dtype",
    "bnb_4bit_quant_storage", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant", "bnb_4bit_blocksize",
    "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight", "llm_int8_skip_modules",
    "llm_int8_threshold", "block_size", "compress_statistics",
    // Quark
    "algo_config", "exclude", "export", "global_quant_config", "layer_quant_config", "layer_type_quant_config",
    "kv_cache_quant_config", "kv_cache_post_rope", "quant_mode", "softmax_quant_spec", "log_severity_level",
    // MLX and metal
    "mode",
};
// Harmless keys of a group of compressed-tensors, and of its weights.
constexpr std::string_view kHarmlessInGroup[] = {
    "targets", "weights", "input_activations", "output_activations", "format", "quant_algo",
};
constexpr std::string_view kHarmlessInWeights[] = {
    "actorder", "block_structure", "dynamic", "group_size", "num_bits", "observer", "observer_kwargs",
    "strategy", "symmetric", "type", "scale_dtype", "zp_dtype", "is_mx",
};
// clang-format on

// Notes the keys that are not in `harmless`.
void note_unknown(const Json& json, std::span<const std::string_view> harmless,
                  QuantizationConfig& out) {
  for (const auto& [key, value] : json.items()) {
    const bool is_known = std::ranges::find(harmless, key) != harmless.end() ||
                          std::ranges::find(kRotations, key) != std::end(kRotations);
    if (!is_known && !is_nothing(value)) out.unknown.insert(key);
  }
}

// Returns true if the config is from AutoRound, which names itself in several ways.
bool is_of_auto_round(const Json& json, const QuantizationConfig& config) {
  const auto provider = json.find("provider");
  return config.method.ends_with("auto-round") || json.contains("autoround_version") ||
         (provider != json.end() && *provider == "auto-round");
}

// Returns true if the config is from GPTQModel, which names itself in `meta`.
bool is_of_gptqmodel(const Json& json) {
  const auto meta = json.find("meta");
  if (meta == json.end() || !meta->is_object() || !meta->contains("quantizer")) return false;
  const Json& quantizer = meta->at("quantizer");
  const auto is_gptqmodel = [](const Json& name) {
    const auto* const text = name.get_ptr<const Json::string_t*>();
    return text != nullptr && text->starts_with("gptqmodel");
  };
  return is_gptqmodel(quantizer) ||
         (quantizer.is_array() && std::ranges::any_of(quantizer, is_gptqmodel));
}

// Reads an exception. `dynamic` of GPTQModel has expressions after "+:" or "-:". `extra_config` of
// AutoRound has names and expressions. Models of experts have thousands of names, so names are not
// compiled.
QuantizationConfig::Exception exception_of(std::string name, const Json& json, Compiler& compiler,
                                           const std::string& file) {
  constexpr const char* kOfNames =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./";
  if (name.starts_with("+:") || name.starts_with("-:")) name.erase(0, 2);
  QuantizationConfig::Exception out;
  out.is_name =
      name.size() <= kLongestModule && name.find_first_not_of(kOfNames) == std::string::npos;
  if (out.is_name) {
    out.module.text = std::move(name);
  } else {
    out.module = compiler.compile(name);
  }
  if (!json.is_object()) return out;
  const ConfigReader about(json, file);
  out.data_type = about.text("data_type");
  if (about.find("group_size") != nullptr && about.find("group_size")->is_number()) {
    out.group_size = about.number("group_size");
  }
  return out;
}

// Reads `dynamic` and `extra_config`.
void read_exceptions(const Json& json, Compiler& compiler, QuantizationConfig& out) {
  const ConfigReader config(json, out.file);
  for (const char* const key : {"dynamic", "extra_config"}) {
    const Json* const exceptions = config.find(key);
    if (exceptions == nullptr || exceptions->empty()) continue;
    for (const auto& [name, module] : exceptions->items()) {
      out.exceptions.push_back(exception_of(name, module, compiler, out.file));
      if (!module.is_object()) continue;
      if (module.contains("sym")) out.is_symmetric = false;
      if (module.contains("desc_act")) out.needs_index = false;
    }
  }
  std::ranges::stable_sort(out.exceptions, {},
                           [](const auto& each) -> const std::string& { return each.module.text; });
  for (std::size_t i = 0; i < out.exceptions.size(); ++i) {
    if (!out.exceptions[i].is_name) out.of_expressions.push_back(i);
  }
}

void read_config(const Json& json, QuantizationConfig& out) {
  const ConfigReader config(json, out.file);
  Compiler compiler(out.file);
  out.method = config.text("quant_method");
  out.weight_block = config.block("weight_block_size");
  out.bits = config.number(json.contains("w_bit") ? "w_bit" : "bits");
  out.group_size = config.number(json.contains("q_group_size") ? "q_group_size" : "group_size");
  out.zero_point = config.flag("zero_point");
  for (const char* const key : {"checkpoint_format", "packing_format", "format", "version"}) {
    if (out.format.empty() && config.find(key) != nullptr && config.find(key)->is_string()) {
      out.format = config.text(key);
    }
  }
  const auto is_true = [&](const char* key) {
    const Json* const value = config.find(key);
    return value != nullptr && *value == true;
  };
  out.is_symmetric = is_true("sym");
  out.needs_index = is_true("desc_act") && !is_true("static_groups");
  if (is_true("is_marlin_format")) out.format = "marlin";
  read_exceptions(json, compiler, out);
  out.data_type = config.text("data_type");
  if (const Json* const fmt = config.find("fmt"); fmt != nullptr && fmt->is_string()) {
    out.fp8 = config.text("fmt");
  }
  if (const Json* const algorithm = config.find("quant_algo");
      algorithm != nullptr && algorithm->is_string()) {
    out.algorithm = config.text("quant_algo");
  }
  out.is_of_auto_round = is_of_auto_round(json, out);
  out.has_borrowed_zeros = out.is_of_auto_round || is_of_gptqmodel(json);
  if (const std::string semantics = config.text("weight_scale_semantics"); !semantics.empty()) {
    if (semantics != "inverse") config.refuse("weight_scale_semantics", "expected \"inverse\"");
    out.is_divided_by_scale = true;
  }
  if (const Json* const part = config.find("sparsity_config"); part != nullptr && !part->empty()) {
    const std::string format =
        part->is_object() ? ConfigReader(*part, out.file).text("format") : "";
    if (format != "dense") out.refused = "sparsity_config";
  }
  if (const std::string rotation = rotation_in(json); !rotation.empty()) out.refused = rotation;
  note_unknown(json, kHarmless, out);
  if (const Json* const groups = object_at(json, "config_groups", out.file)) {
    if (groups->size() > kMaxGroups) {
      config.refuse("config_groups", "more than " + std::to_string(kMaxGroups) + " groups");
    }
    for (const Json& group : *groups) {
      if (!group.is_object()) config.refuse("config_groups", "expected objects");
      out.groups.push_back(group_of(group, out.groups.size(), compiler, out));
      note_unknown(group, kHarmlessInGroup, out);
      if (const Json* const weights = object_at(group, "weights", out.file)) {
        note_unknown(*weights, kHarmlessInWeights, out);
      }
    }
  }
}

QuantizationConfig::Module module_of(const Json& json, const std::string& file) {
  const ConfigReader about(json, file);
  return {.is_quantized = true,
          .bits = about.number("bits"),
          .group_size = about.number("group_size"),
          .mode = about.text("mode")};
}

void read_mlx(const Json& json, QuantizationConfig& out) {
  out.method = "mlx";
  if (out.refused.empty()) out.refused = rotation_in(json);
  out.all = module_of(json, out.file);
  for (const auto& [name, value] : json.items()) {
    if (value.is_object()) {
      // Missing parameters have MLX's default values, not the values of the other modules.
      QuantizationConfig::Module& own = out.modules[name] = module_of(value, out.file);
      if (!own.bits) own.bits = 4;
      if (!own.group_size) own.group_size = 64;
      note_unknown(value, kHarmless, out);
    } else if (value.is_boolean()) {
      out.modules[name] = out.all;
      out.modules[name].is_quantized = value.get<bool>();
    } else {
      note_unknown(Json{{name, value}}, kHarmless, out);
    }
  }
  for (auto& [name, module] : out.modules) {
    module.is_known_key = std::ranges::find(kHarmless, name) != std::end(kHarmless);
  }
}

// Returns the objects of config.json that may contain the quantisation: the whole file, its
// text_config, and the parts of a model with other names, such as llm_config.
std::vector<const Json*> places_in(const Json& json, const std::string& file) {
  constexpr const char* kKey = "quantization_config";
  std::vector<const Json*> places{&json};
  if (const Json* const text = object_at(json, "text_config", file)) {
    places.push_back(text);
    if (const Json* const own = object_at(*text, kKey, file)) {
      const Json* const whole = object_at(json, kKey, file);
      constexpr const char* kSemantics = "weight_scale_semantics";
      if (whole != nullptr && whole->value(kSemantics, Json()) != own->value(kSemantics, Json())) {
        ConfigReader(json, file).refuse(kSemantics, "text_config has a different value");
      }
      return places;
    }
  }
  const Json* found = nullptr;
  for (const Json& part : json) {
    const Json* const config = part.is_object() ? object_at(part, kKey, file) : nullptr;
    if (config == nullptr) continue;
    if (found != nullptr && *config != *found) {
      ConfigReader(json, file).refuse(kKey, "two parts of the model have different values");
    }
    found = config;
    places.push_back(&part);
  }
  return places;
}

// Refuses rotations that are named beside the quantisation (at the top level or in a part of the
// model) or inside the quantisation of any part.
void refuse_rotation_of_model(const Json& json, QuantizationConfig& out, int depth = 0) {
  constexpr int kParts = 1;
  for (const auto& [key, value] : json.items()) {
    if (json.is_object() && depth <= kParts) {
      const bool is_rotation = (key.ends_with("_config") || value.is_string()) &&
                               std::ranges::find(kRotations, key) != std::end(kRotations);
      if (is_rotation && !is_nothing(value)) out.refused = key;
    }
    if (!value.is_structured() || key.starts_with("rope_")) continue;  // a rotation of positions
    const bool is_quantization = key == "quantization_config" || key == "compression_config" ||
                                 (key == "quantization" && value.is_object());
    std::string inside = is_quantization ? rotation_in(value) : "";
    if (!inside.empty()) out.refused = std::move(inside);
    if (!is_quantization) refuse_rotation_of_model(value, out, depth + 1);
  }
}

// Returns the model_type, in config.json or in a part of it, of a model with Conv1D layers. Returns
// "" if there is none.
std::string model_of_conv1d(const Json& json) {
  for (const auto& [key, value] : json.items()) {
    const auto* const text = value.get_ptr<const Json::string_t*>();
    if (json.is_object() && key == "model_type" && text != nullptr && is_model_of_conv1d(*text)) {
      return *text;
    }
    std::string found = value.is_structured() ? model_of_conv1d(value) : "";
    if (!found.empty()) return found;
  }
  return "";
}

void add_vocabularies(const Json& json, std::set<std::uint64_t>& sizes) {
  for (const auto& [key, value] : json.items()) {
    if (value.is_object()) add_vocabularies(value, sizes);
    if (key == "vocab_size" && value.is_number_unsigned()) sizes.insert(value.get<std::uint64_t>());
  }
}

// Reads the quantisation in config.json. Returns false if the file contains none.
bool read_main(const Json& json, QuantizationConfig& out) {
  refuse_rotation_of_model(json, out);
  add_vocabularies(json, out.vocabularies);
  out.model_of_conv1d = model_of_conv1d(json);
  const Json* mlx = object_at(json, "quantization", out.file);
  if (mlx == nullptr) {
    const Json* const text = object_at(json, "text_config", out.file);
    if (text != nullptr) mlx = object_at(*text, "quantization", out.file);
    out.is_of_text = mlx != nullptr;
  }
  const auto algorithm = mlx == nullptr ? Json::const_iterator() : mlx->find("quant_algo");
  if (mlx != nullptr && algorithm == mlx->end()) {
    read_mlx(*mlx, out);
    return true;
  }
  if (mlx != nullptr && !is_nothing(*algorithm)) {
    out.method = "TensorRT-LLM";
    return true;
  }
  for (const Json* const at : places_in(json, out.file)) {
    for (const char* const key : {"quantization_config", "compression_config"}) {
      const Json* const config = object_at(*at, key, out.file);
      if (config == nullptr) continue;
      read_config(*config, out);
      if (out.method.empty() && std::string_view(key) == "compression_config") {
        out.method = "compressed-tensors";
      }
      return true;
    }
  }
  return false;
}

// Reads and parses a file. Returns false if it does not exist.
bool load_json(const std::string& directory, const char* name, Sources& sources,
               QuantizationConfig& out, Json& json) {
  const std::string path = child_name(directory, name);
  std::error_code error;
  if (!is_url(path) && !std::filesystem::exists(path, error) && !error) return false;
  std::string text;
  try {
    text = sources.read_file(path, kMaxJson);
  } catch (const Error& refusal) {
    if (refusal.code() == ErrorCode::kAbsent) return false;
    // Values could be wrong without the file, so only a file that may be absent (kHidden) is
    // skipped.
    if (refusal.code() != ErrorCode::kHidden) throw;
    if (out.unreadable.empty()) out.unreadable = refusal.what();
    return false;
  }
  out.file = public_name(path);
  json = parse(text);
  if (!json.is_object()) {
    throw Error(ErrorCode::kQuantized, out.file,
                !is_bounded_json(text)
                    ? "too many values, or nested too deeply: at most " +
                          std::to_string(kMaxJsonValues) + " values are permitted"
                    : "expected a JSON object");
  }
  out.text = std::move(text);
  return true;
}

}  // namespace

std::string QuantizationConfig::unknown_format() const {
  // Sparse formats and marlin-24 are refused by their tensors.
  constexpr std::string_view kKnown[] = {"",
                                         "dense",
                                         "mixed-precision",
                                         "pack-quantized",
                                         "int-quantized",
                                         "float-quantized",
                                         "naive-quantized",
                                         "nvfp4-pack-quantized",
                                         "mxfp4-pack-quantized",
                                         "mxfp8-quantized",
                                         "marlin-24"};
  const auto is_unknown = [&](std::string_view word) {
    // If there is no format, `format` contains the library's `version`.
    return word.find_first_not_of("0123456789.") != std::string_view::npos &&
           !word.starts_with("sparse-") && std::ranges::find(kKnown, word) == std::end(kKnown);
  };
  if (method != "compressed-tensors") return "";
  if (is_unknown(format)) return format;
  const auto group =
      std::ranges::find_if(groups, [&](const Group& each) { return is_unknown(each.format); });
  return group == groups.end() ? "" : group->format;
}

bool has_name_of_conv1d(std::string_view module) {
  const std::string_view layer = module.substr(module.rfind('.') + 1);
  return layer.starts_with("c_") || layer == "q_attn";
}

QuantizationConfig read_quantization_config(const std::string& directory, Sources& sources) {
  QuantizationConfig out;
  Json json;
  if (load_json(directory, "config.json", sources, out, json) && read_main(json, out)) return out;
  if (load_json(directory, "hf_quant_config.json", sources, out, json)) {
    out.method = "modelopt";
    if (out.refused.empty()) out.refused = rotation_in(json);
    if (const Json* const quantization = object_at(json, "quantization", out.file)) {
      note_unknown(*quantization, kHarmless, out);
      out.algorithm = ConfigReader(*quantization, out.file).text("quant_algo");
    }
    return out;
  }
  for (const char* const name : {"quantize_config.json", "quant_config.json"}) {
    if (!load_json(directory, name, sources, out, json)) continue;
    read_config(json, out);
    if (out.method.empty()) {
      out.method = std::string_view(name) == "quantize_config.json" ? "gptq" : "awq";
    }
    return out;
  }
  if (out.file.empty()) out.file = public_name(child_name(directory, "config.json"));
  return out;
}

namespace {

std::optional<bool> matches(const QuantizationConfig& config,
                            const QuantizationConfig::Expression& expression,
                            std::string_view module, MatchingWork& work) {
  if (work.is_over()) {
    throw Error(ErrorCode::kQuantized, config.file,
                "matching its expressions with the names of modules takes too long");
  }
  ++work.done;
  return expression.pattern ? expression.pattern->matches(module, work.done) : std::nullopt;
}

}  // namespace

std::vector<const QuantizationConfig::Group*> all_groups(const QuantizationConfig& config) {
  std::vector<const QuantizationConfig::Group*> all;
  for (const QuantizationConfig::Group& group : config.groups) all.push_back(&group);
  return all;
}

GroupsOfModule groups_of(const QuantizationConfig& config, std::string_view module,
                         MatchingWork& work) {
  using Group = QuantizationConfig::Group;
  if (config.groups.size() < 2) return {all_groups(config), false};
  if (const auto named = config.named.find(module); named != config.named.end()) {
    return {{&config.groups[named->second]}, true};
  }
  // The matching expression that sorts first.
  const QuantizationConfig::Expression* first = nullptr;
  const Group* of_first = nullptr;
  std::vector<const Group*> of_class;
  for (const Group& group : config.groups) {
    for (const QuantizationConfig::Expression& expression : group.expressions) {
      const auto is_match = matches(config, expression, module, work);
      if (!is_match) return {all_groups(config), false};
      // If several groups have the same expression, the last one applies.
      if (*is_match && (first == nullptr || expression.text <= first->text)) {
        first = &expression;
        of_first = &group;
      }
    }
    if (group.is_of_linear) of_class.push_back(&group);
  }
  if (of_first != nullptr) return {{of_first}, true};
  return {of_class.empty() ? all_groups(config) : of_class, false};
}

std::vector<const QuantizationConfig::Exception*> exceptions_of(const QuantizationConfig& config,
                                                                std::string_view module,
                                                                MatchingWork& work) {
  using Exception = QuantizationConfig::Exception;
  const auto text_of = [](const Exception& each) -> std::string_view { return each.module.text; };
  const auto first_of = [&](std::string_view text) {
    return std::ranges::lower_bound(config.exceptions, text, {}, text_of);
  };
  const auto end = config.exceptions.end();
  if (const auto own = first_of(module); own != end && text_of(*own) == module) return {&*own};
  // Like an expression, a name matches all modules with names that begin with it.
  std::vector<const Exception*> found;
  const bool has_names = config.of_expressions.size() < config.exceptions.size();
  const std::size_t most = has_names ? std::min(module.size(), kLongestModule + 1) : 0;
  for (std::size_t length = 0; length < most; ++length) {
    const std::string_view name = module.substr(0, length);
    for (auto each = first_of(name); each != end && text_of(*each) == name; ++each) {
      if (each->is_name) found.push_back(&*each);
    }
  }
  for (const std::size_t i : config.of_expressions) {
    const Exception& exception = config.exceptions[i];
    if (matches(config, exception.module, module, work).value_or(true)) found.push_back(&exception);
  }
  return found;
}

std::optional<QuantState> parse_quant_state(const std::string& text) {
  const Json json = parse(text);
  if (!json.is_object()) return std::nullopt;
  QuantState state;
  const auto number = [&](const char* key) -> std::uint64_t {
    const auto at = json.find(key);
    return at != json.end() && at->is_number_unsigned() ? at->get<std::uint64_t>() : 0;
  };
  const auto type = json.find("quant_type");
  const auto shape = json.find("shape");
  if (type == json.end() || !type->is_string() || shape == json.end() || !shape->is_array()) {
    return std::nullopt;
  }
  state.type = type->get<std::string>();
  state.block = number("blocksize");
  for (const Json& dim : *shape) {
    if (!dim.is_number_unsigned()) return std::nullopt;
    state.shape.push_back(dim.get<std::uint64_t>());
  }
  state.nested_block = number("nested_blocksize");
  if (json.contains("nested_blocksize")) {
    const auto offset = json.find("nested_offset");
    if (offset == json.end() || !offset->is_number() || state.nested_block == 0)
      return std::nullopt;
    state.nested_offset = static_cast<float>(offset->get<double>());
    const auto nested = json.find("nested_dtype");
    if (nested != json.end() && *nested != "float32") return std::nullopt;
  }
  if (state.block == 0) return std::nullopt;
  return state;
}

}  // namespace stfs
