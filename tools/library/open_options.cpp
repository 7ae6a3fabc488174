#include "tools/library/open_options.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/command/command.h"
#include "core/command/delta_rows.h"
#include "core/layer/layer.h"
#include "core/opened/open_rows.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

namespace stfs {
namespace {

OpenOptions& of(void* to) { return *static_cast<OpenOptions*>(to); }
Layers& layers_of(void* to) { return of(to).load.layers; }

constexpr std::array kOwnRows = {
    OptionRow{.flags = "edits",  // lines in the language of edits
              .argument = "LINES",
              .value = Value::kEditLine,
              .set =
                  [](void* to, const std::string& lines) {
                    choose_edit_line(layers_of(to), of(to).directory, lines);
                  }},
    OptionRow{.flags = "version", .argument = "HEX", .set = set<&OpenOptions::version>},
};
// The options besides layers that a checkpoint needs when it is opened again in another place.
constexpr auto kSaidAgain =
    joined(missing_row<&OpenOptions::load, &LoadOptions::allow_missing>("", true),
           source_rows<&OpenOptions::sources>("", "", true));
constexpr auto kRows = joined(joined(layer_rows<layers_of>("", true), kOwnRows), kSaidAgain);

// Returns the base of relative paths in lines of edits: the working directory, or "" if no line can
// contain a path, so that equal lines give equal versions in every directory.
std::string directory_of_lines(std::span<const std::string> options) {
  const bool have_path = std::ranges::any_of(options, [](const std::string& option) {
    return option.find("::") != std::string::npos || option.find(".npy") != std::string::npos;
  });
  std::error_code error;
  return have_path ? std::filesystem::current_path(error).string() : "";
}

}  // namespace

std::string absolute(const std::string& path) {
  std::error_code error;
  return std::filesystem::absolute(path, error).string();
}

void set_option(std::span<const OptionRow> rows, const std::string& option, void* to) {
  try {
    if (set_word(rows, option, to)) return;
    std::string known;
    for (const OptionRow& row : rows) (known += known.empty() ? "" : ", ") += row.flags;
    throw Error(ErrorCode::kUsage, "", "unknown; the options are " + known);
  } catch (const Error& error) {
    throw Error(ErrorCode::kUsage, "", "option " + in_quotes(option) + ": " + error.message());
  }
}

OpenOptions::OpenOptions(std::span<const std::string> options)
    : directory(directory_of_lines(options)) {
  load.missing_hint = "the option allow_missing opens the rest";
  for (const std::string& option : options) {
    set_option(kRows, option, this);
    const std::string key = option.substr(0, option.find('='));
    const auto row = std::ranges::find_if(
        kSaidAgain, [&](const OptionRow& one) { return same_option(one.flags, key); });
    if (row == kSaidAgain.end()) continue;
    const bool is_path = row->value == Value::kPath;
    if (is_path) sources.cache_dir = absolute(sources.cache_dir);
    others.push_back(std::string(row->flags) +
                     (is_path ? "=" + sources.cache_dir : option.substr(key.size())));
  }
}

DeltaWords::DeltaWords(std::span<const std::string> options) {
  static constexpr std::array kOwn = {OptionRow{
      .flags = "shard_size",
      .argument = "SIZE",
      .value = Value::kSize,
      .set = set<&DeltaWords::delta, &DeltaOptions::shard_size>,
  }};
  static constexpr auto kDeltaRows = joined(kOwn, delta_rows<&DeltaWords::delta>(true));
  for (const std::string& option : options) {
    set_option(kDeltaRows, option, this);
  }
}

}  // namespace stfs
