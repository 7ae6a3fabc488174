// Which files a mount has, and the recipe of each.
//
// A node is (view, directory or file, number), and the inode number says all three, so that nothing
// is kept for a node. Most views mirror the tree of the checkpoint with another recipe for each
// tensor, and with a suffix at the end of each file's name:
//
//   /PATH                              kRaw          the tensor's bytes
//   /.stfs/json/PATH.json              kJson         its entry in the catalogue
//   /.stfs/npy/PATH.npy                kNpy          a NumPy file            (not the sub-byte
//   types)
//   /.stfs/f32/PATH                    kF32          as binary32             (floating types)
//   /.stfs/npy-f32/PATH.npy            kNpyF32       both
//   /.stfs/slice/PATH/EXPR             kSlice        a part; PATH is a directory that lists nothing
//   /.stfs/npy-slice/PATH/EXPR.npy     kNpySlice     likewise
//   /.stfs/tree/P/A/T/H                kTree         the tensor's bytes; dots make directories
//   /.stfs/safetensors/PATH.safetensors  kSafetensors  a file of that tensor alone
//   /.stfs/stats/PATH.json             kStats        computed when it is read, see computed.h
//   /.stfs/sha256/PATH                 kSha256       likewise
//
// The others are directories of their own:
//
//   /.stfs/                            kControl      fixed files
//   /.stfs/header/SOURCE.json          kHeader       file = source number
//   /.stfs/metadata/KEY                kMetadata     file = position in Checkpoint::metadata
//   /.stfs/subset/GLOB.safetensors     kSubset       looked up
//
// In a mirrored view with a suffix, a directory whose own name ends in that suffix has the suffix's
// dot written as %2E, so that it cannot have the name of a file beside it.
//
// Safe to share between threads. The checkpoint must outlive it.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/writer.h"
#include "core/recipe/content.h"
#include "fs/mount/looked_up.h"
#include "fs/view/recipes.h"

#include <cstdint>
#include <ctime>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs {

enum class View : std::uint8_t {
  kRaw,
  kControl,
  kHeader,
  kMetadata,
  kJson,
  kNpy,
  kF32,
  kNpyF32,
  kSlice,
  kNpySlice,
  kTree,
  kSafetensors,
  kSubset,
  kStats,
  kSha256,
};
inline constexpr int kViewCount = 15;

struct Node {
  View view;
  bool is_directory;
  std::uint64_t number;  // of a tensor, a directory of the tree, a source, a looked-up name, ...

  friend bool operator==(const Node&, const Node&) = default;
};

inline constexpr Node kRootNode{View::kRaw, true, PathTree::kRoot};

// Inode numbers: 1 is the root, as FUSE wants it. But for looked-up names they are the same in
// every mount of the same checkpoint.
std::uint64_t inode_of(Node node);
Node node_of(std::uint64_t inode);  // check the result with Views::exists

// Whether a node can only be found by its name: a slice or a subset.
bool is_looked_up(Node node);

// Whether `.stfs` is in the listing of the root, only reachable by its path, or not there.
enum class ControlDirectory { kHidden, kVisible, kOff };

class Views {
 public:
  // With a ledger, looked-up names are kept in it, and those that are there already are known. It
  // outlives this.
  Views(const Checkpoint& checkpoint, ControlDirectory control, Ledger* ledger = nullptr);

  bool exists(Node node) const;

  // Fills `node`: 0, ENOENT, or for slices EINVAL and ERANGE (see slice.h). A looked-up name is
  // kept until it is forgotten as often as it was looked up.
  int lookup(Node directory, std::string_view name, Node& node);
  void open(Node file);
  void release(Node file);
  void forget(Node node, std::uint64_t lookups);

  // Waits until too many names are kept, and returns the file whose name the kernel should drop
  // next (see looked_up.h); none after stop_waiting().
  std::optional<Node> wait_for_surplus();
  void stop_waiting() { looked_up_.stop(); }
  std::size_t looked_up_names() const { return looked_up_.size(); }

  Node parent(Node directory) const;

  struct Entry {
    Node node;
    std::string name;
  };
  // Listing, as PathTree::list: begin at cursor 0, go on at what `next` was set to.
  std::optional<Entry> list(Node directory, std::uint64_t cursor, std::uint64_t& next) const;

  // A recipe for one call. Those that hold much text themselves (a name or a shape may have a
  // hundred megabytes) are made one at a time, so that many readers take no more memory than one:
  // the next is made when this is gone.
  struct Made {
    std::unique_lock<std::mutex> turn;
    std::optional<Content> content;
    Recipes::Recipe recipe;
  };

  // The recipe of a file that is not computed. `scratch` holds it when it is made for this call,
  // and must then live as long as what is returned. Null when the file would break the format's
  // limit of 100 MB for a header (EFBIG).
  const Content* content(Node file, Made& scratch) const;

  // The extent that a file is, when it is a tensor's plain bytes: no recipe is needed to read it.
  std::optional<Extent> extent(Node file) const;

  // Whether a file can be read: 0, EFBIG as above, or ESTALE when a source of it has changed.
  int verify(Node file) const;

  // Whether a file's bytes are computed when it is read, and its size is not known before.
  bool is_computed(Node node) const;

  std::uint64_t size(Node file) const;  // of content(file), without making its texts; 0 where null
  timespec mtime(Node node) const;      // of the source; of the newest source for what has none

  // The tensor that a file shows in one form or another; and the one whose raw bytes it is.
  std::optional<std::uint32_t> tensor(Node node) const;
  std::optional<std::uint32_t> raw_tensor(Node node) const;

 private:
  // Something that is made when it is first asked for, and kept.
  template <class T>
  struct Kept {
    std::once_flag made;
    std::optional<T> value;
  };

  // A directory of files whose names stand in a list; a file's number is its place in that list.
  class FlatDirectory {
   public:
    FlatDirectory() = default;
    void add(std::string_view name);
    void sort();  // when all have been added
    std::size_t size() const { return entries_.size(); }
    std::optional<Node> lookup(View view, std::string_view name) const;
    std::optional<Entry> list(View view, std::uint64_t cursor) const;

   private:
    struct Name {
      std::uint64_t begin;
      std::uint32_t length;
      std::uint32_t number;
    };
    std::string_view text(const Name& name) const {
      return std::string_view(names_).substr(name.begin, name.length);
    }
    std::string names_;  // arena: `__metadata__` may have millions of keys
    std::vector<Name> entries_;
  };

  template <class T, class Make>
  static const std::optional<T>& keep(Kept<T>& kept, const Make& make);
  bool is_kept(Node node) const;
  int lookup_mirrored(Node directory, std::string_view name, Node& node) const;
  int lookup_slice(View view, std::uint32_t tensor, std::string_view name, Node& node);
  int lookup_subset(std::string_view name, Node& node);
  std::vector<std::uint32_t> subset(std::string_view encoded) const;  // its tensors
  const PathTree* tree_of(View view) const;
  std::optional<Content> make(Node file) const;
  bool holds_much(Node file) const;
  std::optional<Content> make_slice(const LookedUpNames::Name& name) const;

  const Checkpoint& checkpoint_;
  ControlDirectory control_;
  timespec newest_{};
  FlatDirectory header_;    // numbers are those of Checkpoint::parts
  FlatDirectory metadata_;  // and of Checkpoint::metadata
  SafetensorsFiles files_;
  LookedUpNames looked_up_;
  mutable Recipes subsets_;
  mutable std::mutex turn_;
  mutable Kept<Content> info_, tensors_json_, tensors_tsv_, merged_;
  mutable Kept<std::uint64_t> info_size_, merged_size_;
  mutable Kept<PathTree> dotted_;
};

}  // namespace stfs
