// Loads the tensors that files contain: one file, the shards of an index, the parts of a split GGUF
// file, or the checkpoint in a directory (directory.h).
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/remote/sources.h"
#include "core/stored/tensor_list.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

struct StoredOptions {
  bool allow_missing = false;  // accept missing shards, parts and tensors
  bool alone = false;          // load one part of a split GGUF file without the others
  // How the user would set allow_missing, for messages: "-o allow_missing mounts the rest".
  std::string_view missing_hint = {};
};

struct StoredTensors {
  TensorList tensors;
  // The names in the directory, or nullopt if the path is a file.
  std::optional<std::vector<std::string>> names;
};

// Loads the checkpoint at a path or a URL: a file of any format, the first part of a split GGUF
// file, an index of shards, or a directory. The list has warnings about a wrong total_size, about
// tensors that an index does not name, and about tensors in missing parts. Throws Error. `sources`
// must outlive the list.
StoredTensors load_stored(const std::string& path, const StoredOptions& options, Sources& sources);

}  // namespace stfs
