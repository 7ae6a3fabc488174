#include "core/layer/delta/encoder.h"

#include "core/layer/delta/frame.h"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>

namespace stfs {
namespace {

// The level that trainers use. A higher level takes longer than sending the bytes that it saves.
constexpr int kLevel = 1;

}  // namespace

FrameEncoder::FrameEncoder(DeltaEncoding encoding, DeltaChecksum checksum, std::uint64_t length)
    : encoding_(encoding), digest_(checksum), length_(length) {}

FrameEncoder::~FrameEncoder() { ZSTD_freeCCtx(static_cast<ZSTD_CCtx*>(context_)); }

void FrameEncoder::begin(std::uint64_t content) {
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  if (context == nullptr) throw std::bad_alloc();
  context_ = context;
  ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, kLevel);
  ZSTD_CCtx_setPledgedSrcSize(context, content);
}

void FrameEncoder::compress(std::span<const std::byte> bytes, bool is_last) {
  ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
  for (;;) {
    const std::size_t before = frame_.size();
    frame_.resize(before + ZSTD_CStreamOutSize());
    ZSTD_outBuffer out{frame_.data() + before, frame_.size() - before, 0};
    const std::size_t left = ZSTD_compressStream2(static_cast<ZSTD_CCtx*>(context_), &out, &in,
                                                  is_last ? ZSTD_e_end : ZSTD_e_continue);
    frame_.resize(before + out.pos);
    if (ZSTD_isError(left) != 0U) throw std::bad_alloc();  // it cannot fail otherwise here
    if (is_last ? left == 0 : in.pos == in.size) return;
  }
}

void FrameEncoder::add(std::span<const std::byte> before, std::span<const std::byte> after) {
  digest_.add(after);
  const bool is_equal =
      before.empty() || std::memcmp(before.data(), after.data(), before.size()) == 0;
  if (encoding_ == DeltaEncoding::kOverwrite) {
    for (std::size_t i = 0; !is_equal && i < before.size(); ++i) {
      if (before[i] == after[i]) continue;
      positions_.push_back(static_cast<std::uint32_t>(at_ + i));
      bytes_.push_back(after[i]);
    }
  } else if (has_changes_ || !is_equal) {
    if (!has_changes_) {
      begin(length_);
      static constexpr std::array<std::byte, 1 << 16> kZeros{};
      for (std::uint64_t left = at_; left > 0;) {
        const auto some = static_cast<std::size_t>(std::min<std::uint64_t>(left, kZeros.size()));
        compress(std::span(kZeros).first(some), false);
        left -= some;
      }
    }
    difference_.assign(after.begin(), after.end());
    exclusive_or(before, difference_);
    compress(difference_, false);
  }
  has_changes_ = has_changes_ || !is_equal;
  at_ += before.size();
}

std::vector<std::byte> FrameEncoder::finish() {
  if (encoding_ == DeltaEncoding::kOverwrite) {
    const auto count = static_cast<std::uint32_t>(positions_.size());
    begin(sizeof count + std::uint64_t{count} * (sizeof count + 1));
    compress(std::as_bytes(std::span(&count, 1)), false);
    compress(std::as_bytes(std::span(positions_)), false);
    compress(bytes_, true);
  } else {
    compress({}, true);
  }
  return std::move(frame_);
}

}  // namespace stfs
