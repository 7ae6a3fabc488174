// The differences that `diff` finds between two checkpoints, and its output: tab-separated fields,
// JSON objects, or a table on a terminal.
//
// Thread safety: any thread may call line() and add_equal() of DiffRows; one thread calls the rest,
// before and after.
#pragma once

#include "core/command/terminal.h"
#include "core/stored/tensor.h"
#include "core/values/difference.h"
#include "tools/info/verbs.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// Two tensors that `diff` compares: tensors with the same name, or with two names and the same
// bytes.
struct Pair {
  std::optional<Tensor> a, b;    // nullopt: not in this checkpoint
  bool is_of_one_format = true;  // both are in safetensors files, or both in GGUF files
  // One has the stored codes of a quantised weight, the other has values.
  bool is_of_codes_and_values = false;
};

struct PairDifference {
  std::string_view kind;             // removed, added, renamed, dtype, shape, bytes
  std::string in_a = {}, in_b = {};  // the dtypes, shapes or names, according to `kind`
  std::uint64_t first_byte = 0;      // for "bytes": the first byte that differs
  // For "dtype" and "bytes", if the values are compared.
  std::optional<ValueDifference> values = {};
};

// Returns the difference that names and headers show, or nullopt if the bytes must be compared. Two
// formats have different types, so between them a difference of only the type does not count if the
// values are equal.
std::optional<PairDifference> difference_of_headers(const Pair& pair);

// Returns the largest difference. It is infinity if a NaN faces a number, or an infinity another
// value.
double largest_of(const ValueDifference& values);

class DiffRows {
 public:
  // `may_have_values` returns true if the values of a pair are compared. Throws Error kUsage if the
  // rows are to be sorted by values that are not compared.
  DiffRows(const Arguments& arguments, std::span<const Pair> pairs,
           bool (*may_have_values)(const Pair&, bool wants_values));

  std::string heading() const;  // without a line end; "" with --json and --no-header
  // Returns the line of a pair that differs, without a line end. With --sort or --top it returns ""
  // and keeps the pair for sorted_lines(). `position` is the position in the constructor's `pairs`.
  std::string line(std::size_t position, const Pair& pair, const PairDifference& difference);
  // Counts a pair with equal values in the totals.
  void add_equal(const Pair& pair);
  // Returns the lines that line() has kept, in their order.
  std::vector<std::string> sorted_lines();
  // Prints the totals on standard error if that is a terminal. Scripts get none, as with cmp(1):
  // for them, any output means a difference.
  void summarize() const;
  bool found_any() const { return differing() > 0; }

 private:
  struct Row {
    std::size_t position;
    Pair pair;
    PairDifference difference;
  };
  // The sums over all pairs.
  struct Totals {
    std::size_t changed = 0, renamed = 0, removed = 0, added = 0;
    std::uint64_t elements = 0, equal = 0;  // in tensors of equal shapes
    double squares = 0, norm = 0;           // over the tensors that differ
    std::size_t unlike = 0;  // tensors in which only one side has a NaN or an infinity
    double largest = 0;
    std::string at;  // the tensor and the indices where `largest` is
  };

  std::string text_of(const Pair& pair, const PairDifference& difference) const;
  std::string json_of(const Pair& pair, const PairDifference& difference) const;
  std::vector<std::string> cells(const Pair& pair, const PairDifference& difference) const;
  std::string words(const Pair& pair, const PairDifference& difference) const;
  std::string change(const Pair& pair, const PairDifference& difference) const;
  void add(const Pair& pair, const PairDifference& difference);
  std::size_t differing() const {
    return totals_.changed + totals_.renamed + totals_.removed + totals_.added;
  }
  bool is_narrow() const { return terminal_.width < 60; }

  const Arguments& arguments_;
  const std::size_t pairs_;
  const Terminal terminal_;
  std::optional<TextTable> table_;  // nullopt: not on a terminal, or with --json
  std::mutex mutex_;
  Totals totals_;
  std::vector<Row> kept_;
};

}  // namespace stfs
