// A file as a source: open, and mapped whole and read-only. Its version is the device, inode, size
// and mtime that it had when it was opened.
//
// A read lease (fcntl(2)) pins its bytes: while it is held, the kernel blocks every process that
// opens the file for writing or truncates it. leases.h draws the states of a lease.
//
// Thread safety and lifetime: as source.h says. The lease's members marked so belong to one thread.
#pragma once

#include "core/base/posix.h"
#include "core/source/source.h"

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>

namespace stfs {

class LocalFile final : public Source {
 public:
  // Opens and maps a regular file; follows symbolic links, and path() is the path without them.
  // Throws Error kUnreadable.
  explicit LocalFile(const std::string& path);
  ~LocalFile() override;

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

  // One fstat(2). On a file system that may be remote, one statx(2) that asks the server.
  int verify() const override;
  bool is_current() const override;

  // Called by the thread of Leases alone, which gets the kernel's SIGIO. The last two wait until
  // all pins are dropped.
  void take_lease(std::chrono::milliseconds pause) const;
  void give_back_lease_if_asked() const;
  void end_lease() const;
  // Called by any reader: tries to take a lease that was given back at least `pause` ago. Returns
  // whether this call took it.
  bool retake_lease() const;
  bool is_leased() const { return lease_ == Lease::kHeld; }

  // Whether every page of a range is in the page cache (mincore(2)). Also true when this process
  // neither owns the file nor may write to it: the kernel then hides the answer.
  bool is_resident(std::uint64_t offset, std::uint64_t length) const;

 private:
  enum class Lease : std::uint8_t { kNone, kHeld, kAskedFor, kGivenBack };
  using Clock = std::chrono::steady_clock;

  // Not std::timed_mutex: ThreadSanitizer does not see its timed wait (GCC 12).
  struct Turn {
    std::mutex mutex;
    std::condition_variable over;
    bool is_taken = false;
  };

  void try_lease() const;
  // The substitute for is_resident() without mincore(2). Returns true when the range is in this
  // process's page table (proc_pid_pagemap(5)), as after an earlier reply from the mapping. Else
  // checks that the first and the last page are cached (RWF_NOWAIT) and maps the range
  // (MADV_POPULATE_READ); returns false when one is not cached or the mapping fails.
  bool make_resident(std::uint64_t offset, std::uint64_t length) const;
  bool is_in_page_table(std::uint64_t offset, std::uint64_t length) const;

  UniqueFd fd_;
  std::byte* data_ = nullptr;
  bool is_local_ = false;
  bool may_use_mincore_ = false;
  mutable Turn turn_;

  mutable std::shared_mutex pins_;  // shared by pins; exclusive to change the lease
  mutable std::atomic<Lease> lease_ = Lease::kNone;
  mutable UniqueFd pagemap_;  // /proc/self/pagemap, if not may_use_mincore_
  mutable pid_t lease_thread_ = 0;
  mutable std::chrono::milliseconds lease_pause_{};
  mutable std::atomic<Clock::time_point> retake_at_ = Clock::time_point{};
};

}  // namespace stfs
