// The quantisation that the files beside a checkpoint describe: `quantization_config` of
// config.json (also in its text_config), `quantization` of MLX, and for older checkpoints
// hf_quant_config.json (ModelOpt), quantize_config.json (GPTQ) or quant_config.json (AWQ).
//
// The tensors decide what they are; these values tell what tensors cannot: sizes of blocks, numbers
// of bits, versions. Nothing here is trusted: who uses a value checks it against the tensors.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/base/pattern.h"
#include "core/remote/sources.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs {

struct QuantizationConfig {
  // A number that is -1 stands as kAll: one group for all columns.
  static constexpr std::uint64_t kAll = ~std::uint64_t{0};
  using Block = std::pair<std::uint64_t, std::uint64_t>;  // rows, columns

  struct Expression {
    std::string text;
    std::optional<NamePattern> pattern;  // null: NamePattern refuses it
  };
  // A group of compressed-tensors. groups_of() gives the groups of a module.
  struct Group {
    std::vector<Expression> expressions;  // of its targets
    bool is_of_linear = false;            // a target is the class Linear
    bool is_asymmetric = false;           // `symmetric` of its weights is false
    bool needs_index = false;             // `actorder`: any columns are a group
    std::string format, type, strategy;
    std::optional<std::uint64_t> bits, group_size;
    std::optional<Block> block;
  };
  struct Module {  // of MLX
    bool is_quantized = true;
    std::optional<std::uint64_t> bits, group_size;
    std::string mode;
    bool is_known_key = false;  // its name is also that of a key that a library writes
  };

  std::string file;    // for messages; the file that was read, or config.json
  std::string text;    // of that file; "" when there is none
  std::string method;  // quant_method in lower case; "mlx", "modelopt"; "" when nothing is said
  std::string format;  // GPTQ: checkpoint_format; compressed-tensors: format; AWQ: version
  std::optional<Block> weight_block;
  std::optional<std::uint64_t> bits, group_size;
  std::optional<bool> zero_point;
  // `dynamic` of GPTQ, `extra_config` of AutoRound: other parameters for some modules.
  struct Exception {
    Expression module;
    bool is_name = false;  // it has no character of expressions but dots, and no pattern
    std::optional<std::uint64_t> group_size;
    std::string data_type;
  };
  std::vector<Exception> exceptions;        // by text
  std::vector<std::size_t> of_expressions;  // those that are no names
  bool is_symmetric = false;                // GPTQ's `sym`, for all modules
  bool needs_index = false;  // GPTQ's `desc_act`, for all modules, and its groups are not static
  // GPTQModel and AutoRound took 1 from the zero points of a word of 32 bits by one subtraction.
  bool has_borrowed_zeros = false;
  bool is_of_auto_round = false;
  bool is_divided_by_scale = false;  // `weight_scale_semantics` of GPTQModel's FP8 is "inverse"
  std::string data_type;             // AutoRound: "int", "mx_fp", "nvfp4_v2"
  std::string fp8;                   // `fmt` of FP8: "e4m3"
  std::string algorithm;             // `quant_algo` of ModelOpt in lower case: "fp8"
  std::vector<Group> groups;
  std::map<std::string, std::size_t, std::less<>> named;  // names of modules: their last group
  Module all;                                             // MLX
  std::map<std::string, Module> modules;  // MLX: modules with parameters of their own, by name
  bool is_of_text = false;                // MLX: it stands in text_config
  std::string refused;                    // a part that stfs does not know: "transform_config"
  std::string model_of_conv1d;            // model_type of a model whose layers are Conv1D
  std::set<std::uint64_t> vocabularies;   // vocab_size of the model and of its parts
  std::set<std::string> unknown;          // keys that no library is known to write
  std::string unreadable;                 // why a file that is perhaps absent was not read

  // The first format of compressed-tensors that is not known; "" when there is none.
  std::string unknown_format() const;
};

// Reads the files in a directory, which may be a URL. A file that does not exist is no error, and
// one that is perhaps absent (kHidden) is noted. Throws Error kQuantized for JSON that is none, or
// has values of other types, and kUnreadable.
QuantizationConfig read_quantization_config(const std::string& directory, Sources& sources);

// Whether layers of transformers' class Conv1D (core/stored/base_model.h) have such names.
bool has_name_of_conv1d(std::string_view module);

// The groups that a module may belong to.
struct GroupsOfModule {
  std::vector<const QuantizationConfig::Group*> groups;
  // The module's name told: otherwise the file may have another name for it than the config.
  bool is_told = false;
};
// The group whose target is the module's name; else whose expression matches, of several the first
// in the order of the expressions, as compressed-tensors does; else those for the class Linear. All
// groups when there are none of these, or an expression is not known. Throws Error kQuantized: too
// much work.
GroupsOfModule groups_of(const QuantizationConfig& config, std::string_view module,
                         MatchingWork& work);
std::vector<const QuantizationConfig::Group*> all_groups(const QuantizationConfig& config);
// The exceptions that a module may belong to. Throws Error kQuantized: too much work.
std::vector<const QuantizationConfig::Exception*> exceptions_of(const QuantizationConfig& config,
                                                                std::string_view module,
                                                                MatchingWork& work);

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
