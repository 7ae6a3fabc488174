// A directory that a program follows through libstfs: the C++ behind stfs_follow, which says what
// the functions promise.
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

// The options of stfs_follow. Throws Error kUsage for what is none.
struct FollowOptions {
  explicit FollowOptions(std::span<const std::string> options);

  SourceOptions sources;
  Follower::Options follow;
};

class Followed {
 public:
  // Throws Error, as Follower does.
  Followed(std::string directory, const FollowOptions& options);

  // nullptr: there are no more. The text is valid until the next call. Throws Error, also in a
  // process that forked from the one that made it: its threads are not there.
  const char* next();
  void cancel() { follower_.cancel(); }
  bool is_inherited() const;  // this process has none of its threads, so it must not be destroyed

 private:
  const std::uint64_t process_ = this_process();
  Sources sources_;
  Follower follower_;
  std::string version_;
};

}  // namespace stfs
