#include "core/checkpoint/select.h"

#include "core/base/text.h"

#include <algorithm>
#include <compare>
#include <optional>
#include <span>
#include <utility>

namespace stfs {
namespace {

bool is_glob(std::string_view name) { return name.find_first_of("*?[") != std::string_view::npos; }

// Returns a measure of the difference between two names, or nullopt if they are too different to
// suggest `name` for `typed`.
std::optional<std::size_t> unlikeness(std::string_view typed, std::string_view name,
                                      std::size_t most_edits) {
  const std::size_t edits = edit_distance(typed, name, most_edits);
  if (edits <= most_edits && edits < typed.size()) return edits;  // at least one character is kept
  // `typed` may be the beginning of the name, or its end after a dot or a slash.
  const auto is_separator = [](char c) { return c == '.' || c == '/'; };
  if (typed.empty() || name.size() <= typed.size()) return std::nullopt;
  const std::size_t rest = name.size() - typed.size();
  const bool begins = name.starts_with(typed);
  const bool ends = name.ends_with(typed) && is_separator(name[rest - 1]);
  if (!begins && !ends) return std::nullopt;
  return most_edits + 1;
}

}  // namespace

std::vector<std::uint32_t> select(const Checkpoint& checkpoint, const std::string& name) {
  if (const auto number = checkpoint.find(name)) return {*number};
  return checkpoint.match(std::span(&name, 1));
}

std::string_view similar_name(const Checkpoint& checkpoint, std::string_view name) {
  constexpr std::size_t kLongest = 256;  // a limit because the time is quadratic
  if (name.size() > kLongest) return {};
  const std::size_t most_edits = std::clamp<std::size_t>(name.size() / 5, 1, 3);
  std::string_view best;
  std::optional<std::pair<std::size_t, std::size_t>> best_cost;  // the difference, then the length
  for (std::uint32_t i = 0; i < checkpoint.tensor_count(); ++i) {
    const std::string_view candidate = checkpoint.name(i);
    const auto cost = unlikeness(name, candidate, most_edits);
    if (!cost) continue;
    const std::pair whole{*cost, candidate.size()};
    const bool is_better = !best_cost || whole < *best_cost ||
                           (whole == *best_cost && std::is_lt(natural_order(candidate, best)));
    if (!is_better) continue;
    best = candidate;
    best_cost = whole;
  }
  return best;
}

std::string no_such_tensor(const Checkpoint& checkpoint, const std::string& name) {
  // Count the names that contain `name`, which may be a word such as "up_proj".
  std::string parts;
  if (!name.empty() && name.find('\'') == std::string::npos) {
    const std::string glob =
        (name.starts_with('*') ? "" : "*") + name + (name.ends_with('*') ? "" : "*");
    const std::size_t count = checkpoint.match(std::span(&glob, 1)).size();
    if (count > 1) parts = " ('" + printable(glob) + "' matches " + std::to_string(count) + ")";
  }
  if (is_glob(name)) return in_quotes(name) + ": matches no tensor" + parts;
  std::string text = "tensor " + in_quotes(name) + ": not in the checkpoint";
  if (!parts.empty()) return text + parts;
  const std::string_view similar = similar_name(checkpoint, name);
  if (!similar.empty()) text += " (did you mean " + in_quotes(similar) + "?)";
  return text;
}

}  // namespace stfs
