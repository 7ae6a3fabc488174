#include "core/remote/cache/blocks.h"

#include "core/base/error.h"
#include "core/base/text.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

namespace stfs {
namespace {

// Ten times the largest object of S3. A server that claims a larger size would waste memory.
constexpr std::uint64_t kLargestObject = std::uint64_t{1} << 46;

}  // namespace

Blocks::Blocks(const RemoteVersion& version, std::unique_ptr<CacheEntry> entry, Counters* counters)
    : size_(version.size),
      count_(size_ / kBlock + (size_ % kBlock != 0)),
      entry_(std::move(entry)),
      counters_(counters) {
  if (size_ > kLargestObject) {
    throw Error(ErrorCode::kUnreadable, version.name,
                "an object of " + human_bytes(size_) + " is larger than stfs reads");
  }
  states_.reset(static_cast<std::uint8_t*>(std::calloc(std::max<std::size_t>(count_, 1), 1)));
  if (!states_) throw std::bad_alloc();
}

BlockRun Blocks::run_of(ByteRange range) const {
  if (range.length == 0) return {};
  return {range.offset / kBlock, (range.offset + range.length - 1) / kBlock + 1};
}

ByteRange Blocks::range_of(BlockRun run) const {
  const std::uint64_t begin = run.first * kBlock;
  return {begin, std::min(run.end * kBlock, size_) - begin};
}

Blocks::State Blocks::state(std::uint64_t block) const {
  return static_cast<State>(at(block).load(std::memory_order_acquire));
}

bool Blocks::change(std::uint64_t block, State from, State to) {
  auto expected = static_cast<std::uint8_t>(from);
  if (!at(block).compare_exchange_strong(expected, static_cast<std::uint8_t>(to))) return false;
  if (is_here(to)) ++here_;
  if (is_here(from)) --here_;
  return true;
}

// Checks a block of the entry whose state is `from`. The block becomes kOnDisk if its checksum
// matches.
bool Blocks::take(std::uint64_t block, State from) {
  if (!entry_ || !entry_->is_there(block)) return false;
  std::vector<std::byte> buffer(kBlock);  // threads of the mount have small stacks
  const std::uint64_t losses = entry_->losses();
  const int error = entry_->check(block, buffer);
  if (error == 0) return become_here(block, from, losses);
  if (error != ENODATA) tally(counters_, &Counters::cache_corrupt);
  return false;
}

bool Blocks::look(std::uint64_t block) {
  const State before = state(block);
  if (before == State::kUnknown || before == State::kAbsent) {
    if (take(block, before)) tally(counters_, &Counters::cache_hits);
    change(block, State::kUnknown, State::kAbsent);
  }
  return is_here(state(block));  // another thread may have checked it after it was fetched
}

bool Blocks::look(BlockRun run) {
  for (std::uint64_t block = run.first; block < run.end; ++block) {
    if (!look(block)) return false;
  }
  return true;
}

bool Blocks::is_probably_local(BlockRun run) {
  for (std::uint64_t block = run.first; block < run.end; ++block) {
    const bool is_listed = state(block) == State::kUnknown && entry_ && entry_->is_there(block);
    if (!is_listed && !look(block)) return false;
  }
  return true;
}

bool Blocks::become_here(std::uint64_t block, State from, std::uint64_t losses) {
  if (!change(block, from, State::kOnDisk)) return false;
  return losses == entry_->losses() || !change(block, State::kOnDisk, State::kUnknown);
}

void Blocks::keep(std::uint64_t block, State from, std::vector<std::byte> bytes) {
  const std::lock_guard lock(memory_mutex_);
  memory_.push_back({block, std::move(bytes)});
  if (!change(block, from, State::kKept)) memory_.pop_back();
}

void Blocks::shrink(std::uint64_t most, const std::function<bool(std::uint64_t block)>& is_needed) {
  const std::lock_guard lock(memory_mutex_);
  std::size_t surplus = memory_.size() - std::min<std::size_t>(memory_.size(), most / kBlock);
  std::erase_if(memory_, [&](const Kept& kept) {
    const bool goes =
        surplus > 0 && !is_needed(kept.block) && change(kept.block, State::kKept, State::kAbsent);
    if (goes) --surplus;
    return goes;
  });
}

void Blocks::keep_first(std::string_view first, std::uint64_t most_in_memory, bool has_room) {
  const auto bytes =
      std::as_bytes(std::span(first))
          .first(static_cast<std::size_t>(std::min<std::uint64_t>(first.size(), size_)));
  for (std::uint64_t block = 0; block < count_; ++block) {
    const ByteRange range = range_of({block, block + 1});
    if (bytes.size() < range.offset + range.length) return;
    if (look(block)) continue;
    const auto part = bytes.subspan(static_cast<std::size_t>(range.offset),
                                    static_cast<std::size_t>(range.length));
    // No block is claimed, because a process that forks later must not hold a claim. At worst, two
    // processes write the same bytes.
    const std::uint64_t before = losses();
    if (has_room && entry_ && entry_->reserve(range) == 0 && entry_->write(block, part) == 0) {
      become_here(block, State::kAbsent, before);
    } else if ((memory_.size() + 1) * kBlock <= most_in_memory) {
      keep(block, State::kAbsent, {part.begin(), part.end()});
    }
  }
}

bool Blocks::read_from_memory(std::uint64_t block, std::span<std::byte> buffer,
                              std::uint64_t from) {
  const std::lock_guard lock(memory_mutex_);
  const auto kept = std::ranges::find(memory_, block, &Kept::block);
  if (kept == memory_.end()) return false;
  std::memcpy(buffer.data(), kept->bytes.data() + from, buffer.size());
  std::rotate(kept, std::next(kept), memory_.end());
  return true;
}

// Sets all blocks to kUnknown, because any of them may have become zeros. The next look() checks
// it.
void Blocks::check_all_again() {
  const std::lock_guard lock(losses_mutex_);
  const std::uint64_t losses = entry_->losses();
  if (losses == losses_) return;  // another reader has done it
  for (std::uint64_t block = 0; block < count_; ++block) {
    change(block, State::kOnDisk, State::kUnknown);
  }
  losses_ = losses;
}

int Blocks::read_from_entry(std::span<std::byte> buffer, std::uint64_t offset) {
  const int error = entry_->read(buffer, offset);
  if (error == 0) return 0;
  // The cache's file is damaged. Make the lost blocks absent, so that they are fetched again: the
  // blocks of this range, or all blocks from its start on if the file was truncated (ESTALE).
  is_broken_ = true;
  const BlockRun run = run_of({offset, buffer.size()});
  const std::uint64_t end = error == ESTALE ? count_ : run.end;
  for (std::uint64_t block = run.first; block < end; ++block) {
    if (state(block) != State::kOnDisk) continue;
    entry_->forget(block);
    if (change(block, State::kOnDisk, State::kAbsent)) tally(counters_, &Counters::cache_corrupt);
  }
  return EAGAIN;
}

int Blocks::descriptor(ByteRange range) const {
  if (!entry_ || is_broken_ || !holds(range)) return -1;
  const BlockRun run = run_of(range);
  for (std::uint64_t block = run.first; block < run.end; ++block) {
    if (state(block) != State::kOnDisk) return -1;
  }
  return entry_->descriptor();
}

int Blocks::read(std::span<std::byte> buffer, std::uint64_t offset) {
  if (!holds({offset, buffer.size()})) return EINVAL;
  while (!buffer.empty()) {
    // Read as many blocks as possible from the file, or one block from memory.
    std::uint64_t block = offset / kBlock;
    const std::uint64_t checked = losses_;  // read before the blocks' states
    const State where = look(block) ? state(block) : State::kAbsent;
    if (!is_here(where)) return EAGAIN;  // memory may drop a block at any time
    std::uint64_t end = (block + 1) * kBlock;
    const bool is_kept = where == State::kKept;
    while (!is_kept && end < offset + buffer.size() && look(++block) &&
           state(block) == State::kOnDisk) {
      end += kBlock;
    }
    const auto part = buffer.first(
        static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), end - offset)));
    if (is_kept) {
      if (!read_from_memory(offset / kBlock, part, offset % kBlock)) return EAGAIN;
    } else if (const int error = read_from_entry(part, offset)) {
      return error;
    } else if (losses() != checked) {
      check_all_again();
      return EAGAIN;
    }
    buffer = buffer.subspan(part.size());
    offset += part.size();
  }
  return 0;
}

}  // namespace stfs
