#include "tools/info/stats_rows.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/format/types.h"
#include "core/report/inspect_command.h"
#include "tools/info/select.h"

#include <algorithm>
#include <array>
#include <compare>
#include <cstdio>
#include <functional>
#include <limits>
#include <string_view>
#include <utility>

namespace stfs {
namespace {

constexpr const char* kHeading =
    "name\tcount\tmin\tmax\tmean\tstd\tzeros\tnan\tinf\tnan_at\tinf_at\tlargest_at\n";

// The fields after the name.
constexpr std::array kFields = {"COUNT", "MIN", "MAX", "MEAN", "STD", "ZEROS", "NAN", "INF"};
constexpr bool is_count(std::size_t field) { return field == 0 || field >= 5; }
// The order in which a table drops fields to make room for names: lowest first; 0: never.
constexpr std::array<int, kFields.size()> kDropped = {1, 5, 5, 3, 4, 2, 0, 0};

// Printed before a name; visible on a terminal without colours as well.
constexpr const char* kMark = "! ";
constexpr const char* kNoMark = "  ";

// Returns a count in at most five columns: 99999, 123k, 1.23M. Rounds down.
std::string cut_count(std::uint64_t count) {
  if (count < 100'000) return std::to_string(count);
  std::uint64_t unit = 1000;
  const char* letter = "kMGTPE";
  for (; count / unit >= 1000; unit *= 1000) ++letter;
  const std::uint64_t whole = count / unit;
  const std::uint64_t hundredths = count % unit / (unit / 100);
  std::array<char, 16> text;
  const std::size_t decimals = whole >= 100 ? 0 : whole >= 10 ? 1 : 2;
  std::snprintf(text.data(), text.size(), "%u.%02u", static_cast<unsigned>(whole),
                static_cast<unsigned>(hundredths));
  const std::string digits = text.data();
  return digits.substr(0, digits.find('.') + (decimals == 0 ? 0 : 1 + decimals)) + *letter;
}

std::string value_text(const std::optional<double>& value, const char* format) {
  std::array<char, 32> text = {"-"};
  if (value) std::snprintf(text.data(), text.size(), format, *value);
  return text.data();
}

// Returns the fields of kFields. `format` formats the values, and `count_text` the counts.
template <class CountText>
std::array<std::string, kFields.size()> fields(const ValueStats& values, const char* format,
                                               CountText count_text) {
  return {count_text(values.count),       value_text(values.min, format),
          value_text(values.max, format), value_text(values.mean, format),
          value_text(values.std, format), count_text(values.zeros),
          count_text(values.nan),         count_text(values.inf)};
}

// Rows with a larger key come first.
double sort_key(const ValueStats& values, std::string_view column) {
  constexpr double kLast = -std::numeric_limits<double>::infinity();
  if (column == "min") return values.min ? -*values.min : kLast;
  if (column == "max") return values.max.value_or(kLast);
  if (column == "mean") return values.mean.value_or(kLast);
  if (column == "std") return values.std.value_or(kLast);
  if (column == "zeros") return static_cast<double>(values.zeros);
  if (column == "nan") return static_cast<double>(values.nan);
  if (column == "inf") return static_cast<double>(values.inf);
  return static_cast<double>(values.count);
}

}  // namespace

std::vector<std::uint32_t> StatsRows::begin(const Checkpoint& checkpoint,
                                            std::span<const std::uint32_t> tensors) {
  const auto has_values = [&](std::uint32_t number) {
    return checkpoint.tensor(number).elements() > 0;
  };
  if (arguments_.nonfinite && std::ranges::none_of(tensors, has_values)) {
    throw Error(ErrorCode::kUsage, arguments_.source, "--nonfinite: there are no values to check");
  }
  tensors_ = tensors.size();
  kept_.resize(tensors_);
  std::vector<std::uint32_t> order(tensors.begin(), tensors.end());
  if (arguments_.json) return order;
  if (!terminal_.is_terminal) {
    if (!arguments_.no_header) print(kHeading);
    return order;
  }
  sort_naturally(checkpoint, order);
  begin_table(checkpoint, order);
  return order;
}

void StatsRows::begin_table(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors) {
  // The lines are printed while tensors are read, so the widths cannot depend on the values.
  std::array<std::size_t, kFields.size()> widths;
  for (std::size_t i = 0; i < widths.size(); ++i) widths[i] = is_count(i) ? 5 : 9;  // -1.23e-05
  for (const std::uint32_t number : tensors) {
    if (checkpoint.tensor(number).dtype != DType::kF64) continue;
    for (std::size_t i = 0; i < widths.size(); ++i) {
      if (!is_count(i)) widths[i] = 10;  // -1.23e-308
    }
  }
  std::vector<TextTable::Column> columns = {{.heading = "  NAME", .least = 10, .is_name = true}};
  std::vector<std::string> measured = {""};
  for (const std::size_t i : shown()) {
    std::string column = kFields[i];
    std::ranges::transform(column, column.begin(), [](char c) { return c | 0x20; });  // ASCII
    const int drop = column == arguments_.sort_by ? 0 : kDropped[i];
    columns.push_back({.heading = kFields[i], .is_right_aligned = true, .drop = drop});
    measured.emplace_back(widths[i], ' ');
  }
  table_.emplace(terminal_, std::move(columns));
  for (const std::uint32_t number : tensors) {
    measured.front() = kNoMark + printable(checkpoint.name(number));
    table_->measure(measured);
  }
}

// Returns the fields of the table. With --nonfinite, names matter more than values.
std::span<const std::size_t> StatsRows::shown() const {
  static constexpr std::array<std::size_t, 3> kOfNonfinite = {0, 6, 7};
  static constexpr std::array<std::size_t, kFields.size()> kAll = {0, 1, 2, 3, 4, 5, 6, 7};
  return arguments_.nonfinite ? std::span<const std::size_t>(kOfNonfinite) : kAll;
}

std::string StatsRows::heading() const {
  if (!table_ || arguments_.no_header) return "";
  std::string text = table_->heading();
  text.pop_back();
  return text;
}

std::string StatsRows::line(std::size_t position, const Tensor& tensor, const ValueStats& values) {
  const bool is_nonfinite = values.nan + values.inf > 0;
  if (is_nonfinite) {
    const std::lock_guard lock(mutex_);
    ++nonfinite_;
    if (!looked_at_ || position < *looked_at_) {
      looked_at_ = position;
      const std::vector<std::uint64_t>& places = values.nan > 0 ? values.nan_at : values.inf_at;
      look_ = inspect_command({arguments_.source, arguments_.layers},
                              {tensor.name, tensor.dtype, tensor.shape}, places.front());
    }
  }
  if (arguments_.nonfinite && !is_nonfinite) return "";
  if (arguments_.sort_by.empty() && arguments_.top == 0) return text_of({tensor, values});
  kept_[position].emplace(Row{tensor, values});
  return "";
}

std::vector<std::string> StatsRows::sorted_lines() {
  std::erase(kept_, std::nullopt);
  if (arguments_.sort_by == "name") {
    std::ranges::sort(kept_, [](const std::optional<Row>& a, const std::optional<Row>& b) {
      return std::is_lt(natural_order(a->tensor.name, b->tensor.name));
    });
  } else if (!arguments_.sort_by.empty()) {
    std::ranges::stable_sort(kept_, std::greater<>(), [this](const std::optional<Row>& row) {
      return sort_key(row->values, arguments_.sort_by);
    });
  }
  if (arguments_.top != 0 && kept_.size() > arguments_.top) kept_.resize(arguments_.top);
  std::vector<std::string> lines;
  for (const std::optional<Row>& row : kept_) lines.push_back(text_of(*row));
  return lines;
}

std::string StatsRows::text_of(const Row& row) const {
  const auto& [tensor, values] = row;
  const bool is_nonfinite = values.nan + values.inf > 0;
  if (arguments_.json) {
    return "{\"name\":" + json_string(tensor.name) + "," +
           stats_json(values, tensor.shape).substr(1);
  }
  const std::string name = printable(tensor.name);
  if (!table_) {
    std::string line = name;
    for (const std::string& field :
         fields(values, "%.6g", [](std::uint64_t count) { return std::to_string(count); })) {
      line += "\t" + field;
    }
    line += "\t" + indices_json(values.nan_at, tensor.shape) + "\t" +
            indices_json(values.inf_at, tensor.shape) + "\t" +
            (values.largest_at ? shape_json(indices_of(*values.largest_at, tensor.shape)) : "-");
    return line;
  }
  const auto all = fields(values, "%.3g", cut_count);
  std::vector<std::string> cells = {(is_nonfinite ? kMark : kNoMark) + name};
  for (const std::size_t field : shown()) cells.push_back(all[field]);
  std::string line = table_->line(cells);
  line.pop_back();
  if (!is_nonfinite) return line;
  line = terminal_.red(line);
  if (!arguments_.nonfinite) return line;
  const std::string indent = "\n    ";
  if (values.nan > 0) {
    line += indent + "NaN at " + places_text(values.nan, values.nan_at, tensor.shape);
  }
  if (values.inf > 0) {
    line += indent + "inf at " + places_text(values.inf, values.inf_at, tensor.shape);
  }
  return line;
}

int StatsRows::end() const {
  const std::size_t found = nonfinite_;
  if (table_) {
    const std::string count = std::to_string(tensors_);
    const std::string noun = tensors_ == 1 ? " tensor" : " tensors";
    if (found == 0) {
      print(terminal_.bold(count + noun + ", none with NaN or infinity") + "\n");
    } else {
      print(terminal_.red(std::to_string(found) + " of " + count + noun + " with NaN or infinity") +
            (arguments_.nonfinite ? "" : "; --nonfinite shows where") + "\n");
      if (arguments_.nonfinite && !look_.empty()) print(look_ + "\n");
    }
    std::size_t lines = arguments_.nonfinite ? found : tensors_;
    if (arguments_.top != 0) lines = std::min<std::size_t>(lines, arguments_.top);
    const std::string left_out = table_->left_out();
    if (lines > 0 && !left_out.empty()) print(terminal_.dim("columns left out:" + left_out) + "\n");
  }
  return arguments_.nonfinite && found > 0 ? 1 : 0;
}

}  // namespace stfs
