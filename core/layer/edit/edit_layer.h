// The layer `edit`: tensors renamed, left out, copied, replaced, added, cast, cut; other metadata.
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

// The words that begin lines of edits.
std::vector<std::string_view> edit_words();

// Reads the file that an argument names, or returns one that is a text already (edit_lines.h).
// Throws Error.
std::string read_edits(const std::string& argument, Sources& sources);

// Whether such an argument, or the file that it names, has a URL.
bool name_url_in_edits(const std::string& argument);

// Applies the lines of the arguments of read_edits(), from the first to the last. Throws Error
// kEdit for a line that means nothing, touches nothing, or gives a name to two tensors. `load`
// gives the tensors of another SOURCE.
using LoadSource = std::function<TensorList(const std::string& source)>;
TensorList edit(TensorList below, std::span<const std::string> arguments, Sources& sources,
                const LoadSource& load);

}  // namespace stfs
