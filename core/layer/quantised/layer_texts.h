// JSON texts that libraries store for single weights, beside the weights or in a header: ComfyUI
// stores a format for each layer, torchao the class of each tensor and its attributes.
//
// The texts are not trusted: the caller checks each value against the tensors. Thread safety: pure
// functions.
#pragma once

#include "core/format/header.h"
#include "core/format/types.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// The key of ComfyUI's formats of layers in a header's metadata.
inline constexpr std::string_view kComfyKey = "_quantization_metadata";

struct ComfyLayer {
  std::string format;   // "float8_e4m3fn", "nvfp4"
  std::string refused;  // why its values cannot be computed; "" if they can
  // The type of the codes; nullopt if the format does not determine it.
  std::optional<DType> weight;
  std::set<std::string> unknown;  // keys that stfs does not know
};
// Reads the text of a tensor "X.comfy_quant".
ComfyLayer comfy_layer(std::string_view text);
// Reads the text at kComfyKey. The result is ordered by layer name. Returns nullopt for any other
// text.
std::optional<std::map<std::string, ComfyLayer, std::less<>>> comfy_layers(std::string_view text);

struct TorchaoTensor {
  std::string type;  // "Float8Tensor"
  // block_size. A single number is the number of columns per group.
  std::vector<std::uint64_t> block;
  std::string element;            // elem_dtype without "torch."
  bool has_tiles = false;         // is_swizzled_scales
  std::set<std::string> unknown;  // keys that stfs does not know
};
// Reads the text at a tensor's name in a header's metadata. Returns nullopt for any other text.
std::optional<TorchaoTensor> torchao_tensor(std::string_view text);

// Returns the keys of a header's metadata that only describe the quantisation of its tensors. They
// must not be shown with the values, because a reader would quantise again.
std::vector<std::string> keys_of_quantisation(const Metadata& metadata);

// Returns true if a key of a configuration means that weights are rotated.
bool is_key_of_rotation(std::string_view key);
// Returns the first key or word in a header's texts which means that weights are rotated, or "" if
// no text has one. Skips ComfyUI's formats of layers, because comfy_layers() checks them.
std::string rotation_in(const Metadata& metadata);

}  // namespace stfs
