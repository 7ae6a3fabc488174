// Output for people. Only on a terminal does it have colours, shortened lines and a progress bar.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// Properties of standard output, which the constructor determines. Thread safety: const members may
// be called from any thread.
struct Terminal {
  Terminal();

  bool is_terminal;
  bool has_colours;   // it is a terminal, NO_COLOR is not set, and TERM is not "dumb"
  std::size_t width;  // columns; 80 if ioctl(TIOCGWINSZ) fails
  bool is_utf8;       // the locale uses UTF-8 (LC_ALL, LC_CTYPE, LANG)

  std::string bold(const std::string& text) const;
  std::string dim(const std::string& text) const;
  std::string red(const std::string& text) const;  // also bold
  // If a text has more than `columns` columns, replaces its middle by an ellipsis. The end is kept,
  // because names of tensors differ there.
  std::string shortened(const std::string& text, std::size_t columns) const;
};

// Writes a text to standard output. On a terminal, writes printable_json(text), because a terminal
// would obey control sequences; other programs get the text unchanged. Throws Error kUnreadable if
// the write fails, so that a command does not read the rest of a checkpoint for hours although the
// disk is full.
void print(std::string_view text);

// Returns the columns that a UTF-8 text takes on a terminal. Each character counts as one column.
std::size_t columns_of(std::string_view text);
// Appends spaces up to a width of `width` columns.
std::string padded(std::string text, std::size_t width);

// A table for people. Columns are as wide as their widest cell, with two spaces between them. On a
// terminal the table is made to fit the width without making two names look equal: it cuts the
// columns that may be cut, then leaves out columns, and at last gives each row two lines, with the
// name on the first.
//
// Thread safety: one thread calls measure(); after that any thread may call the other members.
// Lifetime: the Terminal must outlive the table.
class TextTable {
 public:
  struct Column {
    std::string heading;
    bool is_right_aligned = false;
    std::size_t least = 0;  // on a terminal, cells may be cut to this width; 0: they are never cut
    bool is_dim = false;
    bool is_name = false;  // its cells identify the rows; at most one column
    int drop = 0;          // columns are left out in this order, the lowest first; 0: never
  };

  // The last column gets no spaces after its text.
  TextTable(const Terminal& terminal, std::vector<Column> columns);

  // Makes the columns wide enough for these cells, one per column. Call it for all lines before any
  // other member.
  void measure(std::span<const std::string> cells);
  std::string heading() const;                                 // with a line end
  std::string line(std::span<const std::string> cells) const;  // with a line end
  std::string left_out() const;  // " MEAN ZEROS": the headings that are not shown

 private:
  struct Layout {
    std::vector<std::size_t> widths;
    std::vector<bool> is_shown;
    bool has_two_lines = false;
  };
  const Layout& layout() const;
  void drop(Layout& layout, int most) const;
  bool fit(Layout& layout) const;
  bool tells_names_apart(const Layout& layout) const;
  std::string cell(std::size_t column, const std::string& text, bool with_colours) const;
  std::string joined(std::span<const std::string> cells, bool with_colours) const;

  const Terminal& terminal_;
  std::vector<Column> columns_;
  std::vector<std::size_t> widest_;
  std::size_t name_;                // the column of names; columns_.size() if there is none
  std::vector<std::string> names_;  // all names; only filled on a terminal
  mutable std::once_flag laid_out_;
  mutable Layout layout_;
};

// A line on standard error, if this is a terminal, with the bytes done and the speed. While it is
// visible, write to standard output only with print(). A signal that ends the process removes the
// line too. The kernel runs the signal handler in any thread that does not block the signal. So
// keep one such thread out of reads, which may never return.
//
// Thread safety: add() and print() may be called from any thread, even while end() runs.
class ProgressBar {
 public:
  explicit ProgressBar(std::uint64_t total_bytes);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar() { end(); }

  void add(std::uint64_t bytes);       // draws the line, at most ten times per second
  void print(std::string_view lines);  // like stfs::print(), for whole lines
  void end();                          // removes the line; add() does not draw it again

 private:
  using Clock = std::chrono::steady_clock;

  void erase();  // the caller holds mutex_

  bool shows_;           // the line is drawn at all
  bool is_beside_pipe_;  // standard output is a pipe to a program that may write to the terminal
  // Standard output is such a pipe or a terminal, so print() must erase the line first.
  bool is_beside_output_;
  std::uint64_t total_;
  std::atomic<std::uint64_t> done_ = 0;
  Clock::time_point begin_ = Clock::now();
  std::mutex mutex_;
  Clock::time_point drawn_ = begin_;  // the time of the last drawing
  Clock::time_point next_ = begin_;   // the earliest time at which add() may draw again
  bool has_ended_ = false;
  bool is_drawn_ = false;
};

}  // namespace stfs
