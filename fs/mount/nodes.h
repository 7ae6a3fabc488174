// The files and directories of a mount: finds nodes by name, and returns the size, times and recipe
// of a node. It knows the views only from their table (fs/view/registry.h).
//
// Thread safety: all members may be called from any thread. Lifetime: the checkpoint, the rows and
// the ledger must outlive it.
#pragma once

#include "core/base/semaphore.h"
#include "core/checkpoint/checkpoint.h"
#include "core/write/writer.h"
#include "fs/mount/looked_up_names.h"
#include "fs/mount/recipes.h"
#include "fs/view/registry.h"
#include "fs/view/stats_cache.h"
#include "fs/view/view.h"

#include <atomic>
#include <cstdint>
#include <ctime>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// Says whether `.stfs` can only be reached by its path, is also listed in the root, or does not
// exist.
enum class ControlDirectory { kHidden, kVisible, kOff };

class Nodes {
 public:
  // If `ledger` is not null, restores the looked-up names from the ledger, and writes later changes
  // of these names to it.
  Nodes(const Checkpoint& checkpoint, std::span<const ViewSpec> views, ControlDirectory control,
        Ledger* ledger = nullptr);

  bool exists(Node node) const;

  // Sets `node` to the node of a name in a directory. Returns 0, ENOENT, or for a slice EINVAL or
  // ERANGE (slice.h). A looked-up name is kept until forget() has subtracted all its lookups.
  int lookup(Node directory, std::string_view name, Node& node);
  void forget(Node node, std::uint64_t lookups);

  // Returns true if a node has a looked-up name (looked_up_names.h), like a slice or a subset.
  bool is_looked_up(Node node) const;

  std::size_t looked_up_names() const { return looked_up_.size(); }

  Node parent(Node directory) const;

  struct Entry {
    Node node;
    std::string name;
  };
  // Returns the entry at a cursor and sets `next` to the cursor of the next entry, like
  // PathTree::list. The first cursor is 0. Returns nullopt at the end.
  std::optional<Entry> list(Node directory, std::uint64_t cursor, std::uint64_t& next) const;

  // All members below require nodes that exist. Functions with an errno return ENOENT if a
  // looked-up name has been forgotten since.

  // Makes `recipe`, which must be empty. Returns 0, EFBIG if the file exceeds the limit of its
  // format, or ENOTSUP if the format cannot contain a tensor.
  // A recipe may contain a name or shape of a hundred megabytes. Such recipes are made one at a
  // time (Recipe::turn), which bounds the memory of many readers.
  int content(Node node, Recipe& recipe) const;
  // Returns the extent of a file that consists of a single extent, so that it is read without a
  // recipe. Returns nullopt for any other file.
  std::optional<Extent> extent(Node node) const;
  // Checks that a file can be read. Returns 0, EFBIG or ENOTSUP like content(), or ESTALE if a
  // source has changed.
  int verify(Node node) const;

  // Returns the file of the next tensor in the same view, in the order of the checkpoint. Returns
  // nullopt for the last tensor, and for a file that does not show a whole tensor.
  std::optional<Node> next_tensor(Node file) const;

  // How the bytes of a file are made.
  enum class Kind {
    kRecipe,
    kText,      // a text that is computed when the file is read
    kLongText,  // a text that is computed from all tensors, which takes long
    kSnapshot,  // a text that is made each time the file is opened
  };
  Kind kind(Node node) const;
  std::string snapshot(Node node, const Counters& counters) const;
  // Returns true if computing the text of a file may have to wait for a source.
  bool may_wait(Node computed) const;

  // Returns true if the size of a file is known before it is read. Otherwise size() returns 0.
  bool has_size(Node node) const;
  // Computes the text of a file. Returns 0, an errno, or EINTR soon after `stop` is set.
  int compute(Node node, const std::atomic<bool>& stop, std::string& text) const;

  // Returns the size in bytes without making texts. Returns 0 if making the file fails with EFBIG.
  std::uint64_t size(Node node) const;
  // Returns the mtime of the file's source. If the file has no single source, returns the mtime of
  // the newest source.
  timespec mtime(Node node) const;

  // The tensor whose bytes or values a file shows. shown() returns nullopt for other nodes.
  struct Shown {
    Tensor tensor;
    std::string_view slice;   // the expression, or empty; valid as long as the name is kept
    std::optional<DType> as;  // the shown type, if it is not the tensor's type
  };
  std::optional<Shown> shown(Node node) const;

 private:
  // A value that is made when it is first used, and then kept.
  template <class T>
  struct Once {
    std::once_flag flag;
    std::optional<T> value;
  };
  struct Made {
    Content content;
    int error = 0;  // the result of ViewSpec::make
  };
  // The data of a row, kept as long as the mount.
  struct RowData {
    NameList names;            // kList
    Once<std::uint64_t> size;  // kFile
    Once<Made> content;        // kFile
  };

  template <class T, class Make>
  static const std::optional<T>& once(Once<T>& kept, const Make& make);
  RowData& data_of(const ViewSpec& row) const {
    return row_data_[static_cast<std::size_t>(&row - registry_.rows().data())];
  }
  // Returns the row of a file, or null for directories and unknown nodes.
  const ViewSpec* file_row(Node node) const {
    return node.is_directory ? nullptr : registry_.find(node);
  }
  bool has(const ViewSpec& row) const;
  const PathTree* tree_of(const ViewSpec& row) const;
  const LookedUpNames::Name* name_of(Node node) const;
  std::optional<ViewFile> file_of(Node file) const;  // nullopt if its name is not kept

  int look_up_name(const ViewSpec& row, std::uint32_t tensor, std::string_view name, Node& node);
  int lookup_mirrored(const ViewSpec& row, Node directory, std::string_view name, Node& node) const;
  std::optional<Entry> list_mirrored(const ViewSpec& row, Node directory, std::uint64_t cursor,
                                     std::uint64_t& next) const;
  const Made& permanent_content(const ViewSpec& row, const ViewFile& file) const;

  const Checkpoint& checkpoint_;
  Registry registry_;
  ControlDirectory control_;
  timespec newest_{};
  SafetensorsFiles files_;
  GgufFiles gguf_files_;
  LookedUpNames looked_up_;
  mutable Recipes subsets_;
  mutable StatsCache kept_stats_;
  mutable Semaphore turn_{1};
  mutable std::vector<RowData> row_data_;  // in the order of the rows; never grows
  mutable Once<PathTree> dotted_;
};

}  // namespace stfs
