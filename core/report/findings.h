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
#include <vector>

namespace stfs {

// Sets Report::findings from its tensors, the worst first. `missing` is that of the checkpoint;
// `unreadable_there` says why a tensor of the other checkpoint cannot be read, by the position of
// its namesake. The rules:
//
//   all zero, constant   at least two values, of a floating type. All zero also for integers, of
//                        which there are 1,024 at least: masks and zero points may be zero.
//   equal                groups of tensors with equal bytes, if they are not constant
//   scale                tensors whose names end as those of scales do ("_scale", "scales",
//                        "_scale_inv", "absmax"): a NaN, a value of 0 or below, or a largest value
//                        over 2^24 times the smallest one
void add_findings(Report& report, std::span<const MissingTensor> missing,
                  const std::map<std::uint32_t, std::string>& unreadable_there);

// The tensors of findings; then those of which the RMS, or the largest value over the std, is 4
// times that of the middle one of its role, or a fourth, in roles of at least 5 tensors. A role is
// a name without its numbers. At most Report::kMostPictured positions, without repetition.
std::vector<std::uint32_t> odd_tensors(const Report& report);

}  // namespace stfs
