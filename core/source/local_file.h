// A file as a source: open, and mapped whole and read-only. Its version is the device, inode, birth
// time, size and mtime that it had when it was opened, and its ctime, which may move along.
//
// A read lease (fcntl(2)) pins its bytes: while it is held, the kernel blocks every process that
// opens the file for writing or truncates it. leases.h draws the states of a lease.
//
// A program can write to a file and put its mtime back, but never its ctime. Links, renames, rights
// and attributes move the ctime too, and change no byte. The lease tells which it was:
//
//   lease        a ctime that moved alone
//   held         no writer came: it is adopted. The kernel is asked after the look at the file
//   asked for    the writer still waits: it is adopted
//   resting      it is adopted where the lease can be had now (nobody has the file open for
//                writing) and the watch stands (writer_watch.h: nobody had). Without a watch as
//                none
//   given back   likewise; without a watch the file has changed
//   none         it is adopted where the link count, the mode, the owner, or whether the name leads
//                to this file has changed too; else the file has changed. Some rewrites are missed
//
// A write(2) moves the ctime when it begins. One that is under way when the file is opened would
// show by nothing later: the constructor waits for its end, and for a ctime that is past.
//
// A file may be the copy of a remote object (Object): Source::path() is then a URL.
//
// Thread safety and lifetime: as source.h says. The lease's members marked so belong to one thread.
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
  // The accepted version and the state of its lease. The next worker of a supervised mount needs
  // both, even if this worker is killed between two instructions.
  struct Standing {
    std::atomic<std::uint64_t> rights = 0;  // the link count, mode and owner at `ctime`
    std::atomic<bool> is_named = true;      // file_path() leads to the file
    std::atomic<std::uint64_t> ctime = 0;   // written last
    std::atomic<Lease> lease = Lease::kNone;
  };

  // The remote object that a file is a copy of. Its name, token and time are then those of the
  // source; the attributes of the file only show changes.
  struct Object {
    std::string name;
    std::string token;
    std::optional<timespec> mtime = {};  // nullopt: that of the file
    std::string sha256 = {};             // "": no server published it
  };

  // Opens and maps a regular file; follows symbolic links, and file_path() is the path without
  // them. Throws Error kUnreadable, also for a file that is being written to.
  explicit LocalFile(const std::string& path, std::optional<Object> object = {});
  // Takes a regular file that is open for reading; `path` is absolute, without symbolic links.
  LocalFile(const std::string& path, UniqueFd fd, std::optional<Object> object = {});
  ~LocalFile() override;

  // Moves the standing into memory that outlives a worker. Before the first fork, without threads.
  void share_state(Standing& shared) const;

  // Differs from path() in the copy of an object.
  const std::string& file_path() const { return file_path_; }
  // Device, inode, birth time, size, mtime and ctime; or the token of the object.
  std::string token() const override;
  std::string sha256() const override { return object_ ? object_->sha256 : ""; }

  bool has(ByteRange) const override { return true; }
  void want(ByteRange, Ready ready) const override { ready(0); }

  int read_unverified(std::span<std::byte> buffer, std::uint64_t offset) const override;
  // Reads bytes that are not in the page cache in blocks, one call of a file at a time, so that the
  // kernel detects a sequential reader and reads ahead. A call waits 10 ms for its turn, then reads
  // anyway: the disk may stall.
  int read_ahead(std::span<std::byte> buffer, std::uint64_t offset) const override;

  // The whole mapping. For addresses: a load from it may raise SIGBUS.
  std::span<const std::byte> bytes() const { return {data_, static_cast<std::size_t>(size())}; }
  bool can_pin(ByteRange range) const override;
  Pinned try_pin() const override;
  const LocalFile* local_file() const override { return this; }
  int descriptor(ByteRange) const override { return fd_.get(); }

  // One statx(2), which asks the server of a file system that may be remote.
  int verify() const override;
  bool is_current() const override;

  // Called by the thread of Leases alone, which gets the kernel's SIGIO. All but the first wait
  // until all pins are dropped, the last also after a reply that hangs.
  //
  // Looks whether a lease can be had. `pause`: after a writer asked, at first; `writers` outlives
  // end_lease(), or is null.
  void begin_lease(std::chrono::milliseconds pause, const WriterWatch* writers) const;
  // Where no process waits for the lease, waits a moment from `since` on for one that sets times.
  void give_back_lease_if_asked(Clock::time_point since) const;
  // Gives back a lease that nobody has used since kQuietLooks calls.
  void let_lease_rest() const;
  void end_lease() const;
  // Called by any reader: tries to take the lease, unless a pause is not over. Returns whether this
  // call took it.
  bool retake_lease() const;
  static constexpr unsigned kQuietLooks = 3;
  bool is_leased() const { return standing_->lease == Lease::kHeld; }

  // Whether every page of a range is in the page cache (mincore(2)). Also true when this process
  // neither owns the file nor may write to it: the kernel then hides the answer.
  bool is_resident(std::uint64_t offset, std::uint64_t length) const;

 private:
  // Not std::timed_mutex: ThreadSanitizer does not see its timed wait (GCC 12).
  struct Turn {
    std::mutex mutex;
    std::condition_variable over;
    bool is_taken = false;
  };

  // The attributes that tell versions apart, and those that explain a ctime.
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
  // verify() where something differs. The caller holds state_mutex_.
  int judge() const;
  bool only_metadata_changed(const Look& now, bool is_named) const;
  bool is_unwritten() const;
  bool kernel_has_lease() const;
  bool path_names_this_file() const;

  void try_lease() const;
  void return_lease(Lease to) const;
  bool writer_is_waiting() const;
  void await_touch(Clock::time_point since) const;
  // The substitute for is_resident() without mincore(2). Returns true when the range is in this
  // process's page table (proc_pid_pagemap(5)), as after an earlier reply from the mapping. Else
  // checks that the first and the last page are cached (RWF_NOWAIT) and maps the range
  // (MADV_POPULATE_READ); returns false when one is not cached or the mapping fails.
  bool make_resident(std::uint64_t offset, std::uint64_t length) const;
  bool is_in_page_table(std::uint64_t offset, std::uint64_t length) const;

  const std::optional<Object> object_;
  const std::string file_path_;
  UniqueFd fd_;
  timespec file_mtime_{};
  std::string identity_;                                       // of the token: all but the ctime
  std::pair<std::uint64_t, std::uint64_t> inode_, directory_;  // device and inode; of its directory
  std::string directory_path_;
  std::byte* data_ = nullptr;
  bool is_local_ = false;
  bool has_ctime_ = true;  // false: each question gets another one, and none is judged
  bool may_use_mincore_ = false;
  mutable Turn turn_;

  mutable std::shared_mutex pins_;  // shared by pins; exclusive to change the lease
  mutable ForkMutex state_mutex_;   // of judge() and of calls that change the lease; after pins_
  mutable Standing own_standing_;
  mutable Standing* standing_ = &own_standing_;
  mutable UniqueFd pagemap_;  // /proc/self/pagemap, if not may_use_mincore_
  mutable pid_t lease_thread_ = 0;
  mutable std::chrono::milliseconds first_pause_{}, pause_{};  // pause_: the next
  mutable std::atomic<Clock::time_point> retake_at_ = Clock::time_point{};
  mutable std::atomic<unsigned> quiet_looks_ = 0;  // of let_lease_rest() since the last read
  mutable bool is_touched_ = false;  // the ctime moved after the kernel had asked for the lease
  mutable const WriterWatch* writers_ = nullptr;
  mutable std::uint64_t watch_ = 0;  // of WriterWatch; 0: none
};

}  // namespace stfs
