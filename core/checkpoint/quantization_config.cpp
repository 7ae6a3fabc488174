#include "core/checkpoint/quantization_config.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/source/url.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <limits>
#include <string_view>
#include <system_error>

namespace stfs {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kMostText = 8 << 20;  // bytes

// How deep the objects and arrays of a JSON text are nested, at most.
std::size_t depth_of(std::string_view text) {
  std::size_t depth = 0;
  std::size_t deepest = 0;
  bool is_in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_in_string && c == '\\') ++i;
    if (c == '"') is_in_string = !is_in_string;
    if (is_in_string) continue;
    if (c == '{' || c == '[') deepest = std::max(deepest, ++depth);
    if ((c == '}' || c == ']') && depth > 0) --depth;
  }
  return deepest;
}

// A discarded value for a text that is no JSON, or that is longer or deeper than any that is read
// here: a value takes fifty times the memory of its text.
Json parse(const std::string& text) {
  constexpr std::size_t kDeepest = 64;
  Json none(Json::value_t::discarded);
  if (text.size() > kMostText || depth_of(text) > kDeepest) return none;
  return Json::parse(text, nullptr, false);
}

// Reads the members of one object, and refuses those of another type.
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
    if (!value->is_string()) refuse(key, "a string is expected");
    std::string text = value->get<std::string>();
    std::ranges::transform(text, text.begin(), [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    return text;
  }

  std::optional<bool> flag(const char* key) const {
    const Json* const value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_boolean()) refuse(key, "true or false is expected");
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
      refuse(key, "a number from 1 to 2^40 is expected, or -1");
    }
    return value.get<std::uint64_t>();
  }

  // [128,128], or "128x128" of older files.
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
    refuse(key, "the rows and columns of a block are expected");
  }

 private:
  const Json& object_;
  const std::string& file_;
};

// The object at a key; null when there is none.
const Json* object_at(const Json& object, const char* key, const std::string& file) {
  const auto at = object.find(key);
  if (at == object.end() || at->is_null()) return nullptr;
  if (!at->is_object()) ConfigReader(object, file).refuse(key, "an object is expected");
  return &*at;
}

QuantizationConfig::Group group_of(const Json& json, const std::string& file) {
  const ConfigReader group(json, file);
  QuantizationConfig::Group out;
  out.format = group.text("format");
  const Json* const weights = object_at(json, "weights", file);
  if (weights == nullptr) return out;
  const ConfigReader about(*weights, file);
  out.type = about.text("type");
  out.strategy = about.text("strategy");
  out.bits = about.number("num_bits");
  out.group_size = about.number("group_size");
  out.block = about.block("block_structure");
  return out;
}

void read_config(const Json& json, QuantizationConfig& out) {
  const ConfigReader config(json, out.file);
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
  const Json* const symmetric = config.find("sym");
  out.is_symmetric = symmetric != nullptr && *symmetric == true;
  for (const char* const key : {"dynamic", "extra_config"}) {
    const Json* const exceptions = config.find(key);
    if (exceptions == nullptr || exceptions->empty()) continue;
    out.has_exceptions = true;
    for (const Json& module : *exceptions) {
      if (module.is_object() && module.contains("sym")) out.is_symmetric = false;
    }
  }
  for (const char* const key : {"transform_config", "sparsity_config", "spinquant_config"}) {
    const Json* const part = config.find(key);
    if (part == nullptr || part->empty()) continue;
    const std::string format =
        part->is_object() ? ConfigReader(*part, out.file).text("format") : "";
    if (format != "dense") out.refused = key;
  }
  if (const Json* const groups = object_at(json, "config_groups", out.file)) {
    for (const Json& group : *groups) {
      if (!group.is_object()) config.refuse("config_groups", "objects are expected");
      out.groups.push_back(group_of(group, out.file));
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
  out.all = module_of(json, out.file);
  for (const auto& [name, value] : json.items()) {
    if (value.is_object()) {
      // Parameters that it lacks have the defaults of MLX, and not those of the others.
      QuantizationConfig::Module& own = out.modules[name] = module_of(value, out.file);
      if (!own.bits) own.bits = 4;
      if (!own.group_size) own.group_size = 64;
    }
    if (value.is_boolean()) {
      out.modules[name] = out.all;
      out.modules[name].is_quantized = value.get<bool>();
    }
  }
}

// The objects of config.json that may describe the quantisation: the whole, its text_config, and
// the parts of a model that have other names, such as llm_config.
std::vector<const Json*> places_in(const Json& json, const std::string& file) {
  constexpr const char* kKey = "quantization_config";
  std::vector<const Json*> places{&json};
  if (const Json* const text = object_at(json, "text_config", file)) {
    places.push_back(text);
    if (object_at(*text, kKey, file) != nullptr) return places;
  }
  const Json* found = nullptr;
  for (const Json& part : json) {
    const Json* const config = part.is_object() ? object_at(part, kKey, file) : nullptr;
    if (config == nullptr) continue;
    if (found != nullptr && *config != *found) {
      ConfigReader(json, file).refuse(kKey, "two parts of the model have different ones");
    }
    found = config;
    places.push_back(&part);
  }
  return places;
}

// The quantisation in config.json; false when it says nothing.
bool read_main(const Json& json, QuantizationConfig& out) {
  if (const Json* const mlx = object_at(json, "quantization", out.file)) {
    read_mlx(*mlx, out);
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

// Reads a file and parses it; false when there is none.
bool load_json(const std::string& directory, const char* name, Sources& sources,
               QuantizationConfig& out, Json& json) {
  const std::string path = child_name(directory, name);
  std::error_code error;
  if (!is_url(path) && !std::filesystem::exists(path, error) && !error) return false;
  std::string text;
  try {
    text = sources.read_file(path, kMostText);
  } catch (const Error& refusal) {
    if (refusal.code() == ErrorCode::kAbsent) return false;
    // Without the file, values could be wrong: only one that is perhaps absent counts as absent.
    if (refusal.code() != ErrorCode::kHidden) throw;
    if (out.unreadable.empty()) out.unreadable = refusal.what();
    return false;
  }
  out.file = public_name(path);
  json = parse(text);
  if (!json.is_object()) throw Error(ErrorCode::kQuantized, out.file, "a JSON object is expected");
  out.text = std::move(text);
  return true;
}

}  // namespace

QuantizationConfig read_quantization_config(const std::string& directory, Sources& sources) {
  QuantizationConfig out;
  Json json;
  if (load_json(directory, "config.json", sources, out, json) && read_main(json, out)) return out;
  if (load_json(directory, "hf_quant_config.json", sources, out, json)) {
    out.method = "modelopt";
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

std::string refused_comfy_format(const std::string& text) {
  const auto reason_of = [](const Json& about) -> std::string {
    if (!about.is_object()) return "is not the JSON of a format of ComfyUI";
    if (const auto at = about.find("convrot"); at != about.end() && *at != false) {
      return "\"convrot\" of ComfyUI is not supported: the weights are rotated";
    }
    const auto at = about.find("format");
    const std::string format =
        at != about.end() && at->is_string() ? at->get<std::string>() : std::string();
    if (format.starts_with("float8_")) return "";
    return "the format " + in_quotes(format) + " of ComfyUI is not supported: only FP8 is";
  };
  const Json json = parse(text);
  const auto layers = json.is_object() ? json.find("layers") : json.end();
  if (layers == json.end() || !layers->is_object()) return reason_of(json);
  for (const auto& [name, layer] : layers->items()) {
    const std::string reason = reason_of(layer);
    if (!reason.empty()) return in_quotes(name) + ": " + reason;
  }
  return "";
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
