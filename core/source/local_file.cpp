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
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <ctime>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace stfs {
namespace {

std::uint32_t file_system_of(int fd) {
  struct statfs system {};
  return ::fstatfs(fd, &system) == 0 ? static_cast<std::uint32_t>(system.f_type) : 0;
}

bool is_overlay(int fd) { return file_system_of(fd) == 0x794C7630; }

// Returns true if only this machine can write to the file system. fstat(2) is then exact, and a
// lease stops every writer. FUSE, network and cluster file systems may answer fstat(2) from a cache
// while the file changes on a server. overlayfs is not in the list, because statfs(2) does not
// report the file systems of its layers.
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
  return std::ranges::find(kLocal, file_system_of(fd)) != kLocal.end();
}

const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));

// Packs a time into 64 bits: the 34 low bits of the seconds, and the nanoseconds.
std::uint64_t bits_of(const statx_timestamp& time) {
  return static_cast<std::uint64_t>(time.tv_sec) << 30U | time.tv_nsec;
}

// Returns how long to wait until a change gets another ctime than this ctime. The clock of the
// kernel's timestamps advances in ticks; some file systems store only whole seconds.
std::chrono::nanoseconds until_past(const statx_timestamp& ctime) {
  timespec now{};
  timespec tick{};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
  ::clock_getres(CLOCK_REALTIME_COARSE, &tick);
  const bool has_seconds_alone = ctime.tv_nsec == 0;
  const std::chrono::nanoseconds unit =
      has_seconds_alone ? std::chrono::seconds(1) : std::chrono::nanoseconds(tick.tv_nsec);
  const auto age = std::chrono::seconds(now.tv_sec - ctime.tv_sec) +
                   std::chrono::nanoseconds(has_seconds_alone ? 0 : now.tv_nsec) -
                   std::chrono::nanoseconds(ctime.tv_nsec);
  return age > std::chrono::nanoseconds(0) || age <= -unit ? std::chrono::nanoseconds(0) : unit;
}

// Returns a hash of the link count, the mode and the owner. Different attributes have the same hash
// only with a probability of about 2^-64.
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

// Returns the token without the ctime. Two files never have all of these attributes in common, even
// at different times, and every change of a file changes one of them or the ctime.
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

LocalFile::LocalFile(const std::string& path, std::optional<Object> object)
    : LocalFile(absolute_path(path), UniqueFd(), std::move(object)) {}

LocalFile::LocalFile(const std::string& path, UniqueFd fd, std::optional<Object> object)
    : Source(object ? object->name : path),
      object_(std::move(object)),
      file_path_(path),
      fd_(fd ? std::move(fd) : open_regular(path)),
      directory_path_(directory_of(path)) {
  is_local_ = is_known_local(fd_.get());
  struct statx status {};
  settle(status);
  may_use_mincore_ = may_use_mincore(fd_.get(), status);
  identity_ = identity_of(status);
  inode_ = inode_of(status);
  const std::uint64_t size = status.stx_size;
  file_mtime_ = {status.stx_mtime.tv_sec, status.stx_mtime.tv_nsec};
  set_version({size, object_ ? object_->mtime.value_or(file_mtime_) : file_mtime_});
  standing_->rights = rights_of(status);
  standing_->ctime = ctime_of(status);
  if (status_at(AT_FDCWD, directory_path_.c_str(), is_local_, status) == 0) {
    directory_ = inode_of(status);
  }
  if (size == 0) return;  // because mmap(2) refuses length 0; reading the header reports the error
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd_.get(), 0);
  if (data == MAP_FAILED && errno == ENODEV) {
    throw Error(ErrorCode::kUnreadable, file_path_,
                "mmap: No such device: its file system cannot map files: copy the file to another "
                "file system");
  }
  if (data == MAP_FAILED) throw_errno(ErrorCode::kUnreadable, file_path_, "mmap", errno);
  data_ = static_cast<std::byte*>(data);
}

LocalFile::~LocalFile() {
  if (data_ != nullptr) ::munmap(data_, size());
}

// Reads the attributes twice, until they are the same both times. The kernel sets the ctime when a
// write(2) begins. lseek(2) waits for the end of the write on ext4, btrfs, f2fs and tmpfs; on xfs
// and zfs each read waits. The tick of the ctime must be over, because a later write in the same
// tick would not change the ctime.
void LocalFile::settle(struct statx& status) {
  constexpr int kMaxLooks = 8;
  const auto look = [this](struct statx& at) {
    if (const int error = status_at(fd_.get(), "", is_local_, at)) {
      throw_errno(ErrorCode::kUnreadable, file_path_, "", error);
    }
  };
  const bool may_settle = is_local_ || is_overlay(fd_.get());
  struct statx before {};
  look(before);
  for (int looks = 1;; ++looks, before = status) {
    if (may_settle) ::lseek(fd_.get(), 0, SEEK_DATA);
    look(status);
    const bool is_same = identity_of(before) == identity_of(status);
    const bool is_same_ctime = bits_of(before.stx_ctime) == bits_of(status.stx_ctime);
    // Some FUSE file systems return the time of the call as ctime, so it changes without a cause.
    has_ctime_ = is_local_ || is_same_ctime || !is_same || rights_of(before) != rights_of(status);
    const std::chrono::nanoseconds wait = until_past(status.stx_ctime);
    if (!may_settle || (is_same && is_same_ctime && wait.count() == 0)) return;
    if (looks >= kMaxLooks && is_same) return;  // changes of links and rights set the ctime too
    if (looks >= kMaxLooks) {
      throw Error(ErrorCode::kUnreadable, file_path_,
                  "is being written to: wait until the program that writes it has ended, and try "
                  "again");
    }
    std::this_thread::sleep_for(wait);
  }
}

Pinned LocalFile::try_pin() const {
  if (!is_leased()) return {};
  std::shared_lock guard(pins_, std::try_to_lock);
  // Check again under the lock: give_back_lease_if_asked() changes the state, then locks pins_.
  // cppcheck-suppress identicalConditionAfterEarlyExit  ; cppcheck does not model atomics
  if (!guard.owns_lock() || !is_leased()) return {};
  return {data_, std::move(guard)};
}

void LocalFile::share_state(Standing& shared) const {
  shared.rights = standing_->rights.load();
  shared.is_named = standing_->is_named.load();
  shared.ctime = standing_->ctime.load();
  shared.lease = standing_->lease.load();
  standing_ = &shared;
}

void LocalFile::begin_lease(std::chrono::milliseconds pause, const WriterWatch* writers) const {
  if (!is_local_) return;
  const std::lock_guard alone(pins_);
  lease_thread_ = ::gettid();
  first_pause_ = pause_ = pause;
  if (!may_use_mincore_) pagemap_ = UniqueFd(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  const std::lock_guard lock(state_mutex_);
  if (standing_->lease != Lease::kNone) {
    // The lease of a worker that died shows whether a writer has opened the file since. The lease
    // may be lost by now.
    judge();
    standing_->lease = Lease::kGivenBack;
  }
  writers_ = writers;
  watch_ = 0;
  if (writers != nullptr) writers->renew(fd_.get(), watch_);
  try_lease();
  if (is_leased()) return_lease(Lease::kResting);
}

bool LocalFile::retake_lease() const {
  const auto may_be_taken = [this] {
    const Lease lease = standing_->lease;
    return lease == Lease::kResting ||
           (lease == Lease::kGivenBack && Clock::now() >= retake_at_.load());
  };
  if (!may_be_taken()) return false;
  const std::unique_lock alone(pins_, std::try_to_lock);
  if (!alone || !may_be_taken()) return false;
  const std::lock_guard lock(state_mutex_);
  try_lease();
  // Wake the thread of Leases, because it waits without a timeout if no lease is held.
  if (is_leased()) ::tgkill(::getpid(), lease_thread_, SIGIO);
  return is_leased();
}

// The caller holds pins_ exclusively and state_mutex_, and no lease is held.
void LocalFile::try_lease() const {
  const f_owner_ex thread{F_OWNER_TID, lease_thread_};
  const bool is_taken =
      ::fcntl(fd_.get(), F_SETOWN_EX, &thread) == 0 && ::fcntl(fd_.get(), F_SETLEASE, F_RDLCK) == 0;
  // EAGAIN: a process has the file open for writing. Any other errno is permanent.
  const bool is_refused = !is_taken && errno != EAGAIN;
  // The kernel may have asked for the lease already: after F_SETLEASE, or earlier, for the lease of
  // a worker that died. give_back_lease_if_asked() has missed that SIGIO. It does not miss later
  // ones, because the lease is kHeld before this check. The caller holds pins_, so no reader can
  // pin in between.
  if (judge() == 0 && is_taken) {
    // No process has the file open for writing, so the watch reports every writer from now on.
    if (writers_ != nullptr) writers_->renew(fd_.get(), watch_);
    quiet_looks_ = 0;
    is_touched_ = false;
    standing_->lease = Lease::kHeld;
    if (::fcntl(fd_.get(), F_GETLEASE) == F_RDLCK) return;
  }
  retake_at_ = Clock::now() + first_pause_;
  return_lease(is_refused || has_changed() ? Lease::kNone : Lease::kGivenBack);
}

// The caller holds pins_ exclusively and state_mutex_.
void LocalFile::return_lease(Lease to) const {
  standing_->lease = to;
  ::fcntl(fd_.get(), F_SETLEASE, F_UNLCK);
}

void LocalFile::give_back_lease_if_asked(Clock::time_point since) const {
  if (!is_leased() || ::fcntl(fd_.get(), F_GETLEASE) == F_RDLCK) return;
  Lease held = Lease::kHeld;
  if (!standing_->lease.compare_exchange_strong(held, Lease::kAskedFor)) return;
  const std::lock_guard no_pins(pins_);
  await_touch(since);
  const std::lock_guard lock(state_mutex_);
  judge();  // the last check before the writer continues
  retake_at_ = Clock::now() + pause_;
  return_lease(Lease::kGivenBack);
  // touch(1) has set the times without opening the file, so take the lease again at once.
  if (is_touched_) return try_lease();
  constexpr unsigned kMaxPauses = 64;
  pause_ = std::min(pause_ * 2, first_pause_ * kMaxPauses);
}

void LocalFile::let_lease_rest() const {
  if (!is_leased() || ++quiet_looks_ < kQuietLooks) return;
  Lease held = Lease::kHeld;
  if (!standing_->lease.compare_exchange_strong(held, Lease::kAskedFor)) return;
  const std::lock_guard no_pins(pins_);
  const std::lock_guard lock(state_mutex_);
  judge();
  const bool is_asked_for = ::fcntl(fd_.get(), F_GETLEASE) != F_RDLCK;
  if (is_asked_for) retake_at_ = Clock::now() + pause_;
  pause_ = first_pause_;
  return_lease(is_asked_for ? Lease::kGivenBack : Lease::kResting);
}

// Returns true if a process waits until the lease is given back. /proc/locks has a line for the
// lease, "1: LEASE  BREAKING  UNLCK 3272 fe:00:109542 0 EOF", and after it a line with "->" for
// each waiting process. Also returns true if /proc/locks does not list the lease. Allocates no
// memory, because no failure may end the thread of Leases.
bool LocalFile::writer_is_waiting() const {
  std::array<char, 48> inode{};
  std::snprintf(inode.data(), inode.size(), ":%llu 0 EOF",
                static_cast<unsigned long long>(inode_.second));
  const UniqueFd locks(::open("/proc/locks", O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> text{};
  std::size_t kept = 0;  // bytes of a line whose end was not read yet
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

// touch(1) opens the file with O_NONBLOCK, so it does not wait for the lease, and then sets the
// times by the file's name. This function returns when the times were set, when a process waits for
// the lease, or when touch(1) has had enough time. The watch distinguishes a later touch from a
// writer.
void LocalFile::await_touch(Clock::time_point since) const {
  constexpr std::chrono::milliseconds kWatched{1}, kUnwatched{250};
  constexpr std::chrono::microseconds kLook{50};
  const Clock::time_point end = since + (watch_ != 0 ? kWatched : kUnwatched);
  Look now{};
  while (Clock::now() < end && look(now) == 0 && now.ctime == standing_->ctime &&
         !writer_is_waiting()) {
    std::this_thread::sleep_for(kLook);
  }
}

void LocalFile::end_lease() const {
  Lease held = Lease::kHeld;
  // From now on try_pin() returns no pins.
  standing_->lease.compare_exchange_strong(held, Lease::kAskedFor);
  const std::lock_guard no_pins(pins_);
  const std::lock_guard lock(state_mutex_);
  return_lease(Lease::kNone);
  writers_ = nullptr;
}

std::uint64_t LocalFile::ctime_of(const struct statx& status) const {
  return has_ctime_ ? bits_of(status.stx_ctime) : 0;
}

std::string LocalFile::token() const {
  return object_ ? object_->token : identity_ + "-" + std::to_string(standing_->ctime);
}

int LocalFile::look(Look& now) const {
  struct statx status {};
  if (const int error = status_at(fd_.get(), "", is_local_, status)) return error;
  now = {status.stx_size,
         {status.stx_mtime.tv_sec, status.stx_mtime.tv_nsec},
         ctime_of(status),
         rights_of(status)};
  return 0;
}

// Returns true if all attributes of the version except the ctime are the same.
bool LocalFile::is_same(const Look& now) const {
  return now.size == size() && now.mtime.tv_sec == file_mtime_.tv_sec &&
         now.mtime.tv_nsec == file_mtime_.tv_nsec;
}

int LocalFile::verify() const {
  if (has_changed() || is_refused()) return ESTALE;
  Look now{};
  if (look(now) == 0 && is_same(now) && now.ctime == standing_->ctime) return 0;
  const std::lock_guard lock(state_mutex_);
  return judge();
}

int LocalFile::judge() const {
  if (has_changed()) return ESTALE;
  const bool is_named =
      path_names_this_file();  // before look(), so that a rename in between counts as a change
  Look now{};
  const int error = look(now);
  if (error != 0 && error != ESTALE) {  // ESTALE: the server replaced or removed the file
    record_failure(0, 0, error);
    return error;
  }
  if (error == 0 && is_same(now)) {
    if (now.ctime == standing_->ctime) return 0;
    if (only_metadata_changed(now, is_named)) {
      standing_->rights = now.rights;
      standing_->is_named = is_named;
      standing_->ctime = now.ctime;
      return 0;
    }
  }
  mark_changed();
  return ESTALE;
}

// Returns true if no byte was changed although the ctime has changed (the table in local_file.h).
bool LocalFile::only_metadata_changed(const Look& now, bool is_named) const {
  switch (standing_->lease) {
    case Lease::kHeld:
    case Lease::kAskedFor:
      if (!kernel_has_lease()) return false;
      is_touched_ = is_touched_ || ::fcntl(fd_.get(), F_GETLEASE) != F_RDLCK;
      return true;
    case Lease::kGivenBack:
    case Lease::kResting:
      if (watch_ != 0) return is_unwritten();
      if (standing_->lease == Lease::kGivenBack) return false;
      break;
    case Lease::kNone: break;
  }
  return now.rights != standing_->rights || is_named != standing_->is_named;
}

// Returns true if no process has had the file open for writing since the watch was added. If no
// lease is held, takes a lease for the time of the check. A writer that opens the file with
// O_NONBLOCK is refused during this time.
bool LocalFile::is_unwritten() const {
  const bool is_taken = kernel_has_lease();
  if (!is_taken && ::fcntl(fd_.get(), F_SETLEASE, F_RDLCK) != 0) return false;
  const bool is_quiet = writers_->renew(fd_.get(), watch_);
  if (!is_taken) ::fcntl(fd_.get(), F_SETLEASE, F_UNLCK);
  // There was no writer, or only a touch(1) that the lease has refused, so no pause is needed.
  if (is_quiet) retake_at_ = Clock::time_point{};
  return is_quiet;
}

// Returns true if the kernel still blocks writers. It does not after F_UNLCK, and if the lease was
// asked for longer ago than /proc/sys/fs/lease-break-time.
bool LocalFile::kernel_has_lease() const {
  const int fd = fd_.get();
  if (::fcntl(fd, F_GETLEASE) == F_RDLCK) return true;
  // F_GETLEASE also returns F_UNLCK for a lease that a writer has asked for.
  std::array<char, 40> path{};
  std::snprintf(path.data(), path.size(), "/proc/self/fdinfo/%d", fd);
  const UniqueFd info(::open(path.data(), O_RDONLY | O_CLOEXEC));
  std::array<char, 1024> text{};
  const ssize_t length = info ? ::read(info.get(), text.data(), text.size()) : -1;
  return length > 0 &&
         std::string_view(text.data(), static_cast<std::size_t>(length)).find("LEASE ") !=
             std::string_view::npos;
}

// Returns true if file_path() refers to this file. If the directory at the path is another one,
// returns the earlier result, because moving a directory does not change the ctime of its files.
bool LocalFile::path_names_this_file() const {
  struct statx status {};
  if (status_at(AT_FDCWD, directory_path_.c_str(), is_local_, status) != 0 ||
      inode_of(status) != directory_) {
    return standing_->is_named;
  }
  return status_at(AT_FDCWD, file_path_.c_str(), is_local_, status) == 0 &&
         inode_of(status) == inode_;
}

bool LocalFile::is_current() const {
  struct statx status {};
  if (verify() != 0 || status_at(AT_FDCWD, file_path_.c_str(), is_local_, status) != 0) {
    return false;
  }
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
  if (quiet_looks_.load(std::memory_order_relaxed) != 0) quiet_looks_ = 0;
  return may_use_mincore_ ? is_resident(range.offset, range.length)
                          : make_resident(range.offset, range.length);
}

int LocalFile::read_unverified(std::span<std::byte> buffer, std::uint64_t offset) const {
  std::size_t filled = 0;
  const int error = pread_exact(fd_.get(), buffer, offset, &filled);
  if (error != 0) record_failure(offset + filled, offset + buffer.size(), error);
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
