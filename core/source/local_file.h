// A source file: open, mapped whole and read-only, and known by the identity it had when it was
// mapped. Everything stfs serves comes from mappings.
//
// The mapping itself is for the kernel: hand `bytes()` to writev, under a `guard()`, and a file
// that was truncated in the meantime turns into EFAULT. Code of ours that looks at the bytes uses
// `read`, since a load from a truncated mapping is SIGBUS.
//
// Thread safety: all const members may be called from any thread. The mapping must outlive every
// span that was taken from it.
#pragma once

#include "core/base/posix.h"

#include <sys/types.h>

#include <array>
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
#include <vector>

namespace stfs {

class LocalFile {
 public:
  // Opens and maps `path`, a regular file. Throws Error kUnreadable.
  explicit LocalFile(const std::string& path);
  LocalFile(LocalFile&& other) noexcept;
  LocalFile& operator=(LocalFile&&) = delete;
  ~LocalFile();

  const std::string& path() const { return path_; }  // absolute; symbolic links resolved
  std::uint64_t size() const { return size_; }       // bytes, when it was mapped
  const timespec& mtime() const { return mtime_; }   // when it was mapped
  dev_t device() const { return device_; }
  ino_t inode() const { return inode_; }

  // Keeps the bytes from changing while it lives: what was verified under it stays true. Empty (it
  // owns no lock) where that cannot be had; bytes from the mapping may then be of another version,
  // whenever they were verified.
  using Guard = std::shared_lock<std::shared_mutex>;
  Guard guard() const;

  // The lease that guards stand for; leases.h has its states. The first three are for Leases, on
  // its thread, which the kernel sends SIGIO when it asks for the lease back. Giving it back waits
  // for the guards that are alive.
  void take_lease(std::chrono::milliseconds pause) const;
  void give_back_lease_if_asked() const;
  void end_lease() const;
  // For a reader: takes a lease that was given back, once the pause has passed.
  bool retake_lease() const;
  bool is_leased() const { return lease_ == Lease::kHeld; }

  // The mapped bytes. For the kernel only (see above).
  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // 0 while the file has the size and the modification time it was mapped with; ESTALE from the
  // first time it has not, for ever, also when the time is set back. Any other errno says that the
  // attributes could not be had. Call it before bytes are sent, and after bytes are read.
  // One fstat, under a microsecond. On a file system that is not known to be local, one question to
  // its server, which may take as long as a read.
  int verify() const;
  bool has_changed() const { return changed_.load(std::memory_order_relaxed); }  // verify() saw it
  // As if verify() had seen it: another process did.
  void mark_changed() const { changed_.store(true, std::memory_order_relaxed); }

  // A failed read of a range; of the attributes, when the range is empty. ESTALE comes from the
  // file system, or from a file that ends too early: then has_changed() is true.
  struct Failure {
    std::uint64_t begin, end;
    int error;
    bool is_last;  // more are not kept
  };
  // The next one that nobody has taken yet. Failures less than a MiB apart count as one, and a
  // source has at most kMaxFailures, however much of it is lost.
  std::optional<Failure> take_failure() const;
  static constexpr std::size_t kMaxFailures = 8;
  // All of them, taken or not, in the order in which they were met.
  std::vector<Failure> failures() const;
  // As if these had been met and taken: another process did. Before anything is read here.
  void mark_failed(std::span<const Failure> failures) const;

  // Whether the kernel has every page of a range at hand, so that reading it waits for no disk.
  // True as well where the kernel does not tell: of a file that is neither owned nor writable,
  // mincore(2).
  bool is_resident(std::uint64_t offset, std::uint64_t length) const;
  // Whether a range may be sent from the mapping: a guard is likely to be had, and every page is at
  // hand. Otherwise the reply would wait for the disk, and a writer for the guard of the reply.
  bool can_send(std::uint64_t offset, std::uint64_t length) const;

  // Fills `buffer` from `offset`; 0 or the errno of the read. The bytes are those of the mapped
  // version only if verify() says so afterwards: for many reads that are verified together.
  int read_unverified(std::span<std::byte> buffer, std::uint64_t offset) const;

  // Fills `buffer` from `offset`; 0, ESTALE when the file is no longer the one that was mapped, or
  // the errno of the read (EIO). The bytes are valid only when 0 is returned.
  int read(std::span<std::byte> buffer, std::uint64_t offset) const;

  // As read_unverified(), for bytes that the disk has to be asked for: one call at a time and in
  // blocks, which the kernel recognises as a sequential reader and reads ahead for (readahead(9)).
  // A call that does not get its turn soon, since the disk stalls, reads all the same.
  int read_in_turn(std::span<std::byte> buffer, std::uint64_t offset) const;

 private:
  enum class Lease : std::uint8_t { kNone, kHeld, kAskedFor, kGivenBack };
  using Clock = std::chrono::steady_clock;

  // Not a timed mutex, whose waiting by the steady clock ThreadSanitizer does not see (GCC 12).
  struct Turn {
    std::mutex mutex;
    std::condition_variable over;
    bool is_taken = false;
  };
  struct Failures {
    std::mutex mutex;
    std::array<Failure, kMaxFailures> all{};
    std::size_t count = 0;
    std::size_t taken = 0;
  };

  void try_lease() const;
  // For a leased file of which mincore(2) does not tell. True when a range is in this process's
  // page table (proc_pid_pagemap(5)): a range that was sent from the mapping is. Else false when
  // its first or last page is not at hand, and otherwise the range is brought into the page table.
  bool make_resident(std::uint64_t offset, std::uint64_t length) const;
  bool is_in_page_table(std::uint64_t offset, std::uint64_t length) const;
  void note_failure(std::uint64_t begin, std::uint64_t end, int error) const;

  std::string path_;
  UniqueFd fd_;
  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
  timespec mtime_{};
  dev_t device_ = 0;
  ino_t inode_ = 0;
  bool is_local_ = false;       // on a file system that is known to be
  bool mincore_tells_ = false;  // which pages are resident
  mutable std::atomic<bool> changed_ = false;
  mutable Turn turn_;
  mutable Failures failures_;

  mutable std::shared_mutex guards_;  // guards share it; the thread that takes the lease or gives
                                      // it back has it alone
  mutable std::atomic<Lease> lease_ = Lease::kNone;
  mutable UniqueFd pagemap_;  // of the process that has the lease
  mutable pid_t lease_thread_ = 0;
  mutable std::chrono::milliseconds lease_pause_{};
  mutable std::atomic<Clock::time_point> retake_at_ = Clock::time_point{};
};

}  // namespace stfs
