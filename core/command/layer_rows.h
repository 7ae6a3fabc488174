// The rows of the command lines for layers: the same words in each command. A row of layer_table()
// has one here.
//
// Thread safety and lifetime: rows are constants.
#pragma once

#include "core/base/error.h"
#include "core/command/command.h"
#include "core/layer/layer.h"
#include "core/layer/quantised/quantised_layer.h"

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace stfs {

struct LayerWords {
  std::string_view flag;                // "--" and the option
  std::string_view old_flag, new_flag;  // of one of two checkpoints
  std::string_view argument;
  Value value;
  std::string_view help, man;
};

inline constexpr std::array<LayerWords, 4> kLayerWords{{
    {.flag = "--delta",
     .old_flag = "--old-delta",
     .new_flag = "--new-delta",
     .argument = "VERSION",
     .value = Value::kPath,
     .help = "show the checkpoint after the updates of a delta",
     .man =
         "Show the checkpoint after an update that a trainer published as what changed: <version> "
         "is its directory, such as `run/weight_v000012`, its index, or a URL of one. "
         "The updates before it are found beside it, down to a full checkpoint, which is the "
         "source, or to one without a directory, for which the source stands. "
         "No byte of a changed tensor is shown before its checksum held."},
    {.flag = "--dequantize",
     .old_flag = "--old-dequantize",
     .new_flag = "--new-dequantize",
     .argument = kDequantizedWords,
     .value = Value::kChoice,
     .help = "show quantised weights with their values, in this type",
     .man = "Show each quantised weight as a tensor of its values, under the name that the code of "
            "the model expects, in BF16, F16 or F32. "
            "The values are computed as they are read. "
            "Scales and zero points disappear, and tensors that are not quantised stay as they "
            "are. "
            "What is known: the types of GGUF, FP8 with scales, MXFP4, compressed-tensors, "
            "ModelOpt, GPTQ, AWQ, bitsandbytes and MLX. "
            "A quantised checkpoint that is not complete or not known is an error."},
    {.flag = "--lora",
     .old_flag = "--old-lora",
     .new_flag = "--new-lora",
     .argument = "[SCALE@]ADAPTER...",
     .value = Value::kPath,
     .help = "merge a LoRA adapter into the weights",
     .man = "Show the weights with a LoRA adapter merged into them: a directory that PEFT wrote, "
            "or a URL of one. "
            "A number before it, as in `0.5@adapter`, scales its updates. "
            "Given several times, adapters are merged in their order. "
            "A quantised base needs `dequantize`."},
    {.flag = "--edit",
     .old_flag = "--old-edit",
     .new_flag = "--new-edit",
     .argument = "FILE...",
     .value = Value::kPath,
     .help = "show the checkpoint after the edits in FILE",
     .man = "Show the checkpoint after the edits in <file>: tensors renamed, left out, copied, "
            "replaced, added, cast or cut, and other metadata. "
            "The section EDITS of `stfs-info`(1) has the language."},
}};

template <auto kLayersOf, std::size_t kIndex>
void set_layer(void* to, const std::string& value) {
  const LayerRow& row = *find_layer(kLayerWords[kIndex].flag.substr(2));
  if (!row.accepts(value)) {
    throw Error(ErrorCode::kUsage, "", std::string(row.arguments) + " is expected");
  }
  choose(kLayersOf(to), row.option, value);
}

enum class LayersOf { kAll, kOld, kNew };

// `verbs` take the rows, and kLayersOf(arguments) returns the Layers of a command's arguments. With
// `in_list` the rows are those of a list, as of -o: "lora" in place of "--lora".
template <auto kLayersOf>
constexpr std::array<OptionRow, kLayerWords.size()> layer_rows(std::string_view verbs, bool in_list,
                                                               LayersOf of = LayersOf::kAll) {
  constexpr std::array<Setter, kLayerWords.size()> kSetters{
      set_layer<kLayersOf, 0>, set_layer<kLayersOf, 1>, set_layer<kLayersOf, 2>,
      set_layer<kLayersOf, 3>};
  std::array<OptionRow, kLayerWords.size()> rows{};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const LayerWords& words = kLayerWords[i];
    const bool is_old = of == LayersOf::kOld;
    rows[i] = {.flags = in_list ? words.flag.substr(2) : words.flag,
               .verbs = verbs,
               .argument = words.argument,
               .value = words.value,
               .set = kSetters[i],
               .help = words.help,
               .man = words.man};
    if (of == LayersOf::kAll) continue;
    rows[i].flags = is_old ? words.old_flag : words.new_flag;
    rows[i].help = is_old ? "the same for the first checkpoint alone" : "for the second one alone";
    rows[i].man = is_old ? "The same, for the first of two checkpoints alone."
                         : "The same, for the second of two checkpoints alone.";
  }
  return rows;
}

}  // namespace stfs
