// Shows a quantised checkpoint as the one that it was made from: a tensor with the values of each
// quantised weight in place of its codes, scales and zero points (dequantize.h computes them).
// Which tensors are quantised, and how, is decided by schemes.h.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/format/types.h"
#include "core/remote/sources.h"
#include "core/stored/tensor_list.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// "bf16", "f16" or "f32": the words of -o dequantize.
std::optional<DType> dequantized_type(std::string_view word);
std::string_view dequantized_word(DType type);
inline constexpr std::string_view kDequantizeOption = "dequantize";
inline constexpr std::string_view kDequantizedWords = "bf16|f16|f32";

// Returns the same list when nothing is quantised. Throws Error kQuantized for a quantised tensor
// that is not complete, contradicts itself, or is of a scheme that is not known, and kUnreadable.
TensorList dequantize(TensorList below, DType to, Sources& sources);

// Sets Tensor::values of the blocks of GGUF that a tensor beside them scales, such as NVFP4, where
// they are not set. What is not known has values that cannot be read, and a warning tells why.
void set_scaled_values(TensorList& list, Sources& sources);

// The quantised weights that a list shows as they are stored, as codes.
struct StoredCodes {
  std::uint64_t weights = 0;
  std::string scheme;                  // of the first; dequantize() knows it
  std::vector<std::uint32_t> tensors;  // their codes and scales, by number, ascending
};
// nullopt: there are none, or dequantize() would refuse them. The blocks of GGUF are no codes:
// their type tells their values. Nor is FP8 without scales.
std::optional<StoredCodes> stored_codes(const TensorList& list, Sources& sources);

}  // namespace stfs
