// Sorts many strings with long common prefixes, such as the names of tensors.
//
// Thread safety: sorted_order() may be called from any thread; it starts threads of its own.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <future>
#include <numeric>
#include <span>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace stfs {
namespace detail {

// A text, its number, and eight of its bytes as an integer that sorts like the bytes.
struct SortKey {
  std::uint64_t chunk;
  const char* data;
  std::uint32_t size;
  std::uint32_t index;

  std::string_view text() const { return {data, size}; }
};

// Returns the bytes [depth, depth+8) of `text` as a big-endian integer, zero-padded at the end.
inline std::uint64_t chunk_at(std::string_view text, std::size_t depth) {
  if (depth >= text.size()) return 0;
  std::uint64_t chunk = 0;
  std::memcpy(&chunk, text.data() + depth, std::min<std::size_t>(8, text.size() - depth));
  if constexpr (std::endian::native == std::endian::little) chunk = __builtin_bswap64(chunk);
  return chunk;
}

// Sorts a few keys by their texts from byte `depth` on. Returns true if two texts are equal.
inline bool insertion_sort(std::span<SortKey> keys, std::size_t depth) {
  bool any_equal = false;
  for (std::size_t i = 1; i < keys.size(); ++i) {
    const SortKey key = keys[i];
    const std::string_view text = key.text().substr(depth);
    std::size_t slot = i;
    for (; slot > 0; --slot) {
      const int order = text.compare(keys[slot - 1].text().substr(depth));
      any_equal = any_equal || order == 0;
      if (order >= 0) break;
      keys[slot] = keys[slot - 1];
    }
    keys[slot] = key;
  }
  return any_equal;
}

// A radix sort by chunks of eight bytes, most significant first (MSD).
class KeySorter {
 public:
  struct Range {
    std::size_t begin, end, depth;  // the texts share their first `depth` bytes
  };

  explicit KeySorter(std::span<SortKey> keys) : keys_(keys) {}

  // Sorts a range by the eight bytes at its depth and adds the ranges that are still unsorted to
  // `work`. Sorts a small range completely.
  void split(Range range, std::vector<Range>& work);
  bool any_equal() const { return any_equal_; }

 private:
  std::span<SortKey> keys_;
  bool any_equal_ = false;
};

inline void KeySorter::split(Range range, std::vector<Range>& work) {
  constexpr std::size_t kSmall = 16;  // up to this many texts, comparing them whole is as fast
  const std::span part = keys_.subspan(range.begin, range.end - range.begin);
  if (part.size() <= kSmall) {
    any_equal_ = insertion_sort(part, range.depth) || any_equal_;
    return;
  }
  bool is_equal = true;
  bool is_sorted = true;
  bool any_ended = false;
  for (std::size_t i = 0; i < part.size(); ++i) {
    part[i].chunk = chunk_at(part[i].text(), range.depth);
    any_ended = any_ended || part[i].size <= range.depth + 8;
    if (i == 0) continue;
    is_equal = is_equal && part[i].chunk == part[i - 1].chunk;
    is_sorted = is_sorted && part[i].chunk >= part[i - 1].chunk;
  }
  if (is_equal && !any_ended) {  // the common prefix is at least eight bytes longer
    work.push_back({range.begin, range.end, range.depth + 8});
    return;
  }
  if (!is_sorted) std::ranges::stable_sort(part, {}, &SortKey::chunk);
  // A text that ends inside the chunk is zero-padded, so "a" and "a\0" have the same chunk. Among
  // keys with equal chunks, the texts that have ended come first, the shorter before the longer. If
  // two of these have the same length, they are equal texts.
  for (std::size_t begin = 0; begin < part.size();) {
    std::size_t end = begin + 1;
    while (end < part.size() && part[end].chunk == part[begin].chunk) ++end;
    const auto same = part.subspan(begin, end - begin);
    std::size_t ended = 0;
    if (any_ended && same.size() > 1) {
      const auto rest = std::stable_partition(
          same.begin(), same.end(), [&](const auto& key) { return key.size <= range.depth + 8; });
      ended = static_cast<std::size_t>(rest - same.begin());
      std::ranges::stable_sort(same.first(ended), {}, &SortKey::size);
      const auto equal = std::ranges::adjacent_find(same.first(ended), {}, &SortKey::size);
      any_equal_ = any_equal_ || equal != same.first(ended).end();
    }
    if (same.size() - ended > 1) {
      work.push_back({range.begin + begin + ended, range.begin + end, range.depth + 8});
    }
    begin = end;
  }
}

}  // namespace detail

struct SortedOrder {
  std::vector<std::uint32_t> order;
  bool any_equal = false;  // some texts are equal; they are neighbours in `order`
};

// Returns the numbers 0..count-1 in the bytewise order of text_of(number); equal texts are in the
// order of their numbers. text_of returns a std::string_view of less than 4 GiB that stays valid
// during the call. A common prefix is read once per text, not once per comparison. The depth of the
// stack does not depend on the texts.
template <class TextOf>
SortedOrder sorted_order(std::size_t count, const TextOf& text_of) {
  SortedOrder result;
  result.order.resize(count);
  std::iota(result.order.begin(), result.order.end(), 0U);
  bool all_sorted = true;
  for (std::uint32_t i = 1; i < count && all_sorted; ++i) {
    const int order = std::string_view(text_of(i - 1)).compare(text_of(i));
    all_sorted = order <= 0;
    result.any_equal = result.any_equal || order == 0;
  }
  if (all_sorted) return result;

  std::vector<detail::SortKey> keys(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::string_view text = text_of(i);
    keys[i] = {0, text.data(), static_cast<std::uint32_t>(text.size()), i};
  }

  // Split into enough parts to balance the threads; then each thread takes the next part.
  constexpr std::size_t kParts = 32;
  constexpr std::size_t kTextsPerThread = 1 << 16;
  std::vector<detail::KeySorter::Range> parts{{0, count, 0}};
  detail::KeySorter splitter(keys);
  for (std::size_t i = 0; i < parts.size() && parts.size() - i < kParts; ++i) {
    splitter.split(std::exchange(parts[i], {}), parts);
  }
  std::atomic<std::size_t> next = 0;
  const auto sort_parts = [&] {
    detail::KeySorter sorter(keys);
    std::vector<detail::KeySorter::Range> work;
    for (std::size_t i = 0; (i = next++) < parts.size();) {
      work.push_back(parts[i]);
      while (!work.empty()) {
        const detail::KeySorter::Range range = work.back();
        work.pop_back();
        sorter.split(range, work);
      }
    }
    return sorter.any_equal();
  };
  std::vector<std::future<bool>> others;
  const unsigned max_threads = std::min(std::thread::hardware_concurrency(), 4U);
  try {
    for (std::size_t i = 1; i < std::min<std::size_t>(max_threads, count / kTextsPerThread); ++i) {
      others.push_back(std::async(std::launch::async, sort_parts));
    }
  } catch (const std::system_error&) {
    // The system refuses more threads: sort with the threads that have started.
  }
  result.any_equal = sort_parts() || splitter.any_equal() || result.any_equal;
  for (std::future<bool>& other : others) result.any_equal = other.get() || result.any_equal;
  std::ranges::transform(keys, result.order.begin(), &detail::SortKey::index);
  return result;
}

}  // namespace stfs
