// Distinguishes the kernel's second try of a read from the next read of a program.
//
// If the kernel's readahead fails, the kernel sends one more request for the page that its reader
// needs, and the reader gets the error of this second try. So a reader would wait for two
// deadlines. Therefore the first failure of a range after a long wait is reported twice: the next
// read in the range within a second fails at once. The kernel then knows the page and requests it
// only once from then on. So later failures of the range are reported once, and each further read
// tries again.
//
// Thread safety: all members may be called from any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>

namespace stfs {

class RepeatedReads {
 public:
  using Clock = std::chrono::steady_clock;
  // The shortest wait that counts as long.
  static constexpr std::chrono::milliseconds kLong{500};
  // How long after a failure the next read counts as its second try.
  static constexpr std::chrono::milliseconds kAtOnce{1000};
  static constexpr std::size_t kMost = 256;  // maximum number of ranges; the oldest are dropped

  struct Read {  // a read through the kernel's cache
    std::uint64_t inode, offset, length;
  };
  // Records a failed read. If memory runs out, the read is not recorded, and its second try waits
  // as well.
  void failed(const Read& read, Clock::time_point began, Clock::time_point now) noexcept;
  // Removes the records that overlap a read that has succeeded.
  void succeeded(const Read& read);
  // Returns true if a read is the second try of a failed read. Returns true only once per failed
  // read.
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
