// Compares recipes with strings of the same bytes.
#include "core/recipe/content.h"

#include "core/base/while_wanted.h"
#include "core/recipe/write_content.h"
#include "core/source/leases.h"
#include "core/source/local_file.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/unit/most.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

// Produces the bytes of a string, or fails.
class TextProducer : public Producer {
 public:
  explicit TextProducer(std::string text, int error = 0) : text_(std::move(text)), error_(error) {}
  std::uint64_t size() const override { return text_.size(); }
  void missing(std::uint64_t, std::uint64_t, std::vector<Extent>&) const override {}
  int produce(std::uint64_t offset, std::span<std::byte> out) const override {
    EXPECT_LE(offset + out.size(), text_.size());
    std::memcpy(out.data(), text_.data() + offset, out.size());
    return error_;
  }

 private:
  std::string text_;
  int error_;
};

std::string joined(const Reading& reading) {
  std::string out;
  for (const iovec& piece : reading.pieces) {
    out.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
  }
  return out;
}

// A source of random bytes with an mtime in the past, so that any write changes it.
class ContentTest : public ::testing::Test {
 protected:
  ContentTest() : path_((dir_ / "source").string()), bytes_(RandomBytes(3).bytes(20'000)) {
    write_file(path_, bytes_);
    set_mtime(1'000'000'000, 5);
    source_ = std::make_unique<LocalFile>(path_);
  }

  void set_mtime(std::time_t seconds, long nanoseconds) {
    const timespec times[2]{{seconds, nanoseconds}, {seconds, nanoseconds}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path_.c_str(), times, 0), 0);
  }

  std::string read(const Content& content, std::uint64_t offset, std::uint64_t length) {
    Reading reading;
    EXPECT_EQ(content.read(offset, length, reading), 0);
    EXPECT_LE(reading.pieces.size(), Content::kMaxPieces);
    for (const iovec& piece : reading.pieces) EXPECT_GT(piece.iov_len, 0U);
    return joined(reading);
  }

  std::string copy(const Content& content, std::uint64_t offset, std::size_t length) {
    std::string out(length, '\0');
    EXPECT_EQ(content.copy(offset, std::as_writable_bytes(std::span(out))), 0);
    return out;
  }

  // Reads all bytes. Returns 0 or an errno.
  static int read_error(const Content& content) {
    Reading reading;
    return content.read(0, kMost, reading);
  }
  static int copy_error(const Content& content) {
    std::vector<std::byte> out(content.size());
    return content.copy(0, out);
  }

  TempDir dir_;
  std::string path_;
  std::string bytes_;
  std::unique_ptr<LocalFile> source_;
};

TEST_F(ContentTest, RandomRecipesMatchModelAtRandomRanges) {
  RandomBytes random(11);
  for (int round = 0; round < 100 && !HasFailure(); ++round) {
    Content content;
    std::string model;
    // In some rounds there are more spans than a Reading can have pieces.
    const std::uint64_t spans = round % 4 == 0 ? random.next() % 300 : random.next() % 8;
    for (std::uint64_t i = 0; i < spans; ++i) {
      const std::uint64_t length = random.next() % 50;
      const std::uint64_t offset = random.next() % (bytes_.size() - length);
      const std::string part = bytes_.substr(offset, length);
      switch (random.next() % 3) {
        case 0: content.literal(part); break;
        case 1: content.extent(*source_, offset, length); break;
        default: content.production(std::make_unique<TextProducer>(part));
      }
      model += part;
    }
    ASSERT_EQ(content.size(), model.size());
    EXPECT_EQ(read(content, 0, kMost), model);
    for (int i = 0; i < 30 && !model.empty(); ++i) {
      const std::uint64_t offset = random.next() % model.size();
      const std::uint64_t length = random.next() % (2 * model.size());
      const std::string part = model.substr(offset, length);
      EXPECT_EQ(read(content, offset, length), part);
      EXPECT_EQ(copy(content, offset, part.size()), part);
    }
  }
}

TEST_F(ContentTest, SmallRecipeMatchesModelAtEveryRange) {
  Content content;
  content.literal("abc").extent(*source_, 0, 4).production(std::make_unique<TextProducer>("xyz"));
  const std::string model = "abc" + bytes_.substr(0, 4) + "xyz";

  for (std::uint64_t offset = 0; offset <= model.size() + 1; ++offset) {
    for (std::uint64_t length = 0; length <= model.size() + 2; ++length) {
      const std::string part = offset < model.size() ? model.substr(offset, length) : "";
      EXPECT_EQ(read(content, offset, length), part) << offset << " " << length;
      EXPECT_EQ(copy(content, std::min<std::uint64_t>(offset, model.size() - 1), 0), "");
    }
  }
}

TEST_F(ContentTest, CutsReadsAtEndAndReturnsNoBytesPastIt) {
  Content content;
  content.extent(*source_, 100, 10);

  EXPECT_EQ(read(content, 8, 100), bytes_.substr(108, 2));
  EXPECT_EQ(read(content, 9, kMost), bytes_.substr(109, 1));
  EXPECT_EQ(read(content, 10, 1), "");
  EXPECT_EQ(read(content, kMost, kMost), "");
  EXPECT_EQ(read(content, 1ULL << 63, 1), "");
  EXPECT_EQ(read(content, 1, kMost - 1), bytes_.substr(101, 9));
}

TEST_F(ContentTest, EmptySpansAddNoBytes) {
  Content content;
  content.literal("").extent(*source_, 5, 0).production(std::make_unique<TextProducer>(""));

  EXPECT_EQ(content.size(), 0U);
  EXPECT_EQ(read(content, 0, 10), "");
  EXPECT_EQ(content.verify(), 0);
}

TEST_F(ContentTest, JoinsAdjacentExtents) {
  Content content;
  for (std::uint64_t i = 0; i < 1000; ++i) content.extent(*source_, i * 10, 10);
  const Leases leases({source_.get()});
  if (!source_->can_pin({0, 1})) GTEST_SKIP() << "no leases on this file system";
  Reading reading;

  ASSERT_EQ(content.read(0, kMost, reading), 0);

  EXPECT_EQ(reading.pieces.size(), 1U);
  EXPECT_TRUE(reading.buffers.empty()) << "the piece must point into the mapping";
  EXPECT_EQ(joined(reading), bytes_.substr(0, 10'000));
}

TEST_F(ContentTest, DoesNotJoinExtentsWithGapOrOtherSource) {
  const LocalFile other(path_);
  Content content;
  content.extent(*source_, 0, 10).extent(*source_, 11, 10).extent(other, 21, 10);
  Reading reading;

  ASSERT_EQ(content.read(0, kMost, reading), 0);

  EXPECT_EQ(reading.pieces.size(), 3U);
  EXPECT_EQ(joined(reading), bytes_.substr(0, 10) + bytes_.substr(11, 20));
}

TEST_F(ContentTest, SendsLargeExtentFromMapping) {
  Content content;
  content.literal("header").extent(*source_, 0, bytes_.size());
  const Leases leases({source_.get()});
  if (!source_->can_pin({0, 1})) GTEST_SKIP() << "no leases on this file system";
  Reading reading;

  ASSERT_EQ(content.read(0, kMost, reading), 0);

  ASSERT_EQ(reading.pieces.size(), 2U);
  EXPECT_EQ(reading.pieces[1].iov_base, source_->bytes().data());
}

TEST_F(ContentTest, SendsManySmallSpansAsOnePiece) {
  Content content;
  std::string model;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    content.extent(*source_, i * 7, 3);
    model += bytes_.substr(i * 7, 3);
  }
  Reading reading;

  ASSERT_EQ(content.read(0, kMost, reading), 0);

  EXPECT_EQ(reading.pieces.size(), 1U);
  EXPECT_EQ(joined(reading), model);
}

TEST_F(ContentTest, ReturnsErrorOfProducer) {
  Content content;
  content.literal("abc").production(std::make_unique<TextProducer>("xyz", EIO));
  Reading reading;

  EXPECT_EQ(content.read(0, 3, reading), 0) << "the producer must not be called";
  EXPECT_EQ(read_error(content), EIO);
  EXPECT_EQ(copy_error(content), EIO);
}

TEST_F(ContentTest, AnyChangeOfSourceGivesESTALE) {
  const struct {
    const char* name;
    std::function<void()> change;
  } rows[] = {
      {"truncated to some", [&] { std::filesystem::resize_file(path_, 10); }},
      {"truncated to nothing", [&] { std::filesystem::resize_file(path_, 0); }},
      {"rewritten", [&] { write_file(path_, RandomBytes(4).bytes(bytes_.size())); }},
      {"a nanosecond later", [&] { set_mtime(1'000'000'000, 6); }},
      {"grown", [&] { std::filesystem::resize_file(path_, bytes_.size() + 1); }},
  };
  for (const auto& [name, change] : rows) {
    SCOPED_TRACE(name);
    write_file(path_, bytes_);
    set_mtime(1'000'000'000, 5);
    const LocalFile source(path_);
    Content content;
    content.extent(source, 0, bytes_.size());

    change();

    EXPECT_EQ(read_error(content), ESTALE);
    EXPECT_EQ(content.verify(), ESTALE);
    EXPECT_EQ(copy_error(content), ESTALE) << "a copy must fail instead of raising SIGBUS";
  }
}

TEST_F(ContentTest, ManySmallSpansGiveESTALEAfterTruncation) {
  Content content;
  for (std::uint64_t i = 0; i < 2000; ++i) content.extent(*source_, i * 7, 3);
  std::filesystem::resize_file(path_, 10);

  EXPECT_EQ(read_error(content), ESTALE);
}

TEST_F(ContentTest, RestoredMtimeStillGivesESTALE) {
  Content content;
  content.extent(*source_, 0, 100);
  set_mtime(1'000'000'001, 5);
  ASSERT_EQ(content.verify(), ESTALE);
  set_mtime(1'000'000'000, 5);

  EXPECT_EQ(read_error(content), ESTALE);
  EXPECT_EQ(copy_error(content), ESTALE);
  EXPECT_TRUE(source_->has_changed());
}

TEST_F(ContentTest, ServesOldBytesAfterSourceIsReplacedOrRemoved) {
  Content content;
  content.extent(*source_, 0, 100);
  write_file(dir_ / "new", "other");
  std::filesystem::rename(dir_ / "new", path_);

  EXPECT_EQ(read(content, 0, 100), bytes_.substr(0, 100));
  std::filesystem::remove(path_);
  EXPECT_EQ(copy(content, 0, 100), bytes_.substr(0, 100));
}

TEST_F(ContentTest, StillReadsLiteralsAfterSourceChange) {
  Content content;
  content.literal("abc").extent(*source_, 0, 100);
  std::filesystem::resize_file(path_, 0);

  EXPECT_EQ(read(content, 0, 3), "abc");
  EXPECT_EQ(content.verify(), ESTALE);
}

TEST_F(ContentTest, ChangeOfSecondSourceGivesESTALE) {
  write_file(dir_ / "second", "0123456789");
  const LocalFile second((dir_ / "second").string());
  Content content;
  content.extent(*source_, 0, 10).extent(second, 0, 10);
  std::filesystem::resize_file(dir_ / "second", 3);

  EXPECT_EQ(read(content, 0, 10), bytes_.substr(0, 10));
  EXPECT_EQ(read_error(content), ESTALE);
  EXPECT_EQ(content.verify(), ESTALE);
}

// Rewrites a source while it produces bytes, like a fast writer during a slow read.
class RewritingProducer : public Producer {
 public:
  explicit RewritingProducer(std::filesystem::path path) : path_(std::move(path)) {}
  std::uint64_t size() const override { return 4; }
  void missing(std::uint64_t, std::uint64_t, std::vector<Extent>&) const override {}
  int produce(std::uint64_t, std::span<std::byte> out) const override {
    std::ranges::fill(out, std::byte{'p'});
    std::filesystem::resize_file(path_, 5);
    return 0;
  }

 private:
  std::filesystem::path path_;
};

// Reads the Content below it `times` times, like a view that reads many bytes to return few.
class RepeatingProducer : public Producer {
 public:
  RepeatingProducer(Content below, std::uint64_t times) : below_(std::move(below)), times_(times) {}
  std::uint64_t size() const override { return 4; }
  void missing(std::uint64_t, std::uint64_t, std::vector<Extent>&) const override {}
  int produce(std::uint64_t, std::span<std::byte> out) const override {
    for (std::uint64_t i = 0; i < times_; ++i) {
      if (const int error = below_.copy_unverified(0, out)) return error;
    }
    return 0;
  }

 private:
  Content below_;
  std::uint64_t times_;
};

Content repeating(std::uint64_t times) {
  Content below;
  below.literal("text");
  Content content;
  content.production(std::make_unique<RepeatingProducer>(std::move(below), times));
  return content;
}

TEST(Content, ReadEndsWithEINTRWhenNoLongerWanted) {
  int questions = 0;
  Reading reading;
  {
    const WhileWanted while_wanted([&] { return ++questions < 3; });
    EXPECT_EQ(repeating(UINT64_MAX).read(0, 4, reading), EINTR);
    EXPECT_EQ(questions, 3);
    EXPECT_EQ(repeating(1).read(0, 4, reading), EINTR) << "the result must not change";
    const WhileWanted inner([] { return true; });
    EXPECT_EQ(repeating(1).read(0, 4, reading), 0) << "the inner WhileWanted counts";
  }
  EXPECT_EQ(repeating(1).read(0, 4, reading), 0);
}

TEST(Content, ShortReadDoesNotCallWhileWanted) {
  const WhileWanted while_wanted([] { return ADD_FAILURE() << "asked", false; });
  Reading reading;

  EXPECT_EQ(repeating(1).read(0, 4, reading), 0);
}

TEST(Content, VerifiesSourceAfterFillingAllBuffers) {
  const TempDir dir;
  write_file(dir / "f", "0123456789");
  const LocalFile source((dir / "f").string());
  Content content;
  content.extent(source, 0, 10).production(std::make_unique<RewritingProducer>(dir / "f"));
  const Leases leases({&source});
  Reading reading;

  EXPECT_EQ(content.read(0, content.size(), reading), ESTALE);
}

TEST(LocalFile, ResolvesSymlinkToCanonicalPath) {
  const TempDir dir;
  write_file(dir / "blob", "0123456789");
  std::filesystem::create_symlink("blob", dir / "link");

  const LocalFile file((dir / "link").string());

  EXPECT_EQ(file.path(), std::filesystem::canonical(dir / "blob").string());
  EXPECT_EQ(file.size(), 10U);
}

TEST(LocalFile, CopyOfAnObjectIsCurrentWhileItsPathLeadsToIt) {
  const TempDir dir;
  const std::filesystem::path blobs = dir / "blobs";
  const std::string path = (blobs / "f").string();
  const auto open = [&] {
    std::filesystem::create_directory(blobs);
    write_file(path, "bytes");
    return LocalFile(path, LocalFile::Object{.name = "hf://org/name/f", .token = "hf-1"});
  };
  {
    const LocalFile file = open();
    EXPECT_TRUE(file.is_current());
    write_file(dir / "other", "other");
    std::filesystem::rename(dir / "other", path);
    EXPECT_FALSE(file.is_current());
    EXPECT_EQ(file.verify(), 0) << "its bytes are unchanged";
  }
  {
    const LocalFile file = open();
    std::filesystem::rename(blobs, dir / "moved");
    EXPECT_FALSE(file.is_current()) << "no file";
    const LocalFile second = open();
    EXPECT_FALSE(file.is_current()) << "another directory";
    EXPECT_TRUE(second.is_current());
  }
}

TEST(LocalFile, EmptyFileHasNoBytes) {
  const TempDir dir;
  write_file(dir / "empty", "");

  const LocalFile file((dir / "empty").string());

  EXPECT_EQ(file.size(), 0U);
  EXPECT_TRUE(file.bytes().empty());
  EXPECT_EQ(file.verify(), 0);
}

TEST(LocalFile, ReadPastEndGivesESTALE) {
  const TempDir dir;
  write_file(dir / "f", "0123456789");
  const LocalFile file((dir / "f").string());
  std::vector<std::byte> out(5);

  EXPECT_EQ(file.read(out, 8), ESTALE);
  EXPECT_EQ(file.read(out, 5), 0);
}

// Reading /proc/self/mem beyond the address space of a process fails with EIO.
TEST(LocalFile, RecordsFirstReadFailuresOnceEach) {
  const LocalFile file("/proc/self/mem");
  constexpr std::uint64_t kNothing = std::uint64_t{1} << 60;
  std::vector<std::byte> out(4096);
  const auto fail_at = [&](std::uint64_t offset) {
    EXPECT_EQ(file.read_unverified(out, kNothing + offset), EIO);
  };

  fail_at(0);
  const auto first = file.take_failure();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->begin, kNothing);
  EXPECT_EQ(first->end, kNothing + 4096);
  EXPECT_EQ(first->error, EIO);
  EXPECT_FALSE(first->is_last);
  for (std::uint64_t offset = 0; offset < 4 << 20; offset += 512 << 10) fail_at(offset);
  EXPECT_FALSE(file.take_failure()) << "nearby failures must count as the same failure";

  for (std::uint64_t i = 1; i < 100; ++i) fail_at(i << 30);
  std::size_t taken = 1;
  while (const auto failure = file.take_failure()) {
    EXPECT_EQ(failure->is_last, ++taken == LocalFile::kMaxFailures);
  }
  EXPECT_EQ(taken, LocalFile::kMaxFailures);
}

// Drops a file from the page cache if the file system supports this.
void drop_pages(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(::fsync(fd), 0);
  EXPECT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
  ::close(fd);
}

TEST(LocalFile, ConcurrentReadersOfColdFileGetCorrectBytes) {
  const TempDir dir;
  const std::string bytes = RandomBytes(4).bytes(1'000'000);
  write_file(dir / "f", bytes);
  drop_pages((dir / "f").string());
  const LocalFile file((dir / "f").string());
  std::atomic<int> right = 0;
  std::vector<std::thread> readers;

  for (std::size_t i = 0; i < 8; ++i) {
    readers.emplace_back([&, i] {
      // Lengths above a block, below a block, and 0.
      for (const std::size_t length : {300'000UL, 131'072UL, 131'073UL, 1UL, 0UL}) {
        std::string out(length, '\0');
        if (file.read_ahead(std::as_writable_bytes(std::span(out)), i * 80'000) == 0 &&
            out == bytes.substr(i * 80'000, length)) {
          ++right;
        }
      }
    });
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(right, 8 * 5);
  std::vector<std::byte> beyond(500'000);
  EXPECT_EQ(file.read_ahead(beyond, 600'000), ESTALE);
}

// This happens if another program writes a source while stfs saves it.
TEST_F(ContentTest, SourceChangeDuringWriteGivesESTALE) {
  for (const bool is_computed : {false, true}) {
    set_mtime(1'000'000'000, 5);
    const LocalFile source(path_);
    Content content;
    content.extent(source, 0, 5000);
    if (is_computed) content.production(std::make_unique<TextProducer>("computed"));
    const int out = ::open((dir_ / "out").c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    ASSERT_EQ(write_content(content, out, [](std::uint64_t) {}).error, 0);
    ::lseek(out, 0, SEEK_SET);
    const auto change = [&](std::uint64_t) { set_mtime(1'000'000'000, 6); };

    const Written written = write_content(content, out, change);
    ::close(out);

    EXPECT_EQ(written.error, ESTALE) << is_computed;
    EXPECT_TRUE(written.failed_reading);
  }
}

}  // namespace
}  // namespace stfs::test
