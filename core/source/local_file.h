// A local file as a source: open, mapped whole and read-only, and known by the device, inode, size
// and modification time that it had when it was opened.
//
// A lease (leases.h draws its states) is what pins its bytes: while it is held, the kernel makes a
// process wait that opens the file for writing.
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
  // Opens and maps `path`, a regular file; symbolic links are resolved. Throws Error kUnreadable.
  explicit LocalFile(const std::string& path);
  ~LocalFile() override;

  bool has(ByteRange) const override { return true; }
  void want(ByteRange, Ready ready) const override { ready(0); }

  int read_unverified(std::span<std::byte> buffer, std::uint64_t offset) const override;
  // Bytes that are not in the page cache are read by one call at a time and in blocks, which the
  // kernel recognises as a sequential reader (readahead(9)). A call that does not get its turn
  // soon, since the disk stalls, reads all the same.
  int read_ahead(std::span<std::byte> buffer, std::uint64_t offset) const override;

  // The mapped bytes, as a pin gives them.
  std::span<const std::byte> bytes() const { return {data_, static_cast<std::size_t>(size())}; }
  bool can_pin(ByteRange range) const override;
  Pinned try_pin() const override;

  // One fstat(2). On a file system that is not known to be local, one question to its server.
  int verify() const override;
  bool is_current() const override;

  // The lease. The first three are for Leases, on its thread, to which the kernel sends SIGIO when
  // it asks for the lease back. Giving it back waits for the pins that are alive.
  void take_lease(std::chrono::milliseconds pause) const;
  void give_back_lease_if_asked() const;
  void end_lease() const;
  // For a reader: takes a lease that was given back, once the pause has passed.
  bool retake_lease() const;
  bool is_leased() const { return lease_ == Lease::kHeld; }

  // Whether the kernel has every page of a range at hand, so that reading it waits for no disk.
  // True as well where mincore(2) does not tell: of a file that is neither owned nor writable.
  bool is_resident(std::uint64_t offset, std::uint64_t length) const;

 private:
  enum class Lease : std::uint8_t { kNone, kHeld, kAskedFor, kGivenBack };
  using Clock = std::chrono::steady_clock;

  // Not a timed mutex, whose waiting by the steady clock ThreadSanitizer does not see (GCC 12).
  struct Turn {
    std::mutex mutex;
    std::condition_variable over;
    bool is_taken = false;
  };

  void try_lease() const;
  // For a leased file of which mincore(2) does not tell. True when a range is in this process's
  // page table (proc_pid_pagemap(5)): a range that was sent from the mapping is. Else false when
  // its first or last page is not at hand, and otherwise the range is brought into the page table.
  bool make_resident(std::uint64_t offset, std::uint64_t length) const;
  bool is_in_page_table(std::uint64_t offset, std::uint64_t length) const;

  UniqueFd fd_;
  std::byte* data_ = nullptr;
  bool is_local_ = false;       // on a file system that is known to be
  bool mincore_tells_ = false;  // which pages are resident
  mutable Turn turn_;

  mutable std::shared_mutex pins_;  // pins share it; the thread that takes the lease or gives it
                                    // back has it alone
  mutable std::atomic<Lease> lease_ = Lease::kNone;
  mutable UniqueFd pagemap_;  // of the process that has the lease
  mutable pid_t lease_thread_ = 0;
  mutable std::chrono::milliseconds lease_pause_{};
  mutable std::atomic<Clock::time_point> retake_at_ = Clock::time_point{};
};

}  // namespace stfs
