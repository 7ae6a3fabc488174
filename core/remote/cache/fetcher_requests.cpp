#include "core/base/error.h"
#include "core/base/text.h"
#include "core/remote/cache/fetcher_impl.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <new>
#include <utility>

namespace stfs {
namespace {

constexpr std::chrono::milliseconds kPoll{5};  // blocks that another process has claimed
constexpr std::chrono::seconds kFull{1};       // a disk without room is tried again
// After a process stood still for Options::patience, what it has claimed is not waited for.
constexpr std::chrono::seconds kClaimsIgnored{60};
constexpr std::uint64_t kLongestInMemory = 2 << 20;  // bytes of a request without a cache
constexpr unsigned kTriesAhead = 3;                  // for what nobody waits for
constexpr std::uint64_t kProgress = 64 << 10;  // bytes of a transfer after which pauses begin anew
constexpr std::size_t kMostKeptParts = 8;      // of a file: 2 MiB without a cache

}  // namespace

// --- The preparing thread

void Fetcher::Impl::prepare_all() {
  Lock lock(mutex_);
  while (!stopping_) {
    if (!ended_.empty()) {
      const std::shared_ptr<Transfer> transfer = ended_.front();
      // In the list until then: remove() looks for it there.
      try {
        settle(lock, *transfer);
      } catch (const std::exception&) {
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
  if (!lines_.empty()) write_log(lock);
}

bool Fetcher::Impl::uses_memory(const File& file) const {
  return file.blocks.entry() == nullptr || file.blocks.is_broken() ||
         Clock::now() < file.full_until;
}

// The run of blocks to ask for next: of the first item that is not stale, and what is queued behind
// it.
std::optional<Fetcher::Impl::Item> Fetcher::Impl::next(Items& items, State state) {
  for (auto at = items.begin(); at != items.end();) {
    Item& item = *at;
    File& file = *item.file;
    Blocks& blocks = file.blocks;
    while (!item.run.empty() && blocks.state(item.run.first) != state) ++item.run.first;
    if (item.run.empty()) {
      at = items.erase(at);
      continue;
    }
    if (requests_to(file.host) >= options.connections) {
      ++at;
      continue;
    }
    const std::uint64_t longest = uses_memory(file) ? kLongestInMemory : kLongestRequest;
    BlockRun run{item.run.first, item.run.first};
    const auto is_queued = [&](State of) { return of == State::kDemanded || of == State::kAhead; };
    while (run.end < blocks.count() && run.end - run.first < longest / Blocks::kBlock &&
           is_queued(blocks.state(run.end)) && (!item.ignores_claims || run.end < item.run.end)) {
      ++run.end;
    }
    if (state == State::kDemanded && !is_waited(file, run)) {  // they have gone
      move_all(file, run, State::kDemanded, State::kAbsent);
      continue;
    }
    // A window that slides adds little by little: wait for more, while the line is busy.
    const bool is_short = (run.end - run.first) * Blocks::kBlock < longest;
    if (state == State::kAhead && is_short && requests_to(file.host) * 2 >= options.connections &&
        run.end < blocks.count()) {
      ++at;
      continue;
    }
    Item found = item;
    found.run = run;
    // Those who wait take turns.
    if (state == State::kDemanded) items.splice(items.end(), items, at);
    return found;
  }
  return std::nullopt;
}

std::size_t Fetcher::Impl::requests_to(const std::string& host) const {
  return static_cast<std::size_t>(std::ranges::count_if(
      under_way_, [&](const auto& transfer) { return transfer->file->host == host; }));
}

bool Fetcher::Impl::start_one(Lock& lock) {
  const bool is_busy = std::ranges::all_of(
      files_, [this](const File* file) { return requests_to(file->host) >= options.connections; });
  if (is_busy) return false;  // without a look at the queues, which may be long
  std::optional<Item> item = next(demand_, State::kDemanded);
  if (!item) item = next(ahead_, State::kAhead);
  if (!item) return false;
  const std::shared_ptr<File> file = item->file;
  const BlockRun run = item->run;
  try {
    begin(lock, *item);
  } catch (const std::exception&) {
    if (!file->is_closed) {
      const Unlocked unlocked(*this, *file, lock);
      release(file->blocks, run);
    }
    if (!file->is_closed) fail(*file, run, ENOMEM, "out of memory");
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
    if (is_claimed && !is_here) {  // it was damaged
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
  if (!cache_.make_room(range.length)) return false;
  const int error = blocks.entry()->reserve(range);
  if (error != ENOSPC && error != EDQUOT) return error == 0;
  return cache_.make_room(range.length) && blocks.entry()->reserve(range) == 0;
}

void Fetcher::Impl::release(Blocks& blocks, BlockRun run) {
  if (blocks.entry() == nullptr) return;
  for (std::uint64_t block = run.first; block < run.end; ++block) blocks.entry()->release(block);
}

// Takes the part of a block that is kept; an empty one when there is none.
Fetcher::File::Part Fetcher::Impl::take_part(File& file, std::uint64_t block) {
  const auto at = std::ranges::find(file.parts, block, &File::Part::block);
  if (at == file.parts.end()) return {};
  File::Part part = std::move(*at);
  file.parts.erase(at);
  return part;
}

void Fetcher::Impl::keep_part(File& file, File::Part part) {
  take_part(file, part.block);
  file.parts.push_back(std::move(part));
  if (file.parts.size() > kMostKeptParts) file.parts.pop_front();
}

bool Fetcher::Impl::is_still_there(const CacheEntry& entry, const File::Part& part) {
  std::vector<std::byte> bytes(part.bytes);
  if (entry.read(bytes, entry.range_of(part.block).offset) != 0) return false;
  CacheEntry::Sum sum(entry, part.block);
  sum.add(bytes);
  return sum.value() == part.sum->value();
}

void Fetcher::Impl::begin(Lock& lock, const Item& item) {
  File& file = *item.file;
  Blocks& blocks = file.blocks;
  const auto transfer = std::make_shared<Transfer>();
  Items watched(1, item), rest(1, item);
  for (std::uint64_t block = item.run.first; block < item.run.end; ++block) {
    if (move(file, block, State::kAhead, State::kComing)) transfer->has_ahead = true;
    move(file, block, State::kDemanded, State::kComing);
  }
  transfer->file = item.file;
  transfer->in_memory = uses_memory(file) || item.ignores_claims;
  transfer->losses = blocks.losses();
  transfer->renewals = file.renewals;
  transfer->backoff = item.backoff;
  File::Part part = take_part(file, item.run.first);
  const Unlocked unlocked(*this, file, lock);
  BlockRun run = item.ignores_claims ? item.run : claim(blocks, item.run);
  bool is_full = false;
  if (!run.empty() && !transfer->in_memory) {
    is_full = transfer->in_memory = !make_room(blocks, run);
  }
  if (transfer->in_memory) {  // others may try to cache it
    release(blocks, run);
    run.end = std::min(run.end, run.first + kLongestInMemory / Blocks::kBlock);
  }
  transfer->run = run;
  transfer->range = blocks.range_of(run);
  if (part.bytes > 0 && !run.empty() && run.first == part.block &&
      transfer->in_memory == !part.sum &&
      (transfer->in_memory || is_still_there(*blocks.entry(), part))) {
    transfer->range.offset += part.bytes;
    transfer->range.length -= part.bytes;
    transfer->part = std::move(part);
  }
  HttpRequest request;
  std::string failure;
  int refusal = EIO;
  if (!run.empty()) {
    try {
      request = file.remote.request(transfer->range);
      request.new_connection = item.needs_new_connection;
      // A read after the deadline of another must not wait for what that one waited for.
      request.stall = std::min(request.stall, options.timeout);
      request.limit = options.longest;
      request.is_abandoned = {transfer, &transfer->is_abandoned};
    } catch (const Error& error) {
      failure = error.message();
      // A store says so of what its credentials may not see, too.
      if (error.code() == ErrorCode::kAbsent) refusal = EACCES;
    } catch (const std::exception&) {
      failure = "out of memory";
    }
    if (!failure.empty()) release(blocks, run);
  }

  lock.lock();
  if (!file.is_closed) {
    if (is_full) file.full_until = Clock::now() + kFull;
    watched.front().run = {item.run.first, run.first};
    if (!run.empty() || item.run.first < run.first) advance(file);
    if (item.run.first < run.first) {
      if (Clock::now() < file.claims_ignored_until && is_waited(file, watched.front().run)) {
        watched.front().ignores_claims = true;
        queue_again(std::move(watched), State::kWatched);
      } else {
        if (!watched.front().watched_since) watched.front().watched_since = Clock::now();
        watched_.splice(watched_.end(), watched);
        poll_at_ = std::min(poll_at_, Clock::now() + kPoll);
      }
    }
    rest.front().run = {run.end, item.run.end};
    queue_again(std::move(rest), State::kComing);
    if (!failure.empty()) {
      fail(file, run, refusal, failure);
    } else if (!run.empty()) {
      if (item.is_retry && options.counters != nullptr) ++options.counters->retries;
      send(lock, transfer, std::move(request));
    }
  }
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
  if (!transfer.in_memory && !rest.empty()) {
    const Unlocked unlocked(*this, file, lock);
    release(file.blocks, rest);
  }
  if (file.is_closed) return;
  if (transfer.was_accepted) file.is_renewed = false;
  if (rest.empty()) return;
  if (file.source.has_changed()) return move_all(file, rest, State::kComing, State::kAbsent);
  const std::string& text = transfer.verdict.text;
  if (transfer.disk_error != 0) {
    file.full_until = Clock::now() + kFull;
    return again(transfer, rest);
  }
  const Verdict::Kind kind = transfer.verdict.kind;
  if (kind == Verdict::Kind::kAccept && transfer.part.bytes > 0) {
    keep_part(file, std::move(transfer.part));
  }
  if (transfer.is_abandoned && transfer.end.error == ECANCELED) {
    if (is_waited(file, rest)) return again(transfer, rest);
    return move_all(file, rest, State::kComing, State::kAbsent);
  }
  const bool is_no_server = transfer.end.error == EACCES || transfer.end.error == EPROTO;
  const bool is_wrong =
      kind == Verdict::Kind::kAccept ? is_no_server : kind != Verdict::Kind::kRetry;
  // These may be bytes that the server sent behind the answer before (HttpEnd).
  if (is_wrong && transfer.end.was_kept) return again(transfer, rest, true);
  switch (kind) {
    case Verdict::Kind::kAccept:
      if (is_no_server) {
        return fail(file, rest, transfer.end.error == EACCES ? EACCES : EIO, transfer.end.text);
      }
      return retry(transfer, rest,
                   transfer.end.error == 0 ? "the answer ended early" : transfer.end.text);
    case Verdict::Kind::kRetry:
      return retry(transfer, rest, text);
    case Verdict::Kind::kRenew:
      return renew(lock, transfer, rest);
    case Verdict::Kind::kChanged:
      change(file, text);
      return move_all(file, rest, State::kComing, State::kAbsent);
    case Verdict::Kind::kRefused:
      return fail(file, rest, EIO, text);
  }
}

void Fetcher::Impl::again(const Transfer& transfer, BlockRun rest, bool needs_new_connection) {
  queue_again(Items(1, {transfer.file, rest, true, transfer.backoff, needs_new_connection}),
              State::kComing);
}

void Fetcher::Impl::renew(Lock& lock, Transfer& transfer, BlockRun rest) {
  File& file = *transfer.file;
  if (transfer.renewals != file.renewals) return again(transfer, rest);  // it was sent before
  std::string text = transfer.verdict.text;
  if (!std::exchange(file.is_renewed, true)) {
    ++file.renewals;
    const Unlocked unlocked(*this, file, lock);
    bool is_new = false;
    try {
      is_new = file.remote.renew();
    } catch (const Error& error) {
      text = error.message();
    } catch (const std::exception&) {
      text = "out of memory";
    }
    lock.lock();
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
  const bool has_progress = transfer.done > 0 || transfer.received >= kProgress;
  Item item{transfer.file, rest, true, has_progress ? Backoff() : transfer.backoff};
  item.is_ahead = transfer.has_ahead;
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
    if (is_waited(*item->file, item->run) || item->is_ahead) {
      queue_again(std::move(due), State::kDelayed);
    } else {
      move_all(*item->file, item->run, State::kDelayed, State::kAbsent);
    }
  }
}

// Looks at blocks that other processes have claimed: how many have come, and whether a claim of one
// that has not is gone.
unsigned Fetcher::Impl::take_watched(Blocks& blocks, BlockRun run, bool& is_free) {
  unsigned taken = 0;
  for (std::uint64_t block = run.first; block < run.end; ++block) {
    if (blocks.state(block) != State::kWatched) continue;
    if (blocks.entry()->is_there(block)) {
      blocks.change(block, State::kWatched, State::kComing);
      if (blocks.take_published(block)) {
        ++taken;
        continue;
      }
      blocks.change(block, State::kComing, State::kWatched);
    }
    if (is_free || !blocks.entry()->claim(block)) continue;
    blocks.entry()->release(block);
    is_free = true;
  }
  return taken;
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
    const Unlocked unlocked(*this, *file, lock);
    bool is_free = false;
    const unsigned taken = take_watched(file->blocks, run, is_free);
    lock.lock();
    if (file->is_closed) continue;
    Item& watched = item.front();
    if (taken > 0) {
      watched.watched_since = file->last_taken = Clock::now();
      file->claims_ignored_until = {};
    }
    // A reader that waits shall see what is fetched in place of the other process.
    const auto patience = std::min(options.patience, options.timeout / 2);
    watched.ignores_claims = Clock::now() - *watched.watched_since >= patience;
    if (watched.ignores_claims && Clock::now() - file->last_taken >= patience) {
      file->claims_ignored_until = Clock::now() + kClaimsIgnored;
    }
    is_free = is_free || watched.ignores_claims;
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
  for (const State from : {State::kComing, State::kDemanded, State::kAhead}) {
    move_all(file, run, from, State::kAbsent);
  }
}

// The object has changed: bytes that are not here can never be fetched.
void Fetcher::Impl::change(File& file, const std::string& reason) {
  file.reason = file.logged = printable(reason);
  file.source.mark_changed();
  while (!file.waiting.empty()) answer(file, file.waiting.begin(), ESTALE);
  for (Items* items : {&demand_, &ahead_, &delayed_, &watched_}) {
    for (auto next = items->begin(); next != items->end();) {
      const auto item = next++;
      if (item->file.get() != &file) continue;
      for (const State from : {State::kDemanded, State::kAhead, State::kDelayed, State::kWatched}) {
        move_all(file, item->run, from, State::kAbsent);
      }
      items->erase(item);
    }
  }
}

void Fetcher::Impl::log(File& file, const std::string& reason) try {
  const std::string text = printable(reason);
  if (file.logged == text) return;
  file.logged = text;
  if (!options.log) return;
  lines_.emplace_back(Error(ErrorCode::kUnreadable, file.version.name, text).what());
  work_.notify_one();
} catch (const std::bad_alloc&) {
  // A line less.
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
  File::Part& part = transfer.part;
  part.block = offset / Blocks::kBlock;
  if (transfer.in_memory) {
    const ByteRange whole = transfer.file->blocks.range_of({part.block, part.block + 1});
    part.buffer.reserve(static_cast<std::size_t>(whole.length));
    part.buffer.insert(part.buffer.end(), bytes.begin(), bytes.end());
  } else {
    const CacheEntry& entry = *transfer.file->blocks.entry();
    transfer.disk_error = entry.write(bytes, offset);
    if (transfer.disk_error != 0) return false;
    if (!part.sum) part.sum.emplace(entry, part.block);
    part.sum->add(bytes);
  }
  part.bytes += bytes.size();
  return true;
}

void Fetcher::Impl::finish_block(Transfer& transfer, std::uint64_t block) {
  File& file = *transfer.file;
  Blocks& blocks = file.blocks;
  File::Part part = std::exchange(transfer.part, {});
  if (!transfer.in_memory) {
    blocks.entry()->publish(block, part.sum->value());
    blocks.entry()->release(block);
  }
  const Lock lock(mutex_);
  if (transfer.in_memory) {
    blocks.keep(block, State::kComing, std::move(part.buffer), !is_needed(file, block));
  } else {
    blocks.become_here(block, State::kComing, transfer.losses);
  }
  ++transfer.done;
  advance(file);
  if (transfer.in_memory) shrink(file);
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

}  // namespace stfs
