// A LoRA adapter as PEFT writes it: what adapter_config.json says, and what the names of its
// tensors mean.
//
// Rules: PEFT, tuners/lora/config.py, model.py and layer.py, and utils/save_and_load.py. An adapter
// that is not W + s·B·A is refused by name: its weights would be other ones.
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
  // Reads the text of an adapter_config.json; `file` is its name for messages. Throws Error
  // kAdapter for a text that breaks the format, and for a kind of adapter that is refused.
  AdapterConfig(std::string file, std::string_view text);

  // The rank of a module's update, and its s = alpha / divisor.
  struct Scaling {
    std::uint64_t rank;
    double alpha, divisor;
  };
  // Throws Error kAdapter if the name cannot be matched with a pattern of the file, and if matching
  // takes too long.
  Scaling scaling_of(std::string_view module, MatchingWork& work) const;

  // Whether some module is stored as [in, out]. PEFT writes what holds for the last one alone.
  bool fan_in_fan_out() const { return fan_in_fan_out_; }
  // Whether `modules_to_save`, or the task, names a module that a tensor belongs to: PEFT then
  // keeps a copy of the base's module, or the module is new.
  bool saves_module_of(std::string_view tensor) const;
  bool is_of_language_model() const;                   // by the task
  bool ties_weights() const { return ties_weights_; }  // ensure_weight_tying
  // The parameters of a module that `target_parameters` names, with the module's name before them.
  std::vector<std::string> parameters_of(std::string_view module) const;
  const std::vector<std::string>& warnings() const { return warnings_; }
  [[noreturn]] void refuse(const std::string& rule) const;

 private:
  struct Pattern {
    std::string key;
    std::optional<NamePattern> expression;  // (.*\.)?(KEY)$; none for a key of letters and dots
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
  std::vector<Pattern> ranks_, alphas_;  // in the order of the file
  std::vector<std::string> warnings_;
};

// What a tensor of an adapter is.
struct AdapterTensor {
  enum class Kind : std::uint8_t {
    kA,            // lora_A.weight: [rank, in]
    kB,            // lora_B.weight: [out, rank]
    kEmbeddingA,   // lora_embedding_A: [rank, vocabulary]
    kEmbeddingB,   // lora_embedding_B: [size, rank]
    kReplacement,  // takes the place of a tensor of the base
    kRefused,
  };
  Kind kind;
  // Of a factor the module, of a replacement the tensor; of what is refused the word for it.
  std::string subject;
  // Of a factor: how often the update is added. PEFT adds that of nn.MultiheadAttention's out_proj
  // twice, while training and merging (layer.py, MultiheadAttention.merge): the trained update is
  // twice B·A.
  unsigned times;
  // The adapter's name where the tensor has one, or is a factor: PEFT's own, "default", stands for
  // none in a name. Else "".
  std::string adapter = {};
};
AdapterTensor adapter_tensor(std::string_view name);

// What is not PEFT's, and what to do with it, by the name of a tensor or of a file; "" for others.
std::string foreign_adapter(std::string_view name);

}  // namespace stfs
