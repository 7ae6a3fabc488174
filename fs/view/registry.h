// The table of views: all that a mount has stands in it, in the order in which `.stfs` lists it.
#pragma once

#include "fs/view/view.h"

#include <array>
#include <span>
#include <string_view>
#include <vector>

namespace stfs {

std::span<const ViewSpec> all_views();

// Finds rows. Immutable and safe to share between threads; the rows outlive it.
class Registry {
 public:
  explicit Registry(std::span<const ViewSpec> rows);

  std::span<const ViewSpec> rows() const { return rows_; }
  // The view that a node is in, or the file of `.stfs` that it is; null when there is none.
  const ViewSpec* find(Node node) const;
  // What `.stfs` has under a name, or null.
  const ViewSpec* find(std::string_view name) const;

 private:
  std::span<const ViewSpec> rows_;
  std::array<const ViewSpec*, 256> by_view_{};
  std::vector<const ViewSpec*> files_;  // by their numbers
};

}  // namespace stfs
