// A terminal for programs under test, and the screen that a user would see.
#pragma once

#include <string>
#include <vector>

namespace stfs::test {

// The widths that tests try, in columns: a narrow, a usual and a wide terminal.
inline constexpr unsigned kTerminalWidths[] = {40, 80, 200};

// A pseudo terminal that keeps all output, byte by byte: "\n" stays "\n". It is not the controlling
// terminal of a process unless a program makes it one: see controlled(). Writers wait while about 4
// KiB are unread: see output(). Throws std::system_error.
class PseudoTerminal {
 public:
  explicit PseudoTerminal(unsigned columns);
  ~PseudoTerminal();
  PseudoTerminal(const PseudoTerminal&) = delete;
  PseudoTerminal& operator=(const PseudoTerminal&) = delete;

  // Returns the descriptor for a program's standard input, output and error.
  int end() const { return end_; }
  // Returns a descriptor that is readable when there is new output.
  int readable() const { return master_; }
  // Reads new output without waiting, and returns all output since the beginning.
  const std::string& output();
  // Types on the keyboard.
  void type(const std::string& keys) const;

 private:
  int master_ = -1;
  int end_ = -1;
  std::string output_;
};

// Returns the command, run with its terminal as the controlling terminal, where "\x03" (Ctrl-C)
// sends SIGINT.
inline std::vector<std::string> controlled(const std::vector<std::string>& command) {
  // noflsh: Ctrl-C does not discard output.
  std::vector<std::string> words = {
      "setsid", "--ctty", "sh", "-c", R"(stty isig noflsh && exec "$@")", "sh"};
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

// Returns the rows of a terminal with `columns` columns after `output`, without trailing spaces and
// without empty rows at the end. Supports "\r", "\n", colours and "erase to the end of the line";
// long lines wrap. Throws std::runtime_error for any other sequence.
std::vector<std::string> screen(const std::string& output, unsigned columns);

// Returns the texts of the progress bars in `output`, in order.
std::vector<std::string> progress_texts(const std::string& output);

}  // namespace stfs::test
