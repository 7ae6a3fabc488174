// A directory that a program follows through libstfs: the C++ implementation of stfs_follow() and
// its companions. stfs.h has their contracts.
//
// Thread safety: one thread at a time calls next(); any thread may call cancel().
#pragma once

#include "core/base/forks.h"
#include "core/checkpoint/follow.h"
#include "core/remote/sources.h"

#include <cstdint>
#include <span>
#include <string>

namespace stfs {

// The options of stfs_follow(). Throws Error kUsage for an unknown or invalid option.
struct FollowOptions {
  explicit FollowOptions(std::span<const std::string> options);

  SourceOptions sources;
  Follower::Options follow;
};

class FollowerHandle {
 public:
  // Throws Error like the constructor of Follower.
  FollowerHandle(std::string directory, const FollowOptions& options);

  // Waits for the next version and returns its path or URL, or nullptr if there will be no further
  // version. The text is valid until the next call. Throws Error like Follower::next(), and kUsage
  // in a child of the process that created the object, because the child has none of its threads.
  const char* next();
  void cancel() { follower_.cancel(); }
  // Returns true in a child of the process that created the object. The child has none of its
  // threads, so it must not destroy it.
  bool is_inherited() const;

 private:
  const std::uint64_t process_ = this_process();
  Sources sources_;
  Follower follower_;
  std::string version_;
};

}  // namespace stfs
