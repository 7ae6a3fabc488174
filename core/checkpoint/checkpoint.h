// A checkpoint: the tensors of one safetensors file, of a sharded set, or of several of these as
// one namespace. It owns the sources that everything else borrows from.
//
// Immutable once loaded, and then safe to share between threads.
#pragma once

#include "core/checkpoint/tree.h"
#include "core/format/format.h"
#include "core/recipe/content.h"
#include "core/source/source.h"

#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs {

// A part of the checkpoint: one source and the tensors in it. Its label is what the user knows it
// by: the name in the index, or the last component of the path that was given. Labels are unique: a
// second one gets "~2".
struct Part {
  std::unique_ptr<const Source> source;
  const Format* format;
  Header header;  // holds the tensors that are part of the checkpoint, and no others
  std::string label;
};

// The recipe of a tensor that stands in no source as it is: it is computed when it is read.
class ComputedTensor {
 public:
  ComputedTensor() = default;
  ComputedTensor(const ComputedTensor&) = delete;
  ComputedTensor& operator=(const ComputedTensor&) = delete;
  virtual ~ComputedTensor() = default;

  virtual Content content() const = 0;  // Tensor::length bytes
  virtual timespec mtime() const = 0;   // of the newest source that it is computed from
};

// One tensor, borrowed from the checkpoint. Exactly one of `locator` and `computed` is there.
struct Tensor {
  std::string_view name;
  std::string_view path;  // as names.h says
  DType dtype;
  std::span<const std::uint64_t> shape;
  std::uint64_t length;           // bytes
  std::optional<Extent> locator;  // where its bytes are, of `length` bytes
  const ComputedTensor* computed = nullptr;

  std::uint64_t elements() const;
  Content content() const;  // its bytes
  timespec mtime() const;
  int verify() const;  // 0, or ESTALE when a source has changed, or an errno
};

// A tensor that the index names and that is not there (with allow_missing).
struct MissingTensor {
  std::string name;
  std::string source;  // the label of the shard that should hold it
};

struct LoadOptions {
  bool allow_missing = false;  // go on without shards and tensors that an index names
  // Opens a source by its path; throws Error kUnreadable.
  std::function<std::unique_ptr<const Source>(const std::string& path)> open = open_source;
};

class Checkpoint {
 public:
  // Loads every source: a file, an index file, or a directory with one of them. Throws Error.
  explicit Checkpoint(std::span<const std::string> sources, const LoadOptions& options = {});
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  // Tensors are numbered in the order of their bytes: by part, then by offset.
  std::uint32_t tensor_count() const { return first_.back(); }
  Tensor tensor(std::uint32_t number) const;
  std::string_view name(std::uint32_t number) const;
  const Part& part_of(std::uint32_t number) const;  // in which its header stands

  std::optional<std::uint32_t> find(std::string_view wanted) const;

  // The tensors whose names match one of the globs, as fnmatch(3) without flags matches them (`*`
  // crosses `/` and `.`), in the order of their bytes; all of them when there are no globs.
  std::vector<std::uint32_t> match(std::span<const std::string> globs) const;

  const PathTree& tree() const { return *tree_; }

  const std::vector<Part>& parts() const { return parts_; }

  // `__metadata__` of all parts, sorted by key. A key with different values is left out.
  const std::vector<Metadata::Entry>& metadata() const { return metadata_; }
  const std::vector<std::string>& metadata_conflicts() const { return metadata_conflicts_; }

  const std::vector<MissingTensor>& missing() const { return missing_; }

  // What is odd and no error (a wrong total_size, tensors that an index does not name): each a line
  // "place: subject: rule".
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  void load(const std::string& source, const LoadOptions& options);
  void load_directory(const std::string& path, const LoadOptions& options);
  void load_index(const std::string& path, const LoadOptions& options);
  void add_part(Part part);
  std::size_t part_number(std::uint32_t tensor) const;
  std::vector<std::uint32_t> number_tensors();
  void merge_metadata();

  std::vector<Part> parts_;
  std::vector<std::uint32_t> first_{0};  // number of the first tensor of each part; then the count
  std::vector<std::uint32_t> by_name_;
  std::unique_ptr<const PathTree> tree_;
  std::vector<Metadata::Entry> metadata_;
  std::vector<std::string> metadata_conflicts_;
  std::vector<MissingTensor> missing_;
  std::vector<std::string> warnings_;
};

}  // namespace stfs
