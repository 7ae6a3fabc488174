#include "tools/info/diff_rows.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/format/types.h"
#include "core/values/stats.h"
#include "tools/info/json.h"

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <compare>
#include <cstdio>
#include <functional>
#include <limits>
#include <utility>

namespace stfs {
namespace {

bool have_equal_shapes(const Pair& pair) {
  return std::ranges::equal(pair.a->shape, pair.b->shape);
}

std::string_view name_of(const Pair& pair) { return pair.a ? pair.a->name : pair.b->name; }

// Returns the indices of the largest difference: "[1,0]".
std::string place_of_largest(const Pair& pair, const ValueDifference& values) {
  const std::uint64_t element = values.unlike > 0 ? values.first_unlike : values.first_largest;
  return shape_json(indices_of(element, pair.a->shape));
}

// Returns the shortest text that is read back as this number, such as "0.0625", or "inf".
std::string number_text(double number) {
  std::array<char, 32> text{};
  const char* const end = std::to_chars(text.data(), text.data() + text.size(), number).ptr;
  return {text.data(), static_cast<std::size_t>(end - text.data())};
}

std::string three_digits(double number) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g", number);
  return text.data();
}

// Returns the largest difference for people. NaN and infinity have no difference that is a number.
std::string largest_text(const ValueDifference& values) {
  if (values.unlike == 0) return three_digits(values.largest);
  return values.nan_in_one > 0 ? "NaN" : "inf";
}

// Rounds down, so that 100% means all.
std::string percent(double share) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f%%", std::floor(share * 1e4) / 1e2);
  return text.data();
}

std::string without_end(std::string line) {
  line.pop_back();
  return line;
}

// Returns values with the longest text that the values of the pair can have.
ValueDifference longest_values(const Pair& pair) {
  ValueDifference longest;
  longest.elements = 1;
  longest.equal = 1;  // 100.00%
  longest.largest = 1.23e-10;
  longest.first_largest = pair.a->elements() - 1;
  longest.squares = 1.23e-10 * 1.23e-10;
  longest.norm = 1;
  return longest;
}

// Rows with a larger key come first.
double sort_key(const PairDifference& difference, std::string_view column) {
  constexpr double kLast = -std::numeric_limits<double>::infinity();
  if (!difference.values) return kLast;
  const ValueDifference& values = *difference.values;
  if (column == "equal") return -values.equal_share();
  if (column == "largest") return largest_of(values);
  // NaN has no distance from a value, so it comes first.
  return values.distance().value_or(std::numeric_limits<double>::infinity());
}

}  // namespace

double largest_of(const ValueDifference& values) {
  return values.unlike > 0 ? std::numeric_limits<double>::infinity() : values.largest;
}

std::optional<PairDifference> difference_of_headers(const Pair& pair) {
  if (!pair.b) return PairDifference{"removed"};
  if (!pair.a) return PairDifference{"added"};
  if (pair.a->name != pair.b->name) {
    return PairDifference{"renamed", std::string(pair.a->name), std::string(pair.b->name)};
  }
  if (pair.a->dtype != pair.b->dtype && (pair.is_of_one_format || have_equal_shapes(pair))) {
    return PairDifference{"dtype", std::string(dtype_name(pair.a->dtype)),
                          std::string(dtype_name(pair.b->dtype))};
  }
  if (!have_equal_shapes(pair)) {
    return PairDifference{"shape", shape_json(pair.a->shape), shape_json(pair.b->shape)};
  }
  return std::nullopt;
}

DiffRows::DiffRows(const Arguments& arguments, std::span<const Pair> pairs,
                   bool (*may_have_values)(const Pair&, bool wants_values))
    : arguments_(arguments), pairs_(pairs.size()) {
  if (!arguments.sort_by.empty() && arguments.sort_by != "name" && !arguments.values) {
    throw Error(ErrorCode::kUsage, "", "--sort=" + arguments.sort_by + ": needs --values");
  }
  if (arguments.json || !terminal_.is_terminal) return;
  // Leave columns for "bytes differ from byte 1234", and for two shapes in the short form. A narrow
  // terminal shortens the names instead.
  std::vector<TextTable::Column> columns{{.heading = "NAME", .least = 8, .is_name = true}};
  if (arguments.values) {
    columns.push_back({.heading = "CHANGE", .least = 10});
    columns.push_back({.heading = "LARGEST", .is_right_aligned = true});
    columns.push_back({.heading = "DISTANCE", .is_right_aligned = true, .drop = 2});
    columns.push_back({.heading = "EQUAL", .is_right_aligned = true, .drop = 3});
    columns.push_back({.heading = "AT", .drop = 1});
  } else {
    columns.push_back({.heading = "DIFFERENCE", .least = is_narrow() ? 22U : 28U});
  }
  table_.emplace(terminal_, std::move(columns));
  for (const Pair& pair : pairs) {
    PairDifference difference = difference_of_headers(pair).value_or(
        PairDifference{"bytes", "", "", pair.a ? pair.a->length : 0});
    if (difference.kind != "renamed" && may_have_values(pair, arguments.values) &&
        pair.a->elements() > 0) {
      difference.values = longest_values(pair);
    }
    table_->measure(cells(pair, difference));
  }
}

std::string DiffRows::heading() const {
  if (arguments_.no_header || arguments_.json) return "";
  if (table_) return without_end(table_->heading());
  return std::string("change\tname\ta\tb\tfirst_byte\tlargest\tat") +
         (arguments_.values ? "\tdistance\tequal\tunlike" : "");
}

std::string DiffRows::line(std::size_t position, const Pair& pair,
                           const PairDifference& difference) {
  const std::lock_guard lock(mutex_);
  add(pair, difference);
  if (arguments_.sort_by.empty() && arguments_.top == 0) return text_of(pair, difference);
  kept_.push_back({position, pair, difference});
  return "";
}

void DiffRows::add_equal(const Pair& pair) {
  const std::lock_guard lock(mutex_);
  totals_.elements += pair.a->elements();
  totals_.equal += pair.a->elements();
}

void DiffRows::add(const Pair& pair, const PairDifference& difference) {
  const std::string_view kind = difference.kind;
  ++(kind == "removed"   ? totals_.removed
     : kind == "added"   ? totals_.added
     : kind == "renamed" ? totals_.renamed
                         : totals_.changed);
  if (kind == "renamed") totals_.elements += pair.a->elements();
  if (kind == "renamed") totals_.equal += pair.a->elements();
  if (!difference.values) return;
  const ValueDifference& values = *difference.values;
  totals_.elements += values.elements;
  totals_.equal += values.equal;
  totals_.squares += values.squares;
  totals_.norm += values.norm;
  totals_.unlike += values.unlike > 0 ? 1 : 0;
  if (values.largest <= totals_.largest) return;
  totals_.largest = values.largest;
  totals_.at =
      printable(name_of(pair)) + " " + shape_json(indices_of(values.first_largest, pair.a->shape));
}

std::vector<std::string> DiffRows::sorted_lines() {
  std::ranges::sort(kept_, {}, &Row::position);
  if (arguments_.sort_by == "name") {
    std::ranges::stable_sort(kept_, [](const Row& a, const Row& b) {
      return std::is_lt(natural_order(name_of(a.pair), name_of(b.pair)));
    });
  } else if (!arguments_.sort_by.empty()) {
    std::ranges::stable_sort(kept_, std::greater<>(), [this](const Row& row) {
      return sort_key(row.difference, arguments_.sort_by);
    });
  }
  if (arguments_.top != 0 && kept_.size() > arguments_.top) kept_.resize(arguments_.top);
  std::vector<std::string> lines;
  for (const Row& row : kept_) lines.push_back(text_of(row.pair, row.difference));
  return lines;
}

std::string DiffRows::text_of(const Pair& pair, const PairDifference& difference) const {
  if (arguments_.json) return json_of(pair, difference);
  if (table_) return without_end(table_->line(cells(pair, difference)));
  const auto or_dash = [](const std::string& text) { return text.empty() ? "-" : text; };
  const auto& [kind, in_a, in_b, first_byte, values] = difference;
  const double largest = values ? largest_of(*values) : 0;
  std::string line = std::string(kind) + "\t" + printable(name_of(pair));
  line += "\t" + or_dash(printable(in_a)) + "\t" + or_dash(printable(in_b));
  line += "\t" + (kind == "bytes" ? std::to_string(first_byte) : "-");
  line += "\t" + (values ? number_text(largest) : "-");
  line += "\t" + (largest > 0 ? place_of_largest(pair, *values) : "-");
  if (!arguments_.values) return line;
  if (!values) return line + "\t-\t-\t-";
  const std::optional<double> distance = values->distance();
  return line + "\t" + (distance ? number_text(*distance) : "-") + "\t" +
         number_text(values->equal_share()) + "\t" + std::to_string(values->unlike);
}

std::string DiffRows::json_of(const Pair& pair, const PairDifference& difference) const {
  const auto& [kind, in_a, in_b, first_byte, values] = difference;
  Json object{{"change", kind}, {"name", name_of(pair)}};
  if (kind == "bytes") object["first_difference"] = first_byte;
  if (kind == "renamed") object["new_name"] = in_b;
  if (kind == "shape") {
    object["a"] = pair.a->shape;
    object["b"] = pair.b->shape;
  } else if (kind == "dtype") {
    object["a"] = in_a;
    object["b"] = in_b;
  }
  if (!values) return json_line(object);
  const double largest = largest_of(*values);
  object["largest_difference"] = largest;  // infinity becomes null, because JSON lacks it
  if (largest > 0) {
    object["at"] = indices_of(values->unlike > 0 ? values->first_unlike : values->first_largest,
                              pair.a->shape);
  }
  if (!arguments_.values) return json_line(object);
  const std::optional<double> distance = values->distance();
  object["relative_distance"] = distance ? Json(*distance) : Json();
  object["equal_share"] = values->equal_share();
  object["unlike"] = values->unlike;
  return json_line(object);
}

std::vector<std::string> DiffRows::cells(const Pair& pair, const PairDifference& difference) const {
  if (!arguments_.values) return {printable(name_of(pair)), words(pair, difference)};
  const auto& values = difference.values;
  std::vector<std::string> cells{
      printable(name_of(pair)), change(pair, difference), "", "", "", ""};
  if (!values) return cells;
  const std::optional<double> distance = values->distance();
  cells[2] = largest_text(*values);
  cells[3] = distance ? three_digits(*distance) : "-";
  cells[4] = percent(values->equal_share());
  if (largest_of(*values) > 0) cells[5] = place_of_largest(pair, *values);
  return cells;
}

// Returns the change in words, without the numbers.
std::string DiffRows::change(const Pair&, const PairDifference& difference) const {
  const std::string_view kind = difference.kind;
  const std::string arrow = terminal_.is_utf8 ? "→ " : "-> ";
  if (kind == "removed") return "only in A";
  if (kind == "added") return "only in B";
  if (kind == "renamed") return arrow + printable(difference.in_b);
  if (kind == "bytes") return difference.values ? "values" : "bytes";
  return difference.in_a + " " + arrow + difference.in_b;
}

std::string DiffRows::words(const Pair& pair, const PairDifference& difference) const {
  const std::string_view kind = difference.kind;
  if (kind == "removed" || kind == "added") return change(pair, difference);
  if (kind == "renamed") return (is_narrow() ? "" : "renamed ") + change(pair, difference);
  std::string text = (is_narrow() ? "" : std::string(kind) + " ") + change(pair, difference);
  if (kind == "bytes") {
    text = (is_narrow() ? "from byte " : "bytes differ from byte ") +
           std::to_string(difference.first_byte);
  }
  if (!difference.values) return text;
  const ValueDifference& values = *difference.values;
  if (largest_of(values) == 0) return text + (is_narrow() ? ", same" : ", equal values");
  text += (is_narrow() ? ", " : ", up to ") + largest_text(values);
  return is_narrow() ? text : text + " at " + place_of_largest(pair, values);
}

// Prints "3 of 39 tensors differ: 2 changed, 1 only in A".
void DiffRows::summarize() const {
  if (arguments_.json || ::isatty(STDERR_FILENO) != 1) return;
  std::string text = std::to_string(pairs_) + (pairs_ == 1 ? " tensor" : " tensors");
  const std::size_t sum = differing();
  if (sum == 0) {
    text += ", no difference";
  } else {
    text = std::to_string(sum) + " of " + text + (sum == 1 ? " differs" : " differ");
    const char* before = ": ";
    const std::array<std::pair<std::size_t, const char*>, 4> counts{
        {{totals_.changed, " changed"},
         {totals_.renamed, " renamed"},
         {totals_.removed, " only in A"},
         {totals_.added, " only in B"}}};
    for (const auto& [count, what] : counts) {
      if (count > 0) text += std::exchange(before, ", ") + std::to_string(count) + what;
    }
  }
  if (arguments_.values && sum > 0 && totals_.elements > 0) {
    text += "\n" +
            percent(static_cast<double>(totals_.equal) / static_cast<double>(totals_.elements)) +
            " of all elements equal";
    const double distance = std::sqrt(totals_.squares) / std::sqrt(totals_.norm);
    // The squares of large F64 values overflow.
    if (std::isfinite(distance) && distance > 0)
      text += ", distance " + three_digits(distance) + " of the changed tensors";
    if (totals_.largest > 0) {
      text += "\nlargest difference " + three_digits(totals_.largest) + " at " + totals_.at;
    }
    if (totals_.unlike > 0) {
      text += "\n" + std::to_string(totals_.unlike) +
              (totals_.unlike == 1 ? " tensor" : " tensors") +
              " with NaN or infinity in only one of them";
    }
  }
  if (table_ && sum > 0 && !table_->left_out().empty())
    text += "\ncolumns left out:" + table_->left_out();
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", text.c_str());
  if (sum > 0 && totals_.removed + totals_.added == pairs_ && totals_.removed > 0 &&
      totals_.added > 0) {
    std::fprintf(stderr,
                 "no name is in both: --old-edit=FILE or --new-edit=FILE renames the tensors of "
                 "one, by a line such as 'rename s/^model\\.//'\n");
  }
}

}  // namespace stfs
