// Read leases on local files (fcntl(2), F_SETLEASE). When a process opens a leased file for writing
// or truncates it, the kernel blocks that process and sends us SIGIO. We release the lease as soon
// as every reply that points into the mapping has been sent, so no byte changes between the check
// of a file and the reply.
//
// The kernel grants a lease only to the file's owner or to a process with CAP_LEASE, and only while
// no process has the file open for writing. stfs takes leases only on local file systems. Without a
// lease Source::try_pin() returns an empty Pinned, and the reply is read into a buffer and verified
// afterwards.
//
// A file that is not being read has no lease, so that no writer has to wait for it. A watch
// (writer_watch.h) then shows whether a write caused a change of the ctime.
//
//              ┌────────────────5────────────────┐
//              ▼                                 │
//     none ─1─> resting ───2───> held ───3───> asked for ───4───> given back
//       └───────────────1──────── ▲ ───────────────────────────────▲  │
//                                 └────────────────2───────────────┼──┘
//                                                                  └── 2, a writer has it open
//
//   1  The thread of Leases, when it starts: watches the file, takes the lease with F_SETLEASE and
//      releases it again. If a writer has the file open, the state becomes "given back". If the
//      kernel does not permit the lease, or the file is not on a local file system, the state stays
//      "none".
//   2  A reader, at once from "resting", and after a pause from "given back": takes the lease, then
//      checks the file. If the file has changed, or the kernel refuses the lease, the state becomes
//      "none" for good. Readers have to retry because nothing reports that a lease has become
//      possible: inotify(7) reports the close of a writer too early.
//   3  The thread, after SIGIO, or after about a second without a read: try_pin() returns no new
//      pins from now on.
//   4  The thread, once the last pin is dropped: checks the file a last time, then releases the
//      lease with F_UNLCK. The pause before the next lease doubles with each writer, up to 64
//      times the first pause. If no process waits for the lease, the opener may be touch(1), which
//      does not wait; the thread then first gives touch a moment to set the file's times, and takes
//      the lease again afterwards.
//   5  The thread, once the last pin is dropped, if no writer has asked for the lease: checks and
//      releases as in 4. The next pause is the first one again.
//
// When Leases is destroyed, its thread sets each lease to "none". If a supervised worker dies, its
// leases stay on the open file descriptions, and their states stay in the ledger. The thread of the
// next worker takes each of them over (1), or releases it if the kernel has asked for it. The watch
// ends with the worker.
//
// Thread safety: one thread constructs and destroys a Leases; it has no other members. Lifetime:
// the sources must outlive it.
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
    std::chrono::milliseconds pause = std::chrono::seconds(1);  // first pause after a writer asked
    // Time without a read after which a lease is released.
    std::chrono::milliseconds rest = std::chrono::seconds(1);
  };

  // Starts the thread and waits until it has tried to lease the local file of each source. Throws
  // Error kMountFailed if the thread cannot be started.
  explicit Leases(const std::vector<const Source*>& sources) : Leases(sources, Times{}) {}
  Leases(const std::vector<const Source*>& sources, const Times& times);
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;
  ~Leases();  // waits until all pins are dropped, then releases all leases

 private:
  void watch();

  std::vector<const LocalFile*> files_;
  Times times_;
  WriterWatch writers_;
  std::atomic<bool> ready_ = false;  // the thread has tried to take every lease
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace stfs
