// A checkpoint as it is shown: the tensors of one or several SOURCEs, with layers, in one
// namespace, their paths in a mount, and their metadata.
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
  bool alone = false;          // takes a part of a split GGUF file without the others
  Layers layers = {};
  bool with_model_files = false;  // opens those of Checkpoint::model_files()
  bool others_may_read = false;   // what is shown: open_model_files()
  // How the user would set allow_missing, for messages: "-o allow_missing mounts the rest".
  std::string_view missing_hint = {};
  // Is told each of warnings() once all is loaded, or only which tensors were refused.
  std::function<void(const std::string& line)> warn = nullptr;
  bool warns_of_refused_alone = false;
  // Opens the sources; outlives the checkpoint. Null: the checkpoint has its own, with the default
  // options.
  Sources* sources = nullptr;
};

class Checkpoint {
 public:
  // Loads all sources. A source is a safetensors or a GGUF file, the first part of a split GGUF
  // file, an index file (*.safetensors.index.json), or a directory (directory.h says what it
  // means); each may be a URL (url.h). A mount of stfs, or a tensor or directory in it, means its
  // tensors in the mount's sources, which must be the versions that it shows. Throws Error.
  explicit Checkpoint(std::span<const std::string> sources, const LoadOptions& options = {});
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  // The tensors that are shown; their numbers are less than tensor_count().
  const TensorList& list() const { return list_; }
  std::uint32_t tensor_count() const { return list_.size(); }
  Tensor tensor(std::uint32_t number) const;  // with its path
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

  // The file of this format that holds these tensors and no others; null when there is none.
  const Source* single_file(std::string_view format = kSafetensorsName) const;

  // The metadata of all parts, sorted by key: those with a text (Metadata::Entry). Keys to which
  // parts give different values are in metadata_conflicts() instead, sorted too.
  const std::vector<Metadata::Entry>& metadata() const { return metadata_; }
  const std::vector<std::string>& metadata_conflicts() const { return metadata_conflicts_; }
  // The metadata with types, also the values that have no text in memory, without the keys that say
  // which part of a split GGUF file a part is. `i` < metadata_count().
  std::uint32_t metadata_count() const { return static_cast<std::uint32_t>(items_.size()); }
  MetadataItem metadata_item(std::uint32_t i) const;

  // SourceLists::origins.
  const std::vector<std::string>& origins() const { return origins_; }

  // SourceLists::mounts.
  const std::vector<std::string>& mounts() const { return mounts_; }

  // The layers of LoadOptions, with resolved arguments.
  const Layers& layers() const { return layers_; }

  // The files for loaders beside the one source, bytewise by name: only with
  // LoadOptions::with_model_files, of safetensors with names of the model's code (not those of
  // MLX), and only where there is a config.json.
  const std::vector<ModelFile>& model_files() const { return model_files_; }

  // The sources of the parts, then those of the model files.
  std::vector<const Source*> sources() const;

 private:
  void load(std::span<const std::string> sources, const LoadOptions& options, Sources& opener);
  void open_model_files(SourceLists& loaded, Sources& opener, bool others_may_read);
  // The entry of a part's metadata.
  struct ItemPlace {
    std::uint32_t part, entry;
  };
  MetadataItem item_at(ItemPlace place) const;
  void merge_metadata();
  void keep_arrays();

  std::unique_ptr<Sources> own_sources_;  // of LoadOptions without sources
  TensorList list_;
  std::vector<ModelFile> model_files_;
  std::vector<std::string> origins_;
  std::vector<std::string> mounts_;
  Layers layers_;
  std::unique_ptr<const PathTree> tree_;
  std::vector<Metadata::Entry> metadata_;
  std::vector<std::string> metadata_conflicts_;
  std::vector<ItemPlace> items_;
  std::map<std::uint32_t, ArrayText> arrays_;  // by item
};

}  // namespace stfs
