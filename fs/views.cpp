#include "fs/views.h"

#include "core/catalogue.h"
#include "core/path_names.h"

#include <algorithm>
#include <array>

namespace stfs {
namespace {

constexpr std::string_view kControlName = ".stfs";
constexpr std::string_view kJsonSuffix = ".json";

// The files of `.stfs/` itself; their numbers are the positions here.
enum ControlFile : std::uint32_t { kInfoJson, kTensorsJson, kTensorsTsv };

struct Fixed {
  std::string_view name;
  Node node;
};

constexpr std::array<Fixed, 6> kControlEntries{{
    {"info.json", {View::kControl, false, kInfoJson}},
    {"tensors.json", {View::kControl, false, kTensorsJson}},
    {"tensors.tsv", {View::kControl, false, kTensorsTsv}},
    {"header", {View::kHeader, true, 0}},
    {"metadata", {View::kMetadata, true, 0}},
    {"json", {View::kJson, true, PathTree::kRoot}},
}};
constexpr std::uint32_t kControlFiles = 3;
constexpr Node kControlNode{View::kControl, true, 0};

// Views that show the checkpoint's tree, and what the names of their files end in.
constexpr bool is_mirror(View view) { return view == View::kRaw || view == View::kJson; }
constexpr std::string_view suffix_of(View view) {
  return view == View::kJson ? kJsonSuffix : std::string_view{};
}

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

constexpr std::uint64_t kFileBit = 1ULL << 32;
constexpr unsigned kViewShift = 33;

}  // namespace

std::uint64_t inode_of(Node node) {
  const std::uint64_t view = static_cast<std::uint64_t>(node.view) << kViewShift;
  return 1 + (view | (node.is_directory ? 0 : kFileBit) | node.number);
}

Node node_of(std::uint64_t inode) {
  const std::uint64_t bits = inode - 1;
  const std::uint64_t view = std::min<std::uint64_t>(bits >> kViewShift, kViewCount);
  return {static_cast<View>(view), (bits & kFileBit) == 0, static_cast<std::uint32_t>(bits)};
}

Views::FlatDirectory::FlatDirectory(std::vector<std::string> names) {
  for (std::string& name : names) {
    const auto number = static_cast<std::uint32_t>(entries_.size());
    entries_.emplace_back(std::move(name), number);
  }
  std::ranges::sort(entries_);
}

std::optional<Node> Views::FlatDirectory::lookup(View view, std::string_view name) const {
  const auto found =
      std::ranges::lower_bound(entries_, name, {}, &std::pair<std::string, std::uint32_t>::first);
  if (found == entries_.end() || found->first != name) return std::nullopt;
  return Node{view, false, found->second};
}

std::optional<Views::Entry> Views::FlatDirectory::list(View view, std::uint64_t cursor) const {
  if (cursor >= entries_.size()) return std::nullopt;
  const auto& [name, number] = entries_[cursor];
  return Entry{{view, false, number}, name};
}

Views::Views(const Checkpoint& checkpoint, ControlDirectory control)
    : checkpoint_(checkpoint), control_(control) {
  std::vector<std::string> headers;
  for (const auto& source : checkpoint.sources()) {
    const timespec& mtime = source->file.mtime();
    if (std::pair(mtime.tv_sec, mtime.tv_nsec) > std::pair(newest_.tv_sec, newest_.tv_nsec)) {
      newest_ = mtime;
    }
    headers.push_back(encode_component(source->label) + std::string(kJsonSuffix));
  }
  std::vector<std::string> keys;
  for (const auto& [key, value] : checkpoint.metadata()) keys.push_back(encode_component(key));
  header_ = FlatDirectory(std::move(headers));
  metadata_ = FlatDirectory(std::move(keys));
}

bool Views::exists(Node node) const {
  if (node.view != View::kRaw && control_ == ControlDirectory::kOff) return false;
  if (node.is_directory) {
    return is_mirror(node.view) ? node.number < checkpoint_.tree().directory_count()
                                : static_cast<int>(node.view) < kViewCount && node.number == 0;
  }
  switch (node.view) {
    case View::kRaw:
    case View::kJson:
      return node.number < checkpoint_.tensor_count();
    case View::kControl:
      return node.number < kControlFiles;
    case View::kHeader:
      return node.number < header_.size();
    case View::kMetadata:
      return node.number < metadata_.size();
  }
  return false;
}

std::optional<Node> Views::lookup_control(std::string_view name) const {
  const auto found = std::ranges::find(kControlEntries, name, &Fixed::name);
  if (found == kControlEntries.end()) return std::nullopt;
  return found->node;
}

std::optional<Node> Views::lookup(Node directory, std::string_view name) const {
  switch (directory.view) {
    case View::kControl:
      return lookup_control(name);
    case View::kHeader:
      return header_.lookup(View::kHeader, name);
    case View::kMetadata:
      return metadata_.lookup(View::kMetadata, name);
    case View::kRaw:
    case View::kJson:
      break;
  }
  if (directory == kRootNode && name == kControlName && control_ != ControlDirectory::kOff) {
    return kControlNode;
  }
  const PathTree& tree = checkpoint_.tree();
  const std::string_view suffix = suffix_of(directory.view);
  if (name.ends_with(suffix)) {
    const auto entry = tree.lookup(directory.number, name.substr(0, name.size() - suffix.size()));
    if (entry && !entry->is_directory) return Node{directory.view, false, entry->number};
  }
  if (const auto plain = unescape_suffix(name, suffix)) {
    const auto entry = tree.lookup(directory.number, *plain);
    if (entry && entry->is_directory) return Node{directory.view, true, entry->number};
  }
  return std::nullopt;
}

Node Views::parent(Node directory) const {
  if (directory.view == View::kControl) return kRootNode;
  if (is_mirror(directory.view) && directory.number != PathTree::kRoot) {
    return {directory.view, true, checkpoint_.tree().parent(directory.number)};
  }
  return directory.view == View::kRaw ? kRootNode : kControlNode;
}

std::optional<Views::Entry> Views::list(Node directory, std::uint64_t cursor,
                                        std::uint64_t& next) const {
  next = cursor + 1;
  switch (directory.view) {
    case View::kControl:
      if (cursor >= kControlEntries.size()) return std::nullopt;
      return Entry{kControlEntries[cursor].node, std::string(kControlEntries[cursor].name)};
    case View::kHeader:
      return header_.list(View::kHeader, cursor);
    case View::kMetadata:
      return metadata_.list(View::kMetadata, cursor);
    case View::kRaw:
    case View::kJson:
      break;
  }
  if (const auto entry = checkpoint_.tree().list(directory.number, cursor, next)) {
    const std::string_view suffix = suffix_of(directory.view);
    const Node node{directory.view, entry->is_directory, entry->number};
    return Entry{node, entry->is_directory ? escape_suffix(entry->component, suffix)
                                           : std::string(entry->component) + std::string(suffix)};
  }
  next = cursor + 1;
  if (directory == kRootNode && control_ == ControlDirectory::kVisible &&
      cursor == checkpoint_.tensor_count()) {
    return Entry{kControlNode, std::string(kControlName)};
  }
  return std::nullopt;
}

Content Views::make(Node file) const {
  Content content;
  switch (file.view) {
    case View::kRaw: {
      const Tensor tensor = checkpoint_.tensor(file.number);
      return std::move(content.extent(tensor.source->file, tensor.offset, tensor.length));
    }
    case View::kHeader: {
      const Source& source = *checkpoint_.sources()[file.number];
      return std::move(content.extent(source.file, 8, source.header.json_length));
    }
    case View::kMetadata:
      return std::move(content.literal(checkpoint_.metadata()[file.number].second));
    case View::kJson:
      return std::move(content.literal(tensor_json(checkpoint_.tensor(file.number)) + "\n"));
    case View::kControl:
      break;
  }
  switch (file.number) {
    case kInfoJson:
      return std::move(content.literal(info_json(checkpoint_)));
    case kTensorsJson:
      return std::move(content.production(tensors_json(checkpoint_)));
    default:
      return std::move(content.production(tensors_tsv(checkpoint_)));
  }
}

const Content& Views::content(Node file, std::optional<Content>& scratch) const {
  if (file.view != View::kControl) return scratch.emplace(make(file));
  Kept& kept = file.number == kInfoJson      ? info_
               : file.number == kTensorsJson ? tensors_json_
                                             : tensors_tsv_;
  std::call_once(kept.made, [&] { kept.content = make(file); });
  return kept.content;
}

std::uint64_t Views::size(Node file) const {
  switch (file.view) {
    case View::kRaw:
      return checkpoint_.tensor(file.number).length;
    case View::kHeader:
      return checkpoint_.sources()[file.number]->header.json_length;
    case View::kMetadata:
      return checkpoint_.metadata()[file.number].second.size();
    default:
      break;
  }
  std::optional<Content> scratch;
  return content(file, scratch).size();
}

timespec Views::mtime(Node node) const {
  if (!node.is_directory) {
    if (is_mirror(node.view)) return checkpoint_.tensor(node.number).source->file.mtime();
    if (node.view == View::kHeader) return checkpoint_.sources()[node.number]->file.mtime();
  }
  return newest_;
}

std::optional<std::uint32_t> Views::tensor(Node node) const {
  if (node.view != View::kRaw || node.is_directory) return std::nullopt;
  return node.number;
}

}  // namespace stfs
