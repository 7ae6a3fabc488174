// Layers: what is shown in place of what is stored. A layer makes a list of tensors and metadata
// out of a list; it is a row of the table here, and a folder beside this file. Its list is
// immutable and knows its inputs. Tensors that it does not touch stay the rows that they were.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/remote/sources.h"
#include "core/stored/tensor_list.h"

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace stfs {

// A layer uses the list below it and this.
struct LayerContext {
  Sources& sources;
  // The tensors of another SOURCE, which may be a mount. Throws Error.
  std::function<TensorList(const std::string& source)> load;
};

struct LayerRow {
  std::string_view option;     // "dequantize": of -o, of --, and in user.stfs.mount
  std::string_view arguments;  // "bf16|f16|f32", for messages
  std::string_view argument;   // "type": what one of them is, for messages
  // The layer needs these tensors for others, and a part of a checkpoint may lack them: "scales";
  // "" when it needs none.
  std::string_view needs;
  bool repeats;        // it may be given several times, and takes all arguments at once
  bool is_idempotent;  // upon what it has made with the same argument it changes nothing
  bool (*accepts)(std::string_view argument);
  // The argument in a form that stays true elsewhere and later: with an absolute path or a pinned
  // URL, or with what a file says now. Null: it is so already. Throws Error.
  std::string (*resolve)(const std::string& argument, Sources& sources);
  // Whether the argument is a text in place of the name of a file. Null: never.
  bool (*is_text)(std::string_view argument) = nullptr;
  // Whether applying the layer uses the network. Null: never.
  bool (*is_elsewhere)(const std::string& argument);
  // `below` has sort_names(). Returns it as it is where there is nothing to do. Throws Error.
  TensorList (*apply)(TensorList below, std::span<const std::string> arguments,
                      const LayerContext& context);
};

// In the order in which layers apply. Append only where that order says so.
std::span<const LayerRow> layer_table();

// A layer that was chosen.
struct Layer {
  std::string option;  // of a row
  std::string argument;

  bool operator==(const Layer&) const = default;
  bool operator<(const Layer& other) const {
    return std::tie(option, argument) < std::tie(other.option, other.argument);
  }
};
// In the order of the table; those of one that repeats in the order in which they were given.
using Layers = std::vector<Layer>;

// Adds a layer, or changes the argument of one that does not repeat. `argument` is one that its row
// accepts.
void choose(Layers& layers, std::string_view option, const std::string& argument);

// Adds a line of the command line, or of a program, whose paths are relative to `directory` ("": it
// has none). It is counted with those directly before it.
void choose_edit_line(Layers& layers, const std::string& directory, const std::string& line);

// nullptr when no row has this option.
const LayerRow* find_layer(std::string_view option);

// The layers with resolved arguments. Throws Error.
Layers resolved(Layers layers, Sources& sources);
bool are_elsewhere(const Layers& layers);

TensorList apply_layers(TensorList list, const Layers& layers, const LayerContext& context);

}  // namespace stfs
