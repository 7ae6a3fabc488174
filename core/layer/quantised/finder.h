// Finds tensors and configurations for the schemes of quantisation.
//
// Thread safety: one thread at a time uses a Finder. Lifetime: the list and the sources outlive it.
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

// The endings of names that schemes ask for.
std::span<const std::string_view> known_endings();

// The beginnings that MLX's names of modules lack where text_config has the quantisation.
inline constexpr std::string_view kTextModels[] = {"language_model.", "text_model."};

class Finder {
 public:
  Finder(const TensorList& list, Sources& sources);

  const TensorList& list() const { return list_; }
  Tensor tensor(std::uint32_t number) const { return list_.tensor(number); }

  // The tensor `base` + `ending`, which is one of the known endings (finder.cpp).
  std::optional<std::uint32_t> find(std::string_view base, std::string_view ending) const;
  // The configuration beside the file that holds a tensor.
  const QuantizationConfig& config(std::uint32_t number) const;
  // The cost so far of matching names with the configurations' expressions.
  MatchingWork& work() const { return work_; }
  // Whether any tensor has this ending, which is one of the known ones.
  bool has_ending(std::string_view ending) const;
  // Remembers keys that are not known, in the header of the file that holds a tensor or beside it.
  void note_unknown(const Part& part, const std::set<std::string>& keys) const;
  // A line for each configuration, and each file, with keys that are not known.
  std::vector<std::string> warnings() const;
  // The text of a key in the metadata of the file that holds a tensor, or else of any other file.
  std::optional<std::string_view> metadata(std::uint32_t number, std::string_view key) const;
  // Whether ComfyUI's texts name the formats of layers, in this file's header or in any tensor.
  bool has_layers_of_comfy(std::uint32_t number) const;
  // The text of ComfyUI about the layer with this name; `number` is that of its weight.
  std::optional<ComfyLayer> layer_of_comfy(std::uint32_t number, std::string_view layer) const;
  // All texts that were read.
  std::string config_texts() const;
  // Throws Error kQuantized for a quant_method that stfs does not know, of a checkpoint that has
  // other tensors than those of plain numbers.
  void refuse_unknown_methods() const;
  // Throws Error kQuantized for any quant_method: no row has found a weight in the checkpoint.
  void refuse_any_method() const;

  // The first four bytes of a tensor; nullopt when it is shorter.
  std::optional<std::uint32_t> first_word(const Tensor& tensor) const;
  // Reads all bytes of a small tensor.
  std::string bytes_of(const Tensor& tensor) const;

  [[noreturn]] static void refuse(const Tensor& tensor, const std::string& rule);

 private:
  // Reads the first bytes, wherever the tensor is.
  void read(const Tensor& tensor, std::span<std::byte> out) const;
  std::set<std::string> modules_without_tensors(const QuantizationConfig& config) const;
  const QuantizationConfig* first_with(bool (*is_wanted)(const QuantizationConfig&)) const;

  const TensorList& list_;
  Sources& sources_;
  std::uint64_t endings_ = 0;  // bits: which of the known endings names have
  mutable std::map<std::string, QuantizationConfig> configs_;     // by directory
  mutable std::map<std::string, std::set<std::string>> unknown_;  // keys, by file
  mutable MatchingWork work_;
  using ComfyLayers = std::map<std::string, ComfyLayer, std::less<>>;
  mutable std::map<const Part*, ComfyLayers> comfy_layers_;  // of the headers that have some
};

}  // namespace stfs
