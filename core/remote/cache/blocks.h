// The blocks of one remote object: a state of one byte for each block, and the bytes of the blocks
// that are available locally, in an entry of the cache or in memory. fetcher.h draws the states.
//
// State changes: any thread may change kUnknown and kAbsent to kOnDisk or kAbsent (after it has
// looked into the cache), and kOnDisk to kUnknown or kAbsent (after a read that failed). Only the
// Fetcher makes all other changes, under its mutex.
//
// Thread safety: all members may be called from any thread.
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
    kUnknown,  // the cache was not checked yet
    kAbsent,
    kPrefetchQueued,  // queued by prefetch()
    kReadQueued,      // queued by want()
    kDelayed,         // queued for later: a request failed, or another process has claimed it
    kInFlight,        // in a request
    kOnDisk,          // in the cache's file
    kKept,            // in memory
  };
  static bool is_here(State state) { return state >= State::kOnDisk; }

  // `entry` null: keeps all blocks in memory. Throws Error kUnreadable if the object is larger than
  // 64 TiB.
  Blocks(const RemoteVersion& version, std::unique_ptr<CacheEntry> entry, Counters* counters);

  std::uint64_t size() const { return size_; }
  std::uint64_t count() const { return count_; }
  // Returns true if a range lies inside the object.
  bool holds(ByteRange range) const {
    return range.offset <= size_ && range.length <= size_ - range.offset;
  }
  // run_of() returns the blocks that contain a range, which must lie inside the object. range_of()
  // returns the bytes of blocks.
  BlockRun run_of(ByteRange range) const;
  ByteRange range_of(BlockRun run) const;

  State state(std::uint64_t block) const;
  bool change(std::uint64_t block, State from, State to);  // false: the state is not `from`
  // Returns true if a block is kOnDisk or kKept. If it is unknown or absent, looks into the cache,
  // because another process may have fetched it; a block found there is read and checked once.
  bool look(std::uint64_t block);
  // Returns true if all blocks of the run are kOnDisk or kKept.
  bool look(BlockRun run);
  // Like look(), but trusts the cache's map for blocks that were not checked yet. A window of
  // cached blocks then costs microseconds, not a checksum of all its bytes.
  bool is_probably_local(BlockRun run);
  bool is_complete() const { return here_ == count_; }

  // losses() returns the losses of the entry (CacheEntry::losses()). become_here() changes a block
  // to kOnDisk whose bytes were checked or written when losses() was `losses`. Returns false if its
  // state is not `from`, or if there was another loss since; the block is then kUnknown.
  std::uint64_t losses() const { return entry_ ? entry_->losses() : 0; }
  bool become_here(std::uint64_t block, State from, std::uint64_t losses);

  // Returns the entry, or null if the object has no entry.
  CacheEntry* entry() const { return entry_.get(); }
  // Checks a block of the entry that is kInFlight. It becomes kOnDisk if its checksum matches.
  bool take_published(std::uint64_t block) { return take(block, State::kInFlight); }
  // Returns true if the entry's file has lost bytes. Blocks that are fetched from now on are kept
  // in memory.
  bool is_broken() const { return is_broken_; }

  // Keeps the bytes of a block in memory, if its state is `from`.
  void keep(std::uint64_t block, State from, std::vector<std::byte> bytes);
  // Drops the least recently used blocks from memory until at most `most` bytes are left. Keeps the
  // blocks for which `is_needed` returns true.
  void shrink(std::uint64_t most, const std::function<bool(std::uint64_t block)>& is_needed);
  // Stores the whole blocks in `first`, the first bytes of the object: in the entry if `has_room`
  // and the disk accepts them, otherwise in memory, up to `most_in_memory` bytes.
  void keep_first(std::string_view first, std::uint64_t most_in_memory, bool has_room);

  // Returns the descriptor of the entry's file if all blocks of a range are kOnDisk, or -1. The
  // entry owns the descriptor.
  int descriptor(ByteRange range) const;

  // Reads bytes of the object. Returns 0 or an errno: EAGAIN if a block is not available locally,
  // including a block that the cache's file turns out to have lost and that is now absent; EINVAL
  // if the range does not lie inside the object.
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
  // Allocated with calloc(3), so that no memory is used for parts of a huge object that are not
  // read.
  std::unique_ptr<std::uint8_t[], Free> states_;
  std::atomic<std::uint64_t> here_ = 0;
  std::atomic<bool> is_broken_ = false;
  std::mutex losses_mutex_;
  std::atomic<std::uint64_t> losses_ = 0;  // losses() when all blocks became kUnknown

  std::mutex memory_mutex_;
  std::vector<Kept> memory_;  // the least recently used first
};

}  // namespace stfs
