// The directory tree of the tensors' paths.
//
// The tensors are sorted by path, so a directory is the range of tensors that share its prefix, and
// its entries are computed from the range. A PathTree takes 4 bytes per tensor, 16 bytes per
// directory, and 16 bytes plus the path for each tensor with a path that differs from its name.
//
// Thread safety: a PathTree is immutable once constructed; its members may be called from any
// thread. Lifetime: the names must outlive it. The string_views that it returns borrow from the
// names and from it.
#pragma once

#include "core/base/error.h"
#include "core/checkpoint/names.h"
#include "core/stored/tensor_list.h"

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
  using NameOf = std::function<std::string_view(std::uint32_t tensor)>;

  // `by_name` holds the numbers of all tensors in the bytewise order of their names, which must be
  // unique. Set `all_plain` only if is_plain_name() is true for every name. Throws Error
  // kPathCollision if two cut paths are equal.
  PathTree(NameOf name_of, std::vector<std::uint32_t> by_name, bool all_plain = false);

  // Returns the tree view of tensors 0 to count-1, in which a `.` separates directories too
  // (PathStyle::kDots). In names that would share a path, each `.` becomes %2E. Throws Error
  // kPathCollision.
  static PathTree with_dots(NameOf name_of, std::uint32_t count);

  static constexpr std::uint32_t kRoot = 0;  // the number of the root directory

  std::size_t directory_count() const { return directories_.size(); }

  // Returns the path of a tensor, relative to the root, without a leading slash.
  std::string_view path(std::uint32_t tensor) const;

  // Returns the tensor with this path, or nullopt if there is none.
  std::optional<std::uint32_t> find(std::string_view path) const;

  // Returns the path of a directory with its trailing slash, or "" for the root.
  std::string_view directory_path(std::uint32_t directory) const;
  std::uint32_t parent(std::uint32_t directory) const { return directories_[directory].parent; }

  struct Entry {
    bool is_directory;
    std::uint32_t number;        // the number of the tensor or of the directory
    std::string_view component;  // the entry's name in its directory
  };

  // Returns the entry `component` of a directory, or nullopt if there is none.
  std::optional<Entry> lookup(std::uint32_t directory, std::string_view component) const;

  // Returns the entry of a directory at `cursor`, and sets `next` to the cursor of the next entry.
  // The first cursor is 0. Returns nullopt at the end. Cursors are valid as long as the tree, so
  // several readers can list at once. Entries are in the bytewise order of their paths; the path of
  // a directory ends in a `/`.
  std::optional<Entry> list(std::uint32_t directory, std::uint64_t cursor,
                            std::uint64_t& next) const;

 private:
  struct Directory {
    std::uint32_t first, last;    // [first, last) in order_
    std::uint32_t prefix_length;  // bytes of its path, including the trailing slash
    std::uint32_t parent;
  };
  struct EncodedName {    // a path that differs from its tensor's name
    std::uint64_t begin;  // index in arena_
    std::uint32_t length;
    std::uint32_t tensor;
  };

  explicit PathTree(NameOf name_of) : name_of_(std::move(name_of)) {}

  void encode_names(const std::vector<std::uint32_t>& by_name);
  void encode_dotted_names(std::uint32_t count);
  void add_path(std::uint32_t tensor, const EncodedPath& path);
  void build_directories();
  void refuse_collisions() const;
  std::uint32_t lower_bound(const Directory& within, std::string_view path) const;
  std::uint32_t directory_at(std::uint32_t first, std::size_t prefix_length) const;

  NameOf name_of_;
  std::vector<std::uint32_t> order_;    // tensors, bytewise by path
  std::vector<EncodedName> encoded_;    // sorted by tensor
  std::string arena_;                   // the paths of encoded_
  bool any_special_ = false;            // is_plain_name() may be false for some name
  bool may_collide_ = false;            // some path was cut or escaped
  std::vector<Directory> directories_;  // in pre-order, so sorted by (first, prefix_length)
};

// Return the tree of a list, and its tree view with dots. The list must outlive the tree. For
// tree_of(), call TensorList::sort_names() first.
PathTree tree_of(const TensorList& list);
PathTree dotted_tree_of(const TensorList& list);

}  // namespace stfs
