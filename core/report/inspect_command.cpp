#include "core/report/inspect_command.h"

#include "core/base/text.h"
#include "core/values/stats.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <optional>
#include <vector>

namespace stfs {
namespace {

// Quotes a word for a shell. Returns nullopt if a terminal would not show the word unchanged.
std::optional<std::string> in_shell(std::string_view word) {
  if (printable(word) != word) return std::nullopt;
  const bool is_plain = std::ranges::all_of(word, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("_./:@%+=,-").find(c) != std::string_view::npos;
  });
  if (is_plain && !word.empty()) return std::string(word);
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

// Returns a slice such as "3,0:9": the elements around an element in the last dimension.
std::string around(std::uint64_t element, std::span<const std::uint64_t> shape) {
  constexpr std::uint64_t kAround = 4;
  const std::vector<std::uint64_t> at = indices_of(element, shape);
  std::string expression;
  for (std::size_t i = 0; i + 1 < at.size(); ++i) expression += std::to_string(at[i]) + ",";
  if (at.empty()) return "";
  const std::uint64_t last = at.back();
  return expression + std::to_string(last - std::min(last, kAround)) + ":" +
         std::to_string(std::min(shape.back(), last + kAround + 1));
}

}  // namespace

std::string places_text(std::uint64_t count, std::span<const std::uint64_t> places,
                        std::span<const std::uint64_t> shape) {
  std::string text;
  for (const std::uint64_t place : places) {
    text += (text.empty() ? "" : " ") + shape_json(indices_of(place, shape));
  }
  const std::uint64_t more = count - places.size();
  return more == 0 ? text : text + " and " + std::to_string(more) + " more";
}

std::string inspect_command(const CommandSource& from, const NamedTensor& tensor,
                            std::uint64_t element) {
  const TypeInfo& type = type_info(tensor.dtype);
  const bool is_converted = type.kind != TypeKind::kComplex && type.bits() != 64;
  std::vector<std::string> words;
  for (const Layer& layer : from.layers) {
    const LayerRow& row = *find_layer(layer.option);
    if (row.is_text != nullptr && row.is_text(layer.argument)) return "";  // edits of -e
    words.push_back("--" + layer.option + "=" + layer.argument);
  }
  const std::string slice = around(element, tensor.shape);
  if (!slice.empty()) words.insert(words.end(), {"--slice", slice});
  if (is_converted) words.insert(words.end(), {"--as", "f32"});
  if (from.source.starts_with('-') || tensor.name.starts_with('-')) words.emplace_back("--");
  words.insert(words.end(), {from.source, std::string(tensor.name)});
  std::string command = "stfs-info cat";
  for (const std::string& word : words) {
    const std::optional<std::string> quoted = in_shell(word);
    if (!quoted) return "";
    command += " " + *quoted;
  }
  const bool is_double = type.kind == TypeKind::kFloat && type.bits() == 64;
  return command + " | od -A n -v -t f" + (is_double ? "8" : "4");
}

}  // namespace stfs
