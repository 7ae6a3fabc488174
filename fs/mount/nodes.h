// The files and directories of a mount: turns names into nodes, and nodes into sizes, times and
// recipes. It knows the views from their table only.
//
// Thread safety: all members. The checkpoint, the rows and the ledger must outlive it.
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

// Whether `.stfs` can be reached by its path only, is also listed in the root, or does not exist.
enum class ControlDirectory { kHidden, kVisible, kOff };

class Nodes {
 public:
  // With a ledger, it restores the looked-up names from there, and writes their changes to it.
  Nodes(const Checkpoint& checkpoint, std::span<const ViewSpec> views, ControlDirectory control,
        Ledger* ledger = nullptr);

  bool exists(Node node) const;

  // Fills `node`: 0, ENOENT, or for a slice EINVAL or ERANGE (see slice.h). A looked-up name is
  // kept until it is forgotten as often as it was looked up.
  int lookup(Node directory, std::string_view name, Node& node);
  void forget(Node node, std::uint64_t lookups);

  // Whether a node has a looked-up name (looked_up_names.h): a slice or a subset.
  bool is_looked_up(Node node) const;

  std::size_t looked_up_names() const { return looked_up_.size(); }

  Node parent(Node directory) const;

  struct Entry {
    Node node;
    std::string name;
  };
  // The entry at a cursor, as PathTree::list: begin at cursor 0, continue at `next`. Returns
  // nullopt at the end.
  std::optional<Entry> list(Node directory, std::uint64_t cursor, std::uint64_t& next) const;

  // Pass nodes that exist to all members below. They return ENOENT if a looked-up name was
  // forgotten meanwhile.

  // Fills `recipe`, which must be empty: 0, EFBIG if the file exceeds the limit of its format, or
  // ENOTSUP if the format cannot hold a tensor.
  // A recipe may hold a name or shape of a hundred megabytes; such recipes are made one at a time
  // (Recipe::turn), which bounds the memory of many readers.
  int content(Node node, Recipe& recipe) const;
  // The extent of a file that is a single one: it is read without a recipe.
  std::optional<Extent> extent(Node node) const;
  // Whether a file can be read: 0, EFBIG or ENOTSUP as above, or ESTALE if a source has changed.
  int verify(Node node) const;

  // The file of the next tensor in the same view, in the order of the checkpoint; nullopt for the
  // last, and for a file that is not a whole tensor's.
  std::optional<Node> next_tensor(Node file) const;

  // How the bytes of a file come about.
  enum class Kind {
    kRecipe,
    kText,      // computed when it is read
    kLongText,  // computed from all tensors: that takes long
    kSnapshot,  // made by each open
  };
  Kind kind(Node node) const;
  std::string snapshot(Node node, const Counters& counters) const;
  // Whether computing the text of a file may have to wait for a source.
  bool may_wait(Node computed) const;

  // Whether the size of a file is known before it is read; else it is 0.
  bool has_size(Node node) const;
  // Computes the text: 0, an errno, or EINTR soon after `stop` is set.
  int compute(Node node, const std::atomic<bool>& stop, std::string& text) const;

  std::uint64_t size(Node node) const;  // bytes, without making texts; 0 for EFBIG
  timespec mtime(Node node) const;      // of the file's source, else of the newest source

  // The tensor whose bytes or values a file shows; nullopt for other nodes.
  struct Shown {
    Tensor tensor;
    std::string_view slice;   // the expression, or empty; valid while the name is kept
    std::optional<DType> as;  // set if it is not the tensor's type
  };
  std::optional<Shown> shown(Node node) const;

 private:
  // A value that is made on first use and kept.
  template <class T>
  struct Once {
    std::once_flag flag;
    std::optional<T> value;
  };
  struct Made {
    Content content;
    int error = 0;  // of ViewSpec::make
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
  // The row of a file; null for directories and unknown nodes.
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
