// Brings blocks of remote objects to this machine, for all CacheFiles of a process: decides what is
// asked for next, joins neighbouring blocks, sends requests again, and answers those who wait.
//
//   want() ──► demand ─┐                        ┌─► blocks into the cache entry (or memory)
//                      ├─► requests of ≤ 8 MiB ─┤
//   prefetch() ► ahead ┘   ≤ connections a host └─► ready(0) of those who wait for them
//
// Demand goes before what is fetched ahead. A block is in one request at a time: in this process by
// the state of the block, among processes by the claims of the cache entry. A block that another
// process has claimed is delayed by a few milliseconds, again and again, until it is there or the
// claim is gone. Where none comes for Options::patience (the process was stopped), this one fetches
// them too, into memory, and for a minute waits for none.
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
//                      │                   └─ broken, or another process has claimed it
//                      └─want─► demanded         └─► delayed ─► demanded, ahead
//   all but here ──► absent           nobody waits any more, or given up
//   here ──► absent                   only in memory (no usable cache), when others need the room;
//                                     or when the entry's file turns out to be damaged
//
// The threads: want() and prefetch() only queue. Threads of one kind do the rest: they call those
// who wait, two at a time; prepare requests and judge how they ended, one for a host at a time (it
// may block while it gets credentials); end what waits too long. There is one for each host, and
// two more: so neither a conversion, nor a slow reader, nor a host holds up the network. The thread
// of Http receives bytes and writes them. All are started by the first want() that needs them:
// until then the process may fork.
//
// Deadlines: a want() that is not answered within Options::timeout gets EIO, whatever becomes of
// its request. The transfers that it waited for end with it: those that nobody else waits for, and
// those that took more than half of the time. The next want() asks anew. A transfer also ends when
// it brings less than 1 KiB a second (HttpRequest::stall), and after Options::longest.
//
// A block is received into memory, and then written to the cache's file, or kept where it is when
// there is no cache or the disk refuses it. The part of a block that a broken transfer brought is
// kept in memory, and only the rest is asked for.
//
// One mutex guards the queues, the waiters and all changes of a block's state but those that
// blocks.h names. It is not held while a system call of the cache, a Remote, Http or a callback
// runs. It is taken before the mutex of the memory of Blocks.
//
// Thread safety: all members. Lifetime: outlives its CacheFiles.
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
    // How long to wait for a block that another process has claimed and does not bring; half of
    // `timeout`, if that is less.
    std::chrono::milliseconds patience{5'000};
    bool offline = false;  // a block that is not in the cache: EIO at once
    Counters* counters = nullptr;
  };

  // `cache` makes room when the disk is full. Both outlive this.
  Fetcher(const Options& options, Http& http, Cache& cache);
  Fetcher(const Fetcher&) = delete;
  Fetcher& operator=(const Fetcher&) = delete;
  ~Fetcher();

  // While it is held, it starts no thread and sends nothing: want() of what is not here fails with
  // EIO at once. For a process that forks those that fetch.
  void hold(bool is_held) { is_held_ = is_held; }

  // An object, with what is queued and under way for it: a part of its CacheFile.
  struct File;
  void add(File& file);
  // Answers those who wait with ECANCELED, and waits for what runs.
  void remove(File& file);
  void want(File& file, ByteRange range, Source::Ready ready);
  void prefetch(File& file, ByteRange range);
  std::string failure_text(const File& file);
  Counters* counters() const { return options_.counters; }

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;
  using State = Blocks::State;

  static constexpr std::size_t kAnswering = 2;
  struct Host {
    std::string name;               // "https://host:8000", "hf://"
    unsigned requests = 0;          // that are under way
    const File* serving = nullptr;  // of the thread that serves the host now
  };
  struct Waiter;
  using Waiters = std::list<Waiter>;
  struct Part;
  struct Transfer;
  using Transfers = std::list<std::shared_ptr<Transfer>>;  // Http's callbacks share them
  // Blocks that were queued. The state of each says whether it still is: an item may be stale.
  struct Item {
    File* file;
    BlockRun run;
    bool is_retry = false;
    Backoff backoff = {};
    bool needs_new_connection = false;
    // While another process claims its blocks: since when none of them came.
    std::optional<Clock::time_point> claimed_since = {};
    bool ignores_claims = false;
    // While the item is delayed: the earliest time to fetch it, and whether it is fetched even if
    // no reader waits for it.
    Clock::time_point not_before = {};
    bool is_ahead = false;
  };
  using Items = std::list<Item>;

  // All of these: the caller holds mutex_, and those that take the lock let it go for a while.
  bool start_threads();
  bool move(File& file, std::uint64_t block, State from, State to);
  void move_all(File& file, BlockRun run, State from, State to);
  void queue(File& file, BlockRun run);
  void queue_again(Item item, State from);
  void wake_delayed();
  void advance(File& file);
  void answer(File& file, Waiters::iterator waiter, int error);
  bool is_waited(const File& file, BlockRun run) const;
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

  // The caller does not hold it.
  void work();  // the threads
  bool on_head(Transfer& transfer, const HttpHead& head);
  bool on_data(Transfer& transfer, std::span<const std::byte> bytes);
  void on_end(const std::shared_ptr<Transfer>& transfer, const HttpEnd& end);
  void finish_block(Transfer& transfer, std::uint64_t block);
  BlockRun claim(Blocks& blocks, BlockRun run);
  static void release(Blocks& blocks, BlockRun run);
  bool make_room(Blocks& blocks, BlockRun run);

  const Options options_;
  Http& http_;
  Cache& cache_;

  std::mutex mutex_;
  std::condition_variable work_;  // for the threads
  std::condition_variable left_;  // for remove()
  bool stopping_ = false;
  std::atomic<bool> is_held_ = false;
  std::vector<std::thread> threads_;

  std::map<std::string, Host> hosts_;
  std::list<File*> files_;
  Items demand_, ahead_, delayed_;
  Transfers under_way_, ended_;
  Waiters answers_, running_;
  std::list<Part> parts_;       // that broken transfers left, the oldest first
  bool has_abandoned_ = false;  // Http does not know yet
};

struct Fetcher::Waiter {  // one want()
  File* file;
  BlockRun all;
  BlockRun rest;  // all blocks before it are here, or were
  Source::Ready ready;
  Clock::time_point began;
  int error = 0;
};

// The beginning of a block.
struct Fetcher::Part {
  const File* file = nullptr;
  std::uint64_t block = 0;
  std::vector<std::byte> bytes = {};
};

// A request under way. The thread of Http has it until it ended; `done` changes under the lock, and
// what is atomic is read by others meanwhile.
struct Fetcher::Transfer {
  File* file = nullptr;
  std::atomic<bool> is_abandoned = false;  // HttpRequest::is_abandoned
  Clock::time_point began = Clock::now();
  BlockRun run = {};
  ByteRange range = {};
  bool in_memory = false;
  bool has_ahead = false;  // not all was wanted
  unsigned renewals = 0;   // File::renewals when it was made
  Backoff backoff = {};

  std::atomic<std::uint64_t> received = 0;  // bytes
  std::uint64_t done = 0;                   // blocks
  Part part = {};                           // of the block that comes
  std::atomic<bool> was_accepted = false;
  std::optional<HttpHead> head = {};  // of an answer that was not
  Verdict verdict{Verdict::Kind::kAccept};
  HttpEnd end = {};
};

struct Fetcher::File {
  const Source& source;
  const RemoteVersion version;
  const std::unique_ptr<Remote> remote;
  Blocks blocks;

  Host* host = nullptr;            // set by add()
  bool is_closed = false;          // no transfer is to begin
  Waiters waiting = {};            // the oldest first
  std::uint64_t ahead = 0;         // blocks that are State::kAhead
  unsigned renewals = 0;           // of credentials
  bool is_renewed = false;         // and no answer was good since
  Clock::time_point full_until{};  // no room on the disk: blocks go to memory
  // No claimed block came for Options::patience: what readers want is fetched, whoever claimed it.
  Clock::time_point claims_ignored_until{};
  Clock::time_point last_claimed_came{};  // a block that another process had claimed
  std::string reason = {};                // why the last request failed
  std::string failure = {};               // why the last want() failed
};

}  // namespace stfs
