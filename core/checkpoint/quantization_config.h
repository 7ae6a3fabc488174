// The quantisation that the files beside a checkpoint describe: `quantization_config` of
// config.json (also in its text_config), `quantization` of MLX, and for older checkpoints
// hf_quant_config.json (ModelOpt), quantize_config.json (GPTQ) or quant_config.json (AWQ).
//
// The tensors decide what they are; these values tell what tensors cannot: sizes of blocks, numbers
// of bits, versions. Nothing here is trusted: who uses a value checks it against the tensors.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/source/sources.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stfs {

struct QuantizationConfig {
  // A number that is -1 stands as kAll: one group for all columns.
  static constexpr std::uint64_t kAll = ~std::uint64_t{0};
  using Block = std::pair<std::uint64_t, std::uint64_t>;  // rows, columns

  struct Group {  // of compressed-tensors
    std::string format, type, strategy;
    std::optional<std::uint64_t> bits, group_size;
    std::optional<Block> block;
  };
  struct Module {  // of MLX
    bool is_quantized = true;
    std::optional<std::uint64_t> bits, group_size;
    std::string mode;
  };

  std::string file;    // for messages; the file that was read, or config.json
  std::string text;    // of that file; "" when there is none
  std::string method;  // quant_method in lower case; "mlx", "modelopt"; "" when nothing is said
  std::string format;  // GPTQ: checkpoint_format; compressed-tensors: format; AWQ: version
  std::optional<Block> weight_block;
  std::optional<std::uint64_t> bits, group_size;
  std::optional<bool> zero_point;
  // `dynamic` of GPTQ, `extra_config` of AutoRound: other parameters for some modules.
  bool has_exceptions = false;
  bool is_symmetric = false;  // GPTQ's `sym`, for all modules
  std::vector<Group> groups;
  Module all;                             // MLX
  std::map<std::string, Module> modules;  // MLX: modules with parameters of their own, by name
  std::string refused;                    // a part that stfs does not know: "transform_config"
  std::string unreadable;                 // why a file that is perhaps absent was not read
};

// Reads the files in a directory, which may be a URL. A file that does not exist is no error, and
// one that is perhaps absent (kHidden) is noted. Throws Error kQuantized for JSON that is none, or
// has values of other types, and kUnreadable.
QuantizationConfig read_quantization_config(const std::string& directory, Sources& sources);

// Why weights of a format of ComfyUI cannot be computed; "" when they can. `text` is that of a
// tensor "X.comfy_quant", or of `_quantization_metadata` in a header, which has one for each layer.
std::string refused_comfy_format(const std::string& text);

// The texts of `quant_state` of bitsandbytes.
struct QuantState {
  std::string type;
  std::uint64_t block = 0;
  std::vector<std::uint64_t> shape;
  std::uint64_t nested_block = 0;  // 0: absmax is not quantised
  float nested_offset = 0;
};
// nullopt: not such a text.
std::optional<QuantState> parse_quant_state(const std::string& text);

}  // namespace stfs
