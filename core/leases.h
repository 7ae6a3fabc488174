// Read leases on the sources (fcntl(2), F_SETLEASE): while one is held, nobody can open the file
// for writing or truncate it. Who wants to is held up by the kernel until the lease is given back,
// which a thread does as soon as the replies that are on their way from the mapping have been sent.
// Only then can the bytes change, so that what is sent from the mapping is what was mapped.
//
// A lease can be had by the file's owner (or with CAP_LEASE), on most local file systems, while
// nobody has the file open for writing. Where there is none, Mapping::guard() says so and bytes are
// read and checked afterwards instead.
//
// Thread safety: none needed; it has no members but those that make and end it. The mappings
// outlive it.
#pragma once

#include "core/mapping.h"

#include <atomic>
#include <thread>
#include <vector>

namespace stfs {

class Leases {
 public:
  // Takes a lease on each file where that is permitted, and starts the thread that gives it back.
  explicit Leases(std::vector<const Mapping*> files);
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;
  ~Leases();  // gives back those that are left

 private:
  void watch();

  std::vector<const Mapping*> files_;
  std::atomic<bool> ready_ = false;  // the thread has its leases
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace stfs
