// The verb diff.
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/checkpoint/checkpoint.h"
#include "core/command/terminal.h"
#include "core/format/types.h"
#include "core/layer/quantised/quantised_layer.h"
#include "core/layer/quantised/schemes.h"
#include "core/opened/read_failure.h"
#include "core/values/compare.h"
#include "core/values/digest.h"
#include "tools/info/diff_rows.h"
#include "tools/info/lines.h"
#include "tools/info/select.h"
#include "tools/info/verbs.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <compare>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs {
namespace {

// Returns the first byte in which two tensors of equal size differ. Returns nullopt if all bytes
// are equal, and soon after `stop` has been set.
std::optional<std::uint64_t> first_difference_of(const Tensor& a, const Tensor& b,
                                                 const PassOptions& options) {
  const Comparison found = compare_tensors(a, b, CompareBy::kBytes, options);
  if (found.error != 0 && !options.stop)
    throw read_failure(found.is_in_before ? a : b, found.error);
  return found.first_byte;
}

// Returns true if the values can be compared, and the user asks for it or the dtypes or formats
// differ.
bool is_compared_by_value(const Pair& pair, bool wants_values) {
  if (!pair.a || !pair.b || !std::ranges::equal(pair.a->shape, pair.b->shape)) return false;
  if (pair.is_of_codes_and_values) return false;
  const TypeInfo& a = type_info(pair.a->dtype);
  const TypeInfo& b = type_info(pair.b->dtype);
  if (wants_values) return a.kind != TypeKind::kComplex && b.kind != TypeKind::kComplex;
  return (pair.a->dtype != pair.b->dtype || !pair.is_of_one_format) && a.to_f32 != nullptr &&
         b.to_f32 != nullptr;
}

ValueDifference value_difference(const Tensor& a, const Tensor& b, const std::atomic<bool>& stop,
                                 const Progress& progress) {
  const Comparison found = compare_tensors(a, b, CompareBy::kValues, {stop, progress});
  if (found.error != 0 && !stop) throw read_failure(found.is_in_before ? a : b, found.error);
  return found.values.value_or(ValueDifference{});
}

// Returns the pairs of all names in A or B, sorted by `is_less`.
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

// Joins pairs of tensors with different names in the two checkpoints, but the same bytes, dtype and
// shape. Examines a tensor only if its name is in one checkpoint and not in the other.
class Renames {
 public:
  // Joins tensors that are the same extent of the same file, and finds out which others must be
  // read.
  explicit Renames(std::vector<Pair>& pairs) : pairs_(pairs) {
    std::map<Form, std::array<std::vector<std::size_t>, 2>> forms;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const Pair& pair = pairs[i];
      if ((pair.a && pair.b) || tensor(i).elements() == 0) continue;
      const std::span shape = tensor(i).shape;
      forms[{tensor(i).dtype, {shape.begin(), shape.end()}}][pair.a ? 0 : 1].push_back(i);
    }
    for (const auto& [form, lone] : forms) {
      std::map<std::string, std::vector<std::size_t>> in_b;
      for (std::size_t n = lone[1].size(); n-- > 0;) {
        in_b[extent_key(lone[1][n])].push_back(lone[1][n]);
      }
      std::vector<std::size_t> left;
      for (const std::size_t i : lone[0]) {
        if (!join(i, in_b, extent_key(i))) left.push_back(i);
      }
      std::size_t of_b = 0;
      for (const std::size_t i : lone[1]) of_b += is_gone_.contains(i) ? 0 : 1;
      if (left.empty() || of_b == 0) continue;
      candidates_.insert(candidates_.end(), left.begin(), left.end());
      std::ranges::copy_if(lone[1], std::back_inserter(candidates_),
                           [this](std::size_t i) { return !is_gone_.contains(i); });
    }
  }

  std::uint64_t bytes() const {
    std::uint64_t bytes = 0;
    for (const std::size_t i : candidates_) bytes += tensor(i).length;
    return bytes;
  }

  // If several tensors have the same bytes, the first of A is joined with the first of B, in the
  // order of the pairs.
  void read(unsigned jobs, ProgressBar& bar) {
    std::vector<std::string> keys(candidates_.size());
    Lines none(false, bar);
    add_in_order(none, candidates_.size(), jobs,
                 [&](std::size_t i, const std::atomic<bool>& stop) -> std::string {
                   const Tensor& read = tensor(candidates_[i]);
                   std::string digest;
                   const auto progress = [&bar](std::uint64_t n) { bar.add(n); };
                   const int error = sha256(read.content(), stop, digest, progress);
                   if (error != 0 && !stop) throw read_failure(read, error);
                   keys[i] = std::string(dtype_name(read.dtype)) + shape_json(read.shape) + digest;
                   return "";
                 });
    std::map<std::string, std::vector<std::size_t>> in_b;
    for (std::size_t i = candidates_.size(); i-- > 0;) {
      if (pairs_[candidates_[i]].b) in_b[keys[i]].push_back(candidates_[i]);
    }
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      if (pairs_[candidates_[i]].a) join(candidates_[i], in_b, keys[i]);
    }
    std::size_t next = 0;
    std::erase_if(pairs_, [&](const Pair&) { return is_gone_.contains(next++); });
  }

 private:
  using Form = std::pair<DType, std::vector<std::uint64_t>>;

  const Tensor& tensor(std::size_t i) const { return pairs_[i].a ? *pairs_[i].a : *pairs_[i].b; }
  // Returns "" for a computed tensor.
  std::string extent_key(std::size_t i) const {
    const std::optional<Extent>& place = tensor(i).locator;
    return place ? std::to_string(place->offset) + " " + place->source->token() : "";
  }
  // `in_b` has the positions in B for each key, the last one first.
  bool join(std::size_t a, std::map<std::string, std::vector<std::size_t>>& in_b,
            const std::string& key) {
    const auto same = in_b.find(key);
    if (key.empty() || same == in_b.end() || same->second.empty()) return false;
    const std::size_t b = same->second.back();
    same->second.pop_back();
    pairs_[a].b = pairs_[b].b;
    return is_gone_.insert(b).second;
  }

  std::vector<Pair>& pairs_;
  std::set<std::size_t> is_gone_;        // the pairs with only B that were joined to a pair with A
  std::vector<std::size_t> candidates_;  // sorted by form, then tensors of A before tensors of B
};

// Marks pairs of codes and values. Their values are not compared, because the difference between
// codes and values means nothing.
void mark_codes(const Checkpoint& a, const Checkpoint& b, const Arguments& arguments,
                Sources& sources, std::span<Pair> pairs) {
  const bool codes_in_a = stored_codes(a.list(), sources).has_value();
  const bool codes_in_b = stored_codes(b.list(), sources).has_value();
  const char* const both = "--dequantize";
  if (codes_in_a && !arguments.json) {
    print_note(public_name(arguments.source),
               stored_codes_text(a, sources, codes_in_b ? both : "--old-dequantize"));
  }
  if (codes_in_b && !arguments.json) {
    print_note(public_name(arguments.other),
               stored_codes_text(b, sources, codes_in_a ? both : "--new-dequantize"));
  }
  for (Pair& pair : pairs) {
    if (!pair.a || !pair.b || pair.a->dtype == pair.b->dtype) continue;
    pair.is_of_codes_and_values = (codes_in_a && may_hold_codes(pair.a->dtype)) ||
                                  (codes_in_b && may_hold_codes(pair.b->dtype));
  }
}

}  // namespace

int diff(const Arguments& arguments) {
  VerbSources sources(arguments);
  const Checkpoint a(std::span(&arguments.source, 1),
                     load_options(arguments, sources, arguments.old_layers));
  const Checkpoint b(std::span(&arguments.other, 1),
                     load_options(arguments, sources, arguments.new_layers));
  const bool for_people = !arguments.json && ::isatty(STDOUT_FILENO) == 1;
  std::vector<Pair> pairs = for_people ? pairs_of(a, b,
                                                  [](std::string_view x, std::string_view y) {
                                                    return std::is_lt(natural_order(x, y));
                                                  })
                                       : pairs_of(a, b, std::less<std::string_view>());
  mark_codes(a, b, arguments, sources, pairs);
  std::uint64_t bytes = 0;
  for (const Pair& pair : pairs) bytes += pair.a && pair.b ? pair.a->length : 0;
  Renames renames(pairs);
  ProgressBar bar(bytes + renames.bytes());
  renames.read(arguments.threads(), bar);

  DiffRows rows(arguments, pairs, is_compared_by_value);
  Lines out(arguments.json, bar, rows.heading());
  add_in_order(out, pairs.size(), arguments.threads(),
               [&](std::size_t i, const std::atomic<bool>& stop) -> std::string {
                 const Pair& pair = pairs[i];
                 // Counts bytes that are read twice only once.
                 std::uint64_t position = 0, counted = 0;
                 const auto progress = [&](std::uint64_t n) {
                   position += n;
                   if (position > counted) bar.add(position - std::exchange(counted, position));
                 };
                 std::optional<PairDifference> difference = difference_of_headers(pair);
                 if (difference && difference->kind == "renamed") {
                   return rows.line(i, pair, *difference);
                 }
                 if (!difference) {
                   const auto at = first_difference_of(*pair.a, *pair.b, {stop, progress});
                   if (!at) {
                     rows.add_equal(pair);
                     return "";
                   }
                   difference = PairDifference{"bytes", "", "", *at};
                   position = 0;
                 }
                 if (is_compared_by_value(pair, arguments.values)) {
                   difference->values = value_difference(*pair.a, *pair.b, stop, progress);
                   const bool is_equal = largest_of(*difference->values) == 0;
                   if (stop) return "";
                   if (is_equal && !pair.is_of_one_format) {
                     rows.add_equal(pair);
                     return "";
                   }
                 }
                 return rows.line(i, pair, *difference);
               });
  bar.end();
  for (std::string& line : rows.sorted_lines()) out.add(std::move(line));
  out.end();
  rows.summarize();
  return rows.found_any() ? 1 : 0;
}

}  // namespace stfs
