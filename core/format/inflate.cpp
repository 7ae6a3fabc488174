#include "core/format/inflate.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <new>
#include <utility>

namespace stfs {
namespace {

constexpr std::uint64_t kInflaterInput = 64 << 10;  // bytes

}  // namespace

struct Inflater::Stream {
  Stream() {
    constexpr int kRaw = -15;  // raw deflate without a header, with a window of 2^15 bytes
    if (::inflateInit2(&z, kRaw) != Z_OK) throw std::bad_alloc();
  }
  explicit Stream(const Stream& other) {
    // inflateCopy() does not change its source.
    if (::inflateCopy(&z, const_cast<z_stream*>(&other.z)) != Z_OK) throw std::bad_alloc();
  }
  Stream& operator=(const Stream&) = delete;
  ~Stream() { ::inflateEnd(&z); }

  z_stream z{};
};

Inflater::Inflater(ByteRange packed, Description::Deflated member, ReadBytes read)
    : packed_(packed),
      member_(member),
      read_(std::move(read)),
      stream_(std::make_unique<Stream>()) {}

// The copy does not take over input_. It reads the packed bytes again that `other` has read but not
// yet used. So copies that are kept are small.
Inflater::Inflater(const Inflater& other)
    : packed_(other.packed_),
      member_(other.member_),
      read_(other.read_),
      read_to_(other.read_to_ - other.stream_->z.avail_in),
      position_(other.position_),
      crc_(other.crc_),
      stream_(std::make_unique<Stream>(*other.stream_)) {
  stream_->z.next_in = nullptr;
  stream_->z.avail_in = 0;
}

Inflater::~Inflater() = default;

int Inflater::take(std::span<std::byte> out) {
  z_stream& z = stream_->z;
  while (!out.empty()) {
    if (z.avail_in == 0) {
      if (const int error = refill()) return error;
    }
    const std::size_t some =
        std::min<std::size_t>(out.size(), std::numeric_limits<uInt>::max() / 2);
    z.next_out = reinterpret_cast<Bytef*>(out.data());
    z.avail_out = static_cast<uInt>(some);
    const int result = ::inflate(&z, Z_NO_FLUSH);
    if (result == Z_MEM_ERROR) return ENOMEM;
    const std::size_t made = some - z.avail_out;
    crc_ = static_cast<std::uint32_t>(
        ::crc32(crc_, reinterpret_cast<const Bytef*>(out.data()), static_cast<uInt>(made)));
    position_ += made;
    out = out.subspan(made);
    const bool is_stuck = made == 0 && z.avail_in == 0 && read_to_ == packed_.length;
    if ((result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) || is_stuck ||
        (result == Z_STREAM_END && !out.empty())) {
      return EBADMSG;
    }
  }
  return position_ == member_.length && crc_ != member_.crc ? EBADMSG : 0;
}

// Reads the next packed bytes into input_. At their end, input_ becomes empty. Returns 0 or an
// errno.
int Inflater::refill() {
  const std::uint64_t length = std::min(kInflaterInput, packed_.length - read_to_);
  input_.resize(static_cast<std::size_t>(length));
  if (length > 0) {
    if (const int error = read_(packed_.offset + read_to_, input_)) return error;
  }
  read_to_ += length;
  stream_->z.next_in = reinterpret_cast<Bytef*>(input_.data());
  stream_->z.avail_in = static_cast<uInt>(length);
  return 0;
}

}  // namespace stfs
