// A LoRA adapter as PEFT writes it: the content of its adapter_config.json, and the meaning of its
// tensors' names.
//
// The rules are from PEFT: tuners/lora/config.py, model.py and layer.py, and
// utils/save_and_load.py. If the result of an adapter is not W + s·B·A, the adapter is refused with
// the name of its kind, because stfs would compute other weights than PEFT.
//
// Thread safety: values and pure functions; const members may be called from any thread.
#pragma once

#include "core/base/pattern.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

class AdapterConfig {
 public:
  // Parses the text of an adapter_config.json; `file` is its name for messages. Throws Error
  // kAdapter if the text breaks the format, or if this kind of adapter is not supported.
  AdapterConfig(std::string file, std::string_view text);

  // The scaling of a module's update: s = alpha / divisor. The divisor is the rank, or its square
  // root with use_rslora.
  struct Scaling {
    std::uint64_t rank;
    double alpha, divisor;
  };
  // Returns the scaling of a module. Adds the work of matching to `work`. Throws Error kAdapter if
  // the module's name cannot be matched with a pattern of the file, or if matching takes too long.
  Scaling scaling_of(std::string_view module, MatchingWork& work) const;

  // Returns true if some module is stored as [in, out]. PEFT writes the value of the last module,
  // so it may be false for an adapter that has other modules stored as [in, out].
  bool fan_in_fan_out() const { return fan_in_fan_out_; }
  // Returns true if the tensor belongs to a module that `modules_to_save` names, or that the task
  // implies. PEFT saves such a module as a whole: it is a trained copy of the base's module, or a
  // new module.
  bool saves_module_of(std::string_view tensor) const;
  bool is_of_language_model() const;                   // according to the task
  bool ties_weights() const { return ties_weights_; }  // ensure_weight_tying
  // Returns the full names of a module's parameters that `target_parameters` names.
  std::vector<std::string> parameters_of(std::string_view module) const;
  const std::vector<std::string>& warnings() const { return warnings_; }
  // Throws Error kAdapter with the name of the file.
  [[noreturn]] void refuse(const std::string& rule) const;

 private:
  struct Pattern {
    std::string key;
    // Matches (.*\.)?(KEY)$. nullopt for a key that contains only letters, digits, underscores and
    // dots, which is compared without an expression.
    std::optional<NamePattern> expression;
    double value;
  };
  const Pattern* first_match(const std::vector<Pattern>& patterns, std::string_view module,
                             MatchingWork& work) const;

  std::string file_;
  std::uint64_t rank_ = 0;
  double alpha_ = 0;
  bool is_by_root_ = false;  // use_rslora
  bool fan_in_fan_out_ = false;
  bool ties_weights_ = false;
  std::string task_;
  std::vector<std::string> saved_modules_, parameters_;
  std::vector<Pattern> ranks_, alphas_;  // in the order of the file, because the first match counts
  std::vector<std::string> warnings_;
};

// The meaning of a tensor of an adapter.
struct AdapterTensor {
  enum class Kind : std::uint8_t {
    kA,            // lora_A.weight: [rank, in]
    kB,            // lora_B.weight: [out, rank]
    kEmbeddingA,   // lora_embedding_A: [rank, vocabulary]
    kEmbeddingB,   // lora_embedding_B: [size, rank]
    kReplacement,  // replaces a tensor of the base
    kRefused,      // belongs to a kind of adapter that is not supported
  };
  Kind kind;
  // The name of the module for a factor, and of the tensor for a replacement. For kRefused, the
  // part of the name that is typical of the unsupported kind.
  std::string subject;
  // How often the update is added, for a factor. PEFT adds the update of nn.MultiheadAttention's
  // out_proj twice, both in training and in merging (layer.py, MultiheadAttention.merge), so the
  // trained update is twice B·A.
  unsigned times;
  // The adapter's name if the tensor's name contains one. For a factor without one, PEFT's own name
  // "default". Else "".
  std::string adapter = {};
};
// Returns the meaning of a tensor's name.
AdapterTensor adapter_tensor(std::string_view name);

// Returns what an adapter that PEFT did not write is and how to merge it, recognised by the name of
// a tensor or of a file. Returns "" for any other name.
std::string foreign_adapter(std::string_view name);

}  // namespace stfs
