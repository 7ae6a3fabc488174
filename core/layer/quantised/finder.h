// Finds tensors and configurations for the quantisation schemes.
//
// Thread safety: one thread at a time may use a Finder. Lifetime: the list and the sources must
// outlive it.
#pragma once

#include "core/layer/quantised/layer_texts.h"
#include "core/layer/quantised/quantization_config.h"
#include "core/remote/sources.h"
#include "core/stored/tensor_list.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// Returns the endings of tensor names that the schemes search for.
std::span<const std::string_view> known_endings();

// If the quantisation of an MLX checkpoint is in text_config, its module names lack these prefixes,
// which the names of the tensors have.
inline constexpr std::string_view kTextModels[] = {"language_model.", "text_model."};

class Finder {
 public:
  Finder(const TensorList& list, Sources& sources);

  const TensorList& list() const { return list_; }
  Tensor tensor(std::uint32_t number) const { return list_.tensor(number); }

  // Returns the number of the tensor named `base` + `ending`, or nullopt. `ending` must be a known
  // ending (finder.cpp).
  std::optional<std::uint32_t> find(std::string_view base, std::string_view ending) const;
  // Returns the configuration in the directory of the file that contains a tensor. Reads it on the
  // first call for the directory.
  const QuantizationConfig& config(std::uint32_t number) const;
  // Returns the count of the work done so far to match names with the configurations' expressions.
  MatchingWork& work() const { return work_; }
  // Returns true if any tensor's name has this ending, which must be a known ending.
  bool has_ending(std::string_view ending) const;
  // Records unknown keys in the header of `part` or in a file beside it, for warnings().
  void note_unknown(const Part& part, const std::set<std::string>& keys) const;
  // Returns one line for each configuration and each file that has unknown keys. A line also names
  // the modules of an MLX configuration that no tensor belongs to.
  std::vector<std::string> warnings() const;
  // Returns the text of a key in the metadata of the file that contains a tensor. If that file
  // lacks the key, returns the text in the first other file that has it, or nullopt.
  std::optional<std::string_view> metadata(std::uint32_t number, std::string_view key) const;
  // Returns true if ComfyUI's texts name the formats of layers. Such a text is in the header of the
  // file that contains the tensor `number`, or in a tensor of any file.
  bool has_layers_of_comfy(std::uint32_t number) const;
  // Returns ComfyUI's text about the layer with this name. `number` is the number of the layer's
  // weight.
  std::optional<ComfyLayer> layer_of_comfy(std::uint32_t number, std::string_view layer) const;
  // Returns the texts of all configurations that were read.
  std::string config_texts() const;
  // Throws Error kQuantized if a tensor that may hold codes belongs to a configuration with an
  // unknown quant_method, or with an unknown format of compressed-tensors.
  void refuse_unknown_methods() const;
  // Throws Error kQuantized if a tensor that may hold codes belongs to a configuration with any
  // quant_method. Call it if no scheme has found a weight.
  void refuse_any_method() const;

  // Returns the first four bytes of a tensor, or nullopt if it is shorter.
  std::optional<std::uint32_t> first_word(const Tensor& tensor) const;
  // Returns all bytes of a tensor. Throws Error kQuantized if it is larger than 64 KiB.
  std::string bytes_of(const Tensor& tensor) const;

  // Throws Error kQuantized with the names of the tensor and its source.
  [[noreturn]] static void refuse(const Tensor& tensor, const std::string& rule);

 private:
  // Reads the first bytes of a stored or computed tensor.
  void read(const Tensor& tensor, std::span<std::byte> out) const;
  std::set<std::string> modules_without_tensors(const QuantizationConfig& config) const;
  const QuantizationConfig* first_with(bool (*is_wanted)(const QuantizationConfig&)) const;

  const TensorList& list_;
  Sources& sources_;
  std::uint64_t endings_ = 0;  // which known endings occur: one bit per ending
  mutable std::map<std::string, QuantizationConfig> configs_;     // by directory
  mutable std::map<std::string, std::set<std::string>> unknown_;  // unknown keys, by file
  mutable MatchingWork work_;
  using ComfyLayers = std::map<std::string, ComfyLayer, std::less<>>;
  mutable std::map<const Part*, ComfyLayers> comfy_layers_;  // parsed so far
};

}  // namespace stfs
