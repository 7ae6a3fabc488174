// Facts that follow from the tensors of a checkpoint and that its config.json contains too: the
// type, the size of the vocabulary, whether embeddings and head are one tensor, and the number of
// layers. ConfigFacts collects them for the stored tensors and for the tensors that layers show,
// and finds out what to change in config.json.
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
  // `dequantized` is the type of the dequantised weights, if a layer dequantises.
  ConfigFacts(const TensorList& list, std::optional<DType> dequantized);

  // Returns true if layers may have made a statement of config.json false.
  bool may_change() const;
  std::optional<DType> dequantized() const { return dequantized_; }
  const std::string& tokenizer() const { return beside_.tokenizer; }

  // Returns what to change in the text of a config.json. If a statement is false now, but the right
  // value is not certain, adds a line to `warnings` instead; the line begins with `place`.
  ConfigChange change(std::string_view config, const std::string& place,
                      std::vector<std::string>& warnings) const;

 private:
  struct Facts {
    std::map<DType, std::uint64_t> bytes;  // bytes of the tensors of each floating-point type
    // The rows of the input embeddings and of the head. nullopt if there is no such tensor, or
    // several different ones.
    std::optional<std::uint64_t> embeddings, head;
    bool are_from_one = true;  // false if only one of the two comes from an input of a layer
    // The numbers of the layers of each stack, by the part of the names before the number.
    std::map<std::string, std::vector<std::uint64_t>> layers;

    bool operator==(const Facts&) const = default;
    std::optional<DType> main_type() const;     // the type with the most bytes
    std::vector<std::uint64_t> counts() const;  // the number of layers of each stack, ascending
  };
  class Collector;

  void warn_of_layers(const void* json, const std::string& place,
                      std::vector<std::string>& warnings) const;

  Facts stored_, shown_;
  std::optional<DType> dequantized_;
  FilesBeside beside_;
};

}  // namespace stfs
