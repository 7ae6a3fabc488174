// The requests: the work for each host, and the callbacks of Http.
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/remote/cache/fetcher.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <utility>

namespace stfs {
namespace {

// The pause between two checks of blocks that another process has claimed.
constexpr std::chrono::milliseconds kPoll{5};
constexpr std::chrono::seconds kFull{1};  // how long blocks go to memory after the disk was full
// How long claims are ignored after no claimed block has arrived within Options::patience.
constexpr std::chrono::seconds kClaimsIgnored{60};
constexpr std::uint64_t kLongestInMemory = 2 << 20;  // bytes of a request for blocks in memory
constexpr unsigned kTriesAhead = 3;                  // tries for blocks that no reader waits for
// After this many bytes of a transfer, pauses between tries start again from the shortest.
constexpr std::uint64_t kProgress = 64 << 10;
constexpr std::size_t kMaxKeptParts = 32;  // 8 MiB

}  // namespace

// --- The work for a host

// Settles a transfer or begins one, for a host that no other thread serves. Returns false if there
// is nothing to do.
bool Fetcher::serve_one(Lock& lock) {
  std::shared_ptr<Transfer> ended;
  const auto at = std::ranges::find_if(
      ended_, [](const auto& transfer) { return transfer->file->host->serving == nullptr; });
  if (at != ended_.end()) {
    ended = std::move(*at);
    ended_.erase(at);
  }
  std::optional<Item> item;
  if (!ended) item = next(demand_, State::kReadQueued);
  if (!ended && !item) item = next(ahead_, State::kPrefetchQueued);
  if (!ended && !item) return false;
  File& file = ended ? *ended->file : *item->file;
  file.host->serving = &file;
  work_.notify_one();  // another thread watches the deadlines
  try {
    ended ? settle(lock, *ended) : begin(lock, *item);
  } catch (const std::exception&) {
    if (!lock.owns_lock()) lock.lock();
    const BlockRun run = ended ? ended->run : item->run;
    release(file.blocks, run);
    fail(file, run, ENOMEM, "out of memory");
  }
  file.host->serving = nullptr;
  left_.notify_all();
  return true;
}

bool Fetcher::uses_memory(const File& file) const {
  return file.blocks.entry() == nullptr || file.blocks.is_broken() ||
         Clock::now() < file.full_until;
}

// Returns the next run of blocks to request: the first item that is not stale and may be requested
// now, joined with the queued blocks after it.
std::optional<Fetcher::Item> Fetcher::next(Items& items, State state) {
  // If all hosts are busy, do not search the queues, which may be long. Claimed blocks are an
  // exception, because they need no connection to arrive.
  const bool is_busy = std::ranges::all_of(hosts_, [this](const auto& host) {
    return host.second.serving != nullptr || host.second.requests >= options_.connections;
  });
  if (is_busy && (items.empty() || !items.front().claimed_since)) return std::nullopt;
  for (auto at = items.begin(); at != items.end();) {
    Item& item = *at;
    File& file = *item.file;
    Blocks& blocks = file.blocks;
    if (file.source.has_changed()) {  // none of its blocks can be fetched any more
      move_all(file, item.run, state, State::kAbsent);
      item.run = {};
    }
    while (!item.run.empty() && blocks.state(item.run.first) != state) ++item.run.first;
    if (item.run.empty()) {
      at = items.erase(at);
      continue;
    }
    const unsigned requests = file.host->requests;
    if (file.is_closed || file.host->serving != nullptr ||
        (requests >= options_.connections && !item.claimed_since)) {
      ++at;
      continue;
    }
    const std::uint64_t longest = uses_memory(file) ? kLongestInMemory : kMaxRequest;
    BlockRun run{item.run.first, item.run.first};
    const auto is_queued = [&](State of) {
      return of == State::kReadQueued || of == State::kPrefetchQueued;
    };
    while (run.end < blocks.count() && run.end - run.first < longest / Blocks::kBlock &&
           is_queued(blocks.state(run.end)) && (!item.claimed_since || run.end < item.run.end)) {
      ++run.end;
    }
    if (state == State::kReadQueued && !has_waiter(file, run)) {  // no reader waits any more
      move_all(file, run, State::kReadQueued, State::kAbsent);
      continue;
    }
    // A sliding window adds few blocks at a time. Wait for more of them while the connections are
    // busy.
    const bool is_short = (run.end - run.first) * Blocks::kBlock < longest;
    if (state == State::kPrefetchQueued && is_short && requests * 2 >= options_.connections &&
        run.end < blocks.count()) {
      ++at;
      continue;
    }
    Item found = item;
    found.run = run;
    // Move the item to the end, so that waiting readers take turns.
    if (state == State::kReadQueued) items.splice(items.end(), items, at);
    return found;
  }
  return std::nullopt;
}

// Claims the first blocks of a run that can be claimed, without a gap, and returns them. The blocks
// before them are available locally, or claimed by another process. The blocks after them are
// unchanged.
BlockRun Fetcher::claim(Blocks& blocks, BlockRun run) {
  const CacheEntry* entry = blocks.entry();
  if (entry == nullptr) return run;
  BlockRun ours{run.first, run.first};
  for (std::uint64_t block = run.first; block < run.end; ++block) {
    const bool is_claimed = entry->claim(block);
    // If we could claim a block that is in the map, and its check fails, the block is damaged.
    const bool is_here = (!is_claimed || entry->is_there(block)) && blocks.take_published(block);
    if (is_claimed && !is_here) {
      ours.end = block + 1;
      continue;
    }
    if (is_claimed) entry->release(block);
    if (!ours.empty()) break;
    ours = {block + 1, block + 1};
  }
  return ours;
}

bool Fetcher::make_room(Blocks& blocks, BlockRun run) {
  const ByteRange range = blocks.range_of(run);
  if (!cache_.make_room(range.length)) return false;
  int error = blocks.entry()->reserve(range);
  while ((error == ENOSPC || error == EDQUOT) && cache_.make_room(range.length, true)) {
    error = blocks.entry()->reserve(range);
  }
  return error == 0;
}

void Fetcher::release(Blocks& blocks, BlockRun run) {
  if (blocks.entry() == nullptr) return;
  for (std::uint64_t block = run.first; block < run.end; ++block) blocks.entry()->release(block);
}

// Takes the kept part of a block. Returns an empty part if none was kept.
Fetcher::Part Fetcher::take_part(const File& file, std::uint64_t block) {
  const auto at = std::ranges::find_if(
      parts_, [&](const Part& part) { return part.file == &file && part.block == block; });
  if (at == parts_.end()) return {};
  Part part = std::move(*at);
  parts_.erase(at);
  return part;
}

void Fetcher::keep_part(Part part) {
  take_part(*part.file, part.block);
  parts_.push_back(std::move(part));
  if (parts_.size() > kMaxKeptParts) parts_.pop_front();
}

void Fetcher::begin(Lock& lock, Item item) {
  File& file = *item.file;
  Blocks& blocks = file.blocks;
  const auto transfer = std::make_shared<Transfer>();
  for (std::uint64_t block = item.run.first; block < item.run.end; ++block) {
    if (move(file, block, State::kPrefetchQueued, State::kInFlight)) transfer->has_ahead = true;
    move(file, block, State::kReadQueued, State::kInFlight);
  }
  transfer->file = &file;
  transfer->in_memory = uses_memory(file) || item.ignores_claims;
  transfer->renewals = file.renewals;
  transfer->backoff = item.backoff;
  Part part = take_part(file, item.run.first);
  lock.unlock();
  BlockRun run = item.ignores_claims ? item.run : claim(blocks, item.run);
  bool is_full = false;
  if (!run.empty() && !transfer->in_memory) {
    is_full = transfer->in_memory = !make_room(blocks, run);
  }
  if (transfer->in_memory) {  // another process may try to cache these blocks
    release(blocks, run);
    run.end = std::min(run.end, run.first + kLongestInMemory / Blocks::kBlock);
  }
  transfer->run = run;
  transfer->range = blocks.range_of(run);
  if (!part.bytes.empty() && !run.empty() && run.first == part.block) {
    transfer->range.offset += part.bytes.size();
    transfer->range.length -= part.bytes.size();
    transfer->part = std::exchange(part, {});
  }
  HttpRequest request;
  std::string failure;
  int refusal = EIO;
  try {
    if (!run.empty()) request = file.remote->request(transfer->range);
  } catch (const Error& error) {
    failure = error.message();
    // A store also reports an object as absent if its credentials may not see the object.
    if (error.code() == ErrorCode::kAbsent) refusal = EACCES;
    release(blocks, run);
  }
  lock.lock();
  if (!part.bytes.empty()) keep_part(std::move(part));  // of a block that is not in this request
  if (is_full) file.full_until = Clock::now() + kFull;
  wait_for_others(item, run.first);
  Item rest = item;
  rest.run = {run.end, item.run.end};
  queue_again(rest, State::kInFlight);
  advance(file);
  if (!failure.empty()) {
    fail(file, run, refusal, failure);
  } else if (file.is_closed) {  // remove() waits, and has notified Http already
    lock.unlock();
    release(blocks, run);
    lock.lock();
    move_all(file, run, State::kInFlight, State::kAbsent);
  } else if (!run.empty()) {
    if (item.is_retry) tally(options_.counters, &Counters::retries);
    request.new_connection = item.needs_new_connection;
    send(lock, transfer, std::move(request));
  }
}

// Delays the blocks of an item before `end` that have not arrived, because another process has
// claimed them.
void Fetcher::wait_for_others(Item item, std::uint64_t end) {
  File& file = *item.file;
  item.run.end = end;
  bool is_any = false, has_come = false;
  for (std::uint64_t block = item.run.first; block < end; ++block) {
    const bool is_here = Blocks::is_here(file.blocks.state(block));
    (is_here ? has_come : is_any) = true;
  }
  const Clock::time_point now = Clock::now();
  if (has_come && item.claimed_since) {  // the other process is running
    file.claims_ignored_until = {};
    file.last_claimed_came = now;
  }
  if (!is_any) return;
  if (!item.claimed_since || has_come) item.claimed_since = now;
  if (now - std::max(*item.claimed_since, file.last_claimed_came) >=
      std::min(options_.patience, options_.timeout / 2)) {
    file.claims_ignored_until = now + kClaimsIgnored;
  }
  item.ignores_claims = now < file.claims_ignored_until;
  item.not_before = item.ignores_claims ? now : now + kPoll;
  item.is_ahead = false;
  move_all(file, item.run, State::kInFlight, State::kDelayed);
  delayed_.push_back(item);
}

void Fetcher::send(Lock& lock, const std::shared_ptr<Transfer>& transfer, HttpRequest request) {
  // A stalled transfer ends within the timeout of reads, so that a later read starts a new
  // transfer.
  request.stall = std::min(request.stall, options_.timeout);
  request.limit = options_.longest;
  request.is_abandoned = {transfer, &transfer->is_abandoned};
  transfer->is_abandoned = transfer->file->is_closed;
  under_way_.push_back(transfer);
  ++transfer->file->host->requests;
  lock.unlock();
  std::string failure;
  try {
    http_.start(std::move(request),
                {.head = [=, this](const HttpHead& head) { return on_head(*transfer, head); },
                 .data = [=, this](auto bytes) { return on_data(*transfer, bytes); },
                 .end = [=, this](const TransferResult& end) { on_end(transfer, end); }});
  } catch (const Error& error) {
    failure = error.message();
  } catch (const std::exception&) {
    failure = "out of memory";
  }
  if (!failure.empty()) on_end(transfer, {EIO, failure});
  lock.lock();
}

// Returns blocks of a request to the front of the queue.
void Fetcher::queue_again(Item item, State from) {
  if (item.run.empty()) return;
  const bool is_demand = has_waiter(*item.file, item.run);
  move_all(*item.file, item.run, from, is_demand ? State::kReadQueued : State::kPrefetchQueued);
  (is_demand ? demand_ : ahead_).push_front(item);
}

void Fetcher::settle(Lock& lock, Transfer& transfer) {
  File& file = *transfer.file;
  const BlockRun rest{transfer.run.first + transfer.done, transfer.run.end};
  if (!transfer.in_memory) {
    lock.unlock();
    release(file.blocks, rest);
    lock.lock();
  }
  if (transfer.was_accepted) file.is_renewed = false;
  if (rest.empty()) return;
  if (file.source.has_changed()) return move_all(file, rest, State::kInFlight, State::kAbsent);
  const std::string& text = transfer.verdict.text;
  const ResponseVerdict::Kind kind = transfer.verdict.kind;
  const bool has_part = !transfer.part.bytes.empty();
  if (kind == ResponseVerdict::Kind::kAccept && has_part) keep_part(std::move(transfer.part));
  // A server that sends objects only as a whole cannot resume: the next request starts with this
  // block.
  if (has_part && transfer.head && transfer.head->status == 200) return again(transfer, rest);
  if (transfer.is_abandoned && transfer.end.error == ECANCELED) {
    if (has_waiter(file, rest)) return again(transfer, rest);
    return move_all(file, rest, State::kInFlight, State::kAbsent);
  }
  using Kind = ResponseVerdict::Kind;
  TransferResult& end = transfer.end;
  if (kind == Kind::kAccept && end.error == 0)
    end = {EIO, "the response ended early", end.was_kept};
  switch (next_try(end, kind == Kind::kAccept  ? ResponseQuality::kGood
                        : kind == Kind::kRetry ? ResponseQuality::kTemporary
                                               : ResponseQuality::kWrong)) {
    case NextTry::kNow: return again(transfer, rest, true);
    case NextTry::kLater: return retry(transfer, rest, kind == Kind::kAccept ? end.text : text);
    case NextTry::kNone: break;
  }
  if (kind == Kind::kRenew) return renew(lock, transfer, rest);
  if (kind == Kind::kChanged) {  // missing bytes can never be fetched
    file.failure = printable(text);
    file.source.mark_changed();
    while (!file.waiting.empty()) answer(file, file.waiting.begin(), ESTALE);
    return move_all(file, rest, State::kInFlight, State::kAbsent);
  }
  const bool is_refused = kind == Kind::kRefused;
  fail(file, rest, !is_refused && end.error == EACCES ? EACCES : EIO, is_refused ? text : end.text);
}

void Fetcher::again(const Transfer& transfer, BlockRun rest, bool needs_new_connection) {
  queue_again({transfer.file, rest, true, transfer.backoff, needs_new_connection},
              State::kInFlight);
}

void Fetcher::renew(Lock& lock, Transfer& transfer, BlockRun rest) {
  File& file = *transfer.file;
  if (transfer.renewals != file.renewals) return again(transfer, rest);  // renewed since
  std::string text = transfer.verdict.text;
  if (!std::exchange(file.is_renewed, true)) {
    ++file.renewals;
    lock.unlock();
    bool is_new = false;
    try {
      is_new = file.remote->renew();
    } catch (const Error& error) {
      text = error.message();
    }
    lock.lock();
    if (is_new) return again(transfer, rest);
  }
  file.is_renewed = false;
  fail(file, rest, EACCES, text);
}

void Fetcher::retry(const Transfer& transfer, BlockRun rest, const std::string& reason) {
  File& file = *transfer.file;
  file.reason = printable(reason);
  const bool is_worth = transfer.has_ahead && transfer.backoff.tries() < kTriesAhead;
  if (!has_waiter(file, rest) && !is_worth) {
    return move_all(file, rest, State::kInFlight, State::kAbsent);
  }
  const bool has_progress = transfer.done > 0 || transfer.received >= kProgress;
  Item item{&file, rest, true, has_progress ? Backoff() : transfer.backoff};
  item.is_ahead = transfer.has_ahead;
  // A server may ask for a pause of a day. After a timeout the next want() sends a request anyway.
  const auto pause = item.backoff.next(transfer.head ? &*transfer.head : nullptr);
  item.not_before = Clock::now() + std::min(pause, options_.timeout);
  delayed_.push_back(item);
  move_all(file, rest, State::kInFlight, State::kDelayed);
}

void Fetcher::wake_delayed() {
  const Clock::time_point now = Clock::now();
  for (auto next = delayed_.begin(); next != delayed_.end();) {
    const auto item = next++;
    if (now < item->not_before) continue;
    if (has_waiter(*item->file, item->run) || item->is_ahead) {
      queue_again(*item, State::kDelayed);
    } else {
      move_all(*item->file, item->run, State::kDelayed, State::kAbsent);
    }
    delayed_.erase(item);
  }
}

// Fails all readers that wait for a run, and removes the run from the queues.
void Fetcher::fail(File& file, BlockRun run, int error, const std::string& reason) {
  file.failure = printable(reason);
  const ByteRange range = file.blocks.range_of(run);
  file.source.record_failure(range.offset, range.offset + range.length, error);
  for (auto next = file.waiting.begin(); next != file.waiting.end();) {
    const auto waiter = next++;
    if (waiter->rest.overlaps(run)) answer(file, waiter, error);
  }
  for (const State from : {State::kInFlight, State::kReadQueued, State::kPrefetchQueued}) {
    move_all(file, run, from, State::kAbsent);
  }
}

// --- Called on the thread of Http

bool Fetcher::on_head(Transfer& transfer, const HttpHead& head) {
  transfer.verdict = transfer.file->remote->judge(head, transfer.range);
  transfer.was_accepted = transfer.verdict.kind == ResponseVerdict::Kind::kAccept;
  if (!transfer.was_accepted) transfer.head = head;
  return transfer.was_accepted;
}

bool Fetcher::on_data(Transfer& transfer, std::span<const std::byte> bytes) {
  if (bytes.size() > transfer.range.length - transfer.received) {
    transfer.verdict = {ResponseVerdict::Kind::kRefused,
                        "its server sends more bytes than were requested"};
    return false;
  }
  Blocks& blocks = transfer.file->blocks;
  while (!bytes.empty()) {
    const std::uint64_t block = transfer.run.first + transfer.done;
    const std::uint64_t at = transfer.range.offset + transfer.received;
    const ByteRange whole = blocks.range_of({block, block + 1});
    const std::uint64_t left = whole.offset + whole.length - at;
    const auto some =
        bytes.first(static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), left)));
    Part& part = transfer.part;
    part.file = transfer.file;
    part.block = block;
    part.bytes.reserve(static_cast<std::size_t>(whole.length));
    part.bytes.insert(part.bytes.end(), some.begin(), some.end());
    transfer.received += some.size();
    if (some.size() == left) finish_block(transfer, block);
    bytes = bytes.subspan(some.size());
  }
  return true;
}

void Fetcher::finish_block(Transfer& transfer, std::uint64_t block) {
  File& file = *transfer.file;
  Blocks& blocks = file.blocks;
  Part part = std::exchange(transfer.part, {});
  const std::uint64_t losses = blocks.losses();
  bool is_on_disk = false;
  if (!transfer.in_memory) {
    is_on_disk = blocks.entry()->write(block, part.bytes) == 0;
    blocks.entry()->release(block);
  }
  const Lock lock(mutex_);
  if (is_on_disk) {
    blocks.become_here(block, State::kInFlight, losses);
  } else {
    if (!transfer.in_memory) file.full_until = Clock::now() + kFull;
    blocks.keep(block, State::kInFlight, std::move(part.bytes));
  }
  ++transfer.done;
  advance(file);
  shrink(file);
}

void Fetcher::on_end(const std::shared_ptr<Transfer>& transfer, const TransferResult& end) {
  const Lock lock(mutex_);
  transfer->end = end;
  std::erase(under_way_, transfer);
  --transfer->file->host->requests;
  ended_.push_back(transfer);
  work_.notify_one();
}

}  // namespace stfs
