#include "tests/support/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

namespace stfs::test {
namespace {

[[noreturn]] void throw_errno(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

struct CloseFd {
  int fd;
  ~CloseFd() { ::close(fd); }
};

}  // namespace

TempDir::TempDir() {
  std::string name = (std::filesystem::temp_directory_path() / "stfs-test-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw_errno(name);
  path_ = name;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string read_file(const std::filesystem::path& path) {
  const CloseFd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) throw_errno(path.string());
  std::string bytes;
  std::string block(1 << 20, '\0');
  for (;;) {
    const ssize_t got = ::read(file.fd, block.data(), block.size());
    if (got < 0) throw_errno(path.string());
    if (got == 0) return bytes;
    bytes.append(block, 0, static_cast<std::size_t>(got));
  }
}

void write_file(const std::filesystem::path& path, std::string_view bytes) {
  const CloseFd file{::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
  if (file.fd < 0) throw_errno(path.string());
  while (!bytes.empty()) {
    const ssize_t put = ::write(file.fd, bytes.data(), bytes.size());
    if (put < 0) throw_errno(path.string());
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
}

std::vector<std::string> names_in(const std::filesystem::path& directory) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(directory.c_str()), ::closedir);
  if (!dir) throw_errno(directory.string());
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(dir.get());
    if (entry == nullptr) break;
    if (std::strcmp(entry->d_name, ".") != 0 && std::strcmp(entry->d_name, "..") != 0)
      names.emplace_back(entry->d_name);
  }
  if (errno != 0) throw_errno(directory.string());
  std::sort(names.begin(), names.end());
  return names;
}

std::size_t open_descriptors() { return names_in("/proc/self/fd").size(); }

std::optional<std::string> xattr(const std::filesystem::path& path, const char* name) {
  std::string value(1 << 16, '\0');  // XATTR_SIZE_MAX
  const ssize_t size = ::lgetxattr(path.c_str(), name, value.data(), value.size());
  if (size < 0) return std::nullopt;
  value.resize(static_cast<std::size_t>(size));
  return value;
}

}  // namespace stfs::test
