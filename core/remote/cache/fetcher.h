// Fetches blocks of remote objects for all CacheFiles of a process. The fetcher decides which
// blocks to request next, joins neighbouring blocks into one request, retries failed requests, and
// calls back the readers that wait.
//
//   want() ──► demand ─┐                        ┌─► blocks into the cache entry (or memory)
//                      ├─► requests of ≤ 8 MiB ─┤
//   prefetch() ► ahead ┘   ≤ connections per    └─► ready(0) for each reader whose blocks are local
//                            host
//
// Demand is served before prefetching. A block is in at most one request at a time: the block's
// state ensures this within the process, and the claims of the cache entry ensure it among
// processes. If another process has claimed a block, the fetcher checks every few milliseconds
// until the block is in the cache or the claim is released. If no claimed block arrives within
// Options::patience, because the other process was stopped, this process fetches the blocks itself,
// into memory, and ignores the claims on the object for a minute.
//
// Requests for waiting readers take turns, 8 MiB each, so that a want() of gigabytes does not delay
// a small one.
//
// The states of a block in a CacheFile (one byte each, in this process):
//
//   unknown ──look──► local           the entry has the block, and its checksum matches
//      │    └─look──► absent          (a block that another process fetched is checked once)
//   absent ──want──► demanded ─┐
//      └─prefetch──► ahead ────┴─start─► in flight ──all bytes──► local
//                      │                   └─ the transfer broke, or another process has claimed
//                      └─want─► demanded         the block ─► delayed ─► demanded, ahead
//   all but local ──► absent          no reader waits for the block any more, or the request failed
//   local ──► absent                  the block was in memory (without a usable cache) and was
//                                     evicted; or the entry's file turned out to be damaged
//
// In Blocks::State, "local" is kOnDisk or kKept (in memory), "demanded" is kReadQueued, "ahead" is
// kPrefetchQueued, and "in flight" is kInFlight.
//
// Threads: want() and prefetch() only add to the queues. A pool of identical threads does the rest:
// they run callbacks, at most two at a time; they prepare requests and handle their results, one
// thread per host at a time, because preparing may block while it gets credentials; and they fail
// readers that have waited too long. The pool has two threads more than there are hosts, so a
// conversion, a slow reader or a slow host never blocks the network. The thread of Http receives
// the bytes and writes them. The first want() that needs the threads starts them; until then the
// process may fork.
//
// Deadlines: a want() that is not complete within Options::timeout fails with EIO, whatever happens
// to its request. Its transfers are aborted if no other reader waits for them, or if they have
// already taken more than half of the timeout. The next want() requests the blocks again. A
// transfer is also aborted if it delivers less than 1 KiB per second (HttpRequest::stall), and
// after Options::longest.
//
// A block is received into memory. It is then written to the cache's file, or stays in memory if
// the object has no cache entry or the disk refuses the block. If a transfer breaks in the middle
// of a block, the bytes received so far stay in memory, and only the rest is requested.
//
// Locking: one mutex guards the queues, the waiting readers, and all state changes of blocks except
// those listed in blocks.h. It is not held during system calls on the cache, calls of a Remote or
// of Http, or callbacks. It is acquired before the mutex of Blocks' memory, never after it.
//
// Thread safety: all members may be called from any thread. Lifetime: the fetcher must outlive its
// CacheFiles.
#pragma once

#include "core/remote/cache/blocks.h"
#include "core/remote/cache/cache.h"
#include "core/remote/http/http.h"
#include "core/source/counters.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace stfs {

class Fetcher {
 public:
  static constexpr std::uint64_t kMaxRequest = 8 << 20;  // bytes
  static constexpr std::uint64_t kMemory = 16 << 20;  // bytes that a source without a cache keeps
  // The maximum that prefetch() queues for one source, in bytes. New ranges displace the oldest.
  static constexpr std::uint64_t kMaxPrefetch = 64 << 20;
  static constexpr std::uint64_t kFarthestInMemory = 4 << 20;  // without a cache

  struct Options {
    std::chrono::milliseconds timeout{60'000};
    // The maximum number of concurrent requests per host. A host that hangs delays no other.
    unsigned connections = 8;
    std::chrono::milliseconds longest{600'000};  // the maximum duration of a transfer
    // How long to wait for blocks that another process has claimed but does not deliver. At most
    // half of `timeout`.
    std::chrono::milliseconds patience{5'000};
    bool offline = false;  // want() of a block that is not in the cache fails with EIO at once
    Counters* counters = nullptr;
  };

  // `cache` evicts entries when the disk is full. `http` and `cache` must outlive the fetcher.
  Fetcher(const Options& options, Http& http, Cache& cache);
  Fetcher(const Fetcher&) = delete;
  Fetcher& operator=(const Fetcher&) = delete;
  ~Fetcher();

  // While the fetcher is held, it starts no thread and sends no request, and want() of a missing
  // block fails with EIO at once. For a supervisor: only the workers that it forks may fetch.
  void hold(bool is_held) { is_paused_ = is_held; }

  // The fetcher's state for one object: its blocks and its waiting readers. Owned by the object's
  // CacheFile.
  struct File;
  void add(File& file);
  // Fails all waiting readers with ECANCELED. Returns when no transfer and no callback of the file
  // runs any more.
  void remove(File& file);
  // Calls `ready` once, with 0 when all blocks of the range are available locally, or with an
  // errno: ESTALE if the object has changed, EACCES, EIO, ENOMEM or ECANCELED. `ready` runs on the
  // calling thread if the result is known at once, and otherwise on a thread of the fetcher. The
  // range must lie in the object.
  void want(File& file, ByteRange range, Source::Ready ready);
  // Queues the missing blocks of the range, as far as the limits above allow. Does nothing while
  // the fetcher is offline or held.
  void prefetch(File& file, ByteRange range);
  // Returns why the last want() of the file failed, or "".
  std::string failure_text(const File& file);
  Counters* counters() const { return options_.counters; }

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;
  using State = Blocks::State;

  static constexpr std::size_t kAnswering = 2;
  struct Host {
    std::string name;       // "https://host:8000"; "hf://" for all of the Hub
    unsigned requests = 0;  // requests in flight
    // The file whose request a thread is preparing or finishing; null if no thread serves the host.
    const File* serving = nullptr;
  };
  struct Waiter;
  using Waiters = std::list<Waiter>;
  struct Part;
  struct Transfer;
  using Transfers = std::list<std::shared_ptr<Transfer>>;  // shared with Http's callbacks
  // A run of blocks in a queue. An item may be stale: a block counts as queued only while its state
  // says so.
  struct Item {
    File* file;
    BlockRun run;
    bool is_retry = false;
    Backoff backoff = {};
    bool needs_new_connection = false;
    // Set while another process claims the blocks: the time since which none of them has arrived.
    std::optional<Clock::time_point> claimed_since = {};
    bool ignores_claims = false;
    // While the item is delayed: the earliest time to fetch it, and whether to fetch it even if no
    // reader waits for it.
    Clock::time_point not_before = {};
    bool is_ahead = false;
  };
  using Items = std::list<Item>;

  // The caller of these functions holds mutex_. Those that take a Lock release it for a while.
  bool start_threads();
  bool move(File& file, std::uint64_t block, State from, State to);
  void move_all(File& file, BlockRun run, State from, State to);
  void queue(File& file, BlockRun run);
  void queue_again(Item item, State from);
  void wake_delayed();
  void advance(File& file);
  void answer(File& file, Waiters::iterator waiter, int error);
  bool has_waiter(const File& file, BlockRun run) const;
  bool is_needed(const File& file, std::uint64_t block) const;
  bool uses_memory(const File& file) const;
  void shrink(File& file);
  void expire(Clock::time_point now);
  std::string awaited(const Waiter& waiter) const;
  void abandon(const File& file, BlockRun missed, Clock::time_point now);
  bool uses(const File& file) const;
  Clock::time_point next_deadline() const;
  bool answer_one(Lock& lock);
  bool serve_one(Lock& lock);
  std::optional<Item> next(Items& items, State state);
  void begin(Lock& lock, Item item);
  void wait_for_others(Item item, std::uint64_t end);
  void send(Lock& lock, const std::shared_ptr<Transfer>& transfer, HttpRequest request);
  void settle(Lock& lock, Transfer& transfer);
  void renew(Lock& lock, Transfer& transfer, BlockRun rest);
  void retry(const Transfer& transfer, BlockRun rest, const std::string& reason);
  void again(const Transfer& transfer, BlockRun rest, bool needs_new_connection = false);
  void fail(File& file, BlockRun run, int error, const std::string& reason);
  Part take_part(const File& file, std::uint64_t block);
  void keep_part(Part part);

  // The caller of these functions does not hold mutex_.
  void work();  // the body of each thread
  bool on_head(Transfer& transfer, const HttpHead& head);
  bool on_data(Transfer& transfer, std::span<const std::byte> bytes);
  void on_end(const std::shared_ptr<Transfer>& transfer, const TransferResult& end);
  void finish_block(Transfer& transfer, std::uint64_t block);
  BlockRun claim(Blocks& blocks, BlockRun run);
  static void release(Blocks& blocks, BlockRun run);
  bool make_room(Blocks& blocks, BlockRun run);

  const Options options_;
  Http& http_;
  Cache& cache_;

  std::mutex mutex_;
  std::condition_variable work_;  // wakes a thread
  std::condition_variable left_;  // wakes remove()
  bool stopping_ = false;
  std::atomic<bool> is_paused_ = false;
  std::vector<std::thread> threads_;

  std::map<std::string, Host> hosts_;
  std::list<File*> files_;
  Items demand_, ahead_, delayed_;
  Transfers under_way_, ended_;
  Waiters answers_, running_;
  std::list<Part> parts_;       // left by broken transfers, the oldest first
  bool has_abandoned_ = false;  // a transfer was abandoned, and Http was not notified yet
};

// A want() that waits.
struct Fetcher::Waiter {
  File* file;
  BlockRun all;
  BlockRun rest;  // the blocks still to arrive; all blocks before it have arrived
  Source::Ready ready;
  Clock::time_point began;
  int error = 0;
};

// The first bytes of a block, from a transfer that broke.
struct Fetcher::Part {
  const File* file = nullptr;
  std::uint64_t block = 0;
  std::vector<std::byte> bytes = {};
};

// A request in flight. Until it ends, it belongs to the thread of Http, except that `done` changes
// only under mutex_ and that other threads read the atomic members.
struct Fetcher::Transfer {
  File* file = nullptr;
  std::atomic<bool> is_abandoned = false;  // HttpRequest::is_abandoned
  Clock::time_point began = Clock::now();
  BlockRun run = {};
  ByteRange range = {};
  bool in_memory = false;
  bool has_ahead = false;  // some blocks were only prefetched
  unsigned renewals = 0;   // File::renewals when the request was made
  Backoff backoff = {};

  std::atomic<std::uint64_t> received = 0;  // bytes
  std::uint64_t done = 0;                   // complete blocks
  Part part = {};                           // the block that is being received
  std::atomic<bool> was_accepted = false;
  std::optional<HttpHead> head = {};  // the head of a response that was not accepted
  ResponseVerdict verdict{ResponseVerdict::Kind::kAccept};
  TransferResult end = {};
};

struct Fetcher::File {
  const Source& source;
  const RemoteVersion version;
  const std::unique_ptr<Remote> remote;
  Blocks blocks;

  Host* host = nullptr;            // set by add()
  bool is_closed = false;          // no new transfer may begin
  Waiters waiting = {};            // the oldest first
  std::uint64_t ahead = 0;         // the number of blocks in State::kPrefetchQueued
  unsigned renewals = 0;           // how often the credentials were renewed
  bool is_renewed = false;         // renewed, and no response was accepted since
  Clock::time_point full_until{};  // until then the disk counts as full: blocks go to memory
  // Until then claims of other processes are ignored, because no claimed block has arrived within
  // Options::patience.
  Clock::time_point claims_ignored_until{};
  Clock::time_point last_claimed_came{};  // when a block claimed by another process last arrived
  std::string reason = {};                // why the last request failed
  std::string failure = {};               // why the last want() failed
};

}  // namespace stfs
