// What `diff` finds of two checkpoints, and its output: tab-separated fields, JSON objects, or on a
// terminal a table.
//
// Thread safety: DiffRows: any threads call line(); one thread calls the rest, before and after.
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

// Tensors that `diff` compares: of one name, or of two names with the same bytes.
struct Pair {
  std::optional<Tensor> a, b;    // nullopt: not in this checkpoint
  bool is_of_one_format = true;  // both are of safetensors files, or of GGUF files
  bool is_of_codes_and_values = false;
};

struct PairDifference {
  std::string_view kind;                       // removed, added, renamed, dtype, shape, bytes
  std::string in_a = {}, in_b = {};            // of a dtype, a shape or a name
  std::uint64_t first_byte = 0;                // of bytes
  std::optional<ValueDifference> values = {};  // of a dtype or of bytes, where they are compared
};

// The difference that names and headers show; nullopt where the bytes must be compared. Two formats
// have other types: between them a difference of types alone is not one, where the values are
// equal.
std::optional<PairDifference> difference_of_headers(const Pair& pair);

// A NaN and a number, and an infinity and another value, differ by infinity.
double largest_of(const ValueDifference& values);

class DiffRows {
 public:
  // Throws Error kUsage for an order of values that are not compared.
  // `may_have_values`: whether the values of a pair are compared.
  DiffRows(const Arguments& arguments, std::span<const Pair> pairs,
           bool (*may_have_values)(const Pair&, bool wants_values));

  std::string heading() const;  // without a line end; "" with --json and --no-header
  // A pair that differs; without a line end. With --sort or --top it returns "" and keeps the pair
  // for sorted_lines(). `position` is that in the constructor's pairs.
  std::string line(std::size_t position, const Pair& pair, const PairDifference& difference);
  // A pair of equal values, for the totals.
  void add_equal(const Pair& pair);
  // The lines that line() kept, in their order.
  std::vector<std::string> sorted_lines();
  // The totals, on standard error if that is a terminal. Scripts get nothing, as from cmp(1):
  // output is the mark of a difference there.
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
    std::uint64_t elements = 0, equal = 0;  // of equal shapes
    double squares = 0, norm = 0;           // of the values that differ
    std::size_t unlike = 0;                 // tensors with NaN or infinity in one alone
    double largest = 0;
    std::string at;  // the tensor and the indices of `largest`
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
  std::optional<TextTable> table_;  // empty: not on a terminal, or with --json
  std::mutex mutex_;
  Totals totals_;
  std::vector<Row> kept_;
};

}  // namespace stfs
