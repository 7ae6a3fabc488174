// stats, hash, diff
#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/checkpoint/catalogue.h"
#include "core/checkpoint/checkpoint.h"
#include "core/command/terminal.h"
#include "core/values/compare.h"
#include "core/values/digest.h"
#include "core/values/stats.h"
#include "tools/info/json.h"
#include "tools/info/select.h"
#include "tools/info/stats_rows.h"
#include "tools/info/verbs.h"

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cmath>
#include <compare>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace stfs {
namespace {

// Prints lines one by one, or with --json as the elements of an array. Skips empty lines.
class Lines {
 public:
  // `heading` comes before the first line; "": none.
  Lines(bool json, ProgressBar& bar, std::string heading = "")
      : json_(json), bar_(bar), heading_(std::move(heading)) {
    if (json_) bar_.print("[\n");
  }
  void add(std::string line) {
    if (line.empty()) return;
    if (!json_) {
      if (!heading_.empty()) bar_.print(std::exchange(heading_, "") + "\n");
      return bar_.print(line + "\n");
    }
    // Keep the line until the next one comes: only then a comma follows it.
    if (last_) bar_.print(*last_ + ",\n");
    last_ = std::move(line);
  }
  void end() {
    if (json_) bar_.print(last_ ? *last_ + "\n]\n" : "]\n");
  }

 private:
  bool json_;
  ProgressBar& bar_;
  std::string heading_;
  std::optional<std::string> last_;
};

// Calls `make` for the numbers 0 to count-1 on `jobs` threads and adds the lines in the order of
// the numbers. When a call throws, sets `stop` for the others, adds the lines up to the first that
// is not done, and throws the first exception.
void add_in_order(Lines& out, std::size_t count, unsigned jobs,
                  const std::function<std::string(std::size_t, const std::atomic<bool>&)>& make) {
  std::mutex mutex;
  std::condition_variable line_done;
  std::vector<std::optional<std::string>> lines(count);
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> stop = false;
  std::exception_ptr failure;
  const auto work = [&] {
    for (std::size_t i; !stop && (i = next++) < count;) {
      try {
        std::string line = make(i, stop);
        const std::lock_guard lock(mutex);
        lines[i] = std::move(line);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        stop = true;
      }
      line_done.notify_one();
    }
  };
  {
    std::vector<std::jthread> threads;
    try {
      for (std::size_t i = 0; i < std::min<std::size_t>(jobs, count); ++i)
        threads.emplace_back(work);
    } catch (const std::exception&) {
      // No more threads: go on with those that started, or with this one.
      if (threads.empty()) work();
    }
    std::unique_lock lock(mutex);
    for (std::size_t i = 0; i < count; ++i) {
      line_done.wait(lock, [&] { return failure || lines[i]; });
      if (!lines[i]) break;
      std::string line = std::move(*lines[i]);
      lock.unlock();
      try {
        out.add(std::move(line));
      } catch (...) {
        stop = true;  // nobody can see the other lines
        throw;
      }
      lock.lock();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

[[noreturn]] void fail(const Tensor& tensor, int error) {
  const Source* const source = tensor.locator ? tensor.locator->source : nullptr;
  fail_read(source != nullptr ? source->path() : "", "tensor " + in_quotes(tensor.name), error,
            source != nullptr ? source->failure_text() : "");
}

std::uint64_t bytes_of(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors) {
  std::uint64_t bytes = 0;
  for (const std::uint32_t number : tensors) bytes += checkpoint.tensor(number).length;
  return bytes;
}

// Prints `line_of` of each selected tensor, for `stats` in the order and below the heading that it
// gives.
int for_selected(
    const Arguments& arguments,
    const std::function<std::string(std::size_t position, const Tensor&, const std::atomic<bool>&,
                                    const Progress&)>& line_of,
    StatsRows* stats = nullptr) {
  VerbSources sources(arguments);
  const Checkpoint checkpoint = open_checkpoint(arguments, sources);
  const std::vector<std::uint32_t> tensors =
      select_tensors(checkpoint, arguments.source, arguments.globs);
  ProgressBar bar(bytes_of(checkpoint, tensors));
  const std::vector<std::uint32_t> order = stats ? stats->begin(checkpoint, tensors) : tensors;
  Lines out(arguments.json, bar, stats ? stats->heading() : "");
  add_in_order(out, order.size(), arguments.threads(),
               [&](std::size_t i, const std::atomic<bool>& stop) {
                 return line_of(i, checkpoint.tensor(order[i]), stop,
                                [&bar](std::uint64_t bytes) { bar.add(bytes); });
               });
  bar.end();
  if (stats) {
    for (std::string& line : stats->sorted_lines()) out.add(std::move(line));
  }
  out.end();
  return stats ? stats->end() : 0;
}

// The first byte in which two tensors of equal size differ; nullopt when all bytes are equal, and
// soon after `stop` was set.
std::optional<std::uint64_t> first_difference_of(const Tensor& a, const Tensor& b,
                                                 const PassOptions& options) {
  const Comparison found = compare_tensors(a, b, CompareBy::kBytes, options);
  if (found.error != 0 && !options.stop) fail(found.is_in_before ? a : b, found.error);
  return found.first_byte;
}

// A tensor that `diff` compares.
struct Pair {
  std::optional<Tensor> a, b;    // nullopt: not in this checkpoint
  bool is_of_one_format = true;  // both are of safetensors files, or of GGUF files
};

struct PairDifference {
  const char* kind;
  std::string in_a = {}, in_b = {};  // of a dtype or a shape
  std::uint64_t first_byte = 0;
  std::optional<ValueDifference> values = {};  // of a dtype or of bytes, where they are compared
};

// A NaN and a number, and an infinity and another value, differ by infinity.
double largest_of(const ValueDifference& values) {
  return values.unlike > 0 ? std::numeric_limits<double>::infinity() : values.largest;
}
std::uint64_t place_of_largest(const ValueDifference& values) {
  return values.unlike > 0 ? values.first_unlike : values.first_largest;
}

bool have_equal_shapes(const Pair& pair) {
  return std::ranges::equal(pair.a->shape, pair.b->shape);
}

// Whether the values can be compared, and a user asks for that or the dtypes or formats differ.
bool is_compared_by_value(const Pair& pair, bool wants_values) {
  if (!pair.a || !pair.b || !have_equal_shapes(pair)) return false;
  const TypeInfo& a = type_info(pair.a->dtype);
  const TypeInfo& b = type_info(pair.b->dtype);
  if (wants_values) return a.kind != TypeKind::kComplex && b.kind != TypeKind::kComplex;
  return (pair.a->dtype != pair.b->dtype || !pair.is_of_one_format) && a.to_f32 != nullptr &&
         b.to_f32 != nullptr;
}

ValueDifference value_difference(const Tensor& a, const Tensor& b, const std::atomic<bool>& stop,
                                 const Progress& progress) {
  const Comparison found = compare_tensors(a, b, CompareBy::kValues, {stop, progress});
  if (found.error != 0 && !stop) fail(found.is_in_before ? a : b, found.error);
  return found.values.value_or(ValueDifference{});
}

std::vector<std::uint64_t> position_of(std::uint64_t element,
                                       std::span<const std::uint64_t> shape) {
  std::vector<std::uint64_t> position(shape.size());
  for (std::size_t i = shape.size(); i-- > 0;) {
    position[i] = element % shape[i];
    element /= shape[i];
  }
  return position;
}

// "0.0625", as short as it stands for this number alone; "inf".
std::string number_text(double number) {
  std::array<char, 32> text{};
  const char* const end = std::to_chars(text.data(), text.data() + text.size(), number).ptr;
  return {text.data(), static_cast<std::size_t>(end - text.data())};
}

// The difference that the headers show; nullopt where the bytes must be compared. Two formats have
// other types: between them a difference of types alone is not one, where the values are equal.
std::optional<PairDifference> difference_of_headers(const Pair& pair) {
  if (!pair.b) return PairDifference{"removed"};
  if (!pair.a) return PairDifference{"added"};
  if (pair.a->dtype != pair.b->dtype && (pair.is_of_one_format || have_equal_shapes(pair))) {
    return PairDifference{"dtype", std::string(dtype_name(pair.a->dtype)),
                          std::string(dtype_name(pair.b->dtype))};
  }
  if (!std::ranges::equal(pair.a->shape, pair.b->shape)) {
    return PairDifference{"shape", shape_json(pair.a->shape), shape_json(pair.b->shape)};
  }
  return std::nullopt;
}

// The output of `diff`: tab-separated fields, JSON objects, or on a terminal a table.
class DiffRows {
 public:
  DiffRows(const Arguments& arguments, std::span<const Pair> pairs)
      : json_(arguments.json), with_values_(arguments.values) {
    if (json_ || !terminal_.is_terminal) return;
    // Room for "bytes differ from byte 1234", and for two shapes in the short form: a narrow
    // terminal rather cuts the names.
    table_.emplace(terminal_, std::vector<TextTable::Column>{
                                  {.heading = "NAME", .least = 8, .is_name = true},
                                  {.heading = "DIFFERENCE", .least = is_narrow() ? 22U : 28U}});
    for (const Pair& pair : pairs) {
      PairDifference difference = difference_of_headers(pair).value_or(
          PairDifference{"bytes", "", "", pair.a ? pair.a->length : 0});
      if (is_compared_by_value(pair, with_values_) && pair.a->elements() > 0) {
        ValueDifference longest;  // as long as any
        longest.largest = 1.23e-10;
        longest.first_largest = pair.a->elements() - 1;
        longest.squares = 1.23e-10 * 1.23e-10;
        longest.norm = 1;
        difference.values = longest;
      }
      table_->measure(std::vector{printable(name_of(pair)), words(pair, difference)});
    }
  }

  std::string heading() const { return table_ ? without_end(table_->heading()) : ""; }

  std::string line(const Pair& pair, const PairDifference& difference) const {
    const std::string_view name = name_of(pair);
    const auto& [kind, in_a, in_b, first_byte, values] = difference;
    const double largest = values ? largest_of(*values) : 0;
    const bool has_place = largest > 0;
    const std::vector<std::uint64_t> place =
        has_place ? position_of(place_of_largest(*values), pair.a->shape)
                  : std::vector<std::uint64_t>();
    const bool is_bytes = std::string_view(kind) == "bytes";
    if (table_)
      return without_end(table_->line(std::vector{printable(name), words(pair, difference)}));
    if (!json_) {
      std::string line = std::string(kind) + "\t" + printable(name);
      if (is_bytes) line += "\t" + std::to_string(first_byte);
      if (!in_a.empty()) line += "\t" + in_a + "\t" + in_b;
      if (values) line += "\t" + number_text(largest);
      if (has_place) line += "\t" + shape_json(place);
      if (values && with_values_) {
        const std::optional<double> distance = values->distance();
        line += (has_place ? "\t" : "\t-\t") + (distance ? number_text(*distance) : "-") + "\t" +
                number_text(values->equal_share());
      }
      return line;
    }
    Json object{{"change", kind}, {"name", name}};
    if (is_bytes) object["first_difference"] = first_byte;
    if (!in_a.empty()) {
      const bool is_shape = std::string_view(kind) == "shape";
      object["a"] = is_shape ? Json(pair.a->shape) : Json(in_a);
      object["b"] = is_shape ? Json(pair.b->shape) : Json(in_b);
    }
    if (values) object["largest_difference"] = largest;  // infinity is null
    if (has_place) object["at"] = place;
    if (values && with_values_) {
      const std::optional<double> distance = values->distance();
      object["relative_distance"] = distance ? Json(*distance) : Json();
      object["equal_share"] = values->equal_share();
    }
    return json_line(object);
  }

 private:
  static std::string_view name_of(const Pair& pair) { return pair.a ? pair.a->name : pair.b->name; }
  static std::string without_end(std::string line) {
    line.pop_back();
    return line;
  }

  std::string words(const Pair& pair, const PairDifference& difference) const {
    const std::string_view kind = difference.kind;
    if (kind == "removed") return "only in A";
    if (kind == "added") return "only in B";
    std::string text;
    if (kind == "bytes") {
      text = (is_narrow() ? "from byte " : "bytes differ from byte ") +
             std::to_string(difference.first_byte);
    } else {
      text = (is_narrow() ? "" : std::string(kind) + " ") + difference.in_a +
             (terminal_.is_utf8 ? " → " : " -> ") + difference.in_b;
    }
    if (!difference.values) return text;
    const ValueDifference& values = *difference.values;
    const double largest = largest_of(values);
    if (largest == 0) return text + (is_narrow() ? ", same" : ", equal values");
    text += (is_narrow() ? ", " : ", up to ") + three_digits(largest);
    if (is_narrow()) return text;
    text += " at " + shape_json(position_of(place_of_largest(values), pair.a->shape));
    if (!with_values_) return text;
    if (const auto distance = values.distance()) text += ", distance " + three_digits(*distance);
    // Cut, not rounded: 100% are all.
    std::array<char, 32> share{};
    std::snprintf(share.data(), share.size(), ", %.2f%% equal",
                  std::floor(values.equal_share() * 1e4) / 1e2);
    return text + share.data();
  }
  static std::string three_digits(double number) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.3g", number);
    return text.data();
  }
  bool is_narrow() const { return terminal_.width < 60; }

  const bool json_;
  const bool with_values_;
  const Terminal terminal_;
  std::optional<TextTable> table_;  // empty: not on a terminal, or with --json
};

// "3 of 39 tensors differ: 2 changed, 1 only in A", on standard error if that is a terminal.
// Scripts get nothing, as from cmp(1): output is the mark of a difference there.
void summarize(std::size_t tensors, const std::array<std::size_t, 3>& found) {
  if (::isatty(STDERR_FILENO) != 1) return;
  std::string text = std::to_string(tensors) + (tensors == 1 ? " tensor" : " tensors");
  const std::size_t sum = found[0] + found[1] + found[2];
  if (sum == 0) {
    text += ", no difference";
  } else {
    text = std::to_string(sum) + " of " + text + (sum == 1 ? " differs" : " differ");
    const char* before = ": ";
    constexpr std::array kWhere = {" changed", " only in A", " only in B"};
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (found[i] == 0) continue;
      text += std::exchange(before, ", ") + std::to_string(found[i]) + kWhere[i];
    }
  }
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", text.c_str());
}

// The pairs of all names in A or B, in the order `is_less` of names.
template <class Less>
std::vector<Pair> pairs_of(const Checkpoint& a, const Checkpoint& b, Less is_less) {
  const auto sorted = [&](const Checkpoint& checkpoint) {
    std::vector<std::uint32_t> numbers = checkpoint.match({});
    std::ranges::sort(numbers, is_less, [&](std::uint32_t n) { return checkpoint.name(n); });
    return numbers;
  };
  const std::vector<std::uint32_t> in_a = sorted(a);
  const std::vector<std::uint32_t> in_b = sorted(b);
  std::vector<Pair> pairs;
  for (std::size_t i = 0, j = 0; i < in_a.size() || j < in_b.size();) {
    const bool a_first =
        j == in_b.size() || (i < in_a.size() && !is_less(b.name(in_b[j]), a.name(in_a[i])));
    const bool b_first =
        i == in_a.size() || (j < in_b.size() && !is_less(a.name(in_a[i]), b.name(in_b[j])));
    Pair pair;
    if (a_first) pair.a = a.tensor(in_a[i++]);
    if (b_first) pair.b = b.tensor(in_b[j++]);
    if (a_first && b_first) {
      pair.is_of_one_format = a.part_of(in_a[i - 1]).format == b.part_of(in_b[j - 1]).format;
    }
    pairs.push_back(pair);
  }
  return pairs;
}

}  // namespace

int stats(const Arguments& arguments) {
  StatsRows rows(arguments);
  const std::size_t jobs = arguments.threads();
  return for_selected(
      arguments,
      [&](std::size_t position, const Tensor& tensor, const std::atomic<bool>& stop,
          const Progress& progress) {
        ValueStats values;
        // The last tensors share the threads that find no other one.
        const std::size_t left = std::clamp<std::size_t>(rows.tensors() - position, 1, jobs);
        const auto threads = static_cast<unsigned>(jobs / left);
        if (const int error =
                value_stats(tensor.content(), tensor.dtype, {stop, progress, threads}, values)) {
          fail(tensor, error);
        }
        return rows.line(position, tensor, values);
      },
      &rows);
}

int hash(const Arguments& arguments) {
  const bool for_people = ::isatty(STDOUT_FILENO) == 1;
  return for_selected(arguments, [&](std::size_t, const Tensor& tensor,
                                     const std::atomic<bool>& stop, const Progress& progress) {
    std::string hex;
    if (const int error = sha256(tensor.content(), stop, hex, progress)) fail(tensor, error);
    if (!arguments.json) {
      if (for_people) return hex + "  " + printable(tensor.path);
      std::string line = sha256sum_line(hex, tensor.path);
      line.pop_back();  // the line end
      return line;
    }
    return json_line({{"name", tensor.name}, {"path", tensor.path}, {"sha256", hex}});
  });
}

int diff(const Arguments& arguments) {
  VerbSources sources(arguments);
  const Checkpoint a(std::span(&arguments.source, 1),
                     load_options(arguments, sources, arguments.old_layers));
  const Checkpoint b(std::span(&arguments.other, 1),
                     load_options(arguments, sources, arguments.new_layers));
  const bool for_people = !arguments.json && ::isatty(STDOUT_FILENO) == 1;
  const std::vector<Pair> pairs = for_people ? pairs_of(a, b,
                                                        [](std::string_view x, std::string_view y) {
                                                          return std::is_lt(natural_order(x, y));
                                                        })
                                             : pairs_of(a, b, std::less<std::string_view>());
  std::uint64_t bytes = 0;
  for (const Pair& pair : pairs) bytes += pair.a && pair.b ? pair.a->length : 0;

  const DiffRows rows(arguments, pairs);
  std::array<std::atomic<std::size_t>, 3> found = {};  // changed, only in A, only in B
  ProgressBar bar(bytes);
  Lines out(arguments.json, bar, rows.heading());
  add_in_order(out, pairs.size(), arguments.threads(),
               [&](std::size_t i, const std::atomic<bool>& stop) -> std::string {
                 const Pair& pair = pairs[i];
                 // Counts bytes that are read twice once.
                 std::uint64_t position = 0, counted = 0;
                 const auto progress = [&](std::uint64_t n) {
                   position += n;
                   if (position > counted) bar.add(position - std::exchange(counted, position));
                 };
                 std::optional<PairDifference> difference = difference_of_headers(pair);
                 if (!difference) {
                   const auto at = first_difference_of(*pair.a, *pair.b, {stop, progress});
                   if (!at) return "";
                   difference = PairDifference{"bytes", "", "", *at};
                   position = 0;
                 }
                 if (is_compared_by_value(pair, arguments.values)) {
                   difference->values = value_difference(*pair.a, *pair.b, stop, progress);
                   const bool is_equal = largest_of(*difference->values) == 0;
                   if (stop || (is_equal && !pair.is_of_one_format)) return "";
                 }
                 ++found[!pair.b ? 1 : !pair.a ? 2 : 0];
                 return rows.line(pair, *difference);
               });
  bar.end();
  out.end();
  if (!arguments.json) summarize(pairs.size(), {found[0], found[1], found[2]});
  return found[0] + found[1] + found[2] > 0 ? 1 : 0;
}

}  // namespace stfs
