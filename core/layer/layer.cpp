#include "core/layer/layer.h"

#include "core/layer/quantised/quantised_layer.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace stfs {
namespace {

constexpr LayerRow kTable[] = {
    {.option = kDequantizeOption,
     .arguments = kDequantizedWords,
     .argument = "type",
     .needs = "scales",
     .accepts = [](std::string_view argument) { return dequantized_type(argument).has_value(); },
     .apply =
         [](TensorList below, std::string_view argument, LayerContext& context) {
           return dequantize(std::move(below), *dequantized_type(argument), context.sources);
         }},
};

}  // namespace

std::span<const LayerRow> layer_table() { return kTable; }

const LayerRow* find_layer(std::string_view option) {
  const auto* const row = std::ranges::find(kTable, option, &LayerRow::option);
  return row == std::end(kTable) ? nullptr : row;
}

void choose(Layers& layers, std::string_view option, const std::string& argument) {
  const auto place_of = [](std::string_view of) { return find_layer(of); };  // rows lie in order
  const auto at = std::ranges::lower_bound(
      layers, place_of(option), {}, [&](const Layer& layer) { return place_of(layer.option); });
  if (at != layers.end() && at->option == option) {
    at->argument = argument;
  } else {
    layers.insert(at, {std::string(option), argument});
  }
}

TensorList apply_layers(TensorList list, const Layers& layers, LayerContext context) {
  for (const Layer& layer : layers) {
    list.sort_names();
    list = find_layer(layer.option)->apply(std::move(list), layer.argument, context);
  }
  return list;
}

}  // namespace stfs
