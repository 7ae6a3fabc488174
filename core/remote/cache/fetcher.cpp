#include "core/remote/cache/fetcher.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/remote/cache/fetcher_impl.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <limits>
#include <new>
#include <utility>

namespace stfs {

// --- want(), prefetch(): any thread

bool Fetcher::Impl::start_threads() {
  try {
    constexpr unsigned kAnswering = 2;
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
    } else if (options.offline || is_held_ || !start_threads()) {
      error = EIO;
      file->source.note_failure(range.offset, range.offset + range.length, EIO);
      log(*file, options.offline ? "offline, and these bytes were never fetched"
                 : is_held_      ? "the cache lost what was fetched: mount it again"
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
  if (options.offline || is_held_) return;
  Blocks& blocks = file->blocks;
  Items item(1);
  BlockRun run = blocks.run_of({range.offset, std::min(range.length, kFarthest)});
  // Blocks that are here or in the cache need not come; a reader checks those.
  std::array<bool, kFarthest / Blocks::kBlock + 1> is_wanted{};
  for (std::uint64_t block = run.first; block < run.end; ++block) {
    const State state = blocks.state(block);
    is_wanted[block - run.first] = (state == State::kUnknown || state == State::kAbsent) &&
                                   !(blocks.entry() != nullptr && blocks.entry()->is_there(block));
  }
  if (std::ranges::none_of(is_wanted, [](bool is) { return is; })) return;
  const Lock lock(mutex_);
  if (file->source.has_changed()) return;
  const std::uint64_t most = uses_memory(*file) ? kFarthestInMemory : kFarthest;
  run.end = std::min(run.end, run.first + most / Blocks::kBlock);
  bool is_any = false;
  for (std::uint64_t block = run.first; block < run.end; ++block) {
    if (!is_wanted[block - run.first]) continue;
    if (!is_any && !start_threads()) return;
    const bool is_new = move(*file, block, State::kUnknown, State::kAhead) ||
                        move(*file, block, State::kAbsent, State::kAhead);
    is_any = is_any || is_new;
  }
  if (!is_any) return;
  // The oldest runs make room.
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

std::string Fetcher::Impl::failure_text(const File& file) {
  const Lock lock(mutex_);
  return file.logged;
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
  bool is_any = false;
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
    open->is_closed = open->is_abandoned = true;
    is_any = true;
  }
  if (is_any) http_.look();
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
    // The file of the cache turned out to be damaged since, or must be checked again.
    const State now = file.blocks.state(rest.first);
    if (now != State::kAbsent && now != State::kUnknown) continue;
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

void Fetcher::Impl::shrink(File& file) {
  file.blocks.shrink(kMemory, kFarthestInMemory,
                     [&](std::uint64_t block) { return is_needed(file, block); });
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
    BlockRun missed{std::numeric_limits<std::uint64_t>::max(), 0};  // from the first to the last
    while (!file->waiting.empty() && file->waiting.front().began + options.timeout <= now) {
      const auto waiter = file->waiting.begin();
      missed.first = std::min(missed.first, waiter->rest.first);
      missed.end = std::max(missed.end, waiter->rest.end);
      const ByteRange range = file->blocks.range_of(waiter->rest);
      file->source.note_failure(range.offset, range.offset + range.length, EIO);
      try {
        const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(options.timeout);
        log(*file, "no bytes within " + std::to_string(seconds.count()) + " s" +
                       (file->reason.empty() ? "" : ": " + file->reason));
      } catch (const std::bad_alloc&) {
        // A line less.
      }
      answer(*file, waiter, EIO);
    }
    if (missed.end != 0) abandon(*file, missed, now);
  }
}

// Ends the transfers that were waited for in vain, or that left no connection to those who waited:
// those that nobody waits for now, and those that took more than half of the time.
void Fetcher::Impl::abandon(const File& file, BlockRun missed, Clock::time_point now) {
  const bool is_busy = requests_to(file.host) >= options.connections;
  for (const auto& transfer : under_way_) {
    const BlockRun rest{transfer->run.first + transfer->done, transfer->run.end};
    const bool is_its = transfer->file.get() == &file && missed.overlaps(rest);
    if (!is_its && !(is_busy && transfer->file->host == file.host)) continue;
    const bool is_old = transfer->began + options.timeout / 2 <= now;
    if (!is_old && is_waited(*transfer->file, rest)) continue;
    transfer->is_abandoned = has_abandoned_ = true;
  }
}

void Fetcher::Impl::answer_all() {
  Lock lock(mutex_);
  while (true) {
    expire(Clock::now());
    if (std::exchange(has_abandoned_, false)) {
      lock.unlock();
      http_.look();
      lock.lock();
      continue;
    }
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
    // The callback may take long: the other thread looks after the rest.
    if (!answers_.empty() || next_deadline() != Clock::time_point::max()) answerable_.notify_one();
    lock.unlock();
    waiter->ready(waiter->error);
    waiter->ready = nullptr;  // what it captured ends before the file does
    lock.lock();
    Waiters done;
    done.splice(done.end(), running_, waiter);
    File& file = *waiter->file;
    if (!file.is_closed) shrink(file);
    left_.notify_all();
  }
}

// --- The class

Fetcher::Fetcher(const Options& options, Http& http, Cache& cache)
    : impl_(std::make_shared<Impl>(options, http, cache)) {}

Fetcher::~Fetcher() { impl_->stop(); }

void Fetcher::hold(bool is_held) { impl_->hold(is_held); }

Counters* Fetcher::counters() const { return impl_->options.counters; }

std::shared_ptr<Fetcher::File> Fetcher::add(const CacheFile& source, const RemoteVersion& version,
                                            Remote& remote, Blocks& blocks) {
  auto file = std::make_shared<File>(source, version, remote, blocks);
  impl_->add(*file);
  return file;
}

void Fetcher::remove(File& file) { impl_->remove(file); }

void Fetcher::want(const std::shared_ptr<File>& file, ByteRange range, Source::Ready ready) {
  impl_->want(file, range, std::move(ready));
}

std::string Fetcher::failure_text(const File& file) const { return impl_->failure_text(file); }

void Fetcher::prefetch(const std::shared_ptr<File>& file, ByteRange range) {
  try {
    impl_->prefetch(file, range);
  } catch (const std::bad_alloc&) {
    // Nobody is told.
  }
}

}  // namespace stfs
