// Read leases on the sources (fcntl(2), F_SETLEASE). While one is held, the kernel makes a
// process wait that opens the file for writing or truncates it, and asks for the lease with SIGIO.
// The lease is given back as soon as the replies that are on their way from the mapping have been
// sent. Only then can the bytes change, so the bytes that are sent are those that were mapped.
//
// A lease can be had by the file's owner or with CAP_LEASE, on a file system that is known to be
// local, while nobody has the file open for writing. Where there is none, Source::try_pin() says
// so, and bytes are read and checked afterwards.
//
//     none ──1──> held ──2──> asked for ──3──> given back ──4──> held
//       └──1─────────────────────────────────────┘   └──4──> none
//
//   1  the thread of Leases, at the start: takes it; given back where a writer has the file open;
//      stays none where it is not permitted or the file is not local
//   2  the thread, after SIGIO: no new pins
//   3  the thread, when the last pin has gone: F_UNLCK
//   4  a reader without a lease, at most once in a pause: takes it, verifies the file, and only
//      then calls it held. None for ever when the file has changed. Nothing tells when a writer has
//      closed: inotify(7) does so before F_SETLEASE succeeds.
//
// At the end the thread makes each of them none. A supervised worker that dies leaves its lease to
// the descriptor; the next worker's thread takes it over (1), or gives it back if it was asked for.
//
// Thread safety: none needed; it has no members but those that make and end it. The sources
// outlive it.
#pragma once

#include "core/source/local_file.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace stfs {

class Leases {
 public:
  // Takes a lease on each local file where that is permitted, and starts the thread that gives it
  // back. `pause` lies between two attempts to take one again.
  explicit Leases(const std::vector<const Source*>& sources,
                  std::chrono::milliseconds pause = std::chrono::seconds(1));
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;
  ~Leases();  // gives back those that are left

 private:
  void watch();

  std::vector<const LocalFile*> files_;
  std::chrono::milliseconds pause_;
  std::atomic<bool> ready_ = false;  // the thread has its leases
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace stfs
