// Read leases on local files (fcntl(2), F_SETLEASE). When a process opens a leased file for writing
// or truncates it, the kernel blocks that process and sends us SIGIO. We give the lease back once
// every reply that points into the mapping is sent, so no byte changes between check and reply.
//
// The kernel grants a lease to the file's owner or with CAP_LEASE, while no process has the file
// open for writing; stfs takes it only on a local file system. Without a lease Source::try_pin()
// returns an empty Pinned, and a reply is read into a buffer and verified afterwards.
//
// A file that nobody reads has no lease, so that nobody waits for it; a watch (writer_watch.h) then
// tells whether a ctime that moves alone was a write.
//
//              ┌────────────────5────────────────┐
//              ▼                                 │
//     none ─1─> resting ───2───> held ───3───> asked for ───4───> given back
//       └───────────────1──────── ▲ ───────────────────────────────▲  │
//                                 └────────────────2───────────────┼──┘
//                                                                  └── 2, a writer has it open
//
//   1  the thread of Leases, when it starts: watches the file, takes the lease and returns it. Goes
//      to "given back" when a writer has the file open; stays "none" without permission and for a
//      file that is not local
//   2  a reader; from "given back" after a pause. F_SETLEASE, then a look at the file. Goes to
//      "none" for ever when the file has changed or the lease is refused. Readers retry since the
//      kernel does not report when a lease is possible again: inotify(7) reports the writer's close
//      too early
//   3  the thread, after SIGIO, or when nobody has read for about a second: try_pin() gives no new
//      pins
//   4  the thread, after the last pin was dropped: a last look at the file, then F_UNLCK. The pause
//      doubles from writer to writer, up to 64 times. Where no process waits, as touch(1) does not,
//      the thread first gives touch a moment to set the file's times, and then takes the lease
//      again
//   5  the thread, likewise, where no writer asked. The pause is the first one again
//
// When Leases ends, its thread sets each lease to "none". A lease of a supervised worker that dies
// stays on the open file description, and its state in the ledger: the thread of the next worker
// takes it over (1), or gives it back if the kernel asked for it. The watch dies with the worker.
//
// Thread safety: one thread constructs and destroys a Leases; it has no other members. Lifetime:
// the sources outlive it.
#pragma once

#include "core/source/local_file.h"
#include "core/source/writer_watch.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace stfs {

class Leases {
 public:
  struct Times {
    std::chrono::milliseconds pause = std::chrono::seconds(1);  // the first after a writer asked
    std::chrono::milliseconds rest = std::chrono::seconds(1);   // from the last read on
  };

  // Starts the thread and waits until it looked whether the local file of each source can be
  // leased. Throws Error kMountFailed without a thread.
  explicit Leases(const std::vector<const Source*>& sources) : Leases(sources, Times{}) {}
  Leases(const std::vector<const Source*>& sources, const Times& times);
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;
  ~Leases();  // gives back all leases, after their pins were dropped

 private:
  void watch();

  std::vector<const LocalFile*> files_;
  Times times_;
  WriterWatch writers_;
  std::atomic<bool> ready_ = false;  // the thread looked at its files
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace stfs
