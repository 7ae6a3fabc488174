// Read leases on local files (fcntl(2), F_SETLEASE). When a process opens a leased file for writing
// or truncates it, the kernel blocks that process and sends us SIGIO. We give the lease back once
// every reply that points into the mapping is sent, so no byte changes between check and reply.
//
// The kernel grants a lease to the file's owner or with CAP_LEASE, while no process has the file
// open for writing; stfs takes it only on a local file system. Without a lease Source::try_pin()
// returns an empty Pinned, and a reply is read into a buffer and verified afterwards.
//
//     none ──1──> held ──2──> asked for ──3──> given back ──4──> held
//       └──1─────────────────────────────────────┘   └──4──> none
//
//   1  the thread of Leases, when it starts: F_SETLEASE. Goes to "given back" when a writer has the
//      file open; stays "none" without permission and for a file that is not local
//   2  the thread, after SIGIO: try_pin() gives no new pins
//   3  the thread, after the last pin was dropped: a last look at the file, then F_UNLCK. Where no
//      process waits, as touch(1) does not, it first gives touch the time to set the file's times
//   4  the thread, at once, if nobody has the file open for writing; then a
//      reader, at most once a pause: F_SETLEASE, then a look at the file. Goes to "none" for ever
//      when the file has changed or the lease is refused. Readers retry since the kernel does not
//      report when a lease is possible again: inotify(7) reports the writer's close too early
//
// When Leases ends, its thread sets each lease to "none". A lease of a supervised worker that dies
// stays on the open file description, and its state in the ledger: the thread of the next worker
// takes it over (1), or gives it back if the kernel asked for it.
//
// Thread safety: one thread constructs and destroys a Leases; it has no other members. Lifetime:
// the sources outlive it.
#pragma once

#include "core/source/local_file.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace stfs {

class Leases {
 public:
  // Starts the thread and waits until it tried to lease the local file of each source. A reader
  // tries to take a given-back lease again after `pause`. Throws Error kMountFailed without a
  // thread.
  explicit Leases(const std::vector<const Source*>& sources,
                  std::chrono::milliseconds pause = std::chrono::seconds(1));
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;
  ~Leases();  // gives back all leases, after their pins were dropped

 private:
  void watch();

  std::vector<const LocalFile*> files_;
  std::chrono::milliseconds pause_;
  std::atomic<bool> ready_ = false;  // the thread tried to take its leases
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace stfs
