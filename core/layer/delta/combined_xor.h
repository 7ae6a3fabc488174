// The xor of the frames of a chain. A thread of its own decodes it, a few pieces ahead of the
// thread that takes them.
//
// Thread safety: one thread takes the pieces. Lifetime: the frames must outlive it.
#pragma once

#include "core/layer/delta/frame.h"

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace stfs {

class CombinedXor {
 public:
  // `frames` have the encoding xor, are at their beginning, and decode to `length` bytes each. Each
  // piece has `most` bytes, except the last one, which may be shorter. If one piece is enough, or
  // if the system refuses a thread, next() decodes.
  CombinedXor(std::span<const std::unique_ptr<Frame>> frames, std::uint64_t length,
              std::size_t most);
  CombinedXor(const CombinedXor&) = delete;
  CombinedXor& operator=(const CombinedXor&) = delete;
  ~CombinedXor();

  // Sets `piece` to the next piece, which is valid until the next call. Returns 0, ENOMEM, or an
  // error of Frame::apply(). Do not call it after an error.
  int next(std::span<const std::byte>& piece);

 private:
  struct Slot {
    std::vector<std::byte> bytes = {};
    int error = 0;
    bool is_full = false;
  };

  void decode(Slot& slot);
  void run();

  const std::span<const std::unique_ptr<Frame>> frames_;
  const std::size_t most_;
  std::uint64_t left_;  // bytes that are not decoded yet
  std::mutex mutex_;    // guards is_full and is_ending_
  std::condition_variable changed_;
  std::array<Slot, 4> slots_;
  std::size_t taken_ = 0;  // the number of pieces that were taken
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace stfs
