// The xor of the frames of a chain, decoded by a thread of its own, some pieces ahead of who takes
// them.
//
// Thread safety: one thread takes the pieces. Lifetime: the frames outlive it.
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
  // `frames` are of the encoding xor, stand at the beginning, and have `length` bytes each; a piece
  // has `most` bytes, and the last one what is left. Where the system refuses a thread, or one
  // piece is all, next() decodes.
  CombinedXor(std::span<const std::unique_ptr<Frame>> frames, std::uint64_t length,
              std::size_t most);
  CombinedXor(const CombinedXor&) = delete;
  CombinedXor& operator=(const CombinedXor&) = delete;
  ~CombinedXor();

  // Sets `piece` to the next one, which is valid until the next call. Returns 0, ENOMEM, or what
  // Frame::apply() does. Not to be called after an error.
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
  std::uint64_t left_;  // bytes that are not decoded
  std::mutex mutex_;    // of is_full and is_ending_
  std::condition_variable changed_;
  std::array<Slot, 4> slots_;
  std::size_t taken_ = 0;  // pieces
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace stfs
