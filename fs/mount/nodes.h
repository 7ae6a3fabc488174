// Which files and directories a mount has: names into nodes, and nodes into what a row of the table
// of views says of them. It knows views by that table alone.
//
// Safe to share between threads. The checkpoint, the rows and the ledger must outlive it.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/writer.h"
#include "fs/mount/looked_up.h"
#include "fs/mount/recipes.h"
#include "fs/view/registry.h"
#include "fs/view/view.h"

#include <atomic>
#include <cstdint>
#include <ctime>
#include <mutex>
#include <optional>
#include <semaphore>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// Whether `.stfs` is in the listing of the root, only reachable by its path, or not there.
enum class ControlDirectory { kHidden, kVisible, kOff };

class Nodes {
 public:
  // With a ledger, looked-up names are kept in it, and those that are there already are known.
  Nodes(const Checkpoint& checkpoint, std::span<const ViewSpec> views, ControlDirectory control,
        Ledger* ledger = nullptr);

  bool exists(Node node) const;

  // Fills `node`: 0, ENOENT, or for slices EINVAL and ERANGE (see slice.h). A looked-up name is
  // kept until it is forgotten as often as it was looked up.
  int lookup(Node directory, std::string_view name, Node& node);
  void open(Node file);
  void release(Node file);
  void forget(Node node, std::uint64_t lookups);

  // Whether a node can only be found by its name: a slice or a subset.
  bool is_looked_up(Node node) const;

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

  // Of files that exist. ENOENT when a name was forgotten meanwhile.

  // Fills `recipe`, which is empty: 0, or EFBIG when the file would break the limit of its format.
  // A recipe that holds much text itself (a name or a shape may have a hundred megabytes) is made
  // when the one before it has ended, so that many readers take no more memory than one.
  int content(Node node, Recipe& recipe) const;
  // Where its bytes are, when they are an extent: it is read without a recipe.
  std::optional<Extent> extent(Node node) const;
  // Whether a file can be read: 0, EFBIG as above, or ESTALE when a source of it has changed.
  int verify(Node node) const;

  // Whether a file's text is computed when it is read, and its size is not known before; and that
  // text: 0, an errno, or EINTR soon after `stop` is set.
  bool is_computed(Node node) const;
  int compute(Node node, const std::atomic<bool>& stop, std::string& text) const;

  std::uint64_t size(Node node) const;  // of the recipe, without its texts; 0 for EFBIG
  timespec mtime(Node node) const;      // of the source; of the newest source for what has none

  // What a file shows, if it shows a tensor's bytes or values.
  struct Shown {
    Tensor tensor;
    std::string_view slice;   // the expression, of a part; while the name is kept
    std::optional<DType> as;  // another type than the tensor's
  };
  std::optional<Shown> shown(Node node) const;

 private:
  // Something that is made when it is first asked for, and kept.
  template <class T>
  struct Kept {
    std::once_flag made;
    std::optional<T> value;
  };
  // What is kept for a row as long as the mount.
  struct OfRow {
    NameList names;            // kList
    Kept<std::uint64_t> size;  // kFile
    Kept<Content> content;     // kFile
  };

  template <class T, class Make>
  static const std::optional<T>& keep(Kept<T>& kept, const Make& make);
  OfRow& of(const ViewSpec& row) const {
    return of_rows_[static_cast<std::size_t>(&row - registry_.rows().data())];
  }
  const PathTree* tree_of(const ViewSpec& row) const;
  const LookedUpNames::Name* kept_name(Node node) const;
  std::optional<ViewFile> file_of(Node file) const;  // none of a name that is not kept

  int look_up_name(const ViewSpec& row, std::uint32_t tensor, std::string_view name, Node& node);
  int lookup_mirrored(const ViewSpec& row, Node directory, std::string_view name, Node& node) const;
  std::optional<Entry> list_mirrored(const ViewSpec& row, Node directory, std::uint64_t cursor,
                                     std::uint64_t& next) const;
  const std::optional<Content>& lasting_content(const ViewSpec& row, const ViewFile& file) const;

  const Checkpoint& checkpoint_;
  Registry registry_;
  ControlDirectory control_;
  timespec newest_{};
  SafetensorsFiles files_;
  LookedUpNames looked_up_;
  mutable Recipes recent_;
  mutable std::binary_semaphore turn_{1};
  mutable std::vector<OfRow> of_rows_;  // in the order of the rows; never grows
  mutable Kept<PathTree> dotted_;
};

}  // namespace stfs
