#include "core/layer/quantised/layer_texts.h"

#include "core/base/json_text.h"
#include "core/base/text.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <utility>

namespace stfs {
namespace {

using Json = nlohmann::json;

// Parses a text. Returns a discarded value if the text is not JSON or exceeds the limits of
// is_bounded_json().
Json parse(std::string_view text) {
  return Json::parse(is_bounded_json(text) ? text : std::string_view(), nullptr, false);
}

std::string text_at(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
}

// Returns a key which means that the weight is not the function of its codes and scales that its
// format implies, or "" if there is none. ConvRot's `convrot_groupsize` has no such meaning by
// itself.
std::string changed_by(const Json& object) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_null() || value == false || key.ends_with("groupsize")) continue;
    for (const char* const word : {"rot", "hadamard", "transposed", "svd"}) {
      if (key.find(word) != std::string::npos) return key;
    }
  }
  return "";
}

constexpr std::array<std::string_view, 10> kKeysOfComfy{"format",
                                                        "params",
                                                        "full_precision_matrix_mult",
                                                        "convrot",
                                                        "convrot_groupsize",
                                                        "group_size",
                                                        "num_experts",
                                                        "orig_dtype",
                                                        "orig_shape",
                                                        "transposed"};
constexpr std::array<std::string_view, 4> kKeysOfTorchao{"_type", "_data", "_tensor_data_names",
                                                         "_version"};
// The attributes of torchao's classes.
constexpr std::array<std::string_view, 18> kAttributesOfTorchao{"block_size",
                                                                "dtype",
                                                                "orig_dtype",
                                                                "elem_dtype",
                                                                "target_dtype",
                                                                "activation_dtype",
                                                                "scale_dtype",
                                                                "shape",
                                                                "granularity",
                                                                "mm_config",
                                                                "act_quant_kwargs",
                                                                "activation_quantization",
                                                                "kernel_preference",
                                                                "gemm_kernel_choice",
                                                                "is_swizzled_scales",
                                                                "use_triton_kernel",
                                                                "quantize_to_nvfp4_kernel_choice",
                                                                "mapping_type"};

// Adds the keys of an object that are not in `known`, unless the value is empty or false.
void add_unknown(const Json& object, std::span<const std::string_view> known,
                 std::set<std::string>& unknown) {
  for (const auto& [key, value] : object.items()) {
    const auto* const text = value.get_ptr<const Json::string_t*>();
    if (value.empty() || value == false || (text != nullptr && text->empty())) continue;
    if (std::ranges::find(known, key) == known.end()) unknown.insert(key);
  }
}

// Returns true for null, false, 0, "", [] and {}, and for words with the same meaning.
bool says_nothing(const Json& value) {
  const auto* const text = value.get_ptr<const Json::string_t*>();
  if (text == nullptr) return value.empty() || value == false || value == 0;
  constexpr std::string_view kNothing[] = {"", "false", "none", "null", "no", "0", "{}", "[]"};
  return std::ranges::find(kNothing, lower_case(*text)) != std::end(kNothing);
}

// Returns false for nearly all entries of a header, so that long texts are rarely parsed. JSON may
// escape letters, so an escape may hide a word.
bool may_name_rotation(std::string_view key, std::string_view text) {
  constexpr std::string_view kParts[] = {"rot", "hadamard", "spinquant", "transform_config", "\\u"};
  const auto is_equal = [](char a, char b) { return (a | ' ') == (b | ' '); };
  const auto has = [&](std::string_view where) {
    return std::ranges::any_of(kParts, [&](std::string_view part) {
      return std::search(where.begin(), where.end(), part.begin(), part.end(), is_equal) !=
             where.end();
    });
  };
  return has(key) || has(text);
}

// Returns true for the keys of free texts, which people write, or which describe how a model was
// trained. Such a text may mention rotations, for instance of training images.
bool is_free_text(std::string_view key) {
  constexpr std::string_view kKeys[] = {
      "author", "base_model", "comment", "dataset", "description",   "license",      "model_name",
      "name",   "notes",      "tags",    "title",   "training_args", "training_info"};
  constexpr std::string_view kBegins[] = {"ss_", "modelspec."};  // kohya, Stability
  const auto begins = [&](std::string_view word) { return key.starts_with(word); };
  return key.find("quant") == std::string_view::npos &&
         (std::ranges::find(kKeys, key) != std::end(kKeys) || std::ranges::any_of(kBegins, begins));
}

// Returns the key or word in a value, which may be a string with JSON, that names a rotation of
// weights, or "".
std::string rotation_at(const std::string& key, const Json& value) {
  constexpr std::string_view kMethods[] = {"convrot", "hadamard", "spinquant", "quarot"};
  if (is_key_of_rotation(key) && !says_nothing(value)) return key;
  if (const auto* const text = value.get_ptr<const Json::string_t*>()) {
    const Json inner = parse(*text);
    if (inner.is_structured()) return rotation_at("", inner);
    const std::string lower = lower_case(*text);
    const bool is_word = lower.find_first_of(" \n") == std::string::npos;
    const auto names = [&](std::string_view method) {
      return lower.find(method) != std::string::npos;
    };
    return is_word && std::ranges::any_of(kMethods, names) ? *text : "";
  }
  if (!value.is_structured()) return "";
  for (const auto& [name, part] : value.items()) {
    std::string found = rotation_at(value.is_object() ? name : "", part);
    if (!found.empty()) return found;
  }
  return "";
}

ComfyLayer comfy_layer_of(const Json& about) {
  ComfyLayer layer;
  if (!about.is_object()) {
    layer.refused = "is not the JSON of a format of ComfyUI";
    return layer;
  }
  layer.format = text_at(about, "format");
  std::string changed = changed_by(about);
  add_unknown(about, kKeysOfComfy, layer.unknown);
  if (const auto more = about.find("params"); more != about.end() && more->is_object()) {
    if (changed.empty()) changed = changed_by(*more);
    add_unknown(*more, kKeysOfComfy, layer.unknown);
  }
  using Format = std::pair<std::string_view, DType>;
  constexpr std::array<Format, 6> kFormats{{{"float8_e4m3fn", DType::kF8E4M3},
                                            {"float8_e5m2", DType::kF8E5M2},
                                            {"mxfp8", DType::kF8E4M3},
                                            {"nvfp4", DType::kU8},
                                            {"int8_tensorwise", DType::kI8},
                                            {"awq_w4a16", DType::kI8}}};
  const auto* const format =
      std::ranges::find(kFormats, layer.format, [](const Format& row) { return row.first; });
  if (format != kFormats.end()) layer.weight = format->second;
  const bool is_known =
      layer.weight || layer.format == "fp8" || layer.format.starts_with("float8_");
  if (!changed.empty()) {
    layer.refused = in_quotes(changed) +
                    " of ComfyUI is not supported: the weights are rotated, or stored in another "
                    "order";
  } else if (!is_known) {
    layer.refused = "the format " + in_quotes(layer.format) +
                    " of ComfyUI is not supported, only FP8, MXFP8, NVFP4, INT8 and awq_w4a16 are";
  }
  return layer;
}

}  // namespace

ComfyLayer comfy_layer(std::string_view text) { return comfy_layer_of(parse(text)); }

std::optional<std::map<std::string, ComfyLayer, std::less<>>> comfy_layers(std::string_view text) {
  const Json json = parse(text);
  const auto layers = json.is_object() ? json.find("layers") : json.end();
  if (layers == json.end() || !layers->is_object()) return std::nullopt;
  std::map<std::string, ComfyLayer, std::less<>> out;
  for (const auto& [name, layer] : layers->items()) out.emplace(name, comfy_layer_of(layer));
  return out;
}

std::optional<TorchaoTensor> torchao_tensor(std::string_view text) {
  const Json json = parse(text);
  if (!json.is_object()) return std::nullopt;
  TorchaoTensor out{.type = text_at(json, "_type"), .block = {}, .element = {}, .unknown = {}};
  if (out.type.empty()) return std::nullopt;
  add_unknown(json, kKeysOfTorchao, out.unknown);
  const auto data = json.find("_data");
  if (data == json.end() || !data->is_object()) return out;
  add_unknown(*data, kAttributesOfTorchao, out.unknown);
  const auto add_block = [&](const Json& size) {
    if (size.is_number_unsigned()) out.block.push_back(size.get<std::uint64_t>());
    return size.is_number_unsigned();
  };
  if (const auto block = data->find("block_size"); block != data->end()) {
    const bool is_list = block->is_array();
    if (is_list && !std::ranges::all_of(*block, add_block)) return std::nullopt;
    if (!is_list && !block->is_null() && !add_block(*block)) return std::nullopt;
  }
  if (const auto element = data->find("elem_dtype"); element != data->end()) {
    out.element = element->is_object() ? text_at(*element, "_data") : text_at(*data, "elem_dtype");
  }
  const auto tiles = data->find("is_swizzled_scales");
  out.has_tiles = tiles != data->end() && *tiles == true;
  return out;
}

std::vector<std::string> keys_of_quantisation(const Metadata& metadata) {
  std::set<std::string> keys{std::string(kComfyKey), "quantization_config"};
  if (const auto at = metadata.find("tensor_names")) {
    const Json names = parse(metadata[*at].second);
    std::set<std::string> seen;  // so that a long text is parsed only once
    for (const Json& each : names) {
      if (!each.is_string() || !seen.insert(each.get<std::string>()).second) continue;
      const auto& name = each.get_ref<const std::string&>();
      const auto about = metadata.find(name);
      if (about && torchao_tensor(metadata[*about].second)) keys.insert(name);
    }
    if (keys.size() > 2) keys.emplace("tensor_names");
  }
  return {keys.begin(), keys.end()};
}

bool is_key_of_rotation(std::string_view key) {
  constexpr std::string_view kSure[] = {"convrot", "hadamard", "spinquant", "quarot",
                                        "transform_config"};
  // `convrot_groupsize` has no meaning by itself.
  constexpr std::string_view kSizes[] = {"convrot_groupsize", "convrot_group_size",
                                         "convrot_group"};
  // Rotations of positions, of images and of cameras, not of weights.
  constexpr std::string_view kOthers[] = {"rope_",     "_rope",     "rotary",
                                          "position_", "_position", "image_",
                                          "augment",   "camera",    "rotation_angle"};
  const std::string lower = lower_case(key);
  const auto has = [&](std::string_view word) { return lower.find(word) != std::string::npos; };
  const auto ends = [&](std::string_view end) { return lower.ends_with(end); };
  if (std::ranges::any_of(kSizes, ends)) return false;
  const bool is_rotation = has("rotation") || has("rotated");
  return std::ranges::any_of(kSure, has) || (is_rotation && std::ranges::none_of(kOthers, has));
}

std::string rotation_in(const Metadata& metadata) {
  for (std::size_t i = 0; i < metadata.size(); ++i) {
    const auto& [key, text] = metadata[i];
    if (key == kComfyKey || is_free_text(key) || !may_name_rotation(key, text)) continue;
    std::string found = rotation_at(std::string(key), Json(std::string(text)));
    if (!found.empty()) return found;
  }
  return "";
}

}  // namespace stfs
