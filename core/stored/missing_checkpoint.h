// Messages for a path without a checkpoint: the cause, and what to do. All texts are printable
// (text.h).
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// Throws Error kUnreadable if `source` looks like the name of a model on the Hub ("org/name") and
// no local file or directory has this name.
void refuse_model_name(const std::string& source);

// Returns the message for a directory without a checkpoint: the rule that it breaks, and what it
// contains instead. `names` are the names in the directory.
std::string no_checkpoint_in(const std::string& directory, std::vector<std::string> names);

// Returns why a file that does not exist may be absent: "missing", "a symbolic link to "x", which
// is missing", or "missing ("x.incomplete" is an unfinished download)".
std::string absence_of(const std::string& file);

// Returns the name of a file such as "model.safetensors.aria2", which shows that the download of
// `file` is not finished. Searches beside `file` and beside the file that it resolves to. Returns
// "" if there is none.
std::string sidecar_of(const std::filesystem::path& file);

// Returns true for a name of a shard, such as "model-00001-of-00004.safetensors".
bool is_shard_name(std::string_view name);

}  // namespace stfs
