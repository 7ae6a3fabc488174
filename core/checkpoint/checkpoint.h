// A checkpoint: the tensors of a file, safetensors or GGUF, of a sharded or split set, or of
// several of these in one namespace; as they are stored, or some of them computed from those
// (derivation.h).
//
// Thread safety: a Checkpoint is immutable once constructed; its members may be called from any
// thread. Lifetime: it owns its sources, names and shapes. Every Tensor, Content and string_view
// that it returns borrows from it.
#pragma once

#include "core/checkpoint/derivation.h"
#include "core/checkpoint/metadata.h"
#include "core/checkpoint/model_files.h"
#include "core/checkpoint/mounted.h"
#include "core/checkpoint/tree.h"
#include "core/format/format.h"
#include "core/recipe/content.h"
#include "core/source/source.h"
#include "core/source/sources.h"

#include <cstdint>
#include <ctime>
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

// One source of a checkpoint and its tensors.
struct Part {
  std::unique_ptr<const Source> source;
  const Format* format;
  Header header;  // without tensors that the index does not map to this part
  // The shard's path in the index, or the last component of the path that was loaded. Unique: the
  // second part with a label gets "~2" appended.
  std::string label;
  bool is_whole = true;   // `header` has all tensors of the source
  bool is_split = false;  // a part of a split GGUF file (gguf_split.h)
  // Of the first part of the split file with which this part was loaded; null for a file alone. The
  // first part has the metadata of all.
  const Source* first_part = nullptr;
  // Where the files lie that belong to the checkpoint of this part, such as config.json.
  std::string directory = {};
  // Keys of its metadata that are not shown, sorted: they describe what its tensors were before
  // they were dequantised.
  std::vector<std::string> hidden_keys = {};
};

struct QuantizedRecipe;
struct Tensor;

// A tensor whose bytes are computed when they are read. Thread safety: its members may be called
// from any thread.
class ComputedTensor {
 public:
  ComputedTensor() = default;
  ComputedTensor(const ComputedTensor&) = delete;
  ComputedTensor& operator=(const ComputedTensor&) = delete;
  virtual ~ComputedTensor() = default;

  virtual Content content() const = 0;  // Tensor::length bytes
  virtual timespec mtime() const = 0;   // of the newest source that it reads
  // The stored tensors that it is made of, the one with most of its bytes first.
  virtual std::vector<Tensor> inputs() const;
  // How it is computed, in words for a user: "block FP8".
  virtual std::string_view scheme() const { return ""; }
  // What content() computes, for another process (core/recipe/dequantize.h); nullopt: it cannot be
  // told.
  virtual std::optional<QuantizedRecipe> recipe() const;
};

// One tensor. Has either a `locator` or a `computed`.
struct Tensor {
  std::string_view name;
  std::string_view path;  // in the mount, relative to its root (names.h)
  DType dtype;
  std::span<const std::uint64_t> shape;
  std::uint64_t length;           // bytes
  std::optional<Extent> locator;  // its bytes in a source
  const ComputedTensor* computed = nullptr;

  std::uint64_t elements() const;
  Content content() const;  // the recipe of its bytes
  timespec mtime() const;
  int verify() const;  // Source::verify() of its sources
};

// A missing thing, only with LoadOptions::allow_missing: a tensor that the index names and no shard
// holds, or a part of a split GGUF file. Such a part alone knows the names of its tensors.
struct MissingTensor {
  std::optional<std::string> name;  // nullopt: all tensors of the part
  std::string source;               // the label of the shard or the part
};

struct LoadOptions {
  bool allow_missing = false;  // accept missing shards, parts and tensors
  bool alone = false;          // takes a part of a split GGUF file without the others
  // Shows quantised tensors as BF16, F16 or F32 (dequantize.h).
  std::optional<DType> dequantize = {};
  bool with_model_files = false;  // opens those of Checkpoint::model_files()
  bool others_may_read = false;   // what is shown: open_model_files()
  // How the user would set allow_missing, for messages: "-o allow_missing mounts the rest".
  std::string_view missing_hint = {};
  // Is told each of warnings() once all is loaded.
  std::function<void(const std::string& line)> warn = nullptr;
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

  // Tensors are numbered in the order of their bytes: by part, then by offset; a computed one by
  // those of its first input. A `number` must be less than tensor_count().
  std::uint32_t tensor_count() const {
    return derivation_ ? static_cast<std::uint32_t>(derivation_->shown.size()) : first_.back();
  }
  Tensor tensor(std::uint32_t number) const;
  std::string_view name(std::uint32_t number) const;
  std::optional<Extent> locator(std::uint32_t number) const;  // Tensor::locator, nothing else
  // The part with its header; of a computed tensor, that of its first input.
  const Part& part_of(std::uint32_t number) const;
  // In that header; of a computed tensor, that of its first input.
  const TensorRecord& record(std::uint32_t number) const;

  // The tensors of all parts, as they are stored: also those that are shown as others. They have
  // numbers of their own, and no path.
  Tensor stored_tensor(std::uint32_t stored) const;
  std::uint32_t stored_number(std::uint32_t number) const {
    return derivation_ ? derivation_->shown[number].stored : number;
  }

  // The number of the tensor with this name; nullopt when there is none.
  std::optional<std::uint32_t> find(std::string_view tensor_name) const;

  // The numbers, ascending, of the tensors whose names match a glob; all numbers without globs.
  // Globs are those of fnmatch(3) without flags: `*` matches `/` and `.` too.
  std::vector<std::uint32_t> match(std::span<const std::string> globs) const;

  const PathTree& tree() const { return *tree_; }

  const std::vector<Part>& parts() const { return parts_; }

  // Whether some tensors are computed from others; and what decided how, for version_of().
  bool is_derived() const { return derivation_ != nullptr; }
  std::span<const std::string> derivation_texts() const;

  // The file of this format that holds these tensors and no others; null when there is none.
  const Source* single_file(std::string_view format = kSafetensorsName) const;

  // The metadata of all parts, sorted by key: those with a text (Metadata::Entry). Keys to which
  // parts give different values are in metadata_conflicts() instead, sorted too.
  const std::vector<Metadata::Entry>& metadata() const { return metadata_; }
  const std::vector<std::string>& metadata_conflicts() const { return metadata_conflicts_; }
  // The same with the types, and with the values that have no text in memory. Without the keys that
  // say which part of a split GGUF file a part is. `i` < metadata_count().
  std::uint32_t metadata_count() const { return static_cast<std::uint32_t>(items_.size()); }
  MetadataItem metadata_item(std::uint32_t i) const;

  // The sources, with absolute paths, or with URLs that are pinned and without secrets. A mount
  // stands as its own sources, so loading them again needs no mount.
  const std::vector<Origin>& origins() const { return origins_; }

  const std::vector<MissingTensor>& missing() const { return missing_; }

  // The files for loaders beside the one source, bytewise by name: only with
  // LoadOptions::with_model_files, of safetensors with names of the model's code (not those of
  // MLX), and only where there is a config.json.
  const std::vector<ModelFile>& model_files() const { return model_files_; }

  // The sources of the parts, then those of the model files.
  std::vector<const Source*> sources() const;

  // Lines "place: subject: rule" about a wrong total_size, about tensors that an index does not
  // name, and about tensors in missing parts. Printable (text.h).
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  // Only the parts, without an order and a tree of their tensors.
  Checkpoint(std::span<const Origin> origins, const LoadOptions& options);

  void load(const std::string& source, const LoadOptions& options);
  void load(const Origin& origin, const LoadOptions& options);
  void load_mounted(MountedPath mounted, const LoadOptions& options);
  bool load_if_current(const MountedPath& mounted, const LoadOptions& options);
  void load_path(const std::string& path, const LoadOptions& options);
  void load_directory(const std::string& path, const std::vector<std::string>& names,
                      const LoadOptions& options);
  void load_index(const std::string& path, const LoadOptions& options);
  void load_file(const std::string& path, std::string label, const LoadOptions& options);
  void load_split(const std::string& path, Part first, const LoadOptions& options);
  void add_shard(const std::string& path, Part part, std::span<const std::string_view> mapped,
                 const LoadOptions& options);
  void add_part(Part part);
  void add_parts(Checkpoint& other);  // takes them
  void order_tensors();
  void keep_within(const std::string& within);
  void derive(DType type, Sources& sources);
  void complete_derivation();
  void open_model_files(Sources& sources, bool others_may_read);
  std::size_t part_number(std::uint32_t stored) const;
  std::vector<std::uint32_t> number_tensors();
  // The entry of a part's metadata.
  struct ItemPlace {
    std::uint32_t part, entry;
  };
  MetadataItem item_at(ItemPlace place) const;
  void merge_metadata();
  void keep_arrays();

  std::unique_ptr<Sources> own_sources_;  // of LoadOptions without sources
  // The directory that was loaded last, and the names in it, while loading.
  std::pair<std::string, std::vector<std::string>> listed_;
  std::vector<ModelFile> model_files_;
  std::vector<Origin> origins_;
  std::vector<Part> parts_;
  // The first stored tensor of each part; then the number of them all.
  std::vector<std::uint32_t> first_{0};
  std::unique_ptr<Derivation> derivation_;  // null: all tensors are shown as they are stored
  std::vector<std::uint32_t> by_name_;      // numbers, bytewise by name
  std::unique_ptr<const PathTree> tree_;
  std::vector<Metadata::Entry> metadata_;
  std::vector<std::string> metadata_conflicts_;
  std::vector<ItemPlace> items_;
  std::map<std::uint32_t, ArrayText> arrays_;  // by item
  std::vector<MissingTensor> missing_;
  std::vector<std::string> warnings_;
};

}  // namespace stfs
