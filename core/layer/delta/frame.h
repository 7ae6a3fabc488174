// Decodes the changes of one delta to one tensor. A frame is decoded from its beginning to its end.
//
//   xor        one stream, as long as the tensor
//   overwrite  two streams over the same frame: one reads the positions, the other the bytes
//
// Thread safety: one thread at a time. Lifetime: the source of the frame must outlive it.
#pragma once

#include "core/layer/delta/version.h"
#include "core/recipe/content.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace stfs {

// Computes bytes ^= change. Both have the same size.
void exclusive_or(std::span<const std::byte> change, std::span<std::byte> bytes);

class Frame {
 public:
  // `length` is the tensor's size in bytes. `window` is the maximum number of bytes that the frame
  // may look back. Never fails: later calls report errors in the frame.
  static std::unique_ptr<Frame> open(DeltaEncoding encoding, const Extent& frame,
                                     std::uint64_t length, std::uint64_t window);
  Frame() = default;
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;
  virtual ~Frame() = default;

  // Applies the frame to the next bytes of the tensor. Returns 0, the errno of a failed read,
  // EBADMSG if the frame breaks the format, or EFBIG if the frame needs a larger window.
  virtual int apply(std::span<std::byte> next) = 0;
  // Like apply() for bytes that are all 0; `next` need not contain zeros.
  virtual int apply_to_zeros(std::span<std::byte> next);
  // Like apply(), for bytes that no reader needs.
  virtual int skip(std::uint64_t bytes) = 0;
  // Call it after the last byte. Returns 0 if the frame ends there, EBADMSG if it does not, or an
  // error of apply().
  virtual int end() = 0;
  // Returns the bytes of memory in use. Because open() has read the frame's own header, this
  // includes everything that the header asks for.
  virtual std::size_t memory() const = 0;
};

// Returns the number of streams that are decoded at the same time for one frame.
std::uint64_t streams_of(DeltaEncoding encoding);

}  // namespace stfs
