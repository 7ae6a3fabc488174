#include "tools/library/option_words.h"

#include "core/base/error.h"
#include "core/base/text.h"

#include <algorithm>
#include <filesystem>

namespace stfs {

std::string absolute(const std::string& path) {
  std::error_code error;
  return std::filesystem::absolute(path, error).string();
}

std::string words_of(std::span<const OptionRow> rows) {
  std::string words;
  for (const OptionRow& row : rows) (words += words.empty() ? "" : ", ") += row.flags;
  return words;
}

std::string set_option(std::span<const OptionRow> rows, const std::string& option,
                       const std::string& known, void* to) {
  const auto refuse = [&](const std::string& rule) {
    throw Error(ErrorCode::kUsage, "", "option " + in_quotes(option) + ": " + rule);
  };
  const std::size_t equals = option.find('=');
  const std::string key = option.substr(0, equals);
  const bool has_value = equals != std::string::npos;
  const std::string value = has_value ? option.substr(equals + 1) : "";
  const auto row = std::ranges::find(rows, key, &OptionRow::flags);
  if (row == rows.end()) refuse("not known; known are " + known);
  if (row->argument.empty() && has_value) {
    refuse("takes no value: " + key + " alone turns it on (" + key + "=True in Python)");
  }
  if (!row->argument.empty() && value.empty()) refuse("needs a value, as in " + key + "=...");
  try {
    std::string given = has_value ? checked_value(*row, value) : "";
    if (has_value && row->value == Value::kPath) given = absolute(given);
    row->set(to, given);
    return has_value ? key + "=" + given : key;
  } catch (const Error& error) {
    refuse(error.message());
  }
  return option;  // refuse() threw
}

}  // namespace stfs
