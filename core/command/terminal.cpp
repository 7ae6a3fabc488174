#include "core/command/terminal.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <unordered_map>
#include <utility>

namespace stfs {
namespace {

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

bool is_dumb() {
  const char* term = std::getenv("TERM");
  return term == nullptr || *term == '\0' || std::string_view(term) == "dumb";
}

std::size_t columns(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

bool has_utf8_locale() {
  for (const char* variable : {"LC_ALL", "LC_CTYPE", "LANG"}) {  // the first that is set counts
    if (!is_set(variable)) continue;
    const std::string_view locale = std::getenv(variable);
    constexpr std::array<std::string_view, 4> kNames{"UTF-8", "utf-8", "UTF8", "utf8"};
    return std::ranges::any_of(
        kNames, [&](std::string_view name) { return locale.find(name) != std::string_view::npos; });
  }
  return false;
}

// Returns the index of the byte at which a column of a UTF-8 text begins.
std::size_t byte_at(std::string_view text, std::size_t column) {
  std::size_t at = 0;
  for (; column > 0 && at < text.size(); --column) {
    do {
      ++at;
    } while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  }
  return at;
}

// Returns "[####....]  50%  1.0 GiB of 2.0 GiB  1.23 GB/s", cut to at most `width` columns: first
// the bar gets shorter, then it is left out, then the text is cut.
std::string progress_text(std::uint64_t done, std::uint64_t total, double seconds,
                          std::size_t width) {
  const double share = total == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total);
  std::array<char, 128> text;
  std::snprintf(text.data(), text.size(), "%3.0f%%  %s of %s  %.2f GB/s", share * 100,
                human_bytes(done).c_str(), human_bytes(total).c_str(),
                seconds > 0 ? static_cast<double>(done) / seconds / 1e9 : 0.0);
  const std::string figures = text.data();
  constexpr std::size_t kMaxCells = 30, kMinCells = 5;
  const std::size_t taken = figures.size() + std::string_view("[] ").size();
  const std::size_t cells = std::min(kMaxCells, width - std::min(width, taken));
  if (cells < kMinCells) return figures.substr(0, width);
  const auto filled = static_cast<std::size_t>(share * static_cast<double>(cells));
  return "[" + std::string(filled, '#') + std::string(cells - filled, '.') + "] " + figures;
}

bool is_pipe(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && S_ISFIFO(status.st_mode);
}

[[noreturn]] void fail_output() {
  throw_errno(ErrorCode::kUnreadable, "standard output", "", errno);
}

constexpr std::string_view kErase = "\r\x1b[K";

// A signal handler. When it is called, the default action is restored and the signal is not blocked
// (SA_RESETHAND, SA_NODEFER), so that raise(3) ends the process.
void erase_and_end(int signal) {
  pollfd terminal{STDERR_FILENO, POLLOUT, 0};
  // Write only if the terminal accepts it, because a stopped terminal must not delay the end of the
  // process.
  while (::poll(&terminal, 1, 0) == 1 && (terminal.revents & POLLOUT) != 0 &&
         ::write(STDERR_FILENO, kErase.data(), kErase.size()) < 0 && errno == EINTR) {
  }
  ::raise(signal);
  ::_exit(128 + signal);  // needed in process 1 of a container, which survives raise(3)
}

// Sets the handler `to` for each of the signals that end the process, if its handler is `from`.
void replace_handler(void (*from)(int), void (*to)(int)) {
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTERM}) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    if (action.sa_handler != from) continue;
    action = {};
    action.sa_handler = to;
    action.sa_flags = static_cast<int>(SA_NODEFER | SA_RESETHAND);
    ::sigaction(signal, &action, nullptr);
  }
}

}  // namespace

Terminal::Terminal()
    : is_terminal(::isatty(STDOUT_FILENO) == 1),
      has_colours(is_terminal && !is_set("NO_COLOR") && !is_dumb()),
      width(columns(STDOUT_FILENO)),
      is_utf8(has_utf8_locale()) {}

std::string Terminal::bold(const std::string& text) const {
  return has_colours ? "\x1b[1m" + text + "\x1b[0m" : text;
}

std::string Terminal::dim(const std::string& text) const {
  return has_colours ? "\x1b[2m" + text + "\x1b[0m" : text;
}

std::string Terminal::red(const std::string& text) const {
  return has_colours ? "\x1b[1;31m" + text + "\x1b[0m" : text;
}

std::string Terminal::shortened(const std::string& text, std::size_t columns) const {
  const std::size_t length = columns_of(text);
  if (length <= columns) return text;
  const std::string_view ellipsis = is_utf8 ? "…" : "...";
  const std::size_t kept = columns - std::min(columns, columns_of(ellipsis));
  if (kept == 0) return text.substr(0, byte_at(text, columns));
  // Keep more of the end of a name, because it says more than the beginning.
  return text.substr(0, byte_at(text, kept / 2)) + std::string(ellipsis) +
         text.substr(byte_at(text, length - (kept - kept / 2)));
}

void print(std::string_view text) {
  const bool may_be_obeyed =
      std::ranges::any_of(text, [](char c) { return static_cast<unsigned char>(c) >= 0x7F; });
  if (may_be_obeyed && ::isatty(STDOUT_FILENO) == 1) {
    const std::string safe = printable_json(text);
    if (std::fwrite(safe.data(), 1, safe.size(), stdout) != safe.size()) fail_output();
    return;
  }
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) fail_output();
}

std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string padded(std::string text, std::size_t width) {
  const std::size_t taken = columns_of(text);
  if (taken < width) text.append(width - taken, ' ');
  return text;
}

TextTable::TextTable(const Terminal& terminal, std::vector<Column> columns)
    : terminal_(terminal), columns_(std::move(columns)) {
  for (const Column& column : columns_) widest_.push_back(columns_of(column.heading));
  name_ = static_cast<std::size_t>(std::ranges::find(columns_, true, &Column::is_name) -
                                   columns_.begin());
}

void TextTable::measure(std::span<const std::string> cells) {
  for (std::size_t i = 0; i < cells.size(); ++i) {
    widest_[i] = std::max(widest_[i], columns_of(cells[i]));
  }
  if (terminal_.is_terminal && name_ < cells.size()) names_.push_back(cells[name_]);
}

const TextTable::Layout& TextTable::layout() const {
  std::call_once(laid_out_, [this] {
    int last = 0;
    for (const Column& column : columns_) last = std::max(last, column.drop);
    for (const bool has_two_lines : {false, true}) {
      if (has_two_lines && name_ == columns_.size()) return;
      layout_.has_two_lines = has_two_lines;
      for (int dropped = 0; dropped <= last; ++dropped) {
        drop(layout_, dropped);
        if (fit(layout_) && tells_names_apart(layout_)) return;
      }
    }
  });
  return layout_;
}

// Hides the columns with a Column::drop from 1 to `most`, and shows all others.
void TextTable::drop(Layout& layout, int most) const {
  layout.is_shown.assign(columns_.size(), true);
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    layout.is_shown[i] = columns_[i].drop == 0 || columns_[i].drop > most;
  }
}

// Sets the widths of the columns. Returns true if a line then fits the terminal.
bool TextTable::fit(Layout& layout) const {
  layout.widths = widest_;
  if (!terminal_.is_terminal) {
    constexpr std::size_t kMaxPadding = 120;  // one very long name must not pad every line
    for (std::size_t& width : layout.widths) width = std::min(width, kMaxPadding);
    return true;
  }
  const auto is_in_line = [&](std::size_t i) {
    return layout.is_shown[i] && !(layout.has_two_lines && i == name_);
  };
  // The widest columns are cut first: find the greatest width, to which columns are limited, with
  // which a line fits.
  const auto capped = [&](std::size_t i, std::size_t cap) {
    const Column& column = columns_[i];
    return column.least == 0 ? widest_[i] : std::min(widest_[i], std::max(cap, column.least));
  };
  const auto fits = [&](std::size_t cap) {
    std::size_t taken = 0;
    for (std::size_t i = 0; i < widest_.size(); ++i) {
      if (is_in_line(i)) taken += 2 + capped(i, cap);
    }
    return taken <= terminal_.width + (layout.has_two_lines ? 0 : 2);
  };
  std::size_t cap = 0;
  for (std::size_t step = std::bit_floor(std::ranges::max(widest_) | 1U); step > 0; step /= 2) {
    if (fits(cap + step)) cap += step;
  }
  for (std::size_t i = 0; i < widest_.size(); ++i) layout.widths[i] = capped(i, cap);
  return fits(cap);
}

bool TextTable::tells_names_apart(const Layout& layout) const {
  if (!terminal_.is_terminal || name_ == columns_.size() || layout.has_two_lines) return true;
  constexpr std::size_t kReadable = 20;  // the least width of names that are cut
  const std::size_t width = layout.widths[name_];
  if (width >= widest_[name_]) return true;
  if (width < kReadable) return false;
  std::unordered_map<std::string, std::string_view> seen;
  return std::ranges::all_of(names_, [&](const std::string& name) {
    return seen.try_emplace(terminal_.shortened(name, width), name).first->second == name;
  });
}

std::string TextTable::cell(std::size_t column, const std::string& text, bool with_colours) const {
  const std::size_t width = layout().widths[column];
  std::string cell = terminal_.is_terminal ? terminal_.shortened(text, width) : text;
  const std::size_t spaces = width - std::min(width, columns_of(cell));
  if (columns_[column].is_right_aligned) {
    cell.insert(0, spaces, ' ');
  } else if (column + 1 < columns_.size()) {
    cell.append(spaces, ' ');
  }
  return with_colours && columns_[column].is_dim ? terminal_.dim(cell) : cell;
}

std::string TextTable::joined(std::span<const std::string> cells, bool with_colours) const {
  const Layout& layout = this->layout();
  std::string line;
  if (layout.has_two_lines) {
    line = terminal_.shortened(cells[name_], terminal_.width) + "\n";
  }
  bool is_first = !layout.has_two_lines;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (!layout.is_shown[i] || (layout.has_two_lines && i == name_)) continue;
    if (!std::exchange(is_first, false)) line += "  ";
    line += cell(i, cells[i], with_colours);
  }
  return line;
}

std::string TextTable::heading() const {
  std::vector<std::string> cells;
  for (const Column& column : columns_) cells.push_back(column.heading);
  return terminal_.bold(joined(cells, false)) + "\n";
}

std::string TextTable::line(std::span<const std::string> cells) const {
  return joined(cells, true) + "\n";
}

std::string TextTable::left_out() const {
  std::string headings;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (!layout().is_shown[i]) headings += " " + columns_[i].heading;
  }
  return headings;
}

ProgressBar::ProgressBar(std::uint64_t total_bytes)
    : shows_(::isatty(STDERR_FILENO) == 1 && !is_dumb()),
      is_beside_pipe_(shows_ && is_pipe(STDOUT_FILENO)),
      is_beside_output_(is_beside_pipe_ || (shows_ && ::isatty(STDOUT_FILENO) == 1)),
      total_(total_bytes) {
  if (shows_) replace_handler(SIG_DFL, erase_and_end);
}

void ProgressBar::add(std::uint64_t bytes) {
  const std::uint64_t done = std::min(done_.fetch_add(bytes) + bytes, total_);
  if (!shows_) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  const Clock::time_point now = Clock::now();
  if (!lock || has_ended_ || now < next_) return;
  drawn_ = now;
  next_ = now + std::chrono::milliseconds(100);
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  // Leave the last column free, because some terminals wrap a line that fills it.
  const std::size_t width = std::max<std::size_t>(columns(STDERR_FILENO), 2) - 1;
  // Return to the first column, so that output of another program in the pipeline does not begin
  // after the bar.
  std::fprintf(stderr, "\r%s\x1b[K\r", progress_text(done, total_, seconds, width).c_str());
  is_drawn_ = true;
}

void ProgressBar::print(std::string_view lines) {
  if (!is_beside_output_) return stfs::print(lines);
  const std::lock_guard lock(mutex_);
  erase();
  stfs::print(lines);
  if (std::fflush(stdout) != 0) fail_output();
  if (!is_beside_pipe_) return;
  // Delay the bar, so that the program that reads the pipe can show the lines first. Draw it at
  // least once per second, even if lines keep coming.
  next_ = std::max(next_, std::min(Clock::now() + std::chrono::milliseconds(10),
                                   drawn_ + std::chrono::seconds(1)));
}

void ProgressBar::end() {
  if (!shows_) return;
  const std::lock_guard lock(mutex_);
  if (!std::exchange(has_ended_, true)) replace_handler(erase_and_end, SIG_DFL);
  erase();
}

void ProgressBar::erase() {
  if (std::exchange(is_drawn_, false)) std::fputs(kErase.data(), stderr);
}

}  // namespace stfs
