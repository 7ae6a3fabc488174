// Tests of detecting sequential readers, and of prefetching for them.
#include "fs/mount/read_ahead.h"

#include "tests/support/sizes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace stfs::test {
namespace {

// Files 0, 1, 2, ... with the given sizes. Each file is followed by the next one.
class SomeFiles {
 public:
  explicit SomeFiles(std::vector<std::uint64_t> sizes) : sizes_(std::move(sizes)) {}

  ReadAhead::Files functions() {
    return {.size = [this](std::uint64_t file) { return sizes_.at(file); },
            .next =
                [this](std::uint64_t file) {
                  return file + 1 < sizes_.size() ? std::optional(file + 1) : std::nullopt;
                },
            .prefetch = [this](const ReadAhead::Piece& piece) { asked.push_back(piece); }};
  }

  // Returns the pieces that were prefetched since the last call.
  std::vector<std::vector<std::uint64_t>> take() {
    std::vector<std::vector<std::uint64_t>> out;
    for (const auto& [file, offset, length] : asked) out.push_back({file, offset, length});
    asked.clear();
    return out;
  }
  std::uint64_t bytes_of(std::uint64_t file) const {
    std::uint64_t bytes = 0;
    for (const auto& piece : asked) bytes += piece.file == file ? piece.length : 0;
    return bytes;
  }

  std::vector<ReadAhead::Piece> asked;

 private:
  std::vector<std::uint64_t> sizes_;
};

using Pieces = std::vector<std::vector<std::uint64_t>>;

TEST(ReadAhead, DoublesWindowForSequentialReader) {
  SomeFiles files({kGiB});
  ReadAhead read_ahead(files.functions());

  read_ahead.see(0, 0, 128 * kKiB);
  EXPECT_EQ(files.take(), Pieces{}) << "a single read is not a sequence";
  read_ahead.see(0, 128 * kKiB, 128 * kKiB);
  EXPECT_EQ(files.take(), (Pieces{{0, 256 * kKiB, kMiB}}));
  for (std::uint64_t at = 256 * kKiB; at < 640 * kKiB; at += 128 * kKiB) {
    read_ahead.see(0, at, 128 * kKiB);
    EXPECT_EQ(files.take(), Pieces{}) << "less than half of the window is used";
  }
  read_ahead.see(0, 640 * kKiB, 128 * kKiB);
  EXPECT_EQ(files.take(), (Pieces{{0, 1280 * kKiB, 1536 * kKiB}})) << "2 MiB ahead";

  std::uint64_t read = 768 * kKiB;
  std::uint64_t asked = 2816 * kKiB;
  for (; read < 512 * kMiB; read += 128 * kKiB) {
    read_ahead.see(0, read, 128 * kKiB);
    for (const auto& piece : files.take()) {
      EXPECT_EQ(piece[1], asked) << "there must be no gap and no overlap";
      asked += piece[2];
    }
    EXPECT_LE(asked, read + 128 * kKiB + ReadAhead::kLargestWindow);
  }
  EXPECT_GE(asked, read + ReadAhead::kLargestWindow / 2);
}

TEST(ReadAhead, StopsAtEndOfFile) {
  SomeFiles files({3 * kMiB, kGiB});
  ReadAhead read_ahead(files.functions());

  for (std::uint64_t at = 0; at < 3 * kMiB; at += kMiB) read_ahead.see(0, at, kMiB);
  read_ahead.see(0, 3 * kMiB, kMiB);

  EXPECT_EQ(files.take(), (Pieces{{0, 2 * kMiB, kMiB}}));
}

TEST(ReadAhead, PrefetchesNothingForRandomReader) {
  SomeFiles files({64 * kGiB});
  ReadAhead read_ahead(files.functions());
  std::uint64_t place = 1;

  for (int i = 0; i < 2000; ++i) {
    place = place * 6364136223846793005U + 1442695040888963407U;
    read_ahead.see(0, (place >> 20) % (64 * kGiB) / 4096 * 4096, 4096);
  }

  EXPECT_EQ(files.take(), Pieces{});
}

TEST(ReadAhead, PrefetchesNothingBeyondTensorsReadInRandomOrder) {
  SomeFiles files(std::vector<std::uint64_t>(1024, 8 * kMiB));
  ReadAhead read_ahead(files.functions());

  for (std::uint64_t i = 0; i < 64; ++i) {
    const std::uint64_t file = i * 373 % 1024;
    for (std::uint64_t at = 0; at < 8 * kMiB; at += kMiB) read_ahead.see(file, at, kMiB);
    EXPECT_LE(files.bytes_of(file), 8 * kMiB);
    files.asked.erase(std::remove_if(files.asked.begin(), files.asked.end(),
                                     [&](const auto& piece) { return piece.file == file; }),
                      files.asked.end());
    EXPECT_EQ(files.take(), Pieces{}) << "prefetched other tensors";
  }
}

TEST(ReadAhead, TracksTwoReadersInOneFile) {
  SomeFiles files({kGiB});
  ReadAhead read_ahead(files.functions());

  for (std::uint64_t at = 0; at < 2 * kMiB; at += kMiB) {
    read_ahead.see(0, at, kMiB);
    read_ahead.see(0, kGiB / 2 + at, kMiB);
  }

  EXPECT_EQ(files.take(), (Pieces{{0, 2 * kMiB, kMiB}, {0, kGiB / 2 + 2 * kMiB, kMiB}}));
}

TEST(ReadAhead, TreatsSlightlyReorderedRequestsAsSequence) {
  SomeFiles files({kGiB});
  ReadAhead read_ahead(files.functions());
  std::uint64_t asked = 0;

  for (std::uint64_t at = 0; at < 16 * kMiB; at += 512 * kKiB) {
    for (const std::uint64_t i : {1U, 0U, 3U, 2U}) {
      read_ahead.see(0, at + i * 128 * kKiB, 128 * kKiB);
    }
    for (const auto& piece : files.take()) {
      if (asked != 0) {
        EXPECT_EQ(piece[1], asked);
      }
      asked = piece[1] + piece[2];
    }
  }

  EXPECT_GE(asked, 20 * kMiB);
}

TEST(ReadAhead, ContinuesInNextTensorForSequentialReader) {
  SomeFiles files({4 * kMiB, 4 * kMiB, 4 * kMiB, kGiB});
  ReadAhead read_ahead(files.functions());
  for (std::uint64_t at = 0; at < 4 * kMiB; at += kMiB) read_ahead.see(0, at, kMiB);
  EXPECT_EQ(files.bytes_of(1), 0U);
  files.take();

  for (std::uint64_t at = 0; at < 4 * kMiB; at += kMiB) read_ahead.see(1, at, kMiB);

  EXPECT_EQ(files.bytes_of(1), 3 * kMiB) << "the first MiB was read before prefetching began";
  EXPECT_EQ(files.bytes_of(2), 4 * kMiB);
}

TEST(ReadAhead, PrefetchesManySmallTensorsAhead) {
  SomeFiles files(std::vector<std::uint64_t>(100, 4 * kKiB));
  ReadAhead read_ahead(files.functions());

  for (std::uint64_t file = 0; file < 100; ++file) read_ahead.see(file, 0, 128 * kKiB);

  for (std::uint64_t file = 2; file < 100; ++file) {
    EXPECT_EQ(files.bytes_of(file), 4 * kKiB) << file;
  }
}

TEST(ReadAhead, ForgetsLeastRecentlyUsedStream) {
  SomeFiles files(std::vector<std::uint64_t>(1000, kGiB));
  ReadAhead read_ahead(files.functions());
  read_ahead.see(0, 0, kMiB);

  for (std::uint64_t i = 1; i <= ReadAhead::kStreams; ++i) read_ahead.see(10 * i, 0, kMiB);
  read_ahead.see(0, kMiB, kMiB);

  EXPECT_EQ(files.take(), Pieces{});
}

}  // namespace
}  // namespace stfs::test
