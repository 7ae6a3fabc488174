#include "core/base/home.h"

#include "core/base/posix.h"

#include <pwd.h>
#include <unistd.h>

#include <array>

namespace stfs {

std::string home_directory() {
  if (std::string home = environment("HOME"); home.starts_with('/')) return home;
  std::array<char, 16384> buffer{};
  passwd user{};
  passwd* found = nullptr;
  if (::getpwuid_r(::geteuid(), &user, buffer.data(), buffer.size(), &found) != 0 ||
      found == nullptr || found->pw_dir == nullptr || *found->pw_dir != '/') {
    return "";
  }
  return found->pw_dir;
}

std::string with_home(const std::string& path) {
  if (path != "~" && !path.starts_with("~/")) return path;
  const std::string home = home_directory();
  return home.empty() ? path : home + path.substr(1);
}

}  // namespace stfs
