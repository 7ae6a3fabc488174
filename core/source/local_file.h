// A local file as a source. The file is kept open and mapped read-only as a whole. Its version is
// the device, inode, birth time, size and mtime that it had when it was opened, and its ctime. A
// new ctime may be adopted, as the table below says.
//
// A read lease (fcntl(2)) pins its bytes: while it is held, the kernel blocks every process that
// opens the file for writing or truncates it. leases.h draws the states of a lease.
//
// A program can write to a file and restore its mtime, but not its ctime. Changes of links, names,
// rights and attributes also change the ctime, but no byte. If only the ctime has changed, the
// state of the lease shows which case it is:
//
//   lease        what a new ctime means if nothing else has changed
//   held         No writer has opened the file, so the ctime is adopted. Whether the kernel still
//                has the lease is checked after the attributes were read.
//   asked for    The writer still waits, so the ctime is adopted.
//   resting      The ctime is adopted if the lease can be taken now (no process has the file open
//                for writing) and the watch is quiet (writer_watch.h: no process had it open since
//                the watch was added). Without a watch, the rule of "none" holds.
//   given back   The same rule as for "resting", but without a watch the file counts as changed.
//   none         The ctime is adopted if the link count, the mode or the owner has changed too, or
//                if the name now refers to this file and did not before, or the reverse. Otherwise
//                the file counts as changed. Some rewrites are missed.
//
// A write(2) changes the ctime when it begins. If a write were in progress when the file is opened,
// its later bytes would change no attribute. So the constructor waits until the write has ended and
// until a later change must get another ctime.
//
// A file may be the copy of a remote object (Object). Source::path() is then a URL.
//
// Thread safety and lifetime: as in source.h. Only the thread of Leases may call the members about
// the lease that say so.
#pragma once

#include "core/base/forks.h"
#include "core/base/posix.h"
#include "core/source/source.h"
#include "core/source/writer_watch.h"

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <utility>

namespace stfs {

class LocalFile final : public Source {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Lease : std::uint8_t { kNone, kHeld, kAskedFor, kGivenBack, kResting };
  // The accepted ctime with the attributes at this time, and the state of the lease. The next
  // worker of a supervised mount needs both, even if this worker is killed between two
  // instructions.
  struct Standing {
    std::atomic<std::uint64_t> rights = 0;  // a hash of the link count, mode and owner at `ctime`
    std::atomic<bool> is_named = true;      // file_path() refers to the file
    std::atomic<std::uint64_t> ctime = 0;   // written after the other two members
    std::atomic<Lease> lease = Lease::kNone;
  };

  // The remote object that a file is a copy of. The source then has the name, token and time of the
  // object, and the attributes of the file are used only to notice changes.
  struct Object {
    std::string name;
    std::string token;
    std::optional<timespec> mtime = {};  // nullopt: the mtime of the file is used
    std::string sha256 = {};             // "": no server published it
  };

  // Opens and maps a regular file. Follows symbolic links; file_path() is the path without them.
  // Throws Error kUnreadable, including for a file that is being written to.
  explicit LocalFile(const std::string& path, std::optional<Object> object = {});
  // Takes a regular file that is open for reading. `path` must be absolute and without symbolic
  // links. Throws Error kUnreadable like the other constructor.
  LocalFile(const std::string& path, UniqueFd fd, std::optional<Object> object = {});
  ~LocalFile() override;

  // Moves the state in Standing to memory that outlives a worker. Call it before the first fork,
  // while there are no other threads.
  void share_state(Standing& shared) const;

  // Returns the path of the local file. It differs from path() if the file is a copy of an object.
  const std::string& file_path() const { return file_path_; }
  // Returns device, inode, birth time, size, mtime and ctime as text, or the token of the object.
  std::string token() const override;
  std::string sha256() const override { return object_ ? object_->sha256 : ""; }

  bool has(ByteRange) const override { return true; }
  void want(ByteRange, Ready ready) const override { ready(0); }

  int read_unverified(std::span<std::byte> buffer, std::uint64_t offset) const override;
  // Reads bytes that are not in the page cache in blocks, and lets only one call per file read at a
  // time, so that the kernel detects a sequential reader and reads ahead. A call waits at most
  // 10 ms for its turn and then reads anyway, because the disk may stall.
  int read_ahead(std::span<std::byte> buffer, std::uint64_t offset) const override;

  // Returns the whole mapping, for its addresses only: a load from it may raise SIGBUS.
  std::span<const std::byte> bytes() const { return {data_, static_cast<std::size_t>(size())}; }
  bool can_pin(ByteRange range) const override;
  Pinned try_pin() const override;
  const LocalFile* local_file() const override { return this; }
  int descriptor(ByteRange) const override { return fd_.get(); }

  // Makes one statx(2). If the file system may be remote, the kernel then asks its server.
  int verify() const override;
  bool is_current() const override;

  // Only the thread of Leases, which gets the kernel's SIGIO, may call the next four functions. All
  // except the first wait until all pins are dropped; end_lease() waits even for a reply that
  // hangs.
  //
  // Tries to take the lease for the first time. `pause` is the first pause before the lease is
  // taken again after a writer has asked for it. `writers` may be null; it must outlive the call of
  // end_lease().
  void begin_lease(std::chrono::milliseconds pause, const WriterWatch* writers) const;
  // Gives the lease back if a process has asked for it. If no process waits for the lease, first
  // waits a moment, counted from `since`, for a process that sets the times of the file (touch(1)).
  void give_back_lease_if_asked(Clock::time_point since) const;
  // Gives back a lease that no reader has used during the last kQuietLooks calls.
  void let_lease_rest() const;
  void end_lease() const;
  // Tries to take the lease again, unless the pause is not over. Any reader may call it. Returns
  // true if this call has taken the lease.
  bool retake_lease() const;
  static constexpr unsigned kQuietLooks = 3;
  bool is_leased() const { return standing_->lease == Lease::kHeld; }

  // Returns true if every page of a range is in the page cache (mincore(2)). Also returns true if
  // this process neither owns the file nor may write to it, because the kernel then reports every
  // page as resident.
  bool is_resident(std::uint64_t offset, std::uint64_t length) const;

 private:
  // This is not a std::timed_mutex, because ThreadSanitizer does not see its timed wait (GCC 12).
  struct Turn {
    std::mutex mutex;
    std::condition_variable over;
    bool is_taken = false;
  };

  // The attributes that distinguish versions, and the attributes that may explain a new ctime.
  struct Look {
    std::uint64_t size = 0;
    timespec mtime{};
    std::uint64_t ctime = 0;
    std::uint64_t rights = 0;
  };

  void settle(struct statx& status);
  std::uint64_t ctime_of(const struct statx& status) const;
  int look(Look& now) const;  // 0 or an errno
  bool is_same(const Look& now) const;
  // The part of verify() for a file with changed attributes. The caller must hold state_mutex_.
  int judge() const;
  bool only_metadata_changed(const Look& now, bool is_named) const;
  bool is_unwritten() const;
  bool kernel_has_lease() const;
  bool path_names_this_file() const;

  void try_lease() const;
  void return_lease(Lease to) const;
  bool writer_is_waiting() const;
  void await_touch(Clock::time_point since) const;
  // The substitute for is_resident() if mincore(2) may not be used. Returns true if the range is in
  // this process's page table (proc_pid_pagemap(5)), as after an earlier reply from the mapping.
  // Otherwise checks that the first and the last page are cached (RWF_NOWAIT) and maps the range
  // (MADV_POPULATE_READ). Returns false if one of these pages is not cached or the mapping fails.
  bool make_resident(std::uint64_t offset, std::uint64_t length) const;
  bool is_in_page_table(std::uint64_t offset, std::uint64_t length) const;

  const std::optional<Object> object_;
  const std::string file_path_;
  UniqueFd fd_;
  timespec file_mtime_{};
  std::string identity_;  // the token without the ctime
  // The device and inode of the file, and of the file's directory.
  std::pair<std::uint64_t, std::uint64_t> inode_, directory_;
  std::string directory_path_;
  std::byte* data_ = nullptr;
  bool is_local_ = false;
  bool has_ctime_ = true;  // false: each stat(2) returns another ctime, so the ctime is ignored
  bool may_use_mincore_ = false;
  mutable Turn turn_;

  mutable std::shared_mutex pins_;  // shared by pins; exclusive to change the lease
  // Held by judge() and by calls that change the lease. Acquired after pins_.
  mutable ForkMutex state_mutex_;
  mutable Standing own_standing_;
  mutable Standing* standing_ = &own_standing_;
  mutable UniqueFd pagemap_;  // /proc/self/pagemap, if not may_use_mincore_
  mutable pid_t lease_thread_ = 0;
  mutable std::chrono::milliseconds first_pause_{}, pause_{};  // pause_: the next pause
  mutable std::atomic<Clock::time_point> retake_at_ = Clock::time_point{};
  mutable std::atomic<unsigned> quiet_looks_ = 0;  // calls of let_lease_rest() since the last read
  mutable bool is_touched_ = false;  // the ctime changed after the kernel had asked for the lease
  mutable const WriterWatch* writers_ = nullptr;
  mutable std::uint64_t watch_ = 0;  // the number of the watch in writers_; 0: no watch
};

}  // namespace stfs
