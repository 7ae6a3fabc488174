// The quantisation schemes that stfs can compute: a table with one row per scheme. Each row
// recognises the weights that are stored in its way, by their names, types and shapes and by the
// configuration beside the checkpoint (config.json), and describes each of them with a
// QuantizedLayout.
//
// Nothing is guessed: a weight that is incomplete or contradictory throws Error kQuantized, which
// names the tensor.
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
  // Returns true if `weight` is stored in this scheme, and then fills weight.found.
  bool (*find)(Candidate& weight);
};

std::span<const Scheme> schemes();

// Returns the row for FP8 tensors without a scale. It applies only if no other tensor of the
// checkpoint is quantised.
const Scheme& plain_scheme();

// Returns true if tensors of this type may hold codes, whose values depend on a scheme. False
// for plain numbers, such as BF16 or I64, and for the block types of GGUF.
bool may_hold_codes(DType dtype);
// Returns true for a block type of GGUF beside which llama.cpp stores a scale: NVFP4 and the
// ternary types.
bool is_scaled_in_gguf(DType dtype);
// Returns true if a file of a GGUF checkpoint is missing. It may contain scales.
bool lacks_part_of_gguf(const TensorList& list);
// Returns why stfs cannot compute the scheme that a tensor with this name belongs to, or "" for any
// other name. Call it only for a checkpoint that holds codes, because other models may use the same
// name for an ordinary parameter.
std::string reason_to_refuse(std::string_view name);
// A tensor that only a quantised checkpoint has and that no weight is computed from. The
// dequantised list leaves it out.
struct AuxiliaryTensor {
  enum Of {
    kMark,     // names the format of a layer or a file, as ComfyUI writes it
    kInputs,   // a scale or zero point of a layer's inputs
    kOutputs,  // a scale or zero point of a layer's or of attention's outputs
    kCache     // a scale or zero point of queries, keys or values; may have one element per head
  };
  Of of;
  std::string_view module;  // the name without its ending
};
// Recognises such a tensor by its name. Returns nullopt for any other name.
std::optional<AuxiliaryTensor> find_auxiliary(std::string_view name);
// Returns true if the type and shape of `tensor` are also those of such a tensor; only then may it
// be left out. `matrices` is the number of matrices of the computed weight in the same module, or 0
// if the module has none, as with the scales of attention.
bool is_auxiliary(const AuxiliaryTensor& part, const Tensor& tensor, std::uint64_t matrices);
// Returns the prefix that the names of all tensors of one quantised weight share: "X" for X.weight,
// X.weight_scale and X.scales.
std::string_view base_of_part(std::string_view name);
// Returns the position of the last word in `name` that is typical of a part of a quantised weight,
// such as "scale" or "zero", or npos if there is none. `name` is the last component of a tensor's
// name.
std::size_t companion_word_position(std::string_view name);
// Returns the position in a tensor's whole name of a word for a scale, or for another part of a
// value, which may belong to codes of the same module. Returns npos if the name has no such word,
// or if the tensor is known to affect no value.
std::size_t place_of_unknown_part(std::string_view name);
// Returns true if such a tensor is more likely a parameter of the model, such as the weight of a
// norm or a factor.
bool is_scale_of_model(std::string_view name);
// Returns why a tensor that no scheme has claimed must not be shown as it is, for instance "is a
// scale of a quantised weight that is not there", or "" if it may be shown. `is_quantized` says
// whether other weights of the checkpoint are dequantised.
std::string reason_if_unclaimed(const Finder& finder, const Tensor& tensor, bool is_quantized);

// The find functions of the rows, each with the file that defines it.
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
