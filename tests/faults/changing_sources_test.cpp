// A source that changes under 16 readers. Each byte belongs to the mounted version, or the read
// fails. The readers read raw, converted and sliced files, by read and by mmap, with and without
// the kernel's cache.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/long_tests.h"
#include "tests/support/mounted.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace stfs::test {
namespace {

constexpr std::uint64_t kHeight = 512;
constexpr std::uint64_t kWidth = 1024;
constexpr int kReaders = 16;

// A change of the source, and whether the mount survives it.
struct Change {
  const char* name;
  bool is_survived;
  void (*act)(const std::filesystem::path& source, const std::string& other_version);
};

void overwrite(const std::filesystem::path& source, const std::string& bytes) {
  const int fd = ::open(source.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(::pwrite(fd, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  ::close(fd);
}

const Change kChanges[] = {
    {"Truncated", false,
     [](auto& source, auto&) { EXPECT_EQ(::truncate(source.c_str(), 100'000), 0); }},
    {"RewrittenInPlace", false, overwrite},
    {"AppendedTo", false,
     [](auto& source, auto& bytes) {
       EXPECT_EQ(::truncate(source.c_str(), static_cast<off_t>(bytes.size() + 1)), 0);
     }},
    {"TruncatedAndWrittenAgain", false,
     [](auto& source, auto& bytes) {
       EXPECT_EQ(::truncate(source.c_str(), 0), 0);
       overwrite(source, bytes);
     }},
    {"Replaced", true,
     [](auto& source, auto& bytes) {
       write_file(source.string() + ".new", bytes);
       std::filesystem::rename(source.string() + ".new", source);
     }},
    {"Unlinked", true, [](auto& source, auto&) { std::filesystem::remove(source); }},
};

// A file of the mount and its expected bytes.
struct View {
  std::string path;
  std::string bytes;
};

std::vector<View> views_of(const Tensor& tensor) {
  std::string floats;  // a BF16 is the upper half of a binary32
  for (std::size_t i = 0; i < tensor.bytes.size(); i += 2) {
    floats += std::string(2, '\0') + tensor.bytes.substr(i, 2);
  }
  std::string rows;
  for (std::size_t row = 0; row < kHeight; row += 2) {
    rows += tensor.bytes.substr(row * kWidth * 2, kWidth * 2);
  }
  return {{"w", tensor.bytes}, {".stfs/f32/w", floats}, {".stfs/slice/w/::2", rows}};
}

// Reads `view` until `stop`, without the kernel's cache if possible.
class CheckingReader {
 public:
  CheckingReader(const std::filesystem::path& root, const View& view, bool by_mmap, bool is_shared,
                 std::uint64_t seed)
      : view_(view), random_(seed) {
    fd_ = ::open((root / view.path).c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_GE(fd_, 0) << view.path;
    if (!by_mmap) return;
    map_ =
        ::mmap(nullptr, view.bytes.size(), PROT_READ, is_shared ? MAP_SHARED : MAP_PRIVATE, fd_, 0);
    EXPECT_NE(map_, MAP_FAILED);
    // The kernel copies from the mapping, because an unreadable page then gives EFAULT. In this
    // program it would raise SIGBUS.
    memory_ = ::memfd_create("taken", MFD_CLOEXEC);
  }
  CheckingReader(const CheckingReader&) = delete;
  ~CheckingReader() {
    if (map_ != nullptr) ::munmap(map_, view_.bytes.size());
    if (memory_ >= 0) ::close(memory_);
    ::close(fd_);
  }

  void run(const std::atomic<bool>& stop) {
    std::string got(128 * 1024, '\0');
    while (!stop) {
      ::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
      const std::size_t at = random_.next() % (view_.bytes.size() - 1);
      const std::size_t length = std::min(got.size(), view_.bytes.size() - at);
      std::size_t count = 0;
      const int error = take(std::span(got).first(length), at, count);
      // Bytes before an error are also checked.
      wrong += std::memcmp(got.data(), view_.bytes.data() + at, count) != 0 ? 1 : 0;
      if (error == 0) {
        ++(count == length ? right : false_ends);
      } else {
        ++(error == ESTALE || error == EIO || (map_ != nullptr && error == EFAULT) ? failed
                                                                                   : odd_errno);
      }
      ++reads;
    }
  }

  std::atomic<std::uint64_t> reads = 0;
  std::uint64_t right = 0, failed = 0, wrong = 0, false_ends = 0, odd_errno = 0;

 private:
  // Fills `out` from offset `at`. Returns 0 or an errno. `count` is the number of bytes; too few
  // bytes without an error are a false end of file.
  int take(std::span<char> out, std::size_t at, std::size_t& count) const {
    if (map_ != nullptr) ::madvise(map_, view_.bytes.size(), MADV_DONTNEED);
    while (count < out.size()) {
      const auto offset = static_cast<off_t>(at + count);
      const std::size_t left = out.size() - count;
      const ssize_t got = map_ == nullptr
                              ? ::pread(fd_, out.data() + count, left, offset)
                              : ::pwrite(memory_, static_cast<char*>(map_) + at + count, left, 0);
      if (got < 0) return errno;
      if (got == 0) return 0;
      if (map_ != nullptr) {
        EXPECT_EQ(::pread(memory_, out.data() + count, static_cast<std::size_t>(got), 0), got);
      }
      count += static_cast<std::size_t>(got);
    }
    return 0;
  }

  const View& view_;
  RandomBytes random_;
  int fd_ = -1;
  int memory_ = -1;
  void* map_ = nullptr;
};

class ChangingSource : public MountTest,
                       public ::testing::WithParamInterface<std::tuple<Change, const char*>> {
 protected:
  ChangingSource() : source_(dir_ / "m.safetensors") {
    tensor_ = random_tensor("w", "BF16", {kHeight, kWidth}, 1);
    views_ = views_of(tensor_);
    write_safetensors(dir_ / "other", {random_tensor("w", "BF16", {kHeight, kWidth}, 2)});
    other_version_ = read_file(dir_ / "other");
  }

  void round(const Change& change, const std::string& cache, std::uint64_t number) {
    std::filesystem::remove(source_);
    write_safetensors(source_, {tensor_});
    const Mounted mount({source_}, {"-o", "cache=" + cache});
    std::array<std::unique_ptr<CheckingReader>, kReaders> readers;
    for (std::size_t i = 0; i < kReaders; ++i) {
      readers[i] =
          std::make_unique<CheckingReader>(mount.path(), views_[i % views_.size()], i % 2 == 1,
                                           cache == "kernel", number * kReaders + i + 1);
    }
    std::atomic<bool> stop = false;
    std::vector<std::thread> threads;
    for (const auto& reader : readers) threads.emplace_back([&] { reader->run(stop); });
    const auto wait_for = [&](std::uint64_t more) {
      std::array<std::uint64_t, kReaders> before{};
      for (std::size_t i = 0; i < kReaders; ++i) before[i] = readers[i]->reads;
      EXPECT_TRUE(eventually([&] {
        for (std::size_t i = 0; i < kReaders; ++i)
          if (readers[i]->reads < before[i] + more) return false;
        return true;
      })) << "a reader hangs";
    };

    wait_for(2);
    change.act(source_, other_version_);
    wait_for(3);
    stop = true;
    for (std::thread& thread : threads) thread.join();

    for (std::size_t i = 0; i < kReaders; ++i) {
      const CheckingReader& reader = *readers[i];
      EXPECT_EQ(reader.wrong, 0u) << views_[i % views_.size()].path;
      EXPECT_EQ(reader.false_ends, 0u) << views_[i % views_.size()].path;
      EXPECT_EQ(reader.odd_errno, 0u) << views_[i % views_.size()].path;
      EXPECT_GT(reader.right, 0u);
      if (change.is_survived) {
        EXPECT_EQ(reader.failed, 0u) << views_[i % views_.size()].path;
      }
      failures_ += reader.failed;
    }
    EXPECT_EQ(names_in(mount.path()), std::vector<std::string>{"w"});
    const int fd = ::open((mount / "w").c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(fd >= 0 ? 0 : errno, change.is_survived ? 0 : ESTALE);
    if (fd >= 0) ::close(fd);
  }

  TempDir dir_;
  std::filesystem::path source_;
  Tensor tensor_;
  std::vector<View> views_;
  std::string other_version_;
  std::uint64_t failures_ = 0;  // failed reads of all rounds
};

INSTANTIATE_TEST_SUITE_P(All, ChangingSource,
                         ::testing::Combine(::testing::ValuesIn(kChanges),
                                            ::testing::Values("kernel", "direct")),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) + "_" +
                                  std::get<1>(test.param);
                         });

TEST_P(ChangingSource, GivesNoByteOfOtherVersionAndNoFalseEndOfFile) {
  const auto& [change, cache] = GetParam();

  for (std::uint64_t i = 0; i < long_or(1000, 6) && !HasFailure(); ++i) round(change, cache, i);

  if (!change.is_survived) {
    EXPECT_GT(failures_, 0u) << "nothing was read after the change";
  }
}

}  // namespace
}  // namespace stfs::test
