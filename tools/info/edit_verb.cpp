// The verb edit: prints what would change, or writes a new checkpoint. extract writes with the same
// functions.
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/checkpoint/checkpoint.h"
#include "core/command/terminal.h"
#include "core/layer/edit/edit_layer.h"
#include "tools/info/json.h"
#include "tools/info/save_verbs.h"
#include "tools/info/select.h"
#include "tools/info/verbs.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace stfs {
namespace {

struct Change {
  std::string what;                 // "renamed"
  std::optional<std::string> from;  // the name before; nullopt for a new tensor
  std::optional<std::string> name;  // the name after; nullopt for a removed tensor
  std::string type, shape;
};

// The extents that a tensor consists of or is computed from. Empty for a tensor without bytes.
using Places = std::vector<std::tuple<std::string, std::uint64_t, std::uint64_t>>;

Places places_of(const Tensor& tensor) {
  Places places;
  const bool is_computed = !tensor.locator && tensor.computed != nullptr;
  for (const Tensor& input : is_computed ? tensor.computed->inputs() : std::vector{tensor}) {
    if (!input.locator || input.length == 0) continue;
    const Extent& at = *input.locator;
    places.emplace_back(at.source->path(), at.offset, at.length);
  }
  return places;
}

bool is_untouched(const Tensor& a, const Tensor& b) {
  return a.dtype == b.dtype && std::ranges::equal(a.shape, b.shape) &&
         places_of(a) == places_of(b) && (a.computed == nullptr) == (b.computed == nullptr);
}

std::string word_for(const Tensor& before, const Tensor& after) {
  if (before.dtype != after.dtype) return "cast";
  const bool is_same_shape = std::ranges::equal(before.shape, after.shape);
  if (!is_same_shape && before.length == after.length) return "reshaped";
  if (!is_same_shape) return "cut";
  return "replaced";
}

// Returns the changes that edits make to the tensors of `before`.
std::vector<Change> changes(const Checkpoint& before, const Checkpoint& after) {
  std::map<Places, std::uint32_t> by_places;
  for (std::uint32_t i = 0; i < before.tensor_count(); ++i) {
    if (Places places = places_of(before.tensor(i)); !places.empty()) {
      by_places.emplace(std::move(places), i);
    }
  }
  std::vector<bool> is_left(before.tensor_count());
  std::vector<Change> found;
  for (std::uint32_t i = 0; i < after.tensor_count(); ++i) {
    const Tensor tensor = after.tensor(i);
    Change change{.what = {},
                  .from = {},
                  .name = std::string(tensor.name),
                  .type = std::string(dtype_name(tensor.dtype)),
                  .shape = shape_json(tensor.shape)};
    if (const auto same = before.find(tensor.name)) {
      is_left[*same] = true;
      const Tensor old = before.tensor(*same);
      if (is_untouched(old, tensor)) continue;
      change.what = word_for(old, tensor);
      change.from = change.name;
    } else {
      change.what = "added";
      if (const auto at = by_places.find(places_of(tensor)); at != by_places.end()) {
        const std::uint32_t origin = at->second;
        change.from = before.name(origin);
        change.what = after.find(*change.from) ? "copied" : "renamed";
        is_left[origin] = true;
      }
    }
    found.push_back(std::move(change));
  }
  for (std::uint32_t i = 0; i < before.tensor_count(); ++i) {
    if (is_left[i]) continue;
    const Tensor tensor = before.tensor(i);
    found.push_back({.what = "dropped",
                     .from = std::string(tensor.name),
                     .name = {},
                     .type = std::string(dtype_name(tensor.dtype)),
                     .shape = shape_json(tensor.shape)});
  }
  return found;
}

// The values of each key before and after.
using Values =
    std::map<std::string_view,
             std::pair<std::optional<std::string_view>, std::optional<std::string_view>>>;
Values changed_values(const Checkpoint& before, const Checkpoint& after) {
  Values values;
  for (const auto& [key, value] : before.metadata()) values[key].first = value;
  for (const auto& [key, value] : after.metadata()) values[key].second = value;
  std::erase_if(values,
                [](const auto& entry) { return entry.second.first == entry.second.second; });
  return values;
}

void print_changes(const std::vector<Change>& changes, const Values& values) {
  const Terminal terminal;
  if (!changes.empty()) {
    TextTable table(terminal, {{.heading = "CHANGE"},
                               {.heading = "NAME", .least = 8, .is_name = true},
                               {.heading = "DTYPE", .is_dim = true},
                               {.heading = "SHAPE", .least = 8, .is_dim = true},
                               {.heading = "FROM", .least = 8}});
    std::vector<std::vector<std::string>> rows;
    for (const Change& change : changes) {
      const bool is_elsewhere = change.name && change.from && change.from != change.name;
      rows.push_back({change.what, printable(change.name ? *change.name : *change.from),
                      change.type, change.shape, is_elsewhere ? printable(*change.from) : ""});
      table.measure(rows.back());
    }
    print(table.heading());
    for (const auto& row : rows) print(table.line(row));
  }
  for (const auto& [key, value] : values) {
    print("metadata " + in_quotes(key) + ": " + (value.first ? in_quotes(*value.first) : "(none)") +
          " -> " + (value.second ? in_quotes(*value.second) : "(none)") + "\n");
  }
}

void print_json(const std::vector<Change>& changes, const Values& values) {
  JsonArray objects;
  for (const Change& change : changes) {
    Json json{{"change", change.what}};
    if (change.name) json["name"] = *change.name;
    if (change.from) json["from"] = *change.from;
    json["dtype"] = change.type;
    json["shape"] = Json::parse(change.shape);
    objects.add(json_line(json));
  }
  for (const auto& [key, value] : values) {
    Json json{{"change", "metadata"}, {"key", key}};
    if (value.first) json["before"] = *value.first;
    if (value.second) json["after"] = *value.second;
    objects.add(json_line(json));
  }
  objects.end();
}

}  // namespace

int edit_verb(const Arguments& given) {
  Arguments arguments = given;
  arguments.shares = !arguments.output.empty();
  VerbSources sources(arguments);
  const Checkpoint after = open_checkpoint(arguments, sources);
  if (!arguments.output.empty()) {
    std::vector<std::uint32_t> all(after.tensor_count());
    std::iota(all.begin(), all.end(), 0U);
    return save(after, all, arguments, sources);
  }
  Arguments unedited = arguments;
  std::erase_if(unedited.layers, [](const Layer& layer) { return layer.option == kEditOption; });
  const Checkpoint before = open_checkpoint(unedited, sources);
  const std::vector<Change> found = changes(before, after);
  const Values values = changed_values(before, after);
  arguments.json ? print_json(found, values) : print_changes(found, values);
  return 0;
}

}  // namespace stfs
