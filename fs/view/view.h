// A view: the root, a directory of `.stfs` or a single file there. One row (ViewSpec) of the table
// in registry.h describes it.
//
// A node of a mount is (view, directory or file, number). Its inode number encodes all three, so a
// node needs no memory. Most views mirror the tree of the checkpoint with another recipe for each
// tensor; such a file has its tensor's number.
//
// A row is plain data and pointers to functions. Thread safety: the functions may be called from
// any thread. They throw only std::bad_alloc; those that return int return 0 or an errno.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/names.h"
#include "core/recipe/content.h"
#include "core/source/counters.h"
#include "core/write/gguf_writer.h"
#include "core/write/writer.h"
#include "fs/view/name_list.h"

#include <atomic>
#include <cstdint>
#include <ctime>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// A byte of the inode number. Append only; never reuse a value.
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
  kF32Slice,
  kNpyF32Slice,
  kSubsetGguf,
  kPng,
  kPngSlice,
  kHist,
  kModel,
};

struct Node {
  View view;
  bool is_directory;
  std::uint64_t number;  // of a tensor, a directory of the tree, a source, a looked-up name, ...

  friend bool operator==(const Node&, const Node&) = default;
};

inline constexpr Node kRootNode{View::kRaw, true, PathTree::kRoot};
inline constexpr Node kControlNode{View::kControl, true, 0};  // `.stfs`

// Inode numbers: 1 is the root, as FUSE requires. Except for looked-up names, every mount of a
// checkpoint has the same numbers.
std::uint64_t inode_of(Node node);
Node node_of(std::uint64_t inode);  // the node may not exist: check with Nodes::exists

// How the files of a view get their names.
enum class Names : std::uint8_t {
  kTensors,      // PATH + suffix: mirrors the checkpoint's tree
  kExpressions,  // PATH/EXPR + suffix: a tensor is a directory of looked-up names
  kGlobs,        // GLOB + suffix: a looked-up name for the tensors that match
  kList,         // from ViewSpec::list
  kFile,         // the row is a single file of `.stfs`, not a directory
};

class StatsCache;  // stats_cache.h

// One file of a view: the argument of its row's functions. Borrowed for the call.
struct ViewFile {
  const Checkpoint& checkpoint;
  const SafetensorsFiles& files;
  const GgufFiles& gguf_files;
  std::uint32_t number;                         // of its tensor, or in its NameList
  std::string_view expression = {};             // the looked-up name without the suffix
  std::span<const std::uint32_t> tensors = {};  // the result of ViewSpec::tensors
  StatsCache* kept = nullptr;                   // of ViewSpec::compute alone

  Tensor tensor() const { return checkpoint.tensor(number); }
};

struct ViewSpec {
  View id;
  std::uint8_t file = 0;         // kFile: the number of the file; `id` is then View::kControl
  std::string_view name;         // in `.stfs`; empty for the root, and with `beside`
  std::string_view suffix = {};  // of the files' names
  Names names = Names::kTensors;
  PathStyle style = PathStyle::kSlashes;          // kTensors, kExpressions: of the tree
  std::optional<View> beside = {};                // kGlobs: its files are in this view's directory
  bool (*exists)(const Checkpoint&) = nullptr;    // whether a checkpoint has the view; null: yes
  bool (*shows)(const Tensor&) = nullptr;         // whether it has a file for a tensor; null: yes
  NameList (*list)(const Checkpoint&) = nullptr;  // kList
  // kList: the node of an entry that is another row's file under a second name; nullopt for others.
  std::optional<Node> (*link)(const Checkpoint&, std::uint64_t number) = nullptr;
  // The numbers of the tensors in a safetensors or GGUF file. A glob without tensors is ENOENT.
  std::vector<std::uint32_t> (*tensors)(const ViewFile&) = nullptr;

  // The extent of a file that is a single one: it needs none of the functions below.
  std::optional<Extent> (*extent)(const ViewFile&) = nullptr;
  // Makes the recipe: 0, EFBIG if the file exceeds the limit of its format, ENOTSUP if the format
  // cannot hold a tensor, or EINVAL, ERANGE or ENOENT for a bad expression. Null if `extent` has
  // all files, or `compute` is set.
  int (*make)(const ViewFile&, Content&) = nullptr;
  // The file's size in bytes, for a recipe of many tensors or a long text: the errors of `make`, or
  // for a file of a list the errno of a source. Null: make the recipe and take its size.
  int (*size)(const ViewFile&, std::uint64_t& bytes) = nullptr;
  // Whether the file can be opened: 0, EFBIG, ENOTSUP, ESTALE, or the errno of the check. Null:
  // make the recipe and verify it.
  int (*verify)(const ViewFile&) = nullptr;
  // Computes the text when the file is read; EINTR soon after `stop` is set. stat(2) gives the size
  // of `size`, which is then that of the text, or 0 without it.
  int (*compute)(const ViewFile&, const std::atomic<bool>& stop, std::string& text) = nullptr;
  // Makes the text of a file by each open of it. stat(2) gives size 0.
  std::string (*snapshot)(const Counters&) = nullptr;
  // Null: the mtime of the tensor's source; without a tensor, of the newest source.
  timespec (*mtime)(const ViewFile&) = nullptr;

  bool shows_values = false;  // a file shows values of one tensor: it gets user.stfs.* xattrs
  DType (*as)(const Tensor&) = nullptr;  // the type that the values have; null: the tensor's
  bool holds_text = false;  // the recipe holds the tensor's name or shape, which may be long
};

}  // namespace stfs
