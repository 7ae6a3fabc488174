// Output for people: colours, shortened lines and a progress bar, on terminals only.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace stfs {

// Properties of standard output, read by the constructor. Thread safety: immutable afterwards.
struct Terminal {
  Terminal();

  bool is_terminal;
  bool has_colours;   // a terminal, without NO_COLOR and with a TERM that is not "dumb"
  std::size_t width;  // columns; 80 if ioctl(TIOCGWINSZ) fails

  std::string bold(const std::string& text) const;
  std::string dim(const std::string& text) const;
};

void print(std::string_view text);  // to standard output

// The columns of a UTF-8 text on a terminal, counted as one a character.
std::size_t columns_of(std::string_view text);
// Appends spaces up to `width` columns.
std::string padded(std::string text, std::size_t width);
// Cuts a text to `width` columns, the last of them an ellipsis.
std::string shortened(const std::string& text, std::size_t width);

// A line on standard error, if that is a terminal, with the bytes done and the speed. While it is
// visible, print to standard output only by print().
//
// Thread safety: add() and print() may be called from any thread. end() may run at the same time.
class ProgressBar {
 public:
  explicit ProgressBar(std::uint64_t total_bytes);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar() { end(); }

  void add(std::uint64_t bytes);       // draws the line, at most ten times a second
  void print(std::string_view lines);  // whole lines, to standard output
  void end();                          // removes the line; add() draws no more

 private:
  using Clock = std::chrono::steady_clock;

  void erase();  // the caller holds mutex_

  bool shows_;
  bool is_beside_output_;  // standard output is a terminal too: printing must erase the line
  std::uint64_t total_;
  std::atomic<std::uint64_t> done_ = 0;
  Clock::time_point begin_ = Clock::now();
  std::mutex mutex_;
  Clock::time_point next_ = begin_;  // when add() may draw again
  bool has_ended_ = false;
  bool is_drawn_ = false;
};

}  // namespace stfs
