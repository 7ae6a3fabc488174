// Evaluates the statistics of a report: finds what may be broken, and which tensors differ from
// others of their kind.
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

// Sets Report::findings from the report's tensors, the most severe first. `missing` lists what the
// checkpoint lacks. `unreadable_there` contains the reasons why tensors of the other checkpoint
// cannot be read, by the positions of the tensors with the same names in Report::tensors. The
// rules:
//
//   broken   missing or unreadable tensors; NaN; infinity; only zeros, in at least two values of a
//            floating type or in 1,024 integers (masks and zero points may be zero)
//   odd      - scales, which are recognised by the ends of their names ("_scale", "scales",
//              "_scale_inv", "absmax"): a NaN, a value of 0 or below, or a largest value over 2^24
//              times the smallest one
//            - outliers.h: a layer, the RMS, the largest |x|
//            - groups of tensors with equal bytes, unless they are constant; embeddings that are
//              equal, or not, in contradiction to tie_word_embeddings
//            - the same value in all elements
//   usual    zeros in vectors of biases and norms and in the second matrix of an adapter
//            ("lora_B"), ones in vectors, tied embeddings
void add_findings(Report& report, std::span<const MissingTensor> missing,
                  const std::map<std::uint32_t, std::string>& unreadable_there);

// Returns true if all elements are zero and, by the rules above, this means that the tensor is
// broken.
bool is_broken_zero(std::string_view name, std::span<const std::uint64_t> shape, DType dtype,
                    const ValueStats& stats);

// Returns the tensors of the findings, some of each finding: at most Report::kMaxPictured
// positions, without repetition.
std::vector<std::uint32_t> odd_tensors(const Report& report);

}  // namespace stfs
