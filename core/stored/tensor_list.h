// A list of tensors and metadata: what files hold (stored_tensors.h), or what a layer has made of
// another list (core/layer/layer.h).
//
// Thread safety: const members may be called from any thread; others while one thread has the list.
// Lifetime: the list owns its parts and what computes its tensors. Every Tensor, Part and
// string_view that it returns stays where it is while the list lives, also when the list is moved
// or appended to another; remove_others() alone ends those of parts that it changes.
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

// A file, and its tensors.
struct Part {
  std::unique_ptr<const Source> source;
  const Format* format;
  Header header;  // without tensors that the index does not map to this part
  // The shard's path in the index, or the last component of the path that was loaded. Unique in a
  // list: the second part with a label gets "~2" appended.
  std::string label;
  bool is_whole = true;   // `header` has all tensors of the source
  bool is_split = false;  // a part of a split GGUF file (gguf_split.h)
  // The source of the first part of the split file that this is a part of: that one has the
  // metadata of all parts. Null for a file alone.
  const Source* first_part = nullptr;
  // Where the files lie that belong to the checkpoint of this part, such as config.json.
  std::string directory = {};
  bool is_input = false;  // a layer reads it: it is no part of the checkpoint
  // Keys of its metadata that are not shown, sorted: a layer made them untrue.
  std::vector<std::string> hidden_keys = {};

  // Of header.tensors. Its locator is of no use where the record has a description.
  Tensor tensor(std::uint32_t record) const;
  // Bytes at the beginning of the source that loading has read otherwise than by ReadBytes.
  std::uint64_t beginning() const;
};

// A missing thing, only where missing parts are allowed: a tensor that the index names and no shard
// holds, or a part of a split GGUF file. Such a part alone knows the names of its tensors.
struct MissingTensor {
  std::optional<std::string> name;  // nullopt: all tensors of the part
  std::string source;               // the label of the shard or the part
};

// What layers know of the files beside the weights.
struct FilesBeside {
  // The model had one tensor as its embeddings and its head, and has two.
  bool unties_embeddings = false;
  // The directory whose tokenizer fits the embeddings; "": that of the checkpoint.
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

// Owns computed tensors: a layer derives from it.
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
    std::uint32_t part = 0;    // of a computed tensor: where its first input lies
    std::uint32_t record = 0;  // in that part's header
    // Null: the tensor stands as it is stored. A layer's tensor may be stored too, under another
    // name or in another shape: then its tensor() has a locator.
    const ComputedTensor* computed = nullptr;
    const ComputedTensor* values = nullptr;  // Tensor::values, which tensor() may have too
  };

  // Tensors are numbered in the order of their bytes: by part, then by offset; a computed one by
  // those of its first input. A `number` must be less than size().
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
  // Whether some tensors are computed, or not shown.
  bool is_layered() const { return !texts_.empty(); }

  FilesBeside& beside() { return beside_; }
  const FilesBeside& beside() const { return beside_; }

  const std::vector<MissingTensor>& missing() const { return missing_; }
  // Printable lines "place: subject: rule".
  const std::vector<std::string>& warnings() const { return warnings_; }
  // Those of them about tensors that the files have and the list has not.
  const std::vector<std::string>& refused() const { return refused_; }
  // One text for each layer: what it did, and everything that decided the result.
  const std::vector<std::string>& texts() const { return texts_; }

  // The numbers, bytewise by name; find() needs them. Throws Error kUsage for a name that two
  // tensors have.
  void sort_names();
  const std::vector<std::uint32_t>& by_name() const { return by_name_; }
  std::optional<std::uint32_t> find(std::string_view name) const;

  // The numbers, ascending, of the tensors whose names match a glob; all numbers without globs.
  // Globs are those of fnmatch(3) without flags: `*` matches `/` and `.` too.
  std::vector<std::uint32_t> match(std::span<const std::string> globs) const;

  // --- while loading. What changes the tensors forgets sort_names().

  // Adds all tensors of a part. Throws Error kUsage for more tensors than can be numbered.
  void add(Part part);
  void append(TensorList other);
  void append_inputs(TensorList other);  // of a layer
  // Leaves the tensors of which `is_kept[number]` is true, and forgets what is missing and
  // warnings. Parts that nothing needs any more go too.
  void remove_others(const std::vector<bool>& is_kept);
  void add_missing(MissingTensor missing) { missing_.push_back(std::move(missing)); }
  void add_warning(std::string line) { warnings_.push_back(std::move(line)); }

  // For layers: other tensors in place of those that there are. `text` is one of texts();
  // `hidden_keys`, for each part, Part::hidden_keys.
  // A new key of GGUF has a value without encoded bytes. Ends the texts of the part's metadata.
  void set_metadata(std::size_t part, Metadata metadata) {
    parts_[part]->header.metadata = std::move(metadata);
  }
  // Sets Tensor::values of some tensors. `values` is by number.
  void set_values(const std::vector<std::pair<std::uint32_t, const ComputedTensor*>>& values,
                  std::unique_ptr<const ComputedTensors> computed);
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

// As fnmatch(3) without flags, but that a NUL is a character as others.
bool matches_glob(const std::string& glob, const std::string& name);

// Removes the tensors of a header whose names are not in `names`, which is sorted; sets `others` to
// their number. Returns the names that the header lacks.
std::vector<std::string_view> keep_names(Header& header, std::span<const std::string_view> names,
                                         std::size_t& others);

}  // namespace stfs
