#include "core/write/input_files.h"

#include "core/checkpoint/mount_source.h"
#include "core/remote/http/url.h"

#include <cstddef>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>
#include <vector>

namespace stfs {
namespace {

// Returns true if both are the same file. overlayfs may show another device for a file of its
// layers, so size and times are compared if the devices differ.
bool are_same(const struct stat& a, const struct stat& b) {
  const auto is_same_time = [](const timespec& one, const timespec& other) {
    return one.tv_sec == other.tv_sec && one.tv_nsec == other.tv_nsec;
  };
  return a.st_ino == b.st_ino &&
         (a.st_dev == b.st_dev || (a.st_size == b.st_size && is_same_time(a.st_mtim, b.st_mtim) &&
                                   is_same_time(a.st_ctim, b.st_ctim)));
}

// Returns true for every file in the cache of stfs, because even a file that was not read now may
// belong to an entry that is read.
bool is_in_cache(const std::string& path, const std::string& cache) {
  if (cache.empty()) return false;
  std::error_code error;
  const auto whole = [&](const std::string& name) {
    return std::filesystem::weakly_canonical(name, error).native();
  };
  const std::string directory = whole(cache + "/v1");
  return !error && whole(path).starts_with(directory + "/");
}

}  // namespace

bool leads_to(const std::string& path, const struct stat& file) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && are_same(status, file);
}

bool is_read(const struct stat& file, const std::string& path, const Sources& sources) {
  if (is_in_cache(path, sources.cache_directory())) return true;
  std::vector<std::string> names = sources.files_read();
  std::set<std::string> known(names.begin(), names.end());
  std::set<std::string> mountpoints;
  // `names` grows in the loop, because a mount may show files of another mount.
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (leads_to(names[i], file)) return true;
    const std::optional<std::string> mountpoint = mountpoint_around(names[i]);
    if (!mountpoint) continue;
    const bool is_model_file = names[i].starts_with(*mountpoint + "/.stfs/model/");
    if (!mountpoints.insert(*mountpoint).second && !is_model_file) continue;
    const std::string last(last_component(names[i]));
    for (const std::string& shown : files_of_mount(*mountpoint)) {
      for (const std::string& name :
           {shown, is_model_file ? child_name(parent_name(shown), last) : shown}) {
        if (known.insert(name).second) names.push_back(name);
      }
    }
  }
  return false;
}

}  // namespace stfs
