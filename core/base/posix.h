// The system calls that core makes, with errno translated into Error in this one place.
// Thread safety: all functions are; a UniqueFd is owned by one thread at a time.
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

// Owns a file descriptor and closes it. -1 means none.
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

// "No such file or directory", for the calling thread's locale.
std::string errno_text(int error);

// An Error whose message is `subject: text of errno` (or the text alone when subject is empty).
[[noreturn]] void throw_errno(ErrorCode code, const std::string& place, const std::string& subject,
                              int error);

// Opens a regular file for reading. Symbolic links are followed. Anything else (a directory, a
// FIFO, a device) is refused with kUnreadable and is never opened, so that a FIFO cannot block and
// a device is not touched.
UniqueFd open_regular(const std::string& path);

// fstat that throws kUnreadable.
struct stat stat_of(int fd, const std::string& path);

// Fills `buffer` from `offset` on; a short read is repeated, EINTR is retried.
// Returns 0, or errno; ESTALE when the file ends first (it has been truncated since it was opened).
// `filled` gets how many bytes were read, also when the rest could not be.
int pread_exact(int fd, std::span<std::byte> buffer, std::uint64_t offset,
                std::size_t* filled = nullptr);

// Writes all of `bytes`; EINTR is retried. Returns 0 or errno.
int write_exact(int fd, std::span<const std::byte> bytes);

// An extended attribute of the file at `path`; none when it has none of that name, or its file
// system has none at all. Throws kUnreadable.
std::optional<std::string> extended_attribute(const std::string& path, const char* name);

// A whole small file as a string (an index file). Throws kUnreadable; refuses over `limit` bytes.
std::string read_file(const std::string& path, std::uint64_t limit);

// The names in a directory, in any order, "." and ".." too. Throws kUnreadable.
std::vector<std::string> names_in(const std::string& path);

// Starts a thread that takes no signals. Throws Error kMountFailed when there are too many.
std::thread start_thread(std::function<void()> body);

// SIGHUP, SIGINT and SIGTERM as a signalfd(2); they are blocked from then on, in this thread and in
// those that it starts, so that none comes at a wrong moment. A signal that the caller made this
// process ignore (nohup(1), a shell's background) stays ignored, except SIGTERM. Throws Error
// `failure`.
UniqueFd take_ending_signals(ErrorCode failure);

// The absolute path with symbolic links resolved. Throws kUnreadable.
std::string absolute_path(const std::string& path);

}  // namespace stfs
