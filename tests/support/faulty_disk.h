// A disk that fails, stalls, is slow or returns stale attributes (tests/support/faulty_fs).
#pragma once

#include "tests/support/files.h"
#include "tests/support/mounted.h"
#include "tests/support/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>

namespace stfs::test {

// A directory, which is mounted through tests/support/faulty_fs.
class FaultyDisk {
 public:
  // `cache` is an argument of faulty_fs: "uncached", "attributes", "all", "clock".
  explicit FaultyDisk(const std::filesystem::path& directory, const std::string& cache = "uncached")
      : path_(new_directory(dir_ / "disk")), server_({STFS_FAULTY_FS, path_, directory, cache}) {
    std::filesystem::permissions(dir_.path(), std::filesystem::perms(0755));
    if (!eventually([this] { return !server_.running() || !mounts_at(path_).empty(); }) ||
        !server_.running()) {
      throw std::runtime_error("faulty_fs did not mount: " + server_.err());
    }
  }
  ~FaultyDisk() {
    if (server_.running()) tell("release");
    unmount_all(path_);
  }

  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  void tell(const std::string& line) const {
    const int fd = ::open((path_ / ("tell " + line)).c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_GE(fd, 0) << line << ": " << std::strerror(errno);
    ::close(fd);
  }
  void fail_or_stall(const char* verb, std::string_view name, std::size_t begin,
                     std::size_t end) const {
    tell(std::string(verb) + " " + std::string(name) + " " + std::to_string(begin) + " " +
         std::to_string(end));
  }
  // Kills the server: from then on every call fails with ENOTCONN.
  void die() {
    server_.signal(SIGKILL);
    server_.wait();
  }
  // Waits until `reads` reads stall. Returns false if they do not.
  [[nodiscard]] bool stalls(int reads) const {
    return eventually([&] { return waiting() >= reads; });
  }
  int waiting() const { return std::stoi(read_file(path_ / "control")); }

 private:
  static std::filesystem::path new_directory(const std::filesystem::path& directory) {
    std::filesystem::create_directory(directory);
    return directory;
  }

  TempDir dir_;
  std::filesystem::path path_;
  Process server_;
};

// Reads a range in one call. Returns 0 or an errno.
inline int read_range(const std::filesystem::path& path, std::size_t at, std::size_t length,
                      std::string& out) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  out.assign(length, '\0');
  std::size_t filled = 0;
  int error = 0;
  while (filled < length && error == 0) {
    const ssize_t got =
        ::pread(fd, out.data() + filled, length - filled, static_cast<off_t>(at + filled));
    if (got < 0) error = errno;
    if (got == 0) error = ENODATA;  // the file ends too early
    if (got > 0) filled += static_cast<std::size_t>(got);
  }
  ::close(fd);
  return error;
}

}  // namespace stfs::test
