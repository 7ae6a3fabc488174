// The schemes of quantisation: a table with one row a scheme. A row finds the weights that are
// stored in its way, by their names, types and shapes and by what config.json says of them, and
// describes each with a QuantizedLayout. Nothing is guessed: what is incomplete, or contradicts
// itself, is an Error kQuantized that names the tensor.
//
// Thread safety: rows are constants, and the functions are pure.
#pragma once

#include "core/layer/quantised/candidate.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

struct Scheme {
  std::string_view name;  // "block FP8"
  // Whether the tensor is a weight of this scheme; fills `found`.
  bool (*find)(Candidate& weight);
};

std::span<const Scheme> schemes();

// The row of an FP8 tensor without a scale, where nothing else in the checkpoint is quantised.
const Scheme& plain_scheme();

// Whether tensors of this type may hold codes that only a scheme explains: no plain numbers, and no
// blocks of GGUF.
bool may_hold_codes(DType dtype);
// Whether it is a type of blocks that llama.cpp stores a scale beside: NVFP4, and ternary ones.
bool is_scaled_in_gguf(DType dtype);
// Whether a file of a GGUF checkpoint is missing, which may hold scales.
bool lacks_part_of_gguf(const TensorList& list);
// Why a tensor with this name is of a scheme that stfs does not compute; "" for any other. In a
// checkpoint without codes the name means nothing.
std::string reason_to_refuse(std::string_view name);
// A tensor that belongs to a quantised checkpoint and gives no value, as its name tells.
struct Vanishing {
  // Scales and zero points of a layer's inputs, of its outputs (also those of attention), and of
  // queries, keys and values, which may have one for each head.
  enum Of { kMark, kInputs, kOutputs, kCache };
  Of of;
  std::string_view module;  // the name's beginning
};
std::optional<Vanishing> vanishing(std::string_view name);
// Whether a tensor can be that by its type and shape. `matrices`: those of the computed weight
// beside it; 0: there is none, it is of the attention.
bool may_vanish(const Vanishing& part, const Tensor& tensor, std::uint64_t matrices);
// The beginning that the names of all parts of a weight share: "X" of X.weight, X.weight_scale and
// X.scales.
std::string_view base_of_part(std::string_view name);
// The place in a name, which is that of a tensor without its module, from which on it still has a
// word of a part of quantised weights: "scale", "zero". npos: it has none.
std::size_t place_of_companion(std::string_view name);
// The place in a whole name of a word of a scale, or of another part of a value, that may belong to
// codes of the same module. npos: it has none, or is known to give no value.
std::size_t place_of_unknown_part(std::string_view name);
// Whether such a tensor is more likely a parameter of the model: the weight of a norm, a factor.
bool is_scale_of_model(std::string_view name);
// Why a tensor that no row has taken cannot pass: "is a scale of a quantised weight that is not
// there"; "" for one that can. `is_quantized`: other weights are computed.
std::string reason_if_left(const Finder& finder, const Tensor& tensor, bool is_quantized);

// Rows of the table, by the file that has them.
using FindWeight = bool(Candidate&);
FindWeight find_gguf;                                    // schemes.cpp
FindWeight find_fp8, find_int8, find_fp4, find_gpt_oss;  // schemes_scaled.cpp
FindWeight find_packed;                                  // schemes_compressed.cpp
FindWeight find_gptq, find_awq;                          // schemes_gptq.cpp
FindWeight find_bnb4, find_bnb8;                         // schemes_bitsandbytes.cpp
FindWeight find_mlx;                                     // schemes_mlx.cpp
FindWeight find_comfy;                                   // schemes_comfy.cpp
FindWeight find_torchao;                                 // schemes_torchao.cpp
FindWeight find_modelopt_int4;                           // schemes_modelopt.cpp
FindWeight find_quark;                                   // schemes_quark.cpp

}  // namespace stfs
