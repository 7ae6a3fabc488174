// The inside of a Fetcher: for fetcher.cpp (queues, and those who wait) and fetcher_requests.cpp
// (the preparing thread, and what Http calls). fetcher.h says how it works.
//
// One mutex guards the queues, the waiters and all changes of a block's state but those that
// blocks.h names. It is not held while a system call of the cache, a Remote, Http or a callback
// runs. Order of locks: Transfer::mutex, Impl::mutex_, the memory's of Blocks.
#pragma once

#include "core/remote/cache/cache_file.h"
#include "core/remote/cache/fetcher.h"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <list>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace stfs {

struct Fetcher::File {
  struct Waiter {  // one want()
    std::shared_ptr<File> file;
    BlockRun all;
    BlockRun rest;  // all blocks before it are here, or were
    Source::Ready ready;
    Clock::time_point began;
    int error = 0;
  };

  // The beginning of a block.
  struct Part {
    std::uint64_t block = 0;
    std::uint64_t bytes = 0;
    std::optional<CacheEntry::Sum> sum = {};  // of those in the cache's file
    std::vector<std::byte> buffer = {};       // or the bytes
  };

  File(const CacheFile& of, const RemoteVersion& its_version, Remote& its_remote,
       Blocks& its_blocks)
      : source(of),
        version(its_version),
        remote(its_remote),
        blocks(its_blocks),
        host(its_version.name.substr(
            0, its_version.name.find('/', its_version.name.find("://") + 3))) {}

  // Valid until is_closed, and for its users.
  const CacheFile& source;
  const RemoteVersion& version;
  Remote& remote;
  Blocks& blocks;
  const std::string host;  // of its name, with the scheme

  bool is_closed = false;
  unsigned users = 0;              // uses without the lock, which remove() waits for
  std::list<Waiter> waiting;       // the oldest first
  std::list<Part> parts;           // that broken transfers left, the oldest first
  std::uint64_t ahead = 0;         // blocks that are State::kAhead
  unsigned renewals = 0;           // of credentials
  bool is_renewed = false;         // and no answer was good since
  Clock::time_point full_until{};  // no room on the disk: blocks go to memory
  Clock::time_point last_taken{};  // a block that another process brought
  // None came for Options::patience: what readers want is fetched into memory, whoever claimed it.
  Clock::time_point claims_ignored_until{};
  std::string reason;  // why the last request failed
  std::string logged;  // why the last want() failed
};

// A request under way. Its mutex is taken before the Impl's.
struct Fetcher::Transfer {
  std::mutex mutex;                        // held by callbacks while they use `file`
  std::atomic<bool> is_closed = false;     // the CacheFile is gone
  std::atomic<bool> is_abandoned = false;  // HttpRequest::is_abandoned
  Clock::time_point began = Clock::now();
  std::shared_ptr<File> file;
  BlockRun run;
  ByteRange range;
  bool in_memory = false;
  std::uint64_t losses = 0;  // of the cache's file when it began
  bool has_ahead = false;    // not all was wanted
  unsigned renewals = 0;     // File::renewals when it was made
  Backoff backoff;

  std::uint64_t received = 0;  // bytes
  std::uint64_t done = 0;      // blocks
  File::Part part;             // of the block that comes
  bool was_accepted = false;
  std::optional<HttpHead> head;  // of an answer that was not
  Verdict verdict{Verdict::Kind::kAccept};
  int disk_error = 0;
  HttpEnd end;
};

class Fetcher::Impl : public std::enable_shared_from_this<Fetcher::Impl> {
 public:
  using Lock = std::unique_lock<std::mutex>;

  Impl(Options given, Http& http, Cache& cache)
      : options(std::move(given)), http_(http), cache_(cache) {}

  void add(File& file);
  void remove(File& file);
  void want(const std::shared_ptr<File>& file, ByteRange range, Source::Ready ready);
  void prefetch(const std::shared_ptr<File>& file, ByteRange range);
  std::string failure_text(const File& file);
  void stop();
  void hold(bool is_held) { is_held_ = is_held; }

  const Options options;

 private:
  using State = Blocks::State;
  using Waiters = std::list<File::Waiter>;

  // Blocks that were queued. The state of each says whether it still is: an item may be stale.
  struct Item {
    std::shared_ptr<File> file;
    BlockRun run;
    bool is_retry = false;
    Backoff backoff = {};
    bool needs_new_connection = false;
    // Of one that was watched: since when no block of it came; the claims of others do not count.
    std::optional<Clock::time_point> watched_since = {};
    bool ignores_claims = false;
    // Of a delayed one:
    Clock::time_point not_before = {};
    bool is_ahead = false;
  };
  // Uses a file without the lock. Takes the lock again at the end, if that was not done.
  struct Unlocked {
    Unlocked(Impl& impl, File& file, Lock& lock) : impl_(impl), file_(file), lock_(lock) {
      ++file_.users;
      lock_.unlock();
    }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;
    ~Unlocked() {
      if (!lock_.owns_lock()) lock_.lock();
      --file_.users;
      impl_.left_.notify_all();
    }

   private:
    Impl& impl_;
    File& file_;
    Lock& lock_;
  };
  // Lists: moving an item between them cannot fail.
  using Items = std::list<Item>;
  using Transfers = std::list<std::shared_ptr<Transfer>>;

  // All but the first group: the caller holds mutex_.
  void prepare_all();
  void answer_all();
  bool on_head(Transfer& transfer, const HttpHead& head);
  bool on_data(Transfer& transfer, std::span<const std::byte> bytes);
  void on_end(const std::shared_ptr<Transfer>& transfer, const HttpEnd& end);
  bool store(Transfer& transfer, std::span<const std::byte> bytes, std::uint64_t offset);
  void finish_block(Transfer& transfer, std::uint64_t block);
  static void release(Blocks& blocks, BlockRun run);
  BlockRun claim(Blocks& blocks, BlockRun run);
  bool make_room(Blocks& blocks, BlockRun run);
  unsigned take_watched(Blocks& blocks, BlockRun run, bool& is_free);

  static File::Part take_part(File& file, std::uint64_t block);
  static void keep_part(File& file, File::Part part);
  static bool is_still_there(const CacheEntry& entry, const File::Part& part);

  bool start_threads();
  bool move(File& file, std::uint64_t block, State from, State to);
  void move_all(File& file, BlockRun run, State from, State to);
  void queue(File& file, BlockRun run, Items item);
  void queue_again(Items item, State from);
  void advance(File& file);
  void answer(File& file, Waiters::iterator waiter, int error);
  bool is_waited(const File& file, BlockRun run) const;
  bool is_needed(const File& file, std::uint64_t block) const;
  bool uses_memory(const File& file) const;
  void shrink(File& file);
  std::optional<Item> next(Items& items, State state);
  std::size_t requests_to(const std::string& host) const;  // that are under way
  bool start_one(Lock& lock);
  void begin(Lock& lock, const Item& item);
  void send(Lock& lock, const std::shared_ptr<Transfer>& transfer, HttpRequest request);
  void settle(Lock& lock, Transfer& transfer);
  void renew(Lock& lock, Transfer& transfer, BlockRun rest);
  void retry(const Transfer& transfer, BlockRun rest, const std::string& reason);
  void again(const Transfer& transfer, BlockRun rest, bool needs_new_connection = false);
  void fail(File& file, BlockRun run, int error, const std::string& reason);
  void change(File& file, const std::string& reason);
  void wake_delayed();
  void poll_watched(Lock& lock);
  void log(File& file, const std::string& reason);
  void write_log(Lock& lock);
  void expire(Clock::time_point now);
  void abandon(const File& file, BlockRun missed, Clock::time_point now);
  Clock::time_point next_deadline() const;

  Http& http_;
  Cache& cache_;

  std::mutex mutex_;
  std::condition_variable work_;        // for the preparing thread
  std::condition_variable answerable_;  // for those who answer
  std::condition_variable left_;        // for remove()
  bool stopping_ = false;
  std::atomic<bool> is_held_ = false;
  std::vector<std::thread> threads_;
  Clock::time_point armed_ = Clock::time_point::max();  // when an idle one of them looks for expiry

  std::list<File*> files_;
  Items demand_, ahead_, delayed_, watched_;
  Clock::time_point poll_at_{};  // watched_
  Transfers under_way_, ended_;
  Waiters answers_, running_;
  std::vector<std::string> lines_;  // for the log
  bool has_abandoned_ = false;      // Http does not know yet
};

}  // namespace stfs
