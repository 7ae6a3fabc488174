// The verb info.
#include "core/base/text.h"
#include "core/checkpoint/catalogue.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/metadata.h"
#include "core/command/terminal.h"
#include "core/layer/delta/delta_layer.h"
#include "core/layer/delta/version.h"
#include "core/layer/quantised/quantised_layer.h"
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
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs {
namespace {

// Returns "124.4 M" for 124439808, and "" for less than a thousand.
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

// Returns "6738415616 (6.7 B)".
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

// Returns the directory of all files, or "" if they are in several directories.
std::string directory_of(const Checkpoint& checkpoint) {
  std::string directory;
  for (const Part& part : checkpoint.parts()) {
    const std::string parent = parent_name(part.source->path());
    if (!directory.empty() && parent != directory) return "";
    directory = parent;
  }
  return directory;
}

// Returns true if the names of the files are their labels. Symlinks, as in the Hub's cache, may
// resolve to other names.
bool are_files_named_by_labels(const Checkpoint& checkpoint) {
  return std::ranges::all_of(checkpoint.parts(), [](const Part& part) {
    return last_component(part.source->path()) == part.label;
  });
}

void print_files(const Terminal& terminal, const Checkpoint& checkpoint) {
  const bool has_directory = !directory_of(checkpoint).empty();
  std::vector<std::vector<std::string>> rows;
  for (const Part& part : checkpoint.parts()) {
    constexpr std::size_t kDate = 10;  // the length of the date in "2026-01-31T08:00:00.000000000Z"
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

// Prints the first of many remarks of one kind, and the number of the others.
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

// A link of a chain of deltas.
struct Link {
  DeltaVersion version;
  DeltaFacts facts;
};
struct Chain {
  std::vector<Link> links;
  std::string base;  // as in DeltaChain
};

Chain chain_of(DeltaChain found, Sources& sources) {
  Chain chain{{}, found.base};
  for (DeltaVersion& version : found.links) {
    const DeltaFacts facts = facts_of(version, sources);
    chain.links.push_back({std::move(version), facts});
  }
  return chain;
}

// Returns the chain of the delta layer, or nullopt without such a layer.
std::optional<Chain> chain_of(const Checkpoint& checkpoint, Sources& sources) {
  for (const Layer& layer : checkpoint.layers()) {
    if (layer.option != kDeltaOption) continue;
    if (auto newest = read_delta(layer.argument, sources)) {
      return chain_of(delta_chain(*std::move(newest), sources), sources);
    }
  }
  return std::nullopt;
}

// Returns the share of all bytes of the checkpoint, such as "1.40%", or "-" if their number is
// unknown.
std::string share_of(std::uint64_t bytes, std::uint64_t all) {
  if (all == 0) return "-";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f%%",
                100 * static_cast<double>(bytes) / static_cast<double>(all));
  return text.data();
}

// `bytes` is the size of the checkpoint; 0: unknown.
void print_chain(const Terminal& terminal, const Chain& chain, std::uint64_t bytes) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [version, facts] : chain.links) {
    rows.push_back({std::to_string(version.version), std::to_string(version.base),
                    std::string(word_of(version.encoding)), std::string(word_of(version.checksum)),
                    std::to_string(facts.tensors), human_bytes(facts.bytes),
                    share_of(facts.bytes, bytes)});
  }
  print_rows(terminal,
             {{.heading = "DELTA", .is_right_aligned = true},
              {.heading = "BASE", .is_right_aligned = true},
              {.heading = "ENCODING"},
              {.heading = "CHECKSUM"},
              {.heading = "TENSORS", .is_right_aligned = true},
              {.heading = "SIZE", .is_right_aligned = true},
              {.heading = "SHARE", .is_right_aligned = true}},
             rows);
}

Json json_of(const Chain& chain) {
  Json links = Json::array();
  for (const auto& [version, facts] : chain.links) {
    links.push_back({{"version", version.version},
                     {"base_version", version.base},
                     {"index", public_name(version.index)},
                     {"encoding", word_of(version.encoding)},
                     {"checksum", word_of(version.checksum)},
                     {"tensors", facts.tensors},
                     {"bytes", facts.bytes}});
  }
  return links;
}

// Prints a delta without a full checkpoint in its chain: its content, and how to use it.
void print_delta_alone(const std::string& source, const Chain& chain, bool as_json) {
  if (as_json) return print(Json{{"deltas", json_of(chain)}}.dump(2) + "\n");
  print("a delta on version " + std::to_string(chain.links.front().version.base) +
        ", which has no directory: name that checkpoint, with --delta=" +
        printable(public_name(source)) + "\n");
  print_chain(Terminal(), chain, 0);
}

// Returns the object of .stfs/info.json with further members at its end.
std::string summary_json(const Checkpoint& checkpoint, const std::optional<Chain>& chain,
                         const std::optional<StoredCodes>& codes) {
  std::string text;
  TextWriter out(text);
  write_info_json(checkpoint, out);
  Json more{{"tensors_per_dtype", Json::object()},
            {"empty", names_of_empty(checkpoint)},
            {"warnings", checkpoint.warnings()},
            {"quantised", nullptr}};
  if (codes) more["quantised"] = {{"weights", codes->weights}, {"scheme", codes->scheme}};
  if (chain) more["deltas"] = json_of(*chain);
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
  options.warn = nullptr;  // the warnings are printed in the summary
  if (arguments.paths.size() == 1 && arguments.layers.empty()) {
    auto alone = chain_at(arguments.paths.front(), sources);
    if (alone && alone->base.empty()) {
      print_delta_alone(arguments.paths.front(), chain_of(*std::move(alone), sources),
                        arguments.json);
      return 0;
    }
  }
  const Checkpoint checkpoint(arguments.paths, options);
  const std::optional<Chain> chain = chain_of(checkpoint, sources);
  const std::optional<StoredCodes> codes = stored_codes(checkpoint.list(), sources);
  if (arguments.json) {
    print(summary_json(checkpoint, chain, codes));
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
  if (codes) {
    line("quantised", std::to_string(codes->weights) +
                          (codes->weights == 1 ? " weight, " : " weights, ") + codes->scheme +
                          ", shown as stored");
    line("", "--dequantize=bf16 shows the values");
  }
  const std::string directory = printable(directory_of(checkpoint));
  if (!directory.empty() && are_files_named_by_labels(checkpoint)) {
    const std::size_t columns = terminal.width - std::min<std::size_t>(terminal.width, 12);
    line("directory", terminal.is_terminal ? terminal.shortened(directory, columns) : directory);
  }
  print_files(terminal, checkpoint);
  if (chain) print_chain(terminal, *chain, totals.all.bytes);
  print_dtypes(terminal, totals);
  print_metadata(terminal, checkpoint);
  print_oddities(checkpoint);
  return 0;
}

}  // namespace stfs
