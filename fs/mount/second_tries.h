// Tells the kernel's second try of a read from the next read of a program.
//
// The kernel reads ahead; when that fails, it asks once more for the page that its reader needs,
// and the reader gets the error of this second try. A read that has waited for its deadline would
// wait for two. So the first failure of a range after a long wait is told twice: the next read in
// the range within a second fails at once. The kernel then knows the page, and asks for it once
// from then on: later failures of the range are told once, and each next read tries again.
//
// Thread safety: all members.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>

namespace stfs {

class SecondTries {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kLong{500};  // a wait
  static constexpr std::chrono::milliseconds kAtOnce{1000};
  static constexpr std::size_t kMost = 256;  // ranges; the oldest go first

  struct Read {  // through the kernel's cache
    std::uint64_t inode, offset, length;
  };
  // Without memory it forgets the read, whose second try then waits as well.
  void failed(const Read& read, Clock::time_point began, Clock::time_point now) noexcept;
  void succeeded(const Read& read);
  // Whether a read is the second try of one that failed. True once for each.
  bool take(const Read& read, Clock::time_point now);

 private:
  struct Failure {
    Read read;
    Clock::time_point until;
    bool is_told_twice;
  };
  static bool overlap(const Read& a, const Read& b) {
    return a.inode == b.inode && a.offset < b.offset + b.length && b.offset < a.offset + a.length;
  }

  std::mutex mutex_;
  std::list<Failure> failures_;  // the oldest first
};

}  // namespace stfs
