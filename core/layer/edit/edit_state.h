// The tensors of a list while lines of edits change them, and the commands that do so.
//
//   Edited        the tensors after the lines that were applied so far
//   apply_edit()  applies one line; the commands are rows of a table in commands.cpp
//
// Thread safety: one thread at a time. Lifetime: the arguments of the constructor must outlive the
// object.
#pragma once

#include "core/layer/edit/edit_layer.h"
#include "core/layer/edit/edit_lines.h"
#include "core/layer/quantised/quantised_layer.h"
#include "core/remote/sources.h"
#include "core/stored/tensor_list.h"

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace stfs {

class EditedTensors;

class Edited {
 public:
  static constexpr std::size_t kMostTensors = 1 << 20;

  // A tensor and its position among the others.
  struct Item {
    Tensor tensor;  // after the edits so far
    // The number of its part in the list below. The parts of the other sources follow and are
    // numbered in the order in which they were loaded.
    std::uint32_t part;
    std::uint32_t record;  // in the part's header
    // The tensor's number in the list below; nullopt once a line has changed the tensor.
    std::optional<std::uint32_t> below;
  };

  Edited(const TensorList& list, Sources& sources, const LoadSource& load);
  Edited(const Edited&) = delete;
  Edited& operator=(const Edited&) = delete;
  ~Edited();

  std::vector<Item> items;
  // Warnings for the user about things that lines left undone or that look wrong.
  std::vector<std::string> warnings;
  // The keys that lines have set, with their values, and the keys that they have removed, with
  // nullopt.
  std::map<std::string, std::optional<std::string>, std::less<>> metadata;

  // Returns the scheme of the quantised weight that the item's codes or scales belong to, if the
  // checkpoint shows them as they are stored. Returns "" for any other item.
  std::string_view scheme_of_codes(const Item& item);
  // Returns the item with this name, or nullptr if no item has it.
  Item* find(std::string_view name);
  bool is_gguf() const;  // returns whether the first part is a GGUF file
  // Returns true if a part shows the key or a line has set it.
  bool has_key(std::string_view key) const;
  // Returns the type of the key's value before the edits; only GGUF has types other than string.
  // Returns kString for a new key.
  ValueType type_of(std::string_view key) const;
  // Throw Error kEdit for `line`: the first if two items have the same name, the second if `more`
  // further items would exceed kMostTensors.
  void refuse_same_names(const EditLine& line) const;
  void require_room(const EditLine& line, std::size_t more) const;

  // keep() stores a text or a shape for as long as the result lives. Call may_keep() before keeping
  // a text: it returns false if all texts together would exceed 1 GiB. Without this limit a short
  // file could double the length of all names with each line.
  bool may_keep(std::size_t bytes) const;
  std::string_view keep(std::string text);
  std::span<const std::uint64_t> keep(std::vector<std::uint64_t> shape);
  // Returns a tensor with the name of `item`. `make` computes its bytes from the item's bytes. If
  // `make` returns a single extent, the result is a stored tensor.
  Tensor computed(const Item& item, DType dtype, std::span<const std::uint64_t> shape,
                  std::string_view scheme,
                  Content (*make)(const Tensor& in, const Tensor& out, const std::string& argument),
                  std::string argument = {});

  // Loads the tensors of another source, once per path. A .npy file is a source of one tensor.
  // Throws Error. `first_part` is the number of the source's first part (Item::part).
  struct Other {
    const TensorList* list;
    std::uint32_t first_part;
  };
  Other other(const std::string& path);

  // Turns `list`, the list that was given to the constructor, into the result. `text` describes
  // the layer in user.stfs.mount. Call it once.
  void finish(TensorList& list, std::string text);

 private:
  Metadata metadata_of(const Part& part, bool is_first) const;
  const Part& part(std::uint32_t number) const;

  const TensorList& list_;
  Sources& sources_;
  const LoadSource& load_;
  std::unique_ptr<EditedTensors> made_;
  // The positions of items by name, as of the last time that find() rebuilt the map; may be stale.
  std::unordered_map<std::string_view, std::size_t> places_;
  std::map<std::string, std::size_t, std::less<>> other_at_;  // index in others_, by path
  std::deque<TensorList> others_;
  std::vector<std::uint32_t> first_parts_;  // the number of the first part of each list in others_
  std::uint32_t parts_;                     // the number of parts in the list and in others_
  // the codes of the list, once scheme_of_codes() has needed them
  std::optional<StoredCodes> codes_;
  // part and record of each tensor of codes_
  std::set<std::pair<std::uint32_t, std::uint32_t>> code_rows_;
};

// Applies one line. Throws Error kEdit.
void apply_edit(const EditLine& line, Edited& edited);

}  // namespace stfs
