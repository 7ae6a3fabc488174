#include "fs/mount/filesystem.h"

#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/base/while_wanted.h"
#include "core/checkpoint/catalogue.h"
#include "core/checkpoint/mount_source.h"
#include "core/recipe/fetch_missing.h"
#include "fs/mount/pending_fetch.h"

#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <new>
#include <thread>
#include <utility>

namespace stfs {
namespace {

constexpr std::size_t kMaxName = 255;     // f_namemax
constexpr std::uint64_t kFirstEntry = 2;  // offsets 0 and 1 are "." and ".."

struct Xattr {
  std::string_view name;
  std::string (*value)(const Nodes::Shown&);
  bool (*applies)(const Nodes::Shown&) = [](const Nodes::Shown&) { return true; };
};

bool has_locator(const Nodes::Shown& s) { return s.tensor.locator.has_value(); }

// Returns the names of the inputs of a computed tensor as JSON.
std::string names_of_inputs(const Nodes::Shown& shown) {
  std::string json = "[";
  for (const Tensor& input : shown.tensor.computed->inputs()) {
    json += (json.size() == 1 ? "" : ",") + json_string(input.name);
  }
  return json + "]";
}

// The extended attributes of a tensor's file. The files of views have them too.
constexpr std::array<Xattr, 10> kXattrs{{
    {"user.stfs.name", [](const Nodes::Shown& s) { return std::string(s.tensor.name); }},
    {"user.stfs.dtype",
     [](const Nodes::Shown& s) { return std::string(dtype_name(s.tensor.dtype)); }},
    {"user.stfs.shape", [](const Nodes::Shown& s) { return shape_json(s.tensor.shape); }},
    {"user.stfs.source", [](const Nodes::Shown& s) { return s.tensor.locator->source->path(); },
     has_locator},
    {"user.stfs.offset",
     [](const Nodes::Shown& s) { return std::to_string(s.tensor.locator->offset); }, has_locator},
    {"user.stfs.length",
     [](const Nodes::Shown& s) { return std::to_string(s.tensor.locator->length); }, has_locator},
    {"user.stfs.version",
     [](const Nodes::Shown& s) {
       const Source& source = *s.tensor.locator->source;
       static_cast<void>(source.verify());  // updates the token
       return source.is_stale_copy() ? std::string() : source.token();
     },
     has_locator},
    {"user.stfs.from", names_of_inputs,
     [](const Nodes::Shown& s) { return s.tensor.computed != nullptr; }},
    {"user.stfs.slice", [](const Nodes::Shown& s) { return std::string(s.slice); },
     [](const Nodes::Shown& s) { return !s.slice.empty(); }},
    {"user.stfs.as", [](const Nodes::Shown& s) { return std::string(dtype_name(*s.as)); },
     [](const Nodes::Shown& s) { return s.as.has_value(); }},
}};

std::vector<const Source*> sources_of_parts(const Checkpoint& checkpoint) {
  std::vector<const Source*> sources;
  for (const Part& part : checkpoint.parts()) sources.push_back(part.source.get());
  return sources;
}

}  // namespace

void FileSystem::prefetch(const ReadAhead::Piece& piece) const {
  const Node node = node_of(piece.file);
  if (const std::optional<Extent> extent = nodes_.extent(node)) {
    const Extent part = extent->part(piece.offset, piece.length);
    if (part.length > 0) part.source->prefetch({part.offset, part.length});
    return;
  }
  Recipe recipe;
  if (find_content(node, recipe) != 0) return;
  prefetch_content(recipe.content(), piece.offset, piece.length);
}

FileSystem::FileSystem(const Checkpoint& checkpoint, const FileSystemOptions& options, Log log)
    : options_(options),
      log_(std::move(log)),
      nodes_(checkpoint, options.views, options.control, options.ledger),
      sources_(checkpoint.sources()),
      leases_(sources_of_parts(checkpoint)),
      reported_(sources_.size()),
      reasons_(sources_.size()),
      counters_(options.counters != nullptr ? *options.counters : own_counters_),
      next_snapshot_((static_cast<std::uint64_t>(::getpid()) << 32) + 1),
      waiting_(std::make_shared<PendingReads>()),
      texts_(std::make_unique<ComputedTexts>(
          std::clamp(std::thread::hardware_concurrency(), 1U, 8U),
          [this](ComputedTexts::Key key, const std::atomic<bool>& stop, std::string& text) {
            return compute(node_of(key), stop, text);
          },
          [this](ComputedTexts::Key key) { return may_wait(node_of(key)); })) {
  statistics_.files = checkpoint.tensor_count();
  for (std::uint32_t i = 0; i < checkpoint.tensor_count(); ++i) {
    statistics_.bytes += checkpoint.tensor(i).length;
  }
  for (std::size_t i = 0; options.ledger != nullptr && i < reported_.size(); ++i) {
    sources_[i]->restore_failures(options.ledger->failures(i));
    reported_[i] = options.ledger->is_reported(i);
  }
  if (std::ranges::any_of(sources_, [](const Source* source) { return !source->is_complete(); })) {
    read_ahead_ = std::make_unique<ReadAhead>(
        ReadAhead::Files{.size =
                             [this](std::uint64_t file) {
                               const Node node = node_of(file);
                               return nodes_.exists(node) ? nodes_.size(node) : 0;
                             },
                         .next =
                             [this](std::uint64_t file) {
                               const std::optional<Node> next = nodes_.next_tensor(node_of(file));
                               return next ? std::optional(inode_of(*next)) : std::nullopt;
                             },
                         .prefetch = [this](const ReadAhead::Piece& piece) { prefetch(piece); }});
  }
  if (options.prefetch_all && std::ranges::any_of(sources_, &PrefetchAll::has_work)) {
    prefetch_all_ = std::make_unique<PrefetchAll>(sources_, log_);
  }
}

FileSystem::~FileSystem() {
  prefetch_all_.reset();
  stop_waiting();
}

Attributes FileSystem::attributes_of(Node node) const {
  Attributes attributes{};
  attributes.inode = inode_of(node);
  attributes.uid = options_.uid;
  attributes.gid = options_.gid;
  attributes.mtime = nodes_.mtime(node);
  if (node.is_directory) {
    attributes.mode = S_IFDIR | (0555 & ~options_.umask);
    attributes.links = 1;  // as on btrfs: "subdirectories are not counted"
  } else {
    attributes.mode = S_IFREG | (0444 & ~options_.umask);
    attributes.links = 1;
    // Other files get their size late too, but they are many, and computing each size would slow
    // down `ls`.
    attributes.grows = nodes_.kind(node) == Nodes::Kind::kLongText;
    attributes.size = attributes.grows ? texts_->size(attributes.inode) : nodes_.size(node);
    attributes.blocks = attributes.size / 512 + (attributes.size % 512 != 0 ? 1 : 0);
  }
  return attributes;
}

int FileSystem::lookup(std::uint64_t directory, std::string_view name, Attributes& attributes) {
  const Node parent = node_of(directory);
  if (!parent.is_directory || !nodes_.exists(parent)) return ENOENT;
  if (name.size() > kMaxName) return ENAMETOOLONG;
  Node node{};
  if (const int error = nodes_.lookup(parent, name, node)) {
    if (error == EIO || error == ESTALE) report_faults();
    return error;
  }
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

int FileSystem::find_content(Node file, Recipe& recipe) const {
  if (!nodes_.exists(file)) return ENOENT;
  if (file.is_directory) return EISDIR;
  return nodes_.content(file, recipe);
}

int FileSystem::open(std::uint64_t inode, std::uint64_t* handle) {
  const Node node = node_of(inode);
  if (!nodes_.exists(node)) return ENOENT;
  if (node.is_directory) return EISDIR;
  const int error = nodes_.verify(node);
  if (error != 0) report_faults();
  if (error != 0) return error;
  if (nodes_.kind(node) == Nodes::Kind::kLongText) texts_->hold(inode);
  if (handle == nullptr || nodes_.kind(node) != Nodes::Kind::kSnapshot) return 0;
  std::string text = nodes_.snapshot(node, counters_);
  const std::lock_guard lock(snapshots_mutex_);
  snapshots_.emplace(next_snapshot_, std::move(text));
  *handle = next_snapshot_++;
  return 0;
}

void FileSystem::release(std::uint64_t inode, std::uint64_t handle) {
  const Node node = node_of(inode);
  if (nodes_.kind(node) == Nodes::Kind::kLongText) texts_->let_go(inode);
  if (handle == 0) return;
  const std::lock_guard lock(snapshots_mutex_);
  snapshots_.erase(handle);
}

bool FileSystem::is_computed(std::uint64_t inode) const {
  const Node node = node_of(inode);
  return nodes_.kind(node) != Nodes::Kind::kRecipe && !nodes_.has_size(node) && nodes_.exists(node);
}

void FileSystem::answer(const Done& done, int error, const Reply& reply) const {
  try {
    if (error != 0 && error != EINTR) report_faults();
  } catch (const std::exception&) {
    // There is no memory for the log line. Do not throw, because this may be a thread of a pool,
    // and its reader must get the errno.
  }
  std::uint64_t bytes = 0;
  for (const iovec& piece : reply.pieces()) bytes += piece.iov_len;
  if (error == 0) counters_.bytes_returned.fetch_add(bytes, std::memory_order_relaxed);
  done(error, reply);
}

void FileSystem::read(const ReadRequest& request, const WillWait& will_wait, Done done) {
  counters_.reads.fetch_add(1, std::memory_order_relaxed);
  const Node file = node_of(request.inode);
  const Nodes::Kind kind = nodes_.kind(file);
  if (kind != Nodes::Kind::kRecipe && nodes_.exists(file)) {
    if (kind == Nodes::Kind::kSnapshot) return answer_snapshot(request, done);
    return compute_and_answer(request, will_wait, std::move(done));
  }
  bool is_missing = false;
  {
    Reply reply;
    int error = 0;
    if (const std::optional<Extent> extent = nodes_.extent(file)) {
      const Extent part = extent->part(request.offset, request.length);
      is_missing = !part.source->has({part.offset, part.length});
      if (!is_missing) error = read_extent(part, reply.reading);
    } else {
      error = find_content(file, reply.recipe);
      const Content& content = reply.recipe.content();
      if (error == 0) is_missing = !content.missing(request.offset, request.length).empty();
      if (error == 0 && !is_missing) {
        error = content.read(request.offset, request.length, reply.reading);
      }
    }
    is_missing = is_missing || error == EAGAIN;
    if (!is_missing) answer(done, error, reply);
  }
  // The recipe is destroyed by now. This is needed because a source may be ready at once, and the
  // answer then takes Recipe::turn again.
  if (is_missing) gather_and_answer(request, will_wait, std::move(done));
  if (read_ahead_ == nullptr) return;
  try {
    read_ahead_->see(request.inode, request.offset, request.length);
  } catch (const std::bad_alloc&) {
    // The request is answered. The next bytes are fetched when they are read.
  }
}

void FileSystem::gather_and_answer(const ReadRequest& request, const WillWait& will_wait,
                                   Done done) {
  const RepeatedReads::Read read{request.inode, request.offset, request.length};
  const auto began = RepeatedReads::Clock::now();
  if (request.is_cached && second_tries_.take(read, began)) return answer(done, EIO, {});
  const Ticket ticket =
      waiting_->wait(will_wait, [this, done = std::move(done), read, began,
                                 is_cached = request.is_cached](int error, const Reply& reply) {
        if (error == 0) second_tries_.succeeded(read);
        if (error == EIO && is_cached) {
          second_tries_.failed(read, began, RepeatedReads::Clock::now());
        }
        answer(done, error, reply);
      });
  try {
    std::make_shared<PendingFetch>(
        waiting_, ticket,
        [this, inode = request.inode](Recipe& recipe) {
          return find_content(node_of(inode), recipe);
        },
        request.offset, request.length)
        ->go_on();
  } catch (...) {  // no memory; the caller would answer a request that has a ticket
    waiting_->arrive(ticket, ENOMEM, {});
  }
}

void FileSystem::answer_snapshot(const ReadRequest& request, const Done& done) const {
  std::string text;
  Reply reply;
  {
    const std::lock_guard lock(snapshots_mutex_);
    const auto found = snapshots_.find(request.handle);
    if (found == snapshots_.end()) return done(EIO, reply);
    if (request.offset < found->second.size()) {
      text = found->second.substr(request.offset, request.length);
    }
  }
  if (!text.empty()) reply.reading.pieces.push_back({text.data(), text.size()});
  answer(done, 0, reply);
}

void FileSystem::compute_and_answer(const ReadRequest& request, const WillWait& will_wait,
                                    Done done) {
  const Ticket ticket =
      waiting_->wait(will_wait, [this, done = std::move(done)](int error, const Reply& reply) {
        answer(done, error, reply);
      });
  try {
    texts_->request(
        ticket, request.inode, [this, request, ticket](int error, const std::string& text) {
          Reply reply;
          if (error == 0 && request.offset < text.size()) {
            const std::string_view part =
                std::string_view(text).substr(request.offset, request.length);
            reply.reading.pieces.push_back({const_cast<char*>(part.data()), part.size()});
          }
          waiting_->arrive(ticket, error, reply);
        });
  } catch (...) {  // no memory; the caller would answer a request that has a ticket
    waiting_->arrive(ticket, ENOMEM, {});
  }
  // If the request was cancelled before texts_ had it, cancel() could not remove it there.
  if (!waiting_->is_waiting(ticket)) texts_->leave(ticket);
}

void FileSystem::cancel(Ticket ticket) {
  waiting_->cancel(ticket);
  texts_->leave(ticket);
}

void FileSystem::stop_waiting() {
  texts_->stop();
  waiting_->stop();
}

bool FileSystem::may_wait(Node computed) const {
  // A long text would delay the short texts, which are computed quickly.
  if (nodes_.kind(computed) == Nodes::Kind::kLongText) return true;
  return read_ahead_ != nullptr && nodes_.may_wait(computed);
}

int FileSystem::compute(Node node, const std::atomic<bool>& stop, std::string& text) const {
  const WhileWanted while_wanted([&stop] { return !stop; });
  const int error = nodes_.compute(node, stop, text);
  if (nodes_.kind(node) == Nodes::Kind::kLongText)
    ::malloc_trim(0);  // returns the memory of the computation, some hundred bytes per tensor
  if (error != 0) report_faults();
  return error;
}

void FileSystem::report_faults() const {
  for (std::size_t i = 0; i < reported_.size(); ++i) {
    const Source& source = *sources_[i];
    if (source.has_changed()) {
      if (reported_[i].exchange(true)) continue;
      if (options_.ledger != nullptr) options_.ledger->mark_reported(i);
      // The text that mark_changed() was called with is the same for all sources of the mount.
      if (const std::string why = source.Source::failure_text(); !why.empty()) {
        const std::lock_guard lock(faults_mutex_);
        if (std::exchange(why_all_changed_, why) != why) {
          log_(printable(source.path()) + ": " + why + ": reads of the mount fail (ESTALE)");
        }
        continue;
      }
      const bool serves_cached = source.verify() == 0;  // a remote source
      log_(printable(source.path()) + ": changed since it was mounted: reads of " +
           (serves_cached ? "bytes that are not cached" : "it") +
           " fail (ESTALE); unmount and mount again");
      continue;
    }
    const std::string why = source.failure_text();
    bool is_new_reason = false;
    {
      const std::lock_guard lock(faults_mutex_);
      if (options_.ledger != nullptr) options_.ledger->keep_failures(i, source.failures());
      is_new_reason = !why.empty() && std::exchange(reasons_[i], why) != why;
    }
    while (const auto failure = source.take_failure()) {
      is_new_reason = false;
      const bool is_range = failure->begin != failure->end;
      log_(printable(source.path()) + ": " +
           (is_range ? "reading bytes " + std::to_string(failure->begin) + " to " +
                           std::to_string(failure->end)
                     : "attributes") +
           ": " + errno_text(failure->error) + (why.empty() ? "" : " (" + why + ")") +
           (failure->is_last ? "; further failures of this source are not logged" : ""));
    }
    if (is_new_reason) log_(printable(source.path()) + ": reading: " + why);
  }
}

std::string FileSystem::content() const {
  if (!options_.content) return "";
  for (const Source* source : sources_) static_cast<void>(source->verify());
  return options_.content();
}

bool FileSystem::lists_content() const {
  if (!options_.content) return false;
  // Compute the length only once, because it does not change and content() hashes all tokens.
  std::call_once(measured_, [this] { fits_attribute_ = content().size() <= XATTR_SIZE_MAX; });
  return fits_attribute_;
}

int FileSystem::get_xattr(std::uint64_t inode, std::string_view name, std::string& value) const {
  const Node node = node_of(inode);
  if (!nodes_.exists(node)) return ENOENT;
  if (!name.starts_with("user.")) return EOPNOTSUPP;
  if (node == kRootNode && name == kMountAttribute && options_.content) {
    value = content();
    return value.size() > XATTR_SIZE_MAX ? E2BIG : 0;
  }
  const std::optional<Nodes::Shown> shown = nodes_.shown(node);
  const auto xattr = std::ranges::find(kXattrs, name, &Xattr::name);
  if (!shown || xattr == kXattrs.end() || !xattr->applies(*shown)) return ENODATA;
  // Check before writing: a name or a shape may have a hundred megabytes.
  if (name == "user.stfs.name" && shown->tensor.name.size() > XATTR_SIZE_MAX) return E2BIG;
  if (name == "user.stfs.shape" && shown->tensor.shape.size() > XATTR_SIZE_MAX) return E2BIG;
  value = xattr->value(*shown);
  return value.size() > XATTR_SIZE_MAX ? E2BIG : 0;
}

int FileSystem::list_xattr(std::uint64_t inode, std::string& names) const {
  const Node node = node_of(inode);
  if (!nodes_.exists(node)) return ENOENT;
  names.clear();
  // Do not list an attribute that is too long to be read, because programs that copy attributes
  // would fail.
  if (node == kRootNode && lists_content()) {
    names = kMountAttribute;
    names += '\0';
  }
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
