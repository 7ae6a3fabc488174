// The layer `dequantize`: shows a quantised checkpoint like the one that it was made from. Each
// quantised weight becomes one tensor of values (computed by dequantize.h) instead of its codes,
// scales and zero points. The schemes (schemes.h) decide which tensors are quantised, and how.
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

// Converts the words of -o dequantize, "bf16", "f16" and "f32", to types. Returns nullopt for any
// other word.
std::optional<DType> dequantized_type(std::string_view word);
// Returns the word for such a type, or "" for any other type.
std::string_view dequantized_word(DType type);
inline constexpr std::string_view kDequantizeOption = "dequantize";
inline constexpr std::string_view kDequantizedWords = "bf16|f16|f32";

// Returns the list with values instead of codes, or the same list if nothing is quantised. Throws
// Error kQuantized for a quantised tensor that is incomplete, contradicts itself or belongs to an
// unsupported scheme, and Error kUnreadable.
TensorList dequantize(TensorList below, DType to, Sources& sources);

// Sets Tensor::values of GGUF blocks that a tensor beside them scales, such as NVFP4, unless they
// are set already. If a scale is missing or its meaning is unknown, the values cannot be read, and
// a warning says why.
void set_scaled_values(TensorList& list, Sources& sources);

// The quantised weights that a list shows as stored codes.
struct StoredCodes {
  std::uint64_t weights = 0;           // the number of such weights
  std::string scheme;                  // the scheme of the first weight; dequantize() supports it
  std::vector<std::uint32_t> tensors;  // the numbers of their codes and scales, ascending
};
// Returns nullopt if there are no such weights, or if dequantize() would refuse them. The blocks of
// GGUF do not count as codes, because their type determines their values. Neither does FP8 without
// scales.
std::optional<StoredCodes> stored_codes(const TensorList& list, Sources& sources);

}  // namespace stfs
