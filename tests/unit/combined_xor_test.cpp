// Tests of CombinedXor, which another thread decodes ahead.
#include "core/layer/delta/combined_xor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

namespace stfs::test {
namespace {

constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kPiece = 1000;

std::byte byte_of(unsigned seed, std::uint64_t at) {
  return static_cast<std::byte>((at * 31 + seed) * 0x9E37 >> 8);
}

class Pattern : public Frame {
 public:
  Pattern(unsigned seed, std::uint64_t fails_at) : seed_(seed), fails_at_(fails_at) {}
  int apply(std::span<std::byte> next) override {
    for (std::byte& byte : next) byte ^= byte_of(seed_, at_++);
    return at_ > fails_at_ ? EBADMSG : 0;
  }
  int skip(std::uint64_t) override { return ENOSYS; }
  int end() override { return 0; }
  std::size_t memory() const override { return 0; }

 private:
  unsigned seed_;
  std::uint64_t fails_at_, at_ = 0;
};

std::vector<std::unique_ptr<Frame>> two_frames(std::uint64_t fails_at = kNever) {
  std::vector<std::unique_ptr<Frame>> frames;
  frames.push_back(std::make_unique<Pattern>(1, kNever));
  frames.push_back(std::make_unique<Pattern>(7, fails_at));
  return frames;
}

// A single piece is decoded by the calling thread, several pieces by another thread.
TEST(CombinedXorTest, ReturnsXorOfAllFramesInOrder) {
  for (const std::uint64_t length : {1U, 1000U, 1001U, 2000U, 12'345U}) {
    const auto frames = two_frames();
    CombinedXor combined(frames, length, kPiece);
    std::uint64_t at = 0;
    while (at < length) {
      std::span<const std::byte> piece;
      ASSERT_EQ(combined.next(piece), 0);
      ASSERT_EQ(piece.size(), std::min<std::uint64_t>(kPiece, length - at));
      for (const std::byte byte : piece) {
        ASSERT_EQ(byte, byte_of(1, at) ^ byte_of(7, at)) << at << " of " << length;
        ++at;
      }
    }
  }
}

TEST(CombinedXorTest, ReturnsErrorAtFailedPieceAndEndsThread) {
  for (const std::uint64_t fails_at : {0U, 500U, 4'500U}) {
    const auto frames = two_frames(fails_at);
    CombinedXor combined(frames, 100 * kPiece, kPiece);
    std::span<const std::byte> piece;
    for (std::uint64_t good = 0; good < fails_at / kPiece; ++good) {
      ASSERT_EQ(combined.next(piece), 0) << good;
    }
    EXPECT_EQ(combined.next(piece), EBADMSG);
  }
}

TEST(CombinedXorTest, DestructorEndsThreadWithUnreadPieces) {
  const auto frames = two_frames();
  CombinedXor combined(frames, 100 * kPiece, kPiece);
  std::span<const std::byte> piece;
  EXPECT_EQ(combined.next(piece), 0);
}

}  // namespace
}  // namespace stfs::test
