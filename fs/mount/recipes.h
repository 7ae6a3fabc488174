// The recipe of a file while it is read, and the recipes of the subsets that were read last.
#pragma once

#include "core/recipe/content.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <semaphore>

namespace stfs {

// Whoever has the turn may make a recipe that holds much text. Any thread may give it back.
struct GiveTurnBack {
  void operator()(std::binary_semaphore* turn) const { turn->release(); }
};
using Turn = std::unique_ptr<std::binary_semaphore, GiveTurnBack>;

// The recipe of a file and what must live while it is read. It may be moved, and end on any thread.
struct Recipe {
  Turn turn;                              // given back last
  Content own;                            // made for this reading,
  std::shared_ptr<const Content> shared;  // or kept by Recipes,
  const Content* lasting = nullptr;       // or kept as long as the mount

  const Content& content() const {
    if (lasting != nullptr) return *lasting;
    return shared ? *shared : own;
  }
};

// The recipes of the subsets that were read last. Such a recipe has some bytes for each tensor, and
// takes a while to make; a reader asks for it again with each piece that he reads.
//
// Thread safety: all members.
class Recipes {
 public:
  // Shared with those who are reading: a recipe that is thrown out here lives until they are done.
  using Shared = std::shared_ptr<const Content>;

  struct New {
    std::optional<Content> content;
    std::size_t tensors;
  };

  // The recipe of the subset with this number, which `make` makes if it is not kept. One is made at
  // a time, and those that are kept are given meanwhile. Null when `make` gives none.
  Shared get(std::uint64_t number, const std::function<New()>& make);

  void drop(std::uint64_t number);  // if it is kept

  // The newest is always kept, and others while they are no more than this.
  static constexpr std::size_t kMost = 16;
  static constexpr std::size_t kMostTensors = std::size_t{1} << 20;  // some 60 MB at most

 private:
  struct Kept {
    std::uint64_t number;
    std::size_t tensors;
    Shared recipe;
  };

  Shared find(std::uint64_t number);

  std::mutex making_;  // before mutex_
  std::mutex mutex_;
  std::list<Kept> kept_;  // the last that was asked for comes first
  std::size_t tensors_ = 0;
};

}  // namespace stfs
