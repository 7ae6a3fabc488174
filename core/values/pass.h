// One pass over the bytes of a recipe, in fixed blocks and on several threads; and a sum of the
// blocks' results that does not depend on the threads.
//
// Thread safety: pass_over() may be called from any thread; one thread at a time uses an
// OrderedSum.
#pragma once

#include "core/recipe/content.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <span>
#include <utility>

namespace stfs {

// Called after each chunk, with the number of bytes in it; by any thread of a pass.
using Progress = std::function<void(std::uint64_t bytes)>;

struct PassOptions {
  const std::atomic<bool>& stop;  // soon after it is set, the pass ends with EINTR
  Progress progress = {};
  unsigned threads = 1;  // at most; a short recipe has one, the caller's
};

struct PassBlock {
  std::uint64_t index;
  std::span<const std::byte> bytes;  // block_bytes, fewer in the last block
  unsigned thread;                   // less than PassOptions::threads
};

// Calls `work` for each block once, on any thread and in any order. Where bytes must be fetched,
// reads in order. Returns 0, EINTR, ESTALE when a source changed, or the errno of a read: only with
// 0 the work is of valid bytes. Throws what `work` throws.
int pass_over(const Content& content, std::uint64_t block_bytes, const PassOptions& options,
              const std::function<void(const PassBlock&)>& work);

// Whether all bytes are on this machine.
bool is_here(const Content& content);

// Adds up the results of blocks that come in any order, as a tree over their indices: first 0 and
// 1, 2 and 3, then the sums of these. So roundings are the same in every order, and few. Keeps a
// few results for each block that is late. Sum::add(const Sum&) adds a right neighbour.
template <class Sum>
class OrderedSum {
 public:
  void add(std::uint64_t index, Sum part) {
    for (unsigned level = 0;; ++level, index /= 2) {
      const auto sibling = parts_.find({level, index ^ 1});
      if (sibling == parts_.end()) {
        parts_.emplace(std::pair(level, index), std::move(part));
        return;
      }
      if (index % 2 == 1) std::swap(sibling->second, part);  // `part` is the left one
      part.add(sibling->second);
      parts_.erase(sibling);
    }
  }

  // After the last block. What has no sibling lies to the left, the higher its level.
  Sum result() const {
    if (parts_.empty()) return {};
    Sum sum = parts_.begin()->second;
    for (auto next = std::next(parts_.begin()); next != parts_.end(); ++next) {
      Sum left = next->second;
      left.add(sum);
      sum = std::move(left);
    }
    return sum;
  }

 private:
  std::map<std::pair<unsigned, std::uint64_t>, Sum> parts_;  // by level and index there
};

}  // namespace stfs
