// Slices of tensors, in NumPy's notation.
//
//   EXPR    = item *("," item) [","]
//   item    = integer | [integer] ":" [integer] [":" [integer]] | "..."
//   integer = ["+" | "-"] digits
//
// without spaces. The rules are NumPy's basic indexing: an integer selects one element and drops
// its dimension; a negative index counts from the end; bounds are clamped; one `...` stands for all
// dimensions without an item; missing trailing dimensions are whole. Unlike NumPy's, a step is
// positive.
//
// A slice is stored as nested loops over runs of contiguous bytes, so its memory does not grow with
// the number of runs.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/format/types.h"
#include "core/recipe/content.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// The maximum rank of a tensor that can be sliced: NumPy's NPY_MAXDIMS.
inline constexpr std::size_t kSliceMaxRank = 64;
// For messages.
inline constexpr std::string_view kSliceRule =
    "as between NumPy's brackets, without spaces, and with positive steps";

// The elements that an expression selects of one dimension.
struct Range {
  std::uint64_t start;
  std::uint64_t count;
  std::uint64_t step;    // at least 1
  bool keeps_dimension;  // false for an integer
};

// Fills `ranges`, one a dimension. Returns 0; EINVAL for bad syntax, too many items or a rank over
// kSliceMaxRank; ERANGE for an integer outside its dimension.
int parse_ranges(std::string_view expression, std::span<const std::uint64_t> shape,
                 std::vector<Range>& ranges);

// A normal form: two expressions select the same elements in the same shape exactly when their
// canonical expressions are equal. "" for the whole tensor.
std::string canonical_expression(std::span<const Range> ranges,
                                 std::span<const std::uint64_t> shape);

// Begin, run and strides are in bytes, or in elements where that is said.
struct Slice {
  struct Loop {
    std::uint64_t count;  // at least 2
    std::uint64_t stride;
  };

  std::vector<std::uint64_t> shape;  // of the result
  std::uint64_t begin = 0;           // of the first run in the tensor, bytes or elements
  std::uint64_t run = 0;             // of each run, likewise; 0 for an empty slice
  std::vector<Loop> loops;           // outermost first; adjacent runs are one run

  std::uint64_t size() const;
  Loop inner() const;  // the innermost loop; one pass over the run if there is none
  std::uint64_t pass_begin(std::uint64_t pass) const;  // of the inner loop, as `begin` counts
};

// The slice of ranges of parse_ranges(), in elements.
Slice elements_of(std::span<const Range> ranges, std::span<const std::uint64_t> shape);

// Fills `slice`, in bytes, from ranges of parse_ranges(). Returns 0, or EINVAL when a run would
// begin or end inside a block (TypeInfo).
int slice_of(std::span<const Range> ranges, const TypeInfo& info,
             std::span<const std::uint64_t> shape, Slice& slice);

// parse_ranges() and slice_of() in one, with the errors of both.
int parse_slice(std::string_view expression, DType dtype, std::span<const std::uint64_t> shape,
                Slice& slice);

// Why a tensor has no slice: the rule of a message, "" where it has one.
std::string slice_refusal(std::string_view expression, DType dtype,
                          std::span<const std::uint64_t> shape);

// The same where values of blocks can be read as float32 (core/recipe/elements.h), which can be cut
// anywhere: says so.
std::string stored_slice_refusal(std::string_view expression, DType dtype,
                                 std::span<const std::uint64_t> shape);

// The recipe of a slice of a tensor with the bytes `whole`: an extent when the slice is one run of
// an extent, else a production. Reads only the runs, and gaps of less than a page between them.
Content slice_content(const Slice& slice, Content whole);

}  // namespace stfs
