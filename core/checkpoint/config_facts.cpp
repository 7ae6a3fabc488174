#include "core/checkpoint/config_facts.h"

#include "core/base/json_text.h"
#include "core/base/text.h"
#include "core/stored/base_model.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

namespace stfs {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxDeep = 4;  // the greatest depth of nested configurations

// Returns the first component of a name that is a number, and the part of the name before it.
// Returns nullopt if no component is a number.
std::optional<std::pair<std::string, std::uint64_t>> layer_of(std::string_view name) {
  std::string_view before;
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t dot = std::min(name.find('.', at), name.size());
    const std::string_view component = name.substr(at, dot - at);
    std::uint64_t number = 0;
    const char* const end = component.data() + component.size();
    const auto result = std::from_chars(component.data(), end, number);
    if (result.ec == std::errc() && result.ptr == end)
      return std::pair(std::string(before), number);
    before = name.substr(0, dot);
    at = dot + 1;
  }
  return std::nullopt;
}

// Appends to `found` the paths of the keys that hold a number of layers and have the value `count`.
// `before` is the path of `json`.
void find_counts(const Json& json, const std::string& before, std::uint64_t count,
                 std::vector<std::string>& found, std::size_t depth = 0) {
  constexpr std::array<std::string_view, 8> kKeys{
      "num_hidden_layers", "n_layer",        "n_layers", "num_layers",
      "encoder_layers",    "decoder_layers", "depth",    "num_decoder_layers"};
  if (!json.is_object() || depth > kMaxDeep) return;
  for (const auto& [key, value] : json.items()) {
    const bool is_count = std::ranges::find(kKeys, key) != kKeys.end();
    if (is_count && value.is_number_unsigned() && value == count) found.push_back(before + key);
    find_counts(value, before + key + ".", count, found, depth + 1);
  }
}

// Returns a member of text_config, or else of the whole configuration; null if neither has it.
const Json* model_member(const Json& json, const char* key) {
  const auto text = json.find("text_config");
  for (const Json* const at : {text != json.end() ? &*text : nullptr, &json}) {
    if (at == nullptr || !at->is_object()) continue;
    const auto found = at->find(key);
    if (found != at->end() && !found->is_null()) return &*found;
  }
  return nullptr;
}

}  // namespace

class ConfigFacts::Collector {
 public:
  void add(const Tensor& tensor, bool is_of_input) {
    const TypeInfo& type = type_info(tensor.dtype);
    if (type.kind == TypeKind::kFloat && tensor.dtype != DType::kF8E8M0) {
      facts_.bytes[tensor.dtype] += tensor.length;
    }
    if (tensor.shape.size() == 2 && is_input_embedding(tensor.name)) {
      embeddings_.insert({tensor.shape[0], is_of_input});
    }
    if (tensor.shape.size() == 2 && is_language_head(tensor.name)) {
      heads_.insert({tensor.shape[0], is_of_input});
    }
    if (const auto layer = layer_of(tensor.name)) layers_[layer->first].insert(layer->second);
  }

  Facts take() {
    if (embeddings_.size() == 1) facts_.embeddings = embeddings_.begin()->first;
    if (heads_.size() == 1) facts_.head = heads_.begin()->first;
    if (facts_.embeddings && facts_.head) {
      facts_.are_from_one = embeddings_.begin()->second == heads_.begin()->second;
    }
    for (auto& [name, numbers] : layers_)
      facts_.layers[name].assign(numbers.begin(), numbers.end());
    return std::move(facts_);
  }

 private:
  Facts facts_;
  std::set<std::pair<std::uint64_t, bool>> embeddings_, heads_;
  std::map<std::string, std::set<std::uint64_t>> layers_;
};

std::optional<DType> ConfigFacts::Facts::main_type() const {
  const auto most = std::ranges::max_element(bytes, {}, [](const auto& of) { return of.second; });
  if (most == bytes.end()) return std::nullopt;
  return most->first;
}

std::vector<std::uint64_t> ConfigFacts::Facts::counts() const {
  std::vector<std::uint64_t> counts;
  for (const auto& [name, numbers] : layers) counts.push_back(numbers.size());
  std::ranges::sort(counts);
  return counts;
}

ConfigFacts::ConfigFacts(const TensorList& list, std::optional<DType> dequantized)
    : dequantized_(dequantized), beside_(list.beside()) {
  if (!list.is_layered()) return;
  Collector stored, shown;
  for (const Part& part : list.parts()) {
    if (part.is_input) continue;
    for (std::uint32_t i = 0; i < part.header.tensors.size(); ++i) {
      stored.add(part.tensor(i), false);
    }
  }
  for (std::uint32_t i = 0; i < list.size(); ++i) {
    shown.add(list.tensor(i), list.part_of(i).is_input);
  }
  stored_ = stored.take();
  shown_ = shown.take();
}

bool ConfigFacts::may_change() const {
  return dequantized_ || beside_.unties_embeddings || stored_ != shown_;
}

ConfigChange ConfigFacts::change(std::string_view config, const std::string& place,
                                 std::vector<std::string>& warnings) const {
  ConfigChange change{.is_dequantized = dequantized_.has_value()};
  const auto warn = [&](const char* key, const std::string& rule) {
    warnings.push_back(printable(place) + ": " + in_quotes(key) + rule);
  };
  const std::optional<DType> type = shown_.main_type();
  change.type = dequantized_;
  const bool has_dequantized = dequantized_ && shown_.bytes.contains(*dequantized_);
  if (type != stored_.main_type() && type && !has_dequantized) change.type = type;

  if (config.starts_with("\xEF\xBB\xBF")) config.remove_prefix(3);
  const Json json =
      Json::parse(is_bounded_json(config) ? without_infinities(config) : "", nullptr, false);
  if (!json.is_object()) {
    if (stored_ != shown_ && !dequantized_) {
      warnings.push_back(
          printable(place) +
          ": not valid JSON, or too large: stfs does not compare it with the tensors");
    }
    return change;
  }
  if (change.type && !has_type_word(*change.type)) {
    // If the stored weights are codes, torch_dtype is only the type in which the model is computed.
    const bool is_of_codes = stored_.bytes.contains(*change.type) ||
                             model_member(json, "quantization_config") != nullptr;
    const Json* const word = model_member(json, json.contains("dtype") ? "dtype" : "torch_dtype");
    if (!is_of_codes) {
      warn("torch_dtype",
           " is " + printable(word != nullptr ? word->dump() : "not set") +
               ", but most values are now " + std::string(dtype_name(*change.type)) +
               ", in which no model is computed: set the type that loaders should use");
    }
    change.type.reset();
  }

  const Json* const ties = model_member(json, "tie_word_embeddings");
  const bool are_tied = ties != nullptr && *ties == true,
             are_untied = ties != nullptr && *ties == false;
  if (beside_.unties_embeddings || (shown_.head && !stored_.head && stored_.embeddings) ||
      (are_tied && !shown_.are_from_one)) {
    if (!are_untied) change.ties_embeddings = false;
  } else if (stored_.head && !shown_.head && shown_.embeddings && !are_tied) {
    change.ties_embeddings = true;
    warn("tie_word_embeddings",
         " is true now, because the head was dropped: loaders use the embeddings in its place");
  }

  if (shown_.embeddings && shown_.embeddings != stored_.embeddings) {
    const Json* const size = model_member(json, "vocab_size");
    const bool is_known = size == nullptr || (size->is_number_unsigned() && stored_.embeddings &&
                                              *size == *stored_.embeddings);
    if (size != nullptr && *size == *shown_.embeddings) {
      // vocab_size is right already. The stored rows differ because they are the codes of quantised
      // embeddings.
    } else if (is_known) {
      change.vocabulary = shown_.embeddings;
    } else {
      warn("vocab_size", " is " + printable(size->dump()) + ", but the embeddings have " +
                             std::to_string(*shown_.embeddings) + " rows: set it");
    }
  }
  const bool did_fit = stored_.embeddings == stored_.head || !stored_.head;
  if (shown_.embeddings && shown_.head && shown_.embeddings != shown_.head && did_fit) {
    warn("vocab_size", " fits only the embeddings: they have " +
                           std::to_string(*shown_.embeddings) + " rows, but the head has " +
                           std::to_string(*shown_.head));
  }
  warn_of_layers(&json, place, warnings);
  return change;
}

// Only warns. If it changed the key with the number of layers, other keys would contradict it, such
// as lists with one entry per layer.
void ConfigFacts::warn_of_layers(const void* json, const std::string& place,
                                 std::vector<std::string>& warnings) const {
  const std::vector<std::uint64_t> before = stored_.counts(), now = shown_.counts();
  if (before == now) {
    const bool are_renamed = std::ranges::all_of(shown_.layers, [](const auto& stack) {
      return stack.second.back() + 1 == stack.second.size();
    });
    if (are_renamed || stored_.layers == shown_.layers) return;
  }
  for (const auto& [name, numbers] : stored_.layers) {
    const auto found = shown_.layers.find(name);
    const std::vector<std::uint64_t> left =
        found == shown_.layers.end() ? std::vector<std::uint64_t>() : found->second;
    if (left == numbers) continue;
    // The stack has all its layers, but another name.
    if (left.empty() &&
        std::ranges::count(now, numbers.size()) >= std::ranges::count(before, numbers.size()))
      continue;
    std::vector<std::string> keys;
    find_counts(*static_cast<const Json*>(json), "", numbers.size(), keys);
    const bool has_gap = !left.empty() && left.back() + 1 != left.size();
    for (const std::string& key : keys) {
      warnings.push_back(printable(place) + ": " + in_quotes(key) + " is " +
                         std::to_string(numbers.size()) + ", but the tensors have " +
                         std::to_string(left.size()) + " of " + in_quotes(name) +
                         (has_gap ? ", up to number " + std::to_string(left.back()) : "") +
                         ": set it, and every list that has an entry for each layer");
    }
  }
}

}  // namespace stfs
