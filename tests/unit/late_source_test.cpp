// Tests of reads of bytes that have not arrived yet: when they wait, and when they are answered.
#include "tests/unit/late_source.h"

#include "core/checkpoint/catalogue.h"
#include "core/checkpoint/checkpoint.h"
#include "core/format/format.h"
#include "core/layer/quantised/dequantize.h"
#include "core/recipe/fetch_missing.h"
#include "core/recipe/slice.h"
#include "core/remote/sources.h"
#include "fs/mount/filesystem.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/unit/served_checkpoint.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <ctime>
#include <future>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

struct Answer {
  int error = -1;
  std::string bytes;
};

// A read, and the promise of its answer.
struct Waiting {
  std::optional<FileSystem::Ticket> ticket;  // set when the read waits
  std::promise<Answer> promise;
  std::future<Answer> answer = promise.get_future();

  bool is_answered() const {
    return answer.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
};

class LateSources : public Sources {
 public:
  explicit LateSources(LateSource*& last, bool is_remote = false)
      : last_(last), is_remote_(is_remote) {}

  std::unique_ptr<const Source> open(const std::string& name) override {
    auto source = std::make_unique<LateSource>(name);
    last_ = source.get();
    if (is_remote_) source->be_remote();
    return source;
  }

 private:
  LateSource*& last_;
  bool is_remote_;
};

// Two tensors, "a" of 6 bytes and "b" of 4 bytes, in a source that lacks all bytes.
class LateSourceTest : public ::testing::Test {
 protected:
  LateSourceTest() {
    const std::string path = (dir_ / "m.safetensors").string();
    write_safetensors(path,
                      {{"a", "U8", {2, 3}, "abcdef"}, {"b", "F16", {2}, {"\0\x3c\0\x40", 4}}});
    LateSources sources(source_);
    checkpoint_ =
        std::make_unique<const Checkpoint>(std::span(&path, 1), LoadOptions{.sources = &sources});
    filesystem_ =
        std::make_unique<FileSystem>(*checkpoint_, FileSystemOptions{},
                                     [this](const std::string& line) { log_.push_back(line); });
    source_->take_bytes_away();
  }

  std::uint64_t inode(const std::string& path) const {
    Attributes found{};
    found.inode = kRoot;
    std::istringstream components(path);
    for (std::string component; std::getline(components, component, '/');) {
      EXPECT_EQ(filesystem_->lookup(found.inode, component, found), 0) << path;
    }
    return found.inode;
  }

  std::shared_ptr<Waiting> read(const std::string& path, std::uint64_t offset = 0,
                                std::uint64_t length = 1 << 20) {
    auto waiting = std::make_shared<Waiting>();
    filesystem_->read(
        {inode(path), offset, length},
        [waiting](FileSystem::Ticket ticket) { waiting->ticket = ticket; },
        [waiting](int error, const Reply& reply) {  // throws if it is called twice
          waiting->promise.set_value({error, bytes_of(reply)});
        });
    return waiting;
  }

  TempDir dir_;
  LateSource* source_ = nullptr;
  std::unique_ptr<const Checkpoint> checkpoint_;
  std::vector<std::string> log_;
  std::unique_ptr<FileSystem> filesystem_;
};

TEST_F(LateSourceTest, ReadOfMissingBytesIsAnsweredWhenTheyArrive) {
  const auto waiting = read("a", 1, 3);

  EXPECT_TRUE(waiting->ticket);
  EXPECT_FALSE(waiting->is_answered());
  ASSERT_EQ(source_->wanted().size(), 1U);
  EXPECT_EQ(source_->wanted()[0].length, 3U) << "more than the read needs";

  source_->deliver(0);

  const Answer answer = waiting->answer.get();
  EXPECT_EQ(answer.error, 0);
  EXPECT_EQ(answer.bytes, "bcd");
}

TEST_F(LateSourceTest, ReadOfArrivedBytesIsAnsweredAtOnceWhileOthersWait) {
  const auto first = read("a", 0, 2);
  source_->deliver(0);
  const auto waiting = read("a", 0, 6);

  const auto arrived = read("a", 0, 2);
  const auto text = read(".stfs/json/a.json");

  EXPECT_EQ(arrived->answer.get().bytes, "ab");
  EXPECT_FALSE(arrived->ticket);
  EXPECT_EQ(text->answer.get().error, 0);
  EXPECT_FALSE(waiting->is_answered());
}

TEST_F(LateSourceTest, ViewsRequestOnlyTheirInputBytes) {
  struct Wanted {
    const char* path;
    std::vector<std::uint64_t> lengths;  // lengths of the wanted ranges
    std::string end;                     // the end of the answer
  };
  const std::string floats("\0\0\x80\x3f\0\0\0\x40", 8);
  for (const auto& [path, lengths, end] : std::vector<Wanted>{
           {".stfs/tree/a", {6}, "abcdef"},
           {".stfs/npy/a.npy", {6}, "abcdef"},
           {".stfs/slice/a/1", {3}, "def"},
           {".stfs/slice/a/:,1", {4}, "be"},
           {".stfs/f32/b", {4}, floats},
           {".stfs/npy-f32/b.npy", {4}, floats},
           {".stfs/safetensors/a.safetensors", {6}, "abcdef"},
           {".stfs/header/m.safetensors.json", {checkpoint_->parts()[0].header.raw.length}, ""}}) {
    const auto waiting = read(path);

    ASSERT_FALSE(waiting->is_answered()) << path;
    std::vector<std::uint64_t> wanted;
    for (const ByteRange& range : source_->wanted()) wanted.push_back(range.length);
    EXPECT_EQ(wanted, lengths) << path;
    while (!source_->wanted().empty()) source_->deliver(0);
    const Answer answer = waiting->answer.get();
    EXPECT_EQ(answer.error, 0) << path;
    EXPECT_TRUE(answer.bytes.ends_with(end)) << path;
    source_->forget();
  }
}

TEST_F(LateSourceTest, JoinsRangesInNeighbouringBlocks) {
  const auto waiting = read(".stfs/subset/*.safetensors");
  ASSERT_EQ(source_->wanted().size(), 1U);
  EXPECT_EQ(source_->wanted()[0].length, 10U);

  source_->deliver(0);

  EXPECT_TRUE(waiting->answer.get().bytes.ends_with("abcdef"));
}

TEST_F(LateSourceTest, ReaderGetsErrnoAndNextReadRetries) {
  const auto waiting = read("a");
  source_->deliver(EIO);
  const Answer answer = waiting->answer.get();
  EXPECT_EQ(answer.error, EIO);
  EXPECT_EQ(answer.bytes, "");

  const auto again = read("a");
  source_->deliver(0);

  EXPECT_EQ(again->answer.get().bytes, "abcdef");
}

TEST_F(LateSourceTest, CancelledReadGetsEINTRAndBytesMayArriveLater) {
  const auto waiting = read("a");

  filesystem_->cancel(*waiting->ticket);

  EXPECT_EQ(waiting->answer.get().error, EINTR);
  source_->deliver(0);
  EXPECT_EQ(read("a")->answer.get().bytes, "abcdef");
}

TEST_F(LateSourceTest, CancelBetweenTicketAndWaitTakesEffect) {
  auto waiting = std::make_shared<Waiting>();
  filesystem_->read(
      {inode("a"), 0, 6}, [this](FileSystem::Ticket ticket) { filesystem_->cancel(ticket); },
      [waiting](int error, const Reply& reply) {
        waiting->promise.set_value({error, bytes_of(reply)});
      });

  EXPECT_EQ(waiting->answer.get().error, EINTR);
}

TEST_F(LateSourceTest, StopWaitingAnswersAllReadsAndBytesMayArriveLater) {
  const auto waiting = read("a");
  const auto other = read("b");

  filesystem_->stop_waiting();

  EXPECT_EQ(waiting->answer.get().error, EINTR);
  EXPECT_EQ(other->answer.get().error, EINTR);
  EXPECT_EQ(read("a")->answer.get().error, EINTR);
  filesystem_.reset();
  while (!source_->wanted().empty()) source_->deliver(0);
}

TEST_F(LateSourceTest, SourceChangeDuringWaitGivesESTALE) {
  const auto waiting = read("a");
  write_file(dir_ / "m.safetensors", "other");

  source_->deliver(0);

  EXPECT_EQ(waiting->answer.get().error, ESTALE);
}

TEST_F(LateSourceTest, ServesArrivedBytesAfterRemoteChange) {
  const auto first = read("a", 0, 2);
  source_->deliver(0);
  source_->change_remotely();

  EXPECT_EQ(filesystem_->open(inode("a")), 0);
  EXPECT_EQ(read("a", 0, 2)->answer.get().bytes, "ab");
  EXPECT_EQ(read("a", 0, 6)->answer.get().error, ESTALE);
  EXPECT_EQ(read("a", 0, 6)->answer.get().error, ESTALE);

  ASSERT_EQ(log_.size(), 1U);
  EXPECT_NE(log_[0].find("reads of bytes that are not cached fail"), std::string::npos) << log_[0];
}

TEST_F(LateSourceTest, FailedWantIsAnsweredOnceWithENOMEM) {
  source_->refuse_after(0);

  const auto waiting = read("a");

  EXPECT_EQ(waiting->answer.get().error, ENOMEM);
  filesystem_->stop_waiting();
}

// Tests both a plain tensor and a conversion, which knows in advance which bytes it needs.
TEST_F(LateSourceTest, BytesEvictedDuringReadAreFetchedAgain) {
  for (const char* const path : {"a", ".stfs/npy/b.npy"}) {
    SCOPED_TRACE(path);
    source_->bring_all_back();
    const std::string expected = read(path)->answer.get().bytes;
    source_->lose_at_reads(1);

    const Answer answer = read(path)->answer.get();

    EXPECT_EQ(answer.error, 0);
    EXPECT_EQ(answer.bytes, expected);
  }
}

TEST_F(LateSourceTest, LogFailureDoesNotChangeErrno) {
  FileSystem filesystem(*checkpoint_, {}, [](const std::string&) { throw std::bad_alloc(); });
  Attributes found{};
  ASSERT_EQ(filesystem.lookup(kRoot, "a", found), 0);
  std::promise<int> answer;
  filesystem.read(
      {found.inode, 0, 6}, [](FileSystem::Ticket) {},
      [&](int error, const Reply&) { answer.set_value(error); });
  ASSERT_EQ(source_->wanted().size(), 1U);

  source_->mark_changed();
  std::thread([&] { source_->deliver(ESTALE); }).join();

  EXPECT_EQ(answer.get_future().get(), ESTALE);
}

// A report that is not open is evicted like other texts.
TEST(LateSource, ReportIsKeptWhileItIsOpen) {
  const TempDir dir;
  const std::string path = (dir / "m.safetensors").string();
  std::vector<Tensor> tensors;
  constexpr std::uint64_t kEdge =
      2048;  // all pictures together are larger than ComputedTexts keeps
  for (std::size_t i = 0; i <= ComputedTexts::kMaxBytes / (kEdge * kEdge); ++i) {
    tensors.push_back({"t" + std::to_string(i),
                       "F8_E4M3",
                       {kEdge, kEdge},
                       std::string(kEdge * kEdge, static_cast<char>(i))});
  }
  write_safetensors(path, tensors);
  LateSource* source = nullptr;
  LateSources sources(source);
  const Checkpoint checkpoint(std::span(&path, 1), LoadOptions{.sources = &sources});
  FileSystem filesystem(checkpoint, {}, [](const std::string&) {});
  const auto inode = [&](std::string_view name, const char* directory = nullptr) {
    Attributes found{};
    EXPECT_EQ(filesystem.lookup(kRoot, ".stfs", found), 0);
    if (directory != nullptr) {
      EXPECT_EQ(filesystem.lookup(found.inode, directory, found), 0);
    }
    EXPECT_EQ(filesystem.lookup(found.inode, name, found), 0) << name;
    return found.inode;
  };
  const auto read = [&](std::uint64_t file) {
    auto answer = std::make_shared<std::promise<int>>();
    filesystem.read(
        {file, 0, 1}, [](FileSystem::Ticket) {},
        [answer](int error, const Reply&) { answer->set_value(error); });
    return answer->get_future();
  };
  const std::uint64_t report = inode("report.html");
  const auto read_others = [&] {
    for (const Tensor& tensor : tensors) {
      EXPECT_EQ(read(inode(tensor.name + ".png", "png")).get(), 0);
    }
  };
  for (int i = 0; i < 2; ++i) ASSERT_EQ(filesystem.open(report, nullptr), 0);
  ASSERT_EQ(read(report).get(), 0);
  filesystem.release(report, 0);

  read_others();
  source->take_bytes_away();
  EXPECT_EQ(read(report).get(), 0);
  EXPECT_EQ(source->wants(), 0U) << "the report was evicted while it was open";

  filesystem.release(report, 0);
  source->bring_all_back();
  read_others();
  source->take_bytes_away();
  source->deliver_at_once();
  EXPECT_EQ(read(report).get(), 0);
  EXPECT_GT(source->wants(), 0U);
}

TEST(LateSource, PrefetchesForSequentialReader) {
  const TempDir dir;
  const std::string path = (dir / "m.safetensors").string();
  constexpr std::uint64_t kElements = 8 << 20;
  write_safetensors(path, {{"a", "F16", {kElements}, std::string(2 * kElements, 'x')}});
  LateSource* source = nullptr;
  LateSources sources(source, true);
  const Checkpoint checkpoint(std::span(&path, 1), {.sources = &sources});
  FileSystem filesystem(checkpoint, {}, [](const std::string&) {});
  Attributes found{};
  found.inode = kRoot;
  for (const char* name : {".stfs", "f32", "a"}) {
    ASSERT_EQ(filesystem.lookup(found.inode, name, found), 0) << name;
  }
  source->take_bytes_away();
  source->deliver_at_once();

  for (const std::uint64_t offset : {0U, 1U << 20}) {
    filesystem.read(
        {found.inode, offset, 1 << 20}, [](FileSystem::Ticket) {},
        [](int error, const Reply&) { EXPECT_EQ(error, 0); });
  }

  // The first range is the header. The second range is for the bytes of the f32 file from 2 MiB up
  // to the end of the window, which need half as many source bytes.
  const std::vector<ByteRange> ahead = source->prefetched();
  ASSERT_EQ(ahead.size(), 2U);
  EXPECT_EQ(ahead[1].offset, checkpoint.tensor(0).locator->offset + (1 << 20));
  EXPECT_EQ(ahead[1].length, 1U << 19);
}

// Only one reader at a time makes such a recipe (Recipe::turn).
TEST(LateSource, MayBeReadyAtOnceWithLargeRecipe) {
  const TempDir dir;
  const std::string path = (dir / "m.safetensors").string();
  const std::vector<std::uint64_t> shape(600'000, 1);
  write_safetensors(path, {{"a", "U8", shape, "x"}});
  LateSource* source = nullptr;
  LateSources sources(source);
  const Checkpoint checkpoint(std::span(&path, 1), {.sources = &sources});
  FileSystem filesystem(checkpoint, {}, [](const std::string&) {});
  Attributes found{};
  found.inode = kRoot;
  for (const char* name : {".stfs", "safetensors", "a.safetensors"}) {
    ASSERT_EQ(filesystem.lookup(found.inode, name, found), 0) << name;
  }
  source->take_bytes_away();
  source->deliver_at_once();

  std::optional<Answer> answer;
  filesystem.read(
      {found.inode, found.size - 1, 1}, [](FileSystem::Ticket) {},
      [&](int error, const Reply& reply) {
        answer = {error, bytes_of(reply)};
      });

  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->error, 0);
  EXPECT_EQ(answer->bytes, "x");
}

// Statistics and conversions read in this way, on their own threads.
TEST(LateSource, FetchAndCopyRetriesEvictedBytes) {
  const TempDir dir;
  write_file(dir / "f", "0123456789");
  LateSource source((dir / "f").string());
  source.lose_at_reads(5);
  Content content;
  content.extent(source, 0, 10);
  std::string bytes(10, '\0');

  EXPECT_EQ(fetch_and_copy(content, 0, std::as_writable_bytes(std::span(bytes))), 0);

  EXPECT_EQ(bytes, "0123456789");
}

TEST(LateSource, SliceFetchesOnlyItsOwnBytes) {
  constexpr std::uint64_t kRow = 1 << 20;
  const TempDir dir;
  write_file(dir / "f", std::string(4 * kRow, 'x'));
  LateSource source((dir / "f").string());
  source.take_bytes_away();
  const auto lengths = [&](const char* expression, std::uint64_t offset, std::uint64_t length) {
    const std::vector<std::uint64_t> shape{4, kRow};
    Content whole;
    whole.extent(source, 0, 4 * kRow);
    Slice slice;
    EXPECT_EQ(parse_slice(expression, DType::kU8, shape, slice), 0) << expression;
    std::vector<std::uint64_t> wanted;
    for (const Extent& extent : slice_content(slice, std::move(whole)).missing(offset, length)) {
      wanted.push_back(extent.length);
    }
    return wanted;
  };
  using Lengths = std::vector<std::uint64_t>;

  EXPECT_EQ(lengths(":,0:8192", 100, 50), Lengths{50});
  EXPECT_EQ(lengths(":,0:8192", 8000, 200), (Lengths{192, 8}))
      << "the end of a run and the start of the next";
  EXPECT_EQ(lengths(":,0:8192", 8000, 8400), (Lengths{192, 8192, 16}));
  EXPECT_EQ(lengths(":,0:1048000", 100, 50), Lengths{50});
  EXPECT_EQ(lengths(":,0:1048000", 1047990, 30), Lengths{10 + 576 + 20})
      << "must include the bytes in between, which are less than a block";
}

class CountedTensor : public ComputedTensor {
 public:
  explicit CountedTensor(std::vector<stfs::Tensor> inputs) : inputs_(std::move(inputs)) {}

  stfs::Tensor tensor() const override {
    static constexpr std::uint64_t kShape[] = {8};
    return {.name = "n",
            .path = "n",
            .dtype = DType::kU8,
            .shape = kShape,
            .length = 8,
            .locator = std::nullopt,
            .computed = this};
  }
  Content content() const override {
    Content content;
    content.literal("01234567");
    return content;
  }
  std::vector<stfs::Tensor> inputs() const override { return inputs_; }
  std::string_view scheme() const override { return "counted"; }

 private:
  std::vector<stfs::Tensor> inputs_;
};

TEST(TensorTest, ComputedTensorHasRecipeAndNewestInputTime) {
  const TempDir dir;
  std::vector<std::unique_ptr<const LocalFile>> files;
  std::vector<stfs::Tensor> inputs;
  for (const time_t seconds : {3, 5, 4}) {
    const std::string path = (dir / std::to_string(seconds)).string();
    write_file(path, "x");
    const timespec times[] = {{seconds, 6}, {seconds, 6}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
    files.push_back(std::make_unique<const LocalFile>(path));
    inputs.push_back({.name = "x",
                      .path = {},
                      .dtype = DType::kU8,
                      .shape = {},
                      .length = 1,
                      .locator = Extent{files.back().get(), 0, 1}});
  }
  const CountedTensor computed(inputs);
  const stfs::Tensor tensor = computed.tensor();

  EXPECT_EQ(tensor.content().size(), 8U);
  EXPECT_EQ(tensor.mtime().tv_sec, 5);
  EXPECT_EQ(tensor.verify(), 0);
  EXPECT_EQ(
      tensor_json(tensor),
      R"({"path":"n","name":"n","dtype":"U8","shape":[8],"bytes":8,"source":null,"offset":null})");
}

TEST(FormatTest, FileWithoutMagicIsSafetensors) {
  const TempDir dir;
  for (const std::string& bytes : {std::string(), std::string("x"), std::string(100, 'x')}) {
    write_file(dir / "f", bytes);

    EXPECT_EQ(format_of(LocalFile((dir / "f").string())).name, "safetensors");
  }
}

}  // namespace
}  // namespace stfs::test
