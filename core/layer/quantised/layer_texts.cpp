#include "core/layer/quantised/layer_texts.h"

#include "core/base/text.h"
#include "core/layer/quantised/quantization_config.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

namespace stfs {
namespace {

using Json = nlohmann::json;

// A discarded value for a text that is no JSON, or is not bounded.
Json parse(std::string_view text) {
  return Json::parse(is_bounded_json(text) ? text : std::string_view(), nullptr, false);
}

std::string text_at(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
}

// A key that says that the weight is not the function of its codes and scales that its format is.
// ConvRot's `convrot_groupsize` alone says nothing.
std::string changed_by(const Json& object) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_null() || value == false || key.ends_with("groupsize")) continue;
    for (const char* const word : {"rot", "hadamard", "transposed", "svd"}) {
      if (key.find(word) != std::string::npos) return key;
    }
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
  if (const auto more = about.find("params"); more != about.end() && more->is_object()) {
    if (changed.empty()) changed = changed_by(*more);
  }
  constexpr std::array<std::string_view, 4> kKnown{"fp8", "nvfp4", "mxfp8", "int8_tensorwise"};
  const bool is_known = layer.format.starts_with("float8_") ||
                        std::ranges::find(kKnown, layer.format) != kKnown.end();
  if (!changed.empty()) {
    layer.refused = in_quotes(changed) +
                    " of ComfyUI is not supported: the weights are rotated, or stored in another "
                    "order";
  } else if (!is_known) {
    layer.refused = "the format " + in_quotes(layer.format) +
                    " of ComfyUI is not supported: FP8, MXFP8, NVFP4 and INT8 are";
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
  TorchaoTensor out{.type = text_at(json, "_type"), .block = {}, .element = {}};
  if (out.type.empty()) return std::nullopt;
  const auto data = json.find("_data");
  if (data == json.end() || !data->is_object()) return out;
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
    std::set<std::string> seen;  // a text may be long, and is parsed once
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

}  // namespace stfs
