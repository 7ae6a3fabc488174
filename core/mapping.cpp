#include "core/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <utility>

namespace stfs {

Mapping::Mapping(const std::string& path) : path_(absolute_path(path)), fd_(open_regular(path_)) {
  const struct stat status = stat_of(fd_.get(), path_);
  size_ = static_cast<std::uint64_t>(status.st_size);
  mtime_ = status.st_mtim;
  device_ = status.st_dev;
  inode_ = status.st_ino;
  if (size_ == 0) return;  // mmap refuses an empty file; the header's check names the error
  void* data = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd_.get(), 0);
  if (data == MAP_FAILED) throw_errno(ErrorCode::kUnreadable, path_, "mmap", errno);
  data_ = static_cast<std::byte*>(data);
}

Mapping::Mapping(Mapping&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(other.size_),
      mtime_(other.mtime_),
      device_(other.device_),
      inode_(other.inode_),
      changed_(other.has_changed()) {}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

Mapping::Guard Mapping::guard() const {
  if (!leased_) return {};
  Guard guard(guards_, std::try_to_lock);
  // Asked again under the lock: whoever gives the lease back clears this first, and then waits.
  // cppcheck-suppress identicalConditionAfterEarlyExit  ; it does not know what is atomic
  if (guard.owns_lock() && !leased_) guard.unlock();
  return guard;
}

void Mapping::take_lease() const {
  const f_owner_ex thread{F_OWNER_TID, ::gettid()};
  if (::fcntl(fd_.get(), F_SETOWN_EX, &thread) != 0) return;
  // A supervised worker that died leaves its lease to the descriptor. If that one has been asked
  // for, nobody was told.
  leased_ =
      ::fcntl(fd_.get(), F_SETLEASE, F_RDLCK) == 0 && ::fcntl(fd_.get(), F_GETLEASE) == F_RDLCK;
  if (!leased_) ::fcntl(fd_.get(), F_SETLEASE, F_UNLCK);
}

void Mapping::give_back_lease_if_asked() const {
  if (leased_ && ::fcntl(fd_.get(), F_GETLEASE) != F_RDLCK) give_back_lease();
}

void Mapping::give_back_lease() const {
  if (!leased_.exchange(false)) return;
  const std::lock_guard none_alive(guards_);
  ::fcntl(fd_.get(), F_SETLEASE, F_UNLCK);
}

int Mapping::verify() const {
  if (has_changed()) return ESTALE;
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) return errno;
  const bool same = static_cast<std::uint64_t>(status.st_size) == size_ &&
                    status.st_mtim.tv_sec == mtime_.tv_sec &&
                    status.st_mtim.tv_nsec == mtime_.tv_nsec;
  if (same) return 0;
  changed_.store(true, std::memory_order_relaxed);
  return ESTALE;
}

bool Mapping::is_resident(std::uint64_t offset, std::uint64_t length) const {
  static const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  constexpr std::size_t kPages = 512;
  std::array<unsigned char, kPages> pages{};
  const std::uint64_t end = offset + length;
  for (std::uint64_t at = offset / page * page; at < end; at += kPages * page) {
    const auto bytes = static_cast<std::size_t>(std::min(end - at, kPages * page));
    if (::mincore(data_ + at, bytes, pages.data()) != 0) return false;
    const auto count = static_cast<std::ptrdiff_t>((bytes + page - 1) / page);
    if (!std::all_of(pages.begin(), pages.begin() + count, [](auto p) { return (p & 1) != 0; })) {
      return false;
    }
  }
  return true;
}

int Mapping::read_unverified(std::span<std::byte> buffer, std::uint64_t offset) const {
  return pread_exact(fd_.get(), buffer, offset);
}

int Mapping::read(std::span<std::byte> buffer, std::uint64_t offset) const {
  const int error = read_unverified(buffer, offset);
  const int changed = verify();
  return changed != 0 ? changed : error;
}

int Mapping::read_in_turn(std::span<std::byte> buffer, std::uint64_t offset) const {
  constexpr std::chrono::milliseconds kPatience{10};
  constexpr std::size_t kBlock = 128 << 10;  // bytes; small beside what the kernel reads ahead
  bool has_turn = false;
  {
    std::unique_lock lock(turn_.mutex);
    has_turn = turn_.over.wait_for(lock, kPatience, [this] { return !turn_.is_taken; });
    turn_.is_taken = true;
  }
  int error = 0;
  while (error == 0 && !buffer.empty()) {
    const std::span block = buffer.first(std::min(buffer.size(), kBlock));
    error = read_unverified(block, offset);
    buffer = buffer.subspan(block.size());
    offset += block.size();
  }
  if (has_turn) {
    const std::lock_guard lock(turn_.mutex);
    turn_.is_taken = false;
    turn_.over.notify_one();
  }
  const int changed = verify();
  return changed != 0 ? changed : error;
}

}  // namespace stfs
