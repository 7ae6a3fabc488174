// A list of tensors while lines of edits change it, and the commands.
//
//   Edited        the tensors as they are after the lines so far
//   apply_edit()  one line: a row of the table of commands in edited.cpp
//
// Thread safety: one thread at a time. Lifetime: what the constructor is given outlives it.
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

  // A tensor, and where it stands among the others.
  struct Item {
    Tensor tensor;       // as it is now
    std::uint32_t part;  // of the list below, or behind them one of the other sources
    std::uint32_t record;
    std::optional<std::uint32_t> below;  // its number there; nullopt once a line has touched it
  };

  Edited(const TensorList& list, Sources& sources, const LoadSource& load);
  Edited(const Edited&) = delete;
  Edited& operator=(const Edited&) = delete;
  ~Edited();

  std::vector<Item> items;
  // What lines did not do, for the user.
  std::vector<std::string> warnings;
  // Set or removed keys: nullopt removes one.
  std::map<std::string, std::optional<std::string>, std::less<>> metadata;

  // Of a checkpoint whose codes are shown as stored: their scheme, if the item is codes, or their
  // scales; else "".
  std::string_view scheme_of_codes(const Item& item);
  // The item with this name; null when there is none.
  Item* find(std::string_view name);
  bool is_gguf() const;  // the first part
  bool has_key(std::string_view key) const;
  // The type of a key's value, which GGUF has; a string for a key that is new.
  ValueType type_of(std::string_view key) const;
  // Throw by `line`: when two items have one name; when there would be more than kMostTensors.
  void refuse_same_names(const EditLine& line) const;
  void require_room(const EditLine& line, std::size_t more) const;

  // Texts, shapes and tensors that live as long as the result. A short file could double the names
  // with each line: ask before a text of so many bytes is kept.
  bool may_keep(std::size_t bytes) const;
  std::string_view keep(std::string text);
  std::span<const std::uint64_t> keep(std::vector<std::uint64_t> shape);
  // A tensor with the name of an item's, whose bytes `make` computes of those.
  Tensor computed(const Item& item, DType dtype, std::span<const std::uint64_t> shape,
                  std::string_view scheme,
                  Content (*make)(const Tensor& in, const Tensor& out, const std::string& argument),
                  std::string argument = {});

  // The tensors of another source, and the number of their first part. A .npy file is one tensor.
  // Throws Error.
  struct Other {
    const TensorList* list;
    std::uint32_t first_part;
  };
  Other other(const std::string& path);

  // Makes `list`, that of the constructor, the result. Call it once.
  void finish(TensorList& list, std::string text);

 private:
  Metadata metadata_of(const Part& part, bool is_first) const;
  const Part& part(std::uint32_t number) const;

  const TensorList& list_;
  Sources& sources_;
  const LoadSource& load_;
  std::unique_ptr<EditedTensors> made_;
  std::unordered_map<std::string_view, std::size_t>
      places_;  // of items by name, as find() last saw them
  std::map<std::string, std::size_t, std::less<>> other_at_;  // by path
  std::deque<TensorList> others_;
  std::vector<std::uint32_t> first_parts_;
  std::uint32_t parts_;               // of the list and of others_
  std::optional<StoredCodes> codes_;  // of the list, once they were asked for
  std::set<std::pair<std::uint32_t, std::uint32_t>> code_rows_;  // part and record of each
};

// Throws Error kEdit.
void apply_edit(const EditLine& line, Edited& edited);

}  // namespace stfs
