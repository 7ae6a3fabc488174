// The files beside a checkpoint that programs look for when they load a model: the configuration,
// the tokenizer, code, and README and LICENSE. A fixed list of names selects them, because a mount
// that other users may read must not show the other files of the directory.
//
// Thread safety: the functions may be called, and their results used, in any thread.
#pragma once

#include "core/format/types.h"
#include "core/remote/sources.h"
#include "core/source/source.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

inline constexpr std::string_view kModelConfig = "config.json";

struct ModelFile {
  std::string name;
  std::unique_ptr<const Source> source;
  std::optional<std::string> text = {};  // if set, shown instead of the bytes of the source
};

struct ModelFiles {
  std::vector<ModelFile> files;       // bytewise by name; empty if there is no config.json
  std::vector<std::string> warnings;  // printable lines, mostly about files that are not shown
};

class ConfigFacts;

// The changes to make in config.json.
struct ConfigChange {
  std::optional<DType> type = {};                // the new torch_dtype; has_type_word() is true
  bool is_dequantized = false;                   // remove members that describe a quantisation
  std::optional<std::uint64_t> vocabulary = {};  // the new vocab_size
  std::optional<bool> ties_embeddings = {};      // the new tie_word_embeddings
};
// Returns true if torch_dtype can be this type: for F64, F32, F16 and BF16.
bool has_type_word(DType type);

// Returns true if programs look for a file with this name when they load a model.
bool is_model_file(std::string_view name);

// Opens the model files in a directory, which may be a URL. `names` are the names in the directory.
// If it is nullopt, because the server lists none, tries the usual names.
//
// If layers have changed the checkpoint: config.json gets a text that agrees with the tensors. If
// weights are dequantised, files that only describe the quantisation are left out. If an adapter
// has changed the vocabulary and has a tokenizer, its tokenizer is used. Fetches no bytes except
// those of a config.json that may have to be changed.
//
// Another user may have written a local directory. Therefore a symbolic link is followed only to a
// regular file in the directory, or in the `blobs` of the Hub's cache that contains the directory.
// With `others_may_read`, all users must also be permitted to read that file (o+r) and to enter
// (o+x) each directory on the way to it, from `directory` or the model's directory in that cache
// on.
ModelFiles open_model_files(const std::string& directory,
                            const std::optional<std::vector<std::string>>& names,
                            const ConfigFacts& facts, bool others_may_read, Sources& sources);

// Returns the text of config.json with the changes, in the top-level object and in text_config.
// Everything else stays byte for byte. Returns nullopt if `config` is not a JSON object.
std::optional<std::string> changed_config(std::string_view config, const ConfigChange& change);

}  // namespace stfs
