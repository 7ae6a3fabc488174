// Judges the statistics of a report: what may be broken, and which tensors are unlike others of
// their kind.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/report/report.h"

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// Sets Report::findings from its tensors, the worst first. `missing` is that of the checkpoint;
// `unreadable_there` says why a tensor of the other checkpoint cannot be read, by the position of
// its namesake. The rules:
//
//   broken   what is missing or cannot be read; NaN; infinity; all zero: at least two values, of a
//            floating type, or 1,024 integers (masks and zero points may be zero)
//   odd      - scales, by the ends of their names ("_scale", "scales", "_scale_inv", "absmax"): a
//              NaN, a value of 0 or below, or a largest value over 2^24 times the smallest one
//            - outliers.h: a layer, the RMS, the largest |x|
//            - groups of tensors with equal bytes, if they are not constant; embeddings that are
//              equal or not against tie_word_embeddings
//            - one value in all elements
//   usual    zeros in vectors of biases and norms and in the second matrix of an adapter
//            ("lora_B"), ones in vectors, tied embeddings
void add_findings(Report& report, std::span<const MissingTensor> missing,
                  const std::map<std::uint32_t, std::string>& unreadable_there);

// Whether all zeros in this tensor are a sign that it is broken, by the rules above.
bool is_broken_zero(std::string_view name, std::span<const std::uint64_t> shape, DType dtype,
                    const ValueStats& stats);

// The tensors of findings, some of each: at most Report::kMostPictured positions, without
// repetition.
std::vector<std::uint32_t> odd_tensors(const Report& report);

}  // namespace stfs
