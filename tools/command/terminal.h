// What stfs-info prints, and where: only a terminal gets colours, cut lines and a progress bar.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace stfs {

// Standard output as it was when this was made.
struct Terminal {
  Terminal();

  bool is_terminal;
  bool has_colours;   // a terminal, and neither NO_COLOR nor TERM=dumb say otherwise
  std::size_t width;  // columns; 80 when unknown

  std::string bold(const std::string& text) const;
  std::string dim(const std::string& text) const;
};

void print(std::string_view text);  // to standard output

// Columns that a UTF-8 text takes, near enough for a table: one a character.
std::size_t columns_of(std::string_view text);
std::string padded(std::string text, std::size_t width);

// The first `width` columns of a text, the last of them an ellipsis when something is left out.
std::string shortened(const std::string& text, std::size_t width);

// A line on standard error that says how much was read and how fast, when that is a terminal. Other
// text gets there by print() while the line stands, and by any means after end().
// Thread safety: add(), print().
class ProgressBar {
 public:
  explicit ProgressBar(std::uint64_t total_bytes);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar() { end(); }

  void add(std::uint64_t bytes);
  void print(std::string_view lines);  // whole ones, to standard output
  void end();                          // takes the line away for good

 private:
  using Clock = std::chrono::steady_clock;

  void erase();  // with mutex_

  bool shows_;
  bool is_beside_output_;  // standard output is a terminal too
  std::uint64_t total_;
  std::atomic<std::uint64_t> done_ = 0;
  Clock::time_point begin_ = Clock::now();
  std::mutex mutex_;
  Clock::time_point next_ = begin_;  // when the line is written again
  bool has_ended_ = false;
  bool is_drawn_ = false;
};

}  // namespace stfs
