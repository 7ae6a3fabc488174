#include "fs/mount/filesystem.h"

#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/checkpoint/catalogue.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>

namespace stfs {
namespace {

constexpr std::size_t kMaxXattr = 65536;  // XATTR_SIZE_MAX of the kernel
constexpr std::size_t kMaxName = 255;     // f_namemax
constexpr std::uint64_t kFirstEntry = 2;  // offsets 0 and 1 are "." and ".."

struct Xattr {
  std::string_view name;
  std::string (*value)(const Nodes::Shown&);
  bool (*applies)(const Nodes::Shown&) = [](const Nodes::Shown&) { return true; };
};

// They name the tensor, in a view's file too.
constexpr std::array<Xattr, 8> kXattrs{{
    {"user.stfs.name", [](const Nodes::Shown& s) { return std::string(s.tensor.name); }},
    {"user.stfs.dtype",
     [](const Nodes::Shown& s) { return std::string(dtype_name(s.tensor.dtype)); }},
    {"user.stfs.shape", [](const Nodes::Shown& s) { return shape_json(s.tensor.shape); }},
    {"user.stfs.source", [](const Nodes::Shown& s) { return s.tensor.source->file.path(); }},
    {"user.stfs.offset", [](const Nodes::Shown& s) { return std::to_string(s.tensor.offset); }},
    {"user.stfs.length", [](const Nodes::Shown& s) { return std::to_string(s.tensor.length); }},
    {"user.stfs.slice", [](const Nodes::Shown& s) { return std::string(s.slice); },
     [](const Nodes::Shown& s) { return !s.slice.empty(); }},
    {"user.stfs.as", [](const Nodes::Shown& s) { return std::string(dtype_name(*s.as)); },
     [](const Nodes::Shown& s) { return s.as.has_value(); }},
}};

std::vector<const LocalFile*> files_of(const Checkpoint& checkpoint) {
  std::vector<const LocalFile*> files;
  for (const auto& source : checkpoint.sources()) files.push_back(&source->file);
  return files;
}

}  // namespace

FileSystem::FileSystem(const Checkpoint& checkpoint, const FileSystemOptions& options, Log log)
    : checkpoint_(checkpoint),
      options_(options),
      log_(std::move(log)),
      nodes_(checkpoint, options.views, options.control, options.ledger),
      leases_(files_of(checkpoint)),
      reported_(checkpoint.sources().size()),
      computed_(std::clamp(std::thread::hardware_concurrency(), 1U, 8U),
                [this](Computed::Key key, const std::atomic<bool>& stop, std::string& text) {
                  return compute(node_of(key), stop, text);
                }) {
  for (const auto& source : checkpoint.sources()) {
    for (const TensorRecord& tensor : source->header.tensors) statistics_.bytes += tensor.length;
  }
  statistics_.files = checkpoint.tensor_count();
  for (std::size_t i = 0; options.ledger != nullptr && i < reported_.size(); ++i) {
    checkpoint.sources()[i]->file.mark_failed(options.ledger->failures(i));
    if (!options.ledger->has_changed(i)) continue;
    checkpoint.sources()[i]->file.mark_changed();
    reported_[i] = true;
  }
  if (options_.drop) dropping_ = start_thread([this] { drop_surplus(); });
}

FileSystem::~FileSystem() {
  nodes_.stop_waiting();
  if (dropping_.joinable()) dropping_.join();
}

void FileSystem::drop_surplus() {
  while (const auto surplus = nodes_.wait_for_surplus()) {
    if (!options_.drop(inode_of(*surplus))) return;
  }
}

Attributes FileSystem::attributes_of(Node node) const {
  Attributes attributes{};
  attributes.inode = inode_of(node);
  attributes.uid = options_.uid;
  attributes.gid = options_.gid;
  attributes.mtime = nodes_.mtime(node);
  if (node.is_directory) {
    attributes.mode = S_IFDIR | (0555 & ~options_.umask);
    attributes.links = 1;  // as btrfs: tools do not count subdirectories by it
  } else {
    attributes.mode = S_IFREG | (0444 & ~options_.umask);
    attributes.links = 1;
    attributes.size = nodes_.size(node);
    attributes.blocks = attributes.size / 512 + (attributes.size % 512 != 0 ? 1 : 0);
  }
  return attributes;
}

int FileSystem::lookup(std::uint64_t directory, std::string_view name, Attributes& attributes) {
  const Node parent = node_of(directory);
  if (!parent.is_directory || !nodes_.exists(parent)) return ENOENT;
  if (name.size() > kMaxName) return ENAMETOOLONG;
  Node node{};
  if (const int error = nodes_.lookup(parent, name, node)) return error;
  attributes = attributes_of(node);
  return 0;
}

void FileSystem::forget(std::uint64_t inode, std::uint64_t lookups) {
  nodes_.forget(node_of(inode), lookups);
}

std::optional<Attributes> FileSystem::attributes(std::uint64_t inode) const {
  const Node node = node_of(inode);
  if (!nodes_.exists(node)) return std::nullopt;
  return attributes_of(node);
}

int FileSystem::list(std::uint64_t directory, std::uint64_t offset, const AddEntry& add) const {
  const Node node = node_of(directory);
  if (!node.is_directory || !nodes_.exists(node)) return ENOTDIR;
  const auto add_node = [&](const char* name, Node entry, std::uint64_t next) {
    const mode_t type = entry.is_directory ? S_IFDIR : S_IFREG;
    return add({name, inode_of(entry), type, next});
  };
  if (offset == 0 && !add_node(".", node, ++offset)) return 0;
  if (offset == 1 && !add_node("..", nodes_.parent(node), ++offset)) return 0;
  std::uint64_t next = 0;
  std::uint64_t cursor = offset - kFirstEntry;
  while (const auto entry = nodes_.list(node, cursor, next)) {
    if (!add_node(entry->name.c_str(), entry->node, next + kFirstEntry)) break;
    cursor = next;
  }
  return 0;
}

int FileSystem::find_content(std::uint64_t inode, Recipe& recipe) const {
  const Node node = node_of(inode);
  if (!nodes_.exists(node)) return ENOENT;
  if (node.is_directory) return EISDIR;
  return nodes_.content(node, recipe);
}

int FileSystem::open(std::uint64_t inode) {
  const Node node = node_of(inode);
  if (!nodes_.exists(node)) return ENOENT;
  if (node.is_directory) return EISDIR;
  const int error = nodes_.verify(node);
  if (error != 0) report_faults();
  if (error == 0) nodes_.open(node);
  return error;
}

bool FileSystem::is_computed(std::uint64_t inode) const {
  const Node node = node_of(inode);
  return nodes_.is_computed(node) && nodes_.exists(node);
}

int FileSystem::read(std::uint64_t inode, std::uint64_t offset, std::uint64_t length,
                     const Send& send) const {
  Recipe recipe;
  if (const int error = find_content(inode, recipe)) return error;
  Reading reading;
  const int error = recipe.content().read(offset, length, reading);
  if (error != 0) report_faults();
  if (error != 0) return error;
  send(reading.pieces);
  return 0;
}

void FileSystem::read_computed(Computed::Ticket ticket, std::uint64_t inode, std::uint64_t offset,
                               std::uint64_t length, SendComputed send) {
  try {
    computed_.request(ticket, inode,
                      [offset, length, send = std::move(send)](int error, const std::string& text) {
                        const std::string_view all(text);
                        send(error,
                             offset < all.size() ? all.substr(offset, length) : std::string_view{});
                      });
  } catch (...) {
    computed_.forget(ticket);
    throw;
  }
}

int FileSystem::compute(Node node, const std::atomic<bool>& stop, std::string& text) const {
  const int error = nodes_.compute(node, stop, text);
  if (error != 0) report_faults();
  return error;
}

void FileSystem::report_faults() const {
  for (std::size_t i = 0; i < reported_.size(); ++i) {
    const LocalFile& file = checkpoint_.sources()[i]->file;
    if (file.has_changed()) {
      if (options_.ledger != nullptr) options_.ledger->mark_changed(i);
      if (reported_[i].exchange(true)) continue;
      log_(printable(file.path()) +
           ": changed since it was mounted: reads of it fail (ESTALE); unmount and mount again");
      continue;
    }
    if (options_.ledger != nullptr) {
      const std::lock_guard lock(keeping_);
      options_.ledger->keep_failures(i, file.failures());
    }
    while (const auto failure = file.take_failure()) {
      const bool is_range = failure->begin != failure->end;
      log_(printable(file.path()) + ": " +
           (is_range ? "reading bytes " + std::to_string(failure->begin) + " to " +
                           std::to_string(failure->end)
                     : "attributes") +
           ": " + errno_text(failure->error) +
           (failure->is_last ? "; what else fails here is not logged" : ""));
    }
  }
}

int FileSystem::get_xattr(std::uint64_t inode, std::string_view name, std::string& value) const {
  const Node node = node_of(inode);
  if (!nodes_.exists(node)) return ENOENT;
  if (!name.starts_with("user.")) return EOPNOTSUPP;
  const std::optional<Nodes::Shown> shown = nodes_.shown(node);
  const auto xattr = std::ranges::find(kXattrs, name, &Xattr::name);
  if (!shown || xattr == kXattrs.end() || !xattr->applies(*shown)) return ENODATA;
  // A shape of a hundred megabytes need not be written to see that it is too long.
  if (name == "user.stfs.shape" && shown->tensor.shape.size() > kMaxXattr) return E2BIG;
  value = xattr->value(*shown);
  return value.size() > kMaxXattr ? E2BIG : 0;
}

int FileSystem::list_xattr(std::uint64_t inode, std::string& names) const {
  const Node node = node_of(inode);
  if (!nodes_.exists(node)) return ENOENT;
  names.clear();
  const std::optional<Nodes::Shown> shown = nodes_.shown(node);
  if (!shown) return 0;
  for (const Xattr& xattr : kXattrs) {
    if (!xattr.applies(*shown)) continue;
    names += xattr.name;
    names += '\0';
  }
  return 0;
}

}  // namespace stfs
