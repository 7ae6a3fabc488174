// The text of edits: one command per line, split into words.
//
//   Blanks separate words. Quotes ('…' and "…") group characters and may surround only a part of a
//   word. A backslash is an ordinary character. `#` begins a comment at the start of a line or
//   after a blank.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// The name that replaces a file's name if the lines were given on the command line.
inline constexpr std::string_view kEditLinePlace = "-e";

// A line that contains a command.
struct EditLine {
  std::string place;   // the public name of the file; "-e" for a line given on the command line
  std::size_t number;  // in its text; the first line has number 1
  std::vector<std::string> words;  // the words of the command; at least one
  std::string directory;           // the directory that relative paths in the line refer to

  // Throws Error kEdit with the message "PLACE: line N: RULE".
  [[noreturn]] void refuse(const std::string& rule) const;
};

// Returns an argument of the layer that contains its text: `place`, a newline, and `text`. `place`
// is the absolute name of the file, or DIRECTORY/-e for lines given on the command line.
std::string edit_argument(std::string_view place, std::string_view text);
// Returns true if the argument contains its text, that is, if edit_argument() made it.
bool is_edit_text(std::string_view argument);
// Returns the `place` of such an argument: the name of the file, or DIRECTORY/-e.
std::string edit_place(std::string_view argument);

// Returns the argument with all queries and users removed from its URLs, because other users may
// see the result.
std::string public_edits(std::string_view argument);

// Calls `take` for each line of such an argument that contains a command. Throws Error kEdit for a
// quote that is not closed.
void for_each_edit_line(std::string_view argument,
                        const std::function<void(const EditLine& line)>& take);

}  // namespace stfs
