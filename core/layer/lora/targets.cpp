#include "core/layer/lora/targets.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace stfs {
namespace {

bool is_number(std::string_view component) {
  return !component.empty() &&
         std::ranges::all_of(component, [](char c) { return c >= '0' && c <= '9'; });
}

// Returns the end of a name from the component before the first number, or the last two components
// of a name without a number.
std::string_view end_of(std::string_view name) {
  std::size_t before = 0;  // where the component before `at` begins
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t dot = std::min(name.find('.', at), name.size());
    if (is_number(name.substr(at, dot - at))) return name.substr(before);
    before = at;
    at = dot + 1;
  }
  const std::size_t last = name.rfind('.');
  if (last == std::string_view::npos || last == 0) return name;
  const std::size_t second = name.rfind('.', last - 1);
  return second == std::string_view::npos ? name : name.substr(second + 1);
}

// Returns the number of components that two names have in common at their ends.
std::size_t common_components(std::string_view a, std::string_view b) {
  std::size_t count = 0;
  for (;;) {
    const std::size_t i = a.rfind('.'), j = b.rfind('.');
    const std::string_view last_a = i == std::string_view::npos ? a : a.substr(i + 1);
    const std::string_view last_b = j == std::string_view::npos ? b : b.substr(j + 1);
    if (last_a != last_b) return count;
    ++count;
    if (i == std::string_view::npos || j == std::string_view::npos) return count;
    a = a.substr(0, i);
    b = b.substr(0, j);
  }
}

// Returns the part of the name before the last `count` components.
std::string_view before(std::string_view name, std::size_t count) {
  for (; count > 0; --count) {
    const std::size_t dot = name.rfind('.');
    if (dot == std::string_view::npos) return {};
    name = name.substr(0, dot);
  }
  return name;
}

// Returns true if each component is a name by which a model holds another whole model.
bool are_wrappers(std::string_view components) {
  constexpr std::string_view kWrappers[] = {"base_model", "language_model", "model", "text_model",
                                            "transformer"};
  while (!components.empty()) {
    const std::size_t dot = std::min(components.find('.'), components.size());
    if (std::ranges::find(kWrappers, components.substr(0, dot)) == std::end(kWrappers))
      return false;
    components.remove_prefix(std::min(dot + 1, components.size()));
  }
  return true;
}

// Returns true if two names with `common` equal components at their ends may mean the same tensor:
// one name is the end of the other, or only wrappers precede the common end. So a decoder's tensor
// never matches an encoder's.
bool may_be_same(std::string_view a, std::string_view b, std::size_t common) {
  const std::string_view before_a = before(a, common), before_b = before(b, common);
  return before_a.empty() || before_b.empty() || (are_wrappers(before_a) && are_wrappers(before_b));
}

}  // namespace

std::optional<std::uint32_t> Targets::find(std::string_view name,
                                           std::optional<std::uint32_t>& other) const {
  if (const auto number = list_.find(name)) return number;
  if (by_end_.empty()) {
    for (std::uint32_t i = 0; i < list_.size(); ++i) {
      by_end_[std::string(end_of(list_.name(i)))].push_back(i);
    }
  }
  const auto fitting = by_end_.find(std::string(end_of(name)));
  if (fitting == by_end_.end()) return std::nullopt;
  std::optional<std::uint32_t> best;
  std::size_t most = 0;
  for (const std::uint32_t i : fitting->second) {
    const std::size_t common = common_components(name, list_.name(i));
    if (common < most || !may_be_same(name, list_.name(i), common)) continue;
    other = common == most ? best : std::nullopt;
    best = i;
    most = common;
  }
  return best;
}

}  // namespace stfs
