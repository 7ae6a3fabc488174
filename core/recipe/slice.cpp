#include "core/recipe/slice.h"

#include "core/base/text.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

namespace stfs {
namespace {

using Wide = __int128;  // holds both a dimension (u64) and an index (i64)

struct Item {
  enum class Kind { kIndex, kRange, kEllipsis } kind = Kind::kIndex;
  Wide index = 0;
  std::optional<Wide> start, stop, step;
};

// Larger than any dimension. Larger bounds are replaced by it, which does not change their meaning.
constexpr Wide kFar = Wide{1} << 65;

// Removes an integer from the front of `text`. Returns nullopt if `text` does not begin with one.
std::optional<Wide> take_integer(std::string_view& text) {
  std::size_t i = 0;
  const bool negative = !text.empty() && text[0] == '-';
  if (negative || (!text.empty() && text[0] == '+')) ++i;
  const std::size_t first = i;
  Wide value = 0;
  for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) {
    value = std::min(kFar, value * 10 + (text[i] - '0'));
  }
  if (i == first) return std::nullopt;
  text.remove_prefix(i);
  return negative ? -value : value;
}

bool parse_item(std::string_view text, Item& item) {
  if (text == "...") {
    item.kind = Item::Kind::kEllipsis;
    return true;
  }
  const std::optional<Wide> first = take_integer(text);
  if (text.empty()) {
    if (!first) return false;
    item.index = *first;
    return true;
  }
  item.kind = Item::Kind::kRange;
  item.start = first;
  if (text[0] != ':') return false;
  text.remove_prefix(1);
  item.stop = take_integer(text);
  if (text.empty()) return true;
  if (text[0] != ':') return false;
  text.remove_prefix(1);
  item.step = take_integer(text);
  return text.empty() && (!item.step || *item.step > 0);
}

bool parse_items(std::string_view expression, std::vector<Item>& items) {
  if (expression.empty()) return false;
  bool has_ellipsis = false;
  while (!expression.empty()) {
    if (items.size() > kSliceMaxRank) return false;  // allows kSliceMaxRank items and one `...`
    const std::size_t comma = expression.find(',');
    Item& item = items.emplace_back();
    if (!parse_item(expression.substr(0, comma), item)) return false;
    if (item.kind == Item::Kind::kEllipsis && std::exchange(has_ellipsis, true)) return false;
    if (comma == std::string_view::npos) break;
    expression.remove_prefix(comma + 1);
  }
  return true;
}

// Applies an item to a dimension, with NumPy's rules for negative and too large bounds. Returns 0
// or ERANGE.
int resolve(const Item& item, std::uint64_t dimension, Range& range) {
  const Wide size = dimension;
  if (item.kind == Item::Kind::kIndex) {
    const Wide index = item.index < 0 ? item.index + size : item.index;
    if (index < 0 || index >= size) return ERANGE;
    range = {static_cast<std::uint64_t>(index), 1, 1, false};
    return 0;
  }
  const auto clamp = [&](const std::optional<Wide>& bound, Wide otherwise) {
    if (!bound) return otherwise;
    return std::clamp<Wide>(*bound < 0 ? *bound + size : *bound, 0, size);
  };
  const Wide start = clamp(item.start, 0);
  const Wide stop = clamp(item.stop, size);
  // Every step larger than the dimension selects only the first element.
  const Wide step = std::clamp<Wide>(item.step.value_or(1), 1, std::max<Wide>(size, 1));
  const Wide count = start < stop ? (stop - start + step - 1) / step : 0;
  range = {static_cast<std::uint64_t>(start), static_cast<std::uint64_t>(count),
           static_cast<std::uint64_t>(step), true};
  return 0;
}

// Gathers the runs of a slice. A pass of the innermost loop is a row. If the gaps between runs are
// less than a page, the runs are read together with the gaps.
class Gather : public Producer {
 public:
  Gather(const Slice& slice, Content whole)
      : whole_(std::move(whole)), slice_(slice), run_(slice.run), inner_(slice.inner()) {}

  std::uint64_t size() const override { return slice_.size(); }

  int verify() const override { return whole_.verify(); }

  void missing(std::uint64_t offset, std::uint64_t length,
               std::vector<Extent>& missing) const override {
    const std::uint64_t row = inner_.count * run_;
    while (length > 0) {
      // First ask for all runs of the row as one range, because local sources miss nothing.
      const std::uint64_t take = std::min(length, row - offset % row);
      const std::uint64_t first = offset % row / run_;
      const std::uint64_t last = (offset % row + take - 1) / run_;
      const std::uint64_t skip = offset % row % run_;  // unwanted bytes of the first run
      const std::uint64_t end = (offset % row + take - 1) % run_ + 1;  // end in the last run
      const std::uint64_t pass = slice_.pass_begin(offset / row);
      const std::uint64_t begin = pass + first * inner_.stride + skip;
      std::vector<Extent> found = whole_.missing(begin, pass + last * inner_.stride + end - begin);
      // Ask for each run only if the gaps are at least as large as a block of the cache. With
      // smaller gaps, every block contains a part of some run.
      if (!found.empty() && inner_.stride - run_ >= Source::kFetchUnit) {
        found.clear();
        for (std::uint64_t i = first; i <= last; ++i) {
          const std::uint64_t from = i == first ? skip : 0;
          const std::uint64_t to = i == last ? end : run_;
          const auto part = whole_.missing(pass + i * inner_.stride + from, to - from);
          found.insert(found.end(), part.begin(), part.end());
        }
      }
      missing.insert(missing.end(), found.begin(), found.end());
      offset += take;
      length -= take;
    }
  }

  int produce(std::uint64_t offset, std::span<std::byte> out) const override {
    std::vector<std::byte> window;
    const std::uint64_t row = inner_.count * run_;  // bytes
    const bool is_dense = inner_.stride - run_ < kPage;
    while (!out.empty()) {
      const std::uint64_t row_begin = slice_.pass_begin(offset / row);
      const std::uint64_t in_row = offset % row;
      const std::uint64_t first_run = in_row / run_;
      const std::uint64_t skip = in_row % run_;
      int error = 0;
      std::size_t filled = 0;
      if (is_dense) {
        error = gather_dense(row_begin, first_run, skip, out, window, filled);
      } else {
        filled = static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), run_ - skip));
        error =
            whole_.copy_unverified(row_begin + first_run * inner_.stride + skip, out.first(filled));
      }
      if (error != 0) return error;
      out = out.subspan(filled);
      offset += filled;
    }
    return 0;
  }

 private:
  static constexpr std::uint64_t kPage = 4096;
  static constexpr std::uint64_t kWindow = 256 << 10;  // bytes read at a time

  // Reads runs of one row and the gaps between them into `window`, and copies the runs to the front
  // of `out`. Sets `filled` to the bytes copied.
  int gather_dense(std::uint64_t row_begin, std::uint64_t first_run, std::uint64_t skip,
                   std::span<std::byte> out, std::vector<std::byte>& window,
                   std::size_t& filled) const {
    const std::uint64_t wanted = (skip + out.size() + run_ - 1) / run_;
    const std::uint64_t in_window = std::max<std::uint64_t>(1, kWindow / inner_.stride);
    const std::uint64_t runs = std::min({wanted, in_window, inner_.count - first_run});
    const std::uint64_t last = std::min<std::uint64_t>(run_, skip + out.size() - (runs - 1) * run_);
    window.resize(static_cast<std::size_t>((runs - 1) * inner_.stride + last - skip));
    const std::uint64_t from_byte = row_begin + first_run * inner_.stride + skip;
    if (const int error = whole_.copy_unverified(from_byte, window)) return error;
    const std::byte* from = window.data();
    std::byte* to = out.data();
    for (std::uint64_t i = 0; i < runs; ++i) {
      const std::uint64_t begin = i == 0 ? skip : 0;
      const std::uint64_t end = i + 1 == runs ? last : run_;
      std::memcpy(to, from + (i * inner_.stride + begin - skip), end - begin);
      to += end - begin;
    }
    filled = static_cast<std::size_t>(to - out.data());
    return 0;
  }

  Content whole_;
  Slice slice_;
  std::uint64_t run_;  // bytes
  Slice::Loop inner_;
};

}  // namespace

Slice::Loop Slice::inner() const { return loops.empty() ? Loop{1, run} : loops.back(); }

std::uint64_t Slice::pass_begin(std::uint64_t pass) const {
  std::uint64_t at = begin;
  for (std::size_t i = loops.empty() ? 0 : loops.size() - 1; i-- > 0;) {
    at += pass % loops[i].count * loops[i].stride;
    pass /= loops[i].count;
  }
  return at;
}

std::uint64_t Slice::size() const {
  std::uint64_t size = run;
  for (const Loop& loop : loops) size *= loop.count;  // no overflow: at most the tensor's size
  return size;
}

int parse_ranges(std::string_view expression, std::span<const std::uint64_t> shape,
                 std::vector<Range>& ranges) {
  std::vector<Item> items;
  if (shape.size() > kSliceMaxRank || !parse_items(expression, items)) return EINVAL;
  const bool has_ellipsis =
      std::ranges::find(items, Item::Kind::kEllipsis, &Item::kind) != items.end();
  const std::size_t named = items.size() - (has_ellipsis ? 1 : 0);
  if (named > shape.size()) return EINVAL;
  Item whole;
  whole.kind = Item::Kind::kRange;
  const auto ellipsis = std::ranges::find(items, Item::Kind::kEllipsis, &Item::kind);
  const auto at = ellipsis == items.end() ? items.end() : items.erase(ellipsis);
  items.insert(at, shape.size() - named, whole);

  ranges.resize(shape.size());
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (const int error = resolve(items[i], shape[i], ranges[i])) return error;
  }
  return 0;
}

std::string canonical_expression(std::span<const Range> ranges,
                                 std::span<const std::uint64_t> shape) {
  std::string text;
  bool is_whole = true;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const auto& [start, count, step, keeps_dimension] = ranges[i];
    if (i > 0) text += ',';
    if (!keeps_dimension) {
      text += std::to_string(start);
    } else if (count == shape[i] && (step == 1 || count <= 1)) {
      text += ':';
      continue;
    } else if (count == 0) {
      text += "0:0";
    } else {
      text += std::to_string(start) + ":" + std::to_string(start + (count - 1) * step + 1);
      if (count > 1 && step > 1) text += ":" + std::to_string(step);
    }
    is_whole = false;
  }
  return is_whole ? "" : text;
}

int parse_slice(std::string_view expression, DType dtype, std::span<const std::uint64_t> shape,
                Slice& slice) {
  std::vector<Range> ranges;
  if (const int error = parse_ranges(expression, shape, ranges)) return error;
  return slice_of(ranges, type_info(dtype), shape, slice);
}

std::string slice_refusal(std::string_view expression, DType dtype,
                          std::span<const std::uint64_t> shape) {
  std::vector<Range> ranges;
  const int error = parse_ranges(expression, shape, ranges);
  if (error == ERANGE) return "index out of bounds (the shape is " + shape_json(shape) + ")";
  if (error != 0) {
    return "not a slice of this tensor (its shape is " + shape_json(shape) + "; " +
           std::string(kSliceRule) + ")";
  }
  Slice slice;
  const TypeInfo& type = type_info(dtype);
  if (slice_of(ranges, type, shape, slice) == 0) return "";
  return "begins or ends inside a block of " + std::to_string(type.block_elements) + " elements";
}

std::string stored_slice_refusal(std::string_view expression, DType dtype,
                                 std::span<const std::uint64_t> shape) {
  const std::string rule = slice_refusal(expression, dtype, shape);
  const bool is_cut = !rule.empty() && slice_refusal(expression, DType::kF32, shape).empty();
  return is_cut ? rule + " (with f32, any part is possible)" : rule;
}

Slice elements_of(std::span<const Range> ranges, std::span<const std::uint64_t> shape) {
  Slice slice;
  bool is_empty = false;
  for (const Range& range : ranges) {
    if (range.keeps_dimension) slice.shape.push_back(range.count);
    is_empty = is_empty || range.count == 0;
  }
  if (is_empty) return slice;

  // Go from the innermost dimension outwards. If the stride of a dimension equals the extent of the
  // run, or of the loop inside it, the dimension extends this run or loop. Any other dimension
  // becomes a loop.
  std::uint64_t dimension_stride = 1;
  slice.run = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    const Range& dimension = ranges[i];
    const std::uint64_t stride = dimension_stride * dimension.step;
    slice.begin += dimension_stride * dimension.start;
    dimension_stride *= shape[i];
    if (dimension.count == 1) continue;
    if (slice.loops.empty() && stride == slice.run) {
      slice.run *= dimension.count;
    } else if (!slice.loops.empty() &&
               stride == slice.loops.back().count * slice.loops.back().stride) {
      slice.loops.back().count *= dimension.count;
    } else {
      slice.loops.push_back({dimension.count, stride});
    }
  }
  std::ranges::reverse(slice.loops);
  return slice;
}

int slice_of(std::span<const Range> ranges, const TypeInfo& info,
             std::span<const std::uint64_t> shape, Slice& slice) {
  slice = elements_of(ranges, shape);
  bool is_whole_blocks = true;
  const auto to_bytes = [&](std::uint64_t& elements) {
    is_whole_blocks = is_whole_blocks && elements % info.block_elements == 0;
    elements = info.offset_of(elements);
  };
  to_bytes(slice.begin);
  to_bytes(slice.run);
  for (Slice::Loop& loop : slice.loops) to_bytes(loop.stride);
  return is_whole_blocks ? 0 : EINVAL;
}

Content slice_content(const Slice& slice, Content whole) {
  Content content;
  const std::optional<Extent> extent = whole.extent();
  if (slice.loops.empty() && (extent || slice.run == 0)) {
    if (extent) content.extent(*extent->source, extent->offset + slice.begin, slice.run);
  } else {
    content.production(std::make_unique<Gather>(slice, std::move(whole)));
  }
  return content;
}

}  // namespace stfs
