// Layers change what a checkpoint shows without changing what is stored. A layer takes a list of
// tensors and metadata and returns a new one. Each layer has a row in the table below and a folder
// beside this file.
//
// A returned list is immutable, and each of its computed tensors knows its inputs. A tensor that
// the layer does not change keeps its row.
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

// What a layer may use besides the list that it is applied to.
struct LayerContext {
  Sources& sources;
  // Loads the tensors of another SOURCE, which may be a mount. Throws Error.
  std::function<TensorList(const std::string& source)> load;
};

struct LayerRow {
  std::string_view option;     // "dequantize", as in -o, as --dequantize, and in user.stfs.mount
  std::string_view arguments;  // the syntax of the argument, for messages: "bf16|f16|f32"
  std::string_view argument;   // a noun for the argument, for messages: "type"
  // A noun for the tensors that the layer reads in order to compute other tensors, for messages:
  // "scales". A mount that shows only a part of a checkpoint may lack them, so the layer is refused
  // there. "" if the layer needs no such tensors.
  std::string_view needs;
  bool repeats;        // the option may be given several times; apply() gets all arguments at once
  bool is_idempotent;  // applied again with the same argument, the layer changes nothing
  bool (*accepts)(std::string_view argument);
  // Returns the argument in a form that keeps its meaning in another directory and at a later time:
  // an absolute path, a pinned URL, or the content of a file. Null: arguments need no change.
  // Throws Error.
  std::string (*resolve)(const std::string& argument, Sources& sources);
  // Returns true if the argument contains the layer's text instead of the name of a file. Null: it
  // never does.
  bool (*is_text)(std::string_view argument) = nullptr;
  // Returns true if applying the layer may use the network. Null: it never does.
  bool (*is_remote)(const std::string& argument);
  // Applies the layer to `below`, whose names are sorted (TensorList::sort_names()). Returns
  // `below` unchanged if there is nothing to do. Throws Error.
  TensorList (*apply)(TensorList below, std::span<const std::string> arguments,
                      const LayerContext& context);
};

// Returns the rows in the order in which layers are applied. Insert a new row at its place in that
// order, which is not always the end.
std::span<const LayerRow> layer_table();

// A layer that the user has chosen.
struct Layer {
  std::string option;  // LayerRow::option
  std::string argument;

  bool operator==(const Layer&) const = default;
  bool operator<(const Layer& other) const {
    return std::tie(option, argument) < std::tie(other.option, other.argument);
  }
};
// The chosen layers, in the order of the table. Layers of the same row are in the order in which
// the user gave them.
using Layers = std::vector<Layer>;

// Adds a layer at its place in `layers`. If the layer does not repeat and was chosen before,
// replaces its argument instead. The row must accept `argument`.
void choose(Layers& layers, std::string_view option, const std::string& argument);

// Adds one line of edits that comes from a command line or a program, not from a file. Paths in the
// line are relative to `directory`; "" if it has no paths. Consecutive lines with the same
// directory form one layer, so that messages number them as the lines of one text.
void choose_edit_line(Layers& layers, const std::string& directory, const std::string& line);

// Returns the row with this option, or nullptr if there is none.
const LayerRow* find_layer(std::string_view option);

// Returns the layers with resolved arguments (LayerRow::resolve). Throws Error.
Layers resolved(Layers layers, Sources& sources);
// Returns true if applying any of the layers may use the network.
bool any_is_remote(const Layers& layers);

// Applies all layers to `list`, one row of the table after the other.
TensorList apply_layers(TensorList list, const Layers& layers, const LayerContext& context);

}  // namespace stfs
