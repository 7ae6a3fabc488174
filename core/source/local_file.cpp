#include "core/source/local_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
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

// As few bits as tell two times apart: 34 of the seconds.
std::uint64_t bits_of(const statx_timestamp& time) {
  return static_cast<std::uint64_t>(time.tv_sec) << 30U | time.tv_nsec;
}

// Differs, but for a chance of 2^-64, where one of the attributes does.
std::uint64_t rights_of(const struct statx& status) {
  std::uint64_t mixed = 0xCBF29CE484222325;  // FNV-1a, by words
  for (const std::uint64_t word :
       {status.stx_nlink, std::uint32_t{status.stx_mode}, status.stx_uid, status.stx_gid}) {
    mixed = (mixed ^ word) * 0x100000001B3;
  }
  return mixed;
}

std::pair<std::uint64_t, std::uint64_t> inode_of(const struct statx& status) {
  return {makedev(status.stx_dev_major, status.stx_dev_minor), status.stx_ino};
}

// Unless `is_local`, makes the kernel ask the server (AT_STATX_FORCE_SYNC). Returns 0 or an errno.
int status_at(int fd, const char* path, bool is_local, struct statx& status) {
  constexpr unsigned kMask = STATX_BASIC_STATS & ~(STATX_BLOCKS | STATX_ATIME);
  const int flags = (*path == '\0' ? AT_EMPTY_PATH : 0) | (is_local ? 0 : AT_STATX_FORCE_SYNC);
  while (::statx(fd, path, flags, kMask | STATX_BTIME, &status) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

std::string text_of(const statx_timestamp& time) {
  return std::to_string(time.tv_sec) + "." + std::to_string(time.tv_nsec);
}

// Two files never share all of these at two times, and a change moves one of them or the ctime.
std::string identity_of(const struct statx& status) {
  const auto [device, inode] = inode_of(status);
  const bool is_born = (status.stx_mask & STATX_BTIME) != 0;
  return "file-" + std::to_string(device) + "-" + std::to_string(inode) + "-" +
         (is_born ? text_of(status.stx_btime) : "") + "-" + std::to_string(status.stx_size) + "-" +
         text_of(status.stx_mtime);
}

std::string directory_of(const std::string& path) {
  return path.substr(0, std::max<std::size_t>(path.rfind('/'), 1));
}

// mincore(2) reports residency only to the file's owner and to processes that may write to it; to
// others it reports every page as resident.
bool may_use_mincore(int fd, const struct statx& status) {
  return status.stx_uid == ::geteuid() ||
         ::faccessat(fd, "", W_OK, AT_EACCESS | AT_EMPTY_PATH) == 0;
}

}  // namespace

LocalFile::LocalFile(const std::string& path) : LocalFile(absolute_path(path), UniqueFd()) {}

LocalFile::LocalFile(const std::string& path, UniqueFd fd)
    : Source(path),
      fd_(fd ? std::move(fd) : open_regular(path)),
      directory_path_(directory_of(path)) {
  is_local_ = is_known_local(fd_.get());
  struct statx status {};
  struct statx again {};
  for (struct statx* const at : {&status, &again}) {
    if (const int error = status_at(fd_.get(), "", is_local_, *at)) {
      throw_errno(ErrorCode::kUnreadable, this->path(), "", error);
    }
  }
  may_use_mincore_ = may_use_mincore(fd_.get(), status);
  identity_ = identity_of(again);
  inode_ = inode_of(again);
  // A ctime that moves without a cause is the time of the question, on some FUSE file systems.
  has_ctime_ = is_local_ || bits_of(status.stx_ctime) == bits_of(again.stx_ctime) ||
               rights_of(status) != rights_of(again) || identity_of(status) != identity_;
  if (status_at(AT_FDCWD, directory_path_.c_str(), is_local_, status) == 0) {
    directory_ = inode_of(status);
  }
  const std::uint64_t size = again.stx_size;
  set_version({size, {again.stx_mtime.tv_sec, again.stx_mtime.tv_nsec}});
  standing_->rights = rights_of(again);
  standing_->ctime = ctime_of(again);
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

void LocalFile::keep_in(Standing& shared) const {
  shared.rights = standing_->rights.load();
  shared.is_named = standing_->is_named.load();
  shared.ctime = standing_->ctime.load();
  shared.lease = standing_->lease.load();
  standing_ = &shared;
}

void LocalFile::take_lease(std::chrono::milliseconds pause) const {
  if (!is_local_) return;
  const std::lock_guard alone(pins_);
  lease_thread_ = ::gettid();
  lease_pause_ = pause;
  if (!may_use_mincore_) pagemap_ = UniqueFd(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  const std::lock_guard lock(judging_);
  if (standing_->lease != Lease::kNone) {
    // The lease of a worker that died says whether a writer came since. It may be lost by now.
    judge();
    standing_->lease = Lease::kGivenBack;
  }
  try_lease();
}

bool LocalFile::retake_lease() const {
  if (standing_->lease != Lease::kGivenBack || Clock::now() < retake_at_.load()) return false;
  const std::unique_lock alone(pins_, std::try_to_lock);
  if (!alone || standing_->lease != Lease::kGivenBack) return false;
  const std::lock_guard lock(judging_);
  asks_in_vain_ = 0;
  try_lease();
  return is_leased();
}

// The caller holds pins_ exclusively and judging_, and the lease is kNone or kGivenBack.
void LocalFile::try_lease() const {
  retake_at_ = Clock::now() + lease_pause_;
  const f_owner_ex thread{F_OWNER_TID, lease_thread_};
  const bool is_taken =
      ::fcntl(fd_.get(), F_SETOWN_EX, &thread) == 0 && ::fcntl(fd_.get(), F_SETLEASE, F_RDLCK) == 0;
  // EAGAIN: a process has the file open for writing. Any other errno is permanent.
  const bool is_refused = !is_taken && errno != EAGAIN;
  // The kernel may have asked for it already: since F_SETLEASE, or before, of a worker that died.
  // give_back_lease_if_asked() missed that SIGIO, and finds the later ones because the lease is
  // kHeld before this look. The caller lets no pin in between.
  if (judge() == 0 && is_taken) {
    standing_->lease = Lease::kHeld;
    if (::fcntl(fd_.get(), F_GETLEASE) == F_RDLCK) return;
  }
  ::fcntl(fd_.get(), F_SETLEASE, F_UNLCK);
  standing_->lease = is_refused || has_changed() ? Lease::kNone : Lease::kGivenBack;
}

void LocalFile::give_back_lease_if_asked(Clock::time_point end) const {
  if (!is_leased() || ::fcntl(fd_.get(), F_GETLEASE) == F_RDLCK) return;
  Lease held = Lease::kHeld;
  if (!standing_->lease.compare_exchange_strong(held, Lease::kAskedFor)) return;
  const std::lock_guard no_pins(pins_);
  await_touch(end);
  const std::lock_guard lock(judging_);
  judge();  // the last look before the writer
  standing_->lease = Lease::kGivenBack;
  ::fcntl(fd_.get(), F_SETLEASE, F_UNLCK);
  retake_at_ = Clock::now() + lease_pause_;
  // Take the lease again at once, unless a writer has the file open now (EAGAIN). Not for ever: a
  // writer who tries again and again without waiting must come in.
  constexpr unsigned kMostInVain = 2;
  const std::uint64_t ctime = standing_->ctime;
  asks_in_vain_ = ctime == std::exchange(ctime_when_asked_, ctime) ? asks_in_vain_ + 1 : 0;
  if (asks_in_vain_ < kMostInVain) try_lease();
}

// Whether a process waits until the lease is given back, as /proc/locks tells: after the line of
// the lease, "1: LEASE  BREAKING  UNLCK 3272 fe:00:109542 0 EOF", it has one with "->" for each.
// True where it does not list the lease. Takes no memory: nothing may end the thread of Leases.
bool LocalFile::is_awaited() const {
  std::array<char, 48> inode{};
  std::snprintf(inode.data(), inode.size(), ":%llu 0 EOF",
                static_cast<unsigned long long>(inode_.second));
  const UniqueFd locks(::open("/proc/locks", O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> text{};
  std::size_t kept = 0;  // bytes of a line whose end is not read yet
  bool is_listed = false;
  bool is_ours = false;
  while (locks) {
    const ssize_t length = ::read(locks.get(), text.data() + kept, text.size() - kept);
    if (length <= 0) break;
    std::string_view rest(text.data(), kept + static_cast<std::size_t>(length));
    for (std::size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      const std::string_view line = rest.substr(0, end);
      rest.remove_prefix(end + 1);
      if (line.find("->") == std::string_view::npos) {
        is_ours = line.find("LEASE") != std::string_view::npos && line.ends_with(inode.data());
        is_listed = is_listed || is_ours;
      } else if (is_ours) {
        return true;
      }
    }
    kept = rest.size();
    std::ranges::copy(rest, text.data());
  }
  return !is_listed;
}

// touch(1) opens with O_NONBLOCK, does not wait for the lease, and then sets the times by the
// file's name. Returns when it did, or a process waits, or at `end`.
void LocalFile::await_touch(Clock::time_point end) const {
  Look now{};
  while (Clock::now() < end && look(now) == 0 && now.ctime == standing_->ctime && !is_awaited()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void LocalFile::end_lease() const {
  Lease held = Lease::kHeld;
  standing_->lease.compare_exchange_strong(held, Lease::kAskedFor);  // try_pin() gives no more pins
  const std::lock_guard no_pins(pins_);
  const std::lock_guard lock(judging_);
  ::fcntl(fd_.get(), F_SETLEASE, F_UNLCK);
  standing_->lease = Lease::kNone;
}

std::uint64_t LocalFile::ctime_of(const struct statx& status) const {
  return has_ctime_ ? bits_of(status.stx_ctime) : 0;
}

std::string LocalFile::token() const { return identity_ + "-" + std::to_string(standing_->ctime); }

int LocalFile::look(Look& now) const {
  struct statx status {};
  if (const int error = status_at(fd_.get(), "", is_local_, status)) return error;
  now = {status.stx_size,
         {status.stx_mtime.tv_sec, status.stx_mtime.tv_nsec},
         ctime_of(status),
         rights_of(status)};
  return 0;
}

// But for the ctime.
bool LocalFile::is_same(const Look& now) const {
  return now.size == size() && now.mtime.tv_sec == mtime().tv_sec &&
         now.mtime.tv_nsec == mtime().tv_nsec;
}

int LocalFile::verify() const {
  if (has_changed()) return ESTALE;
  Look now{};
  if (look(now) == 0 && is_same(now) && now.ctime == standing_->ctime) return 0;
  const std::lock_guard lock(judging_);
  return judge();
}

int LocalFile::judge() const {
  if (has_changed()) return ESTALE;
  const bool is_named = leads_here();  // before the look: a rename between the two is a change
  Look now{};
  const int error = look(now);
  if (error != 0 && error != ESTALE) {  // ESTALE: the server replaced or removed the file
    note_failure(0, 0, error);
    return error;
  }
  if (error == 0 && is_same(now)) {
    if (now.ctime == standing_->ctime) return 0;
    if (is_benign(now, is_named)) {
      standing_->rights = now.rights;
      standing_->is_named = is_named;
      standing_->ctime = now.ctime;
      return 0;
    }
  }
  mark_changed();
  return ESTALE;
}

// Whether a ctime that moved alone changed no byte.
bool LocalFile::is_benign(const Look& now, bool is_named) const {
  switch (standing_->lease) {
    case Lease::kHeld:
    case Lease::kAskedFor:
      return kernel_has_lease();
    case Lease::kGivenBack:
      return false;
    case Lease::kNone:
      break;
  }
  return now.rights != standing_->rights || is_named != standing_->is_named;
}

// Whether the kernel still holds writers up. After F_UNLCK, or when a lease was asked for longer
// than /proc/sys/fs/lease-break-time ago, it does not.
bool LocalFile::kernel_has_lease() const {
  const int fd = fd_.get();
  if (::fcntl(fd, F_GETLEASE) == F_RDLCK) return true;
  // F_GETLEASE says F_UNLCK of a lease that was asked for, too.
  std::array<char, 40> path{};
  std::snprintf(path.data(), path.size(), "/proc/self/fdinfo/%d", fd);
  const UniqueFd info(::open(path.data(), O_RDONLY | O_CLOEXEC));
  std::array<char, 1024> text{};
  const ssize_t length = info ? ::read(info.get(), text.data(), text.size()) : -1;
  return length > 0 &&
         std::string_view(text.data(), static_cast<std::size_t>(length)).find("LEASE ") !=
             std::string_view::npos;
}

// Whether path() leads to this file. As it was where its directory is another one: a directory that
// moves leaves the ctime of its files.
bool LocalFile::leads_here() const {
  struct statx status {};
  if (status_at(AT_FDCWD, directory_path_.c_str(), is_local_, status) != 0 ||
      inode_of(status) != directory_) {
    return standing_->is_named;
  }
  return status_at(AT_FDCWD, path().c_str(), is_local_, status) == 0 && inode_of(status) == inode_;
}

bool LocalFile::is_current() const {
  struct statx status {};
  if (verify() != 0 || status_at(AT_FDCWD, path().c_str(), is_local_, status) != 0) return false;
  return identity_of(status) == identity_ && ctime_of(status) == standing_->ctime;
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
