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

#include "core/posix.h"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>

namespace stfs {

class Mapping {
 public:
  // Opens and maps `path`, a regular file. Throws Error kUnreadable.
  explicit Mapping(const std::string& path);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping();

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
  bool is_leased() const { return leased_; }  // whether guard() is likely to be had

  // For Leases, on its thread: the lease that guards stand for. The kernel asks for it back with
  // SIGIO to the thread that took it; giving it back waits for the guards that are alive.
  void take_lease() const;
  void give_back_lease_if_asked() const;
  void give_back_lease() const;

  // The mapped bytes. For the kernel only (see above).
  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // 0 while the file has the size and the modification time it was mapped with; ESTALE from the
  // first time it has not, for ever, also when the time is set back.
  // One fstat, under a microsecond. Call it before bytes are sent, and after bytes are read.
  int verify() const;
  bool has_changed() const { return changed_.load(std::memory_order_relaxed); }  // verify() saw it
  // As if verify() had seen it: another process did.
  void mark_changed() const { changed_.store(true, std::memory_order_relaxed); }

  // Whether the kernel has every page of a range at hand, so that it can be sent from the mapping
  // without waiting for a disk. True as well where the kernel does not tell (a file that is neither
  // owned nor writable, mincore(2)); such a file cannot be leased without a special capability.
  bool is_resident(std::uint64_t offset, std::uint64_t length) const;

  // Fills `buffer` from `offset`; 0 or the errno of the read. The bytes are those of the mapped
  // version only if verify() says so afterwards: for many reads that are verified together.
  int read_unverified(std::span<std::byte> buffer, std::uint64_t offset) const;

  // Fills `buffer` from `offset`; 0, ESTALE when the file is no longer the one that was mapped, or
  // the errno of the read (EIO). The bytes are valid only when 0 is returned.
  int read(std::span<std::byte> buffer, std::uint64_t offset) const;

  // As read(), for bytes that the disk has to be asked for: one call at a time and in blocks, which
  // the kernel recognises as a sequential reader and reads ahead for (readahead(9)). A call that
  // does not get its turn soon, since the disk stalls, reads all the same.
  int read_in_turn(std::span<std::byte> buffer, std::uint64_t offset) const;

 private:
  // Not a timed mutex, whose waiting by the steady clock ThreadSanitizer does not see (GCC 12).
  struct Turn {
    std::mutex mutex;
    std::condition_variable over;
    bool is_taken = false;
  };

  std::string path_;
  UniqueFd fd_;
  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
  timespec mtime_{};
  dev_t device_ = 0;
  ino_t inode_ = 0;
  mutable std::atomic<bool> changed_ = false;
  mutable std::atomic<bool> leased_ = false;
  mutable std::shared_mutex guards_;
  mutable Turn turn_;
};

}  // namespace stfs
