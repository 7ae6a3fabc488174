// The recipe of a file while it is read, and a cache of the recipes of subsets.
#pragma once

#include "core/base/semaphore.h"
#include "core/recipe/content.h"

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

namespace stfs {

// The right to make a recipe that holds a long text. One thread at a time has it; any thread may
// release it.
struct SemaphoreReleaser {
  void operator()(Semaphore* turn) const { turn->release(); }
};
using Turn = std::unique_ptr<Semaphore, SemaphoreReleaser>;

// The recipe of a file while it is read: `permanent`, `cached` or `own`, the first of them that is
// set. It may be moved, and destroyed by any thread.
struct Recipe {
  Turn turn;                              // declared first, so that it is released last
  Content own;                            // made for this read
  std::shared_ptr<const Content> cached;  // from Recipes
  const Content* permanent = nullptr;     // kept as long as the mount

  const Content& content() const {
    if (permanent != nullptr) return *permanent;
    return cached ? *cached : own;
  }
};

// The reply to a read. Owns the memory that its pieces point to: the recipe, the pins, the buffers.
struct Reply {
  Recipe recipe;
  Reading reading;

  std::span<const iovec> pieces() const { return reading.pieces; }
};

// The recipes of the most recently read subsets. A recipe needs some bytes per tensor and takes
// long to make, and each READ request of the file needs it.
//
// Thread safety: all members may be called from any thread.
class Recipes {
 public:
  // Shared with the reads in flight: an evicted recipe lives until they end.
  using Shared = std::shared_ptr<const Content>;

  struct New {
    std::optional<Content> content;
    std::size_t tensors;
  };

  // Returns the recipe of the subset with this number; calls `make` if the recipe is not cached.
  // `make` runs for one subset at a time; cached recipes do not wait for it. Returns null if `make`
  // returns no content.
  Shared get(std::uint64_t number, const std::function<New()>& make);

  void drop(std::uint64_t number);  // does nothing if it is not cached

  // Limits of the cache; it always keeps the newest recipe.
  static constexpr std::size_t kMaxRecipes = 16;
  static constexpr std::size_t kMaxTensors = std::size_t{1} << 20;  // about 60 MB at most

 private:
  struct Entry {
    std::uint64_t number;
    std::size_t tensors;
    Shared recipe;
  };

  Shared find(std::uint64_t number);

  std::mutex making_;  // locked before mutex_
  std::mutex mutex_;
  std::list<Entry> entries_;  // the most recently used first
  std::size_t tensors_ = 0;
};

}  // namespace stfs
