// The mounted file system in plain types: lookup, attributes, listing, reading, extended
// attributes. It knows nothing of FUSE, so that it can be tested without a mount; fuse_ops.h
// translates.
//
// Answers are values and errno (a positive number, 0 for success). Nothing here throws but
// std::bad_alloc. Thread safety: all members may be called from any thread.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/recipe/content.h"
#include "core/source/leases.h"
#include "fs/mount/computed.h"
#include "fs/mount/nodes.h"
#include "fs/mount/recipes.h"
#include "fs/view/registry.h"

#include <sys/types.h>
#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace stfs {

struct FileSystemOptions {
  uid_t uid = 0;
  gid_t gid = 0;
  mode_t umask = 0;  // taken away from 0444 for files and 0555 for directories
  ControlDirectory control = ControlDirectory::kHidden;
  std::span<const ViewSpec> views = all_views();
  Ledger* ledger = nullptr;  // what this process takes from the one before it, and leaves
  // Lets the kernel forget a file, if nobody uses it; false when it does not know how. Called on a
  // thread of its own, when too many files have been looked up (looked_up.h).
  std::function<bool(std::uint64_t inode)> drop = nullptr;
};

struct Attributes {
  std::uint64_t inode;
  mode_t mode;  // type and permissions
  nlink_t links;
  uid_t uid;
  gid_t gid;
  std::uint64_t size;    // bytes
  std::uint64_t blocks;  // of 512 bytes, as st_blocks
  timespec mtime;        // access and change time are the same
};

struct Statistics {
  std::uint64_t bytes;  // of all tensors
  std::uint64_t files;  // tensors
};

// What answers a read. It owns all that the pieces point to or depend on: the recipe, the pins, the
// buffers.
struct Reply {
  Recipe recipe;
  Reading reading;

  std::span<const iovec> pieces() const { return reading.pieces; }
};

class FileSystem {
 public:
  // `log` gets a line, without its end, for the administrator: a source has changed or cannot be
  // read.
  using Log = std::function<void(const std::string& line)>;

  FileSystem(const Checkpoint& checkpoint, const FileSystemOptions& options, Log log);
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;
  ~FileSystem();

  // Fills `attributes`: 0, ENOENT, ENAMETOOLONG, or for a slice EINVAL and ERANGE. What a lookup
  // found is kept until it was forgotten as often.
  int lookup(std::uint64_t directory, std::string_view name, Attributes& attributes);
  void forget(std::uint64_t inode, std::uint64_t lookups);
  std::size_t looked_up_names() const { return nodes_.looked_up_names(); }

  // Whether a file can only be found by its name, which the kernel shall look up again.
  bool is_looked_up(std::uint64_t inode) const { return nodes_.is_looked_up(node_of(inode)); }

  std::optional<Attributes> attributes(std::uint64_t inode) const;

  // An entry of a directory, as a listing tells it. Attributes would cost more than the listing.
  struct Entry {
    const char* name;  // valid during the call
    std::uint64_t inode;
    mode_t type;                // S_IFREG or S_IFDIR
    std::uint64_t next_offset;  // where to go on after this entry
  };
  // Calls `add` for each entry of a directory from `offset` on (0 at first, then the offset that
  // came with the last entry that was taken), "." and ".." included, until it returns false.
  // Offsets stay good for the life of the mount. ENOTDIR, or 0.
  using AddEntry = std::function<bool(const Entry& entry)>;
  int list(std::uint64_t directory, std::uint64_t offset, const AddEntry& add) const;

  // Opens a file: 0, ESTALE when its source has changed, EISDIR, ENOENT, EFBIG for a safetensors
  // file whose header would be too long. Each success wants a release.
  int open(std::uint64_t inode);
  void release(std::uint64_t inode) { nodes_.release(node_of(inode)); }

  // Whether a file is computed when it is read: its size is reported as 0, and it is read to its
  // end past the kernel's cache.
  bool is_computed(std::uint64_t inode) const;

  // Reads [offset, offset + length) of a file, cut at its end. `done` is called once: with an
  // errno, or with 0 and the reply, which is valid during the call. Where the bytes are at hand,
  // that is before read() returns. Where they must be computed or fetched first, no thread waits
  // for them: `will_wait` is called with a ticket, and `done` later, on another thread;
  // cancel(ticket) makes that soon, with EINTR. `done` must not throw. When read() throws, `done`
  // is not called.
  struct ReadRequest {
    std::uint64_t inode;
    std::uint64_t offset;  // bytes
    std::uint64_t length;  // bytes
  };
  using Ticket = Computed::Ticket;
  using WillWait = std::function<void(Ticket ticket)>;
  using Done = std::function<void(int error, const Reply& reply)>;
  void read(const ReadRequest& request, const WillWait& will_wait, Done done);
  void cancel(Ticket ticket) { computed_->cancel(ticket); }
  // Ends all computations; whoever waits gets EINTR before this returns.
  void stop_waiting() { computed_->stop(); }

  // Extended attributes, `user.stfs.*`. ENODATA for one that is not there; EOPNOTSUPP outside the
  // user namespace, which lets ls(1) and others stop asking; E2BIG over the kernel's 64 KiB.
  int get_xattr(std::uint64_t inode, std::string_view name, std::string& value) const;
  // The names, each closed by a NUL, as listxattr(2) returns them.
  int list_xattr(std::uint64_t inode, std::string& names) const;

  Statistics statistics() const { return statistics_; }

 private:
  Attributes attributes_of(Node node) const;
  int find_content(Node file, Recipe& recipe) const;  // 0 or an errno
  // Fills `reply` unless `error` says that the bytes have not come. The error of both; throws
  // nothing.
  int fill(const ReadRequest& request, int error, Reply& reply) const;
  void compute_and_answer(const ReadRequest& request, const WillWait& will_wait, Done done);
  void fetch_and_answer(const ReadRequest& request, std::span<const Extent> missing,
                        const WillWait& will_wait, Done done);
  // After an answer that is an errno: logs what the sources say of it, each thing once.
  void report_faults() const;
  void drop_surplus();
  int compute(Node node, const std::atomic<bool>& stop, std::string& text) const;

  const Checkpoint& checkpoint_;
  FileSystemOptions options_;
  Log log_;
  Nodes nodes_;
  Leases leases_;
  Statistics statistics_{};
  mutable std::vector<std::atomic<bool>> reported_;  // by source: that it has changed
  mutable std::mutex keeping_;                       // failures, in the ledger
  // Its threads use the members before it. Shared with the sources that bring something: one may be
  // ready when this has ended, and finds nobody who waits.
  std::shared_ptr<Computed> computed_;
  std::thread dropping_;  // likewise
};

}  // namespace stfs
