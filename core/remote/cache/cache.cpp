#include "core/remote/cache/cache.h"

#include "core/base/file_limit.h"
#include "core/base/home.h"
#include "core/base/posix.h"
#include "core/base/sha256.h"
#include "core/base/text.h"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

namespace stfs {
namespace {

constexpr std::uint64_t kMaxIdText = 64 << 10;
constexpr std::uint64_t kMaxNameText = 64 << 20;
constexpr std::uint64_t kMaxGrant = 32 << 20;
constexpr std::uint64_t kPage = 4096;             // bytes; the block size of most file systems
constexpr std::uint64_t kEntryBytes = 4 * kPage;  // size on the disk of an entry without blocks
constexpr int kDirectory = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
// O_NONBLOCK, because opening a FIFO of this name would block.
constexpr int kFile = O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;

struct MapHeader {
  std::array<char, 8> magic{'s', 't', 'f', 's', 'm', 'a', 'p', '\n'};
  std::uint32_t format = 1;
  std::uint32_t block = CacheEntry::kBlock;
  std::uint64_t size = 0;  // bytes of the object
  std::array<std::byte, 32> id{};
  std::uint64_t checksum = 0;  // XXH3 of all bytes before it
};
static_assert(sizeof(MapHeader) == 64);

// Two versions never have the same text, because a URL cannot contain a NUL.
std::string id_of(const RemoteVersion& version) {
  return sha256_hex(version.name + '\0' + version.token);
}

std::uint64_t blocks_of(std::uint64_t size) {
  return size / CacheEntry::kBlock + (size % CacheEntry::kBlock != 0 ? 1 : 0);
}

std::uint64_t map_size(std::uint64_t size) { return sizeof(MapHeader) + 8 * blocks_of(size); }

MapHeader header_of(const std::string& id, std::uint64_t size) {
  MapHeader header;
  header.size = size;
  for (std::size_t i = 0; i < header.id.size(); ++i) {
    header.id[i] = static_cast<std::byte>(std::stoi(id.substr(2 * i, 2), nullptr, 16));
  }
  header.checksum = XXH3_64bits(&header, offsetof(MapHeader, checksum));
  return header;
}

std::string random_name() {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, GRND_NONBLOCK) < 0) {
    number = static_cast<std::uint64_t>(::getpid());  // early at boot, without randomness
  }
  return std::to_string(number);
}

// Returns true if an open file is of this kind, belongs to `owner`, and only the owner can write to
// it.
bool is_of(uid_t owner, int fd, mode_t kind) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && (status.st_mode & S_IFMT) == kind && status.st_uid == owner &&
         (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// Returns true if a name in a directory still refers to an open file.
bool is_named(int directory, const std::string& name, int fd) {
  struct stat named {};
  struct stat open {};
  return ::fstatat(directory, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         ::fstat(fd, &open) == 0 && named.st_ino == open.st_ino && named.st_dev == open.st_dev;
}

int write_all(int fd, std::span<const std::byte> bytes, std::uint64_t offset) {
  const NoFileLimitSignal no_signal;
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    offset += static_cast<std::uint64_t>(n);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return 0;
}

// Calls fallocate(2). If the file system does not support it, checks that the disk has enough free
// space now.
int allocate(int fd, std::uint64_t offset, std::uint64_t length) {
  if (offset + length > largest_file()) return EFBIG;
  while (::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(length)) != 0) {
    if (errno == EINTR) continue;
    if (errno != EOPNOTSUPP && errno != ENOSYS) return errno;
    struct statvfs disk {};
    if (::fstatvfs(fd, &disk) != 0) return errno;
    return disk.f_bavail < length / disk.f_frsize ? ENOSPC : 0;
  }
  return 0;
}

std::optional<std::string> read_small(uid_t owner, int directory, const char* name,
                                      std::uint64_t limit) {
  const UniqueFd fd(::openat(directory, name, O_RDONLY | kFile));
  struct stat status {};
  if (!fd || !is_of(owner, fd.get(), S_IFREG) || ::fstat(fd.get(), &status) != 0) {
    return std::nullopt;
  }
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size > limit) return std::nullopt;
  std::string text(size, '\0');
  if (pread_exact(fd.get(), std::as_writable_bytes(std::span(text)), 0) != 0) return std::nullopt;
  return text;
}

std::uint64_t bytes_on_disk(const struct stat& status) {
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

bool is_before(const timespec& a, const timespec& b) {
  return std::tie(a.tv_sec, a.tv_nsec) < std::tie(b.tv_sec, b.tv_nsec);
}

// Returns the block's word in the map, or 0 if it cannot be read.
std::uint64_t word_of(int map, std::uint64_t block) {
  std::uint64_t word = 0;
  const int error =
      pread_exact(map, std::as_writable_bytes(std::span(&word, 1)), sizeof(MapHeader) + 8 * block);
  return error == 0 ? word : 0;
}

// Returns false if another open file has locked the byte, and true if the file system has no locks.
bool lock_byte(int fd, short type, std::uint64_t byte) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(byte);
  lock.l_len = 1;
  return ::fcntl(fd, F_OFD_SETLK, &lock) == 0 || (errno != EAGAIN && errno != EACCES);
}

// Makes a directory and its parents. Returns the errno of the last mkdir(2), or 0.
int make_directories(const std::filesystem::path& directory) {
  std::filesystem::path made;
  int error = 0;
  for (const std::filesystem::path& part : directory) {
    made /= part;
    error = ::mkdir(made.c_str(), 0700) == 0 ? 0 : errno;
  }
  return error;
}

// Returns why a directory could not be made or opened, and what to do.
std::string place_text(std::filesystem::path path, int error) {
  struct statvfs disk {};
  while (error == ENOSPC && ::statvfs(path.c_str(), &disk) != 0 && path.has_relative_path()) {
    path = path.parent_path();
  }
  if (error == ENOSPC && disk.f_files > 0 && disk.f_favail == 0) {
    return "no inodes are left on its file system: remove files there";
  }
  const bool is_full = error == ENOSPC || error == EDQUOT;
  const bool is_other = error == ENOTDIR || error == ELOOP;
  return errno_text(error) + (is_full    ? ": remove files there"
                              : is_other ? ": remove it"
                                         : ": repair it");
}

}  // namespace

// --- an entry ---

std::uint64_t CacheEntry::blocks() const { return blocks_of(version_.size); }

ByteRange CacheEntry::range_of(std::uint64_t block) const {
  const std::uint64_t offset = block * kBlock;
  return {offset, std::min(kBlock, version_.size - offset)};
}

bool CacheEntry::is_there(std::uint64_t block) const { return word_of(map_fd_.get(), block) != 0; }

std::uint64_t CacheEntry::checksum_of(std::uint64_t block, std::span<const std::byte> bytes) const {
  constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15;  // odd: seeds differ in all bits
  const auto sum = XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed_ + block * kStep);
  return std::max<std::uint64_t>(sum, 1);
}

int CacheEntry::check(std::uint64_t block, std::span<std::byte> buffer) const {
  const std::uint64_t expected = word_of(map_fd_.get(), block);
  if (expected == 0) return ENODATA;
  const ByteRange range = range_of(block);
  const std::span<std::byte> bytes = buffer.first(range.length);
  int error = read(bytes, range.offset);
  if (error == ESTALE) error = EILSEQ;  // `data` is too short
  if (error == 0 && expected != checksum_of(block, bytes)) error = EILSEQ;
  if (error != 0) forget(block);
  return error;
}

void CacheEntry::forget(std::uint64_t block) const {
  constexpr std::uint64_t kAbsent = 0;
  write_all(map_fd_.get(), std::as_bytes(std::span(&kAbsent, 1)), sizeof(MapHeader) + 8 * block);
}

bool CacheEntry::claim(std::uint64_t block) const {
  if (is_read_only_) return true;  // no process can publish
  const std::lock_guard lock(claims_mutex_);
  if (!claims_fd_) {
    UniqueFd fd(::open((directory_ + "/map").c_str(), O_RDWR | kFile));
    // If the entry's map is not in its place any more, no other process can open it.
    if (!fd || !is_named(AT_FDCWD, directory_ + "/map", map_fd_.get())) return true;
    claims_fd_ = std::move(fd);
  }
  return lock_byte(claims_fd_.get(), F_WRLCK, block);
}

void CacheEntry::release(std::uint64_t block) const {
  const std::lock_guard lock(claims_mutex_);
  if (claims_fd_) lock_byte(claims_fd_.get(), F_UNLCK, block);
}

int CacheEntry::reserve(ByteRange range) const {
  if (is_read_only_) return EROFS;
  if (range.offset > version_.size || range.length > version_.size - range.offset) return EINVAL;
  if (range.length == 0) return 0;
  // If the file was truncated, a write after its new end would turn the blocks before it into
  // zeros.
  if (const int error = look_at_data()) return error == ESTALE ? EIO : error;
  const std::uint64_t begin = range.offset / kBlock * kBlock;
  const std::uint64_t last = (range.offset + range.length - 1) / kBlock;
  const ByteRange end = range_of(last);
  // Allocate the map as well, so that write() can publish on a full disk.
  const std::uint64_t first = range.offset / kBlock;
  if (const int error =
          allocate(map_fd_.get(), sizeof(MapHeader) + 8 * first, 8 * (last - first + 1))) {
    return error;
  }
  if (const int error = allocate(data_fd_.get(), begin, end.offset + end.length - begin)) {
    return error;
  }
  look_at_data();  // record the growth, so that it hides no later loss
  return 0;
}

int CacheEntry::write(std::uint64_t block, std::span<const std::byte> bytes) const {
  if (is_read_only_) return EROFS;
  if (block >= blocks() || bytes.size() != range_of(block).length) return EINVAL;
  if (const int error = look_at_data()) return error == ESTALE ? EIO : error;
  if (const int error = write_all(data_fd_.get(), bytes, block * kBlock)) return error;
  const std::uint64_t word = checksum_of(block, bytes);
  return write_all(map_fd_.get(), std::as_bytes(std::span(&word, 1)),
                   sizeof(MapHeader) + 8 * block);
}

int CacheEntry::read(std::span<std::byte> bytes, std::uint64_t offset) const {
  const int error = pread_exact(data_fd_.get(), bytes, offset);
  return error != 0 ? error : look_at_data();
}

int CacheEntry::look_at_data() const {
  struct stat status {};
  std::uint64_t before = on_disk_;  // read first: other threads write, and it grows
  if (::fstat(data_fd_.get(), &status) != 0) return errno;
  if (static_cast<std::uint64_t>(status.st_size) != version_.size) return ESTALE;
  const auto now = static_cast<std::uint64_t>(status.st_blocks);
  if (now < before) ++losses_;  // before on_disk_ is set, so that no reader misses the loss
  if (now != before) on_disk_.compare_exchange_strong(before, now);
  return 0;
}

// --- the directory ---

std::string Cache::default_directory() {
  if (std::string set = environment("STFS_CACHE"); !set.empty()) return with_home(set);
  // The XDG Base Directory Specification says that a relative path is ignored.
  if (const std::string xdg = environment("XDG_CACHE_HOME"); xdg.starts_with('/')) {
    return xdg + "/stfs";
  }
  const std::string home = home_directory();
  return home.empty() ? "" : home + "/.cache/stfs";
}

Cache::Cache(Options options) : options_(std::move(options)) {
  if (options_.directory.empty()) options_.directory = default_directory();
  if (options_.directory.empty()) {
    unusable_ = "the cache: this user has no home directory: name a directory in STFS_CACHE";
    return;
  }
  // Make the path absolute, because a daemon changes its working directory.
  const auto absolute = [](const std::string& path) {
    std::error_code ignored;
    const auto found = std::filesystem::absolute(path, ignored);
    return found.empty() ? path : found.lexically_normal().string();
  };
  options_.directory = absolute(options_.directory);
  is_named_ =
      !environment("STFS_CACHE").empty() || options_.directory != absolute(default_directory());
  options_.keep_free = std::min(options_.keep_free, 100U);
  if (prepare() && !is_read_only_) empty_trash();
}

// Opens the directories, or sets unusable_. Called again after the user has removed them: the
// descriptors then keep their numbers, because other threads use them.
bool Cache::prepare() {
  const bool is_first = !trash_;
  const auto install = [](UniqueFd& at, UniqueFd fd) {
    if (at && fd) ::dup3(fd.get(), at.get(), O_CLOEXEC);
    if (!at) at = std::move(fd);
  };
  const auto refuse = [&](const std::string& path, const std::string& rule) {
    if (!is_first) return UniqueFd();
    unusable_ = printable(path) + ": " + rule + ", or name another directory in STFS_CACHE";
    return UniqueFd();
  };
  int made = 0;  // the errno of the last mkdir(2)
  // If another user can write to the directory, that user could give us wrong bytes. A directory
  // that belongs to another user, and that only its owner can write to, may be named and is read.
  const auto checked = [&](UniqueFd fd, const std::string& path, bool is_top = false) {
    struct stat status {};
    if (!fd || ::fstat(fd.get(), &status) != 0) {
      const int error = errno == ENOENT && made != 0 && made != EEXIST ? made : errno;
      return refuse(path, "the cache cannot be used: " + place_text(path, error));
    }
    if (is_top && is_named_ && ::faccessat(fd.get(), ".", W_OK, AT_EACCESS) != 0) {
      owner_ = status.st_uid;
      is_read_only_ = true;
    }
    if (status.st_uid != owner_) {
      return refuse(path, "the cache belongs to another user: change its owner");
    }
    if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
      return refuse(path, "other users may write to the cache: run chmod go-w");
    }
    return fd;
  };
  const std::string& path = options_.directory;
  UniqueFd top(::open(path.c_str(), kDirectory));
  if (!top && errno == ENOENT) {
    made = make_directories(path);
    top = UniqueFd(::open(path.c_str(), kDirectory));
  }
  top = checked(std::move(top), path, is_first);
  if (!top) return false;
  struct statvfs disk {};
  if (is_first && ::fstatvfs(top.get(), &disk) == 0 && (disk.f_flag & ST_RDONLY) != 0) {
    is_read_only_ = true;
  }

  const auto subdirectory = [&](const UniqueFd& above, const std::string& place, const char* name) {
    if (!above) return UniqueFd();
    made = ::mkdirat(above.get(), name, 0700) == 0 ? 0 : errno;
    return checked(UniqueFd(::openat(above.get(), name, kDirectory | O_NOFOLLOW)),
                   path + "/" + place + name);
  };
  const UniqueFd v1 = subdirectory(top, "", "v1");
  UniqueFd entries = subdirectory(v1, "v1/", "entries");
  UniqueFd names = entries ? subdirectory(v1, "v1/", "names") : UniqueFd();
  UniqueFd trash = names ? subdirectory(v1, "v1/", "trash") : UniqueFd();
  if (!trash) return false;
  install(entries_, std::move(entries));
  install(names_, std::move(names));
  install(trash_, std::move(trash));

  const UniqueFd tag(::openat(v1.get(), "CACHEDIR.TAG", O_WRONLY | O_CREAT | O_EXCL | kFile, 0600));
  constexpr std::string_view kTag =
      "Signature: 8a477f597d28d172789f06886806bc55\n"
      "# This directory is a cache of stfs: https://bford.info/cachedir/\n";
  if (tag) write_exact(tag.get(), std::as_bytes(std::span(kTag)));
  return true;
}

void Cache::prepare_again() {
  const std::lock_guard lock(mutex_);
  for (const UniqueFd* directory : {&entries_, &trash_}) {
    struct stat status {};
    if (::fstat(directory->get(), &status) != 0 || status.st_nlink != 0) continue;
    prepare();
    return;
  }
}

// Replaces a file atomically.
bool Cache::write_file(int directory, const char* name, const std::string& text) const {
  const std::string temporary = random_name();
  const UniqueFd fd(
      ::openat(trash_.get(), temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | kFile, 0600));
  if (!fd) return false;
  if (write_exact(fd.get(), std::as_bytes(std::span(text))) == 0 &&
      ::renameat(trash_.get(), temporary.c_str(), directory, name) == 0) {
    return true;
  }
  ::unlinkat(trash_.get(), temporary.c_str(), 0);
  return false;
}

// Removes a name in trash, whatever kind of file it is.
void Cache::discard(const std::string& name) const {
  if (::unlinkat(trash_.get(), name.c_str(), 0) == 0 || errno == ENOENT) return;
  std::error_code ignored;
  std::filesystem::remove_all(options_.directory + "/v1/trash/" + name, ignored);
}

// Removes what terminated processes have left in trash. An entry that is being created is locked.
void Cache::empty_trash() const try {
  for (const std::string& name : names_in(options_.directory + "/v1/trash")) {
    if (name == "." || name == "..") continue;
    const UniqueFd data(
        ::openat(trash_.get(), (name + "/data").c_str(), O_RDWR | O_NOFOLLOW | kFile));
    if (data && ::flock(data.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) continue;
    discard(name);
  }
} catch (const Error&) {
}

// --- entries ---

Cache::Outcome Cache::open_place(const std::string& id, CacheEntry& entry) const {
  const RemoteVersion& version = entry.version_;
  const UniqueFd directory(::openat(entries_.get(), id.c_str(), kDirectory | O_NOFOLLOW));
  if (!directory) {
    return errno == ENOENT                      ? Outcome::kAbsent
           : errno == ENOTDIR || errno == ELOOP ? Outcome::kDamaged
                                                : Outcome::kFailed;
  }
  if (!is_of(owner_, directory.get(), S_IFDIR)) return Outcome::kDamaged;
  const int mode = is_read_only_ ? O_RDONLY : O_RDWR;
  entry.data_fd_ = UniqueFd(::openat(directory.get(), "data", mode | kFile));
  entry.map_fd_ = UniqueFd(::openat(directory.get(), "map", mode | kFile));
  if (!entry.data_fd_ || !entry.map_fd_) {
    const int error = errno;
    if (error == EMFILE || error == ENFILE || error == ENOMEM) return Outcome::kFailed;
    return is_named(entries_.get(), id, directory.get()) ? Outcome::kDamaged : Outcome::kBusy;
  }
  if (!is_of(owner_, entry.data_fd_.get(), S_IFREG) ||
      !is_of(owner_, entry.map_fd_.get(), S_IFREG)) {
    return Outcome::kDamaged;
  }
  if (::flock(entry.data_fd_.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return Outcome::kBusy;
  }
  // The entry may have been evicted before this process locked it.
  if (!is_named(entries_.get(), id, directory.get())) return Outcome::kBusy;

  struct stat map {};
  struct stat data {};
  if (::fstat(entry.map_fd_.get(), &map) != 0 || ::fstat(entry.data_fd_.get(), &data) != 0) {
    return Outcome::kFailed;
  }
  MapHeader header;
  const MapHeader expected = header_of(id, version.size);
  if (static_cast<std::uint64_t>(map.st_size) != map_size(version.size) ||
      pread_exact(entry.map_fd_.get(), std::as_writable_bytes(std::span(&header, 1)), 0) != 0 ||
      std::memcmp(&header, &expected, sizeof header) != 0) {
    return Outcome::kDamaged;
  }
  const auto text = read_small(owner_, directory.get(), "id.json", kMaxIdText);
  const auto named = text ? parse_remote_version(*text) : std::nullopt;
  if (!named || named->name != version.name || named->token != version.token ||
      named->size != version.size) {
    return Outcome::kDamaged;
  }
  if (is_read_only_) return Outcome::kDone;
  // `data` has the wrong size. Restore the size; checksums will show which blocks are lost.
  if (data.st_size != static_cast<off_t>(version.size)) {
    // Not while another process uses the file, because blocks that it has checked would become
    // zeros.
    if (::flock(entry.data_fd_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      return Outcome::kDamaged;
    }
    const NoFileLimitSignal no_signal;
    if (::ftruncate(entry.data_fd_.get(), static_cast<off_t>(version.size)) != 0) {
      return Outcome::kFailed;
    }
    ::flock(entry.data_fd_.get(), LOCK_SH);
    // A lock is released for a moment while it changes, so the entry may have been evicted.
    if (!is_named(entries_.get(), id, directory.get())) return Outcome::kBusy;
  }
  if (const std::string now = to_json(version, false); *text != now) {
    write_file(directory.get(), "id.json", now);
  }
  ::utimensat(directory.get(), "id.json", nullptr, AT_SYMLINK_NOFOLLOW);
  return Outcome::kDone;
}

Cache::Outcome Cache::make_place(const std::string& id, CacheEntry& entry, int& error) const {
  const std::uint64_t size = entry.version_.size;
  const std::string temporary = id + "." + random_name();
  const auto make = [&]() -> int {
    const NoFileLimitSignal no_signal;
    if (::mkdirat(trash_.get(), temporary.c_str(), 0700) != 0) return errno;
    const UniqueFd directory(::openat(trash_.get(), temporary.c_str(), kDirectory | O_NOFOLLOW));
    if (!directory) return errno;
    const auto create = [&](const char* name) {
      return UniqueFd(::openat(directory.get(), name, O_RDWR | O_CREAT | O_EXCL | kFile, 0600));
    };
    entry.data_fd_ = create("data");
    if (!entry.data_fd_) return errno;
    // EWOULDBLOCK: another process is removing the file as a leftover.
    if (::flock(entry.data_fd_.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) return EBUSY;
    entry.map_fd_ = create("map");
    if (!entry.map_fd_) return errno;
    if (::ftruncate(entry.data_fd_.get(), static_cast<off_t>(size)) != 0 ||
        ::ftruncate(entry.map_fd_.get(), static_cast<off_t>(map_size(size))) != 0) {
      return errno;
    }
    const MapHeader header = header_of(id, size);
    if (const int e = write_all(entry.map_fd_.get(), std::as_bytes(std::span(&header, 1)), 0)) {
      return e;
    }
    const UniqueFd text = create("id.json");
    if (!text) return errno;
    const std::string json = to_json(entry.version_, false);
    if (const int e = write_exact(text.get(), std::as_bytes(std::span(json)))) return e;
    return ::renameat(trash_.get(), temporary.c_str(), entries_.get(), id.c_str()) == 0 ? 0 : errno;
  };
  error = make();
  if (error == 0) return Outcome::kDone;
  discard(temporary);
  // Another process was faster, or removed our entry as a leftover.
  const bool was_late = error == EEXIST || error == ENOTEMPTY || error == ENOTDIR ||
                        error == ENOENT || error == EBUSY;
  return was_late ? Outcome::kBusy : Outcome::kFailed;
}

std::unique_ptr<CacheEntry> Cache::open(const RemoteVersion& version, bool existing) {
  constexpr auto kMaxSize = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
  if (!unusable_.empty() || version.size > kMaxSize) return nullptr;
  if (to_json(version, false).size() > kMaxIdText) return nullptr;
  if (!is_read_only_ && !existing) prepare_again();
  const std::string id = id_of(version);
  // Each failed try means that another process has just opened or evicted the same entry.
  for (int tries = 0; tries < 200; ++tries) {
    std::unique_ptr<CacheEntry> entry(new CacheEntry);
    entry->version_ = version;
    entry->id_ = id;
    entry->directory_ = options_.directory + "/v1/entries/" + id;
    entry->seed_ = std::stoull(id.substr(0, 16), nullptr, 16);
    entry->is_read_only_ = is_read_only_;
    Outcome outcome = open_place(id, *entry);
    if (outcome == Outcome::kDamaged) {
      entry->data_fd_ = UniqueFd();  // release our own lock, which would prevent the eviction
      if (is_read_only_ || !evict(id)) return nullptr;
      continue;
    }
    if (outcome == Outcome::kAbsent && !existing && !is_read_only_) {
      int error = 0;
      outcome = make_place(id, *entry, error);
      if ((error == ENOSPC || error == EDQUOT) && make_room(kEntryBytes, true)) continue;
      entry->is_new_ = outcome == Outcome::kDone;
    }
    if (outcome == Outcome::kBusy) {
      ::usleep(1000);
      continue;
    }
    if (outcome != Outcome::kDone) return nullptr;
    return entry;
  }
  return nullptr;
}

// --- names ---

std::optional<std::string> Cache::recall(const std::string& name) const try {
  if (!unusable_.empty()) return std::nullopt;
  const std::string file = sha256_hex(name) + ".json";
  const auto text = read_small(owner_, names_.get(), file.c_str(), kMaxNameText);
  if (!text) return std::nullopt;
  const auto json = nlohmann::json::parse(*text);
  if (json.at("name").get_ref<const std::string&>() != name) return std::nullopt;
  return json.at("value").get<std::string>();
} catch (const nlohmann::json::exception&) {
  return std::nullopt;
}

bool Cache::remember(const std::string& name, const std::string& json) const {
  if (!unusable_.empty() || is_read_only_) return false;
  const std::string text =
      R"({"name":)" + json_string(name) + R"(,"value":)" + json_string(json) + "}";
  return text.size() <= kMaxNameText &&
         write_file(names_.get(), (sha256_hex(name) + ".json").c_str(), text);
}

void Cache::forget(const std::string& name) const {
  if (!unusable_.empty() || is_read_only_) return;
  ::unlinkat(names_.get(), (sha256_hex(name) + ".json").c_str(), 0);
}

// --- eviction ---

std::vector<Cache::Place> Cache::places() const {
  std::vector<Place> places;
  std::vector<std::string> names;
  try {
    names = names_in(options_.directory + "/v1/entries");
  } catch (const Error&) {
    return places;
  }
  for (const std::string& name : names) {
    if (!is_digest(name, kSha256Digits)) continue;
    Place place{name, 0, {}};
    for (const char* file : {"/data", "/map", "/id.json"}) {
      struct stat status {};
      if (::fstatat(entries_.get(), (name + file).c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 ||
          !S_ISREG(status.st_mode)) {
        place.used = {};
        continue;
      }
      place.bytes += bytes_on_disk(status);
      place.used = status.st_mtim;  // the last file is id.json
    }
    places.push_back(std::move(place));
  }
  std::ranges::sort(places,
                    [](const Place& a, const Place& b) { return is_before(a.used, b.used); });
  return places;
}

// Removes an entry that is not in use. Returns the bytes freed, or nullopt if it could not be
// removed.
std::optional<std::uint64_t> Cache::evict(const std::string& id) const {
  std::uint64_t bytes = 0;
  UniqueFd data;
  const UniqueFd directory(::openat(entries_.get(), id.c_str(), kDirectory | O_NOFOLLOW));
  if (!directory && errno == ENOENT) return 0;
  if (!directory && errno != ENOTDIR && errno != ELOOP) return std::nullopt;
  if (directory) {
    data = UniqueFd(::openat(directory.get(), "data", O_RDWR | kFile));
    if (!data && errno != ENOENT && errno != ELOOP && errno != EISDIR && errno != EACCES) {
      return std::nullopt;
    }
    if (data && is_of(owner_, data.get(), S_IFREG) && ::flock(data.get(), LOCK_EX | LOCK_NB) != 0) {
      return std::nullopt;
    }
    for (const char* file : {"data", "map", "id.json"}) {
      struct stat status {};
      if (::fstatat(directory.get(), file, &status, AT_SYMLINK_NOFOLLOW) == 0) {
        bytes += bytes_on_disk(status);
      }
    }
    if (!is_named(entries_.get(), id, directory.get())) return 0;  // another process was faster
  }
  const std::string trash = id + "." + random_name();
  if (::renameat(entries_.get(), id.c_str(), trash_.get(), trash.c_str()) != 0) return std::nullopt;
  discard(trash);
  return bytes;
}

bool Cache::make_room(std::uint64_t bytes, bool was_refused) {
  if (!unusable_.empty() || is_read_only_) return false;
  bytes += (8 * blocks_of(bytes) + kPage - 1) / kPage * kPage;
  if (options_.size != 0 && bytes > options_.size) return false;
  const auto disk_room = [this]() -> std::uint64_t {
    struct statvfs disk {};
    if (::fstatvfs(entries_.get(), &disk) != 0) return 0;
    const std::uint64_t kept = disk.f_blocks / 100 * options_.keep_free;
    return disk.f_bavail > kept ? (disk.f_bavail - kept) * disk.f_frsize : 0;
  };
  const std::lock_guard lock(mutex_);
  if (!was_refused && bytes <= granted_ && bytes <= disk_room()) {
    granted_ -= bytes;
    return true;
  }
  granted_ = 0;
  empty_trash();
  const std::vector<Place> all = places();
  std::uint64_t total = 0;
  for (const Place& place : all) total += place.bytes;
  const auto room = [&] {
    const std::uint64_t disk = disk_room();
    if (options_.size == 0) return disk;
    return std::min(disk, options_.size - std::min(total, options_.size));
  };
  for (auto place = all.begin(); place != all.end() && (was_refused || room() < bytes); ++place) {
    if (!evict(place->id)) continue;
    total -= place->bytes;
    was_refused = false;
  }
  const std::uint64_t left = room();
  if (was_refused || left < bytes) return false;
  granted_ = std::min(left - bytes, kMaxGrant);
  return true;
}

std::uint64_t Cache::prune(std::uint64_t bytes) {
  if (!unusable_.empty() || is_read_only_) return 0;
  const std::lock_guard lock(mutex_);
  granted_ = 0;
  empty_trash();
  const std::vector<Place> all = places();
  std::uint64_t total = 0;
  for (const Place& place : all) total += place.bytes;
  std::uint64_t freed = 0;
  for (const Place& place : all) {
    if (total <= bytes && bytes != 0) break;
    const auto evicted = evict(place.id);
    if (!evicted) continue;
    total -= std::min(total, place.bytes);
    freed += *evicted;
  }
  forget_names(bytes == 0 && places().empty());
  return freed;
}

// Removes the names of versions that have no entry, or all names.
void Cache::forget_names(bool all) const try {
  for (const std::string& file : names_in(options_.directory + "/v1/names")) {
    if (file == "." || file == "..") continue;
    bool goes = all;
    if (const auto text =
            goes ? std::nullopt : read_small(owner_, names_.get(), file.c_str(), kMaxNameText)) {
      const auto value = [](const nlohmann::json& json, const char* key) {
        const auto at = json.is_object() ? json.find(key) : json.end();
        return at != json.end() && at->is_string() ? at->get<std::string>() : std::string();
      };
      const auto known = nlohmann::json::parse(
          value(nlohmann::json::parse(*text, nullptr, false), "value"), nullptr, false);
      const auto version = parse_remote_version(value(known, "version"));
      goes = version && ::faccessat(entries_.get(), id_of(*version).c_str(), F_OK, 0) != 0;
    }
    if (goes) ::unlinkat(names_.get(), file.c_str(), 0);
  }
} catch (const Error&) {
}

bool Cache::remove(const std::string& id) {
  if (!unusable_.empty() || is_read_only_ || !is_digest(id, kSha256Digits)) return false;
  const std::lock_guard lock(mutex_);
  granted_ = 0;
  return evict(id).has_value();
}

std::vector<Cache::Listed> Cache::list() const {
  std::vector<Listed> listed;
  if (!unusable_.empty()) return listed;
  for (Place& place : places()) {
    const UniqueFd directory(::openat(entries_.get(), place.id.c_str(), kDirectory | O_NOFOLLOW));
    if (!directory || !is_of(owner_, directory.get(), S_IFDIR)) continue;
    const auto text = read_small(owner_, directory.get(), "id.json", kMaxIdText);
    auto version = text ? parse_remote_version(*text) : std::nullopt;
    if (!version || id_of(*version) != place.id) continue;
    const UniqueFd map(::openat(directory.get(), "map", O_RDONLY | kFile));
    const UniqueFd data(
        ::openat(directory.get(), "data", (is_read_only_ ? O_RDONLY : O_RDWR) | kFile));
    if (!map || !data || !is_of(owner_, map.get(), S_IFREG) ||
        !is_of(owner_, data.get(), S_IFREG)) {
      continue;
    }
    std::uint64_t there = 0;
    std::array<std::uint64_t, 8192> words{};
    const std::uint64_t blocks = blocks_of(version->size);
    for (std::uint64_t block = 0; block < blocks; block += words.size()) {
      const auto part = std::span(words).first(std::min(words.size(), blocks - block));
      if (pread_exact(map.get(), std::as_writable_bytes(part), sizeof(MapHeader) + 8 * block) !=
          0) {
        break;
      }
      there += part.size() - static_cast<std::uint64_t>(std::ranges::count(part, 0U));
    }
    const bool in_use = ::flock(data.get(), LOCK_EX | LOCK_NB) != 0;
    listed.push_back(
        {std::move(place.id), std::move(*version), place.bytes, there, place.used, in_use});
  }
  std::ranges::reverse(listed);
  return listed;
}

}  // namespace stfs
