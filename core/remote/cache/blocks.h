// The blocks of one remote object that are on this machine: their bytes, in an entry of the cache
// or in memory, and a byte of state for each. fetcher.h draws the states.
//
// Changes of a state: any thread turns kUnknown and kAbsent into kHere or kAbsent (a look at the
// cache), and kHere into kAbsent (a read that failed). All else is the Fetcher's, under its lock.
//
// Thread safety: all members.
#pragma once

#include "core/remote/cache/cache.h"
#include "core/source/counters.h"
#include "core/source/source.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

namespace stfs {

// Blocks [first, end).
struct BlockRun {
  std::uint64_t first = 0;
  std::uint64_t end = 0;

  bool empty() const { return first == end; }
  bool overlaps(const BlockRun& other) const { return first < other.end && other.first < end; }
};

class Blocks {
 public:
  static constexpr std::uint64_t kBlock = CacheEntry::kBlock;

  enum class State : std::uint8_t {
    kUnknown,  // nobody has looked
    kAbsent,
    kAhead,     // queued by prefetch()
    kDemanded,  // queued by want()
    kDelayed,   // queued, not before a time: a request failed, or another process has claimed it
    kComing,    // in a request
    kHere,      // in the cache's file
    kKept,      // here too, but in memory
  };
  static bool is_here(State state) { return state >= State::kHere; }

  // `entry` null: all blocks in memory. Throws Error kUnreadable when `size` is absurd.
  Blocks(const RemoteVersion& version, std::unique_ptr<CacheEntry> entry, Counters* counters);

  std::uint64_t size() const { return size_; }
  std::uint64_t count() const { return count_; }
  // Whether a range lies inside the object.
  bool holds(ByteRange range) const {
    return range.offset <= size_ && range.length <= size_ - range.offset;
  }
  // The blocks that hold a range, which must lie inside; the bytes of blocks.
  BlockRun run_of(ByteRange range) const;
  ByteRange range_of(BlockRun run) const;

  State state(std::uint64_t block) const;
  bool change(std::uint64_t block, State from, State to);  // false: the state is not `from`
  // Whether a block is here. Looks at the cache if it is unknown or absent: another process may
  // have brought it. The first look at a block of the cache reads and checks it.
  bool look(std::uint64_t block);
  bool look(BlockRun run);
  // As look(), but believes what the cache's map says of blocks that nobody has looked at: so a
  // window of the cache costs microseconds, not a checksum of all its bytes.
  bool may_have(BlockRun run);
  bool is_complete() const { return here_ == count_; }

  // The losses of the entry (CacheEntry::losses), and: a block of which bytes were checked or
  // written when there were so many `losses` is here now. False if there was a loss since, or its
  // state is not `from`.
  std::uint64_t losses() const { return entry_ ? entry_->losses() : 0; }
  bool become_here(std::uint64_t block, State from, std::uint64_t losses);

  // The entry; null when there is none.
  CacheEntry* entry() const { return entry_.get(); }
  // Checks a block of the entry that is kComing: it is kHere if it is what was written.
  bool take_published(std::uint64_t block) { return take(block, State::kComing); }
  // The entry's file lost bytes that were here: what comes from now on is kept in memory.
  bool is_broken() const { return is_broken_; }

  // Keeps the bytes of a block that is `from` in memory.
  void keep(std::uint64_t block, State from, std::vector<std::byte> bytes);
  // Drops the least recently used blocks of memory down to `most` bytes, but none that is needed.
  void shrink(std::uint64_t most, const std::function<bool(std::uint64_t block)>& is_needed);
  // Bytes from the beginning of the object: keeps whole blocks, in the entry if it can.
  void keep_first(std::string_view first, std::uint64_t most_in_memory, bool has_room);

  // The descriptor of the entry's file if all blocks of a range are there, and were checked; else
  // -1.
  int descriptor(ByteRange range) const;

  // 0 or an errno: EAGAIN when a block is not here, or when the cache's file lost it: it is absent
  // then.
  int read(std::span<std::byte> buffer, std::uint64_t offset);

 private:
  struct Free {
    void operator()(std::uint8_t* states) const { std::free(states); }
  };
  struct Kept {
    std::uint64_t block;
    std::vector<std::byte> bytes;
  };

  std::atomic_ref<std::uint8_t> at(std::uint64_t block) const {
    return std::atomic_ref(states_.get()[block]);
  }
  bool take(std::uint64_t block, State from);
  int read_from_entry(std::span<std::byte> buffer, std::uint64_t offset);
  void check_all_again();
  bool read_from_memory(std::uint64_t block, std::span<std::byte> buffer, std::uint64_t from);

  const std::uint64_t size_, count_;
  const std::unique_ptr<CacheEntry> entry_;
  Counters* const counters_;
  // calloc(3): pages of an object of terabytes that nobody reads are never touched.
  std::unique_ptr<std::uint8_t[], Free> states_;
  std::atomic<std::uint64_t> here_ = 0;
  std::atomic<bool> is_broken_ = false;
  std::mutex losses_mutex_;
  std::atomic<std::uint64_t> losses_ = 0;  // after which all blocks are to be checked again

  std::mutex memory_mutex_;
  std::vector<Kept> memory_;  // the least recently used first
};

}  // namespace stfs
