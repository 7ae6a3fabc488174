#include "tools/library/open_options.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/command/command.h"
#include "core/command/delta_rows.h"
#include "core/command/source_rows.h"
#include "core/layer/layer.h"
#include "tools/library/option_words.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

namespace stfs {
namespace {

constexpr std::string_view kVersionOption = "version";

constexpr std::array kOwnRows = {
    OptionRow{.flags = "allow_missing",
              .set = set<&OpenOptions::load, &LoadOptions::allow_missing>},
    OptionRow{.flags = kVersionOption, .argument = "HEX", .set = set<&OpenOptions::version>},
};
constexpr auto kRows = joined(kOwnRows, source_rows<&OpenOptions::sources>("", "", true));

constexpr std::string_view kLinesOption = "edits";  // lines of the language of edits

std::string known_words() {
  std::string words;
  const auto add = [&](std::string_view word) { (words += words.empty() ? "" : ", ") += word; };
  for (const LayerRow& row : layer_table()) add(row.option);
  add(kLinesOption);
  for (const OptionRow& row : kRows) add(row.flags);
  return words;
}

// To which paths in lines of edits are relative: the working directory. "" where no line can have
// one, so that equal lines give equal versions in every directory.
std::string directory_of_lines(std::span<const std::string> options) {
  const bool have_path = std::ranges::any_of(options, [](const std::string& option) {
    return option.find("::") != std::string::npos || option.find(".npy") != std::string::npos;
  });
  std::error_code error;
  return have_path ? std::filesystem::current_path(error).string() : "";
}

}  // namespace

OpenOptions::OpenOptions(std::span<const std::string> options) {
  for (const std::string& option : options) {
    const std::size_t equals = option.find('=');
    const std::string key = option.substr(0, equals);
    const std::string value = equals != std::string::npos ? option.substr(equals + 1) : "";
    if (const LayerRow* layer = find_layer(key)) {
      if (!layer->accepts(value)) {
        throw Error(
            ErrorCode::kUsage, "",
            "option " + in_quotes(option) + ": " + std::string(layer->arguments) + " is expected");
      }
      choose(load.layers, layer->option, value);
      continue;
    }
    if (key == kLinesOption) {
      choose_edit_line(load.layers, directory_of_lines(options), value);
      continue;
    }
    std::string set = set_option(kRows, option, known_words(), this);
    if (key != kVersionOption) others.push_back(std::move(set));
  }
  load.missing_hint = "the option allow_missing opens the rest";
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
    set_option(kDeltaRows, option, words_of(kDeltaRows), this);
  }
}

}  // namespace stfs
