// A CacheFile that a network fills: which requests it sends, and how it handles failing responses.
#include "core/remote/http/http.h"
#include "tests/remote/cache_file_support.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <future>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

namespace stfs::cache_file_test {
namespace {

TEST_F(CacheFileTest, WantedBlocksAreFetchedAndStayCached) {
  network.let_go();
  {
    const auto source = open(10 * kBlock + 77);
    EXPECT_EQ(source->size(), 10 * kBlock + 77);
    EXPECT_EQ(source->token(), "web-1");
    EXPECT_EQ(source->mtime().tv_sec, 1234);
    EXPECT_FALSE(source->has({0, 1}));
    EXPECT_FALSE(source->is_complete());
    expect_bytes(*source, {3 * kBlock - 5, 10});
    EXPECT_TRUE(source->has({2 * kBlock, 2 * kBlock}));
    EXPECT_FALSE(source->has({2 * kBlock, 2 * kBlock + 1}));
    expect_bytes(*source, {0, source->size()});
    EXPECT_TRUE(source->is_complete());
    EXPECT_EQ(source->verify(), 0);
  }
  EXPECT_EQ(to_text(network.seen()), "2+2 0+2 4+7 ");
  const auto source = open(10 * kBlock + 77);
  EXPECT_TRUE(source->has({0, source->size()}));
  EXPECT_EQ(counters.cache_hits, 0U);  // has() reads no blocks
  expect_bytes(*source, {0, source->size()});
  EXPECT_TRUE(source->is_complete());
  EXPECT_EQ(network.seen().size(), 3U);
  EXPECT_EQ(counters.cache_hits, 11U);
}

TEST_F(CacheFileTest, DoesNotFetchBytesOfFirstResponse) {
  for (const bool has_cache : {true, false}) {
    const auto source = open(3 * kBlock, has_cache, text_of({0, 2 * kBlock + 9}));
    EXPECT_TRUE(source->has({0, 2 * kBlock}));
    EXPECT_FALSE(source->has({0, 2 * kBlock + 1}));
    expect_bytes(*source, {5, 2 * kBlock - 5});
  }
  const auto small = open(9, false, text_of({0, 100}));
  EXPECT_TRUE(small->is_complete());
  expect_bytes(*small, {0, 9});
  EXPECT_TRUE(open(0)->is_complete());
  EXPECT_EQ(to_text(network.seen()), "");
}

TEST_F(CacheFileTest, DoesNotCacheFirstResponseWithoutRoom) {
  start();
  const RemoteVersion version = version_of(2 * kBlock);
  {
    const CacheFile source(version, std::make_unique<TestRemote>(remote), cache.open(version),
                           *fetcher, text_of({0, kBlock}), false);
    expect_bytes(source, {0, kBlock});
  }
  EXPECT_FALSE(cache.open(version)->is_there(0));
}

TEST_F(CacheFileTest, RejectsRangeOutsideObject) {
  const auto source = open(2 * kBlock);
  constexpr auto kMax = std::numeric_limits<std::uint64_t>::max();
  for (const ByteRange range : {ByteRange{2 * kBlock, 1}, {0, kMax}, {kMax, 2}, {1, 2 * kBlock}}) {
    EXPECT_FALSE(source->has(range));
    EXPECT_EQ(Answer(*source, range).get(), EINVAL);
    EXPECT_FALSE(source->can_pin(range));
    source->prefetch({kMax, kMax});
  }
  EXPECT_EQ(Answer(*source, {2 * kBlock, 0}).get(), 0);
  EXPECT_TRUE(network.seen().empty());
  EXPECT_THROW(open(std::uint64_t{1} << 62, false), Error);
}

TEST_F(CacheFileTest, MergesAdjacentRangesAndServesDemandFirst) {
  start({.connections = 1});
  const auto source = open(64 * kMiB);
  source->prefetch({0, kMiB});
  network.wait_for_requests(1);
  source->prefetch({32 * kMiB, 16 * kMiB});
  Answer first(*source, {8 * kMiB, 2 * kMiB});
  Answer second(*source, {10 * kMiB, kMiB});  // follows the first range
  Answer third(*source, {48 * kMiB - 1, 2});  // its first half is already queued for prefetching
  Answer fourth(*source, {31 * kMiB, kMiB});  // the prefetched range follows it
  network.let_go();
  for (Answer* answer : {&first, &second, &third, &fourth}) EXPECT_EQ(answer->get(), 0);
  network.wait_for_requests(6);
  // In blocks of 256 KiB: 12 for the first two, 2 for the third, then 32 from 31 MiB, then the rest
  // of the prefetched range.
  EXPECT_EQ(to_text(network.seen()), "0+4 32+12 191+2 124+32 156+32 188+3 ");
}

TEST_F(CacheFileTest, PrefetchUsesAllConnections) {
  const auto source = open(200 * kMiB);
  source->prefetch({0, 64 * kMiB});
  network.wait_for_requests(8);
  EXPECT_EQ(to_text(network.seen()), "0+32 32+32 64+32 96+32 128+32 160+32 192+32 224+32 ");
}

TEST_F(CacheFileTest, LimitsQueuedPrefetch) {
  start({.connections = 1});
  const auto source = open(200 * kMiB);
  source->prefetch({0, kBlock});
  network.wait_for_requests(1);
  source->prefetch({kMiB, 199 * kMiB});       // only 64 MiB are queued
  source->prefetch({100 * kMiB, 60 * kMiB});  // leaves 4 MiB of the first range in the queue
  network.let_go();
  network.wait_for_requests(10);
  EXPECT_EQ(to_text(network.seen()),
            "0+1 244+16 400+32 432+32 464+32 496+32 528+32 560+32 592+32 624+16 ");
}

TEST_F(CacheFileTest, LimitsPrefetchWithoutCache) {
  start({.connections = 1});
  const auto source = open(64 * kMiB, false);
  source->prefetch({0, 64 * kMiB});
  network.let_go();
  EXPECT_EQ(Answer(*source, {63 * kMiB, kMiB}).get(), 0);
  EXPECT_EQ(Answer(*source, {0, 4 * kMiB}).get(), 0);
  std::uint64_t bytes = 0;
  for (const ByteRange& range : network.seen()) bytes += range.length;
  EXPECT_EQ(bytes, 5 * kMiB);
}

TEST_F(CacheFileTest, AnswersReadersAsBlocksArrive) {
  const auto source = open(8 * kMiB);
  network.always({.cut_after = 3 * kBlock + 5, .stall = true});
  Answer all(*source, {0, 8 * kMiB});
  Answer three(*source, {0, 3 * kBlock});
  Answer four(*source, {3 * kBlock, 1});
  network.let_go();
  EXPECT_EQ(three.get(), 0);
  EXPECT_FALSE(four.is_there());
  EXPECT_FALSE(all.is_there());
  EXPECT_EQ(to_text(network.seen()), "0+32 ");
  network.script({});
  network.wait_for_stalls(1);
  network.end_stalls(ETIMEDOUT);
}

TEST_F(CacheFileTest, BrokenTransferKeepsReceivedBlocks) {
  const auto source = open(kMiB);
  network.script([](std::size_t number, ByteRange) {
    if (number == 0) return Reply{.cut_after = 2 * kBlock + 77, .error = EIO};
    if (number == 1) return Reply{.status = 0, .error = ETIMEDOUT};
    if (number == 2) return Reply{.status = 503};
    if (number == 3) return Reply{.cut_after = kBlock};  // too short, but without an error
    return Reply{};
  });
  network.let_go();
  expect_bytes(*source, {0, kMiB});
  EXPECT_EQ(to_text(network.seen()), "0+4 2+2 2+2 2+2 3+1 ");
  EXPECT_EQ(counters.retries, 4U);
  EXPECT_TRUE(source->failures().empty());
}

TEST_F(CacheFileTest, ResumesBlockAfterBrokenTransfer) {
  for (const bool has_cache : {true, false}) {
    const auto source = open(kMiB, has_cache);
    const std::size_t before = network.seen().size();
    network.always({.cut_after = 200'000, .error = EIO});
    network.let_go();

    expect_bytes(*source, {0, kMiB});

    std::vector<std::uint64_t> offsets;
    for (const ByteRange& range : network.seen()) offsets.push_back(range.offset);
    offsets.erase(offsets.begin(), offsets.begin() + static_cast<std::ptrdiff_t>(before));
    EXPECT_EQ(offsets,
              (std::vector<std::uint64_t>{0, 200'000, 400'000, 600'000, 800'000, 1'000'000}));
  }
  EXPECT_EQ(counters.bytes_fetched, 0U);  // only Http counts these
  const auto again = open(kMiB);
  expect_bytes(*again, {0, kMiB});  // the checksums match the bytes
  EXPECT_EQ(counters.cache_corrupt, 0U);
}

// The server is a mirror that answers 200 with the whole object.
TEST_F(CacheFileTest, RefetchesWholeBlockIfServerCannotResume) {
  const auto source = open(kBlock);
  network.script([](std::size_t number, ByteRange range) {
    if (number == 0) return Reply{.cut_after = 77, .error = EIO};
    return Reply{.status = range.offset == 0 ? 206 : 200};
  });
  network.let_go();
  expect_bytes(*source, {0, kBlock});
  EXPECT_EQ(network.seen().at(1).offset, 77U);
  EXPECT_EQ(network.seen().back().offset, 0U);
}

TEST_F(CacheFileTest, LimitsKeptPartialBlocks) {
  constexpr std::uint64_t kParts = 33;  // one more than the limit
  start({.timeout = 30ms});
  const auto source = open(64 * kMiB);
  stall_after(5, kMiB);
  network.let_go();
  for (std::uint64_t i = 0; i < kParts; ++i) {
    ASSERT_NO_FATAL_FAILURE(miss(*source, {i * kMiB, 1}));
  }
  network.script({});
  for (const std::uint64_t i : {kParts - 1, std::uint64_t{0}}) {
    const std::size_t next = network.seen().size();
    EXPECT_TRUE(arrives(*source, {i * kMiB, 1}));
    EXPECT_EQ(network.seen().at(next).offset, i * kMiB + (i == 0 ? 0 : 5));
    expect_bytes(*source, {i * kMiB, kBlock});
  }
}

TEST_F(CacheFileTest, RetriesAfterDeadlineDespiteLongRetryAfter) {
  start({.timeout = 30ms});
  const auto source = open(kMiB);
  network.first({.status = 503, .retry_after = "3600"});
  network.let_go();

  EXPECT_TRUE(arrives(*source, {0, 1}));
}

TEST_F(CacheFileTest, AbortsTransferWithoutReaderAndResumesLater) {
  start({.timeout = 30ms, .longest = 5min});
  const auto source = open(kMiB);
  stall_after(100'000, kMiB);
  network.let_go();
  ASSERT_NO_FATAL_FAILURE(miss(*source, {0, kBlock}));
  network.script({});
  const std::size_t next = network.seen().size();

  EXPECT_TRUE(arrives(*source, {0, kBlock}));

  expect_bytes(*source, {0, kBlock});
  EXPECT_EQ(network.seen().at(next).offset, 100'000U);
  EXPECT_EQ(network.limits()[0], 5min);
}

TEST_F(CacheFileTest, StalledPrefetchYieldsConnectionToReader) {
  start({.timeout = 30ms, .connections = 2});
  const auto source = open(64 * kMiB);
  network.always({.cut_after = 5, .stall = true});
  network.let_go();
  source->prefetch({0, 32 * kMiB});
  network.wait_for_stalls(2);
  EXPECT_EQ(Answer(*source, {40 * kMiB, 1}).get(), EIO);
  network.script({});

  EXPECT_TRUE(arrives(*source, {40 * kMiB, 1}));

  expect_bytes(*source, {40 * kMiB, 1});
}

TEST_F(CacheFileTest, AbortsOldTransferDespiteNewerReader) {
  start({.timeout = 2s});
  const auto source = open(kMiB);
  network.first({.cut_after = 100'000, .stall = true});
  network.let_go();
  Answer first(*source, {0, kBlock});
  network.wait_for_stalls(1);
  std::this_thread::sleep_for(1s);  // so that the second waits longer than the first
  Answer second(*source, {0, kBlock});
  EXPECT_EQ(first.get(), EIO);
  EXPECT_EQ(second.get(), 0);
}

TEST_F(CacheFileTest, StalledTransferDelaysNoOtherReader) {
  const auto source = open(8 * kMiB);
  network.first({.cut_after = 5, .stall = true});
  network.let_go();
  Answer stalled(*source, {0, 1});
  network.wait_for_stalls(1);
  expect_bytes(*source, {4 * kMiB, kMiB});
  EXPECT_FALSE(stalled.is_there());
  network.end_stalls(ETIMEDOUT);
  EXPECT_EQ(stalled.get(), 0);
  expect_bytes(*source, {0, 100});
}

TEST_F(CacheFileTest, ChangedObjectIsStaleButCachedBlocksAreServed) {
  const auto source = open(4 * kMiB);
  network.script([](std::size_t number, ByteRange) { return Reply{.status = number ? 412 : 206}; });
  network.let_go();
  expect_bytes(*source, {0, kBlock});
  EXPECT_TRUE(source->is_current());
  Answer one(*source, {kMiB, 1}), other(*source, {3 * kMiB, 1});
  EXPECT_EQ(one.get(), ESTALE);
  EXPECT_EQ(other.get(), ESTALE);
  EXPECT_TRUE(source->has_changed());
  EXPECT_FALSE(source->is_current());
  const std::size_t asked = network.seen().size();
  EXPECT_EQ(Answer(*source, {2 * kMiB, 1}).get(), ESTALE);
  source->prefetch({0, 4 * kMiB});
  EXPECT_EQ(network.seen().size(), asked);
  expect_bytes(*source, {0, kBlock});
}

TEST_F(CacheFileTest, RejectedResponseFailsReadersWithReason) {
  const auto source = open(kMiB);
  network.script(
      [](std::size_t number, ByteRange) { return number < 2 ? Reply{.status = 200} : Reply{}; });
  network.let_go();
  EXPECT_EQ(Answer(*source, {0, 1}).get(), EIO);
  EXPECT_EQ(Answer(*source, {0, 1}).get(), EIO);
  expect_bytes(*source, {0, kMiB});  // sends a new request
  ASSERT_EQ(source->failures().size(), 1U);
  EXPECT_EQ(source->failures()[0].error, EIO);
  EXPECT_EQ(source->failure_text(), "the server ignores ranges");
}

TEST_F(CacheFileTest, RejectsMoreBytesThanRequested) {
  const auto source = open(kMiB);
  network.always({.surplus = 1});
  network.let_go();
  EXPECT_EQ(Answer(*source, {0, kBlock}).get(), EIO);
}

TEST_F(CacheFileTest, RenewsCredentialsOnceThenReturnsEACCES) {
  const auto source = open(kMiB);
  network.script(
      [&](std::size_t, ByteRange) { return Reply{.status = remote->renewals == 1 ? 206 : 403}; });
  network.let_go();
  expect_bytes(*source, {0, kBlock});
  EXPECT_EQ(remote->renewals, 1);
  network.always({.status = 403});
  EXPECT_EQ(Answer(*source, {kBlock, 1}).get(), EACCES);
  EXPECT_EQ(remote->renewals, 2);
  EXPECT_EQ(to_text(network.seen()), "0+1 0+1 1+1 1+1 ");
  remote->can_renew = false;
  EXPECT_EQ(Answer(*source, {kBlock, 1}).get(), EACCES);
  EXPECT_EQ(network.seen().size(), 5U);
  remote->has_credentials = false;
  EXPECT_EQ(Answer(*source, {kBlock, 1}).get(), EIO);
}

TEST_F(CacheFileTest, SimultaneousRefusalsRenewCredentialsOnce) {
  start({.connections = 4});
  const auto source = open(64 * kMiB);
  std::vector<Answer> answers;
  for (std::uint64_t i = 0; i < 4; ++i) answers.emplace_back(*source, ByteRange{i * 16 * kMiB, 1});
  network.wait_for_requests(4);
  network.script(
      [&](std::size_t number, ByteRange) { return Reply{.status = number < 4 ? 403 : 206}; });
  network.let_go();
  for (Answer& answer : answers) EXPECT_EQ(answer.get(), 0);
  EXPECT_EQ(remote->renewals, 1);
}

TEST_F(CacheFileTest, WantFailsAtDeadlineAndNextWantRetries) {
  start({.timeout = 30ms});
  const auto source = open(kMiB);
  network.always({.cut_after = kBlock, .stall = true});
  network.let_go();
  source->prefetch({0, 2 * kBlock});
  network.wait_for_stalls(1);
  Answer one(*source, {0, 2 * kBlock});
  EXPECT_EQ(one.get(), EIO);
  ASSERT_EQ(source->failures().size(), 1U);
  EXPECT_EQ(source->failures()[0].begin, kBlock);
  EXPECT_TRUE(source->has({0, kBlock}));
  network.script({});
  network.end_stalls(EIO);
  while (Answer(*source, {0, 2 * kBlock}).get() != 0) {
  }
  expect_bytes(*source, {0, 2 * kBlock});
}

TEST_F(CacheFileTest, OfflineServesOnlyCachedBytes) {
  start({.offline = true});
  const auto source = open(2 * kBlock, true, text_of({0, kBlock}));
  expect_bytes(*source, {0, kBlock});
  source->prefetch({0, 2 * kBlock});
  EXPECT_EQ(Answer(*source, {0, kBlock + 1}).get(), EIO);
  EXPECT_EQ(source->failures().size(), 1U);
  EXPECT_EQ(source->failure_text(), "offline, and these bytes were never fetched");
  EXPECT_TRUE(network.seen().empty());
}

TEST_F(CacheFileTest, DestructionCancelsWaitingReaders) {
  auto source = open(8 * kMiB);
  network.always({.cut_after = 5, .stall = true});
  Answer stalled(*source, {0, 1}), queued(*source, {4 * kMiB, 1});
  network.let_go();
  network.wait_for_stalls(2);
  source->prefetch({0, 8 * kMiB});
  source.reset();
  EXPECT_EQ(stalled.get(), ECANCELED);
  EXPECT_EQ(queued.get(), ECANCELED);
  network.end_stalls(EIO);
}

TEST_F(CacheFileTest, DestructionWaitsForCallbacks) {
  auto source = open(kBlock);
  std::promise<void> entered, leave;
  std::atomic<bool> is_over = false;
  source->want({0, 1}, [&](int) {
    entered.set_value();
    leave.get_future().wait();
    is_over = true;
  });
  network.let_go();
  entered.get_future().wait();
  std::thread other([&] { leave.set_value(); });
  source.reset();
  EXPECT_TRUE(is_over);
  other.join();
}

}  // namespace
}  // namespace stfs::cache_file_test
