// A list of tensors and metadata: the content of files (stored_tensors.h), or the result of
// applying a layer to another list (core/layer/layer.h).
//
// Thread safety: const members may be called from any thread. Call the others only while no other
// thread uses the list. Lifetime: the list owns its parts and its computed tensors. Every Tensor,
// Part and string_view that it returns is valid as long as the list exists, even if the list is
// moved or appended to another. There are two exceptions: remove_others() may invalidate what was
// returned of the parts that it changes, and set_metadata() invalidates texts of the old metadata.
#pragma once

#include "core/format/format.h"
#include "core/source/source.h"
#include "core/stored/tensor.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs {

// A file and its tensors.
struct Part {
  std::unique_ptr<const Source> source;
  const Format* format;
  Header header;  // without tensors that the index does not map to this part
  // The shard's path in the index, or the last component of the path that was loaded. Unique in a
  // list: the second part with a label gets "~2" appended.
  std::string label;
  bool is_whole = true;   // the list has all tensors of the source
  bool is_split = false;  // a part of a split GGUF file (gguf_split.h)
  // The source of the first part of the split file, which has the metadata of all parts. Null if
  // the part was not loaded together with the other parts of a split file.
  const Source* first_part = nullptr;
  // The directory of the files that belong to the checkpoint of this part, such as config.json.
  std::string directory = {};
  bool is_input = false;  // only a layer reads the part; it does not belong to the checkpoint
  // Keys of the part's metadata that are not shown, because a layer has made their values wrong.
  // Sorted.
  std::vector<std::string> hidden_keys = {};

  // Returns the tensor header.tensors[record]. Do not use its locator if the record has a
  // description.
  Tensor tensor(std::uint32_t record) const;
  // Returns the number of bytes at the beginning of the source that loading has read directly,
  // without ReadBytes.
  std::uint64_t beginning() const;
};

// What is missing if the user allows missing parts: either a tensor that the index names but no
// shard contains, or a part of a split GGUF file with all its tensors.
struct MissingTensor {
  std::optional<std::string> name;  // nullopt for a part, because only the part has the names
  std::string source;               // the label of the shard or the part
};

// What layers have found out about the files beside the weights, such as config.json.
struct FilesBeside {
  // The embeddings and the head of the model were one tensor, and a layer has made two tensors of
  // it.
  bool unties_embeddings = false;
  // The directory with the tokenizer that fits the embeddings; "" for the checkpoint's directory.
  std::string tokenizer = {};
};

// The parts of a list, as a range of `const Part&`.
class Parts {
 public:
  class Iterator {
   public:
    using value_type = Part;
    using difference_type = std::ptrdiff_t;

    Iterator() = default;
    explicit Iterator(const std::unique_ptr<Part>* at) : at_(at) {}
    const Part& operator*() const { return **at_; }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    Iterator operator++(int) { return Iterator(at_++); }
    bool operator==(const Iterator&) const = default;

   private:
    const std::unique_ptr<Part>* at_ = nullptr;
  };

  explicit Parts(std::span<const std::unique_ptr<Part>> parts) : parts_(parts) {}
  Iterator begin() const { return Iterator(parts_.data()); }
  Iterator end() const { return Iterator(parts_.data() + parts_.size()); }
  std::size_t size() const { return parts_.size(); }
  bool empty() const { return parts_.empty(); }
  const Part& front() const { return *parts_.front(); }
  const Part& operator[](std::size_t i) const { return *parts_[i]; }

 private:
  std::span<const std::unique_ptr<Part>> parts_;
};

// Owns computed tensors. Layers derive from it.
class ComputedTensors {
 public:
  ComputedTensors() = default;
  ComputedTensors(const ComputedTensors&) = delete;
  ComputedTensors& operator=(const ComputedTensors&) = delete;
  virtual ~ComputedTensors() = default;
};

class TensorList {
 public:
  struct Row {
    std::uint32_t part = 0;    // the part of the tensor, or of a computed tensor's first input
    std::uint32_t record = 0;  // the index in this part's header
    // Null if the tensor is shown as it is stored. If a layer has only changed the name or the
    // shape of a stored tensor, `computed` is set, and tensor() still has a locator.
    const ComputedTensor* computed = nullptr;
    // If not null, replaces Tensor::values.
    const ComputedTensor* values = nullptr;
  };

  // Tensors are numbered in the order of their bytes: by part, then by offset. A computed tensor
  // has the place of its first input in this order. A `number` must be less than size().
  std::uint32_t size() const { return static_cast<std::uint32_t>(rows_.size()); }
  const Row& row(std::uint32_t number) const { return rows_[number]; }
  Tensor tensor(std::uint32_t number) const;
  std::string_view name(std::uint32_t number) const;
  std::optional<Extent> locator(std::uint32_t number) const;
  const Part& part_of(std::uint32_t number) const { return *parts_[rows_[number].part]; }
  const TensorRecord& record(std::uint32_t number) const {
    return part_of(number).header.tensors[rows_[number].record];
  }

  Parts parts() const { return Parts(parts_); }
  // Returns true if a layer has changed the list (show()).
  bool is_layered() const { return !texts_.empty(); }

  FilesBeside& beside() { return beside_; }
  const FilesBeside& beside() const { return beside_; }

  const std::vector<MissingTensor>& missing() const { return missing_; }
  // Printable lines "place: subject: rule".
  const std::vector<std::string>& warnings() const { return warnings_; }
  // The warnings about tensors that the files contain but that are not in the list.
  const std::vector<std::string>& refused() const { return refused_; }
  // One text for each layer: what the layer did, and everything that decided the result.
  const std::vector<std::string>& texts() const { return texts_; }

  // Fills by_name(), the numbers sorted bytewise by name, which find() needs. Throws Error kUsage
  // if two tensors have the same name.
  void sort_names();
  const std::vector<std::uint32_t>& by_name() const { return by_name_; }
  std::optional<std::uint32_t> find(std::string_view name) const;

  // Returns the numbers, ascending, of the tensors with a name that matches one of the globs, or
  // all numbers if `globs` is empty. A glob has the syntax of fnmatch(3) without flags: `*` matches
  // `/` and `.` too.
  std::vector<std::uint32_t> match(std::span<const std::string> globs) const;

  // --- Members for loading. After a change of the tensors, call sort_names() again.

  // Adds all tensors of a part. Throws Error kUsage if there are more tensors than 32 bits can
  // number.
  void add(Part part);
  void append(TensorList other);
  // Adds the tensors that a layer reads, in parts with is_input.
  void append_inputs(TensorList other);
  // Keeps only the tensors for which `is_kept[number]` is true. Clears missing() and the warnings.
  // Removes the parts that have no tensors left, except the first part of a split file. If the list
  // has layers or computed values, keeps all parts, because computed tensors may read them.
  void remove_others(const std::vector<bool>& is_kept);
  void add_missing(MissingTensor missing) { missing_.push_back(std::move(missing)); }
  void add_warning(std::string line) { warnings_.push_back(std::move(line)); }

  // Replaces the metadata of a part. In a GGUF file, the value of a new key has no encoded bytes.
  // Texts that were borrowed from the part's old metadata become invalid.
  void set_metadata(std::size_t part, Metadata metadata) {
    parts_[part]->header.metadata = std::move(metadata);
  }
  // Sets Tensor::values of some tensors. `values` has pairs of a tensor's number and its values,
  // which `computed` owns.
  void set_values(const std::vector<std::pair<std::uint32_t, const ComputedTensor*>>& values,
                  std::unique_ptr<const ComputedTensors> computed);
  // For layers: replaces all tensors by `rows`. `computed` owns the new computed tensors, `text` is
  // added to texts(), and `hidden_keys` has Part::hidden_keys for each part.
  void show(std::vector<Row> rows, std::unique_ptr<const ComputedTensors> computed,
            std::string text, std::vector<std::vector<std::string>> hidden_keys);

 private:
  void adopt(std::unique_ptr<Part> part, std::size_t count);
  void add_rows(std::uint32_t part);

  std::vector<std::unique_ptr<Part>> parts_;
  std::vector<std::unique_ptr<const ComputedTensors>> computed_;
  std::vector<Row> rows_;
  std::vector<std::uint32_t> by_name_;
  std::vector<MissingTensor> missing_;
  std::vector<std::string> warnings_, refused_;
  std::vector<std::string> texts_;
  FilesBeside beside_;
};

// Matches a glob like fnmatch(3) without flags, but treats a NUL as an ordinary character.
bool matches_glob(const std::string& glob, const std::string& name);

// Removes all tensors of a header except those in `names`, which must be sorted. Sets `others` to
// the number of removed tensors. Returns the names that the header lacks.
std::vector<std::string_view> keep_names(Header& header, std::span<const std::string_view> names,
                                         std::size_t& others);

}  // namespace stfs
