// A view is the root of a mount, a directory in `.stfs`, or a single file in `.stfs`. One row
// (ViewSpec) of the table in registry.h describes it.
//
// A node of a mount has three parts: the view, whether it is a directory or a file, and a number.
// Its inode number encodes all three parts, so a node needs no memory. Most views mirror the tree
// of the checkpoint, with another recipe for each tensor. The number of such a file is the number
// of its tensor.
//
// A row is plain data and pointers to functions. Thread safety: the functions may be called from
// any thread. They throw only std::bad_alloc. The functions that return int return 0 or an errno.
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

// One byte of the inode number. Only append values, and never reuse a value.
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
  // The number of a tensor, of a directory of the tree, of a source, of a looked-up name, ...
  std::uint64_t number;

  friend bool operator==(const Node&, const Node&) = default;
};

inline constexpr Node kRootNode{View::kRaw, true, PathTree::kRoot};
inline constexpr Node kControlNode{View::kControl, true, 0};  // `.stfs`

// Convert between nodes and inode numbers. The root has the number 1, as FUSE requires. Every mount
// of a checkpoint has the same numbers, except for looked-up names. The node that node_of() returns
// may not exist; Nodes::exists() checks this.
std::uint64_t inode_of(Node node);
Node node_of(std::uint64_t inode);

// How the files of a view get their names.
enum class Names : std::uint8_t {
  kTensors,      // PATH + suffix: mirrors the checkpoint's tree
  kExpressions,  // PATH/EXPR + suffix: a tensor is a directory of looked-up names
  kGlobs,        // GLOB + suffix: a looked-up name for the tensors that match
  kList,         // the names in ViewSpec::list
  kFile,         // the row is a single file of `.stfs`, not a directory
};

class StatsCache;  // stats_cache.h

// One file of a view, as the argument of its row's functions. The functions borrow it for the call.
struct ViewFile {
  const Checkpoint& checkpoint;
  const SafetensorsFiles& files;
  const GgufFiles& gguf_files;
  std::uint32_t number;                         // the tensor's number, or the index in the NameList
  std::string_view expression = {};             // the looked-up name without the suffix
  std::span<const std::uint32_t> tensors = {};  // the result of ViewSpec::tensors
  StatsCache* kept = nullptr;                   // set only for ViewSpec::compute

  Tensor tensor() const { return checkpoint.tensor(number); }
};

struct ViewSpec {
  View id;
  std::uint8_t file = 0;         // kFile: the number of the file; `id` is then View::kControl
  std::string_view name;         // the name in `.stfs`; empty for the root, and if `beside` is set
  std::string_view suffix = {};  // the suffix of the files' names
  Names names = Names::kTensors;
  PathStyle style = PathStyle::kSlashes;  // kTensors, kExpressions: the form of the tree's paths
  std::optional<View> beside = {};        // kGlobs: its files are in this view's directory
  // Returns true if a mount of the checkpoint has the view. Null: every mount has it.
  bool (*exists)(const Checkpoint&) = nullptr;
  // Returns true if the view has a file for a tensor. Null: it has a file for every tensor.
  bool (*shows)(const Tensor&) = nullptr;
  NameList (*list)(const Checkpoint&) = nullptr;  // kList: returns the names of the files
  // kList: if an entry is a second name for another row's file, returns the node of that file.
  // Returns nullopt for other entries.
  std::optional<Node> (*link)(const Checkpoint&, std::uint64_t number) = nullptr;
  // Returns the numbers of the tensors in a safetensors or GGUF file. A glob that matches no tensor
  // gives ENOENT.
  std::vector<std::uint32_t> (*tensors)(const ViewFile&) = nullptr;

  // Returns the extent of a file that consists of a single extent, or nullopt. For such a file,
  // none of the functions below is called to read it.
  std::optional<Extent> (*extent)(const ViewFile&) = nullptr;
  // Makes the recipe. Returns 0, EFBIG if the file exceeds the limit of its format, ENOTSUP if the
  // format cannot contain a tensor, or EINVAL, ERANGE or ENOENT for a bad expression. Null if
  // `extent` returns all files, or if `compute` is set.
  int (*make)(const ViewFile&, Content&) = nullptr;
  // Sets `bytes` to the file's size, for files with a recipe of many tensors or a long text.
  // Returns the errors of `make`, or for a file of a list the errno of a source. Null: the recipe
  // is made and gives the size.
  int (*size)(const ViewFile&, std::uint64_t& bytes) = nullptr;
  // Checks that the file can be opened. Returns 0, EFBIG, ENOTSUP, ESTALE, or the errno of the
  // check. Null: the recipe is made and verified.
  int (*verify)(const ViewFile&) = nullptr;
  // Computes the text when the file is read. Returns EINTR soon after `stop` is set. stat(2) shows
  // the result of `size`, which must be the size of the text, or 0 if `size` is null.
  int (*compute)(const ViewFile&, const std::atomic<bool>& stop, std::string& text) = nullptr;
  // Returns the text of the file; called each time the file is opened. stat(2) shows the size 0.
  std::string (*snapshot)(const Counters&) = nullptr;
  // Returns the file's mtime. Null: the mtime of the tensor's source or, for a file without a
  // tensor, of the newest source.
  timespec (*mtime)(const ViewFile&) = nullptr;

  bool shows_values = false;  // a file shows values of one tensor, so it gets user.stfs.* xattrs
  DType (*as)(const Tensor&) = nullptr;  // the type of the shown values; null: the tensor's type
  bool holds_text = false;  // the recipe contains the tensor's name or shape, which may be long
};

}  // namespace stfs
