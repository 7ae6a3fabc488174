#include "tools/command/terminal.h"

#include "core/base/text.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
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

// "[####....]  50%  1.0 GiB of 2.0 GiB  1.23 GB/s", `width` columns at most. With fewer columns the
// bar gets shorter, then disappears, then the text is cut.
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
  if (cells < kMinCells) return shortened(figures, width);
  const auto filled = static_cast<std::size_t>(share * static_cast<double>(cells));
  return "[" + std::string(filled, '#') + std::string(cells - filled, '.') + "] " + figures;
}

}  // namespace

Terminal::Terminal()
    : is_terminal(::isatty(STDOUT_FILENO) == 1),
      has_colours(is_terminal && !is_set("NO_COLOR") && !is_dumb()),
      width(columns(STDOUT_FILENO)) {}

std::string Terminal::bold(const std::string& text) const {
  return has_colours ? "\x1b[1m" + text + "\x1b[0m" : text;
}

std::string Terminal::dim(const std::string& text) const {
  return has_colours ? "\x1b[2m" + text + "\x1b[0m" : text;
}

void print(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string padded(std::string text, std::size_t width) {
  const std::size_t taken = columns_of(text);
  if (taken < width) text.append(width - taken, ' ');
  return text;
}

std::string shortened(const std::string& text, std::size_t width) {
  if (columns_of(text) <= width) return text;
  std::size_t at = 0;
  for (std::size_t column = 0; column + 1 < width; ++column) {
    do {
      ++at;
    } while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  }
  return text.substr(0, at) + "…";
}

ProgressBar::ProgressBar(std::uint64_t total_bytes)
    : shows_(::isatty(STDERR_FILENO) == 1 && !is_dumb()),
      is_beside_output_(shows_ && ::isatty(STDOUT_FILENO) == 1),
      total_(total_bytes) {}

void ProgressBar::add(std::uint64_t bytes) {
  const std::uint64_t done = std::min(done_.fetch_add(bytes) + bytes, total_);
  if (!shows_) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  const Clock::time_point now = Clock::now();
  if (!lock || has_ended_ || now < next_) return;
  next_ = now + std::chrono::milliseconds(100);
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  // Some terminals wrap a line that fills the last column.
  const std::size_t width = std::max<std::size_t>(columns(STDERR_FILENO), 2) - 1;
  std::fprintf(stderr, "\r%s\x1b[K", progress_text(done, total_, seconds, width).c_str());
  is_drawn_ = true;
}

void ProgressBar::print(std::string_view lines) {
  if (!is_beside_output_) return stfs::print(lines);
  const std::lock_guard lock(mutex_);
  erase();
  stfs::print(lines);
  std::fflush(stdout);
}

void ProgressBar::end() {
  if (!shows_) return;
  const std::lock_guard lock(mutex_);
  has_ended_ = true;
  erase();
}

void ProgressBar::erase() {
  if (std::exchange(is_drawn_, false)) std::fputs("\r\x1b[K", stderr);
}

}  // namespace stfs
