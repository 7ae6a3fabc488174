// A pass over the bytes of a recipe, in blocks of fixed size and on several threads, and a sum of
// the blocks' results that does not depend on the threads.
//
// Thread safety: pass_over() may be called from any thread; one thread at a time may use an
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

// Called after each block with the number of its bytes, by any thread of a pass.
using Progress = std::function<void(std::uint64_t bytes)>;

struct PassOptions {
  const std::atomic<bool>& stop;  // if it is set, the pass soon ends with EINTR
  Progress progress = {};
  unsigned threads = 1;  // the maximum; a short recipe uses only the caller's thread
};

struct PassBlock {
  std::uint64_t index;
  std::span<const std::byte> bytes;  // block_bytes; fewer in the last block
  unsigned thread;                   // less than PassOptions::threads
};

// Calls `work` once for each block, on any thread and in any order. If bytes have to be fetched,
// reads the blocks in order. Returns 0, EINTR, ESTALE if a source has changed, or the errno of a
// read. The bytes that `work` has seen are valid only if the result is 0. Throws what `work`
// throws.
int pass_over(const Content& content, std::uint64_t block_bytes, const PassOptions& options,
              const std::function<void(const PassBlock&)>& work);

// Returns true if all bytes are on this machine.
bool is_here(const Content& content);

// Adds the results of blocks that arrive in any order, as a tree over their indices: first 0 and 1,
// 2 and 3, and so on, then these sums. So rounding is the same for every order, and each result is
// rounded only a few times. Keeps a few results for each block that is late. Sum::add(const Sum&)
// must add a right neighbour.
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

  // Call it after the last block. Among the parts without a sibling, a part with a higher level is
  // further left.
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
  std::map<std::pair<unsigned, std::uint64_t>, Sum> parts_;  // by level, and by index in the level
};

}  // namespace stfs
