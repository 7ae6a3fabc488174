#include "core/source/local_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <utility>

namespace stfs {
namespace {

// Whether only this machine can write to the file system. There fstat(2) is exact, and a lease
// stops every writer. FUSE, network and cluster file systems may answer fstat from a cache while
// the file changes on a server. overlayfs is not in the list: statfs(2) does not report the file
// system of its layers.
bool is_known_local(int fd) {
  constexpr std::array<std::uint32_t, 22> kLocal{
      0xEF53,      // ext2, ext3, ext4
      0x58465342,  // xfs
      0x9123683E,  // btrfs
      0xCA451A4E,  // bcachefs
      0x2FC12FC1,  // zfs
      0xF2F52010,  // f2fs
      0x3153464A,  // jfs
      0x3434,      // nilfs2
      0x52654973,  // reiserfs
      0x01021994,  // tmpfs
      0x858458F6,  // ramfs
      0x73717368,  // squashfs
      0xE0F5E1E2,  // erofs
      0x28CD3D45,  // cramfs
      0x9660,      // iso9660
      0x15013346,  // udf
      0x4D44,      // vfat
      0x2011BAB0,  // exfat
      0x7366746E,  // ntfs3
      0x5346544E,  // ntfs
      0x482B,      // hfs+
      0x4244,      // hfs
  };
  struct statfs system {};
  return ::fstatfs(fd, &system) == 0 &&
         std::ranges::find(kLocal, static_cast<std::uint32_t>(system.f_type)) != kLocal.end();
}

const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));

struct Attributes {  // compared by verify()
  std::uint64_t size;
  timespec mtime;
};

// Returns 0 or an errno. Unless `is_local`, makes the kernel ask the server (AT_STATX_FORCE_SYNC).
int attributes_of(int fd, bool is_local, Attributes& attributes) {
  if (is_local) {
    struct stat status {};
    if (::fstat(fd, &status) != 0) return errno;
    attributes = {static_cast<std::uint64_t>(status.st_size), status.st_mtim};
    return 0;
  }
  struct statx status {};
  const auto ask = [&] {
    constexpr int kFlags = AT_EMPTY_PATH | AT_STATX_FORCE_SYNC;
    return ::statx(fd, "", kFlags, STATX_SIZE | STATX_MTIME, &status) == 0 ? 0 : errno;
  };
  int error = ask();
  while (error == EINTR) error = ask();
  if (error != 0) return error;
  attributes = {status.stx_size, {status.stx_mtime.tv_sec, status.stx_mtime.tv_nsec}};
  return 0;
}

// Device, inode, size and mtime: at least one differs in another file or after a change.
std::string token_of(const struct stat& status, const Attributes& attributes) {
  return "file-" + std::to_string(status.st_dev) + "-" + std::to_string(status.st_ino) + "-" +
         std::to_string(attributes.size) + "-" + std::to_string(attributes.mtime.tv_sec) + "." +
         std::to_string(attributes.mtime.tv_nsec);
}

// mincore(2) reports residency only to the file's owner and to processes that may write to it; to
// others it reports every page as resident.
bool may_use_mincore(int fd, const struct stat& status) {
  return status.st_uid == ::geteuid() || ::faccessat(fd, "", W_OK, AT_EACCESS | AT_EMPTY_PATH) == 0;
}

}  // namespace

LocalFile::LocalFile(const std::string& path)
    : Source(absolute_path(path)), fd_(open_regular(this->path())) {
  const struct stat status = stat_of(fd_.get(), this->path());
  is_local_ = is_known_local(fd_.get());
  may_use_mincore_ = may_use_mincore(fd_.get(), status);
  Attributes attributes{};
  if (const int error = attributes_of(fd_.get(), is_local_, attributes)) {
    throw_errno(ErrorCode::kUnreadable, this->path(), "", error);
  }
  const auto& [size, mtime] = attributes;
  set_version({size, mtime, token_of(status, attributes)});
  if (size == 0) return;  // mmap(2) refuses length 0; reading the header reports the error
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd_.get(), 0);
  if (data == MAP_FAILED && errno == ENODEV) {
    throw Error(ErrorCode::kUnreadable, this->path(),
                "mmap: No such device: its file system maps no files: copy it to another");
  }
  if (data == MAP_FAILED) throw_errno(ErrorCode::kUnreadable, this->path(), "mmap", errno);
  data_ = static_cast<std::byte*>(data);
}

LocalFile::~LocalFile() {
  if (data_ != nullptr) ::munmap(data_, size());
}

Pinned LocalFile::try_pin() const {
  if (!is_leased()) return {};
  std::shared_lock guard(pins_, std::try_to_lock);
  // Check again under the lock: give_back_lease_if_asked() changes the state, then locks pins_.
  // cppcheck-suppress identicalConditionAfterEarlyExit  ; cppcheck does not model atomics
  if (!guard.owns_lock() || !is_leased()) return {};
  return {data_, std::move(guard)};
}

void LocalFile::take_lease(std::chrono::milliseconds pause) const {
  if (!is_local_) return;
  const std::lock_guard alone(pins_);
  lease_thread_ = ::gettid();
  lease_pause_ = pause;
  if (!may_use_mincore_) pagemap_ = UniqueFd(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  try_lease();
}

bool LocalFile::retake_lease() const {
  if (lease_ != Lease::kGivenBack || Clock::now() < retake_at_.load()) return false;
  const std::unique_lock alone(pins_, std::try_to_lock);
  if (!alone || lease_ != Lease::kGivenBack) return false;
  try_lease();
  return is_leased();
}

// The caller holds pins_ exclusively.
void LocalFile::try_lease() const {
  retake_at_ = Clock::now() + lease_pause_;
  const f_owner_ex thread{F_OWNER_TID, lease_thread_};
  if (::fcntl(fd_.get(), F_SETOWN_EX, &thread) != 0 ||
      ::fcntl(fd_.get(), F_SETLEASE, F_RDLCK) != 0) {
    // EAGAIN: a process has the file open for writing. Any other errno is permanent.
    lease_ = errno == EAGAIN ? Lease::kGivenBack : Lease::kNone;
  } else if (verify() != 0) {
    lease_ = Lease::kNone;
  } else {
    lease_ = Lease::kHeld;
    // The kernel may have asked for it already: since F_SETLEASE, or before, of a worker that died.
    // give_back_lease_if_asked() missed that SIGIO.
    if (::fcntl(fd_.get(), F_GETLEASE) != F_RDLCK) lease_ = Lease::kGivenBack;
  }
  if (!is_leased()) ::fcntl(fd_.get(), F_SETLEASE, F_UNLCK);
}

void LocalFile::give_back_lease_if_asked() const {
  if (!is_leased() || ::fcntl(fd_.get(), F_GETLEASE) == F_RDLCK) return;
  Lease held = Lease::kHeld;
  if (!lease_.compare_exchange_strong(held, Lease::kAskedFor)) return;
  const std::lock_guard no_pins(pins_);
  ::fcntl(fd_.get(), F_SETLEASE, F_UNLCK);
  retake_at_ = Clock::now() + lease_pause_;
  lease_ = Lease::kGivenBack;
}

void LocalFile::end_lease() const {
  Lease held = Lease::kHeld;
  lease_.compare_exchange_strong(held, Lease::kAskedFor);  // try_pin() gives no more pins
  const std::lock_guard no_pins(pins_);
  ::fcntl(fd_.get(), F_SETLEASE, F_UNLCK);
  lease_ = Lease::kNone;
}

int LocalFile::verify() const {
  if (has_changed()) return ESTALE;
  Attributes now{};
  const int error = attributes_of(fd_.get(), is_local_, now);
  if (error != 0 && error != ESTALE) {  // ESTALE: the server replaced or removed the file
    note_failure(0, 0, error);
    return error;
  }
  const bool same = now.size == size() && now.mtime.tv_sec == mtime().tv_sec &&
                    now.mtime.tv_nsec == mtime().tv_nsec;
  if (error == 0 && same) return 0;
  mark_changed();
  return ESTALE;
}

bool LocalFile::is_current() const {
  struct stat status {};
  return verify() == 0 && ::stat(path().c_str(), &status) == 0 &&
         token_of(status, {size(), mtime()}) == version().token;
}

bool LocalFile::is_resident(std::uint64_t offset, std::uint64_t length) const {
  constexpr std::size_t kPages = 512;
  std::array<unsigned char, kPages> pages{};
  const std::uint64_t end = offset + length;
  for (std::uint64_t at = offset / page_bytes * page_bytes; at < end; at += kPages * page_bytes) {
    const auto bytes = static_cast<std::size_t>(std::min(end - at, kPages * page_bytes));
    if (::mincore(data_ + at, bytes, pages.data()) != 0) return false;
    const auto count = static_cast<std::ptrdiff_t>((bytes + page_bytes - 1) / page_bytes);
    if (!std::all_of(pages.begin(), pages.begin() + count, [](auto p) { return (p & 1) != 0; })) {
      return false;
    }
  }
  return true;
}

bool LocalFile::is_in_page_table(std::uint64_t offset, std::uint64_t length) const {
  constexpr std::size_t kPages = 512;
  constexpr std::uint64_t kPresent = std::uint64_t{1} << 63;
  std::array<std::uint64_t, kPages> entries{};
  const std::uint64_t begin = reinterpret_cast<std::uintptr_t>(data_) / page_bytes;
  const std::uint64_t end = (offset + length - 1) / page_bytes + 1;
  for (std::uint64_t page = offset / page_bytes; page < end; page += kPages) {
    const std::span part = std::span(entries).first(std::min(kPages, end - page));
    const std::uint64_t at = (begin + page) * sizeof(std::uint64_t);
    if (pread_exact(pagemap_.get(), std::as_writable_bytes(part), at) != 0) return false;
    if (!std::ranges::all_of(part, [](auto entry) { return (entry & kPresent) != 0; }))
      return false;
  }
  return true;
}

bool LocalFile::make_resident(std::uint64_t offset, std::uint64_t length) const {
  if (is_in_page_table(offset, length)) return true;
  const auto is_cached = [&](std::uint64_t at) {
    char byte = 0;
    const iovec to{&byte, 1};
    return ::preadv2(fd_.get(), &to, 1, static_cast<off_t>(at), RWF_NOWAIT) == 1;
  };
  if (!is_cached(offset) || !is_cached(offset + length - 1)) return false;
  const std::uint64_t begin = offset / page_bytes * page_bytes;
  return ::madvise(data_ + begin, offset + length - begin, MADV_POPULATE_READ) == 0;
}

bool LocalFile::can_pin(ByteRange range) const {
  if (!is_leased() && !retake_lease()) return false;
  return may_use_mincore_ ? is_resident(range.offset, range.length)
                          : make_resident(range.offset, range.length);
}

int LocalFile::read_unverified(std::span<std::byte> buffer, std::uint64_t offset) const {
  std::size_t filled = 0;
  const int error = pread_exact(fd_.get(), buffer, offset, &filled);
  if (error != 0) note_failure(offset + filled, offset + buffer.size(), error);
  return error;
}

int LocalFile::read_ahead(std::span<std::byte> buffer, std::uint64_t offset) const {
  if (is_resident(offset, buffer.size())) return read_unverified(buffer, offset);
  constexpr std::chrono::milliseconds kPatience{10};
  constexpr std::size_t kBlock = 128 << 10;  // bytes; smaller than the kernel's readahead window
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
  return error;
}

}  // namespace stfs
