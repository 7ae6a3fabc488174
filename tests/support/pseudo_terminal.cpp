#include "tests/support/pseudo_terminal.h"

#include "tests/support/process.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <regex>
#include <stdexcept>
#include <string_view>
#include <system_error>

namespace stfs::test {
namespace {

bool continues_a_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

PseudoTerminal::PseudoTerminal(unsigned columns) {
  constexpr int kFlags = O_RDWR | O_NOCTTY | O_CLOEXEC;
  master_ = checked(::posix_openpt(kFlags | O_NONBLOCK), "posix_openpt");
  checked(::grantpt(master_), "grantpt");
  checked(::unlockpt(master_), "unlockpt");
  end_ = checked(::ioctl(master_, TIOCGPTPEER, kFlags), "TIOCGPTPEER");
  termios settings{};
  checked(::tcgetattr(end_, &settings), "tcgetattr");
  ::cfmakeraw(&settings);
  checked(::tcsetattr(end_, TCSANOW, &settings), "tcsetattr");
  winsize size{};
  size.ws_row = 24;
  size.ws_col = static_cast<unsigned short>(columns);
  checked(::ioctl(end_, TIOCSWINSZ, &size), "TIOCSWINSZ");
}

PseudoTerminal::~PseudoTerminal() {
  ::close(end_);
  ::close(master_);
}

const std::string& PseudoTerminal::output() {
  // read(2) returns all that was written before it fails with EAGAIN.
  char block[1 << 12];
  for (;;) {
    const ssize_t got = ::read(master_, block, sizeof block);
    if (got > 0) output_.append(block, static_cast<std::size_t>(got));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return output_;
  }
}

void PseudoTerminal::type(const std::string& keys) const {
  checked(static_cast<int>(::write(master_, keys.data(), keys.size())), "write");
}

std::vector<std::string> screen(const std::string& output, unsigned columns) {
  using Row = std::vector<std::string>;  // one string per character
  std::vector<Row> rows(1);
  std::size_t column = 0;
  std::string_view rest = output;
  while (!rest.empty()) {
    if (rest.starts_with("\x1b[")) {
      const std::size_t last = rest.find_first_not_of("0123456789;", 2);
      const char kind = last == std::string_view::npos ? '\0' : rest[last];
      if (kind == 'K' && last == 2) {
        // At the right margin the cursor stays on the last character.
        if (column < rows.back().size()) rows.back().resize(column);
        if (column == columns) rows.back().resize(column - 1);
      } else if (kind != 'm') {
        throw std::runtime_error("a sequence that this screen does not know: " +
                                 std::string(rest.substr(1, 8)));
      }
      rest.remove_prefix(last + 1);
      continue;
    }
    std::size_t length = 1;
    while (length < rest.size() && continues_a_character(rest[length])) ++length;
    const std::string character(rest.substr(0, length));
    rest.remove_prefix(length);
    if (character == "\r") {
      column = 0;
      continue;
    }
    if (character == "\n" || column == columns) {
      rows.emplace_back();
      column = 0;
    }
    if (character == "\n") continue;
    Row& row = rows.back();
    if (row.size() <= column) row.resize(column + 1, " ");
    row[column++] = character;
  }
  std::vector<std::string> shown;
  for (const Row& row : rows) {
    std::string text;
    for (const std::string& character : row) text += character;
    text.erase(text.find_last_not_of(' ') + 1);
    shown.push_back(std::move(text));
  }
  while (!shown.empty() && shown.back().empty()) shown.pop_back();
  return shown;
}

std::vector<std::string> progress_texts(const std::string& output) {
  // A bar is drawn from the first column, and the rest of the line is erased.
  static const std::regex kDrawn("\r([^\r\n\x1b]+)\x1b\\[K");
  std::vector<std::string> texts;
  for (std::sregex_iterator at(output.begin(), output.end(), kDrawn), end; at != end; ++at) {
    texts.push_back((*at)[1]);
  }
  return texts;
}

}  // namespace stfs::test
