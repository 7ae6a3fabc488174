// The files that a checkpoint is read from, so that no new file takes the place of one of them.
//
// Thread safety: const members may be called from any thread.
#pragma once

#include "core/checkpoint/checkpoint.h"

#include <sys/stat.h>

#include <span>
#include <string>
#include <vector>

namespace stfs {

// Whether a path leads to the file with this status.
bool leads_to(const std::string& path, const struct stat& file);

// The names of files that checkpoints are read from: their sources, what a mount that is one of
// them shows, what loading looks at beside them, and for sources elsewhere the caches.
class ReadFiles {
 public:
  // `sources` opened the checkpoints.
  ReadFiles(std::span<const Checkpoint* const> checkpoints, const Sources& sources);

  // `path` leads to `file`.
  bool contain(const struct stat& file, const std::string& path) const;

 private:
  bool is_in_cache(const std::string& path) const;
  void add_beside(const std::string& name);
  void add(const std::string& path);
  void add_mounted(const std::string& path);
  void add_layers(const Layers& layers);
  void add_all(const std::string& path);
  void add_shards(const std::string& index);

  std::string cache_;  // the directory; "": no source is elsewhere
  std::vector<std::string> paths_;
};

}  // namespace stfs
