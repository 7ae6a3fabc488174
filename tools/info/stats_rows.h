// The output of `stfs-info stats`: tab-separated fields, JSON objects, or a table on a terminal.
//
// Thread safety: one thread calls begin(), then any thread may call line(), then one thread calls
// end().
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/command/terminal.h"
#include "core/values/stats.h"
#include "tools/info/verbs.h"

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace stfs {

class StatsRows {
 public:
  explicit StatsRows(const Arguments& arguments) : arguments_(arguments) {}

  // Returns the tensors in the order of their lines: in the given order, or sorted naturally by
  // name in a table. Prints the header line of tab-separated fields, even if no other line follows;
  // the heading of a table is printed with its first line. Throws Error kUsage if --nonfinite has
  // nothing to read.
  std::vector<std::uint32_t> begin(const Checkpoint& checkpoint,
                                   std::span<const std::uint32_t> tensors);
  std::size_t tensors() const { return tensors_; }  // valid after begin()
  std::string heading() const;                      // the heading of the table; "" without a table
  // Returns a line without a line end, or "" for a tensor that --nonfinite does not list.
  // `position` is the position in the result of begin(). With --sort or --top it returns "" and
  // keeps the values for sorted_lines().
  std::string line(std::size_t position, const Tensor& tensor, const ValueStats& values);
  // Returns the lines that line() has kept, in their order. Call this after the last line().
  std::vector<std::string> sorted_lines();
  // Prints the summary below a table. Returns the exit status.
  int end() const;

 private:
  std::span<const std::size_t> shown() const;
  void begin_table(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors);

  struct Row {
    Tensor tensor;
    ValueStats values;
  };
  std::string text_of(const Row& row) const;

  const Arguments& arguments_;
  const Terminal terminal_;
  std::optional<TextTable> table_;  // nullopt: not on a terminal, or with --json
  std::size_t tensors_ = 0;
  std::mutex mutex_;
  std::size_t nonfinite_ = 0;
  // A command that shows the values around the first tensor with NaN or infinity, and its position.
  std::string look_;
  std::optional<std::size_t> looked_at_;
  std::vector<std::optional<Row>> kept_;  // by position
};

}  // namespace stfs
