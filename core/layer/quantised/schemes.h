// The schemes of quantisation: a table with one row a scheme. A row finds the weights that are
// stored in its way, by their names, types and shapes and by what config.json says of them, and
// describes each with a QuantizedLayout. Nothing is guessed: what is incomplete, or contradicts
// itself, is an Error kQuantized that names the tensor.
//
// Thread safety: one thread at a time uses a Finder; rows are constants. Lifetime: the list and
// the sources outlive a Finder.
#pragma once

#include "core/layer/quantised/dequantize.h"
#include "core/layer/quantised/layer_texts.h"
#include "core/layer/quantised/quantization_config.h"
#include "core/stored/tensor_list.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// A quantised weight and its result.
struct QuantizedWeight {
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  std::string name;                  // of the result
  std::vector<std::uint64_t> shape;  // of the result
  QuantizedLayout layout;
  std::array<std::uint32_t, kRoles> inputs = no_inputs();  // numbers of tensors
  std::vector<std::uint32_t> others;                       // tensors that vanish with it

  std::uint32_t& input(Role role) { return inputs[static_cast<std::size_t>(role)]; }

  static constexpr std::array<std::uint32_t, kRoles> no_inputs() {
    std::array<std::uint32_t, kRoles> none{};
    none.fill(kNone);
    return none;
  }
};

// Finds tensors and configurations for the schemes.
// The beginnings that MLX's names of modules lack where text_config has the quantisation.
inline constexpr std::string_view kTextModels[] = {"language_model.", "text_model."};

class Finder {
 public:
  Finder(const TensorList& list, Sources& sources);

  const TensorList& list() const { return list_; }
  Tensor tensor(std::uint32_t number) const { return list_.tensor(number); }

  // The tensor `base` + `ending`, which is one of the known endings (schemes.cpp).
  std::optional<std::uint32_t> find(std::string_view base, std::string_view ending) const;
  // The configuration beside the file that holds a tensor.
  const QuantizationConfig& config(std::uint32_t number) const;
  // What matching names with the configurations' expressions has cost.
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
  // What they say of the layer with this name; `number` is that of its weight.
  std::optional<ComfyLayer> layer_of_comfy(std::uint32_t number, std::string_view layer) const;
  // All texts that were read.
  std::string config_texts() const;
  // Throws Error kQuantized for a quant_method that stfs does not know, of a checkpoint that has
  // other tensors than those of plain numbers.
  void refuse_unknown_methods() const;
  // The same for any method; for a checkpoint in which no row has found a weight.
  void refuse_any_method() const;

  // The first four bytes of a tensor; nullopt when they are not on this machine.
  std::optional<std::uint32_t> first_word(const Tensor& tensor) const;
  // Reads all bytes of a small tensor.
  std::string bytes_of(const Tensor& tensor) const;

  [[noreturn]] static void refuse(const Tensor& tensor, const std::string& rule);

 private:
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

struct Scheme {
  std::string_view name;  // "block FP8"
  // Whether `tensor` is the weight of this scheme; fills `found` with all but kWeight.
  bool (*find)(const Finder& finder, std::uint32_t number, const Tensor& tensor,
               QuantizedWeight& found);
};

std::span<const Scheme> schemes();

// The row of an FP8 tensor without a scale, where nothing else in the checkpoint is quantised.
const Scheme& plain_scheme();

// Whether tensors of this type may hold codes that only a scheme explains: no plain numbers, and no
// blocks of GGUF.
bool may_hold_codes(DType dtype);
// Why a tensor with this name is of a scheme that stfs does not compute; "" for any other. In a
// checkpoint without codes the name means nothing.
std::string reason_to_refuse(std::string_view name);
// What the name of a tensor says that belongs to a quantised checkpoint and gives no value.
struct Vanishing {
  // Scales and zero points of a layer's inputs, of its outputs (also those of attention), and of
  // queries, keys and values, which may have one for each head.
  enum Of { kMark, kInputs, kOutputs, kCache };
  Of of;
  std::string_view module;  // the name's beginning
};
std::optional<Vanishing> vanishing(std::string_view name);
// Whether a tensor can be that by its type and shape. `matrices`: those of the computed weight
// beside it; 0: there is none, it is of the attention.
bool may_vanish(const Vanishing& part, const Tensor& tensor, std::uint64_t matrices);
// The beginning that the names of all parts of a weight share: "X" of X.weight, X.weight_scale and
// X.scales.
std::string_view base_of_part(std::string_view name);
// The place in a name, which is that of a tensor without its module, from which on it still has a
// word of a part of quantised weights: "scale", "zero". npos: it has none.
std::size_t place_of_companion(std::string_view name);
// Why a tensor that no row has taken cannot pass: "is a scale of a quantised weight that is not
// there"; "" for one that can. `is_quantized`: other weights are computed.
std::string reason_if_left(const Finder& finder, const Tensor& tensor, bool is_quantized);

// --- for the functions of rows

// A tensor's shape as matrices of rows and columns: the last two dimensions, and all before.
struct Matrices {
  std::uint64_t matrices = 1, rows = 1, columns = 1;
};
Matrices matrices_of(std::span<const std::uint64_t> shape);

// Packs a matrix densely, rows padded to `unit` bytes. nullopt: overflow.
std::optional<Packing> packed(Packing packing, std::uint64_t rows, std::uint64_t columns,
                              std::uint64_t unit = 1);
Packing typed(DType type);
Packing fields(Codes codes, std::uint64_t bits, std::int32_t offset = 0);

// The type of the values of a scale: its dtype, or F8_E8M0 for U8. nullopt: no type of a scale.
std::optional<DType> scale_type(DType dtype);

// "scale "x": shape [1,2] does not fit": a companion of a weight that does not fit it.
[[noreturn]] void refuse_companion(const Tensor& weight, const Tensor& companion);
[[noreturn]] void refuse_companion(const Tensor& weight, const Tensor& companion,
                                   const std::string& rule);

std::string_view without_ending(std::string_view name, std::string_view ending);
bool has_rank(const Tensor& tensor, std::size_t rank);
std::vector<std::uint64_t> with_last(std::span<const std::uint64_t> shape, std::uint64_t last);

// The companion `base` + `ending` of a weight. Refuses a weight without it.
std::uint32_t need(const Finder& finder, const Tensor& weight, std::string_view base,
                   std::string_view ending);
// Refuses a weight of integers without zero points, where no weight has some and the configuration
// says that it does. A library left out those that are all 0.
void refuse_without_zero_points(const Finder& finder, std::uint32_t number, const Tensor& weight,
                                std::string_view base);
// Refuses the weight of a Conv1D: the model has [in, out], and libraries store what they quantise
// as that of a Linear, [out, in].
void refuse_conv1d(const Finder& finder, std::uint32_t number, const Tensor& weight,
                   std::string_view module);
[[noreturn]] void refuse_half(const Tensor& weight, std::string_view base, std::string_view ending);
// `subject` is told neither by the tensors nor by the config: "the number of bits".
[[noreturn]] void refuse_without_config(const Finder& finder, std::uint32_t number,
                                        const Tensor& weight, const std::string& subject);
// packed(), or refuses a size that overflows.
Packing packed_or_refuse(const Tensor& weight, const Packing& packing, std::uint64_t rows,
                         std::uint64_t columns, std::uint64_t unit = 1);

// ModelOpt's files for ComfyUI have its config in the header, and NVFP4 whose scales may be in rows
// or in tiles: refuses the weight of such a file.
void refuse_of_modelopt_for_comfy(const Finder& finder, std::uint32_t number, const Tensor& weight);

// Adds the companion `base` + `ending`, if there is one: a scale for each column of the weight, by
// which the model multiplies its inputs.
void add_column_scale(const Finder& finder, const Tensor& weight, std::string_view base,
                      std::string_view ending, QuantizedWeight& found);

// Rows of the table, by the file that has them.
using FindWeight = bool(const Finder&, std::uint32_t, const Tensor&, QuantizedWeight&);
FindWeight find_gguf;                                    // schemes.cpp
FindWeight find_fp8, find_int8, find_fp4, find_gpt_oss;  // schemes_scaled.cpp
FindWeight find_packed;                                  // schemes_compressed.cpp
FindWeight find_gptq, find_awq;                          // schemes_gptq.cpp
FindWeight find_bnb4, find_bnb8;                         // schemes_bitsandbytes.cpp
FindWeight find_mlx;                                     // schemes_mlx.cpp
FindWeight find_comfy;                                   // schemes_comfy.cpp
FindWeight find_torchao;                                 // schemes_torchao.cpp
FindWeight find_modelopt_int4;                           // schemes_modelopt.cpp
FindWeight find_quark;                                   // schemes_quark.cpp

}  // namespace stfs
