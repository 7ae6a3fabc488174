// The text of edits: one command a line, as words.
//
//   Blanks separate words; '…' and "…" group, also a part of a word; a backslash means nothing
//   here. # begins a comment at the start of a line or after a blank.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// What stands for the file's name where the lines are of the command line.
inline constexpr std::string_view kEditLinePlace = "-e";

// A line with a command.
struct EditLine {
  std::string place;  // the file's name; "-e" for a line of the command line
  std::size_t number;
  std::vector<std::string> words;  // at least one
  std::string directory;           // to which paths are relative

  // Throws Error kEdit: "PLACE: line N: RULE".
  [[noreturn]] void refuse(const std::string& rule) const;
};

// The argument of the layer, once it stands for itself: the absolute name of the file, or DIRECTORY
// and "/-e" for lines of the command line; a line end; the text.
std::string edit_argument(std::string_view place, std::string_view text);
bool is_edit_text(std::string_view argument);
// The name of the file, or DIRECTORY/-e.
std::string edit_place(std::string_view argument);

// The text with URLs that have no query and no user: for what others may see.
std::string public_edits(std::string_view argument);

// Calls `take` for each line of such an argument that has a command. Throws Error kEdit for a quote
// that is not closed.
void for_each_edit_line(std::string_view argument,
                        const std::function<void(const EditLine& line)>& take);

}  // namespace stfs
