// What config.json beside a checkpoint, and the names of its tensors, say about the model.
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
  std::vector<std::string> types;       // each model_type: those of parts too
  std::optional<bool> ties_embeddings;  // tie_word_embeddings

  bool has_conv1d() const;              // of some part
  bool has_transposed_experts() const;  // stacks of experts are stored as [experts, in, out]
  std::string text() const;             // all of it, for versions
};

// Reads config.json in a directory, which may be a URL. Without one, and of a text that is no JSON
// object, nothing is known. Throws Error kUnreadable.
BaseModel read_base_model(const std::string& directory, Sources& sources);

// Whether a model of this type has layers of transformers' class Conv1D, whose weight is [in, out].
bool is_model_of_conv1d(std::string_view model_type);

// By the last component of the module in a tensor's name.
bool is_input_embedding(std::string_view tensor);  // of tokens
bool is_language_head(std::string_view tensor);
// Embeddings and heads, whose number of rows a training may change.
bool may_change_rows(std::string_view tensor);

}  // namespace stfs
