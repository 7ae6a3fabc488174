// Wrappers of system calls. Functions for loading throw Error; functions for serving return 0 or an
// errno.
//
// Thread safety: the functions may be called from any thread; one thread at a time uses a UniqueFd.
#pragma once

#include "core/base/error.h"

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace stfs {

// Owns a file descriptor and closes it; -1 when empty.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd();

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// strerror(3): "No such file or directory".
std::string errno_text(int error);

// Throws an Error with the message "subject: errno_text", or the text alone if `subject` is empty.
[[noreturn]] void throw_errno(ErrorCode code, const std::string& place, const std::string& subject,
                              int error);

// Throws kAbsent or kUnreadable for a file that cannot be opened, with what to do about it where
// that is known.
[[noreturn]] void throw_unreadable(const std::string& path, int error);

// "a symbolic link to "../blobs/0a1b", which is missing"; "" for any other path.
std::string dangling_link(const std::string& path);

// Opens a regular file for reading; follows symbolic links. Throws kUnreadable for any other kind
// of file, without opening it: opening a FIFO may block, and opening a device may act on it.
UniqueFd open_regular(const std::string& path);

// fstat(2). Throws kUnreadable.
struct stat stat_of(int fd, const std::string& path);

// pread(2) until `buffer` is full. Returns 0 or an errno; ESTALE when the file ends first, since it
// was truncated after it was opened. Sets `filled` to the bytes read, on an error too.
int pread_exact(int fd, std::span<std::byte> buffer, std::uint64_t offset,
                std::size_t* filled = nullptr);

// write(2) until all of `bytes` are written. Returns 0 or an errno.
int write_exact(int fd, std::span<const std::byte> bytes);

// getxattr(2); follows symbolic links. Returns nullopt when the file has no attribute of this name
// or its file system has no attributes. Throws kUnreadable.
std::optional<std::string> extended_attribute(const std::string& path, const char* name);

// The content of a small file. Throws kUnreadable, also for a file over `limit` bytes.
std::string read_file(const std::string& path, std::uint64_t limit);

// The names in a directory, unsorted, with "." and "..". Throws kUnreadable.
std::vector<std::string> names_in(const std::string& path);

// Starts a thread in which all signals are blocked. Throws Error kMountFailed when the system
// refuses a thread.
std::thread start_thread(std::function<void()> body);

// Runs work(0) on this thread and work(1) to work(count - 1) on others, and returns when all are
// done; fewer where the system refuses threads. Throws the first failure.
void on_threads(std::size_t count, const std::function<void(std::size_t)>& work);

// An environment variable; "" when it is not set.
std::string environment(const char* name);

// Blocks SIGHUP, SIGINT and SIGTERM in this thread, and so in the threads that it starts, and
// returns a signalfd(2) that reads them. A signal that the process inherited as ignored (nohup(1),
// a background job) stays ignored, except SIGTERM. Throws Error `failure`.
UniqueFd take_ending_signals(ErrorCode failure);

// realpath(3): absolute, without symbolic links. Throws kUnreadable.
std::string absolute_path(const std::string& path);

}  // namespace stfs
