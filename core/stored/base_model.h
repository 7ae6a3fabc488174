// Facts about a model, from the config.json beside its checkpoint and from the names of its
// tensors.
//
// Thread safety: values and pure functions; const members may be called from any thread.
#pragma once

#include "core/remote/sources.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

struct BaseModel {
  bool has_config = false;
  std::string architecture;             // the first of `architectures`
  std::vector<std::string> types;       // each model_type, including those of nested objects
  std::optional<bool> ties_embeddings;  // tie_word_embeddings

  bool has_conv1d() const;              // is_model_of_conv1d() is true for some type
  bool has_transposed_experts() const;  // stacks of experts are stored as [experts, in, out]
  std::string text() const;             // all facts as a text, which becomes part of a version
};

// Reads config.json in a directory, which may be a URL. If there is no such file, or if it is not a
// JSON object of moderate size (is_bounded_json()), no fact is known. Throws Error kUnreadable.
BaseModel read_base_model(const std::string& directory, Sources& sources);

// Returns true if a model of this type has layers of the class Conv1D of transformers. Their
// weights are stored as [in, out].
bool is_model_of_conv1d(std::string_view model_type);

// These decide by the last component of the module in a tensor's name.
bool is_input_embedding(std::string_view tensor);  // an embedding of tokens
bool is_language_head(std::string_view tensor);
// Returns true for embeddings and heads, because a training may change their number of rows.
bool may_change_rows(std::string_view tensor);

}  // namespace stfs
