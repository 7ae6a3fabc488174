// Decompresses a member of a zip archive from its beginning to its end (zlib, RFC 1951).
//
// Thread safety: one thread at a time uses an Inflater; any thread may copy a const one. Lifetime:
// `read` must be usable while the Inflater or one of its copies exists.
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
  // `packed` is the compressed data of the member in the source. Throws std::bad_alloc.
  Inflater(ByteRange packed, Description::Deflated member, ReadBytes read);
  // The copy continues at the same position. Throws std::bad_alloc.
  Inflater(const Inflater& other);
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater();

  std::uint64_t position() const { return position_; }  // bytes that take() has returned so far

  // Fills `out` with the next bytes of the member, which must have that many left. Returns 0, an
  // errno of `read`, ENOMEM, or EBADMSG if the stream is broken or ends early. The call that
  // returns the last bytes also checks the CRC-32, and returns EBADMSG if it is wrong.
  int take(std::span<std::byte> out);

 private:
  struct Stream;
  int refill();

  ByteRange packed_;
  Description::Deflated member_;
  ReadBytes read_;
  std::uint64_t read_to_ = 0;  // the packed bytes up to here were read; the last are in input_
  std::uint64_t position_ = 0;
  std::uint32_t crc_ = 0;
  std::vector<std::byte> input_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace stfs
