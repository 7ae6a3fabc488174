// Slices of tensors, in NumPy's notation.
//
//   EXPR    = item *("," item) [","]
//   item    = integer | [integer] ":" [integer] [":" [integer]] | "..."
//   integer = ["+" | "-"] digits
//
// without spaces. The rules are NumPy's basic indexing: an integer selects one element and drops
// its dimension; a negative index counts from the end; bounds are clamped; one `...` stands for all
// dimensions without an item; missing trailing dimensions are whole. Unlike in NumPy, a step must
// be positive.
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
// The rule for messages about invalid slices.
inline constexpr std::string_view kSliceRule =
    "as between NumPy's brackets, without spaces, and with positive steps";

// The elements that an expression selects along one dimension.
struct Range {
  std::uint64_t start;
  std::uint64_t count;
  std::uint64_t step;    // at least 1
  bool keeps_dimension;  // false for an integer
};

// Fills `ranges`, one per dimension. Returns 0; EINVAL for bad syntax, too many items or a rank
// over kSliceMaxRank; ERANGE for an integer outside its dimension.
int parse_ranges(std::string_view expression, std::span<const std::uint64_t> shape,
                 std::vector<Range>& ranges);

// Returns a normal form: two expressions select the same elements in the same shape if and only if
// their canonical expressions are equal. Returns "" for the whole tensor.
std::string canonical_expression(std::span<const Range> ranges,
                                 std::span<const std::uint64_t> shape);

// `begin`, `run` and the strides are all in bytes or all in elements. The functions below say
// which.
struct Slice {
  struct Loop {
    std::uint64_t count;  // at least 2
    std::uint64_t stride;
  };

  std::vector<std::uint64_t> shape;  // the shape of the result
  std::uint64_t begin = 0;           // offset of the first run in the tensor
  std::uint64_t run = 0;             // length of each run; 0 for an empty slice
  std::vector<Loop> loops;           // outermost first; no two runs are adjacent

  std::uint64_t size() const;  // the length of all runs together
  // Returns the innermost loop, or one pass over the run if `loops` is empty.
  Loop inner() const;
  // Returns the offset of the first run of a pass of the innermost loop.
  std::uint64_t pass_begin(std::uint64_t pass) const;
};

// Returns the slice, in elements, for ranges from parse_ranges().
Slice elements_of(std::span<const Range> ranges, std::span<const std::uint64_t> shape);

// Fills `slice`, in bytes, for ranges from parse_ranges(). Returns 0, or EINVAL if a run would
// begin or end inside a block (TypeInfo).
int slice_of(std::span<const Range> ranges, const TypeInfo& info,
             std::span<const std::uint64_t> shape, Slice& slice);

// Calls parse_ranges() and slice_of(), and returns the first error.
int parse_slice(std::string_view expression, DType dtype, std::span<const std::uint64_t> shape,
                Slice& slice);

// Returns the rule of a message that says why parse_slice() fails, or "" if it does not.
std::string slice_refusal(std::string_view expression, DType dtype,
                          std::span<const std::uint64_t> shape);

// Does the same. If the slice fails only because it cuts a block, adds that float32 values can be
// cut anywhere (core/recipe/elements.h).
std::string stored_slice_refusal(std::string_view expression, DType dtype,
                                 std::span<const std::uint64_t> shape);

// Returns the recipe of a slice of the tensor `whole`: an extent if the slice is one run of an
// extent, else a production. Reads only the runs, and gaps of less than a page between them.
Content slice_content(const Slice& slice, Content whole);

}  // namespace stfs
