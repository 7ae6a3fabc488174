#include "core/source/fetcher.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/source/cache_file.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <list>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
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

  File(const CacheFile& of, const RemoteVersion& its_version, Remote& its_remote,
       Blocks& its_blocks)
      : source(of), version(its_version), remote(its_remote), blocks(its_blocks) {}

  // Valid until is_closed, and for its users.
  const CacheFile& source;
  const RemoteVersion& version;
  Remote& remote;
  Blocks& blocks;

  bool is_closed = false;
  unsigned users = 0;              // uses without the lock, which remove() waits for
  std::list<Waiter> waiting;       // the oldest first
  std::uint64_t ahead = 0;         // blocks that are State::kAhead
  unsigned renewals = 0;           // of credentials
  bool is_renewed = false;         // and no answer was good since
  Clock::time_point full_until{};  // no room on the disk: blocks go to memory
  std::string reason;              // why the last request failed
  std::string logged;
};

// A request under way. Its mutex is taken before the Impl's.
struct Fetcher::Transfer {
  std::mutex mutex;                     // held by callbacks while they use `file`
  std::atomic<bool> is_closed = false;  // the CacheFile is gone
  std::shared_ptr<File> file;
  BlockRun run;
  ByteRange range;
  bool in_memory = false;
  bool has_ahead = false;  // not all was wanted
  unsigned renewals = 0;   // File::renewals when it was made
  Backoff backoff;

  std::uint64_t received = 0;  // bytes
  std::uint64_t done = 0;      // blocks
  std::optional<CacheEntry::Sum> sum;
  std::vector<std::byte> buffer;  // of the block that comes, if in_memory
  bool was_accepted = false;
  std::optional<HttpHead> head;  // of an answer that was not
  Verdict verdict{Verdict::Kind::kAccept};
  int disk_error = 0;
  HttpEnd end;
};

class Fetcher::Impl : public std::enable_shared_from_this<Fetcher::Impl> {
 public:
  Impl(const Options& given, Http& http, Cache& cache)
      : options(given), http_(http), cache_(cache) {}

  void add(File& file);
  void remove(File& file);
  void want(const std::shared_ptr<File>& file, ByteRange range, Source::Ready ready);
  void prefetch(const std::shared_ptr<File>& file, ByteRange range);
  void stop();

  const Options options;

 private:
  using Lock = std::unique_lock<std::mutex>;
  using State = Blocks::State;
  using Waiters = std::list<File::Waiter>;

  // Blocks that were queued. The state of each says whether it still is: an item may be stale.
  struct Item {
    std::shared_ptr<File> file;
    BlockRun run;
    bool is_retry = false;
    Backoff backoff = {};
    Clock::time_point not_before = {};
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
  BlockRun claim(Blocks& blocks, BlockRun run);
  bool make_room(Blocks& blocks, BlockRun run);
  bool take_watched(Blocks& blocks, BlockRun run);

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
  std::optional<Item> next(Items& items, State state);
  bool start_one(Lock& lock);
  void begin(Lock& lock, Item item);
  void send(Lock& lock, const std::shared_ptr<Transfer>& transfer, HttpRequest request);
  void settle(Lock& lock, Transfer& transfer);
  void renew(Lock& lock, Transfer& transfer, BlockRun rest);
  void retry(const Transfer& transfer, BlockRun rest, const std::string& reason);
  void again(const Transfer& transfer, BlockRun rest);
  void fail(File& file, BlockRun run, int error, const std::string& reason);
  void change(File& file, const std::string& reason);
  void wake_delayed();
  void poll_watched(Lock& lock);
  void log(File& file, const std::string& reason);
  void write_log(Lock& lock);
  void leave(File& file);  // after ++file.users
  void expire(Clock::time_point now);
  Clock::time_point next_deadline() const;

  Http& http_;
  Cache& cache_;

  std::mutex mutex_;
  std::condition_variable work_;        // for the preparing thread
  std::condition_variable answerable_;  // for those who answer
  std::condition_variable left_;        // for remove()
  bool stopping_ = false;
  std::vector<std::thread> threads_;
  Clock::time_point armed_ = Clock::time_point::max();  // when an idle one of them looks for expiry

  std::list<File*> files_;
  Items demand_, ahead_, delayed_, watched_;
  Clock::time_point poll_at_{};  // watched_
  Transfers under_way_, ended_;
  Waiters answers_, running_;
  std::vector<std::string> lines_;  // for the log
};

namespace {

constexpr std::chrono::milliseconds kPoll{5};  // blocks that another process has claimed
constexpr std::chrono::seconds kFull{1};       // a disk without room is tried again
constexpr unsigned kTriesAhead = 3;            // for what nobody waits for
constexpr unsigned kAnswering = 2;             // threads

}  // namespace

// --- want(), prefetch(): any thread

bool Fetcher::Impl::start_threads() {
  try {
    threads_.reserve(1 + kAnswering);
    while (threads_.size() < kAnswering) threads_.push_back(start_thread([this] { answer_all(); }));
    if (threads_.size() == kAnswering) {
      threads_.push_back(start_thread([this] { prepare_all(); }));
    }
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

bool Fetcher::Impl::move(File& file, std::uint64_t block, State from, State to) {
  if (!file.blocks.change(block, from, to)) return false;
  if (from == State::kAhead) --file.ahead;
  if (to == State::kAhead) ++file.ahead;
  return true;
}

void Fetcher::Impl::move_all(File& file, BlockRun run, State from, State to) {
  for (std::uint64_t block = run.first; block < run.end; ++block) move(file, block, from, to);
}

// Queues what is absent as demand.
void Fetcher::Impl::queue(File& file, BlockRun run, Items item) {
  bool is_any = false;
  for (std::uint64_t block = run.first; block < run.end; ++block) {
    for (const State from : {State::kUnknown, State::kAbsent, State::kAhead}) {
      if (move(file, block, from, State::kDemanded)) is_any = true;
    }
  }
  if (!is_any) return;
  item.front().run = run;
  demand_.splice(demand_.end(), item);
  work_.notify_one();
}

void Fetcher::Impl::want(const std::shared_ptr<File>& file, ByteRange range, Source::Ready ready) {
  const BlockRun run = file->blocks.run_of(range);
  Waiters waiter;
  waiter.push_back({file, run, run, {}, Clock::now()});
  Items item(1);
  item.front().file = file;
  int error = 0;
  {
    Lock lock(mutex_);
    if (file->source.has_changed()) {
      error = ESTALE;
    } else if (options.offline || !start_threads()) {
      error = EIO;
      file->source.note_failure(range.offset, range.offset + range.length, EIO);
      log(*file, options.offline ? "not in the cache, and -o offline"
                                 : "no thread can be started to fetch it");
      if (!threads_.empty()) work_.notify_one();
    } else {
      queue(*file, run, std::move(item));
      BlockRun& rest = waiter.front().rest;
      while (!rest.empty() && Blocks::is_here(file->blocks.state(rest.first))) ++rest.first;
      if (!rest.empty()) {
        waiter.front().ready = std::move(ready);
        file->waiting.splice(file->waiting.end(), waiter);
        if (options.counters != nullptr) ++options.counters->waits;
        if (armed_ == Clock::time_point::max()) answerable_.notify_one();
        return;
      }
    }
    if (options.offline) write_log(lock);
  }
  ready(error);
}

void Fetcher::Impl::prefetch(const std::shared_ptr<File>& file, ByteRange range) {
  if (options.offline) return;
  Blocks& blocks = file->blocks;
  Items item(1);
  const Lock lock(mutex_);
  if (file->source.has_changed()) return;
  const std::uint64_t most = uses_memory(*file) ? kFarthestInMemory : kFarthest;
  const BlockRun run = blocks.run_of({range.offset, std::min(range.length, most)});
  const auto is_wanted = [&](std::uint64_t block) {
    const State state = blocks.state(block);
    return (state == State::kUnknown || state == State::kAbsent) &&
           !(blocks.entry() != nullptr && blocks.entry()->is_there(block));
  };
  bool is_any = false;
  for (std::uint64_t block = run.first; block < run.end; ++block) {
    if (!is_wanted(block)) continue;
    if (!is_any && !start_threads()) return;
    const bool is_new = move(*file, block, State::kUnknown, State::kAhead) ||
                        move(*file, block, State::kAbsent, State::kAhead);
    is_any = is_any || is_new;
  }
  if (!is_any) return;
  // What was queued first makes room.
  for (auto old = ahead_.begin(); old != ahead_.end();) {
    BlockRun& left = old->run;
    if (old->file == file) {
      while (!left.empty() &&
             (file->ahead > most / Blocks::kBlock || blocks.state(left.first) != State::kAhead)) {
        move(*file, left.first++, State::kAhead, State::kAbsent);
      }
    }
    old = left.empty() ? ahead_.erase(old) : std::next(old);
  }
  item.front().file = file;
  item.front().run = run;
  ahead_.splice(ahead_.end(), item);
  work_.notify_one();
}

void Fetcher::Impl::add(File& file) {
  const Lock lock(mutex_);
  files_.push_back(&file);
}

void Fetcher::Impl::remove(File& file) {
  Waiters waiters;
  {
    const Lock lock(mutex_);
    file.is_closed = true;
    files_.remove(&file);
    waiters.splice(waiters.end(), file.waiting);
    for (Items* items : {&demand_, &ahead_, &delayed_, &watched_}) {
      items->remove_if([&](const Item& item) { return item.file.get() == &file; });
    }
  }
  for (File::Waiter& waiter : waiters) waiter.ready(ECANCELED);
  // Its transfers go on for a moment, and touch it no more.
  while (true) {
    std::shared_ptr<Transfer> open;
    {
      const Lock lock(mutex_);
      for (const Transfers* transfers : {&under_way_, &ended_}) {
        for (const auto& transfer : *transfers) {
          if (transfer->file.get() == &file && !transfer->is_closed) open = transfer;
        }
      }
    }
    if (!open) break;
    const std::lock_guard no_callback(open->mutex);
    open->is_closed = true;
  }
  Lock lock(mutex_);
  const auto is_its = [&](const File::Waiter& waiter) { return waiter.file.get() == &file; };
  left_.wait(lock, [&] {
    return file.users == 0 && std::ranges::none_of(answers_, is_its) &&
           std::ranges::none_of(running_, is_its);
  });
}

void Fetcher::Impl::stop() {
  {
    const Lock lock(mutex_);
    stopping_ = true;
    work_.notify_all();
    answerable_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

// --- Those who wait

void Fetcher::Impl::answer(File& file, Waiters::iterator waiter, int error) {
  waiter->error = error;
  answers_.splice(answers_.end(), file.waiting, waiter);
  answerable_.notify_one();
}

// Blocks have come: answers those who have all of theirs.
void Fetcher::Impl::advance(File& file) {
  for (auto next = file.waiting.begin(); next != file.waiting.end();) {
    const auto waiter = next++;
    BlockRun& rest = waiter->rest;
    while (!rest.empty() && Blocks::is_here(file.blocks.state(rest.first))) ++rest.first;
    if (rest.empty()) {
      answer(file, waiter, 0);
      continue;
    }
    // The file of the cache turned out to be damaged since.
    if (file.blocks.state(rest.first) != State::kAbsent) continue;
    try {
      Items item(1);
      item.front().file = waiter->file;
      queue(file, {rest.first, rest.first + 1}, std::move(item));
    } catch (const std::bad_alloc&) {
      answer(file, waiter, ENOMEM);
    }
  }
}

bool Fetcher::Impl::is_waited(const File& file, BlockRun run) const {
  return std::ranges::any_of(file.waiting,
                             [&](const File::Waiter& waiter) { return waiter.rest.overlaps(run); });
}

// Whether memory must keep a block for a want() or its callback.
bool Fetcher::Impl::is_needed(const File& file, std::uint64_t block) const {
  const auto needs = [&](const File::Waiter& waiter) {
    return waiter.file.get() == &file && waiter.all.overlaps({block, block + 1});
  };
  return std::ranges::any_of(file.waiting, needs) || std::ranges::any_of(answers_, needs) ||
         std::ranges::any_of(running_, needs);
}

Fetcher::Clock::time_point Fetcher::Impl::next_deadline() const {
  auto deadline = Clock::time_point::max();
  for (const File* file : files_) {
    if (file->waiting.empty()) continue;
    deadline = std::min(deadline, file->waiting.front().began + options.timeout);
  }
  return deadline;
}

void Fetcher::Impl::expire(Clock::time_point now) {
  for (File* file : files_) {
    while (!file->waiting.empty() && file->waiting.front().began + options.timeout <= now) {
      const auto waiter = file->waiting.begin();
      const ByteRange range = file->blocks.range_of(waiter->rest);
      file->source.note_failure(range.offset, range.offset + range.length, EIO);
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(options.timeout);
      log(*file, "no bytes within " + std::to_string(seconds.count()) + " s" +
                     (file->reason.empty() ? "" : ": " + file->reason));
      answer(*file, waiter, EIO);
    }
  }
}

void Fetcher::Impl::answer_all() {
  Lock lock(mutex_);
  while (true) {
    expire(Clock::now());
    if (answers_.empty()) {
      if (stopping_) return;
      const Clock::time_point deadline = next_deadline();
      armed_ = deadline;
      if (deadline == Clock::time_point::max()) {
        answerable_.wait(lock);
      } else {
        answerable_.wait_until(lock, deadline);
      }
      armed_ = Clock::time_point::max();
      continue;
    }
    const auto waiter = answers_.begin();
    running_.splice(running_.end(), answers_, waiter);
    const auto waited = Clock::now() - waiter->began;
    if (options.counters != nullptr) {
      options.counters->nanoseconds_waited += static_cast<std::uint64_t>(
          std::chrono::duration_cast<std::chrono::nanoseconds>(waited).count());
    }
    lock.unlock();
    waiter->ready(waiter->error);
    waiter->ready = nullptr;  // what it captured ends before the file does
    lock.lock();
    Waiters done;
    done.splice(done.end(), running_, waiter);
    File& file = *waiter->file;
    if (!file.is_closed) {
      file.blocks.shrink(kMemory, [&](std::uint64_t block) { return is_needed(file, block); });
    }
    left_.notify_all();
  }
}

// --- The preparing thread

void Fetcher::Impl::prepare_all() {
  Lock lock(mutex_);
  while (!stopping_) {
    if (!ended_.empty()) {
      const std::shared_ptr<Transfer> transfer = ended_.front();
      // In the list until then: remove() looks for it there.
      try {
        settle(lock, *transfer);
      } catch (const std::bad_alloc&) {
        if (!transfer->file->is_closed) {
          fail(*transfer->file, transfer->run, ENOMEM, "out of memory");
        }
      }
      ended_.remove(transfer);
      continue;
    }
    wake_delayed();
    if (!watched_.empty() && poll_at_ <= Clock::now()) {
      poll_watched(lock);
      poll_at_ = Clock::now() + kPoll;
      continue;
    }
    if (!lines_.empty()) {
      write_log(lock);
      continue;
    }
    if (start_one(lock)) continue;
    auto until = watched_.empty() ? Clock::time_point::max() : poll_at_;
    for (const Item& item : delayed_) until = std::min(until, item.not_before);
    if (until == Clock::time_point::max()) {
      work_.wait(lock);
    } else {
      work_.wait_until(lock, until);
    }
  }
}

bool Fetcher::Impl::uses_memory(const File& file) const {
  return file.blocks.entry() == nullptr || Clock::now() < file.full_until;
}

// The run of blocks to ask for next: of the first item that is not stale, and what is queued behind
// it.
std::optional<Fetcher::Impl::Item> Fetcher::Impl::next(Items& items, State state) {
  while (!items.empty()) {
    Item& item = items.front();
    File& file = *item.file;
    Blocks& blocks = file.blocks;
    while (!item.run.empty() && blocks.state(item.run.first) != state) ++item.run.first;
    if (item.run.empty()) {
      items.pop_front();
      continue;
    }
    const std::uint64_t longest = uses_memory(file)
                                      ? std::max(kMemory / options.connections, Blocks::kBlock)
                                      : kLongestRequest;
    BlockRun run{item.run.first, item.run.first};
    const auto is_queued = [&](State of) { return of == State::kDemanded || of == State::kAhead; };
    while (run.end < blocks.count() && run.end - run.first < longest / Blocks::kBlock &&
           is_queued(blocks.state(run.end))) {
      ++run.end;
    }
    if (state == State::kDemanded && !is_waited(file, run)) {  // they have gone
      move_all(file, run, State::kDemanded, State::kAbsent);
      continue;
    }
    // A window that slides adds little by little: wait for more, while the line is busy.
    const bool is_short = (run.end - run.first) * Blocks::kBlock < longest;
    if (state == State::kAhead && is_short && under_way_.size() * 2 >= options.connections &&
        run.end < blocks.count()) {
      return std::nullopt;
    }
    Item found = item;
    found.run = run;
    return found;
  }
  return std::nullopt;
}

bool Fetcher::Impl::start_one(Lock& lock) {
  if (under_way_.size() >= options.connections) return false;
  std::optional<Item> item = next(demand_, State::kDemanded);
  if (!item) item = next(ahead_, State::kAhead);
  if (!item) return false;
  const std::shared_ptr<File> file = item->file;
  const BlockRun run = item->run;
  try {
    begin(lock, std::move(*item));
  } catch (const std::bad_alloc&) {
    fail(*file, run, ENOMEM, "out of memory");
  }
  return true;
}

// Claims what can be claimed, from the beginning of a run, without a gap. Blocks before it are here
// or watched, when this returns; those behind it are as they were.
BlockRun Fetcher::Impl::claim(Blocks& blocks, BlockRun run) {
  const CacheEntry* entry = blocks.entry();
  if (entry == nullptr) return run;
  BlockRun ours{run.first, run.first};
  for (std::uint64_t block = run.first; block < run.end; ++block) {
    const bool is_claimed = entry->claim(block);
    if (is_claimed && !entry->is_there(block)) {
      ours.end = block + 1;
      continue;
    }
    const bool is_here = blocks.take_published(block);
    if (is_claimed && !is_here && !entry->is_there(block)) {  // it was damaged
      ours.end = block + 1;
      continue;
    }
    if (is_claimed) entry->release(block);
    if (!is_here && ours.empty()) blocks.change(block, State::kComing, State::kWatched);
    if (!ours.empty()) break;
    ours = {block + 1, block + 1};
  }
  return ours;
}

bool Fetcher::Impl::make_room(Blocks& blocks, BlockRun run) {
  const ByteRange range = blocks.range_of(run);
  int error = blocks.entry()->reserve(range);
  if ((error == ENOSPC || error == EDQUOT) && cache_.make_room(range.length)) {
    error = blocks.entry()->reserve(range);
  }
  return error == 0;
}

void Fetcher::Impl::begin(Lock& lock, Item item) {
  File& file = *item.file;
  Blocks& blocks = file.blocks;
  const auto transfer = std::make_shared<Transfer>();
  Items watched(1, item), rest(1, item);
  for (std::uint64_t block = item.run.first; block < item.run.end; ++block) {
    if (move(file, block, State::kAhead, State::kComing)) transfer->has_ahead = true;
    move(file, block, State::kDemanded, State::kComing);
  }
  transfer->file = item.file;
  transfer->in_memory = uses_memory(file);
  transfer->renewals = file.renewals;
  transfer->backoff = item.backoff;
  ++file.users;
  lock.unlock();

  BlockRun run = claim(blocks, item.run);
  bool is_full = false;
  if (!run.empty() && !transfer->in_memory) {
    is_full = transfer->in_memory = !make_room(blocks, run);
  }
  if (transfer->in_memory) {  // others may try to cache it
    if (blocks.entry() != nullptr) {
      for (std::uint64_t block = run.first; block < run.end; ++block) {
        blocks.entry()->release(block);
      }
    }
    const std::uint64_t most =
        std::max(kMemory / options.connections / Blocks::kBlock, std::uint64_t{1});
    run.end = std::min(run.end, run.first + most);
  }
  transfer->run = run;
  transfer->range = blocks.range_of(run);
  HttpRequest request;
  std::string failure;
  if (!run.empty()) {
    try {
      request = file.remote.request(transfer->range);
    } catch (const Error& error) {
      failure = error.message();
    } catch (const std::exception&) {
      failure = "out of memory";
    }
  }

  lock.lock();
  if (!file.is_closed) {
    if (is_full) file.full_until = Clock::now() + kFull;
    watched.front().run = {item.run.first, run.first};
    if (!run.empty() || item.run.first < run.first) advance(file);
    if (item.run.first < run.first) {
      watched_.splice(watched_.end(), watched);
      poll_at_ = std::min(poll_at_, Clock::now() + kPoll);
    }
    rest.front().run = {run.end, item.run.end};
    queue_again(std::move(rest), State::kComing);
    if (!failure.empty()) {
      if (!transfer->in_memory && blocks.entry() != nullptr) {
        for (std::uint64_t block = run.first; block < run.end; ++block) {
          blocks.entry()->release(block);
        }
      }
      fail(file, run, EIO, failure);
    } else if (!run.empty()) {
      if (item.is_retry && options.counters != nullptr) ++options.counters->retries;
      send(lock, transfer, std::move(request));
    }
  }
  leave(file);
}

void Fetcher::Impl::send(Lock& lock, const std::shared_ptr<Transfer>& transfer,
                         HttpRequest request) {
  HttpCallbacks callbacks;
  const std::shared_ptr<Impl> self = shared_from_this();
  callbacks.head = [self, transfer](const HttpHead& head) {
    return self->on_head(*transfer, head);
  };
  callbacks.data = [self, transfer](std::span<const std::byte> bytes) {
    return self->on_data(*transfer, bytes);
  };
  callbacks.end = [self, transfer](const HttpEnd& end) { self->on_end(transfer, end); };
  under_way_.push_back(transfer);
  lock.unlock();
  std::string failure;
  try {
    http_.start(std::move(request), std::move(callbacks));
  } catch (const Error& error) {
    failure = error.message();
  } catch (const std::exception&) {
    failure = "out of memory";
  }
  if (!failure.empty()) on_end(transfer, {EIO, failure});
  lock.lock();
}

void Fetcher::Impl::leave(File& file) {
  --file.users;
  left_.notify_all();
}

// Queues blocks that were in a request, before all others.
void Fetcher::Impl::queue_again(Items item, State from) {
  const BlockRun run = item.front().run;
  File& file = *item.front().file;
  if (run.empty()) return;
  const bool is_demand = is_waited(file, run);
  move_all(file, run, from, is_demand ? State::kDemanded : State::kAhead);
  Items& items = is_demand ? demand_ : ahead_;
  items.splice(items.begin(), item);
}

void Fetcher::Impl::settle(Lock& lock, Transfer& transfer) {
  File& file = *transfer.file;
  if (file.is_closed) return;
  const BlockRun rest{transfer.run.first + transfer.done, transfer.run.end};
  if (!transfer.in_memory && file.blocks.entry() != nullptr) {
    for (std::uint64_t block = rest.first; block < rest.end; ++block) {
      file.blocks.entry()->release(block);
    }
  }
  if (transfer.was_accepted) file.is_renewed = false;
  if (rest.empty()) return;
  const std::string& text = transfer.verdict.text;
  if (transfer.disk_error != 0) {
    file.full_until = Clock::now() + kFull;
    return again(transfer, rest);
  }
  switch (transfer.verdict.kind) {
    case Verdict::Kind::kAccept:
      if (transfer.end.error == EACCES || transfer.end.error == EPROTO) {
        return fail(file, rest, transfer.end.error == EACCES ? EACCES : EIO, transfer.end.text);
      }
      return retry(transfer, rest,
                   transfer.end.error == 0 ? "the answer ended early" : transfer.end.text);
    case Verdict::Kind::kRetry:
      return retry(transfer, rest, text);
    case Verdict::Kind::kRenew:
      return renew(lock, transfer, rest);
    case Verdict::Kind::kChanged:
      return change(file, text);
    case Verdict::Kind::kRefused:
      return fail(file, rest, EIO, text);
  }
}

void Fetcher::Impl::again(const Transfer& transfer, BlockRun rest) {
  queue_again(Items(1, {transfer.file, rest, true, transfer.backoff}), State::kComing);
}

void Fetcher::Impl::renew(Lock& lock, Transfer& transfer, BlockRun rest) {
  File& file = *transfer.file;
  if (transfer.renewals != file.renewals) return again(transfer, rest);  // it was sent before
  std::string text = transfer.verdict.text;
  if (!std::exchange(file.is_renewed, true)) {
    ++file.renewals;
    ++file.users;
    lock.unlock();
    bool is_new = false;
    try {
      is_new = file.remote.renew();
    } catch (const Error& error) {
      text = error.message();
    } catch (const std::exception&) {
      text = "out of memory";
    }
    lock.lock();
    leave(file);
    if (file.is_closed) return;
    if (is_new) return again(transfer, rest);
  }
  file.is_renewed = false;
  fail(file, rest, EACCES, text);
}

void Fetcher::Impl::retry(const Transfer& transfer, BlockRun rest, const std::string& reason) {
  File& file = *transfer.file;
  file.reason = printable(reason);
  const bool is_worth = transfer.has_ahead && transfer.backoff.tries() < kTriesAhead;
  if (!is_waited(file, rest) && !is_worth) {
    return move_all(file, rest, State::kComing, State::kAbsent);
  }
  Item item{transfer.file, rest, true, transfer.done > 0 ? Backoff() : transfer.backoff};
  // A server may ask for a day; the next want() after a timeout asks again.
  const auto pause = item.backoff.next(transfer.head ? &*transfer.head : nullptr);
  item.not_before = Clock::now() + std::min(pause, options.timeout);
  delayed_.push_back(std::move(item));
  move_all(file, rest, State::kComing, State::kDelayed);
}

void Fetcher::Impl::wake_delayed() {
  const Clock::time_point now = Clock::now();
  for (auto next = delayed_.begin(); next != delayed_.end();) {
    const auto item = next++;
    if (now < item->not_before) continue;
    Items due;
    due.splice(due.end(), delayed_, item);
    if (is_waited(*item->file, item->run) || item->backoff.tries() <= kTriesAhead) {
      queue_again(std::move(due), State::kDelayed);
    } else {
      move_all(*item->file, item->run, State::kDelayed, State::kAbsent);
    }
  }
}

// Looks at blocks that another process has claimed. Returns whether it has them no more.
bool Fetcher::Impl::take_watched(Blocks& blocks, BlockRun run) {
  for (std::uint64_t block = run.first; block < run.end; ++block) {
    if (blocks.state(block) != State::kWatched) continue;
    if (blocks.entry()->is_there(block)) {
      blocks.change(block, State::kWatched, State::kComing);
      if (blocks.take_published(block)) continue;
      blocks.change(block, State::kComing, State::kWatched);
    }
    if (!blocks.entry()->claim(block)) return false;
    blocks.entry()->release(block);
    return true;
  }
  return false;
}

void Fetcher::Impl::poll_watched(Lock& lock) {
  Items items;
  items.splice(items.end(), watched_);
  while (!items.empty()) {
    Items item;
    item.splice(item.end(), items, items.begin());
    const std::shared_ptr<File> file = item.front().file;
    BlockRun& run = item.front().run;
    if (file->is_closed) continue;
    if (!is_waited(*file, run)) {
      move_all(*file, run, State::kWatched, State::kAbsent);
      continue;
    }
    ++file->users;
    lock.unlock();
    const bool is_free = take_watched(file->blocks, run);
    lock.lock();
    leave(*file);
    if (file->is_closed) continue;
    while (!run.empty() && file->blocks.state(run.first) != State::kWatched) ++run.first;
    if (is_free) {
      queue_again(std::move(item), State::kWatched);
    } else if (!run.empty()) {
      watched_.splice(watched_.end(), item);
    }
    advance(*file);
  }
}

// Ends all that waits for a run, and does not ask for it again.
void Fetcher::Impl::fail(File& file, BlockRun run, int error, const std::string& reason) {
  log(file, reason);
  const ByteRange range = file.blocks.range_of(run);
  file.source.note_failure(range.offset, range.offset + range.length, error);
  for (auto next = file.waiting.begin(); next != file.waiting.end();) {
    const auto waiter = next++;
    if (waiter->rest.overlaps(run)) answer(file, waiter, error);
  }
  move_all(file, run, State::kComing, State::kAbsent);
}

// The object is another one now: what is not here will never be.
void Fetcher::Impl::change(File& file, const std::string& reason) {
  if (!file.source.has_changed()) log(file, reason);
  file.source.mark_changed();
  while (!file.waiting.empty()) answer(file, file.waiting.begin(), ESTALE);
  for (Items* items : {&demand_, &ahead_, &delayed_, &watched_}) {
    for (auto next = items->begin(); next != items->end();) {
      const auto item = next++;
      if (item->file.get() == &file) items->erase(item);
    }
  }
}

void Fetcher::Impl::log(File& file, const std::string& reason) {
  if (!options.log || file.logged == reason) return;
  file.logged = reason;
  lines_.push_back(Error(ErrorCode::kUnreadable, file.version.name, printable(reason)).what());
  work_.notify_one();
}

void Fetcher::Impl::write_log(Lock& lock) {
  const std::vector<std::string> lines = std::exchange(lines_, {});
  lock.unlock();
  for (const std::string& line : lines) options.log(line);
  lock.lock();
}

// --- The thread of Http

bool Fetcher::Impl::on_head(Transfer& transfer, const HttpHead& head) {
  const std::lock_guard lock(transfer.mutex);
  if (transfer.is_closed) return false;
  try {
    transfer.verdict = transfer.file->remote.judge(head, transfer.range);
    transfer.was_accepted = transfer.verdict.kind == Verdict::Kind::kAccept;
    if (!transfer.was_accepted) transfer.head = head;
  } catch (const std::exception&) {
    transfer.verdict = {Verdict::Kind::kRetry};
  }
  return transfer.was_accepted;
}

bool Fetcher::Impl::on_data(Transfer& transfer, std::span<const std::byte> bytes) {
  const std::lock_guard lock(transfer.mutex);
  if (transfer.is_closed || !transfer.was_accepted) return false;
  try {
    if (bytes.size() > transfer.range.length - transfer.received) {
      transfer.verdict = {Verdict::Kind::kRefused, "more bytes than were asked for"};
      return false;
    }
    Blocks& blocks = transfer.file->blocks;
    while (!bytes.empty()) {
      const std::uint64_t block = transfer.run.first + transfer.done;
      const std::uint64_t at = transfer.range.offset + transfer.received;
      const ByteRange whole = blocks.range_of({block, block + 1});
      const std::uint64_t left = whole.offset + whole.length - at;
      const auto part =
          bytes.first(static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), left)));
      if (!store(transfer, part, at)) return false;
      transfer.received += part.size();
      if (part.size() == left) finish_block(transfer, block);
      bytes = bytes.subspan(part.size());
    }
    return true;
  } catch (const std::exception&) {
    transfer.verdict = {Verdict::Kind::kRetry};
    return false;
  }
}

bool Fetcher::Impl::store(Transfer& transfer, std::span<const std::byte> bytes,
                          std::uint64_t offset) {
  if (transfer.in_memory) {
    const ByteRange whole =
        transfer.file->blocks.range_of({offset / Blocks::kBlock, offset / Blocks::kBlock + 1});
    transfer.buffer.reserve(static_cast<std::size_t>(whole.length));
    transfer.buffer.insert(transfer.buffer.end(), bytes.begin(), bytes.end());
    return true;
  }
  const CacheEntry& entry = *transfer.file->blocks.entry();
  transfer.disk_error = entry.write(bytes, offset);
  if (transfer.disk_error != 0) return false;
  if (!transfer.sum) transfer.sum.emplace(entry, offset / Blocks::kBlock);
  transfer.sum->add(bytes);
  return true;
}

void Fetcher::Impl::finish_block(Transfer& transfer, std::uint64_t block) {
  File& file = *transfer.file;
  Blocks& blocks = file.blocks;
  if (!transfer.in_memory) {
    blocks.entry()->publish(block, transfer.sum->value());
    blocks.entry()->release(block);
    transfer.sum.reset();
  }
  const Lock lock(mutex_);
  if (transfer.in_memory) {
    blocks.keep(block, State::kComing, std::exchange(transfer.buffer, {}));
  } else {
    blocks.change(block, State::kComing, State::kHere);
  }
  ++transfer.done;
  advance(file);
  if (!transfer.in_memory) return;
  blocks.shrink(kMemory, [&](std::uint64_t of) { return is_needed(file, of); });
}

void Fetcher::Impl::on_end(const std::shared_ptr<Transfer>& transfer, const HttpEnd& end) {
  const Lock lock(mutex_);
  try {
    transfer->end = end;
  } catch (const std::bad_alloc&) {
    transfer->end.error = end.error;
  }
  const auto at = std::ranges::find(under_way_, transfer);
  if (at != under_way_.end()) ended_.splice(ended_.end(), under_way_, at);
  work_.notify_one();
}

// --- The class

Fetcher::Fetcher(const Options& options, Http& http, Cache& cache)
    : impl_(std::make_shared<Impl>(options, http, cache)) {}

Fetcher::~Fetcher() { impl_->stop(); }

Counters* Fetcher::counters() const { return impl_->options.counters; }

std::shared_ptr<Fetcher::File> Fetcher::add(const CacheFile& source, const RemoteVersion& version,
                                            Remote& remote, Blocks& blocks) {
  const auto file = std::make_shared<File>(source, version, remote, blocks);
  impl_->add(*file);
  return file;
}

void Fetcher::remove(File& file) { impl_->remove(file); }

void Fetcher::want(const std::shared_ptr<File>& file, ByteRange range, Source::Ready ready) {
  impl_->want(file, range, std::move(ready));
}

void Fetcher::prefetch(const std::shared_ptr<File>& file, ByteRange range) {
  try {
    impl_->prefetch(file, range);
  } catch (const std::bad_alloc&) {
    // Nobody is told.
  }
}

}  // namespace stfs
