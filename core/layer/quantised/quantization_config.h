// The quantisation that the files beside a checkpoint describe: `quantization_config` in
// config.json or in its text_config, `quantization` of MLX, and for older checkpoints
// hf_quant_config.json (ModelOpt), quantize_config.json (GPTQ) or quant_config.json (AWQ).
//
// The types and shapes of the tensors decide how they are quantised. The configuration adds what
// the tensors do not show: sizes of blocks, numbers of bits, versions. It is not trusted: the
// caller checks each value against the tensors.
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
  // The value of a number that is -1 in the file: one group for all columns.
  static constexpr std::uint64_t kAll = ~std::uint64_t{0};
  using Block = std::pair<std::uint64_t, std::uint64_t>;  // rows, columns

  struct Expression {
    std::string text;
    std::optional<NamePattern> pattern;  // nullopt: NamePattern refuses the expression
  };
  // A group of compressed-tensors. groups_of() returns the groups of a module.
  struct Group {
    std::vector<Expression> expressions;  // from its targets
    bool is_of_linear = false;            // one of its targets is the class Linear
    bool is_asymmetric = false;           // `symmetric` is false for its weights
    bool needs_index = false;             // `actorder`: a group may consist of any columns
    std::string format, type, strategy;
    std::optional<std::uint64_t> bits, group_size;
    std::optional<Block> block;
  };
  struct Module {  // a module of MLX
    bool is_quantized = true;
    std::optional<std::uint64_t> bits, group_size;
    std::string mode;
    bool is_known_key = false;  // the name is also a key that a library writes
  };

  std::string file;    // the file that was read, or config.json; for messages
  std::string text;    // the content of that file; "" if there is none
  std::string method;  // quant_method in lower case, or "mlx" or "modelopt"; "" if none is named
  // For GPTQ: checkpoint_format. For compressed-tensors: format. For AWQ: version.
  std::string format;
  std::optional<Block> weight_block;
  std::optional<std::uint64_t> bits, group_size;
  std::optional<bool> zero_point;
  // An entry of `dynamic` (GPTQ) or `extra_config` (AutoRound): other parameters for some modules.
  struct Exception {
    Expression module;
    // The text contains only characters of names. It has no pattern.
    bool is_name = false;
    std::optional<std::uint64_t> group_size;
    std::string data_type;
  };
  std::vector<Exception> exceptions;        // sorted by text
  std::vector<std::size_t> of_expressions;  // indices of the exceptions that are not names
  bool is_symmetric = false;                // `sym` of GPTQ holds for all modules
  // `desc_act` of GPTQ holds for all modules, and the groups are not static.
  bool needs_index = false;
  // The checkpoint is from GPTQModel or AutoRound, which subtract 1 from all zero points of a
  // 32-bit word with a single subtraction.
  bool has_borrowed_zeros = false;
  bool is_of_auto_round = false;
  bool is_divided_by_scale = false;  // `weight_scale_semantics` of GPTQModel's FP8 is "inverse"
  std::string data_type;             // data_type of AutoRound: "int", "mx_fp", "nvfp4_v2"
  std::string fp8;                   // `fmt` for FP8: "e4m3"
  std::string algorithm;             // `quant_algo` of ModelOpt in lower case: "fp8"
  std::vector<Group> groups;
  std::map<std::string, std::size_t, std::less<>> named;  // the last group of each named module
  Module all;                             // MLX: the parameters of all other modules
  std::map<std::string, Module> modules;  // MLX: modules with parameters of their own, by name
  bool is_of_text = false;                // MLX: the quantisation is in text_config
  std::string refused;                    // a part that stfs does not support: "transform_config"
  std::string model_of_conv1d;            // the model_type of a model with Conv1D layers, or ""
  std::set<std::uint64_t> vocabularies;   // each vocab_size of the model and of its parts
  std::set<std::string> unknown;          // keys that no library is known to write
  std::string unreadable;                 // why a file was not read that may be absent

  // Returns the first unknown format of compressed-tensors, or "" if there is none.
  std::string unknown_format() const;
};

// Reads the files in a directory, which may be a URL. A file that does not exist is skipped. A file
// that may be absent (kHidden) is skipped too, and noted in `unreadable`. Throws Error kQuantized
// if a file is not valid JSON or has values of other types, and Error kUnreadable.
QuantizationConfig read_quantization_config(const std::string& directory, Sources& sources);

// Returns true if layers of transformers' class Conv1D (core/stored/base_model.h) have such names.
bool has_name_of_conv1d(std::string_view module);

// The groups that a module may belong to.
struct GroupsOfModule {
  std::vector<const QuantizationConfig::Group*> groups;
  // True if the module's name decided. Otherwise the file may use another name for the module than
  // the config.
  bool is_told = false;
};
// Returns the groups that a module may belong to, as compressed-tensors selects them: the group
// that has the module's name as a target; else the group with a matching expression, or if several
// match, with the expression that sorts first; else the groups for the class Linear. Returns all
// groups if none of these exist, or if an expression is not supported. Throws Error kQuantized if
// matching takes too long.
GroupsOfModule groups_of(const QuantizationConfig& config, std::string_view module,
                         MatchingWork& work);
// Returns pointers to all groups of the config.
std::vector<const QuantizationConfig::Group*> all_groups(const QuantizationConfig& config);
// Returns the exceptions that a module may belong to. Throws Error kQuantized if matching takes too
// long.
std::vector<const QuantizationConfig::Exception*> exceptions_of(const QuantizationConfig& config,
                                                                std::string_view module,
                                                                MatchingWork& work);

// The JSON text in `quant_state` of bitsandbytes.
struct QuantState {
  std::string type;
  std::uint64_t block = 0;
  std::vector<std::uint64_t> shape;
  std::uint64_t nested_block = 0;  // 0: absmax is not quantised
  float nested_offset = 0;
};
// Returns nullopt if `text` is not such a JSON text.
std::optional<QuantState> parse_quant_state(const std::string& text);

}  // namespace stfs
