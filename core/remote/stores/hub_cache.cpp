#include "core/remote/stores/hub_cache.h"

#include "core/base/error.h"
#include "core/base/sha256.h"
#include "core/base/text.h"
#include "core/remote/http/url.h"

#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace stfs {
namespace {

namespace fs = std::filesystem;

// Returns the directory of a model, or "" if there is no home directory.
std::string model_directory(const std::string& id) {
  const std::string cache = hub_cache_directory();
  const std::size_t slash = id.find('/');
  return cache.empty() ? ""
                       : cache + "/models--" + id.substr(0, slash) + "--" + id.substr(slash + 1);
}

bool is_regular(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

// Returns true if /etc/passwd has another user with this primary group.
bool has_other_user(gid_t gid, uid_t uid) {
  std::array<char, 4096> buffer{};
  passwd entry{};
  passwd* found = nullptr;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> users(std::fopen("/etc/passwd", "re"),
                                                              &std::fclose);
  int error = users ? 0 : ENOENT;
  while (error == 0) {
    error = ::fgetpwent_r(users.get(), &entry, buffer.data(), buffer.size(), &found);
    if (error == 0 && entry.pw_gid == gid && entry.pw_uid != uid) return true;
  }
  return error != ENOENT;  // ENOENT: the end
}

// Returns true if the group has the user's name and the user is its only member. useradd(8) makes
// such groups, and with them the umask is often 002.
bool is_private_group(gid_t gid, uid_t uid) {
  std::array<char, 16384> user_buffer{}, group_buffer{};
  passwd user{};
  passwd* found_user = nullptr;
  group entry{};
  group* found_group = nullptr;
  if (::getpwuid_r(uid, &user, user_buffer.data(), user_buffer.size(), &found_user) != 0 ||
      ::getgrgid_r(gid, &entry, group_buffer.data(), group_buffer.size(), &found_group) != 0 ||
      found_user == nullptr || found_group == nullptr || user.pw_gid != gid) {
    return false;
  }
  const std::string_view name = user.pw_name;
  for (char** member = entry.gr_mem; *member != nullptr; ++member) {
    if (*member != name) return false;
  }
  return entry.gr_name == name && !has_other_user(gid, uid);
}

// Checks the files and directories on the way to one file.
class Writers {
 public:
  // Throws Error kUnreadable if a user other than this one and root can write to a file.
  void refuse_others(const std::string& path, const struct stat& status) {
    if (status.st_uid != ::geteuid() && status.st_uid != 0) {
      throw Error(ErrorCode::kUnreadable, path, "belongs to another user: change its owner");
    }
    const bool others_write = (status.st_mode & S_IWOTH) != 0;
    const bool group_writes = (status.st_mode & S_IWGRP) != 0;
    if (others_write || (group_writes && !is_private(path, status.st_gid))) {
      throw Error(ErrorCode::kUnreadable, path, "other users may write to it: run chmod -R go-w");
    }
  }

 private:
  bool is_private(const std::string& path, gid_t gid) {
    // An access control list may name more users, and the group's bits of the mode are then its
    // mask.
    if (extended_attribute(path, "system.posix_acl_access")) return false;
    if (gid == private_) return true;
    if (!is_private_group(gid, ::geteuid()) && !is_private_group(gid, 0)) return false;
    private_ = gid;
    return true;
  }

  std::optional<gid_t> private_;  // the last private group
};

// Returns a path relative to the cache. For a path outside the cache, the result begins with "..".
// The cache has two names: `given`, and `top`, which is without symbolic links.
fs::path below(const fs::path& path, const fs::path& given, const fs::path& top) {
  const fs::path rest = path.lexically_relative(given);
  return rest.empty() || *rest.begin() == ".." ? path.lexically_relative(top) : rest;
}

}  // namespace

std::string hub_cached_commit(const HubName& name) {
  const std::string model = model_directory(name.id);
  const std::string ref = model + "/refs/" + name.revision;
  if (model.empty() || !is_regular(ref)) return "";
  const HubCacheFile file = open_in_hub_cache(ref);
  std::string commit(kCommitDigits, '\0');
  if (pread_exact(file.fd.get(), std::as_writable_bytes(std::span(commit)), 0) != 0) return "";
  return is_digest(commit, kCommitDigits) ? commit : "";
}

std::string hub_local_copy(const std::string& name) try {
  const HubName asked = parse_hub_name(name);
  const std::string model = model_directory(asked.id);
  if (model.empty() || asked.path.empty() || !asked.has_commit()) return "";
  std::string path = model + "/snapshots/" + asked.revision + "/" + asked.path;
  return is_regular(path) ? path : "";
} catch (const Error&) {
  return "";
}

// Follows the path like the kernel, one component at a time, so that every directory is checked,
// including the directories in the target of a link.
HubCacheFile open_in_hub_cache(const std::string& path) {
  constexpr unsigned kMaxLinks = 40;  // the kernel's limit
  const fs::path given = hub_cache_directory();
  const fs::path top = absolute_path(given);
  Writers writers;
  struct stat status {};
  const auto look_at = [&](const fs::path& part) {
    if (::lstat(part.c_str(), &status) != 0) throw_unreadable(part, errno);
    if (!S_ISLNK(status.st_mode)) writers.refuse_others(part, status);
  };
  look_at(top);

  fs::path at = top;
  std::vector<fs::path> rest;  // the next component is the last of them
  const auto follow = [&rest](const fs::path& way) {
    std::vector<fs::path> parts(way.begin(), way.end());
    rest.insert(rest.end(), parts.rbegin(), parts.rend());
  };
  follow(below(path, given, top));
  for (unsigned links = 0; !rest.empty();) {
    const fs::path name = std::move(rest.back());
    rest.pop_back();
    if (name.empty() || name == ".") continue;
    if (name == ".." && at == top) {
      throw Error(ErrorCode::kUnreadable, path,
                  "a symbolic link points out of " + printable(top.native()));
    }
    if (name == "..") {
      at = at.parent_path();
      continue;
    }
    const fs::path next = at / name;
    look_at(next);
    if (!S_ISLNK(status.st_mode)) {
      at = next;
      continue;
    }
    std::error_code error;
    const fs::path target = fs::read_symlink(next, error);
    if (error || ++links > kMaxLinks) throw_unreadable(next, error ? error.value() : ELOOP);
    if (target.is_absolute()) at = top;
    follow(target.is_absolute() ? below(target, given, top) : target);
  }

  // Check the opened file too, because another file may have taken its place.
  UniqueFd fd = open_regular(at);
  const struct stat opened = stat_of(fd.get(), at);
  writers.refuse_others(at, opened);
  if (opened.st_dev != status.st_dev || opened.st_ino != status.st_ino) {
    throw Error(ErrorCode::kUnreadable, at.native(), "was replaced while it was opened: try again");
  }
  return {at, std::move(fd)};
}

std::optional<LocalFile::Object> hub_copy_object(const std::string& name, const std::string& path) {
  const std::string etag = last_component(path);
  const bool is_blob = last_component(parent_name(path)) == "blobs" && last_component(name) != etag;
  const bool has_sha256 = is_digest(etag, kSha256Digits);
  if (!is_blob || (!has_sha256 && !is_digest(etag, kCommitDigits))) return std::nullopt;
  return LocalFile::Object{.name = parse_hub_name(name).text(),
                           .token = hub_token(etag),
                           .sha256 = has_sha256 ? etag : ""};
}

}  // namespace stfs
