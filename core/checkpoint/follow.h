// Finds the complete versions in a directory that a trainer writes into. The directory is local, in
// S3 or on the Hub. Versions are directories `weight_v*`, `step_*`, `step-*`, `checkpoint-*` and
// `iter_*`, and checkpoint files.
//
// The Follower scans the directory periodically, because S3 and network file systems do not notify
// about changes. The states of a version:
//
//   listed ──1──► seen ──2──► complete
//      ▲           │              │
//      └─────3─────┴──────4───────┘
//
//   1  A scan finds all files that its index names, with valid headers and sizes that fit.
//   2  The next scan finds the same files. The version is returned, once.
//   3  The next scan finds less. If it finds other files instead, the version remains seen.
//   4  A scan finds that the version was deleted or that its files have changed. If the same files
//      return later, the version is not returned again.
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
    // The name of a file that a version's directory must also contain in order to be complete; ""
    // if none is needed.
    std::string marker = {};
    bool latest = false;  // return only the newest complete version, then end
    // The time between two scans. A server is scanned less often while no version is incomplete.
    std::chrono::milliseconds pause{1000};
  };
  // `sources` must outlive the Follower. Throws Error kUsage if `marker` is not the name of a file.
  Follower(std::string directory, Sources& sources, Options options);

  // Waits for the next version, and returns its path or URL: the oldest first, in natural order.
  // Returns nullopt after cancel(), and with `latest` after the newest version. Throws Error kUsage
  // if the directory is on a server that lists none. Throws other Errors if the directory cannot be
  // read, but only once until it can be read again; a later call continues to wait. With `latest`,
  // also throws Error kAbsent if there is no complete version.
  std::optional<std::string> next();
  // Makes next() return nullopt, now and later. A scan that waits for a server is not interrupted.
  void cancel();

  // Scans the directory once, and returns the versions that have become complete since the last
  // scan. The first scan returns none. Throws Error like next(), and then keeps all its state.
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
  UniqueFd changes_;    // inotify(7) on a local directory
  UniqueFd cancelled_;  // eventfd(2)
  std::atomic<bool> is_cancelled_ = false;
  unsigned looks_ = 0;          // scans so far
  bool is_unreadable_ = false;  // the last scan failed
  bool is_settled_ = false;     // in the last scan, every valid version was complete
  bool has_given_ = false;      // next() has returned a version
  std::deque<std::string> ready_;
  // By name: the files of the version in the last scan, or "" if it is complete.
  std::map<std::string, std::string> seen_;
  std::map<std::string, std::string> returned_;  // by name: its files when it was returned
  std::map<std::string, std::string> glances_;   // by name: the last result of glance()
};

}  // namespace stfs
