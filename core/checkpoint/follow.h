// Finds the complete versions in a directory that a trainer writes into: directories `weight_v*`,
// `step_*`, `checkpoint-*` and `iter_*`, and checkpoint files.
//
// Thread safety: one thread at a time uses a Follower.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace stfs {

class Follower {
 public:
  // A version is complete once a file `marker` is in it too; "": none is asked for. Throws Error
  // kUsage for a URL, and for a marker that is not the name of a file.
  explicit Follower(std::string directory, std::string marker = "");

  // The paths of versions that became complete since the last look, in natural order: all that
  // their indexes name is there with valid headers and sizes that fit, and the look before this one
  // found the same files. So the first look returns none. A version that went away is forgotten.
  // Throws Error for a directory that cannot be read; the next look tries again.
  std::vector<std::string> look();

 private:
  std::string directory_, marker_;
  std::map<std::string, std::string> seen_;  // by name: the files of the last look; "": returned
};

}  // namespace stfs
