// Output for people: colours, shortened lines and a progress bar, on terminals only.
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

// Properties of standard output, read by the constructor. Thread safety: immutable afterwards.
struct Terminal {
  Terminal();

  bool is_terminal;
  bool has_colours;   // a terminal, without NO_COLOR and with a TERM that is not "dumb"
  std::size_t width;  // columns; 80 if ioctl(TIOCGWINSZ) fails
  bool is_utf8;       // the locale's characters (LC_ALL, LC_CTYPE, LANG)

  std::string bold(const std::string& text) const;
  std::string dim(const std::string& text) const;
  std::string red(const std::string& text) const;  // and bold
  // Cuts the middle out of a text of more than `columns` columns, and puts an ellipsis there:
  // tensors differ at the end of their names.
  std::string shortened(const std::string& text, std::size_t columns) const;
};

// To standard output; on a terminal as printable_json(), because a program reads JSON as it stands
// and the terminal of a user would obey it. Throws Error kUnreadable when a write fails: a full
// disk must not cost the hours that reading the rest of a checkpoint takes.
void print(std::string_view text);

// The columns of a UTF-8 text on a terminal, counted as one a character.
std::size_t columns_of(std::string_view text);
// Appends spaces up to `width` columns.
std::string padded(std::string text, std::size_t width);

// A table for people: columns as wide as their widest cell, with two spaces between them. On a
// terminal it fits the width, and no two names look alike: it cuts the columns that may be cut,
// then leaves out columns, and at last gives each row two lines, the name on the first.
//
// Thread safety: one thread measures; then any thread may make lines.
class TextTable {
 public:
  struct Column {
    std::string heading;
    bool is_right_aligned = false;
    std::size_t least = 0;  // on a terminal the column may be cut to this; 0: never
    bool is_dim = false;
    bool is_name = false;  // tells the rows apart; one column at most
    int drop = 0;          // left out in this order, the lowest first; 0: never
  };

  // The last column gets no spaces after its text.
  TextTable(const Terminal& terminal, std::vector<Column> columns);

  // Makes the columns wide enough for these cells, one a column. Call it for all lines before the
  // first line is made.
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
  std::size_t name_;                // the column of names; columns_.size() when there is none
  std::vector<std::string> names_;  // on a terminal
  mutable std::once_flag laid_out_;
  mutable Layout layout_;
};

// A line on standard error, if that is a terminal, with the bytes done and the speed. While it is
// visible, print to standard output only by print(). A signal that ends the process removes it too.
// Its handler runs in a thread that can take a signal: keep one out of reads, which may never
// return.
//
// Thread safety: add() and print() may be called from any thread. end() may run at the same time.
class ProgressBar {
 public:
  explicit ProgressBar(std::uint64_t total_bytes);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar() { end(); }

  void add(std::uint64_t bytes);       // draws the line, at most ten times a second
  void print(std::string_view lines);  // whole lines, as stfs::print()
  void end();                          // removes the line; add() draws no more

 private:
  using Clock = std::chrono::steady_clock;

  void erase();  // the caller holds mutex_

  bool shows_;
  bool is_beside_pipe_;    // standard output is a pipe, whose reader may print on the terminal
  bool is_beside_output_;  // a pipe, or a terminal too: printing must erase the line
  std::uint64_t total_;
  std::atomic<std::uint64_t> done_ = 0;
  Clock::time_point begin_ = Clock::now();
  std::mutex mutex_;
  Clock::time_point drawn_ = begin_;  // when the line was drawn last
  Clock::time_point next_ = begin_;   // when add() may draw again
  bool has_ended_ = false;
  bool is_drawn_ = false;
};

}  // namespace stfs
