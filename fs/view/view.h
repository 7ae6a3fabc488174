// What a view is: one row of the table in registry.h says all of it.
//
// A node of a mount is (view, directory or file, number), and its inode number says all three, so
// that nothing is kept for a node. Most views mirror the tree of the checkpoint with another recipe
// for each tensor; the number of such a file is the tensor's.
//
// A row is plain data and pointers to functions. The functions are safe to call from any thread,
// throw nothing but std::bad_alloc, and answer 0 or an errno where they return an int.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/names.h"
#include "core/checkpoint/writer.h"
#include "core/recipe/content.h"
#include "fs/view/name_list.h"

#include <atomic>
#include <cstdint>
#include <ctime>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// A byte of the inode number: append only, and no value is used again.
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
};

struct Node {
  View view;
  bool is_directory;
  std::uint64_t number;  // of a tensor, a directory of the tree, a source, a looked-up name, ...

  friend bool operator==(const Node&, const Node&) = default;
};

inline constexpr Node kRootNode{View::kRaw, true, PathTree::kRoot};
inline constexpr Node kControlNode{View::kControl, true, 0};  // `.stfs`

// Inode numbers: 1 is the root, as FUSE wants it. But for looked-up names they are the same in
// every mount of the same checkpoint.
std::uint64_t inode_of(Node node);
Node node_of(std::uint64_t inode);  // check the result with Nodes::exists

// How the files of a view get their names.
enum class Names : std::uint8_t {
  kTensors,      // PATH and the suffix: the checkpoint's tree again
  kExpressions,  // PATH/EXPR and the suffix: a tensor is a directory, whose files are looked up
  kGlobs,        // GLOB and the suffix, looked up: the tensors whose names match
  kList,         // from a list
  kFile,         // the row is one file of `.stfs`, and no directory
};

// One file of a view, as the functions of its row get it. Borrowed for the call.
struct ViewFile {
  const Checkpoint& checkpoint;
  const SafetensorsFiles& files;
  std::uint32_t number;                         // of its tensor, or in the list
  std::string_view expression = {};             // what was looked up, without the suffix
  std::span<const std::uint32_t> tensors = {};  // what ViewSpec::tensors gave

  Tensor tensor() const { return checkpoint.tensor(number); }
};

struct ViewSpec {
  View id;
  std::uint8_t file = 0;         // kFile: its number; the id is then View::kControl
  std::string_view name;         // in `.stfs`; none for the root
  std::string_view suffix = {};  // of its files' names
  Names names = Names::kTensors;
  PathStyle style = PathStyle::kSlashes;          // kTensors, kExpressions: of the tree
  bool (*shows)(const Tensor&) = nullptr;         // which tensors are in it; null: all
  NameList (*list)(const Checkpoint&) = nullptr;  // kList
  // The tensors of a file that holds several; a glob that has none names no file.
  std::vector<std::uint32_t> (*tensors)(const ViewFile&) = nullptr;

  // The recipe: 0, or EFBIG when the file would break the limit of its format. Null: computed.
  int (*make)(const ViewFile&, Content&) = nullptr;
  // The extent that the file is, where it is one: it is read without a recipe.
  std::optional<Extent> (*extent)(const ViewFile&) = nullptr;
  // Its size in bytes without its texts: 0, EFBIG as above, or what a lookup answers (EINVAL,
  // ERANGE). Null: that of the recipe.
  int (*size)(const ViewFile&, std::uint64_t& bytes) = nullptr;
  // Whether the file can be opened: 0, EFBIG, ESTALE. Null: what the recipe says.
  int (*verify)(const ViewFile&) = nullptr;
  // The text of a file that is computed when it is read; EINTR soon after `stop` is set. Its size
  // is told as 0.
  int (*compute)(const ViewFile&, const std::atomic<bool>& stop, std::string& text) = nullptr;
  // Null: the time of the tensor's source, or that of the newest source.
  timespec (*mtime)(const ViewFile&) = nullptr;

  bool shows_values = false;     // a file shows one tensor's bytes or values, and says whose
  std::optional<DType> as = {};  // the type that the values are converted to
  bool holds_text = false;       // a recipe holds the tensor's name or shape, which may be long
};

}  // namespace stfs
