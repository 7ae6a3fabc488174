// Sorting many strings that share long beginnings, as the names of tensors do.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

namespace stfs {
namespace detail {

// A string's number, and eight of its bytes as a number that sorts as the bytes do.
struct SortKey {
  std::uint64_t chunk;
  std::uint32_t index;
};

// The bytes [depth, depth+8) of `text`, big-endian, zero-padded.
inline std::uint64_t chunk_at(std::string_view text, std::size_t depth) {
  if (depth >= text.size()) return 0;
  std::uint64_t chunk = 0;
  std::memcpy(&chunk, text.data() + depth, std::min<std::size_t>(8, text.size() - depth));
  if constexpr (std::endian::native == std::endian::little) chunk = __builtin_bswap64(chunk);
  return chunk;
}

// Sorts a few keys by the bytes of their texts from `depth` on; quick when they are in order.
template <class TextOf>
void insertion_sort(std::span<SortKey> keys, const TextOf& text_of, std::size_t depth) {
  for (std::size_t i = 1; i < keys.size(); ++i) {
    const SortKey key = keys[i];
    const std::string_view text = text_of(key.index).substr(depth);
    std::size_t to = i;
    for (; to > 0 && text < text_of(keys[to - 1].index).substr(depth); --to)
      keys[to] = keys[to - 1];
    keys[to] = key;
  }
}

}  // namespace detail

// The numbers 0..count-1 in the bytewise order of text_of(number), a std::string_view; equal texts
// in the order of their numbers. Eight bytes of every text are compared at a time, so that long
// common beginnings are passed over once and not at every comparison. Recursion is by a worklist:
// the depth of the stack does not depend on the texts.
template <class TextOf>
std::vector<std::uint32_t> sorted_order(std::size_t count, const TextOf& text_of) {
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0U);
  const auto before = [&](std::uint32_t a, std::uint32_t b) { return text_of(a) < text_of(b); };
  if (std::ranges::is_sorted(order, before)) return order;

  constexpr std::size_t kSmall = 16;  // below this, comparing whole texts is as fast
  std::vector<detail::SortKey> keys(count);
  for (std::uint32_t i = 0; i < count; ++i) keys[i].index = i;
  struct Range {
    std::size_t begin, end, depth;
  };
  std::vector<Range> work{{0, count, 0}};
  while (!work.empty()) {
    const Range range = work.back();
    work.pop_back();
    const std::span part = std::span(keys).subspan(range.begin, range.end - range.begin);
    if (part.size() <= kSmall) {
      detail::insertion_sort(part, text_of, range.depth);
      continue;
    }
    bool is_equal = true;
    bool is_sorted = true;
    bool any_ended = false;
    for (std::size_t i = 0; i < part.size(); ++i) {
      const std::string_view text = text_of(part[i].index);
      part[i].chunk = detail::chunk_at(text, range.depth);
      any_ended = any_ended || text.size() <= range.depth + 8;
      if (i == 0) continue;
      is_equal = is_equal && part[i].chunk == part[i - 1].chunk;
      is_sorted = is_sorted && part[i].chunk >= part[i - 1].chunk;
    }
    if (is_equal && !any_ended) {  // a common beginning goes on
      work.push_back({range.begin, range.end, range.depth + 8});
      continue;
    }
    if (!is_sorted) std::ranges::stable_sort(part, {}, &detail::SortKey::chunk);
    // Texts that end inside the chunk are zero-padded, so "a" and "a\0" share a chunk. Within a
    // chunk the ended ones come first, shorter before longer.
    const auto size_of = [&](const detail::SortKey& key) { return text_of(key.index).size(); };
    for (std::size_t begin = 0; begin < part.size();) {
      std::size_t end = begin + 1;
      while (end < part.size() && part[end].chunk == part[begin].chunk) ++end;
      const auto same = part.subspan(begin, end - begin);
      std::size_t ended = 0;
      if (any_ended && same.size() > 1) {
        const auto rest = std::stable_partition(same.begin(), same.end(), [&](const auto& key) {
          return size_of(key) <= range.depth + 8;
        });
        ended = static_cast<std::size_t>(rest - same.begin());
        std::ranges::stable_sort(same.first(ended), {}, size_of);
      }
      if (same.size() - ended > 1) {
        work.push_back({range.begin + begin + ended, range.begin + end, range.depth + 8});
      }
      begin = end;
    }
  }
  std::ranges::transform(keys, order.begin(), &detail::SortKey::index);
  return order;
}

}  // namespace stfs
