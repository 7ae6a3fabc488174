// JSON that libraries store for single weights, beside them or in a header: ComfyUI a format for
// each layer, torchao the class of each tensor and its attributes.
//
// Nothing here is trusted: who uses a value checks it against the tensors. Thread safety: pure
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

// The key of a header's metadata in which ComfyUI's formats stand, by layer.
inline constexpr std::string_view kComfyKey = "_quantization_metadata";

struct ComfyLayer {
  std::string format;             // "float8_e4m3fn", "nvfp4"
  std::string refused;            // why its values cannot be computed; "" when they can
  std::optional<DType> weight;    // the type of the codes in this format
  std::set<std::string> unknown;  // keys that are not known
};
// Reads the text of a tensor "X.comfy_quant".
ComfyLayer comfy_layer(std::string_view text);
// Reads the text at kComfyKey; the result is by the name of the layer. nullopt: another text.
std::optional<std::map<std::string, ComfyLayer, std::less<>>> comfy_layers(std::string_view text);

struct TorchaoTensor {
  std::string type;                  // "Float8Tensor"
  std::vector<std::uint64_t> block;  // block_size; a number for all columns of a group alone
  std::string element;               // elem_dtype without "torch."
  bool has_tiles = false;            // is_swizzled_scales
  std::set<std::string> unknown;     // keys that are not known
};
// Reads the text at a tensor's name in a header's metadata. nullopt: another text.
std::optional<TorchaoTensor> torchao_tensor(std::string_view text);

// The keys of a header's metadata that describe nothing but the quantisation of its tensors:
// readers of the values would quantise again.
std::vector<std::string> keys_of_quantisation(const Metadata& metadata);

// Whether a key of a configuration tells of rotated weights.
bool is_key_of_rotation(std::string_view key);
// The first key or word in a header's texts that tells of rotated weights; "" when there is none.
// ComfyUI's formats of layers are left out: they are read by themselves.
std::string rotation_in(const Metadata& metadata);

}  // namespace stfs
