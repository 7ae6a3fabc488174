#include "core/layer/layer.h"

#include "core/layer/delta/delta_layer.h"
#include "core/layer/edit/edit_layer.h"
#include "core/layer/edit/edit_lines.h"
#include "core/layer/lora/lora_layer.h"
#include "core/layer/quantised/quantised_layer.h"
#include "core/remote/http/url.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace stfs {
namespace {

constexpr LayerRow kTable[] = {
    {.option = kDeltaOption,
     .arguments = "VERSION",
     .argument = "version",
     .needs = "tensors that a delta names",
     .repeats = false,
     .is_idempotent = false,
     .accepts = [](std::string_view argument) { return !argument.empty(); },
     .resolve = resolved_delta,
     .is_remote = [](const std::string& argument) { return is_url(argument); },
     .apply =
         [](TensorList below, std::span<const std::string> arguments, const LayerContext& context) {
           return apply_delta(std::move(below), arguments[0], context.sources);
         }},
    {.option = kDequantizeOption,
     .arguments = kDequantizedWords,
     .argument = "type",
     .needs = "scales",
     .repeats = false,
     .is_idempotent = true,
     .accepts = [](std::string_view argument) { return dequantized_type(argument).has_value(); },
     .resolve = nullptr,
     .is_remote = nullptr,
     .apply =
         [](TensorList below, std::span<const std::string> arguments, const LayerContext& context) {
           return dequantize(std::move(below), *dequantized_type(arguments[0]), context.sources);
         }},
    {.option = kLoraOption,
     .arguments = "[SCALE@]ADAPTER",
     .argument = "adapter",
     .needs = "",
     .repeats = true,
     .is_idempotent = false,
     .accepts =
         [](std::string_view argument) { return !adapter_choice(argument).directory.empty(); },
     .resolve = resolved_adapter,
     .is_remote =
         [](const std::string& argument) { return is_url(adapter_choice(argument).directory); },
     .apply =
         [](TensorList below, std::span<const std::string> arguments, const LayerContext& context) {
           return merge_adapters(std::move(below), arguments, context.sources);
         }},
    {.option = kEditOption,
     .arguments = "FILE",
     .argument = "edits",
     .needs = "",
     .repeats = true,
     .is_idempotent = false,
     .accepts = [](std::string_view argument) { return !argument.empty(); },
     .resolve = read_edits,
     .is_text = is_edit_text,
     .is_remote = name_url_in_edits,
     .apply =
         [](TensorList below, std::span<const std::string> arguments, const LayerContext& context) {
           return edit(std::move(below), arguments, context.sources, context.load);
         }},
};

}  // namespace

std::span<const LayerRow> layer_table() { return kTable; }

const LayerRow* find_layer(std::string_view option) {
  const auto* const row = std::ranges::find(kTable, option, &LayerRow::option);
  return row == std::end(kTable) ? nullptr : row;
}

void choose(Layers& layers, std::string_view option, const std::string& argument) {
  const LayerRow* const row = find_layer(option);
  // the order of the rows
  const auto of = [](const Layer& layer) { return find_layer(layer.option); };
  const auto first = std::ranges::lower_bound(layers, row, {}, of);
  const auto last = std::ranges::upper_bound(layers, row, {}, of);
  if (first == last || row->repeats) {
    layers.insert(last, {std::string(option), argument});
  } else {
    first->argument = argument;
  }
}

void choose_edit_line(Layers& layers, const std::string& directory, const std::string& line) {
  const std::string line_place(kEditLinePlace);
  const std::string place = directory.empty() ? line_place : child_name(directory, line_place);
  if (!layers.empty() && layers.back().option == kEditOption &&
      edit_place(layers.back().argument) == place) {
    layers.back().argument += "\n" + line;
  } else {
    choose(layers, kEditOption, edit_argument(place, line));
  }
}

Layers resolved(Layers layers, Sources& sources) {
  for (Layer& layer : layers) {
    const LayerRow& row = *find_layer(layer.option);
    if (row.resolve != nullptr) layer.argument = row.resolve(layer.argument, sources);
  }
  return layers;
}

bool any_is_remote(const Layers& layers) {
  return std::ranges::any_of(layers, [](const Layer& layer) {
    const LayerRow& row = *find_layer(layer.option);
    return row.is_remote != nullptr && row.is_remote(layer.argument);
  });
}

TensorList apply_layers(TensorList list, const Layers& layers, const LayerContext& context) {
  for (auto layer = layers.begin(); layer != layers.end();) {
    std::vector<std::string> arguments;
    const LayerRow& row = *find_layer(layer->option);
    if (row.option != kDeltaOption) set_scaled_values(list, context.sources);
    for (; layer != layers.end() && layer->option == row.option; ++layer) {
      arguments.push_back(layer->argument);
    }
    list.sort_names();
    list = row.apply(std::move(list), arguments, context);
  }
  set_scaled_values(list, context.sources);
  return list;
}

}  // namespace stfs
