// The output of `stfs-info stats`: tab-separated fields, JSON objects, or on a terminal a table.
//
// Thread safety: one thread calls begin(), then any threads call line(), then one calls end().
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

  // Returns the tensors in the order of their lines: as given, but naturally sorted by name in a
  // table. Prints the header line of tab-separated fields: they have it also without a line, a
  // table does not. Throws Error kUsage when --nonfinite has nothing to read.
  std::vector<std::uint32_t> begin(const Checkpoint& checkpoint,
                                   std::span<const std::uint32_t> tensors);
  std::size_t tensors() const { return tensors_; }  // after begin()
  std::string heading() const;                      // of the table; "" without one
  // Without a line end; "" for a tensor that --nonfinite does not list. `position` is that in the
  // order of begin(). With --sort or --top it returns "" and keeps the values for sorted_lines().
  std::string line(std::size_t position, const Tensor& tensor, const ValueStats& values);
  // After the last line(): the lines that it kept, in their order.
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
  std::optional<TextTable> table_;  // empty: not on a terminal, or with --json
  std::size_t tensors_ = 0;
  std::mutex mutex_;
  std::size_t nonfinite_ = 0;
  // A command that shows the values around the first of them, and its position.
  std::string look_;
  std::optional<std::size_t> looked_at_;
  std::vector<std::optional<Row>> kept_;  // by position
};

}  // namespace stfs
