#include "tools/terminal.h"

#include "core/text.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace stfs {
namespace {

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

bool is_dumb() {
  const char* term = std::getenv("TERM");
  return term == nullptr || std::string_view(term) == "dumb";
}

std::size_t columns() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

Terminal::Terminal()
    : is_terminal(::isatty(STDOUT_FILENO) == 1),
      has_colours(is_terminal && !is_set("NO_COLOR") && !is_dumb()),
      width(columns()) {}

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
    : shows_(::isatty(STDERR_FILENO) == 1 && !is_dumb()), total_(total_bytes) {}

ProgressBar::~ProgressBar() {
  if (shows_) std::fputs("\r\x1b[K", stderr);
}

void ProgressBar::add(std::uint64_t bytes) {
  const std::uint64_t done = done_.fetch_add(bytes) + bytes;
  if (!shows_) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  const Clock::time_point now = Clock::now();
  if (!lock || now < next_) return;
  next_ = now + std::chrono::milliseconds(100);
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const double share = total_ == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total_);
  constexpr std::size_t kWidth = 30;
  const auto filled = static_cast<std::size_t>(share * kWidth);
  const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
  std::fprintf(stderr, "\r[%s] %3.0f%%  %s of %s  %.2f GB/s\x1b[K", bar.c_str(), share * 100,
               human_bytes(done).c_str(), human_bytes(total_).c_str(),
               seconds > 0 ? static_cast<double>(done) / seconds / 1e9 : 0.0);
  std::fflush(stderr);
}

}  // namespace stfs
