// A disk that fails and stalls where a test says so.
#pragma once

#include "tests/support/mounted.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>

namespace stfs::test {

// A directory that is seen through tests/support/faulty_fs.
class FaultyDisk {
 public:
  explicit FaultyDisk(const std::filesystem::path& directory)
      : path_(made(dir_ / "disk")), server_({STFS_FAULTY_FS, path_, directory}) {
    std::filesystem::permissions(dir_.path(), std::filesystem::perms(0755));
    if (!eventually([this] { return !server_.running() || !mounts_at(path_).empty(); }) ||
        !server_.running()) {
      throw std::runtime_error("faulty_fs did not mount: " + server_.err());
    }
  }
  ~FaultyDisk() {
    tell("release");
    unmount_all(path_);
  }

  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  void tell(const std::string& line) const {
    const int fd = ::open((path_ / "control").c_str(), O_WRONLY | O_CLOEXEC);
    EXPECT_EQ(::write(fd, line.data(), line.size()), static_cast<ssize_t>(line.size())) << line;
    ::close(fd);
  }
  void fail_or_stall(const char* verb, std::string_view name, std::size_t begin,
                     std::size_t end) const {
    tell(std::string(verb) + " " + std::string(name) + " " + std::to_string(begin) + " " +
         std::to_string(end));
  }
  // Waits until as many reads wait for the disk.
  [[nodiscard]] bool stalls(int reads) const {
    return eventually([&] { return waiting() >= reads; });
  }
  int waiting() const { return std::stoi(read_file(path_ / "control")); }

 private:
  static std::filesystem::path made(const std::filesystem::path& directory) {
    std::filesystem::create_directory(directory);
    return directory;
  }

  TempDir dir_;
  std::filesystem::path path_;
  Process server_;
};

}  // namespace stfs::test
