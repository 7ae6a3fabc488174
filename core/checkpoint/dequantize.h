// Shows a quantised checkpoint as the one that it was made from: a tensor with the values of each
// quantised weight in place of its codes, scales and zero points (core/recipe/dequantize.h computes
// them). Which tensors are quantised, and how, is decided by schemes.h.
//
// Thread safety: dequantize() is called by one thread; what it returns may be used by any.
// Lifetime: the checkpoint outlives what dequantize() returns.
#pragma once

#include "core/checkpoint/derivation.h"
#include "core/format/types.h"
#include "core/source/sources.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

class Checkpoint;

// "bf16", "f16" or "f32": the words of -o dequantize.
std::optional<DType> dequantized_type(std::string_view word);
std::string_view dequantized_word(DType type);
inline constexpr std::string_view kDequantizedWords = "bf16|f16|f32";

// The fates of the tensors of a checkpoint.
struct Dequantized {
  static constexpr std::uint32_t kKept = ~std::uint32_t{0};  // shown as before
  static constexpr std::uint32_t kGone = kKept - 1;          // not shown: a scale, a zero point

  std::unique_ptr<ComputedTensors> tensors;  // null: nothing is quantised
  // By the number of a tensor of the checkpoint: kKept, kGone, or the number in `tensors` of what
  // is shown in its place.
  std::vector<std::uint32_t> fates;
  std::string text;  // for Derivation::texts
  std::vector<std::string> warnings;
  // By part, sorted: keys of its metadata that describe the quantisation alone.
  std::vector<std::vector<std::string>> hidden_keys;
};

// Throws Error kQuantized for a quantised tensor that is not complete, contradicts itself, or is of
// a scheme that is not known, and kUnreadable.
Dequantized dequantize(const Checkpoint& checkpoint, DType to, Sources& sources);

}  // namespace stfs
