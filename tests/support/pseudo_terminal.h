// A terminal for programs under test, and what a person would see on it.
#pragma once

#include <string>
#include <vector>

namespace stfs::test {

// One with so many columns, which keeps all that is written to it, byte by byte: a line's end stays
// "\n". It is nobody's controlling terminal. Writers wait when some 4 KiB are unread: see output().
// Throws std::system_error.
class PseudoTerminal {
 public:
  explicit PseudoTerminal(unsigned columns);
  ~PseudoTerminal();
  PseudoTerminal(const PseudoTerminal&) = delete;
  PseudoTerminal& operator=(const PseudoTerminal&) = delete;

  // What a program has as its standard input, output and error.
  int end() const { return end_; }
  // Readable when there is new output.
  int readable() const { return master_; }
  // Takes in what was written, without waiting for more; returns all output since the beginning.
  const std::string& output();

 private:
  int master_ = -1;
  int end_ = -1;
  std::string output_;
};

// The rows that a terminal of so many columns shows after `output`, without spaces at their ends
// and without empty rows at the end. Knows "\r", "\n", colours, and the erasing of a line from the
// cursor on; longer lines wrap. Throws std::runtime_error when `output` holds another sequence.
std::vector<std::string> screen(const std::string& output, unsigned columns);

// The texts of the progress bar in `output`, in their order.
std::vector<std::string> progress_texts(const std::string& output);

}  // namespace stfs::test
