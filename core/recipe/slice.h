// A part of a tensor, written as between NumPy's brackets.
//
//   EXPR    = item *("," item) [","]
//   item    = integer | [integer] ":" [integer] [":" [integer]] | "..."
//   integer = ["+" | "-"] digits
//
// without spaces. The rules are NumPy's basic indexing: an integer drops its dimension and counts
// from the end when it is negative; slices clamp; `...` stands for the dimensions that are left
// over, once at most; missing trailing dimensions are whole. Steps are positive.
//
// What is cut out is not a list of runs but a nest of loops over the runs, so that a slice of
// millions of runs costs no more memory than one of two.
#pragma once

#include "core/format/types.h"
#include "core/recipe/content.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// As many dimensions as NumPy has. A tensor of more has no slices.
inline constexpr std::size_t kSliceMaxRank = 64;

// What an expression takes of one dimension.
struct Range {
  std::uint64_t start;
  std::uint64_t count;
  std::uint64_t step;    // at least 1
  bool keeps_dimension;  // false for an integer
};

// Fills `ranges`, one a dimension. Returns 0; EINVAL for bad syntax and too many indices or
// dimensions; ERANGE
// for an integer outside its dimension.
int parse_ranges(std::string_view expression, std::span<const std::uint64_t> shape,
                 std::vector<Range>& ranges);

// The one way to write ranges down, so that two expressions take the same elements exactly when
// these are equal; empty for the whole tensor.
std::string canonical_expression(std::span<const Range> ranges,
                                 std::span<const std::uint64_t> shape);

// Begin, run and strides are in bytes, or in elements where that is said.
struct Slice {
  struct Loop {
    std::uint64_t count;  // at least 2
    std::uint64_t stride;
  };

  std::vector<std::uint64_t> shape;  // of the result
  std::uint64_t begin = 0;           // from the tensor's first byte or element to the first run
  std::uint64_t run = 0;             // the length of each run; 0 when nothing is cut out
  std::vector<Loop> loops;           // outermost first; runs that touch were joined

  std::uint64_t size() const;
};

// What ranges take, in elements.
Slice elements_of(std::span<const Range> ranges, std::span<const std::uint64_t> shape);

// Fills `slice`, in bytes. Returns 0, or EINVAL for runs that do not begin and end at a block's
// boundary.
int slice_of(std::span<const Range> ranges, const TypeInfo& info,
             std::span<const std::uint64_t> shape, Slice& slice);

// The same for an expression: the errors of both.
int parse_slice(std::string_view expression, DType dtype, std::span<const std::uint64_t> shape,
                Slice& slice);

// The recipe of a slice of a tensor whose bytes are `whole`: one extent when it is one run of one.
// Of many runs only those bytes are read, and what lies between two when that is less than a page.
Content slice_content(const Slice& slice, Content whole);

}  // namespace stfs
