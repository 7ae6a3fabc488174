// The table of views: one row for each directory or file of `.stfs`, in the order of its listing,
// and one for the root.
#pragma once

#include "fs/view/view.h"

#include <array>
#include <span>
#include <string_view>
#include <vector>

namespace stfs {

std::span<const ViewSpec> all_views();

// Finds rows. Immutable, so safe to share between threads. The rows must outlive it.
class Registry {
 public:
  explicit Registry(std::span<const ViewSpec> rows);

  std::span<const ViewSpec> rows() const { return rows_; }
  // The row of a node: its view, or the file of `.stfs`. Null for `.stfs` itself and unknown nodes.
  const ViewSpec* find(Node node) const;
  // The row with this name in `.stfs`, or null.
  const ViewSpec* find(std::string_view name) const;

 private:
  std::span<const ViewSpec> rows_;
  std::array<const ViewSpec*, 256> by_view_{};
  std::vector<const ViewSpec*> files_;  // by ViewSpec::file
};

}  // namespace stfs
