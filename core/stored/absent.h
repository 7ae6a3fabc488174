// Messages for a checkpoint that is not at the given path: why, and the next step. All texts are
// printable (text.h).
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// Throws Error kUnreadable for the name of a model on the Hub ("org/name"), unless a local file has
// this name.
void refuse_model_name(const std::string& source);

// The rule that a directory with these names, and without a checkpoint, breaks; and what is there
// instead.
std::string no_checkpoint_in(const std::string& directory, std::vector<std::string> names);

// Why a file that does not exist may be absent: "missing", "a symbolic link to "x", which is
// missing", "missing ("x.incomplete" is an unfinished download)".
std::string absence_of(const std::string& file);

// The name of a file beside `file`, or beside what it leads to, that says that its download is not
// finished: "model.safetensors.aria2"; "" for none.
std::string sidecar_of(const std::filesystem::path& file);

// Whether a name is that of a part: "model-00001-of-00004.safetensors".
bool is_shard_name(std::string_view name);

}  // namespace stfs
