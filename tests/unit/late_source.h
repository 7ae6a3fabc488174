// A local file whose bytes arrive when a test delivers them, as bytes from a network would.
//
// Thread safety: all members.
#pragma once

#include "core/source/local_file.h"

#include <cstddef>
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

  // Call after the header was read: until then all bytes are here.
  void take_bytes_away() {
    const std::lock_guard lock(mutex_);
    is_away_ = true;
  }
  // The ranges that are wanted and not delivered.
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
    if (error == 0) here_.push_back(range);
    lock.unlock();
    ready(error);
  }

  // From now on bytes arrive before want() returns.
  void deliver_at_once() {
    const std::lock_guard lock(mutex_);
    is_prompt_ = true;
  }
  // want() runs out of memory after so many ranges.
  void refuse_after(std::size_t ranges) {
    const std::lock_guard lock(mutex_);
    room_ = ranges;
  }

  // Nothing that came is here any more.
  void forget() {
    const std::lock_guard lock(mutex_);
    here_.clear();
  }

  bool has(ByteRange range) const override {
    const std::lock_guard lock(mutex_);
    if (!is_away_) return true;
    for (const ByteRange& here : here_) {
      if (range.offset >= here.offset && range.offset + range.length <= here.offset + here.length) {
        return true;
      }
    }
    return false;
  }
  void want(ByteRange range, Ready ready) const override {
    std::unique_lock lock(mutex_);
    if (room_ == 0) throw std::bad_alloc();
    --room_;
    if (!is_prompt_) {
      waiting_.emplace_back(range, std::move(ready));
      return;
    }
    here_.push_back(range);
    lock.unlock();
    ready(0);
  }
  int read_unverified(std::span<std::byte> buffer, std::uint64_t offset) const override {
    return file_.read_unverified(buffer, offset);
  }
  int read_ahead(std::span<std::byte> buffer, std::uint64_t offset) const override {
    return file_.read_ahead(buffer, offset);
  }
  bool can_pin(ByteRange) const override { return false; }
  Pinned try_pin() const override { return {}; }
  int verify() const override { return file_.verify(); }
  bool is_current() const override { return file_.is_current(); }

 private:
  LocalFile file_;
  mutable std::mutex mutex_;
  bool is_away_ = false;
  bool is_prompt_ = false;
  mutable std::size_t room_ = std::numeric_limits<std::size_t>::max();
  mutable std::vector<ByteRange> here_;
  mutable std::vector<std::pair<ByteRange, Ready>> waiting_;
};

}  // namespace stfs::test
