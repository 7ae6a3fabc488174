#include "core/layer/edit/edit_state.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/format/gguf.h"
#include "core/layer/edit/npy_file.h"
#include "core/remote/http/url.h"

#include <algorithm>
#include <functional>
#include <unordered_set>
#include <utility>

namespace stfs {
namespace {

constexpr std::string_view kNpyEnding = ".npy";
constexpr std::size_t kMostTexts = 1 << 30;  // bytes

}  // namespace

// A tensor with bytes that an edit computes from the bytes of another tensor.
class DerivedTensor : public ComputedTensor {
 public:
  using Make = Content (*)(const Tensor& in, const Tensor& out, const std::string& argument);

  DerivedTensor(const Tensor& in, const Tensor& out, std::string_view scheme, Make make,
                std::string argument)
      : in_(in), out_(out), scheme_(scheme), make_(make), argument_(std::move(argument)) {}

  Tensor tensor() const override {
    Tensor tensor = out_;
    tensor.computed = this;
    return tensor;
  }
  Content content() const override { return make_(in_, out_, argument_); }
  std::vector<Tensor> inputs() const override {
    if (in_.computed != nullptr) return in_.computed->inputs();
    return {in_};
  }
  std::string_view scheme() const override { return scheme_; }

 private:
  Tensor in_, out_;
  std::string_view scheme_;
  Make make_;
  std::string argument_;
};

// Shows a tensor under another name or shape, or a tensor of another source. Its item has the new
// name and shape.
class ShownTensor : public ComputedTensor {
 public:
  explicit ShownTensor(const Tensor& tensor) : tensor_(tensor) {}

  Tensor tensor() const override { return tensor_; }
  Content content() const override { return tensor_.content(); }
  std::vector<Tensor> inputs() const override {
    if (tensor_.computed != nullptr) return tensor_.computed->inputs();
    return {tensor_};
  }
  std::string_view scheme() const override { return "edited"; }

 private:
  Tensor tensor_;
};

class EditedTensors : public ComputedTensors {
 public:
  std::deque<std::string> texts;
  std::size_t text_bytes = 0;
  std::deque<std::vector<std::uint64_t>> shapes;
  std::deque<DerivedTensor> derived;
  std::deque<ShownTensor> shown;
};

Edited::Edited(const TensorList& list, Sources& sources, const LoadSource& load)
    : list_(list),
      sources_(sources),
      load_(load),
      made_(std::make_unique<EditedTensors>()),
      parts_(static_cast<std::uint32_t>(list.parts().size())) {
  items.reserve(list.size());
  for (std::uint32_t i = 0; i < list.size(); ++i) {
    items.push_back({list.tensor(i), list.row(i).part, list.row(i).record, i});
  }
}

Edited::~Edited() = default;

Edited::Item* Edited::find(std::string_view name) {
  const auto look = [&]() -> Item* {
    const auto at = places_.find(name);
    const bool is_there = at != places_.end() && at->second < items.size();
    return is_there && items[at->second].tensor.name == name ? &items[at->second] : nullptr;
  };
  if (Item* const found = look()) return found;
  places_.clear();  // because lines may have changed names since the last search
  for (std::size_t i = 0; i < items.size(); ++i) places_.emplace(items[i].tensor.name, i);
  return look();
}

std::string_view Edited::scheme_of_codes(const Item& item) {
  if (!codes_) {
    codes_ = stored_codes(list_, sources_).value_or(StoredCodes());
    for (const std::uint32_t i : codes_->tensors) {
      code_rows_.emplace(list_.row(i).part, list_.row(i).record);
    }
  }
  return code_rows_.contains({item.part, item.record}) ? codes_->scheme : std::string_view();
}

bool Edited::is_gguf() const {
  const Parts parts = list_.parts();
  return !parts.empty() && parts.front().format->name == kGgufName;
}

bool Edited::has_key(std::string_view key) const {
  if (const auto set = metadata.find(key); set != metadata.end()) return set->second.has_value();
  return std::ranges::any_of(list_.parts(), [&](const Part& part) {
    return part.header.metadata.find(key) &&
           !std::ranges::binary_search(part.hidden_keys, key, std::less<>());
  });
}

ValueType Edited::type_of(std::string_view key) const {
  for (const Part& part : list_.parts()) {
    const auto at = part.header.metadata.find(key);
    if (at && !std::ranges::binary_search(part.hidden_keys, key, std::less<>())) {
      return part.header.metadata.value(*at).type;
    }
  }
  return ValueType::kString;
}

void Edited::require_room(const EditLine& line, std::size_t more) const {
  if (items.size() + more <= kMostTensors) return;
  line.refuse("there would be more than " + std::to_string(kMostTensors) + " tensors");
}

void Edited::refuse_same_names(const EditLine& line) const {
  std::unordered_set<std::string_view> names;
  for (const Item& item : items) {
    if (names.insert(item.tensor.name).second) continue;
    line.refuse("two tensors would be " + in_quotes(item.tensor.name));
  }
}

bool Edited::may_keep(std::size_t bytes) const { return bytes <= kMostTexts - made_->text_bytes; }

std::string_view Edited::keep(std::string text) {
  made_->text_bytes += text.size();
  return made_->texts.emplace_back(std::move(text));
}

std::span<const std::uint64_t> Edited::keep(std::vector<std::uint64_t> shape) {
  return made_->shapes.emplace_back(std::move(shape));
}

const Part& Edited::part(std::uint32_t number) const {
  if (number < list_.parts().size()) return list_.parts()[number];
  const auto behind = std::ranges::upper_bound(first_parts_, number);
  const auto other = static_cast<std::size_t>(behind - first_parts_.begin() - 1);
  return others_[other].parts()[number - first_parts_[other]];
}

Tensor Edited::computed(const Item& item, DType dtype, std::span<const std::uint64_t> shape,
                        std::string_view scheme, DerivedTensor::Make make, std::string argument) {
  Tensor of = item.tensor;
  Tensor out{.name = of.name,
             .path = {},
             .dtype = dtype,
             .shape = shape,
             .length = 0,
             .locator = std::nullopt};
  const Content content = make(of, out, argument);
  out.length = content.size();
  // A contiguous part of a stored tensor is a stored tensor too.
  if (const std::optional<Extent> extent = content.extent()) out.locator = *extent;
  // As an input, a stored tensor has the name that it is stored under.
  const Header& header = part(item.part).header;
  if (of.computed == nullptr) of.name = header.name(header.tensors[item.record]);
  if (!out.locator)
    out.computed = &made_->derived.emplace_back(of, out, scheme, make, std::move(argument));
  return out;
}

Edited::Other Edited::other(const std::string& path) {
  const auto [at, is_new] = other_at_.try_emplace(path, others_.size());
  if (is_new) {
    TensorList list;
    if (public_name(path).ends_with(kNpyEnding)) {
      list.add(read_npy(path, sources_));
    } else {
      list = load_(path);
    }
    list.sort_names();
    first_parts_.push_back(parts_);
    parts_ += static_cast<std::uint32_t>(list.parts().size());
    others_.push_back(std::move(list));
  }
  return {&others_[at->second], first_parts_[at->second]};
}

// Returns the metadata of a part after the edits. Keys that were set go into the first part.
Metadata Edited::metadata_of(const Part& part, bool is_first) const {
  Metadata result;
  const Metadata& before = part.header.metadata;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const auto [key, text] = before[i];
    if (!metadata.contains(key)) result.add(key, text, before.value(i));
  }
  for (const auto& [key, value] : metadata) {
    if (is_first && value) result.add(key, *value, {.type = type_of(key), .encoded = {}});
  }
  result.sort();
  return result;
}

void Edited::finish(TensorList& list, std::string text) {
  std::vector<std::vector<std::string>> hidden_keys;
  for (const Part& part : list.parts()) {
    hidden_keys.push_back(part.hidden_keys);
    std::erase_if(hidden_keys.back(), [&](const auto& key) { return metadata.contains(key); });
  }
  for (TensorList& other : others_) {
    for (const Part& part : other.parts()) hidden_keys.push_back(part.header.metadata.keys());
  }
  std::ranges::stable_sort(items, {},
                           [](const Item& item) { return std::pair(item.part, item.record); });
  std::vector<TensorList::Row> rows;
  rows.reserve(items.size());
  for (const Item& item : items) {
    rows.push_back(item.below ? list.row(*item.below)
                              : TensorList::Row{item.part, item.record,
                                                &made_->shown.emplace_back(item.tensor), nullptr});
  }
  for (std::uint32_t i = 0; !metadata.empty() && i < list.parts().size(); ++i) {
    list.set_metadata(i, metadata_of(list.parts()[i], i == 0));
  }
  for (TensorList& other : others_) list.append_inputs(std::move(other));
  list.show(std::move(rows), std::move(made_), std::move(text), std::move(hidden_keys));
  for (std::string& warning : warnings) list.add_warning(std::move(warning));
}

}  // namespace stfs
