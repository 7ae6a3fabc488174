#include "fs/view/views.h"

#include "core/checkpoint/catalogue.h"
#include "core/checkpoint/names.h"
#include "core/recipe/convert.h"
#include "core/recipe/npy.h"
#include "core/recipe/slice.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>

namespace stfs {
namespace {

constexpr std::string_view kControlName = ".stfs";
constexpr std::string_view kNpySuffix = ".npy";
constexpr std::string_view kSafetensorsSuffix = ".safetensors";

bool any(const Tensor&) { return true; }
bool fits_numpy(const Tensor& tensor) {
  return !type_info(tensor.dtype).npy.empty() && tensor.shape.size() <= kNpyMaxRank;
}
bool can_be_sliced(const Tensor& tensor) { return tensor.shape.size() <= kSliceMaxRank; }
bool is_floating(const Tensor& tensor) { return type_info(tensor.dtype).to_f32 != nullptr; }
bool is_floating_and_fits(const Tensor& tensor) {
  return is_floating(tensor) && tensor.shape.size() <= kNpyMaxRank;
}

// How a view mirrors the tree.
struct Mirror {
  View view;
  std::string_view suffix;       // of its files
  bool (*shows)(const Tensor&);  // which tensors are in it
  bool tensors_are_directories = false;
};

constexpr std::array<Mirror, 11> kMirrors{{
    {View::kRaw, "", any},
    {View::kJson, ".json", any},
    {View::kNpy, kNpySuffix, fits_numpy},
    {View::kF32, "", is_floating},
    {View::kNpyF32, kNpySuffix, is_floating_and_fits},
    {View::kSlice, "", can_be_sliced, true},
    {View::kNpySlice, "", fits_numpy, true},
    {View::kTree, "", any},
    {View::kSafetensors, kSafetensorsSuffix, any},
    {View::kStats, ".json", any},
    {View::kSha256, "", any},
}};

const Mirror* mirror_of(View view) {
  const auto found = std::ranges::find(kMirrors, view, &Mirror::view);
  return found == kMirrors.end() ? nullptr : &*found;
}

// The number of the directory that a tensor is in the slice views.
constexpr std::uint64_t kTensorDirectory = 1ULL << 32;
bool is_tensor_directory(Node node) {
  return node.is_directory && (node.number & kTensorDirectory) != 0;
}
std::uint32_t low(std::uint64_t number) { return static_cast<std::uint32_t>(number); }

// The files of `.stfs/` itself; their numbers are the positions here.
enum ControlFile : std::uint8_t { kInfoJson, kTensorsJson, kTensorsTsv, kMerged, kControlFiles };

struct Fixed {
  std::string_view name;
  Node node;
};

constexpr std::array<Fixed, 17> kControlEntries{{
    {"info.json", {View::kControl, false, kInfoJson}},
    {"tensors.json", {View::kControl, false, kTensorsJson}},
    {"tensors.tsv", {View::kControl, false, kTensorsTsv}},
    {"merged.safetensors", {View::kControl, false, kMerged}},
    {"header", {View::kHeader, true, 0}},
    {"metadata", {View::kMetadata, true, 0}},
    {"json", {View::kJson, true, PathTree::kRoot}},
    {"npy", {View::kNpy, true, PathTree::kRoot}},
    {"f32", {View::kF32, true, PathTree::kRoot}},
    {"npy-f32", {View::kNpyF32, true, PathTree::kRoot}},
    {"slice", {View::kSlice, true, PathTree::kRoot}},
    {"npy-slice", {View::kNpySlice, true, PathTree::kRoot}},
    {"tree", {View::kTree, true, PathTree::kRoot}},
    {"safetensors", {View::kSafetensors, true, PathTree::kRoot}},
    {"subset", {View::kSubset, true, 0}},
    {"stats", {View::kStats, true, PathTree::kRoot}},
    {"sha256", {View::kSha256, true, PathTree::kRoot}},
}};
constexpr Node kControlNode{View::kControl, true, 0};

// The name of a directory in a view whose files end in `suffix`, and back.
std::string escape_suffix(std::string_view name, std::string_view suffix) {
  if (suffix.empty() || !name.ends_with(suffix)) return std::string(name);
  name.remove_suffix(suffix.size());
  return std::string(name) + "%2E" + std::string(suffix.substr(1));
}
std::optional<std::string> unescape_suffix(std::string_view name, std::string_view suffix) {
  if (suffix.empty()) return std::string(name);
  if (name.ends_with(suffix)) return std::nullopt;  // such a directory has another name here
  const std::string escaped = "%2E" + std::string(suffix.substr(1));
  if (!name.ends_with(escaped)) return std::string(name);
  name.remove_suffix(escaped.size());
  return std::string(name) + std::string(suffix);
}

// `name` without the suffix that it must end in.
std::optional<std::string_view> without(std::string_view suffix, std::string_view name) {
  if (!name.ends_with(suffix)) return std::nullopt;
  return name.substr(0, name.size() - suffix.size());
}

Content as_floats(const Tensor& tensor, Content content) {
  if (tensor.dtype == DType::kF32) return std::move(content.append(tensor.content()));
  return std::move(
      content.production(as_f32(tensor.content(), type_info(tensor.dtype), tensor.elements())));
}

constexpr unsigned kFileShift = 55;
constexpr unsigned kViewShift = 56;
constexpr std::uint64_t kNumberMask = (1ULL << kFileShift) - 1;

}  // namespace

std::uint64_t inode_of(Node node) {
  const std::uint64_t view = static_cast<std::uint64_t>(node.view) << kViewShift;
  const std::uint64_t file = std::uint64_t{!node.is_directory} << kFileShift;
  return 1 + (view | file | node.number);
}

Node node_of(std::uint64_t inode) {
  const std::uint64_t bits = inode - 1;
  const std::uint64_t view = std::min<std::uint64_t>(bits >> kViewShift, kViewCount);
  return {static_cast<View>(view), (bits >> kFileShift & 1) == 0, bits & kNumberMask};
}

bool is_looked_up(Node node) {
  return !node.is_directory &&
         (node.view == View::kSlice || node.view == View::kNpySlice || node.view == View::kSubset);
}

void Views::FlatDirectory::add(std::string_view name) {
  entries_.push_back({names_.size(), static_cast<std::uint32_t>(name.size()),
                      static_cast<std::uint32_t>(entries_.size())});
  names_ += name;
}

void Views::FlatDirectory::sort() {
  const auto text_of = [this](const Name& name) { return text(name); };
  if (!std::ranges::is_sorted(entries_, {}, text_of)) std::ranges::sort(entries_, {}, text_of);
}

std::optional<Node> Views::FlatDirectory::lookup(View view, std::string_view name) const {
  const auto found = std::ranges::lower_bound(entries_, name, {},
                                              [this](const Name& entry) { return text(entry); });
  if (found == entries_.end() || text(*found) != name) return std::nullopt;
  return Node{view, false, found->number};
}

std::optional<Views::Entry> Views::FlatDirectory::list(View view, std::uint64_t cursor) const {
  if (cursor >= entries_.size()) return std::nullopt;
  const Name& name = entries_[static_cast<std::size_t>(cursor)];
  return Entry{{view, false, name.number}, std::string(text(name))};
}

Views::Views(const Checkpoint& checkpoint, ControlDirectory control, Ledger* ledger)
    : checkpoint_(checkpoint), control_(control), files_(checkpoint), looked_up_(ledger) {
  for (const Part& part : checkpoint.parts()) {
    const timespec& mtime = part.source->mtime();
    if (std::pair(mtime.tv_sec, mtime.tv_nsec) > std::pair(newest_.tv_sec, newest_.tv_nsec)) {
      newest_ = mtime;
    }
    header_.add(encode_component(part.label) + std::string(part.format->raw_suffix));
  }
  for (const auto& [key, value] : checkpoint.metadata()) {
    metadata_.add(encode_component(key));
  }
  header_.sort();
  metadata_.sort();
  looked_up_.restore();
}

template <class T, class Make>
const std::optional<T>& Views::keep(Kept<T>& kept, const Make& make) {
  std::call_once(kept.made, [&] { kept.value = make(); });
  return kept.value;
}

const PathTree* Views::tree_of(View view) const {
  if (view != View::kTree) return &checkpoint_.tree();
  std::call_once(dotted_.made, [this] {
    try {
      dotted_.value.emplace(
          PathTree::with_dots([this](std::uint32_t number) { return checkpoint_.name(number); },
                              checkpoint_.tensor_count()));
    } catch (const Error&) {
      // A collision of two digests: this view stays empty.
    }
  });
  return dotted_.value ? &*dotted_.value : nullptr;
}

bool Views::exists(Node node) const {
  if (node.view != View::kRaw && control_ == ControlDirectory::kOff) return false;
  if (const Mirror* mirror = mirror_of(node.view)) {
    const auto shown = [&](std::uint64_t tensor) {
      return tensor < checkpoint_.tensor_count() && mirror->shows(checkpoint_.tensor(low(tensor)));
    };
    if (is_tensor_directory(node)) {
      return mirror->tensors_are_directories && shown(node.number ^ kTensorDirectory);
    }
    if (node.is_directory) {
      const PathTree* tree = tree_of(node.view);
      return node.number < (tree == nullptr ? 1 : tree->directory_count());
    }
    if (mirror->tensors_are_directories) return is_kept(node);
    return shown(node.number);
  }
  if (static_cast<int>(node.view) >= kViewCount) return false;
  if (node.is_directory) return node.number == 0;
  switch (node.view) {
    case View::kControl:
      return node.number < kControlFiles;
    case View::kHeader:
      return node.number < header_.size();
    case View::kMetadata:
      return node.number < metadata_.size();
    default:
      return is_kept(node);
  }
}

bool Views::is_kept(Node node) const {
  const LookedUpNames::Name* name = looked_up_.find(node.number);
  return name != nullptr && static_cast<View>(name->view) == node.view;
}

int Views::lookup(Node directory, std::string_view name, Node& node) {
  const auto answer = [&node](const std::optional<Node>& found) {
    if (found) node = *found;
    return found ? 0 : ENOENT;
  };
  if (is_tensor_directory(directory)) {
    return lookup_slice(directory.view, low(directory.number), name, node);
  }
  switch (directory.view) {
    case View::kControl: {
      const auto found = std::ranges::find(kControlEntries, name, &Fixed::name);
      return answer(found == kControlEntries.end() ? std::nullopt : std::optional(found->node));
    }
    case View::kHeader:
      return answer(header_.lookup(View::kHeader, name));
    case View::kMetadata:
      return answer(metadata_.lookup(View::kMetadata, name));
    case View::kSubset:
      return lookup_subset(name, node);
    default:
      return lookup_mirrored(directory, name, node);
  }
}

int Views::lookup_mirrored(Node directory, std::string_view name, Node& node) const {
  if (directory == kRootNode && name == kControlName && control_ != ControlDirectory::kOff) {
    node = kControlNode;
    return 0;
  }
  const Mirror& mirror = *mirror_of(directory.view);
  const PathTree* tree = tree_of(directory.view);
  if (tree == nullptr) return ENOENT;
  if (const auto plain = without(mirror.suffix, name)) {
    const auto entry = tree->lookup(low(directory.number), *plain);
    if (entry && !entry->is_directory) {
      if (!mirror.shows(checkpoint_.tensor(entry->number))) return ENOENT;
      node = mirror.tensors_are_directories
                 ? Node{directory.view, true, kTensorDirectory | entry->number}
                 : Node{directory.view, false, entry->number};
      return 0;
    }
  }
  if (const auto plain = unescape_suffix(name, mirror.suffix)) {
    const auto entry = tree->lookup(low(directory.number), *plain);
    if (entry && entry->is_directory) {
      node = {directory.view, true, entry->number};
      return 0;
    }
  }
  return ENOENT;
}

int Views::lookup_slice(View view, std::uint32_t tensor, std::string_view name, Node& node) {
  const std::string_view suffix = view == View::kNpySlice ? kNpySuffix : std::string_view{};
  const auto expression = without(suffix, name);
  if (!expression) return ENOENT;
  int error = 0;
  const auto size = [&]() -> std::optional<std::uint64_t> {
    const Tensor whole = checkpoint_.tensor(tensor);
    Slice slice;
    error = parse_slice(*expression, whole.dtype, whole.shape, slice);
    if (error != 0) return std::nullopt;
    return slice.size() + (view == View::kNpySlice
                               ? npy_header(type_info(whole.dtype).npy, slice.shape).size()
                               : 0);
  };
  const auto number =
      looked_up_.look_up(static_cast<std::uint8_t>(view), tensor, *expression, size);
  if (!number) return error;
  node = {view, false, *number};
  return 0;
}

std::vector<std::uint32_t> Views::subset(std::string_view encoded) const {
  const auto glob = decode_path(encoded);
  if (!glob || glob->find('\0') != std::string::npos) return {};
  return checkpoint_.match(std::span(&*glob, 1));
}

int Views::lookup_subset(std::string_view name, Node& node) {
  const auto encoded = without(kSafetensorsSuffix, name);
  if (!encoded) return ENOENT;
  const auto size = [&]() -> std::optional<std::uint64_t> {
    std::vector<std::uint32_t> tensors = subset(*encoded);
    if (tensors.empty()) return std::nullopt;
    return files_.size(std::move(tensors)).value_or(0);
  };
  const auto number =
      looked_up_.look_up(static_cast<std::uint8_t>(View::kSubset), 0, *encoded, size);
  if (!number) return ENOENT;
  node = {View::kSubset, false, *number};
  return 0;
}

void Views::open(Node file) {
  if (is_looked_up(file)) looked_up_.open(file.number);
}

void Views::release(Node file) {
  if (is_looked_up(file)) looked_up_.release(file.number);
}

void Views::forget(Node node, std::uint64_t lookups) {
  if (!is_looked_up(node)) return;
  looked_up_.forget(node.number, lookups);
  if (node.view == View::kSubset && !is_kept(node)) subsets_.drop(node.number);
}

std::optional<Node> Views::wait_for_surplus() {
  const auto surplus = looked_up_.wait_for_surplus();
  if (!surplus) return std::nullopt;
  return Node{static_cast<View>(surplus->view), false, surplus->number};
}

Node Views::parent(Node directory) const {
  if (directory.view == View::kControl) return kRootNode;
  const PathTree* tree = tree_of(directory.view);
  if (is_tensor_directory(directory)) {
    // The directory in which the tensor stands.
    std::uint32_t above = PathTree::kRoot;
    std::string_view path = checkpoint_.tensor(low(directory.number)).path;
    for (std::size_t slash; (slash = path.find('/')) != std::string_view::npos;) {
      const auto entry = tree->lookup(above, path.substr(0, slash));
      if (!entry || !entry->is_directory) break;
      above = entry->number;
      path.remove_prefix(slash + 1);
    }
    return {directory.view, true, above};
  }
  if (tree != nullptr && mirror_of(directory.view) != nullptr &&
      directory.number != PathTree::kRoot) {
    return {directory.view, true, tree->parent(low(directory.number))};
  }
  return directory.view == View::kRaw ? kRootNode : kControlNode;
}

std::optional<Views::Entry> Views::list(Node directory, std::uint64_t cursor,
                                        std::uint64_t& next) const {
  next = cursor + 1;
  if (is_tensor_directory(directory)) return std::nullopt;
  switch (directory.view) {
    case View::kControl:
      if (cursor >= kControlEntries.size()) return std::nullopt;
      return Entry{kControlEntries[static_cast<std::size_t>(cursor)].node,
                   std::string(kControlEntries[static_cast<std::size_t>(cursor)].name)};
    case View::kHeader:
      return header_.list(View::kHeader, cursor);
    case View::kMetadata:
      return metadata_.list(View::kMetadata, cursor);
    case View::kSubset:
      return std::nullopt;
    default:
      break;
  }
  const Mirror& mirror = *mirror_of(directory.view);
  const PathTree* tree = tree_of(directory.view);
  if (tree == nullptr) return std::nullopt;
  while (const auto entry = tree->list(low(directory.number), cursor, next)) {
    cursor = next;
    if (entry->is_directory) {
      return Entry{{directory.view, true, entry->number},
                   escape_suffix(entry->component, mirror.suffix)};
    }
    if (!mirror.shows(checkpoint_.tensor(entry->number))) continue;
    const Node node = mirror.tensors_are_directories
                          ? Node{directory.view, true, kTensorDirectory | entry->number}
                          : Node{directory.view, false, entry->number};
    return Entry{node, std::string(entry->component) + std::string(mirror.suffix)};
  }
  next = cursor + 1;
  if (directory == kRootNode && control_ == ControlDirectory::kVisible &&
      cursor == checkpoint_.tensor_count()) {
    return Entry{kControlNode, std::string(kControlName)};
  }
  return std::nullopt;
}

std::optional<Content> Views::make_slice(const LookedUpNames::Name& name) const {
  const Tensor tensor = checkpoint_.tensor(name.tensor);
  Slice slice;
  if (parse_slice(name.expression, tensor.dtype, tensor.shape, slice) != 0) return std::nullopt;
  if (static_cast<View>(name.view) == View::kSlice) {
    return slice_content(slice, tensor.content());
  }
  Content content;
  content.literal(npy_header(type_info(tensor.dtype).npy, slice.shape));
  content.append(slice_content(slice, tensor.content()));
  return content;
}

std::optional<Content> Views::make(Node file) const {
  Content content;
  switch (file.view) {
    case View::kHeader: {
      const Part& part = checkpoint_.parts()[low(file.number)];
      return std::move(
          content.extent(*part.source, part.header.raw.offset, part.header.raw.length));
    }
    case View::kMetadata:
      return std::move(content.borrowed(checkpoint_.metadata()[low(file.number)].second));
    case View::kControl:
      break;
    case View::kSlice:
    case View::kNpySlice:
      return make_slice(*looked_up_.find(file.number));
    default: {
      const Tensor tensor = checkpoint_.tensor(low(file.number));
      switch (file.view) {
        case View::kJson:
          return std::move(content.literal(tensor_json(tensor) + "\n"));
        case View::kNpy:
          content.literal(npy_header(type_info(tensor.dtype).npy, tensor.shape));
          return std::move(content.append(tensor.content()));
        case View::kF32:
          return as_floats(tensor, std::move(content));
        case View::kNpyF32:
          content.literal(npy_header(type_info(DType::kF32).npy, tensor.shape));
          return as_floats(tensor, std::move(content));
        case View::kSafetensors:
          return files_.make({low(file.number)});
        default:
          return tensor.content();
      }
    }
  }
  switch (file.number) {
    case kInfoJson: {
      std::string text;
      text.reserve(static_cast<std::size_t>(size(file)));
      TextWriter out(text);
      write_info_json(checkpoint_, out);
      return std::move(content.literal(std::move(text)));
    }
    case kTensorsJson:
      return std::move(content.production(tensors_json(checkpoint_)));
    case kTensorsTsv:
      return std::move(content.production(tensors_tsv(checkpoint_)));
    default:
      return files_.make(checkpoint_.match({}));
  }
}

// Whether the recipe of a file would hold much text itself, or a read of it would make as much.
bool Views::holds_much(Node file) const {
  constexpr std::size_t kMuch = 1 << 20;  // bytes
  if (file.view != View::kJson && file.view != View::kSafetensors) return false;
  const Tensor tensor = checkpoint_.tensor(low(file.number));
  return tensor.name.size() + tensor.path.size() + 2 * tensor.shape.size() > kMuch;
}

const Content* Views::content(Node file, Made& scratch) const {
  if (file.view == View::kSubset) {
    const LookedUpNames::Name* name = looked_up_.find(file.number);
    if (name == nullptr || name->size == 0) return nullptr;
    scratch.recipe = subsets_.get(file.number, [&] {
      std::vector<std::uint32_t> tensors = subset(name->expression);
      const std::size_t count = tensors.size();
      return Recipes::Made{files_.make(std::move(tensors)), count};
    });
    return scratch.recipe.get();
  }
  if (file.view != View::kControl) {
    if (holds_much(file)) scratch.turn = std::unique_lock(turn_);
    scratch.content = make(file);
    return scratch.content ? &*scratch.content : nullptr;
  }
  Kept<Content>& kept = file.number == kInfoJson      ? info_
                        : file.number == kTensorsJson ? tensors_json_
                        : file.number == kTensorsTsv  ? tensors_tsv_
                                                      : merged_;
  const std::optional<Content>& made = keep(kept, [&] { return make(file); });
  return made ? &*made : nullptr;
}

std::optional<Extent> Views::extent(Node file) const {
  if (!exists(file)) return std::nullopt;
  const auto number = raw_tensor(file);
  return number ? checkpoint_.tensor(*number).locator : std::nullopt;
}

int Views::verify(Node file) const {
  switch (file.view) {
    case View::kJson:
    case View::kMetadata:
      return 0;  // no byte of a source is in it
    case View::kHeader:
      return checkpoint_.parts()[low(file.number)].source->verify();
    case View::kControl:
    case View::kSubset: {
      const bool has_tensors = file.view == View::kSubset || file.number == kMerged;
      if (!has_tensors) return 0;
      Made scratch;
      const Content* made = content(file, scratch);
      return made == nullptr ? EFBIG : made->verify();
    }
    case View::kSafetensors:
      if (!files_.size({low(file.number)})) return EFBIG;
      break;
    default:
      break;
  }
  const auto number = tensor(file);
  return number ? checkpoint_.tensor(*number).verify() : ENOENT;
}

bool Views::is_computed(Node node) const {
  return !node.is_directory && (node.view == View::kStats || node.view == View::kSha256);
}

std::uint64_t Views::size(Node file) const {
  const auto shown = [&] { return checkpoint_.tensor(low(file.number)); };
  const auto floats = [&] { return shown().elements() * sizeof(float); };
  switch (file.view) {
    case View::kRaw:
    case View::kTree:
      return shown().length;
    case View::kF32:
      return floats();
    case View::kNpy:
      return npy_header(type_info(shown().dtype).npy, shown().shape).size() + shown().length;
    case View::kNpyF32:
      return npy_header(type_info(DType::kF32).npy, shown().shape).size() + floats();
    case View::kJson: {
      TextWriter counted;
      write_tensor_json(shown(), counted);
      return counted.size() + 1;
    }
    case View::kSafetensors:
      return files_.size({low(file.number)}).value_or(0);
    case View::kSlice:
    case View::kNpySlice:
    case View::kSubset: {
      const LookedUpNames::Name* name = looked_up_.find(file.number);
      return name == nullptr ? 0 : name->size;
    }
    case View::kHeader:
      return checkpoint_.parts()[low(file.number)].header.raw.length;
    case View::kMetadata:
      return checkpoint_.metadata()[low(file.number)].second.size();
    case View::kStats:
    case View::kSha256:
      return 0;
    case View::kControl:
      break;
  }
  if (file.number == kInfoJson) {
    return *keep(info_size_, [&] {
      TextWriter counted;
      write_info_json(checkpoint_, counted);
      return counted.size();
    });
  }
  if (file.number == kMerged) {
    return *keep(merged_size_, [&] { return files_.size(checkpoint_.match({})).value_or(0); });
  }
  Made scratch;
  return content(file, scratch)->size();  // a table, which holds no text
}

timespec Views::mtime(Node node) const {
  if (const auto number = tensor(node)) return checkpoint_.tensor(*number).mtime();
  if (node.view == View::kHeader && !node.is_directory) {
    return checkpoint_.parts()[low(node.number)].source->mtime();
  }
  return newest_;
}

std::optional<std::uint32_t> Views::raw_tensor(Node node) const {
  const bool is_raw = node.view == View::kRaw || node.view == View::kTree;
  return is_raw ? tensor(node) : std::nullopt;
}

std::optional<std::uint32_t> Views::tensor(Node node) const {
  const Mirror* mirror = mirror_of(node.view);
  if (mirror == nullptr || node.is_directory) return std::nullopt;
  if (!mirror->tensors_are_directories) return low(node.number);
  const LookedUpNames::Name* name = looked_up_.find(node.number);
  return name == nullptr ? std::nullopt : std::optional(name->tensor);
}

}  // namespace stfs
