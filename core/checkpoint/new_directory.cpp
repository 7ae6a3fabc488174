#include "core/checkpoint/new_directory.h"

#include "core/base/error.h"
#include "core/base/text.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

namespace stfs {
namespace {

constexpr const char* kInTheWay = "there is something of this name: name a new directory";

}  // namespace

NewDirectory::NewDirectory(std::string path, bool cleans_up) : path_(std::move(path)) {
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
  const std::size_t slash = path_.rfind('/');
  parent_ = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
  std::error_code error;
  const auto status = std::filesystem::symlink_status(path_, error);
  const bool is_there = std::filesystem::exists(status);
  if (is_there && (!std::filesystem::is_directory(status) ||
                   !std::filesystem::is_empty(path_, error) || error)) {
    throw Error(ErrorCode::kUsage, path_, kInTheWay);
  }
  if (cleans_up) at_signal_ = std::make_unique<AtSignal>();
  int result = 0;
  std::string temporary;
  do {
    temporary = (std::filesystem::path(parent_) / temporary_name()).string();
    result = ::mkdir(temporary.c_str(), 0777);
  } while (result != 0 && errno == EEXIST);
  if (result != 0) {
    throw_errno(ErrorCode::kUnreadable, path_, "directory " + in_quotes(parent_), errno);
  }
  temporary_ = temporary;
  try {
    if (at_signal_) {
      at_signal_->watch([temporary] {
        std::error_code ignored;
        std::filesystem::remove_all(temporary, ignored);
      });
    }
    directory_ = UniqueFd(::open(temporary_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!directory_) throw_errno(ErrorCode::kUnreadable, path_, "", errno);
  } catch (...) {
    ::rmdir(temporary_.c_str());
    throw;
  }
}

NewDirectory::~NewDirectory() {
  std::error_code ignored;
  directory_ = UniqueFd();  // remove_all() needs a descriptor, and there may be no other
  if (!temporary_.empty()) std::filesystem::remove_all(temporary_, ignored);
}

UniqueFd NewDirectory::create(const std::string& name) const {
  UniqueFd file(::openat(directory_.get(), name.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC,
                         0666));
  if (!file) throw_errno(ErrorCode::kUnreadable, path_ + "/" + name, "", errno);
  return file;
}

void NewDirectory::finish(const UniqueFd& file, const std::string& name) const {
  if (::fsync(file.get()) != 0) {
    throw_errno(ErrorCode::kUnreadable, path_ + "/" + name, "", errno);
  }
}

UniqueFd NewDirectory::open(const std::string& name) const {
  UniqueFd file(::openat(directory_.get(), name.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) throw_errno(ErrorCode::kUnreadable, path_ + "/" + name, "", errno);
  return file;
}

void NewDirectory::remove(const std::string& name) const {
  if (::unlinkat(directory_.get(), name.c_str(), 0) != 0) {
    throw_errno(ErrorCode::kUnreadable, path_ + "/" + name, "", errno);
  }
}

void NewDirectory::commit() {
  if (::fsync(directory_.get()) != 0 && errno != EINVAL) {
    throw_errno(ErrorCode::kUnreadable, path_, "", errno);
  }
  {
    // A signal must not remove what has its name.
    const BlockedSignals blocked;
    // An empty directory is replaced; a file or another directory is not.
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
      if (errno == EEXIST || errno == ENOTEMPTY || errno == ENOTDIR) {
        throw Error(ErrorCode::kUsage, path_, kInTheWay);
      }
      throw_errno(ErrorCode::kUnreadable, path_, "", errno);
    }
    temporary_.clear();
    at_signal_.reset();
  }
  const UniqueFd parent(::open(parent_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (parent && ::fsync(parent.get()) != 0 && errno != EINVAL) {
    throw_errno(ErrorCode::kUnreadable, path_, "", errno);
  }
}

}  // namespace stfs
