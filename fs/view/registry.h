// The table of views: one row for each directory or file of `.stfs`, in the order in which they are
// listed, and one row for the root.
#pragma once

#include "fs/view/view.h"

#include <array>
#include <span>
#include <string_view>
#include <vector>

namespace stfs {

// Returns all rows.
std::span<const ViewSpec> all_views();

// Finds rows. Immutable, so any thread may use it. The rows must outlive it.
class Registry {
 public:
  explicit Registry(std::span<const ViewSpec> rows);

  std::span<const ViewSpec> rows() const { return rows_; }
  // Returns the row of a node: of its view, or of the file of `.stfs`. Null for `.stfs` itself and
  // for unknown nodes.
  const ViewSpec* find(Node node) const;
  // Returns the row with this name in `.stfs`, or null.
  const ViewSpec* find(std::string_view name) const;

 private:
  std::span<const ViewSpec> rows_;
  std::array<const ViewSpec*, 256> by_view_{};
  std::vector<const ViewSpec*> files_;  // the index is ViewSpec::file
};

}  // namespace stfs
