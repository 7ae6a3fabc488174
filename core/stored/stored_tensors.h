// The tensors that files hold: a file alone, the shards of an index, the parts of a split GGUF
// file, or what a directory means (directory.h).
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
  bool alone = false;          // takes a part of a split GGUF file without the others
  // How the user would set allow_missing, for messages: "-o allow_missing mounts the rest".
  std::string_view missing_hint = {};
};

struct StoredTensors {
  TensorList tensors;
  // The names in the directory at the path; nullopt for a file.
  std::optional<std::vector<std::string>> names;
};

// Loads what lies at a path or a URL: a safetensors or a GGUF file, the first part of a split GGUF
// file, an index file (*.safetensors.index.json), or a directory. The list warns of a wrong
// total_size, of tensors that an index does not name, and of tensors in missing parts. Throws
// Error.
StoredTensors load_stored(const std::string& path, const StoredOptions& options, Sources& sources);

}  // namespace stfs
