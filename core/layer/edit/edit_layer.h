// The layer `edit`: renames, drops, copies, replaces, adds, casts, reshapes and slices tensors, and
// sets or removes metadata.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/remote/sources.h"
#include "core/stored/tensor_list.h"

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

inline constexpr std::string_view kEditOption = "edit";

// Returns the words that lines of edits begin with, such as "rename".
std::vector<std::string_view> edit_words();

// Returns the text of the edit file that `argument` names, as an argument that contains its text
// (edit_argument() in edit_lines.h). Returns the argument unchanged if it contains its text
// already. Throws Error.
std::string read_edits(const std::string& argument, Sources& sources);

// Returns true if such an argument, or the file that it names, contains a URL.
bool name_url_in_edits(const std::string& argument);

// Applies the lines of all arguments in their order. The arguments are results of read_edits().
// `load` loads the tensors of another SOURCE. Throws Error kEdit for a line that is not a valid
// command, that changes nothing, or that gives two tensors the same name.
using LoadSource = std::function<TensorList(const std::string& source)>;
TensorList edit(TensorList below, std::span<const std::string> arguments, Sources& sources,
                const LoadSource& load);

}  // namespace stfs
