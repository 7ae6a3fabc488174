// The paths of many tensors as a tree of directories.
//
// Nothing is stored per node: the tensors are sorted by path, a directory is the range of those
// that share its prefix, and what a directory holds is read off that range. Memory is 4 bytes a
// tensor, 16 bytes a directory, and the paths of those tensors whose path differs from their name.
//
// Immutable and safe to share between threads. The names must outlive the tree.
#pragma once

#include "core/base/error.h"
#include "core/checkpoint/names.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs {

class PathTree {
 public:
  using NameOf = std::function<std::string_view(std::uint32_t)>;

  // `by_name` holds the numbers of the tensors in the bytewise order of their names, which are all
  // different; `all_plain` says that is_plain_name() holds for each, which saves looking again.
  // Throws kPathCollision when two shortened paths are equal.
  PathTree(NameOf name_of, std::vector<std::uint32_t> by_name, bool all_plain = false);

  // The tree view: `.` makes directories too. Of names whose paths would then be the same, those
  // with a `.` have it written as %2E.
  static PathTree with_dots(NameOf name_of, std::uint32_t count);

  static constexpr std::uint32_t kRoot = 0;  // the number of the root directory

  std::size_t directory_count() const { return directories_.size(); }

  // The path of a tensor, relative to the root, without a leading slash.
  std::string_view path(std::uint32_t tensor) const;

  // The tensor with this path.
  std::optional<std::uint32_t> find(std::string_view path) const;

  // The path of a directory with its closing slash; "" for the root.
  std::string_view directory_path(std::uint32_t directory) const;
  std::uint32_t parent(std::uint32_t directory) const { return directories_[directory].parent; }

  struct Entry {
    bool is_directory;
    std::uint32_t number;        // of the tensor, or of the directory
    std::string_view component;  // its name in its directory
  };

  // The entry called `component` in a directory.
  std::optional<Entry> lookup(std::uint32_t directory, std::string_view component) const;

  // Listing: begin at cursor 0 and pass on what `next` was set to; none at the end. A cursor is
  // good for ever, so that a listing can be resumed anywhere and by several readers at once.
  // Entries come in the bytewise order of their paths.
  std::optional<Entry> list(std::uint32_t directory, std::uint64_t cursor,
                            std::uint64_t& next) const;

 private:
  struct Directory {
    std::uint32_t first, last;    // [first, last) in order_
    std::uint32_t prefix_length;  // of its path, with the closing slash
    std::uint32_t parent;
  };
  struct EncodedName {  // the path of a tensor whose path is not its name
    std::uint64_t begin;
    std::uint32_t length;
    std::uint32_t tensor;
  };

  explicit PathTree(NameOf name_of) : name_of_(std::move(name_of)) {}

  void encode_names(const std::vector<std::uint32_t>& by_name);
  void encode_dotted_names(std::uint32_t count);
  void keep(std::uint32_t tensor, const EncodedPath& path);
  void build_directories();
  void refuse_collisions() const;
  std::uint32_t lower_bound(const Directory& within, std::string_view path) const;
  std::uint32_t directory_at(std::uint32_t first, std::size_t prefix_length) const;

  NameOf name_of_;
  std::vector<std::uint32_t> order_;  // tensors by path
  std::vector<EncodedName> encoded_;  // by tensor
  std::string arena_;                 // their paths
  bool any_special_ = false;          // some name may be encoded, or have a directory in it
  bool may_collide_ = false;
  std::vector<Directory> directories_;  // in pre-order, so sorted by (first, prefix_length)
};

}  // namespace stfs
