// Files and directories for tests: all of it throws std::system_error where the system refuses.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::test {

// A new empty directory under $TMPDIR or /tmp, removed with everything in it at the end of scope.
// It can be neither copied nor moved.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// The whole of a file, read to its end whatever size stat reports.
std::string read_file(const std::filesystem::path& path);

// Writes `bytes` to a file, in place if it is already there (the inode stays the same).
void write_file(const std::filesystem::path& path, std::string_view bytes);

// The names in a directory without "." and "..", sorted bytewise. A name listed twice is twice in
// the answer.
std::vector<std::string> names_in(const std::filesystem::path& directory);

// The descriptors that this process has open, and the one that it takes to count them.
std::size_t open_descriptors();

// The value of an extended attribute, or nothing with errno set.
std::optional<std::string> xattr(const std::filesystem::path& path, const char* name);

}  // namespace stfs::test
