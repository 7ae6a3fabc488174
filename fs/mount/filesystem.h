// The mounted file system in plain types: lookup, attributes, listing, reading, extended
// attributes. It does not depend on FUSE and is tested without a mount; fuse_ops.h translates
// requests into calls.
//
// Members return values and errno (positive; 0 for success), and throw only std::bad_alloc. Thread
// safety: all members may be called from any thread. The checkpoint and the ledger must outlive it.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/recipe/content.h"
#include "core/source/counters.h"
#include "core/source/leases.h"
#include "fs/mount/computed_texts.h"
#include "fs/mount/nodes.h"
#include "fs/mount/pending_reads.h"
#include "fs/mount/prefetch_all.h"
#include "fs/mount/read_ahead.h"
#include "fs/mount/recipes.h"
#include "fs/mount/repeated_reads.h"
#include "fs/view/registry.h"

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

struct FileSystemOptions {
  uid_t uid = 0;
  gid_t gid = 0;
  mode_t umask = 0;  // bits to clear from 0444 (files) and 0555 (directories)
  ControlDirectory control = ControlDirectory::kHidden;
  std::span<const ViewSpec> views = all_views();
  // Returns the root's attribute user.stfs.mount (mounted.h) with the current tokens of the
  // sources. Null: the root has no such attribute.
  std::function<std::string()> content = nullptr;
  // The state that a worker leaves to the next one; null without a supervisor.
  Ledger* ledger = nullptr;
  bool prefetch_all = false;     // fetch all bytes of remote sources, in order (prefetch_all.h)
  Counters* counters = nullptr;  // must outlive the FileSystem; null: it uses counters of its own
};

struct Attributes {
  std::uint64_t inode;
  mode_t mode;  // type and permissions
  nlink_t links;
  uid_t uid;
  gid_t gid;
  std::uint64_t size;    // bytes
  std::uint64_t blocks;  // in units of 512 bytes, like st_blocks
  timespec mtime;        // atime and ctime are the same
  bool grows = false;    // the size is 0 until the file is read, so the kernel must ask again
};

struct Statistics {
  std::uint64_t bytes;  // bytes of all tensors
  std::uint64_t files;  // number of tensors
};

class FileSystem {
 public:
  // Receives a line without "\n" for the administrator: a source has changed or cannot be read.
  using Log = std::function<void(const std::string& line)>;

  FileSystem(const Checkpoint& checkpoint, const FileSystemOptions& options, Log log);
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;
  ~FileSystem();

  // Fills `attributes`. Returns 0, ENOENT, ENAMETOOLONG, for a slice EINVAL or ERANGE, or the errno
  // of a source that must be read to know the size. Each success needs a forget(), because a
  // looked-up name is kept until its count of lookups is 0.
  int lookup(std::uint64_t directory, std::string_view name, Attributes& attributes);
  void forget(std::uint64_t inode, std::uint64_t lookups);
  std::size_t looked_up_names() const { return nodes_.looked_up_names(); }

  // Returns true if a file has a looked-up name (looked_up_names.h), which the kernel should look
  // up again.
  bool is_looked_up(std::uint64_t inode) const { return nodes_.is_looked_up(node_of(inode)); }

  // Returns the attributes of a node, or nullopt if it does not exist.
  std::optional<Attributes> attributes(std::uint64_t inode) const;

  // An entry of a listing, without attributes, because these cost more than the listing itself.
  struct Entry {
    const char* name;  // valid during the call
    std::uint64_t inode;
    mode_t type;                // S_IFREG or S_IFDIR
    std::uint64_t next_offset;  // the offset at which to continue
  };
  // Calls `add` for each entry of a directory, including "." and "..", until it returns false.
  // `offset` is 0 or the next_offset of an entry; offsets are valid as long as the mount. Returns 0
  // or ENOTDIR.
  using AddEntry = std::function<bool(const Entry& entry)>;
  int list(std::uint64_t directory, std::uint64_t offset, const AddEntry& add) const;

  // Opens a file. Returns 0, ENOENT, EISDIR, ESTALE if its source has changed, or EFBIG if the
  // header of a safetensors file would exceed the format's limit. Each success needs a release().
  // If the file is created by each open (Nodes::Kind::kSnapshot), `handle` is set, and reads and
  // release() need it; for other files `handle` is unchanged.
  int open(std::uint64_t inode, std::uint64_t* handle = nullptr);
  void release(std::uint64_t inode, std::uint64_t handle = 0);

  // Returns true if a file is computed when it is opened or read, and its size is not known before.
  // Its size is reported as 0, so the file must be opened with direct_io and read to its end.
  bool is_computed(std::uint64_t inode) const;

  // Reads [offset, offset + length) of a file, cut at its end. Calls `done` once, with an errno, or
  // with 0 and the reply, which is valid during the call. If the bytes are available, read() calls
  // `done` before it returns. If they must be computed or fetched first, read() calls `will_wait`
  // with a ticket and returns, and another thread calls `done` later. After cancel(ticket), `done`
  // is soon called with EINTR. `done` must not throw. If read() throws, `done` is never called.
  struct ReadRequest {
    std::uint64_t inode;
    std::uint64_t offset;  // bytes
    std::uint64_t length;  // bytes
    // The handle from open(). If another FileSystem, in a worker that has ended, made the snapshot,
    // the read fails with EIO.
    std::uint64_t handle = 0;
    bool is_cached =
        true;  // through the kernel's cache, which may send a read twice (RepeatedReads)
  };
  using Ticket = PendingReads::Ticket;
  using WillWait = PendingReads::WillWait;
  using Done = PendingReads::Done;
  void read(const ReadRequest& request, const WillWait& will_wait, Done done);
  void cancel(Ticket ticket);
  // Stops all computations. All waiting reads are answered with EINTR before it returns.
  void stop_waiting();

  // Fills `value` with an extended attribute `user.stfs.*`. Returns 0, ENOENT, ENODATA, E2BIG if
  // the value exceeds the kernel's limit of 64 KiB, or, outside the user namespace, EOPNOTSUPP, so
  // that ls(1) stops asking.
  int get_xattr(std::uint64_t inode, std::string_view name, std::string& value) const;
  // Fills `names` with the names of the attributes, each followed by a NUL, in the form of
  // listxattr(2). Returns 0 or ENOENT.
  int list_xattr(std::uint64_t inode, std::string& names) const;

  Statistics statistics() const { return statistics_; }

 private:
  Attributes attributes_of(Node node) const;
  void prefetch(const ReadAhead::Piece& piece) const;
  int find_content(Node file, Recipe& recipe) const;  // returns 0 or an errno
  // Counts the reply, reports faults, and calls `done`.
  void answer(const Done& done, int error, const Reply& reply) const;
  void compute_and_answer(const ReadRequest& request, const WillWait& will_wait, Done done);
  void gather_and_answer(const ReadRequest& request, const WillWait& will_wait, Done done);
  void answer_snapshot(const ReadRequest& request, const Done& done) const;
  // To be called after an error. Logs the change, new failures and new reasons of each source, and
  // writes them to the ledger.
  void report_faults() const;
  // Calls options_.content, after verifying the sources. Returns "" if it is null.
  std::string content() const;
  // Returns whether the root lists kMountAttribute.
  bool lists_content() const;
  bool may_wait(Node computed) const;
  int compute(Node node, const std::atomic<bool>& stop, std::string& text) const;

  FileSystemOptions options_;
  mutable std::once_flag measured_;      // of fits_attribute_
  mutable bool fits_attribute_ = false;  // content() is no longer than an attribute may be
  Log log_;
  Nodes nodes_;
  std::vector<const Source*> sources_;  // Checkpoint::sources()
  Leases leases_;
  Statistics statistics_{};
  mutable std::vector<std::atomic<bool>> reported_;  // per source: its change was logged
  mutable std::mutex faults_mutex_;  // guards reasons_ and calls of Ledger::keep_failures()
  // Per source: the reason of a failure that was logged last.
  mutable std::vector<std::string> reasons_;
  mutable std::string why_all_changed_;  // the reason of a change that was logged last
  Counters own_counters_;
  Counters& counters_;
  mutable std::mutex snapshots_mutex_;
  std::uint64_t next_snapshot_;                     // differs from the numbers of other workers
  std::map<std::uint64_t, std::string> snapshots_;  // the key is the handle
  std::unique_ptr<ReadAhead> read_ahead_;           // null while all sources are complete
  RepeatedReads second_tries_;
  // Shared with the callbacks of sources, which may call arrive() after this FileSystem has ended.
  std::shared_ptr<PendingReads> waiting_;
  std::unique_ptr<ComputedTexts> texts_;  // its threads use the members above
  std::unique_ptr<PrefetchAll> prefetch_all_;
};

}  // namespace stfs
