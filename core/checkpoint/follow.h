// Finds the complete versions in a directory that a trainer writes into, of this machine, of S3 or
// of the Hub: directories `weight_v*`, `step_*`, `step-*`, `checkpoint-*` and `iter_*`, and
// checkpoint files.
//
// It looks again and again, since S3 and network file systems tell of no change. A version:
//
//   listed ─ all that its index names is there, with headers that are valid and sizes that fit ─►
//   seen ─ the next look finds the same files ─► complete: named once
//      ▲└─ it finds other files, or less
//      └── a version that went away, or whose files changed, is looked at anew; with the files that
//      it
//          had, it is not named again
//
// Thread safety: one thread at a time uses a Follower; any thread may call cancel().
#pragma once

#include "core/base/posix.h"
#include "core/remote/sources.h"

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace stfs {

class Follower {
 public:
  struct Options {
    std::string marker =
        {};               // a version is complete once a file of this name is in it too; "": none
    bool latest = false;  // only the newest version that is complete
    // Between two looks. A server is asked less often while nothing is under way.
    std::chrono::milliseconds pause{1000};
  };
  // `sources` outlives the Follower. Throws Error kUsage for what cannot be listed, and for a
  // marker that is not the name of a file.
  Follower(std::string directory, Sources& sources, Options options);

  // Waits for the next version, and returns its path or its URL: the oldest first, in natural
  // order. nullopt: after the newest with `latest`, and after cancel(). Throws Error when the
  // directory cannot be read, once until it can be read again: the next call goes on. With `latest`
  // it throws also when there is no complete version.
  std::optional<std::string> next();
  // Ends next(), now and later. A look that waits for a server goes on.
  void cancel();

  // The versions that became complete since the last look. So the first look returns none. Throws
  // Error as next() does; nothing is forgotten then.
  std::vector<std::string> look();

 private:
  void wait();
  void watch();
  bool is_candidate(const std::string& entry) const;
  std::string files_of(const std::string& entry);
  std::string glance(const std::string& entry, bool is_newest);

  std::string directory_;
  Sources& sources_;
  Options options_;
  UniqueFd changes_;    // inotify(7), of a local directory
  UniqueFd cancelled_;  // eventfd(2)
  std::atomic<bool> is_cancelled_ = false;
  unsigned looks_ = 0;
  bool is_out_ = false;      // the last look failed
  bool is_settled_ = false;  // nothing was seen that is not complete
  bool has_given_ = false;
  std::deque<std::string> ready_;
  std::map<std::string, std::string> seen_;  // by name: the files of the last look; "": complete
  std::map<std::string, std::string> returned_;  // by name: the files of a version that was named
  std::map<std::string, std::string> glances_;   // by name: what glance() saw of it
};

}  // namespace stfs
