// A checkpoint as a mount shows it: the tensors of one or several SOURCEs in one namespace, after
// the layers were applied, with their paths in a mount and their metadata.
//
// Thread safety: a Checkpoint is immutable once constructed; its members may be called from any
// thread. Lifetime: it owns its sources, names and shapes. Every Tensor, Content and string_view
// that it returns borrows from it.
#pragma once

#include "core/checkpoint/metadata.h"
#include "core/checkpoint/model_files.h"
#include "core/checkpoint/mount_source.h"
#include "core/checkpoint/source_lists.h"
#include "core/checkpoint/tree.h"
#include "core/layer/layer.h"
#include "core/remote/sources.h"
#include "core/source/source.h"
#include "core/stored/tensor_list.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs {

struct LoadOptions {
  bool allow_missing = false;  // accept missing shards, parts and tensors
  bool alone = false;          // load one part of a split GGUF file without the other parts
  Layers layers = {};
  bool with_model_files = false;  // open the files of Checkpoint::model_files()
  // Other users can read what is shown, so model files that not all users may read are left out.
  bool others_may_read = false;
  // How the user would set allow_missing, for messages: "-o allow_missing mounts the rest".
  std::string_view missing_hint = {};
  // Called with each line of warnings() after all is loaded. May be null.
  std::function<void(const std::string& line)> warn = nullptr;
  bool warns_of_refused_alone = false;  // call `warn` only for tensors that were refused
  // Opens the sources; must outlive the checkpoint. Null: the checkpoint makes its own Sources with
  // the default options.
  Sources* sources = nullptr;
};

class Checkpoint {
 public:
  // Loads all sources. A source is a safetensors or a GGUF file, the first part of a split GGUF
  // file, an index file (*.safetensors.index.json), or a directory (directory.h says what a
  // directory means). Each may be a URL (url.h). A source may also be a mount of stfs, or a tensor
  // or directory in a mount: its tensors are then loaded from the mount's own sources, which must
  // still be the versions that the mount shows. Throws Error.
  explicit Checkpoint(std::span<const std::string> sources, const LoadOptions& options = {});
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  // Returns the tensors that are shown. Their numbers are less than tensor_count().
  const TensorList& list() const { return list_; }
  std::uint32_t tensor_count() const { return list_.size(); }
  Tensor tensor(std::uint32_t number) const;  // with the tensor's path in a mount
  std::string_view name(std::uint32_t number) const { return list_.name(number); }
  std::optional<Extent> locator(std::uint32_t number) const { return list_.locator(number); }
  const Part& part_of(std::uint32_t number) const { return list_.part_of(number); }
  std::optional<std::uint32_t> find(std::string_view name) const { return list_.find(name); }
  std::vector<std::uint32_t> match(std::span<const std::string> globs) const {
    return list_.match(globs);
  }
  Parts parts() const { return list_.parts(); }
  const std::vector<MissingTensor>& missing() const { return list_.missing(); }
  const std::vector<std::string>& warnings() const { return list_.warnings(); }

  const PathTree& tree() const { return *tree_; }

  // Returns the one source, if it has this format, contains exactly the tensors that are shown, and
  // no layer has changed them. Returns null otherwise.
  const Source* single_file(std::string_view format = kSafetensorsName) const;

  // Returns the metadata of all parts that has a text (Metadata::Entry), sorted by key. If parts
  // have different values for a key, the key is in metadata_conflicts() instead, which is sorted
  // too.
  const std::vector<Metadata::Entry>& metadata() const { return metadata_; }
  const std::vector<std::string>& metadata_conflicts() const { return metadata_conflicts_; }
  // Returns an item of the metadata with its type. The items include values that have no text in
  // memory, but not the keys that number the parts of a split GGUF file. `i` must be less than
  // metadata_count().
  std::uint32_t metadata_count() const { return static_cast<std::uint32_t>(items_.size()); }
  MetadataItem metadata_item(std::uint32_t i) const;

  // Returns SourceLists::origins.
  const std::vector<std::string>& origins() const { return origins_; }

  // Returns SourceLists::mounts.
  const std::vector<std::string>& mounts() const { return mounts_; }

  // Returns the layers of LoadOptions, with resolved arguments.
  const Layers& layers() const { return layers_; }

  // Returns the files beside the source that loaders of models read, sorted bytewise by name. The
  // list is empty unless all of this holds: LoadOptions::with_model_files is set, there is one
  // source, which has safetensors or PyTorch files, the tensors have the names that the model's
  // code uses (MLX uses other names), and there is a config.json.
  const std::vector<ModelFile>& model_files() const { return model_files_; }

  // Returns the sources of the parts, then the sources of the model files.
  std::vector<const Source*> sources() const;

 private:
  void load(std::span<const std::string> sources, const LoadOptions& options, Sources& opener);
  void open_model_files(SourceLists& loaded, Sources& opener, bool others_may_read);
  // The place of an item: an entry in the metadata of a part.
  struct ItemPlace {
    std::uint32_t part, entry;
  };
  MetadataItem item_at(ItemPlace place) const;
  void merge_metadata();
  void keep_arrays();

  std::unique_ptr<Sources> own_sources_;  // set if LoadOptions::sources is null
  TensorList list_;
  std::vector<ModelFile> model_files_;
  std::vector<std::string> origins_;
  std::vector<std::string> mounts_;
  Layers layers_;
  std::unique_ptr<const PathTree> tree_;
  std::vector<Metadata::Entry> metadata_;
  std::vector<std::string> metadata_conflicts_;
  std::vector<ItemPlace> items_;
  std::map<std::uint32_t, ArrayText> arrays_;  // by the number of the item
};

// Returns false if a file of the Hub's own cache that the checkpoint reads has changed or was
// replaced. version_of() does not show it, because such a file has the token of its object.
bool are_copies_current(const Checkpoint& checkpoint);

}  // namespace stfs
