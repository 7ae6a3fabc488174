#include "core/checkpoint/new_file.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/checkpoint/at_signal.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <utility>

namespace stfs {
NewFile::NewFile(const std::string& path, Existing existing, Begin begin)
    : path_(path), existing_(existing) {
  struct stat status {};
  const bool is_link = ::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
  if (const std::string link = dangling_link(path); !link.empty()) {
    throw Error(ErrorCode::kUnreadable, path_, link + ": name another");
  }
  // The kernel decides whether this link may be followed (fs.protected_symlinks).
  if (is_link && !UniqueFd(::open(path.c_str(), O_PATH | O_CLOEXEC))) fail(errno);
  const std::string target = is_link ? absolute_path(path) : path;
  const std::size_t slash = target.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : target.substr(0, slash + 1);
  name_ = target.substr(slash + 1);  // npos + 1 is 0
  directory_ = UniqueFd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory_ && errno == EACCES) {  // not readable, but perhaps writable
    directory_ = UniqueFd(::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  }
  if (!directory_) {
    throw_errno(ErrorCode::kUnreadable, path_, "directory " + in_quotes(directory), errno);
  }
  const bool exists = ::fstatat(directory_.get(), name_.c_str(), &status, 0) == 0;
  if (name_.empty() || (exists && !S_ISREG(status.st_mode))) {
    throw Error(ErrorCode::kUnreadable, path_,
                path_.empty()                              ? "the name is empty: name a file"
                : name_.empty() || S_ISDIR(status.st_mode) ? "a directory: name a file in it"
                                                           : "not a regular file: name another");
  }
  if (exists && existing_ == Existing::kKeep) fail(EEXIST);
  if (begin == Begin::kUnnamed) begin_unnamed();
  if (!fd_) begin_named();
}

NewFile::~NewFile() { discard(); }

// Leaves fd_ empty without support for O_TMPFILE, or without /proc, which link() needs.
void NewFile::begin_unnamed() {
  if (::access("/proc/self/fd", F_OK) != 0) return;
  fd_ = UniqueFd(::openat(directory_.get(), ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666));
  // A kernel or file system without O_TMPFILE returns one of these.
  if (!fd_ && errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) fail(errno);
}

void NewFile::begin_named() {
  // Before the file: no signal may come between the two.
  try {
    at_signal_ = std::make_unique<AtSignal>();
  } catch (const std::exception&) {
    // No descriptor or memory: go on; a signal will leave the temporary file behind.
  }
  do {
    temporary_ = temporary_name();
    fd_ = UniqueFd(::openat(directory_.get(), temporary_.c_str(),
                            O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666));
  } while (!fd_ && errno == EEXIST);
  if (!fd_) {
    temporary_.clear();
    fail(errno);
  }
  try {
    if (at_signal_) {
      at_signal_->watch([directory = directory_.get(), name = temporary_] {
        ::unlinkat(directory, name.c_str(), 0);
      });
    };
  } catch (const std::exception&) {
    at_signal_.reset();  // no thread: as above
  }
}

void NewFile::commit() {
  if (::fsync(fd_.get()) != 0) fail(errno);
  {
    // A signal must not end the process between linkat(2) and renameat2(2).
    const BlockedSignals blocked;
    if (temporary_.empty()) link();
    if (const int error = rename()) {
      discard();
      fail(error);
    }
    temporary_.clear();
  }
  // EBADF: opened with O_PATH. EINVAL: the file system cannot sync directories.
  if (::fsync(directory_.get()) != 0 && errno != EBADF && errno != EINVAL) fail(errno);
}

void NewFile::link() {
  const std::string unnamed = "/proc/self/fd/" + std::to_string(fd_.get());
  std::string name;
  int result = 0;
  do {
    name = temporary_name();
    result = ::linkat(AT_FDCWD, unnamed.c_str(), directory_.get(), name.c_str(), AT_SYMLINK_FOLLOW);
  } while (result != 0 && errno == EEXIST);
  if (result != 0) fail(errno);
  temporary_ = std::move(name);
}

// Returns 0 or an errno. A file that appeared since the constructor looked is kept too.
int NewFile::rename() {
  const int directory = directory_.get();
  const unsigned flags = existing_ == Existing::kKeep ? RENAME_NOREPLACE : 0;
  const auto result = [](int status) { return status == 0 ? 0 : errno; };
  const int error =
      result(::renameat2(directory, temporary_.c_str(), directory, name_.c_str(), flags));
  if (error != EINVAL || flags == 0) return error;
  // A file system without RENAME_NOREPLACE (NFS): link(2) replaces nothing either.
  if (::linkat(directory, temporary_.c_str(), directory, name_.c_str(), 0) != 0) return errno;
  return result(::unlinkat(directory, temporary_.c_str(), 0));
}

void NewFile::discard() {
  if (!temporary_.empty()) ::unlinkat(directory_.get(), temporary_.c_str(), 0);
  temporary_.clear();
}

void NewFile::fail(int error) const {
  if (error == EEXIST) {
    throw Error(ErrorCode::kUsage, path_, "there is a file of this name: --force replaces it");
  }
  throw_errno(ErrorCode::kUnreadable, path_, "", error);
}

}  // namespace stfs
