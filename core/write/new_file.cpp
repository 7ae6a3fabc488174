#include "core/write/new_file.h"

#include "core/base/error.h"
#include "core/base/text.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace stfs {
namespace {

constexpr std::string_view kTemporary = ".stfs-new-";
constexpr const char* kInTheWay = "already exists: choose a new directory";

// Returns a random name. It does not contain the target's name, which may already have 255 bytes
// (NAME_MAX).
std::string temporary_name() {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number) {
    throw_errno(ErrorCode::kUnreadable, "", "getrandom", errno);
  }
  std::array<char, 20> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(number));
  return std::string(kTemporary) + digits.data();
}

// Calls `use` with each name in a directory. Needs neither memory nor a descriptor, because there
// may be none left.
template <class Use>
void for_each_name(int directory, const Use& use) {
  alignas(dirent64) std::array<char, 8192> entries;
  ::lseek(directory, 0, SEEK_SET);
  for (ssize_t end; (end = ::getdents64(directory, entries.data(), entries.size())) > 0;) {
    for (ssize_t at = 0; at < end;) {
      const auto* const entry = reinterpret_cast<const dirent64*>(entries.data() + at);
      use(entry->d_name);
      at += entry->d_reclen;
    }
  }
}

// Removes a file, or a directory and the files in it. `fd` is its descriptor.
void remove(int above, const char* name, int fd) {
  if (::unlinkat(above, name, 0) == 0 || errno != EISDIR) return;
  bool has_removed = true;
  while (has_removed) {  // some file systems skip names while others are removed
    has_removed = false;
    for_each_name(fd, [&](const char* file) {
      if (::unlinkat(fd, file, 0) == 0) has_removed = true;
    });
  }
  ::unlinkat(above, name, AT_REMOVEDIR);
}

// Removes the outputs that killed writers have left in a directory: no process holds their locks.
void remove_left(int above) {
  const UniqueFd directory(::openat(above, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return;
  for_each_name(directory.get(), [&](const char* name) {
    struct stat status {};
    if (!std::string_view(name).starts_with(kTemporary) ||
        ::fstatat(above, name, &status, AT_SYMLINK_NOFOLLOW) != 0 || status.st_uid != ::geteuid() ||
        (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))) {
      return;
    }
    const UniqueFd left(::openat(above, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (left && ::flock(left.get(), LOCK_EX | LOCK_NB) == 0) remove(above, name, left.get());
  });
}

}  // namespace

// Takes the signals that end the process, for as long as it exists.
class NewOutput::Watcher {
 public:
  explicit Watcher(NewOutput& output) : output_(output), end_(::eventfd(0, EFD_CLOEXEC)) {
    if (!end_) throw_errno(ErrorCode::kUnreadable, "", "eventfd", errno);
    pthread_sigmask(SIG_BLOCK, nullptr, &before_);
    try {
      signals_ = take_ending_signals(ErrorCode::kUnreadable);
      thread_ = start_thread([this] { wait(); });
    } catch (...) {
      pthread_sigmask(SIG_SETMASK, &before_, nullptr);
      throw;
    }
  }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;
  ~Watcher() {
    ::eventfd_write(end_.get(), 1);
    thread_.join();
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  void wait() {
    std::array<pollfd, 2> polled{{{signals_.get(), POLLIN, 0}, {end_.get(), POLLIN, 0}}};
    while (::poll(polled.data(), polled.size(), -1) < 0) {
      if (errno != EINTR) return;
    }
    signalfd_siginfo signal{};
    if ((polled[1].revents & POLLIN) != 0 ||
        ::read(signals_.get(), &signal, sizeof signal) != sizeof signal) {
      return;
    }
    output_.naming_.lock();  // for ever, because no name may appear from now on
    output_.discard();
    const int number = static_cast<int>(signal.ssi_signo);
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number);
    pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
    ::raise(number);
    ::_exit(128 + number);  // because process 1 of a container survives raise(3)
  }

  NewOutput& output_;
  UniqueFd end_;
  UniqueFd signals_;
  sigset_t before_{};
  std::thread thread_;
};

NewOutput::NewOutput(std::string path, SignalCleanup at_signal) : path_(std::move(path)) {
  if (at_signal == SignalCleanup::kNothing) return;
  try {
    watcher_ = std::make_unique<Watcher>(*this);
  } catch (const std::exception&) {
    // No descriptor, memory or thread is left. Continue: a signal then has the same effect as
    // SIGKILL.
  }
}

NewOutput::~NewOutput() {
  const std::lock_guard lock(naming_);
  discard();
}

void NewOutput::open_directory_above(const std::string& target) {
  const std::size_t slash = target.rfind('/');
  const std::string above = slash == std::string::npos ? "." : target.substr(0, slash + 1);
  name_ = target.substr(slash + 1);  // npos + 1 is 0
  above_ = UniqueFd(::open(above.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!above_ && errno == EACCES) {  // it may be writable without being readable
    above_ = UniqueFd(::open(above.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  }
  if (!above_) {
    throw_errno(ErrorCode::kUnreadable, path_, "directory " + in_quotes(above), errno);
  }
  remove_left(above_.get());
}

void NewOutput::begin_named(const std::function<int(const char* name)>& make) {
  const std::lock_guard lock(naming_);
  for (int left = 100;; --left) {
    temporary_ = temporary_name();
    fd_ = UniqueFd(make(temporary_.c_str()));
    // ENOENT: another writer that removes outputs of killed writers has removed it before it was
    // locked.
    const int error = !fd_ ? errno : is_mine() ? 0 : ENOENT;
    if (error == 0) return;
    temporary_.clear();
    fd_ = UniqueFd();
    if (left == 0 || (error != EEXIST && error != ENOENT)) {
      throw_errno(ErrorCode::kUnreadable, path_, "a temporary name beside it", error);
    }
  }
}

// Locks the output with the temporary name. Returns false if the name now belongs to another
// writer.
bool NewOutput::is_mine() const {
  if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
  struct stat made {
  }, named{};
  return ::fstat(fd_.get(), &made) == 0 &&
         ::fstatat(above_.get(), temporary_.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         made.st_ino == named.st_ino;
}

void NewOutput::discard() {
  if (!temporary_.empty()) remove(above_.get(), temporary_.c_str(), fd_.get());
  temporary_.clear();
}

void NewOutput::sync_directory_above() const {
  // EBADF: the directory was opened with O_PATH. EINVAL: the file system cannot sync directories.
  if (::fsync(above_.get()) != 0 && errno != EBADF && errno != EINVAL) fail(errno);
}

void NewOutput::fail(int error) const {
  if (error == EEXIST) {
    throw Error(ErrorCode::kUsage, path_, "already exists: --force replaces it");
  }
  throw_errno(ErrorCode::kUnreadable, path_, "", error);
}

NewFile::NewFile(const std::string& path, Existing existing, SignalCleanup at_signal, Begin begin)
    : NewOutput(path, at_signal), existing_(existing) {
  struct stat status {};
  const bool is_link = ::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
  if (const std::string link = dangling_link(path); !link.empty()) {
    throw Error(ErrorCode::kUnreadable, path_, link + ": choose another name");
  }
  // Let the kernel decide whether this link may be followed (fs.protected_symlinks).
  if (is_link && !UniqueFd(::open(path.c_str(), O_PATH | O_CLOEXEC))) fail(errno);
  open_directory_above(is_link ? absolute_path(path) : path);
  const bool exists = ::fstatat(above_.get(), name_.c_str(), &status, 0) == 0;
  if (name_.empty() || (exists && !S_ISREG(status.st_mode))) {
    throw Error(ErrorCode::kUnreadable, path_,
                path_.empty() ? "the name is empty: choose a file name"
                : name_.empty() || S_ISDIR(status.st_mode)
                    ? "a directory: choose a file in it"
                    : "not a regular file: choose another name");
  }
  if (exists && existing_ == Existing::kKeep) fail(EEXIST);
  if (begin == Begin::kUnnamed) begin_unnamed();
  if (fd_) return;
  begin_named([this](const char* name) {
    return ::openat(above_.get(), name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
  });
}

// Leaves fd_ empty if O_TMPFILE is not supported, or without /proc, which link() needs.
void NewFile::begin_unnamed() {
  if (::access("/proc/self/fd", F_OK) != 0) return;
  fd_ = UniqueFd(::openat(above_.get(), ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666));
  // A kernel or file system without O_TMPFILE returns one of these.
  if (!fd_ && errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) fail(errno);
  if (fd_) ::flock(fd_.get(), LOCK_EX | LOCK_NB);  // for the time while it has a temporary name
}

void NewFile::commit() {
  if (::fsync(fd_.get()) != 0) fail(errno);
  {
    const std::lock_guard lock(naming_);
    const int error = give_name();
    if (error != 0) discard();
    if (error != 0) fail(error);
    temporary_.clear();
  }
  sync_directory_above();
}

// link() and give_name() return 0 or an errno.
int NewFile::link(const std::string& name) const {
  const std::string unnamed = "/proc/self/fd/" + std::to_string(fd_.get());
  const int result =
      ::linkat(AT_FDCWD, unnamed.c_str(), above_.get(), name.c_str(), AT_SYMLINK_FOLLOW);
  return result == 0 ? 0 : errno;
}

// With kKeep, also keeps a file that has appeared since the constructor checked the name.
int NewFile::give_name() {
  const int above = above_.get();
  if (temporary_.empty()) {
    int error = link(name_);
    if (error != EEXIST || existing_ == Existing::kKeep) return error;
    std::string name;
    do {
      name = temporary_name();
      error = link(name);
    } while (error == EEXIST);
    if (error != 0) return error;
    temporary_ = name;
  }
  const auto result = [](int status) { return status == 0 ? 0 : errno; };
  const unsigned flags = existing_ == Existing::kKeep ? RENAME_NOREPLACE : 0;
  const int error = result(::renameat2(above, temporary_.c_str(), above, name_.c_str(), flags));
  if (error != EINVAL || flags == 0) return error;
  // The file system does not support RENAME_NOREPLACE (NFS). link(2) does not replace files either.
  if (::linkat(above, temporary_.c_str(), above, name_.c_str(), 0) != 0) return errno;
  return result(::unlinkat(above, temporary_.c_str(), 0));
}

NewDirectory::NewDirectory(const std::string& path, SignalCleanup at_signal)
    : NewOutput(path.substr(0, std::max<std::size_t>(path.find_last_not_of('/') + 1, 1)),
                at_signal) {
  std::error_code error;
  const auto status = std::filesystem::symlink_status(path_, error);
  if (std::filesystem::exists(status) && (!std::filesystem::is_directory(status) ||
                                          !std::filesystem::is_empty(path_, error) || error)) {
    throw Error(ErrorCode::kUsage, path_, kInTheWay);
  }
  open_directory_above(path_);
  begin_named([this](const char* name) {
    if (::mkdirat(above_.get(), name, 0777) != 0) return -1;
    const int fd = ::openat(above_.get(), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const int failure = errno;
    if (fd < 0) ::unlinkat(above_.get(), name, AT_REMOVEDIR);
    errno = failure;
    return fd;
  });
}

UniqueFd NewDirectory::create(const std::string& name) {
  const std::lock_guard lock(naming_);
  UniqueFd file(::openat(fd_.get(), name.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666));
  if (!file) throw_errno(ErrorCode::kUnreadable, path_ + "/" + name, "", errno);
  return file;
}

void NewDirectory::finish(const UniqueFd& file, const std::string& name) const {
  if (::fsync(file.get()) != 0) {
    throw_errno(ErrorCode::kUnreadable, path_ + "/" + name, "", errno);
  }
}

UniqueFd NewDirectory::open(const std::string& name) const {
  UniqueFd file(::openat(fd_.get(), name.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) throw_errno(ErrorCode::kUnreadable, path_ + "/" + name, "", errno);
  return file;
}

void NewDirectory::remove(const std::string& name) const {
  if (::unlinkat(fd_.get(), name.c_str(), 0) != 0) {
    throw_errno(ErrorCode::kUnreadable, path_ + "/" + name, "", errno);
  }
}

void NewDirectory::commit() {
  if (::fsync(fd_.get()) != 0 && errno != EINVAL) fail(errno);
  {
    const std::lock_guard lock(naming_);
    // This replaces an empty directory, but not a file or any other directory.
    const int above = above_.get();
    if (::renameat(above, temporary_.c_str(), above, name_.c_str()) != 0) {
      if (errno == EEXIST || errno == ENOTEMPTY || errno == ENOTDIR) {
        throw Error(ErrorCode::kUsage, path_, kInTheWay);
      }
      fail(errno);
    }
    temporary_.clear();
  }
  sync_directory_above();
}

}  // namespace stfs
