// The files beside a checkpoint that programs look for when they load a model: the configuration,
// the tokenizer, code, and the words for people. A fixed list of names chooses them: a mount that
// others may read must not show what else lies in the directory.
//
// Thread safety: the functions may be called from any thread; what they return may be used by any.
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
  std::optional<std::string> text = {};  // shown in place of the source's bytes
};

struct ModelFiles {
  std::vector<ModelFile> files;       // bytewise by name; empty without a config.json
  std::vector<std::string> warnings;  // files that are there and are not shown; printable
};

class ConfigFacts;

// What is changed in config.json.
struct ConfigChange {
  std::optional<DType> type = {};                // torch_dtype: has_type_word()
  bool is_dequantized = false;                   // members that describe a quantisation go
  std::optional<std::uint64_t> vocabulary = {};  // vocab_size
  std::optional<bool> ties_embeddings = {};      // tie_word_embeddings
};
bool has_type_word(DType type);  // F64, F32, F16, BF16

// Whether loaders look for a file of this name.
bool is_model_file(std::string_view name);

// Opens the files in a directory, which may be a URL. `names` are those in it; nullopt where no
// server lists them: the usual names are then tried. Of a checkpoint that layers changed,
// config.json has a text that agrees with the tensors; with dequantised ones, the files that
// describe nothing but the quantisation are left out; and the tokenizer is that of the adapter that
// changed the vocabulary, if it has one. Fetches no bytes but those of that text.
//
// Somebody else may have written a local directory. So a symbolic link is followed only to a
// regular file in the directory, or in the `blobs` of the Hub's cache that it is in; with
// `others_may_read` only to one that all users may read (o+r), in directories that they may enter
// (o+x) as far as these lie below the directory or the model's place in that cache.
ModelFiles open_model_files(const std::string& directory,
                            const std::optional<std::vector<std::string>>& names,
                            const ConfigFacts& facts, bool others_may_read, Sources& sources);

// The text of config.json with the changes, in the model's own part and in text_config. All else
// stays byte for byte. nullopt: not a JSON object.
std::optional<std::string> changed_config(std::string_view config, const ConfigChange& change);

}  // namespace stfs
