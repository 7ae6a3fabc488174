#include "fs/mount/nodes.h"

#include "fs/view/mirror.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace stfs {
namespace {

constexpr std::string_view kControlName = ".stfs";

// Returns the number of a node as 32 bits. Only looked-up names and tensor directories have larger
// numbers.
std::uint32_t index_of(std::uint64_t number) { return static_cast<std::uint32_t>(number); }

// In a view of expressions each tensor is a directory. The number of the directory is this bit plus
// the tensor's number.
constexpr std::uint64_t kTensorDirectory = 1ULL << 32;
bool is_tensor_directory(Node node) {
  return node.is_directory && (node.number & kTensorDirectory) != 0;
}

bool is_mirror(const ViewSpec& row) {
  return row.names == Names::kTensors || row.names == Names::kExpressions;
}
bool shows(const ViewSpec& row, const Checkpoint& checkpoint, std::uint32_t tensor) {
  return row.shows == nullptr || row.shows(checkpoint.tensor(tensor));
}
// Returns the suffix of the files in the tree of a view.
std::string_view tree_suffix(const ViewSpec& row) {
  return row.names == Names::kTensors ? row.suffix : std::string_view{};
}
Node mirrored_node(const ViewSpec& row, const PathTree::Entry& entry) {
  if (entry.is_directory) return {row.id, true, entry.number};
  if (row.names == Names::kTensors) return {row.id, false, entry.number};
  return {row.id, true, kTensorDirectory | entry.number};
}
// Returns the node of an entry in a view's list.
Node listed_node(const ViewSpec& row, const Checkpoint& checkpoint, std::uint64_t number) {
  const auto link = row.link != nullptr ? row.link(checkpoint, number) : std::nullopt;
  return link.value_or(Node{row.id, false, number});
}
Node node_of(const ViewSpec& row) {
  return row.names == Names::kFile ? Node{row.id, false, row.file}
                                   : Node{row.id, true, PathTree::kRoot};
}

// Returns true if the recipe of the tensor's file, or reading it, needs memory for a long text.
bool holds_much(const Tensor& tensor) {
  constexpr std::size_t kMuch = 1 << 20;  // bytes
  return tensor.name.size() + tensor.path.size() + 2 * tensor.shape.size() > kMuch;
}

std::optional<Extent> extent_of(const ViewSpec& row, const ViewFile& file) {
  return row.extent != nullptr ? row.extent(file) : std::nullopt;
}

// Returns a copy of `file` with the tensors of the row. The copy borrows them from `tensors`, which
// this function fills.
ViewFile with_tensors(const ViewSpec& row, ViewFile file, std::vector<std::uint32_t>& tensors) {
  if (row.tensors != nullptr && !extent_of(row, file)) tensors = row.tensors(file);
  file.tensors = tensors;
  return file;
}

int make(const ViewSpec& row, const ViewFile& file, Content& content) {
  const std::optional<Extent> extent = extent_of(row, file);
  if (!extent) return row.make(file, content);
  content.extent(*extent->source, extent->offset, extent->length);
  return 0;
}

int size_of(const ViewSpec& row, const ViewFile& file, std::uint64_t& bytes) {
  bytes = 0;
  if (const std::optional<Extent> extent = extent_of(row, file)) {
    bytes = extent->length;
    return 0;
  }
  if (row.make == nullptr && row.size == nullptr) return 0;
  std::vector<std::uint32_t> tensors;
  const ViewFile whole = with_tensors(row, file, tensors);
  if (row.names == Names::kGlobs && tensors.empty()) return ENOENT;
  if (row.size != nullptr) return row.size(whole, bytes);
  Content content;
  const int error = row.make(whole, content);
  if (error == 0) bytes = content.size();
  return error;
}

}  // namespace

Nodes::Nodes(const Checkpoint& checkpoint, std::span<const ViewSpec> views,
             ControlDirectory control, Ledger* ledger)
    : checkpoint_(checkpoint),
      registry_(views),
      control_(control),
      files_(checkpoint),
      gguf_files_(checkpoint),
      looked_up_(ledger),
      row_data_(views.size()) {
  for (const Part& part : checkpoint.parts()) {
    const timespec& mtime = part.source->mtime();
    if (std::pair(mtime.tv_sec, mtime.tv_nsec) > std::pair(newest_.tv_sec, newest_.tv_nsec)) {
      newest_ = mtime;
    }
  }
  for (const ViewSpec& row : registry_.rows()) {
    if (row.names == Names::kList) data_of(row).names = row.list(checkpoint);
  }
  looked_up_.restore();
}

template <class T, class Make>
const std::optional<T>& Nodes::once(Once<T>& kept, const Make& make) {
  std::call_once(kept.flag, [&] { kept.value = make(); });
  return kept.value;
}

const PathTree* Nodes::tree_of(const ViewSpec& row) const {
  if (row.style == PathStyle::kSlashes) return &checkpoint_.tree();
  std::call_once(dotted_.flag, [this] {
    try {
      dotted_.value.emplace(
          PathTree::with_dots([this](std::uint32_t number) { return checkpoint_.name(number); },
                              checkpoint_.tensor_count()));
    } catch (const Error&) {
      // Two digests are equal, so this view stays empty.
    }
  });
  return dotted_.value ? &*dotted_.value : nullptr;
}

// Existence

bool Nodes::has(const ViewSpec& row) const {
  const bool is_off = control_ == ControlDirectory::kOff && row.id != kRootNode.view;
  return !is_off && (row.exists == nullptr || row.exists(checkpoint_));
}

bool Nodes::exists(Node node) const {
  if (node == kControlNode) return control_ != ControlDirectory::kOff;
  const ViewSpec* const row = registry_.find(node);
  if (row == nullptr || !has(*row)) return false;
  if (is_looked_up(node)) return name_of(node) != nullptr;
  switch (row->names) {
    case Names::kFile: return true;
    case Names::kGlobs: return node.number == 0 && !row->beside;
    case Names::kList:
      if (node.is_directory) return node.number == 0;
      return node.number < data_of(*row).names.size() &&
             listed_node(*row, checkpoint_, node.number) == node;
    default: break;
  }
  if (node.is_directory && !is_tensor_directory(node)) {
    const PathTree* tree = tree_of(*row);
    return node.number < (tree == nullptr ? 1 : tree->directory_count());
  }
  if (node.is_directory && row->names != Names::kExpressions) return false;
  const std::uint64_t tensor = node.is_directory ? node.number ^ kTensorDirectory : node.number;
  return tensor < checkpoint_.tensor_count() && shows(*row, checkpoint_, index_of(tensor));
}

bool Nodes::is_looked_up(Node node) const {
  const ViewSpec* const row = file_row(node);
  return row != nullptr && (row->names == Names::kExpressions || row->names == Names::kGlobs);
}

const LookedUpNames::Name* Nodes::name_of(Node node) const {
  const LookedUpNames::Name* name = looked_up_.find(node.number);
  return name != nullptr && static_cast<View>(name->view) == node.view ? name : nullptr;
}

// Names

int Nodes::lookup(Node directory, std::string_view name, Node& node) {
  if (directory == kControlNode) {
    const ViewSpec* const found = registry_.find(name);
    if (found == nullptr || !has(*found)) return ENOENT;
    node = node_of(*found);
    return 0;
  }
  if (directory == kRootNode && name == kControlName && exists(kControlNode)) {
    node = kControlNode;
    return 0;
  }
  const ViewSpec& row = *registry_.find(directory);
  if (row.names == Names::kGlobs) {
    for (const ViewSpec& other : registry_.rows()) {
      const bool is_here = other.id == row.id || other.beside == row.id;
      if (is_here && has(other) && without_suffix(name, other.suffix)) {
        return look_up_name(other, 0, name, node);
      }
    }
    return ENOENT;
  }
  if (is_tensor_directory(directory)) {
    return look_up_name(row, index_of(directory.number), name, node);
  }
  if (is_mirror(row)) return lookup_mirrored(row, directory, name, node);
  const auto number = data_of(row).names.find(name);
  if (!number) return ENOENT;
  node = listed_node(row, checkpoint_, *number);
  if (node.view != row.id) return 0;
  // Fail if the size cannot be found, because the kernel would keep a size of 0 for ever.
  std::uint64_t bytes = 0;
  return size_of(row, {checkpoint_, files_, gguf_files_, *number}, bytes);
}

int Nodes::lookup_mirrored(const ViewSpec& row, Node directory, std::string_view name,
                           Node& node) const {
  const PathTree* tree = tree_of(row);
  if (tree == nullptr) return ENOENT;
  const auto entry = find_mirrored(*tree, index_of(directory.number), name, tree_suffix(row));
  if (!entry) return ENOENT;
  if (!entry->is_directory && !shows(row, checkpoint_, entry->number)) return ENOENT;
  node = mirrored_node(row, *entry);
  return 0;
}

int Nodes::look_up_name(const ViewSpec& row, std::uint32_t tensor, std::string_view name,
                        Node& node) {
  const auto expression = without_suffix(name, row.suffix);
  if (!expression) return ENOENT;
  int error = 0;
  const auto size = [&]() -> std::optional<std::uint64_t> {
    std::uint64_t bytes = 0;
    error = size_of(row, {checkpoint_, files_, gguf_files_, tensor, *expression}, bytes);
    if (error == EFBIG) error = 0;  // the file exists, but open() fails
    return error == 0 ? std::optional(bytes) : std::nullopt;
  };
  const auto number =
      looked_up_.look_up(static_cast<std::uint8_t>(row.id), tensor, *expression, size);
  if (!number) return error;
  node = {row.id, false, *number};
  return 0;
}

void Nodes::forget(Node node, std::uint64_t lookups) {
  if (!is_looked_up(node)) return;
  looked_up_.forget(node.number, lookups);
  if (registry_.find(node)->names == Names::kGlobs && name_of(node) == nullptr) {
    subsets_.drop(node.number);
  }
}

// Directories

Node Nodes::parent(Node directory) const {
  if (directory == kControlNode || directory == kRootNode) return kRootNode;
  const ViewSpec& row = *registry_.find(directory);
  const PathTree* tree = is_mirror(row) ? tree_of(row) : nullptr;
  if (is_tensor_directory(directory)) {
    // Find the directory that contains the tensor's path.
    std::uint32_t above = PathTree::kRoot;
    std::string_view path = checkpoint_.tensor(index_of(directory.number)).path;
    for (std::size_t slash; (slash = path.find('/')) != std::string_view::npos;) {
      const auto entry = tree->lookup(above, path.substr(0, slash));
      if (!entry || !entry->is_directory) break;
      above = entry->number;
      path.remove_prefix(slash + 1);
    }
    return {directory.view, true, above};
  }
  if (tree != nullptr && directory.number != PathTree::kRoot) {
    return {directory.view, true, tree->parent(index_of(directory.number))};
  }
  return kControlNode;
}

std::optional<Nodes::Entry> Nodes::list(Node directory, std::uint64_t cursor,
                                        std::uint64_t& next) const {
  next = cursor + 1;
  if (directory == kControlNode) {
    const auto rows = registry_.rows();
    std::uint64_t at = cursor;
    const auto is_listed = [&](const ViewSpec& row) { return !row.name.empty() && has(row); };
    while (at < rows.size() && !is_listed(rows[static_cast<std::size_t>(at)])) ++at;
    next = at + 1;
    if (at >= rows.size()) return std::nullopt;
    const ViewSpec& row = rows[static_cast<std::size_t>(at)];
    return Entry{node_of(row), std::string(row.name)};
  }
  const ViewSpec& row = *registry_.find(directory);
  if (is_tensor_directory(directory) || row.names == Names::kGlobs) return std::nullopt;
  if (is_mirror(row)) return list_mirrored(row, directory, cursor, next);
  const NameList& names = data_of(row).names;
  if (cursor >= names.size()) return std::nullopt;
  const auto [number, name] = names.at(static_cast<std::size_t>(cursor));
  return Entry{listed_node(row, checkpoint_, number), std::string(name)};
}

std::optional<Nodes::Entry> Nodes::list_mirrored(const ViewSpec& row, Node directory,
                                                 std::uint64_t cursor, std::uint64_t& next) const {
  const PathTree* tree = tree_of(row);
  if (tree == nullptr) return std::nullopt;
  while (const auto entry = tree->list(index_of(directory.number), cursor, next)) {
    cursor = next;
    if (!entry->is_directory && !shows(row, checkpoint_, entry->number)) continue;
    return Entry{mirrored_node(row, *entry), mirrored_name(*entry, tree_suffix(row))};
  }
  next = cursor + 1;
  if (directory == kRootNode && control_ == ControlDirectory::kVisible &&
      cursor == checkpoint_.tensor_count()) {
    return Entry{kControlNode, std::string(kControlName)};
  }
  return std::nullopt;
}

// Files

std::optional<ViewFile> Nodes::file_of(Node file) const {
  if (!is_looked_up(file)) return ViewFile{checkpoint_, files_, gguf_files_, index_of(file.number)};
  const LookedUpNames::Name* name = name_of(file);
  if (name == nullptr) return std::nullopt;
  return ViewFile{checkpoint_, files_, gguf_files_, name->tensor, name->expression};
}

const Nodes::Made& Nodes::permanent_content(const ViewSpec& row, const ViewFile& file) const {
  return *once(data_of(row).content, [&]() -> std::optional<Made> {
    std::vector<std::uint32_t> tensors;
    Made made;
    made.error = make(row, with_tensors(row, file, tensors), made.content);
    return made;
  });
}

int Nodes::content(Node node, Recipe& recipe) const {
  const ViewSpec& row = *registry_.find(node);
  if (row.make == nullptr && row.extent == nullptr) return 0;
  const std::optional<ViewFile> file = file_of(node);
  if (!file) return ENOENT;
  if (row.names == Names::kFile) {
    const Made& permanent = permanent_content(row, *file);
    if (permanent.error == 0) recipe.permanent = &permanent.content;
    return permanent.error;
  }
  std::vector<std::uint32_t> tensors;
  if (row.names == Names::kGlobs) {
    if (size(node) == 0) return EFBIG;
    recipe.cached = subsets_.get(node.number, [&]() -> Recipes::New {
      Content content;
      if (make(row, with_tensors(row, *file, tensors), content) != 0) return {std::nullopt, 0};
      return {std::move(content), tensors.size()};
    });
    return recipe.cached ? 0 : EFBIG;
  }
  if (row.holds_text && holds_much(file->tensor())) {
    turn_.acquire();
    recipe.turn.reset(&turn_);
  }
  return make(row, with_tensors(row, *file, tensors), recipe.own);
}

std::optional<Extent> Nodes::extent(Node node) const {
  const ViewSpec* const row = file_row(node);
  if (row == nullptr || row->extent == nullptr || !exists(node)) return std::nullopt;
  return row->extent({checkpoint_, files_, gguf_files_, index_of(node.number)});
}

int Nodes::verify(Node node) const {
  const ViewSpec& row = *registry_.find(node);
  if (row.verify != nullptr) {
    const std::optional<ViewFile> file = file_of(node);
    return file ? row.verify(*file) : ENOENT;
  }
  Recipe recipe;
  if (const int error = content(node, recipe)) return error;
  return recipe.content().verify();
}

Nodes::Kind Nodes::kind(Node node) const {
  const ViewSpec* const row = file_row(node);
  if (row != nullptr && row->snapshot != nullptr) return Kind::kSnapshot;
  if (row == nullptr || row->compute == nullptr) return Kind::kRecipe;
  return row->names == Names::kFile ? Kind::kLongText : Kind::kText;
}

bool Nodes::has_size(Node node) const {
  const ViewSpec* const row = file_row(node);
  return row != nullptr && row->snapshot == nullptr &&
         (row->compute == nullptr || row->size != nullptr);
}

std::optional<Node> Nodes::next_tensor(Node file) const {
  const ViewSpec* const row = file_row(file);
  if (row == nullptr || row->names != Names::kTensors) return std::nullopt;
  const Node next{file.view, false, file.number + 1};
  return exists(next) ? std::optional(next) : std::nullopt;
}

std::string Nodes::snapshot(Node node, const Counters& counters) const {
  return registry_.find(node)->snapshot(counters);
}

bool Nodes::may_wait(Node computed) const {
  const std::optional<ViewFile> file = file_of(computed);
  if (!file) return false;
  const Tensor tensor = file->tensor();
  return !tensor.locator || !tensor.locator->source->is_complete();
}

int Nodes::compute(Node node, const std::atomic<bool>& stop, std::string& text) const {
  std::optional<ViewFile> file = file_of(node);
  if (!file) return ENOENT;
  file->kept = &kept_stats_;
  return registry_.find(node)->compute(*file, stop, text);
}

std::uint64_t Nodes::size(Node node) const {
  if (is_looked_up(node)) {
    const LookedUpNames::Name* name = name_of(node);
    return name == nullptr ? 0 : name->size;
  }
  if (!has_size(node)) return 0;
  const ViewSpec& row = *registry_.find(node);
  const ViewFile file = *file_of(node);
  std::uint64_t bytes = 0;
  if (row.names != Names::kFile) {
    size_of(row, file, bytes);
    return bytes;
  }
  if (row.size == nullptr) {
    const Made& permanent = permanent_content(row, file);
    return permanent.error == 0 ? permanent.content.size() : 0;
  }
  return *once(data_of(row).size, [&]() -> std::optional<std::uint64_t> {
    size_of(row, file, bytes);
    return bytes;
  });
}

timespec Nodes::mtime(Node node) const {
  const ViewSpec* const row = file_row(node);
  const std::optional<ViewFile> file = row == nullptr ? std::nullopt : file_of(node);
  if (!file) return newest_;
  if (row->mtime != nullptr) return row->mtime(*file);
  return is_mirror(*row) ? file->tensor().mtime() : newest_;
}

std::optional<Nodes::Shown> Nodes::shown(Node node) const {
  const ViewSpec* const row = file_row(node);
  if (row == nullptr || !row->shows_values) return std::nullopt;
  const std::optional<ViewFile> file = file_of(node);
  if (!file) return std::nullopt;
  Shown shown{file->tensor(), file->expression, std::nullopt};
  if (row->as != nullptr) shown.as = row->as(shown.tensor);
  if (shown.as == shown.tensor.dtype) shown.as.reset();
  return shown;
}

}  // namespace stfs
