// Brings blocks of remote objects to this machine, for all CacheFiles of a process: decides what is
// asked for next, joins neighbouring blocks, sends requests again, and answers those who wait.
//
//   want() ──► demand ─┐                        ┌─► blocks into the cache entry (or memory)
//                      ├─► requests of ≤ 8 MiB ─┤
//   prefetch() ► ahead ┘   ≤ connections a host └─► ready(0) of those who wait for them
//
// Demand goes before what is fetched ahead. A block is in
// one request at a time: in this process by the state of the block, among processes by the claims
// of the cache entry. A block that another process has claimed is looked at again every few
// milliseconds, until it is there or the claim is gone. Where none comes for Options::patience (the
// process was stopped), this one fetches them too, into memory, and for a minute waits for none.
//
// Fair: requests of those who wait take turns, 8 MiB each, so that a want() of gigabytes does not
// hold up a small one.
//
// The states of a block in a CacheFile (one byte each, in this process):
//
//   unknown ──look──► here            the entry has it and its checksum fits
//      │    └─look──► absent          (a block that this process did not fetch is checked once)
//   absent ──want──► demanded ─┐
//      └─prefetch──► ahead ────┴─start─► coming ──all bytes──► here
//                      │                   │ └─ another process has it ─► watched ─► here, demanded
//                      └─want─► demanded   └─── broken ─► delayed ─► demanded, ahead
//   all but here ──► absent           nobody waits any more, or given up
//   here ──► absent                   only in memory (no usable cache), when others need the room;
//                                     or when the entry's file turns out to be damaged
//
// The threads: want() and prefetch() only queue. One thread prepares requests (it may block while
// it gets credentials), the thread of Http receives bytes and writes them, and two threads call
// those who wait and end what waits too long, so that neither a conversion nor a slow reader holds
// up the network. All are
// started by the first want() that needs them: until then the process may fork.
//
// Deadlines: a want() that is not answered within Options::timeout gets EIO, whatever becomes of
// its request. The transfers that it waited for end with it: those that nobody else waits for, and
// those that took more than half of the time. The next want() asks anew. A transfer also ends when
// it brings less than 1 KiB a second (HttpRequest::stall), and after Options::longest.
//
// The part of a block that a broken transfer brought is kept, and only the rest is asked for. A
// part in the cache's file is read again first: others may have truncated the file.
//
// Thread safety: all members. Lifetime: outlives its CacheFiles.
#pragma once

#include "core/remote/cache/blocks.h"
#include "core/remote/cache/cache.h"
#include "core/remote/http/http.h"
#include "core/source/counters.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace stfs {

class CacheFile;

class Fetcher {
 public:
  static constexpr std::uint64_t kLongestRequest = 8 << 20;  // bytes
  static constexpr std::uint64_t kMemory = 16 << 20;         // bytes of a source without a cache
  // The most that prefetch() queues of a source. New ranges push out those that wait longest.
  static constexpr std::uint64_t kFarthest = 64 << 20;
  static constexpr std::uint64_t kFarthestInMemory = 4 << 20;  // without a cache

  struct Options {
    std::chrono::milliseconds timeout{60'000};
    // Requests for blocks of a host at a time: one that hangs holds up no other.
    unsigned connections = 8;
    std::chrono::milliseconds longest{600'000};  // of a transfer
    // How long a block may be watched that another process has claimed and does not bring; half of
    // `timeout`, if that is less.
    std::chrono::milliseconds patience{5'000};
    bool offline = false;  // a block that is not in the cache: EIO at once
    Counters* counters = nullptr;
    // A line for the log on each new reason for which a source fails: "place: reason". Called on
    // threads of the Fetcher, with no lock held.
    std::function<void(const std::string& line)> log = {};
  };

  // `cache` makes room when the disk is full. Both outlive this.
  Fetcher(const Options& options, Http& http, Cache& cache);
  Fetcher(const Fetcher&) = delete;
  Fetcher& operator=(const Fetcher&) = delete;
  ~Fetcher();

  // While it is held, it starts no thread and sends nothing: want() of what is not here fails with
  // EIO at once. For a process that forks those that fetch.
  void hold(bool is_held);

 private:
  friend class CacheFile;
  using Clock = std::chrono::steady_clock;
  class Impl;
  struct File;  // what is queued and under way for a CacheFile
  struct Transfer;

  Counters* counters() const;
  std::shared_ptr<File> add(const CacheFile& source, const RemoteVersion& version, Remote& remote,
                            Blocks& blocks);
  void remove(File& file);  // waits for what runs
  void want(const std::shared_ptr<File>& file, ByteRange range, Source::Ready ready);
  void prefetch(const std::shared_ptr<File>& file, ByteRange range);
  std::string failure_text(const File& file) const;

  // Shared with transfers under way, which may end after it.
  std::shared_ptr<Impl> impl_;
};

}  // namespace stfs
