// Which files a mount has, and the recipe of each.
//
// A node is (view, directory or file, number), and the inode number says all three: nothing is kept
// for a node. The root's tree is the checkpoint's PathTree; a mirrored view shows the same tree
// with another recipe, and with a suffix at the end of each file's name.
//
//   /PATH                        kRaw       file = tensor number
//   /.stfs/                      kControl   file = position in the table of fixed files
//   /.stfs/header/SOURCE.json    kHeader    file = source number
//   /.stfs/metadata/KEY          kMetadata  file = position in Checkpoint::metadata
//   /.stfs/json/PATH.json        kJson      file = tensor number
//
// In a mirrored view with a suffix, a directory whose own name ends in that suffix has the suffix's
// dot written as %2E, so that it cannot have the name of a file beside it.
//
// Immutable; safe to share between threads. The checkpoint must outlive it.
#pragma once

#include "core/checkpoint.h"
#include "core/content.h"

#include <cstdint>
#include <ctime>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs {

enum class View : std::uint8_t { kRaw, kControl, kHeader, kMetadata, kJson };
inline constexpr int kViewCount = 5;

struct Node {
  View view;
  bool is_directory;
  std::uint32_t number;

  friend bool operator==(const Node&, const Node&) = default;
};

inline constexpr Node kRootNode{View::kRaw, true, PathTree::kRoot};

// Inode numbers: 1 is the root, as FUSE wants it. The same in every mount of the same checkpoint.
std::uint64_t inode_of(Node node);
Node node_of(std::uint64_t inode);  // check the result with Views::exists

// Whether `.stfs` is in the listing of the root, only reachable by its path, or not there.
enum class ControlDirectory { kHidden, kVisible, kOff };

class Views {
 public:
  Views(const Checkpoint& checkpoint, ControlDirectory control);

  bool exists(Node node) const;
  std::optional<Node> lookup(Node directory, std::string_view name) const;
  Node parent(Node directory) const;

  struct Entry {
    Node node;
    std::string name;
  };
  // Listing, as PathTree::list: begin at cursor 0, go on at what `next` was set to.
  std::optional<Entry> list(Node directory, std::uint64_t cursor, std::uint64_t& next) const;

  // The recipe of a file. `scratch` holds it when it is made for this call, and must then live as
  // long as the reference is used.
  const Content& content(Node file, std::optional<Content>& scratch) const;

  std::uint64_t size(Node file) const;  // content(file).size(), without making it where it can
  timespec mtime(Node node) const;      // of the source; of the newest source for what has none

  // The tensor whose raw file this is.
  std::optional<std::uint32_t> tensor(Node node) const;

 private:
  // A text that is made when it is first asked for, and kept.
  struct Kept {
    std::once_flag made;
    Content content;
  };

  // A directory of files whose names stand in a list; a file's number is its place in that list.
  class FlatDirectory {
   public:
    FlatDirectory() = default;
    explicit FlatDirectory(std::vector<std::string> names);
    std::size_t size() const { return entries_.size(); }
    std::optional<Node> lookup(View view, std::string_view name) const;
    std::optional<Entry> list(View view, std::uint64_t cursor) const;

   private:
    std::vector<std::pair<std::string, std::uint32_t>> entries_;  // sorted by name
  };

  std::optional<Node> lookup_control(std::string_view name) const;
  Content make(Node file) const;

  const Checkpoint& checkpoint_;
  ControlDirectory control_;
  timespec newest_{};
  FlatDirectory header_;    // numbers are those of Checkpoint::sources
  FlatDirectory metadata_;  // and of Checkpoint::metadata
  mutable Kept info_, tensors_json_, tensors_tsv_;
};

}  // namespace stfs
