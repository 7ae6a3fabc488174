// Files and directories for tests. All functions throw std::system_error if a system call fails.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::test {

// A new empty directory under $TMPDIR or /tmp, removed with its contents at the end of the scope.
// Neither copyable nor movable.
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

// Returns the content of a file, read to its end whatever size stat(2) reports.
std::string read_file(const std::filesystem::path& path);

// Writes `bytes` to a file; an existing file keeps its inode.
void write_file(const std::filesystem::path& path, std::string_view bytes);

// Returns the names in a directory without "." and "..", sorted bytewise. A name that is listed
// twice is twice in the result.
std::vector<std::string> names_in(const std::filesystem::path& directory);

// Returns the number of open descriptors of this process, including the one that counts them.
std::size_t open_descriptors();

// Returns the value of an extended attribute, or nullopt with errno set.
std::optional<std::string> xattr(const std::filesystem::path& path, const char* name);

}  // namespace stfs::test
