// The queues and the waiting readers.
#include "core/remote/cache/fetcher.h"

#include "core/base/posix.h"
#include "core/base/text.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <limits>
#include <utility>

namespace stfs {

Fetcher::Fetcher(const Options& options, Http& http, Cache& cache)
    : options_(options), http_(http), cache_(cache) {}

Fetcher::~Fetcher() {
  {
    const Lock lock(mutex_);
    stopping_ = true;
    work_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

// --- want() and prefetch(), called on any thread

bool Fetcher::start_threads() try {
  while (threads_.size() < kAnswering + hosts_.size()) {
    threads_.push_back(start_thread([this] { work(); }));
  }
  return true;
} catch (const std::exception&) {
  return false;
}

bool Fetcher::move(File& file, std::uint64_t block, State from, State to) {
  if (!file.blocks.change(block, from, to)) return false;
  if (from == State::kPrefetchQueued) --file.ahead;
  if (to == State::kPrefetchQueued) ++file.ahead;
  return true;
}

void Fetcher::move_all(File& file, BlockRun run, State from, State to) {
  for (std::uint64_t block = run.first; block < run.end; ++block) move(file, block, from, to);
}

// Queues the absent blocks of a run as demand.
void Fetcher::queue(File& file, BlockRun run) {
  bool is_any = false;
  for (std::uint64_t block = run.first; block < run.end; ++block) {
    for (const State from : {State::kUnknown, State::kAbsent, State::kPrefetchQueued}) {
      if (move(file, block, from, State::kReadQueued)) is_any = true;
    }
  }
  if (!is_any) return;
  demand_.push_back({&file, run});
  work_.notify_one();
}

void Fetcher::want(File& file, ByteRange range, Source::Ready ready) {
  const BlockRun run = file.blocks.run_of(range);
  int error = 0;
  {
    const Lock lock(mutex_);
    const char* const refusal = options_.offline ? "offline, and these bytes were never fetched"
                                : is_paused_
                                    ? "the cache has lost the fetched bytes: mount it again"
                                : !start_threads() ? "no thread can be started to fetch it"
                                                   : nullptr;
    if (file.source.has_changed()) {
      error = ESTALE;
    } else if (refusal != nullptr) {
      error = EIO;
      file.source.record_failure(range.offset, range.offset + range.length, EIO);
      file.failure = refusal;
    } else {
      queue(file, run);
      BlockRun rest = run;
      while (!rest.empty() && Blocks::is_here(file.blocks.state(rest.first))) ++rest.first;
      if (!rest.empty()) {
        file.waiting.push_back({&file, run, rest, std::move(ready), Clock::now()});
        tally(options_.counters, &Counters::waits);
        work_.notify_one();
        return;
      }
    }
  }
  ready(error);
}

void Fetcher::prefetch(File& file, ByteRange range) {
  if (options_.offline || is_paused_) return;
  Blocks& blocks = file.blocks;
  BlockRun run = blocks.run_of({range.offset, std::min(range.length, kMaxPrefetch)});
  // Skip blocks that are in memory or in the cache. Blocks in the cache are checked when they are
  // read.
  std::array<bool, kMaxPrefetch / Blocks::kBlock + 1> is_wanted{};
  for (std::uint64_t block = run.first; block < run.end; ++block) {
    const State state = blocks.state(block);
    is_wanted[block - run.first] = (state == State::kUnknown || state == State::kAbsent) &&
                                   !(blocks.entry() != nullptr && blocks.entry()->is_there(block));
  }
  if (std::ranges::none_of(is_wanted, [](bool is) { return is; })) return;
  const Lock lock(mutex_);
  if (file.source.has_changed() || !start_threads()) return;
  const std::uint64_t most = uses_memory(file) ? kFarthestInMemory : kMaxPrefetch;
  run.end = std::min(run.end, run.first + most / Blocks::kBlock);
  for (std::uint64_t block = run.first; block < run.end; ++block) {
    if (!is_wanted[block - run.first]) continue;
    move(file, block, State::kUnknown, State::kPrefetchQueued);
    move(file, block, State::kAbsent, State::kPrefetchQueued);
  }
  // Remove the oldest runs to make room.
  for (auto old = ahead_.begin(); old != ahead_.end();) {
    BlockRun& left = old->run;
    if (old->file == &file) {
      while (!left.empty() && (file.ahead > most / Blocks::kBlock ||
                               blocks.state(left.first) != State::kPrefetchQueued)) {
        move(file, left.first++, State::kPrefetchQueued, State::kAbsent);
      }
    }
    old = left.empty() ? ahead_.erase(old) : std::next(old);
  }
  ahead_.push_back({&file, run});
  work_.notify_one();
}

std::string Fetcher::failure_text(const File& file) {
  const Lock lock(mutex_);
  return file.failure;
}

void Fetcher::add(File& file) {
  const std::string& name = file.version.name;
  // All models of the Hub share one host.
  const bool is_hub = name.starts_with("hf://");
  const Lock lock(mutex_);
  const std::string host = is_hub ? "hf://" : name.substr(0, name.find('/', name.find("://") + 3));
  file.host = &hosts_[host];
  file.host->name = host;
  files_.push_back(&file);
}

bool Fetcher::uses(const File& file) const {
  const auto is_its = [&](const Waiter& waiter) { return waiter.file == &file; };
  const auto is_of = [&](const auto& transfer) { return transfer->file == &file; };
  return file.host->serving == &file || std::ranges::any_of(under_way_, is_of) ||
         std::ranges::any_of(ended_, is_of) || std::ranges::any_of(answers_, is_its) ||
         std::ranges::any_of(running_, is_its);
}

void Fetcher::remove(File& file) {
  Lock lock(mutex_);
  file.is_closed = true;
  while (!file.waiting.empty()) answer(file, file.waiting.begin(), ECANCELED);
  for (const auto& transfer : under_way_) {
    if (transfer->file == &file) transfer->is_abandoned = true;
  }
  lock.unlock();
  http_.look();
  lock.lock();
  left_.wait(lock, [&] { return !uses(file); });
  files_.remove(&file);
  parts_.remove_if([&](const Part& part) { return part.file == &file; });
  for (Items* items : {&demand_, &ahead_, &delayed_}) {
    items->remove_if([&](const Item& item) { return item.file == &file; });
  }
}

// --- Waiting readers

void Fetcher::answer(File& file, Waiters::iterator waiter, int error) {
  waiter->error = error;
  answers_.splice(answers_.end(), file.waiting, waiter);
  work_.notify_one();
}

// Called after blocks have arrived. Calls back the readers whose blocks are all here.
void Fetcher::advance(File& file) {
  for (auto next = file.waiting.begin(); next != file.waiting.end();) {
    const auto waiter = next++;
    BlockRun& rest = waiter->rest;
    while (!rest.empty() && Blocks::is_here(file.blocks.state(rest.first))) ++rest.first;
    if (rest.empty()) {
      answer(file, waiter, 0);
      continue;
    }
    // The cache's file turned out to be damaged since, or must be checked again.
    queue(file, {rest.first, rest.first + 1});
  }
}

bool Fetcher::has_waiter(const File& file, BlockRun run) const {
  return std::ranges::any_of(file.waiting,
                             [&](const Waiter& waiter) { return waiter.rest.overlaps(run); });
}

// Returns true if memory must keep a block for a want() or its callback.
bool Fetcher::is_needed(const File& file, std::uint64_t block) const {
  const auto needs = [&](const Waiter& waiter) {
    return waiter.file == &file && waiter.all.overlaps({block, block + 1});
  };
  return std::ranges::any_of(file.waiting, needs) || std::ranges::any_of(answers_, needs) ||
         std::ranges::any_of(running_, needs);
}

void Fetcher::shrink(File& file) {
  file.blocks.shrink(kMemory, [&](std::uint64_t block) { return is_needed(file, block); });
}

// Returns why a reader's blocks did not arrive in time, for a message.
std::string Fetcher::awaited(const Waiter& waiter) const {
  for (const Transfers* transfers : {&under_way_, &ended_}) {
    for (const auto& transfer : *transfers) {
      const BlockRun rest{transfer->run.first + transfer->done, transfer->run.end};
      if (transfer->file != waiter.file || !waiter.rest.overlaps(rest)) continue;
      if (!transfer->was_accepted) return "it did not answer the request";
      return "it sent " + std::to_string(transfer->received) + " of " +
             std::to_string(transfer->range.length) + " bytes, and stalled";
    }
  }
  if (!waiter.file->reason.empty()) return waiter.file->reason;
  const unsigned requests = waiter.file->host->requests;
  if (requests < options_.connections) return "it did not answer the request";
  return "all " + std::to_string(requests) +
         " connections to it are busy with requests that do not end";
}

void Fetcher::expire(Clock::time_point now) {
  for (File* file : files_) {
    BlockRun missed{std::numeric_limits<std::uint64_t>::max(), 0};  // of all readers that timed out
    while (!file->waiting.empty() && file->waiting.front().began + options_.timeout <= now) {
      const auto waiter = file->waiting.begin();
      missed.first = std::min(missed.first, waiter->rest.first);
      missed.end = std::max(missed.end, waiter->rest.end);
      const ByteRange range = file->blocks.range_of(waiter->rest);
      file->source.record_failure(range.offset, range.offset + range.length, EIO);
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(options_.timeout);
      file->failure = "no bytes within " + std::to_string(seconds.count()) + " s from " +
                      printable(file->host->name) + ": " + awaited(*waiter);
      if (options_.counters != nullptr) options_.counters->add_timeout(file->host->name);
      answer(*file, waiter, EIO);
    }
    if (missed.end != 0) abandon(*file, missed, now);
  }
}

// Aborts the transfers that readers waited for without result, and, if the host has no free
// connection, its other transfers. Spares a transfer if another reader waits for it and it has
// taken less than half of the timeout.
void Fetcher::abandon(const File& file, BlockRun missed, Clock::time_point now) {
  const bool is_busy = file.host->requests >= options_.connections;
  for (const auto& transfer : under_way_) {
    const BlockRun rest{transfer->run.first + transfer->done, transfer->run.end};
    const bool is_its = transfer->file == &file && missed.overlaps(rest);
    if (!is_its && !(is_busy && transfer->file->host == file.host)) continue;
    const bool is_old = transfer->began + options_.timeout / 2 <= now;
    if (!is_old && has_waiter(*transfer->file, rest)) continue;
    transfer->is_abandoned = has_abandoned_ = true;
  }
}

// Calls back one reader. Returns false if no reader is to be called back, or if kAnswering
// callbacks are running already.
bool Fetcher::answer_one(Lock& lock) {
  if (answers_.empty() || running_.size() >= kAnswering) return false;
  running_.splice(running_.end(), answers_, answers_.begin());
  const auto waiter = std::prev(running_.end());
  const auto waited = Clock::now() - waiter->began;
  tally(options_.counters, &Counters::nanoseconds_waited,
        static_cast<std::uint64_t>(
            std::chrono::duration_cast<std::chrono::nanoseconds>(waited).count()));
  work_.notify_one();  // the callback may take long: another thread takes over
  lock.unlock();
  waiter->ready(waiter->error);
  waiter->ready = nullptr;  // destroy what it captured before the file is destroyed
  lock.lock();
  File& file = *waiter->file;
  running_.erase(waiter);
  shrink(file);
  left_.notify_all();
  return true;
}

Fetcher::Clock::time_point Fetcher::next_deadline() const {
  Clock::time_point next = Clock::now() + std::chrono::hours(1);
  for (const Item& item : delayed_) next = std::min(next, item.not_before);
  for (const File* file : files_) {
    if (file->waiting.empty()) continue;
    next = std::min(next, file->waiting.front().began + options_.timeout);
  }
  return next;
}

void Fetcher::work() {
  Lock lock(mutex_);
  while (!stopping_) {
    expire(Clock::now());
    wake_delayed();
    if (std::exchange(has_abandoned_, false)) {
      lock.unlock();
      http_.look();
      lock.lock();
    } else if (!answer_one(lock) && !serve_one(lock)) {
      work_.wait_until(lock, next_deadline());
    }
  }
}

}  // namespace stfs
