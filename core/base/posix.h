// Wrappers of system calls. Functions that loading uses throw Error; functions that serving uses
// return 0 or an errno.
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

// Owns a file descriptor, which the destructor closes. Without one, get() returns -1.
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

// strerror(3), for instance "No such file or directory".
std::string errno_text(int error);

// Throws an Error with the message "subject: errno_text", or only "errno_text" if `subject` is "".
[[noreturn]] void throw_errno(ErrorCode code, const std::string& place, const std::string& subject,
                              int error);

// Throws Error kAbsent for ENOENT, else kUnreadable, for a file that cannot be opened. If the cause
// is known, the message ends with what to do about it.
[[noreturn]] void throw_unreadable(const std::string& path, int error);

// Returns a text such as "a symbolic link to "../blobs/0a1b", which is missing", or "" if `path` is
// not a dangling symbolic link.
std::string dangling_link(const std::string& path);

// Opens a regular file for reading; follows symbolic links. Throws kAbsent or kUnreadable. Does not
// open any other kind of file, because opening a FIFO may block, and opening a device may act on
// it.
UniqueFd open_regular(const std::string& path);

// fstat(2). Throws kUnreadable.
struct stat stat_of(int fd, const std::string& path);

// Calls pread(2) until `buffer` is full. Returns 0 or an errno; ESTALE if the file ends first,
// because then it was truncated after it was opened. Sets `filled` to the number of bytes read,
// even on an error.
int pread_exact(int fd, std::span<std::byte> buffer, std::uint64_t offset,
                std::size_t* filled = nullptr);

// Calls write(2) until all of `bytes` are written. Returns 0 or an errno; EFBIG, without a signal,
// if the file would exceed the limit on its size (file_limit.h).
int write_exact(int fd, std::span<const std::byte> bytes);

// getxattr(2); follows symbolic links. Returns nullopt if the file has no attribute of this name or
// its file system does not support attributes. Throws kUnreadable.
std::optional<std::string> extended_attribute(const std::string& path, const char* name);

// Returns the content of a small file. Throws kAbsent or kUnreadable; kUnreadable also if the file
// has more than `limit` bytes.
std::string read_file(const std::string& path, std::uint64_t limit);

// Returns the names in a directory, unsorted, including "." and "..". Throws kAbsent or
// kUnreadable.
std::vector<std::string> names_in(const std::string& path);

// Starts a thread in which all signals are blocked. Throws Error kMountFailed if the system refuses
// the thread.
std::thread start_thread(std::function<void()> body);

// Runs work(0) on this thread and work(1) to work(count - 1) on other threads, and returns when all
// have returned. If the system refuses a thread, its call and the later ones are not made, so
// `work` should take its items from a shared queue. Throws the first exception that a call threw.
void on_threads(std::size_t count, const std::function<void(std::size_t)>& work);

// Returns an environment variable, or "" if it is not set.
std::string environment(const char* name);

// Blocks SIGHUP, SIGINT and SIGTERM in this thread, and so in the threads that it starts later, and
// returns a signalfd(2) from which they are read. SIGHUP or SIGINT that the process inherited as
// ignored (nohup(1), a background job) stays ignored. Throws an Error with the code `failure`.
UniqueFd take_ending_signals(ErrorCode failure);

// realpath(3): returns an absolute path without symbolic links. Throws kAbsent or kUnreadable.
std::string absolute_path(const std::string& path);

}  // namespace stfs
