// The mounted file system in plain types: lookup, attributes, listing, reading, extended
// attributes. It is independent of FUSE and tested without a mount; fuse_ops.h translates.
//
// Members return values and errno (positive; 0 for success), and throw only std::bad_alloc.
// Thread safety: any thread may call any member. The checkpoint and the ledger must outlive it.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/recipe/content.h"
#include "core/source/counters.h"
#include "core/source/leases.h"
#include "fs/mount/nodes.h"
#include "fs/mount/prefetch_all.h"
#include "fs/mount/read_ahead.h"
#include "fs/mount/recipes.h"
#include "fs/mount/second_tries.h"
#include "fs/mount/texts.h"
#include "fs/mount/waiting.h"
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
  // Makes the root's user.stfs.mount (mounted.h), of the tokens that the sources have now; null for
  // none.
  std::function<std::string()> content = nullptr;
  Ledger* ledger = nullptr;   // the state that a worker hands to the next; null without supervisor
  bool prefetch_all = false;  // fetch all bytes of remote sources, in order (prefetch_all.h)
  Counters* counters = nullptr;  // what it counts; null: its own. Outlives it
};

struct Attributes {
  std::uint64_t inode;
  mode_t mode;  // type and permissions
  nlink_t links;
  uid_t uid;
  gid_t gid;
  std::uint64_t size;    // bytes
  std::uint64_t blocks;  // of 512 bytes, as st_blocks
  timespec mtime;        // atime and ctime are the same
  bool grows = false;    // the size is 0 until the file is read: the kernel must ask again
};

struct Statistics {
  std::uint64_t bytes;  // of all tensors
  std::uint64_t files;  // tensors
};

class FileSystem {
 public:
  // Gets a line without "\n" for the administrator: a source has changed or cannot be read.
  using Log = std::function<void(const std::string& line)>;

  FileSystem(const Checkpoint& checkpoint, const FileSystemOptions& options, Log log);
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;
  ~FileSystem();

  // Fills `attributes`: 0, ENOENT, ENAMETOOLONG, for a slice EINVAL or ERANGE, or the errno of a
  // source that must be read to know the size. Each success
  // needs a forget: a looked-up name is kept until its count of lookups is 0.
  int lookup(std::uint64_t directory, std::string_view name, Attributes& attributes);
  void forget(std::uint64_t inode, std::uint64_t lookups);
  std::size_t looked_up_names() const { return nodes_.looked_up_names(); }

  // Whether a file has a looked-up name (looked_up.h), which the kernel should look up again.
  bool is_looked_up(std::uint64_t inode) const { return nodes_.is_looked_up(node_of(inode)); }

  std::optional<Attributes> attributes(std::uint64_t inode) const;

  // An entry of a listing. It has no attributes: these cost more than the listing itself.
  struct Entry {
    const char* name;  // valid during the call
    std::uint64_t inode;
    mode_t type;                // S_IFREG or S_IFDIR
    std::uint64_t next_offset;  // the offset to continue at
  };
  // Calls `add` for each entry of a directory, "." and ".." included, until it returns false.
  // `offset` is 0 or the next_offset of an entry; offsets stay valid as long as the mount. Returns
  // 0 or ENOTDIR.
  using AddEntry = std::function<bool(const Entry& entry)>;
  int list(std::uint64_t directory, std::uint64_t offset, const AddEntry& add) const;

  // Opens a file: 0, ENOENT, EISDIR, ESTALE if its source has changed, EFBIG if the header of a
  // safetensors file would exceed the format's limit. Each success needs a release.
  // A file that is made by each open (Nodes::Kind) has a `handle`, which its reads and its release
  // need; of other files it is 0.
  int open(std::uint64_t inode, std::uint64_t* handle = nullptr);
  void release(std::uint64_t inode, std::uint64_t handle = 0);

  // Whether a file is computed when it is opened or read, and its size is not known before: it is
  // reported as 0, so the file must be opened with direct_io and read to its end.
  bool is_computed(std::uint64_t inode) const;

  // Reads [offset, offset + length) of a file, cut at its end. Calls `done` once: with an errno, or
  // with 0 and the reply, valid during the call. If the bytes are at hand, read() calls it before
  // it returns. If they must be computed or fetched first, read() calls `will_wait` with a ticket
  // and returns; another thread calls `done` later. cancel(ticket) has it called soon, with EINTR.
  // `done` must not throw. If read() throws, `done` is never called.
  struct ReadRequest {
    std::uint64_t inode;
    std::uint64_t offset;  // bytes
    std::uint64_t length;  // bytes
    // From open(). A snapshot that this FileSystem has not made is EIO: the worker that made it has
    // ended.
    std::uint64_t handle = 0;
    bool is_cached = true;  // through the kernel's cache, which may ask twice (SecondTries)
  };
  using Ticket = Waiting::Ticket;
  using WillWait = Waiting::WillWait;
  using Done = Waiting::Done;
  void read(const ReadRequest& request, const WillWait& will_wait, Done done);
  void cancel(Ticket ticket);
  // Ends all computations and answers all waiting reads with EINTR before it returns.
  void stop_waiting();

  // Fills `value` with an extended attribute `user.stfs.*`: 0, ENOENT, ENODATA; EOPNOTSUPP outside
  // the user namespace, so that ls(1) stops asking; E2BIG over the kernel's limit of 64 KiB.
  int get_xattr(std::uint64_t inode, std::string_view name, std::string& value) const;
  // Fills `names`, each with a NUL behind it, as listxattr(2) returns them: 0 or ENOENT.
  int list_xattr(std::uint64_t inode, std::string& names) const;

  Statistics statistics() const { return statistics_; }

 private:
  Attributes attributes_of(Node node) const;
  void prefetch(const ReadAhead::Piece& piece) const;
  int find_content(Node file, Recipe& recipe) const;  // 0 or an errno
  // Counts the reply, reports faults, and calls `done`.
  void answer(const Done& done, int error, const Reply& reply) const;
  void compute_and_answer(const ReadRequest& request, const WillWait& will_wait, Done done);
  void gather_and_answer(const ReadRequest& request, const WillWait& will_wait, Done done);
  void answer_snapshot(const ReadRequest& request, const Done& done) const;
  // Call after an error: logs each source's change, new failures and new reasons, and writes them
  // to the ledger.
  void report_faults() const;
  std::string content() const;  // of options_, after verifying the sources; "" for none
  bool may_wait(Node computed) const;
  int compute(Node node, const std::atomic<bool>& stop, std::string& text) const;

  FileSystemOptions options_;
  Log log_;
  Nodes nodes_;
  std::vector<const Source*> sources_;  // Checkpoint::sources()
  Leases leases_;
  Statistics statistics_{};
  mutable std::vector<std::atomic<bool>> reported_;  // by source: its change was logged
  mutable std::mutex faults_mutex_;                  // of Ledger::keep_failures and of reasons_
  mutable std::vector<std::string> reasons_;         // by source: why it failed, as logged last
  mutable std::string why_all_changed_;              // as logged last
  Counters own_counters_;
  Counters& counters_;
  mutable std::mutex snapshots_mutex_;
  std::uint64_t next_snapshot_;                     // differs from those of another worker
  std::map<std::uint64_t, std::string> snapshots_;  // by handle
  std::unique_ptr<ReadAhead> read_ahead_;           // null while all sources are complete
  SecondTries second_tries_;
  // Shared with the callbacks of sources, which may call arrive() after this FileSystem has ended.
  std::shared_ptr<Waiting> waiting_;
  std::unique_ptr<Texts> texts_;  // its threads use the members above
  std::unique_ptr<PrefetchAll> prefetch_all_;
};

}  // namespace stfs
