// Decompresses a member of a zip archive from its beginning to its end (zlib, RFC 1951).
//
// Thread safety: one thread at a time; a const Inflater may be copied by any. Lifetime: `read`
// reads while the Inflater and its copies live.
#pragma once

#include "core/format/header.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace stfs {

class Inflater {
 public:
  // Throws std::bad_alloc.
  Inflater(ByteRange packed, Description::Deflated member, ReadBytes read);
  // At the same place.
  Inflater(const Inflater& other);
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater();

  std::uint64_t position() const { return position_; }  // bytes that take() gave

  // Fills `out` with the next bytes; they are within the member. 0, an errno of `read`, or EBADMSG
  // for a stream that is broken, ends early, or whose checksum is wrong.
  int take(std::span<std::byte> out);

 private:
  struct Stream;
  int refill();

  ByteRange packed_;
  Description::Deflated member_;
  ReadBytes read_;
  std::uint64_t read_to_ = 0;  // in the packed bytes: behind those in `input_`
  std::uint64_t position_ = 0;
  std::uint32_t crc_ = 0;
  std::vector<std::byte> input_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace stfs
