// The recipes of the subsets that were read last. Such a recipe has some bytes for each tensor, and
// takes a while to make; a reader asks for it again with each piece that he reads.
//
// Thread safety: all members.
#pragma once

#include "core/recipe/content.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>

namespace stfs {

class Recipes {
 public:
  // Shared with those who are reading: a recipe that is thrown out here lives until they are done.
  using Recipe = std::shared_ptr<const Content>;

  struct Made {
    std::optional<Content> content;
    std::size_t tensors;
  };

  // The recipe of the subset with this number, which `make` makes if it is not kept. One is made at
  // a time, and those that are kept are given meanwhile. Null when `make` gives none.
  Recipe get(std::uint64_t number, const std::function<Made()>& make);

  void drop(std::uint64_t number);  // if it is kept

  // The newest is always kept, and others while they are no more than this.
  static constexpr std::size_t kMost = 16;
  static constexpr std::size_t kMostTensors = std::size_t{1} << 20;  // some 60 MB at most

 private:
  struct Kept {
    std::uint64_t number;
    std::size_t tensors;
    Recipe recipe;
  };

  Recipe find(std::uint64_t number);

  std::mutex making_;  // before mutex_
  std::mutex mutex_;
  std::list<Kept> kept_;  // the last that was asked for comes first
  std::size_t tensors_ = 0;
};

}  // namespace stfs
