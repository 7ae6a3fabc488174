#include "core/stored/tensor_list.h"

#include "core/base/error.h"
#include "core/base/sha256.h"
#include "core/base/sort.h"
#include "core/base/text.h"
#include "core/stored/described_tensors.h"

#include <fnmatch.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>
#include <span>
#include <string_view>
#include <utility>

namespace stfs {
namespace {

// Appends a digest of the names in the list to the texts of layers, to record which tensors a layer
// was applied to. Does this only once per text: a text without a digest ends with a NUL.
void add_scope(const TensorList& list, std::vector<std::string>& texts) {
  const auto tells = [](const std::string& text) { return !text.empty() && text.back() != '\0'; };
  if (std::ranges::all_of(texts, tells)) return;
  Sha256 names;
  const auto add = [&](std::string_view text) { names.add(std::as_bytes(std::span(text))); };
  for (std::uint32_t i = 0; i < list.size(); ++i) {
    add(std::to_string(list.name(i).size()) + ":");
    add(list.name(i));
  }
  const std::string scope = names.hex();
  for (std::string& text : texts) {
    if (!tells(text)) text += scope;
  }
}

// Rebuilds the arenas of a header without the names and shapes of removed tensors.
void compact(Header& header) {
  std::string names;
  std::vector<std::uint64_t> dims;
  for (TensorRecord& tensor : header.tensors) {
    const std::string_view name = header.name(tensor);
    const std::span shape = header.shape(tensor);
    if (tensor.stored_rank != TensorRecord::kStoredAsShape) {
      const std::span stored = header.stored_shape(tensor);
      dims.insert(dims.end(), stored.begin(), stored.end());
    }
    tensor.name_begin = names.size();
    tensor.shape_begin = dims.size();
    names += name;
    dims.insert(dims.end(), shape.begin(), shape.end());
  }
  header.names = std::move(names);
  header.dims = std::move(dims);
  header.tensors.shrink_to_fit();
  header.by_name.shrink_to_fit();
}

}  // namespace

Tensor Part::tensor(std::uint32_t record) const {
  const TensorRecord& stored = header.tensors[record];
  return {.name = header.name(stored),
          .path = {},
          .dtype = stored.dtype,
          .shape = header.shape(stored),
          .length = stored.length,
          .locator = Extent{source.get(), stored.offset, stored.length}};
}

std::uint64_t Part::beginning() const {
  const std::uint64_t length = header.beginning.value_or(header.raw.offset + header.raw.length);
  return std::min(std::max<std::uint64_t>(length, kFirstBytes), source->size());
}

Tensor TensorList::tensor(std::uint32_t number) const {
  const Row& row = rows_[number];
  Tensor tensor =
      row.computed != nullptr ? row.computed->tensor() : parts_[row.part]->tensor(row.record);
  if (row.values != nullptr) tensor.values = row.values;
  return tensor;
}

std::string_view TensorList::name(std::uint32_t number) const {
  const Row& row = rows_[number];
  if (row.computed != nullptr) return row.computed->tensor().name;
  const Header& header = parts_[row.part]->header;
  return header.name(header.tensors[row.record]);
}

std::optional<Extent> TensorList::locator(std::uint32_t number) const {
  if (const ComputedTensor* const computed = rows_[number].computed) {
    return computed->tensor().locator;
  }
  const TensorRecord& stored = record(number);
  return Extent{part_of(number).source.get(), stored.offset, stored.length};
}

void TensorList::sort_names() {
  if (parts_.size() == 1 && texts_.empty() &&
      rows_.size() == parts_.front()->header.tensors.size()) {
    by_name_ = parts_.front()->header.by_name;
    return;
  }
  auto [order, any_equal] = sorted_order(size(), [this](std::uint32_t i) { return name(i); });
  for (std::size_t i = 1; any_equal && i < order.size(); ++i) {
    if (name(order[i]) != name(order[i - 1])) continue;
    throw Error(ErrorCode::kUsage, part_of(order[i]).source->path(),
                "tensor " + in_quotes(name(order[i])) + ": " +
                    printable(part_of(order[i - 1]).source->path()) +
                    " has a tensor of this name too: use one of the two at a time");
  }
  by_name_ = std::move(order);
}

std::optional<std::uint32_t> TensorList::find(std::string_view name) const {
  const auto number = std::ranges::lower_bound(by_name_, name, {},
                                               [this](std::uint32_t i) { return this->name(i); });
  if (number == by_name_.end() || this->name(*number) != name) return std::nullopt;
  return *number;
}

std::vector<std::uint32_t> TensorList::match(std::span<const std::string> globs) const {
  std::vector<std::uint32_t> matching;
  std::string text;
  const auto matches = [&](const std::string& glob) { return matches_glob(glob, text); };
  for (std::uint32_t i = 0; i < size(); ++i) {
    text = name(i);
    if (globs.empty() || std::ranges::any_of(globs, matches)) matching.push_back(i);
  }
  return matching;
}

void TensorList::add(Part part) {
  const std::size_t count = part.header.tensors.size();
  adopt(std::make_unique<Part>(std::move(part)), count);
  add_rows(static_cast<std::uint32_t>(parts_.size() - 1));
}

// Adds rows for the tensors of a part, which are stored or have a description.
void TensorList::add_rows(std::uint32_t part) {
  const Part& stored = *parts_[part];
  std::unique_ptr<DescribedTensors> described;
  for (std::uint32_t i = 0; i < stored.header.tensors.size(); ++i) {
    Row row{.part = part, .record = i};
    if (stored.header.tensors[i].description != TensorRecord::kAsItStands) {
      if (!described) described = std::make_unique<DescribedTensors>(stored);
      row.computed = &described->add(i);
    }
    rows_.push_back(row);
  }
  if (described) computed_.push_back(std::move(described));
}

// Adds a part without rows. The caller then adds `count` rows.
void TensorList::adopt(std::unique_ptr<Part> part, std::size_t count) {
  const auto is_used = [&](const std::string& label) {
    return std::ranges::any_of(parts_, [&](const auto& other) { return other->label == label; });
  };
  const std::string first_choice = part->label;
  for (int n = 2; is_used(part->label); ++n) part->label = first_choice + "~" + std::to_string(n);
  part->header.original_shapes = {};
  std::ranges::copy(part->header.warnings, std::back_inserter(refused_));
  std::ranges::move(part->header.warnings, std::back_inserter(warnings_));
  part->header.warnings = {};
  if (rows_.size() + count > std::numeric_limits<std::uint32_t>::max()) {
    throw Error(ErrorCode::kUsage, part->source->path(),
                "more than 4294967295 tensors in all: name fewer sources");
  }
  by_name_.clear();
  parts_.push_back(std::move(part));
}

void TensorList::append(TensorList other) {
  // From now on each text applies only to some of the tensors.
  if (!parts_.empty()) {
    add_scope(*this, texts_);
    add_scope(other, other.texts_);
  }
  const auto before = static_cast<std::uint32_t>(parts_.size());
  for (std::unique_ptr<Part>& part : other.parts_) adopt(std::move(part), other.rows_.size());
  for (Row& row : other.rows_) row.part += before;
  std::ranges::move(other.rows_, std::back_inserter(rows_));
  std::ranges::move(other.computed_, std::back_inserter(computed_));
  std::ranges::move(other.missing_, std::back_inserter(missing_));
  std::ranges::move(other.warnings_, std::back_inserter(warnings_));
  std::ranges::move(other.refused_, std::back_inserter(refused_));
  std::ranges::move(other.texts_, std::back_inserter(texts_));
  if (before == 0) beside_ = std::move(other.beside_);
}

void TensorList::append_inputs(TensorList other) {
  for (const std::unique_ptr<Part>& part : other.parts_) part->is_input = true;
  append(std::move(other));
}

void TensorList::remove_others(const std::vector<bool>& is_kept) {
  missing_.clear();
  warnings_.clear();
  refused_.clear();
  by_name_.clear();
  const auto has_values = [](const Row& row) { return row.values != nullptr; };
  // Keep the parts unchanged, because a computed tensor may need any of their tensors.
  if (is_layered() || std::ranges::any_of(rows_, has_values)) {
    std::vector<Row> rows;
    for (std::uint32_t i = 0; i < size(); ++i) {
      if (is_kept[i]) rows.push_back(rows_[i]);
    }
    const bool has_all = rows.size() == rows_.size();
    for (const auto& part : parts_) part->is_whole = part->is_whole && has_all;
    rows_ = std::move(rows);
    return;
  }
  std::size_t first = 0;  // the number of the part's first tensor
  for (const std::unique_ptr<Part>& part : parts_) {
    Header& header = part->header;
    const std::size_t count = header.tensors.size();
    std::vector<std::string_view> names;
    for (const std::uint32_t i : header.by_name) {
      if (is_kept[first + i]) names.push_back(header.name(header.tensors[i]));
    }
    std::size_t others = 0;
    keep_names(header, names, others);
    part->is_whole = part->is_whole && others == 0;
    first += count;
  }
  std::set<const Source*> first_parts;  // the first parts that the kept parts need
  for (const auto& part : parts_) {
    if (!part->header.tensors.empty()) first_parts.insert(part->first_part);
  }
  std::erase_if(parts_, [&](const auto& part) {
    return part->header.tensors.empty() && !first_parts.contains(part->source.get());
  });
  rows_.clear();
  computed_.clear();
  for (std::uint32_t part = 0; part < parts_.size(); ++part) add_rows(part);
}

void TensorList::set_values(
    const std::vector<std::pair<std::uint32_t, const ComputedTensor*>>& values,
    std::unique_ptr<const ComputedTensors> computed) {
  for (const auto& [number, of] : values) rows_[number].values = of;
  computed_.push_back(std::move(computed));
}

void TensorList::show(std::vector<Row> rows, std::unique_ptr<const ComputedTensors> computed,
                      std::string text, std::vector<std::vector<std::string>> hidden_keys) {
  by_name_.clear();
  rows_ = std::move(rows);
  computed_.push_back(std::move(computed));
  texts_.push_back(std::move(text));
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    parts_[i]->hidden_keys = std::move(hidden_keys[i]);
  }
}

// fnmatch(3) ends at a NUL. So each NUL is replaced by a byte that neither text contains. It is a
// control character if possible, so that `[[:cntrl:]]` matches it like a NUL. The last substitute,
// 0xff, never occurs in UTF-8.
bool matches_glob(const std::string& glob, const std::string& name) {
  constexpr std::string_view kSubstitutes = "\x01\x02\x03\x04\x05\x06\x0e\x0f\x10\x7f\xff";
  constexpr char kNul = '\0';
  const auto has = [&](char c) {
    return glob.find(c) != std::string::npos || name.find(c) != std::string::npos;
  };
  if (!has(kNul)) return ::fnmatch(glob.c_str(), name.c_str(), 0) == 0;
  const auto* const free = std::ranges::find_if_not(kSubstitutes, has);
  if (free == kSubstitutes.end()) return false;
  std::string seen_glob(glob), seen_name(name);
  std::ranges::replace(seen_glob, kNul, *free);
  std::ranges::replace(seen_name, kNul, *free);
  return ::fnmatch(seen_glob.c_str(), seen_name.c_str(), 0) == 0;
}

std::vector<std::string_view> keep_names(Header& header, std::span<const std::string_view> names,
                                         std::size_t& others) {
  std::vector<std::string_view> missing;
  std::vector<bool> keep(header.tensors.size(), false);
  auto next = header.by_name.begin();
  for (const std::string_view name : names) {
    const auto name_at = [&] { return header.name(header.tensors[*next]); };
    while (next != header.by_name.end() && name_at() < name) ++next;
    if (next == header.by_name.end() || name_at() != name) {
      missing.push_back(name);
    } else {
      keep[*next] = true;
    }
  }
  others = header.tensors.size() - (names.size() - missing.size());
  if (others == 0) return missing;

  std::vector<std::uint32_t> renumbered(header.tensors.size());
  std::uint32_t kept = 0;
  for (std::size_t i = 0; i < keep.size(); ++i) {
    if (!keep[i]) continue;
    renumbered[i] = kept;
    header.tensors[kept++] = header.tensors[i];
  }
  header.tensors.resize(kept);
  std::erase_if(header.by_name, [&](std::uint32_t i) { return !keep[i]; });
  for (std::uint32_t& i : header.by_name) i = renumbered[i];
  compact(header);
  return missing;
}

}  // namespace stfs
