// What a checkpoint's tensors say that its config.json says too: the type, the vocabulary, whether
// embeddings and head are one tensor, the layers. Of the stored tensors, and of those that layers
// show.
//
// Thread safety: const members may be called from any thread.
#pragma once

#include "core/checkpoint/model_files.h"
#include "core/stored/tensor_list.h"

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

class ConfigFacts {
 public:
  // `dequantized`: the type of dequantised weights, if a layer makes such.
  ConfigFacts(const TensorList& list, std::optional<DType> dequantized);

  // Whether config.json may be untrue now.
  bool may_change() const;
  std::optional<DType> dequantized() const { return dequantized_; }
  const std::string& tokenizer() const { return beside_.tokenizer; }

  // What to change in the text of a config.json. What layers made untrue, and what is not known
  // well enough to be changed, becomes a line of `warnings`, which begins with `place`.
  ConfigChange change(std::string_view config, const std::string& place,
                      std::vector<std::string>& warnings) const;

 private:
  struct Facts {
    std::map<DType, std::uint64_t> bytes;  // of floating types
    // Rows of the input embeddings and of the head; nullopt: there are none, or several.
    std::optional<std::uint64_t> embeddings, head;
    bool are_from_one = true;  // a layer replaces none of the two alone
    std::map<std::string, std::vector<std::uint64_t>> layers;  // numbers, by the name before them

    bool operator==(const Facts&) const = default;
    std::optional<DType> main_type() const;
    std::vector<std::uint64_t> counts() const;
  };
  class Collector;

  void warn_of_layers(const void* json, const std::string& place,
                      std::vector<std::string>& warnings) const;

  Facts stored_, shown_;
  std::optional<DType> dequantized_;
  FilesBeside beside_;
};

}  // namespace stfs
