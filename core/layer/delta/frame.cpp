#include "core/layer/delta/frame.h"

#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>
#include <vector>

namespace stfs {
namespace {

constexpr std::size_t kRead = 128 << 10;  // the bytes of a frame that are read at once

// Decodes the content of a zstd frame, in order.
class Stream {
 public:
  Stream(const Extent& frame, std::uint64_t window) : frame_(frame), context_(ZSTD_createDCtx()) {
    if (context_ == nullptr) throw std::bad_alloc();
    const ZSTD_bounds logs = ZSTD_dParam_getBounds(ZSTD_d_windowLogMax);
    const int log = static_cast<int>(std::bit_width(window)) - 1;
    constexpr int kUsual = 27;  // the default of ZSTD_d_windowLogMax
    ZSTD_DCtx_setParameter(context_, ZSTD_d_windowLogMax, std::clamp(log, logs.lowerBound, kUsual));
    ZSTD_outBuffer nothing{nullptr, 0, 0};
    begun_ = step(nothing);
  }
  ~Stream() { ZSTD_freeDCtx(context_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Fills `out`. Returns 0, the errno of a failed read, EFBIG if the window is too large, or
  // EBADMSG if the frame is damaged or ends before `out` is full.
  int read(std::span<std::byte> out) {
    if (begun_ != 0) return begun_;
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    while (to.pos < to.size) {
      if (has_ended_) return EBADMSG;
      if (const int error = step(to)) return error;
    }
    return 0;
  }

  int skip(std::uint64_t bytes) {
    std::array<std::byte, 4096> dropped{};
    while (bytes > 0) {
      const auto some = static_cast<std::size_t>(std::min<std::uint64_t>(dropped.size(), bytes));
      if (const int error = read(std::span(dropped).first(some))) return error;
      bytes -= some;
    }
    return 0;
  }

  std::size_t memory() const { return ZSTD_sizeof_DCtx(context_) + kRead; }

  // Returns 0 if the frame ends here: neither content nor further bytes follow. Else returns
  // EBADMSG or an error of reading.
  int end() {
    if (begun_ != 0) return begun_;
    std::byte none{};
    ZSTD_outBuffer to{&none, 0, 0};
    while (!has_ended_) {
      const std::size_t before = input_.pos;
      const std::uint64_t read_before = read_;
      if (const int error = step(to)) return error;
      // Content that does not fit into an empty buffer remains.
      if (!has_ended_ && input_.pos == before && read_ == read_before) return EBADMSG;
    }
    return input_.pos == input_.size && read_ == frame_.length ? 0 : EBADMSG;
  }

 private:
  int step(ZSTD_outBuffer& to) {
    if (input_.pos == input_.size && read_ < frame_.length) {
      const auto some =
          static_cast<std::size_t>(std::min<std::uint64_t>(kRead, frame_.length - read_));
      bytes_.resize(some);
      if (const int error = frame_.source->read_unverified(bytes_, frame_.offset + read_)) {
        return error;
      }
      read_ += some;
      input_ = {bytes_.data(), some, 0};
    }
    const std::size_t before_in = input_.pos, before_out = to.pos;
    const std::size_t left = ZSTD_decompressStream(context_, &to, &input_);
    if (ZSTD_getErrorCode(left) == ZSTD_error_frameParameter_windowTooLarge) return EFBIG;
    if (ZSTD_isError(left) != 0U) return EBADMSG;
    has_ended_ = left == 0;
    const bool is_stuck = !has_ended_ && input_.pos == before_in && to.pos == before_out;
    if (is_stuck && read_ == frame_.length && input_.pos == input_.size) return EBADMSG;
    return 0;
  }

  Extent frame_;
  ZSTD_DCtx* context_;
  std::vector<std::byte> bytes_;
  ZSTD_inBuffer input_{nullptr, 0, 0};
  std::uint64_t read_ = 0;  // bytes of the frame that were read
  bool has_ended_ = false;
  int begun_ = 0;  // the errno of reading the frame's header, or EBADMSG or EFBIG
};

class XorFrame : public Frame {
 public:
  XorFrame(const Extent& frame, std::uint64_t window) : stream_(frame, window) {}

  int apply(std::span<std::byte> next) override {
    std::array<std::byte, 64 << 10> changes;
    for (; !next.empty(); next = next.subspan(std::min(changes.size(), next.size()))) {
      const std::span some = std::span(changes).first(std::min(changes.size(), next.size()));
      if (const int error = stream_.read(some)) return error;
      exclusive_or(some, next.first(some.size()));
    }
    return 0;
  }
  int apply_to_zeros(std::span<std::byte> next) override { return stream_.read(next); }
  int skip(std::uint64_t bytes) override { return stream_.skip(bytes); }
  int end() override { return stream_.end(); }
  std::size_t memory() const override { return stream_.memory(); }

 private:
  Stream stream_;
};

class OverwriteFrame : public Frame {
 public:
  OverwriteFrame(const Extent& frame, std::uint64_t length, std::uint64_t window)
      : positions_(frame, window), values_(frame, window), length_(length) {}

  int apply(std::span<std::byte> next) override {
    return walk(next.size(), [&](std::uint64_t at, std::byte value) { next[at] = value; });
  }
  int skip(std::uint64_t bytes) override {
    return walk(bytes, [](std::uint64_t, std::byte) {});
  }
  int end() override {
    if (const int error = begin()) return error;
    return left_ == 0 && !has_next_ ? values_.end() : EBADMSG;
  }
  std::size_t memory() const override { return positions_.memory() + values_.memory(); }

 private:
  int begin() {
    if (has_begun_) return 0;
    has_begun_ = true;
    std::uint32_t count = 0;
    if (const int error = positions_.read(std::as_writable_bytes(std::span(&count, 1)))) {
      return error;
    }
    if (count > length_) return EBADMSG;
    left_ = count;
    if (const int error = values_.skip(sizeof count * (std::uint64_t{count} + 1))) return error;
    return advance();
  }

  // Takes the next position and its byte. Checks that positions ascend within the tensor.
  int advance() {
    has_next_ = false;
    if (left_ == 0) return 0;
    if (taken_ == some_.size()) {
      some_.resize(std::min<std::uint64_t>(left_, 4096));
      if (const int error = positions_.read(std::as_writable_bytes(std::span(some_)))) return error;
      bytes_.resize(some_.size());
      if (const int error = values_.read(bytes_)) return error;
      taken_ = 0;
    }
    const std::uint32_t position = some_[taken_];
    if (position >= length_ || (has_last_ && position <= last_)) return EBADMSG;
    next_ = last_ = position;
    value_ = bytes_[taken_++];
    has_last_ = has_next_ = true;
    --left_;
    return 0;
  }

  template <class Use>
  int walk(std::uint64_t bytes, const Use& use) {
    if (const int error = begin()) return error;
    while (has_next_ && next_ < at_ + bytes) {
      use(next_ - at_, value_);
      if (const int error = advance()) return error;
    }
    at_ += bytes;
    return 0;
  }

  Stream positions_, values_;
  std::uint64_t length_;
  bool has_begun_ = false;
  std::uint64_t left_ = 0;  // positions that were not taken yet
  std::vector<std::uint32_t> some_;
  std::vector<std::byte> bytes_;
  std::size_t taken_ = 0;
  std::uint64_t at_ = 0;  // bytes of the tensor that were passed
  bool has_next_ = false, has_last_ = false;
  std::uint64_t next_ = 0, last_ = 0;
  std::byte value_{};
};

}  // namespace

void exclusive_or(std::span<const std::byte> change, std::span<std::byte> bytes) {
  std::array<std::uint64_t, 8> words, changes;
  std::size_t i = 0;
  for (; change.size() - i >= sizeof words; i += sizeof words) {
    std::memcpy(words.data(), &bytes[i], sizeof words);
    std::memcpy(changes.data(), &change[i], sizeof changes);
    for (std::size_t word = 0; word < words.size(); ++word) words[word] ^= changes[word];
    std::memcpy(&bytes[i], words.data(), sizeof words);
  }
  for (; i < change.size(); ++i) bytes[i] ^= change[i];
}

int Frame::apply_to_zeros(std::span<std::byte> next) {
  std::ranges::fill(next, std::byte{});
  return apply(next);
}

std::unique_ptr<Frame> Frame::open(DeltaEncoding encoding, const Extent& frame,
                                   std::uint64_t length, std::uint64_t window) {
  if (encoding == DeltaEncoding::kXor) return std::make_unique<XorFrame>(frame, window);
  return std::make_unique<OverwriteFrame>(frame, length, window);
}

std::uint64_t streams_of(DeltaEncoding encoding) { return encoding == DeltaEncoding::kXor ? 1 : 2; }

}  // namespace stfs
