// Prints the lines that `stats`, `hash` and `diff` print about many tensors, which several threads
// read.
//
// Thread safety: one thread uses Lines; the functions may be called from any thread.
#pragma once

#include "core/command/terminal.h"
#include "core/stored/tensor.h"

#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>

namespace stfs {

// Prints lines one after the other, or with --json as the elements of an array. Skips empty lines.
class Lines {
 public:
  // `heading` is printed before the first line, unless it is "". `bar` must outlive this.
  Lines(bool json, ProgressBar& bar, std::string heading = "");
  void add(std::string line);  // without a line end
  void end();

 private:
  bool json_;
  ProgressBar& bar_;
  std::string heading_;
  std::optional<std::string> last_;
};

// Calls `make` for the numbers 0 to count-1 on `jobs` threads, and adds the lines in the order of
// the numbers. If a call throws, sets `stop` for the other calls, adds the lines before the first
// that is not done, and throws the first exception.
void add_in_order(Lines& out, std::size_t count, unsigned jobs,
                  const std::function<std::string(std::size_t, const std::atomic<bool>&)>& make);

}  // namespace stfs
