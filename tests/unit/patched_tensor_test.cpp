// Tests of patched tensors and of the memory that they use (core/layer/delta/decoder_memory.h).
#include "core/layer/delta/patched_tensor.h"

#include "core/layer/delta/encoder.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/files.h"
#include "tests/support/sizes.h"
#include "tests/unit/late_source.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// Base tensors with a chain of deltas of both encodings for each, all in one file.
class PatchedTest : public ::testing::Test {
 protected:
  // Every `changed`-th byte of a tensor is changed by each link.
  void make(std::size_t tensors, std::uint64_t length, std::uint64_t memory,
            std::size_t changed = 50, std::size_t links = 2) {
    producers_.clear();
    tensors_.clear();
    patches_.reset();
    source_.reset();
    expected_.clear();
    std::string file;
    std::vector<std::vector<Patch::Link>> chains(tensors);
    std::vector<std::uint64_t> bases;
    std::vector<std::string> digests;
    for (std::size_t t = 0; t < tensors; ++t) {
      std::string now = RandomBytes(t).bytes(length);
      bases.push_back(file.size());
      file += now;
      for (std::size_t link = 0; link < links; ++link) {
        std::string next = now;
        for (std::size_t at = link; at < next.size(); at += changed) ++next[at];
        const auto encoding = link % 2 == 0 ? DeltaEncoding::kXor : DeltaEncoding::kOverwrite;
        FrameEncoder encoder(encoding, DeltaChecksum::kXxh3, length);
        encoder.add(bytes_of(now), bytes_of(next));
        const std::vector<std::byte> frame = encoder.finish();
        chains[t].push_back({encoding, {nullptr, file.size(), frame.size()}});
        file.append(reinterpret_cast<const char*>(frame.data()), frame.size());
        if (link + 1 == links) digests.push_back(encoder.digest());
        now = std::move(next);
      }
      expected_.push_back(std::move(now));
    }
    write_file(dir_ / "file", file);
    source_.emplace((dir_ / "file").string());
    patches_ = std::make_unique<Patches>(memory, tensors, std::vector<const Source*>{&*source_});
    shape_ = {length};
    for (std::size_t t = 0; t < tensors; ++t) {
      for (Patch::Link& link : chains[t]) link.frame.source = &*source_;
      tensors_.emplace_back(*patches_, t,
                            stfs::Tensor{.name = "t",
                                         .path = {},
                                         .dtype = DType::kU8,
                                         .shape = shape_,
                                         .length = length,
                                         .locator = Extent{&*source_, bases[t], length}},
                            Patch{chains[t], DeltaChecksum::kXxh3, digests[t]});
      producers_.push_back(tensors_.back().producer());
    }
  }

  // Reads a range and returns true if its bytes are correct.
  bool reads(std::size_t tensor, std::uint64_t offset, std::uint64_t length) const {
    std::string out(static_cast<std::size_t>(length), '\0');
    const int error = producers_[tensor]->produce(offset, std::as_writable_bytes(std::span(out)));
    return error == 0 && expected_[tensor].compare(offset, length, out) == 0;
  }

  TempDir dir_;
  std::optional<LateSource> source_;
  std::unique_ptr<Patches> patches_;
  std::vector<std::uint64_t> shape_;
  std::deque<Patches::Tensor> tensors_;
  std::vector<std::unique_ptr<const Producer>> producers_;
  std::vector<std::string> expected_;
};

// Another thread decodes the pieces ahead and reuses their memory.
TEST_F(PatchedTest, LongXorChainReturnsAllBytes) {
  make(1, 3 * kMiB + 5, 64 * kMiB, 50, 1);
  EXPECT_TRUE(reads(0, 0, 3 * kMiB + 5));
}

TEST_F(PatchedTest, KeptChangesServeAnyRangeWithoutDecoder) {
  make(1, 3 * kMiB + 5, 64 * kMiB);
  ASSERT_TRUE(reads(0, kMiB, 100));
  for (std::uint64_t at = 3 * kMiB; at > 0; at -= kMiB / 4) EXPECT_TRUE(reads(0, at, 5));
  EXPECT_EQ(patches_->decoded(), 3 * kMiB + 5) << "only the check decodes";
}

TEST_F(PatchedTest, SequentialReaderDecodesOnceWithoutMemory) {
  constexpr std::uint64_t kLength = 24 * kMiB, kStep = 128 << 10;
  make(1, kLength, 0);
  for (std::uint64_t at = 0; at < kLength; at += kStep) ASSERT_TRUE(reads(0, at, kStep));
  EXPECT_EQ(patches_->decoded(), 2 * kLength) << "once for the check and once for the reader";
}

// The kernel reads ahead like this: several threads each take the next piece.
TEST_F(PatchedTest, ReorderedRequestsDecodeNothingTwiceWithoutMemory) {
  constexpr std::uint64_t kLength = 24 * kMiB, kStep = 128 << 10;
  make(1, kLength, 0);
  ASSERT_TRUE(reads(0, 0, 1));
  // Neighbours and pairs are swapped.
  for (std::uint64_t at = kStep; at + 4 * kStep < kLength; at += 4 * kStep) {
    for (const std::uint64_t other : {2U, 0U, 3U, 1U}) {
      ASSERT_TRUE(reads(0, at + other * kStep, kStep)) << at << " " << other;
    }
  }
  EXPECT_LE(patches_->decoded(), 2 * kLength);
}

TEST_F(PatchedTest, SixteenReadersGetSameTensorWithAndWithoutMemory) {
  constexpr std::uint64_t kLength = 6 * kMiB, kStep = 128 << 10;
  for (const std::uint64_t memory : {std::uint64_t{0}, 64 * kMiB}) {
    make(1, kLength, memory);
    std::atomic<std::uint64_t> next = 0, wrong = 0;
    std::vector<std::jthread> readers;
    for (int i = 0; i < 16; ++i) {
      readers.emplace_back([&] {
        for (std::uint64_t at = 0; (at = next.fetch_add(kStep)) < kLength;) {
          if (!reads(0, at, kStep)) ++wrong;
        }
      });
    }
    readers.clear();
    EXPECT_EQ(wrong, 0U);
    // Without memory the number is not exact, because a thread may be delayed between fetch_add()
    // and its read.
    if (memory > 0) {
      EXPECT_EQ(patches_->decoded(), kLength);
    }
  }
}

TEST_F(PatchedTest, MemoryIsBoundedForManyReadersAndTensors) {
  constexpr std::uint64_t kLength = kMiB / 2, kMemory = 24 * kMiB;
  constexpr std::size_t kTensors = 24;
  make(kTensors, kLength, kMemory, 3);  // 0.5 MiB of changes each
  const auto read_all = [&] {
    std::atomic<std::size_t> next = 0, wrong = 0;
    std::vector<std::jthread> readers;
    for (int i = 0; i < 12; ++i) {
      readers.emplace_back([&] {
        for (std::size_t t = 0; (t = next++) < 3 * kTensors;) {
          if (!reads(t % kTensors, t * 1000, kLength / 2)) ++wrong;
        }
      });
    }
    readers.clear();
    return wrong.load();
  };
  EXPECT_EQ(read_all(), 0U);
  EXPECT_LE(patches_->most_used(), kMemory);
  EXPECT_GT(patches_->most_used(), kMemory / 2);
}

TEST_F(PatchedTest, OnlyOneChainIsDecodedAtOnceWithoutMemory) {
  make(8, kMiB, 0, 50, 5);
  std::vector<std::jthread> readers;
  std::atomic<std::size_t> wrong = 0;
  for (std::size_t t = 0; t < 8; ++t) {
    readers.emplace_back([&, t] {
      if (!reads(t, 0, kMiB) || !reads(t, kMiB / 2, 1000)) ++wrong;
    });
  }
  readers.clear();
  EXPECT_EQ(wrong, 0U);
  EXPECT_LE(patches_->most_used(), 24 * kMiB)
      << "more than the decoders of five links and a window";
}

TEST_F(PatchedTest, FailedReadCausesNoWrongBytesLater) {
  constexpr std::uint64_t kLength = kMiB / 4 + 5;
  for (const std::uint64_t memory : {std::uint64_t{0}, 64 * kMiB}) {
    bool has_failed = true;
    unsigned after = 0;
    for (; has_failed; ++after) {
      ASSERT_LT(after, 1000U);
      make(1, kLength, memory);
      source_->fail_a_read(after, EIO);
      const bool is_read = reads(0, 0, kLength);
      has_failed = source_->has_failed();
      source_->fail_a_read(0, 0);
      EXPECT_NE(is_read, has_failed) << after;
      for (const std::uint64_t at : {kLength / 2, std::uint64_t{0}}) {
        ASSERT_TRUE(reads(0, at, kLength - at)) << after << " from " << at;
      }
    }
    EXPECT_GT(after, 4U);
  }
}

// A supervised worker is such a child process.
TEST_F(PatchedTest, CheckByForkedProcessCountsInAllProcesses) {
  make(2, kMiB, 0);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(reads(1, 0, 10) ? 0 : 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);

  EXPECT_FALSE(tensors_[0].is_checked());
  EXPECT_TRUE(tensors_[1].is_checked());
  EXPECT_TRUE(reads(1, 0, 10));
  EXPECT_EQ(patches_->decoded(), 10U) << "the tensor was checked again";
}

TEST_F(PatchedTest, BrokenTensorMakesSourcesStaleInAllProcesses) {
  make(1, kMiB, kMiB);
  std::atomic<bool> shared = false;
  source_->share_change_flag(shared);
  stfs::Tensor base = tensors_[0].base();
  base.locator->offset += 1;
  const Patches::Tensor broken(*patches_, 0, base, tensors_[0].patch());
  std::byte byte{};
  EXPECT_EQ(broken.producer()->produce(0, {&byte, 1}), ESTALE);
  EXPECT_TRUE(shared);
  EXPECT_EQ(source_->verify(), ESTALE);
  EXPECT_FALSE(reads(0, 0, 1));
}

}  // namespace
}  // namespace stfs::test
