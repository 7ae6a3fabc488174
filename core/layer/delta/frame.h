// The changes of one delta to one tensor, decoded from its frame from the beginning to the end.
//
//   xor        a stream as long as the tensor
//   overwrite  two streams of the same frame: one stands in the positions, one in the bytes
//
// Thread safety: one thread at a time. Lifetime: the source of the frame outlives it.
#pragma once

#include "core/layer/delta/version.h"
#include "core/recipe/content.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace stfs {

// bytes ^= change, of equal lengths.
void exclusive_or(std::span<const std::byte> change, std::span<std::byte> bytes);

class Frame {
 public:
  // `length` is the tensor's, in bytes; `window`: bytes that the frame may look back at most. What
  // is wrong with the frame is told by the functions.
  static std::unique_ptr<Frame> open(DeltaEncoding encoding, const Extent& frame,
                                     std::uint64_t length, std::uint64_t window);
  Frame() = default;
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;
  virtual ~Frame() = default;

  // Changes the next bytes of the tensor. Returns 0, an errno of a read, EBADMSG for a frame that
  // breaks the format, or EFBIG for one that needs a larger window.
  virtual int apply(std::span<std::byte> next) = 0;
  // As apply() to zeros, which `next` need not be.
  virtual int apply_to_zeros(std::span<std::byte> next);
  // As apply(), for bytes that nobody wants.
  virtual int skip(std::uint64_t bytes) = 0;
  // After the last byte: whether the frame ends there. 0 or EBADMSG.
  virtual int end() = 0;
  // Bytes of memory, all that the frame's own header asks for: it is read by open().
  virtual std::size_t memory() const = 0;
};

// As many streams are decoded for a frame.
std::uint64_t streams_of(DeltaEncoding encoding);

}  // namespace stfs
