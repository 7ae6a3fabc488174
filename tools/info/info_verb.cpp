// info
#include "core/base/text.h"
#include "core/checkpoint/catalogue.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/metadata.h"
#include "core/command/terminal.h"
#include "core/remote/http/url.h"
#include "core/source/source.h"
#include "tools/info/json.h"
#include "tools/info/verbs.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs {
namespace {

// 124439808 -> "124.4 M"; "" under a thousand.
std::string short_count(std::uint64_t count) {
  constexpr std::array kUnits{"K", "M", "B", "T"};
  if (count < 1000) return "";
  double value = static_cast<double>(count) / 1000;
  std::size_t unit = 0;
  for (; value >= 999.95 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f %s", value, kUnits[unit]);
  return text.data();
}

// "6738415616 (6.7 B)"
std::string with_short(std::uint64_t number, const std::string& text) {
  return std::to_string(number) + (text.empty() ? "" : " (" + text + ")");
}

void print_rows(const Terminal& terminal, std::vector<TextTable::Column> columns,
                const std::vector<std::vector<std::string>>& rows) {
  if (rows.empty()) return;
  TextTable table(terminal, std::move(columns));
  for (const auto& row : rows) table.measure(row);
  print("\n" + table.heading());
  for (const auto& row : rows) print(table.line(row));
}

// The directory of all files; "" when they lie in several.
std::string directory_of(const Checkpoint& checkpoint) {
  std::string directory;
  for (const Part& part : checkpoint.parts()) {
    const std::string parent = parent_name(part.source->path());
    if (!directory.empty() && parent != directory) return "";
    directory = parent;
  }
  return directory;
}

// Whether the files have their labels as names. Links, as in the cache of a Hub, lead elsewhere.
bool are_files_named_by_labels(const Checkpoint& checkpoint) {
  return std::ranges::all_of(checkpoint.parts(), [](const Part& part) {
    return last_component(part.source->path()) == part.label;
  });
}

void print_files(const Terminal& terminal, const Checkpoint& checkpoint) {
  const bool has_directory = !directory_of(checkpoint).empty();
  std::vector<std::vector<std::string>> rows;
  for (const Part& part : checkpoint.parts()) {
    constexpr std::size_t kDate = 10;  // of "2026-01-31T08:00:00.000000000Z"
    const timespec mtime = part.source->mtime();
    const bool is_known = mtime.tv_sec != 0 || !is_url(part.source->path());
    rows.push_back({printable(has_directory ? part.label : part.source->path()),
                    std::to_string(part.header.tensors.size()), human_bytes(part.source->size()),
                    is_known ? rfc3339(mtime.tv_sec, mtime.tv_nsec).substr(0, kDate) : "-"});
  }
  print_rows(terminal,
             {{.heading = "FILE", .least = 8, .is_name = true},
              {.heading = "TENSORS", .is_right_aligned = true},
              {.heading = "SIZE", .is_right_aligned = true},
              {.heading = "MODIFIED", .is_dim = true}},
             rows);
}

void print_dtypes(const Terminal& terminal, const Totals& totals) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [dtype, total] : totals.by_dtype) {
    rows.push_back({std::string(dtype_name(dtype)), std::to_string(total.tensors),
                    std::to_string(total.parameters), human_bytes(total.bytes)});
  }
  print_rows(terminal,
             {{.heading = "DTYPE"},
              {.heading = "TENSORS", .is_right_aligned = true},
              {.heading = "PARAMETERS", .is_right_aligned = true},
              {.heading = "SIZE", .is_right_aligned = true}},
             rows);
}

void print_metadata(const Terminal& terminal, const Checkpoint& checkpoint) {
  std::vector<std::vector<std::string>> rows;
  for (std::uint32_t i = 0; i < checkpoint.metadata_count(); ++i) {
    const MetadataItem item = checkpoint.metadata_item(i);
    rows.push_back({printable(item.key), printable(shown_value(item))});
  }
  print_rows(terminal, {{.heading = "METADATA", .least = 8}, {.heading = "VALUE", .least = 8}},
             rows);
}

std::vector<std::string> names_of_empty(const Checkpoint& checkpoint) {
  std::vector<std::string> names;
  for (std::uint32_t i = 0; i < checkpoint.tensor_count(); ++i) {
    const Tensor tensor = checkpoint.tensor(i);
    if (tensor.elements() == 0) names.emplace_back(tensor.name);
  }
  return names;
}

// Prints the first of many remarks of a kind, and how many there are more.
void print_remarks(const std::string& kind, const std::vector<std::string>& texts) {
  constexpr std::size_t kShown = 8;
  for (std::size_t i = 0; i < std::min(kShown, texts.size()); ++i) {
    print(kind + ": " + texts[i] + "\n");
  }
  if (texts.size() > kShown) {
    print(kind + ": and " + std::to_string(texts.size() - kShown) + " more (--json has all)\n");
  }
}

void print_oddities(const Checkpoint& checkpoint) {
  std::vector<std::string> missing, conflicts, empty;
  for (const MissingTensor& tensor : checkpoint.missing()) {
    missing.push_back(tensor.name ? "tensor " + in_quotes(*tensor.name) + " of shard " +
                                        in_quotes(tensor.source)
                                  : "part " + in_quotes(tensor.source));
  }
  for (const std::string& key : checkpoint.metadata_conflicts()) {
    conflicts.push_back("metadata " + in_quotes(key) + " has different values in different files");
  }
  for (const std::string& name : names_of_empty(checkpoint)) {
    empty.push_back("tensor " + in_quotes(name) + " has no elements");
  }
  const std::vector<std::string>& warnings = checkpoint.warnings();
  if (missing.empty() && conflicts.empty() && empty.empty() && warnings.empty()) return;
  print("\n");
  print_remarks("missing", missing);
  print_remarks("warning", warnings);
  print_remarks("conflict", conflicts);
  print_remarks("empty", empty);
}

// The object of .stfs/info.json with more members at its end.
std::string summary_json(const Checkpoint& checkpoint) {
  std::string text;
  TextWriter out(text);
  write_info_json(checkpoint, out);
  Json more{{"tensors_per_dtype", Json::object()},
            {"empty", names_of_empty(checkpoint)},
            {"warnings", checkpoint.warnings()}};
  for (const auto& [dtype, total] : totals_of(checkpoint).by_dtype) {
    more["tensors_per_dtype"][std::string(dtype_name(dtype))] = total.tensors;
  }
  text.erase(text.rfind("\n}"));
  for (const auto& [key, value] : more.items()) {
    text += ",\n  \"" + key + "\": " + json_line(value);
  }
  return text + "\n}\n";
}

}  // namespace

int info(const Arguments& arguments) {
  VerbSources sources(arguments);
  LoadOptions options = load_options(arguments, sources);
  options.warn = nullptr;  // they are printed among the rest
  const Checkpoint checkpoint(arguments.paths, options);
  if (arguments.json) {
    print(summary_json(checkpoint));
    return 0;
  }
  const Terminal terminal;
  const Totals totals = totals_of(checkpoint);
  const auto line = [&](const char* key, const std::string& value) {
    print(terminal.dim(padded(key, 12)) + value + "\n");
  };
  line("tensors", std::to_string(totals.all.tensors));
  line("parameters", with_short(totals.all.parameters, short_count(totals.all.parameters)));
  line("bytes",
       with_short(totals.all.bytes, totals.all.bytes < 1024 ? "" : human_bytes(totals.all.bytes)));
  const std::string directory = printable(directory_of(checkpoint));
  if (!directory.empty() && are_files_named_by_labels(checkpoint)) {
    const std::size_t columns = terminal.width - std::min<std::size_t>(terminal.width, 12);
    line("directory", terminal.is_terminal ? terminal.shortened(directory, columns) : directory);
  }
  print_files(terminal, checkpoint);
  print_dtypes(terminal, totals);
  print_metadata(terminal, checkpoint);
  print_oddities(checkpoint);
  return 0;
}

}  // namespace stfs
