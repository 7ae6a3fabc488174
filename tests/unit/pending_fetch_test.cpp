// Tests of PendingFetch, which collects replies from bytes that are far apart, and of
// SequentialReader, which waits for missing bytes.
#include "fs/mount/pending_fetch.h"

#include "core/checkpoint/checkpoint.h"
#include "core/recipe/elements.h"
#include "core/recipe/fetch_missing.h"
#include "core/recipe/slice.h"
#include "core/values/digest.h"
#include "tests/support/files.h"
#include "tests/support/sizes.h"
#include "tests/unit/late_source.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace stfs::test {
namespace {

// A matrix of bytes that are all missing at first. Tests read slices of it.
class Column {
 public:
  Column(std::uint64_t rows, std::uint64_t row_bytes) : shape_{rows, row_bytes} {
    std::string pattern;  // rows are not multiples of its length
    for (unsigned i = 0; i < 65537; ++i) pattern += static_cast<char>((i * 2654435761U) >> 13);
    while (bytes_.size() < rows * row_bytes) bytes_ += pattern;
    bytes_.resize(rows * row_bytes);
    write_file(dir_ / "f", bytes_);
    source.emplace((dir_ / "f").string());
    source->take_bytes_away();
  }

  Content slice(const char* expression) {
    Content whole;
    whole.extent(*source, 0, bytes_.size());
    Slice slice;
    EXPECT_EQ(parse_slice(expression, DType::kU8, shape_, slice), 0);
    return slice_content(slice, std::move(whole));
  }
  std::string bytes(std::uint64_t width) const {
    std::string out;
    for (std::uint64_t row = 0; row < shape_[0]; ++row) {
      out += bytes_.substr(row * shape_[1], width);
    }
    return out;
  }

  std::optional<LateSource> source;

 private:
  TempDir dir_;
  std::vector<std::uint64_t> shape_;
  std::string bytes_;
};

// Reads a recipe through a PendingFetch.
struct Gathered {
  Gathered(Column& column, const char* expression, std::uint64_t length)
      : Gathered([&column, expression] { return column.slice(expression); }, 0, length) {}
  Gathered(std::function<Content()> make, std::uint64_t begin, std::uint64_t length) {
    ticket = waiting->wait([](PendingReads::Ticket) {},
                           [this](int result, const Reply& reply) {
                             error = result;
                             for (const iovec& piece : reply.pieces()) {
                               text.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
                             }
                           });
    std::make_shared<PendingFetch>(
        waiting, ticket,
        [make = std::move(make)](Recipe& recipe) {
          recipe.own = make();
          return 0;
        },
        begin, length)
        ->go_on();
  }
  ~Gathered() { waiting->stop(); }

  std::shared_ptr<PendingReads> waiting = std::make_shared<PendingReads>();
  PendingReads::Ticket ticket = 0;
  int error = -1;
  std::string text;
};

TEST(PendingFetch, ColumnWantsAtMost8MiBPerStep) {
  Column column(64, kMiB);
  Gathered gathered(column, ":,0:100", kMiB);
  std::size_t steps = 0;

  while (!column.source->wanted().empty()) {
    ++steps;
    std::uint64_t blocks = 0;
    for (const ByteRange& range : column.source->wanted()) {
      blocks += (range.length + Source::kFetchUnit - 1) / Source::kFetchUnit;
    }
    EXPECT_LE(blocks * Source::kFetchUnit, kMaxMissing);
    for (std::size_t left = column.source->wanted().size(); left > 0; --left) {
      column.source->deliver(0);
    }
  }

  EXPECT_EQ(gathered.error, 0);
  EXPECT_EQ(gathered.text, column.bytes(100));
  EXPECT_GE(steps, 2U);
}

// Behaves like a tensor that is checked as a whole before its first byte is returned.
class NeedsAll : public Producer {
 public:
  NeedsAll(const Source& source, std::uint64_t size) : source_(source), size_(size) {}
  std::uint64_t size() const override { return size_; }
  int produce(std::uint64_t offset, std::span<std::byte> out) const override {
    return source_.read_unverified(out, offset);
  }
  void missing(std::uint64_t, std::uint64_t, std::vector<Extent>& missing) const override {
    if (!source_.has({0, size_})) missing.push_back({&source_, 0, size_});
  }

 private:
  const Source& source_;
  std::uint64_t size_;
};

TEST(PendingFetch, FetchesLargeRequirementInSteps) {
  constexpr std::uint64_t kAll = 32 * kMiB;
  Column column(1, kAll);
  const auto make = [&] {
    Content content;
    content.production(std::make_unique<NeedsAll>(*column.source, kAll));
    return content;
  };
  Gathered gathered(make, 10, 1000);
  std::size_t steps = 0;
  for (; !column.source->wanted().empty(); ++steps) {
    if (steps == 5) column.source->lose_next();
    ASSERT_EQ(column.source->wanted().size(), 1U);
    column.source->deliver(0);
  }
  EXPECT_EQ(gathered.error, 0);
  EXPECT_EQ(gathered.text, column.bytes(1010).substr(10));
  EXPECT_LE(column.source->longest_want(), kMaxMissing);
  EXPECT_GE(steps, 20U);

  std::vector<std::byte> out(1000);
  column.source->forget();
  std::jthread delivers([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (column.source->wanted().empty())
        std::this_thread::yield();
      else
        column.source->deliver(0);
    }
  });
  EXPECT_EQ(fetch_and_copy(make(), 10, out), 0);
  EXPECT_EQ(std::memcmp(out.data(), gathered.text.data(), out.size()), 0);
}

TEST(PendingFetch, JoinsRunsOfNeighbouringBlocks) {
  Column column(64, 64 << 10);
  Gathered gathered(column, ":,0:10", kMiB);

  EXPECT_EQ(column.source->wanted().size(), 1U);

  column.source->deliver(0);
  EXPECT_EQ(gathered.text, column.bytes(10));
}

TEST(PendingFetch, WorksIfSourceKeepsFewBytes) {
  Column column(64, kMiB);
  column.source->keep_at_most(1);
  Gathered gathered(column, ":,0:100", kMiB);

  while (!column.source->wanted().empty()) column.source->deliver(0);

  EXPECT_EQ(gathered.error, 0);
  EXPECT_EQ(gathered.text, column.bytes(100));
}

TEST(PendingFetch, BytesEvictedBeforeEachReadGiveEIO) {
  Column column(4, kMiB);
  Gathered gathered(column, ":,0:100", kMiB);

  for (int i = 0; i < 1000 && gathered.error == -1; ++i) {
    column.source->lose_next();
    column.source->deliver(0);
  }

  EXPECT_EQ(gathered.error, EIO);
}

// Bytes may be evicted while they are read, both for a reply that is read at once and for a reply
// that is read in steps.
TEST(PendingFetch, RetriesIfBytesAreEvictedDuringRead) {
  for (const char* const expression : {"...", ":,0:100"}) {
    SCOPED_TRACE(expression);
    Column column(64, kMiB);
    const bool is_whole = expression[0] == '.';
    Gathered gathered(column, expression, is_whole ? 1000 : kMiB);
    column.source->lose_at_reads(5);

    while (!column.source->wanted().empty()) column.source->deliver(0);

    EXPECT_EQ(gathered.error, 0);
    EXPECT_EQ(gathered.text, is_whole ? column.bytes(1000).substr(0, 1000) : column.bytes(100));
  }
}

TEST(PendingFetch, BytesEvictedDuringEachReadGiveEIO) {
  Column column(4, kMiB);
  Gathered gathered(column, ":,0:100", kMiB);
  column.source->lose_at_reads(1'000'000);

  while (!column.source->wanted().empty()) column.source->deliver(0);

  EXPECT_EQ(gathered.error, EIO);
}

TEST(PendingFetch, HalvedStepMayEndInsideElement) {
  Column column(3, 64 << 10);
  const auto values = [&column] {
    return f32_content(column.slice(":,0:1000"), DType::kBF16, 1500);
  };
  constexpr std::uint64_t kBegin = 1;
  constexpr std::uint64_t kLength = 5999;
  Gathered gathered(values, kBegin, kLength);

  for (int i = 0; gathered.error == -1 && i < 1000; ++i) {
    if (i < 8) column.source->lose_next();
    column.source->deliver(0);
  }

  EXPECT_EQ(gathered.error, 0);
  column.source->bring_all_back();
  std::string expected(kLength, '\0');
  EXPECT_EQ(values().copy(kBegin, std::as_writable_bytes(std::span(expected))), 0);
  EXPECT_EQ(gathered.text, expected);
}

TEST(PendingFetch, WantsNothingForCancelledReader) {
  Column column(64, kMiB);
  Gathered gathered(column, ":,0:100", kMiB);
  const std::size_t wants = column.source->wants();

  gathered.waiting->cancel(gathered.ticket);
  while (!column.source->wanted().empty()) column.source->deliver(0);

  EXPECT_EQ(column.source->wants(), wants);
  gathered.waiting->stop();
  EXPECT_EQ(gathered.error, EINTR);
}

TEST(PendingFetch, ReturnsErrorOfLaterStep) {
  Column column(64, kMiB);
  Gathered gathered(column, ":,0:100", kMiB);
  for (std::size_t left = column.source->wanted().size(); left > 0; --left) {
    column.source->deliver(0);
  }
  ASSERT_EQ(gathered.error, -1);

  while (!column.source->wanted().empty()) column.source->deliver(EACCES);

  EXPECT_EQ(gathered.error, EACCES);
}

TEST(SequentialReader, FetchesAheadAndWaits) {
  Column column(64, kMiB);
  column.source->deliver_at_once();
  const Content content = column.slice("...");
  std::string hex;

  EXPECT_EQ(sha256(content, false, hex), 0);

  std::uint64_t prefetched = 0;
  for (const ByteRange& range : column.source->prefetched()) prefetched += range.length;
  EXPECT_EQ(prefetched, 64 * kMiB) << "each byte is prefetched once";
  EXPECT_EQ(column.source->prefetched()[0].offset, 0U);
}

TEST(SequentialReader, WorksIfSourceKeepsFewBytes) {
  Column column(16, kMiB);
  column.source->deliver_at_once();
  column.source->keep_at_most(512 << 10);
  const Content content = column.slice("...");
  std::string hex;
  std::string expected;

  EXPECT_EQ(sha256(content, false, hex), 0);

  column.source->bring_all_back();
  EXPECT_EQ(sha256(content, false, expected), 0);
  EXPECT_EQ(hex, expected);
}

TEST(SequentialReader, StopEndsWait) {
  Column column(1, kMiB);
  const Content content = column.slice("...");
  std::atomic<bool> stop = false;
  std::string hex;
  int error = 0;

  std::thread reader([&] { error = sha256(content, stop, hex); });
  while (column.source->wanted().empty()) std::this_thread::yield();
  stop = true;
  reader.join();

  EXPECT_EQ(error, EINTR);
  column.source->deliver(0);
}

TEST(SequentialReader, ReturnsErrorOfFetch) {
  Column column(1, kMiB);
  column.source->change_remotely();
  const Content content = column.slice("...");
  std::string hex;

  EXPECT_EQ(sha256(content, false, hex), ESTALE);
}

TEST(SequentialReader, RequestsNothingForLocalBytes) {
  Column column(4, kMiB);
  column.source->bring_all_back();
  const Content content = column.slice("...");
  std::string hex;

  EXPECT_EQ(sha256(content, false, hex), 0);

  EXPECT_EQ(column.source->wants(), 0U);
  EXPECT_TRUE(column.source->prefetched().empty());
}

}  // namespace
}  // namespace stfs::test
