// A local file with bytes that arrive only when a test delivers them, like bytes from a network.
//
// Thread safety: all members may be called from any thread.
#pragma once

#include "core/source/local_file.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace stfs::test {

class LateSource : public Source {
 public:
  explicit LateSource(const std::string& path) : Source(path), file_(path) {
    set_version(file_.version());
  }

  // Makes all bytes missing. Call it after the header was read.
  void take_bytes_away() {
    const std::lock_guard lock(mutex_);
    is_away_ = true;
  }
  // Returns the ranges that are wanted and not delivered yet.
  std::vector<ByteRange> wanted() const {
    const std::lock_guard lock(mutex_);
    std::vector<ByteRange> ranges;
    for (const auto& [range, ready] : waiting_) ranges.push_back(range);
    return ranges;
  }
  // Completes the oldest want with 0 or an errno.
  void deliver(int error) {
    std::unique_lock lock(mutex_);
    auto [range, ready] = std::move(waiting_.front());
    waiting_.erase(waiting_.begin());
    if (error == 0 && !std::exchange(loses_next_, false)) here_.push_back(range);
    lock.unlock();
    ready(error);
    evict();
  }

  // From now on bytes arrive before want() returns.
  void deliver_at_once() {
    const std::lock_guard lock(mutex_);
    is_prompt_ = true;
  }
  // Lets want() run out of memory after this number of ranges.
  void refuse_after(std::size_t ranges) {
    const std::lock_guard lock(mutex_);
    room_ = ranges;
  }

  // Keeps only the newest arrived ranges, up to `bytes`. The range of a want() stays until its
  // callback returns.
  void keep_at_most(std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    most_ = bytes;
  }
  // Evicts the next delivered range at once, before its callback.
  void lose_next() {
    const std::lock_guard lock(mutex_);
    loses_next_ = true;
  }
  // The bytes at these offsets seem to be available until they are read. Then they must be wanted
  // again, like a cache block with a wrong checksum.
  void be_damaged_at(std::vector<std::uint64_t> offsets) {
    const std::lock_guard lock(mutex_);
    damaged_ = std::move(offsets);
  }
  // Makes this number of reads fail as if the bytes that has() promised had been evicted.
  void lose_at_reads(unsigned count) { lost_reads_ = count; }
  // Makes one read fail with `error`, after `after` reads that succeed. 0: no read fails.
  void fail_a_read(unsigned after, int error) {
    failure_ = error;
    reads_before_failure_ = after;
  }
  // Returns true if that read has failed.
  bool has_failed() const { return failure_ == 0; }
  void bring_all_back() {
    const std::lock_guard lock(mutex_);
    is_away_ = false;
  }
  // Returns the ranges that were prefetched, in order. They never arrive.
  std::vector<ByteRange> prefetched() const {
    const std::lock_guard lock(mutex_);
    return prefetched_;
  }
  // Returns the count that wants() returns. It may outlive the source.
  std::shared_ptr<const std::size_t> counted_wants() const { return wants_; }
  // Returns the number of calls of want().
  std::size_t wants() const {
    const std::lock_guard lock(mutex_);
    return *wants_;
  }
  // Returns the length of the longest wanted range.
  std::uint64_t longest_want() const {
    const std::lock_guard lock(mutex_);
    return longest_want_;
  }
  // Behaves like a remote source after a change of its object: arrived bytes stay valid.
  void change_remotely() {
    mark_changed();
    is_changed_remotely_ = true;
  }
  void promise_sha256(std::string hex) { sha256_ = std::move(hex); }

  // Evicts all bytes that have arrived.
  void forget() {
    const std::lock_guard lock(mutex_);
    here_.clear();
  }

  std::string token() const override { return file_.token(); }
  bool has(ByteRange range) const override {
    const std::lock_guard lock(mutex_);
    return is_here(range);
  }
  bool is_complete() const override {
    const std::lock_guard lock(mutex_);
    return is_local_ && !is_away_;
  }
  // From now on is_complete() returns false, as for a remote source with all bytes in its cache.
  void be_remote() {
    const std::lock_guard lock(mutex_);
    is_local_ = false;
  }
  void prefetch(ByteRange range) const override {
    const std::lock_guard lock(mutex_);
    prefetched_.push_back(range);
  }
  std::string sha256() const override { return sha256_; }
  void want(ByteRange range, Ready ready) const override {
    std::unique_lock lock(mutex_);
    if (room_ == 0) throw std::bad_alloc();
    --room_;
    ++*wants_;
    longest_want_ = std::max(longest_want_, range.length);
    if (has_changed()) {
      lock.unlock();
      return ready(ESTALE);
    }
    std::erase_if(found_damaged_, [&](std::uint64_t at) { return contains(range, at); });
    if (!is_prompt_) {
      waiting_.emplace_back(range, std::move(ready));
      return;
    }
    here_.push_back(range);
    lock.unlock();
    ready(0);
    evict();
  }
  int read_unverified(std::span<std::byte> buffer, std::uint64_t offset) const override {
    if (!has({offset, buffer.size()}) || finds_damage({offset, buffer.size()})) return EAGAIN;
    if (is_lost()) return EAGAIN;
    if (failure_ != 0 && reads_before_failure_-- == 0) return failure_.exchange(0);
    return file_.read_unverified(buffer, offset);
  }
  int read_ahead(std::span<std::byte> buffer, std::uint64_t offset) const override {
    if (!has({offset, buffer.size()}) || is_lost()) return EAGAIN;
    return file_.read_ahead(buffer, offset);
  }
  bool can_pin(ByteRange) const override { return false; }
  Pinned try_pin() const override { return {}; }
  int verify() const override {
    if (is_refused() || (has_changed() && !is_changed_remotely_)) return ESTALE;
    return is_changed_remotely_ ? 0 : file_.verify();
  }
  bool is_current() const override { return file_.is_current(); }

 private:
  static bool contains(ByteRange range, std::uint64_t at) {
    return at >= range.offset && at < range.offset + range.length;
  }
  bool finds_damage(ByteRange range) const {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::ranges::find_if(damaged_, [&](std::uint64_t at) { return contains(range, at); });
    if (found == damaged_.end()) return false;
    found_damaged_.push_back(*found);
    damaged_.erase(found);
    return true;
  }
  bool is_lost() const {
    if (lost_reads_ == 0) return false;
    --lost_reads_;
    return true;
  }
  bool is_here(ByteRange range) const {
    if (std::ranges::any_of(found_damaged_,
                            [&](std::uint64_t at) { return contains(range, at); })) {
      return false;
    }
    if (!is_away_) return true;
    // The ranges may be neighbours, so continue at the end of the longest one.
    std::uint64_t at = range.offset;
    const std::uint64_t end = range.offset + range.length;
    for (bool is_extended = true; is_extended && at < end;) {
      is_extended = false;
      for (const ByteRange& here : here_) {
        if (at < here.offset || at >= here.offset + here.length) continue;
        at = here.offset + here.length;
        is_extended = true;
      }
    }
    return at >= end;
  }
  void evict() const {
    const std::lock_guard lock(mutex_);
    std::uint64_t bytes = 0;
    for (const ByteRange& here : here_) bytes += here.length;
    while (bytes > most_ && !here_.empty()) {
      bytes -= here_.front().length;
      here_.erase(here_.begin());
    }
  }

  LocalFile file_;
  mutable std::mutex mutex_;
  bool is_away_ = false;
  bool is_local_ = true;
  bool loses_next_ = false;
  mutable std::atomic<unsigned> lost_reads_ = 0;
  mutable std::atomic<unsigned> reads_before_failure_ = 0;
  mutable std::atomic<int> failure_ = 0;
  std::atomic<bool> is_changed_remotely_ = false;
  std::string sha256_;
  std::uint64_t most_ = std::numeric_limits<std::uint64_t>::max();
  const std::shared_ptr<std::size_t> wants_ = std::make_shared<std::size_t>(0);
  mutable std::uint64_t longest_want_ = 0;
  mutable std::vector<ByteRange> prefetched_;
  bool is_prompt_ = false;
  mutable std::size_t room_ = std::numeric_limits<std::size_t>::max();
  mutable std::vector<ByteRange> here_;
  mutable std::vector<std::uint64_t> damaged_;
  mutable std::vector<std::uint64_t> found_damaged_;
  mutable std::vector<std::pair<ByteRange, Ready>> waiting_;
};

}  // namespace stfs::test
