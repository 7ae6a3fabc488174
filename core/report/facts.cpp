#include "core/report/facts.h"

#include "core/base/json_text.h"
#include "core/base/text.h"
#include "core/recipe/fetch_missing.h"
#include "core/values/picture/markup.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace stfs {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxWord = 100;  // the maximum bytes of a text from the configuration

// A fact: its name, the keys of config.json of which the first existing one is used, and the key of
// GGUF after the architecture's name.
struct FactRow {
  std::string_view name;
  std::array<std::string_view, 4> keys;
  std::string_view gguf;
};
constexpr auto kRows = std::to_array<FactRow>({
    {"Layers", {"num_hidden_layers", "n_layer", "num_layers", "n_layers"}, ".block_count"},
    {"Width", {"hidden_size", "n_embd", "d_model", "dim"}, ".embedding_length"},
    {"Heads", {"num_attention_heads", "n_head", "num_heads", "n_heads"}, ".attention.head_count"},
    {"Heads of keys", {"num_key_value_heads", "n_kv_heads"}, ".attention.head_count_kv"},
    {"Experts",
     {"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"},
     ".expert_count"},
    {"Experts a token",
     {"num_experts_per_tok", "num_experts_per_token", "moe_top_k"},
     ".expert_used_count"},
    {"Context", {"max_position_embeddings", "n_positions", "max_seq_len"}, ".context_length"},
    {"Vocabulary", {"vocab_size", "n_vocab"}, ".vocab_size"},
});

std::optional<std::string> config_text(const Checkpoint& checkpoint,
                                       const std::atomic<bool>& stop) {
  const auto& files = checkpoint.model_files();
  const auto file = std::ranges::find(files, kModelConfig, &ModelFile::name);
  if (file == files.end() || file->source->version().size > kMaxJson) return std::nullopt;
  std::string text(static_cast<std::size_t>(file->source->version().size), '\0');
  Content content;
  content.extent(*file->source, 0, text.size());
  if (fetch_and_copy(content, 0, std::as_writable_bytes(std::span(text)), &stop) != 0 ||
      content.verify() != 0) {
    return std::nullopt;
  }
  return text;
}

// Returns a count with groups of three digits. Returns other numbers and strings unchanged.
std::string shown(const Json& value) {
  if (value.is_number_unsigned()) return markup::grouped(value.get<std::uint64_t>());
  if (value.is_number()) return value.dump();
  if (!value.is_string()) return "";
  const auto text = value.get<std::string>();
  return text.substr(0, utf8_floor(text, kMaxWord));
}

void add(Report& report, std::string_view name, std::string text) {
  if (!text.empty()) report.facts.emplace_back(name, std::move(text));
}

void add_config(const std::string& text, Report& report) {
  const Json config = Json::parse(is_bounded_json(text) ? text : "", nullptr, false);
  if (!config.is_object()) return;
  // A model with several kinds of input has its language model in a member.
  const auto inner = config.find("text_config");
  const auto find = [&](std::string_view key) -> const Json* {
    if (const auto found = config.find(key); found != config.end()) return &*found;
    if (inner == config.end() || !inner->is_object()) return nullptr;
    const auto found = inner->find(key);
    return found == inner->end() ? nullptr : &*found;
  };
  const Json* const names = find("architectures");
  const bool has_name = names != nullptr && names->is_array() && !names->empty();
  const Json* const type = find("model_type");
  add(report, "Architecture",
      has_name          ? shown(names->front())
      : type != nullptr ? shown(*type)
                        : "");
  for (const FactRow& row : kRows) {
    for (const std::string_view key : row.keys) {
      const Json* const value = key.empty() ? nullptr : find(key);
      if (value == nullptr || shown(*value).empty()) continue;
      add(report, row.name, shown(*value));
      break;
    }
  }
  const Json* const ties = find("tie_word_embeddings");
  if (ties != nullptr && ties->is_boolean()) report.ties_embeddings = ties->get<bool>();
}

// Converts "4096" to "4,096". Returns any other text unchanged.
std::string with_groups(const std::string& text) {
  std::uint64_t count = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, count);
  return read.ec == std::errc() && read.ptr == end ? markup::grouped(count) : text;
}

void add_gguf(const Checkpoint& checkpoint, Report& report) {
  const auto find = [&](const std::string& key) -> std::string {
    for (std::uint32_t i = 0; i < checkpoint.metadata_count(); ++i) {
      const MetadataItem item = checkpoint.metadata_item(i);
      if (item.key == key) return shown_value(item);
    }
    return "";
  };
  const std::string architecture = find("general.architecture");
  if (architecture.empty()) return;
  add(report, "Architecture", architecture.substr(0, utf8_floor(architecture, kMaxWord)));
  for (const FactRow& row : kRows) {
    std::string text = with_groups(find(architecture + std::string(row.gguf)));
    // Count the tokens: the value is shown as "[32000 string]".
    if (text.empty() && row.gguf == ".vocab_size") {
      const std::string tokens = find("tokenizer.ggml.tokens");
      text = tokens.starts_with('[') ? with_groups(tokens.substr(1, tokens.find(' ') - 1)) : "";
    }
    if (text.starts_with('[')) text.clear();  // a list with one value per layer
    add(report, row.name, std::move(text));
  }
}

}  // namespace

void add_facts(const Checkpoint& checkpoint, const std::atomic<bool>& stop, Report& report) {
  if (const auto text = config_text(checkpoint, stop)) {
    add_config(*text, report);
  } else {
    add_gguf(checkpoint, report);
  }
}

}  // namespace stfs
