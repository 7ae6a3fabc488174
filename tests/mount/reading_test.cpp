// Reads in every way that the kernel offers.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/mounted.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

constexpr std::size_t kPage = 4096;

// A descriptor that is closed at the end of the scope.
class Fd {
 public:
  explicit Fd(const std::filesystem::path& path, int flags = O_RDONLY)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0600)) {}
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  operator int() const { return fd_; }  // NOLINT: an argument of system calls

 private:
  int fd_;
};

std::string pread_all(int fd, std::size_t length, off64_t offset) {
  std::string out(length, '\0');
  const ssize_t got = ::pread64(fd, out.data(), length, offset);
  EXPECT_GE(got, 0) << std::strerror(errno);
  out.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return out;
}

// The parameter is a value of the option cache. Every rule holds for each value, and the tests
// share one mount per value.
class Reading : public MountTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    MountTest::SetUp();
    if (IsSkipped() || shared_.contains(GetParam())) return;
    if (shared_.empty()) write_safetensors(dir() / "m.safetensors", tensors());
    shared_[GetParam()] = std::make_unique<const Mounted>(
        std::vector<std::string>{dir() / "m.safetensors"}, options());
  }
  static void TearDownTestSuite() { shared_.clear(); }

  static std::vector<std::string> options() { return {"-o", std::string("cache=") + GetParam()}; }
  static const Mounted& shared() { return *shared_.at(GetParam()); }
  static const std::vector<Tensor>& tensors() {
    static const std::vector<Tensor> tensors{
        random_tensor("odd", "U8", {3'000'017}, 1), random_tensor("small", "BF16", {5}, 2),
        random_tensor("empty", "F32", {0}, 3), random_tensor("next", "U8", {10'000}, 4)};
    return tensors;
  }
  static const std::string& odd() { return tensors()[0].bytes; }
  static bool direct() { return std::string_view(GetParam()) == "direct"; }

  TempDir dir_;  // used by one test

 private:
  static const TempDir& dir() {
    static const TempDir dir;
    return dir;
  }
  static inline std::map<std::string, std::unique_ptr<const Mounted>> shared_;
};

INSTANTIATE_TEST_SUITE_P(Cache, Reading, ::testing::Values("kernel", "direct"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(Reading, PreadPastEndReadsNothing) {
  const Mounted& mount = shared();
  const Fd file(mount / "odd");
  const auto size = static_cast<off64_t>(odd().size());

  EXPECT_EQ(pread_all(file, 100, size - 3), odd().substr(odd().size() - 3));
  EXPECT_EQ(pread_all(file, 10, size), "");
  EXPECT_EQ(pread_all(file, 10, size + 1), "");
  EXPECT_EQ(pread_all(file, 1 << 20, size + (1 << 20)), "");
  EXPECT_EQ(pread_all(file, 10, std::numeric_limits<off64_t>::max() - 20), "");
  EXPECT_EQ(pread_all(Fd(mount / "empty"), 10, 0), "");
}

TEST_P(Reading, ReadsOfAllSizesAndOffsetsEqualSource) {
  const Mounted& mount = shared();
  const Fd file(mount / "odd");
  RandomBytes random(7);

  for (int i = 0; i < 400; ++i) {
    const std::size_t offset = random.next() % odd().size();
    const std::size_t length = random.next() % (std::size_t{1} << (random.next() % 22)) + 1;
    const std::string got = pread_all(file, length, static_cast<off64_t>(offset));
    ASSERT_TRUE(got == odd().substr(offset, length)) << offset << " " << length;
  }
}

TEST_P(Reading, LseekFindsEndAndNoHoles) {
  const Mounted& mount = shared();
  const Fd file(mount / "odd");
  const auto size = static_cast<off64_t>(odd().size());

  EXPECT_EQ(::lseek64(file, 0, SEEK_END), size);
  EXPECT_EQ(::lseek64(file, -5, SEEK_END), size - 5);
  EXPECT_EQ(::lseek64(file, 0, SEEK_DATA), 0);
  EXPECT_EQ(::lseek64(file, 12345, SEEK_DATA), 12345);
  EXPECT_EQ(::lseek64(file, 0, SEEK_HOLE), size);
  EXPECT_EQ(::lseek64(file, 12345, SEEK_HOLE), size);
  EXPECT_EQ(::lseek64(file, size, SEEK_DATA), -1);
  EXPECT_EQ(errno, ENXIO);
  EXPECT_EQ(::lseek64(file, size + 10, SEEK_HOLE), -1);
  EXPECT_EQ(errno, ENXIO);
}

TEST_P(Reading, PrivateMappingHasBytesThenZeros) {
  const Mounted& mount = shared();
  const Fd file(mount / "odd");
  const std::size_t length = (odd().size() + kPage - 1) / kPage * kPage;

  char* mapping = static_cast<char*>(::mmap(nullptr, length, PROT_READ, MAP_PRIVATE, file, 0));

  ASSERT_NE(mapping, MAP_FAILED) << std::strerror(errno);
  EXPECT_TRUE(std::memcmp(mapping, odd().data(), odd().size()) == 0);
  EXPECT_TRUE(std::all_of(mapping + odd().size(), mapping + length, [](char c) { return c == 0; }));
  ::munmap(mapping, length);
}

TEST_P(Reading, SharedMappingIsReadOnly) {
  const Mounted& mount = shared();
  const Fd file(mount / "next");

  char* mapping = static_cast<char*>(::mmap(nullptr, kPage, PROT_READ, MAP_SHARED, file, 0));
  const int error = errno;
  void* writable = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int writable_error = errno;

  EXPECT_EQ(writable, MAP_FAILED);
  EXPECT_TRUE(writable_error == EACCES || direct()) << writable_error;
  if (direct() && mapping == MAP_FAILED) {
    // Kernels before 6.6 refuse shared mappings of files under direct I/O.
    EXPECT_EQ(error, ENODEV);
    return;
  }
  ASSERT_NE(mapping, MAP_FAILED) << std::strerror(error);
  EXPECT_TRUE(std::memcmp(mapping, tensors()[3].bytes.data(), kPage) == 0);
  ::munmap(mapping, kPage);
}

TEST_P(Reading, SendfileAndCopyFileRangeEqualSource) {
  const Mounted& mount = shared();
  const Fd file(mount / "odd");
  const Fd sent(dir_ / "sent", O_RDWR | O_CREAT);
  const Fd copied(dir_ / "copied", O_RDWR | O_CREAT);

  off64_t at = 0;
  while (::sendfile64(sent, file, &at, 1 << 20) > 0) {
  }
  off64_t from = 0;
  ssize_t got = 0;
  while ((got = ::copy_file_range(file, &from, copied, nullptr, 1 << 20, 0)) > 0) {
  }

  EXPECT_TRUE(pread_all(sent, odd().size() + 1, 0) == odd());
  if (got < 0) {
    EXPECT_EQ(errno, EXDEV);  // between file systems the kernel decides
  } else {
    EXPECT_TRUE(pread_all(copied, odd().size() + 1, 0) == odd());
  }
}

TEST_P(Reading, DirectIoReadsToUnalignedEnd) {
  const Mounted& mount = shared();
  const Fd file(mount / "odd", O_RDONLY | O_DIRECT);
  ASSERT_GE(file, 0) << std::strerror(errno);
  const std::size_t length = 4 << 20;
  const std::unique_ptr<char, void (*)(void*)> buffer(
      static_cast<char*>(std::aligned_alloc(kPage, length)), std::free);

  std::size_t got = 0;
  for (ssize_t n;
       (n = ::pread64(file, buffer.get() + got, length - got, static_cast<off64_t>(got))) > 0;)
    got += static_cast<std::size_t>(n);

  ASSERT_EQ(got, odd().size());
  EXPECT_TRUE(std::memcmp(buffer.get(), odd().data(), got) == 0);
}

TEST_P(Reading, DirectIoAtUnalignedOffsetEqualsSource) {
  const Mounted& mount = shared();
  const Fd file(mount / "odd", O_RDONLY | O_DIRECT);

  EXPECT_TRUE(pread_all(file, 777, 12'345) == odd().substr(12'345, 777));
}

TEST_P(Reading, SixtyFourConcurrentReadersEqualSource) {
  std::vector<Tensor> tensors;
  for (std::uint64_t i = 0; i < 16; ++i) {
    tensors.push_back(random_tensor("layer." + std::to_string(i), "U8", {1'000'003 + i}, i));
  }
  write_safetensors(dir_ / "many.safetensors", tensors);
  const Mounted mount({dir_ / "many.safetensors"}, options());
  std::atomic<int> wrong = 0;

  std::vector<std::thread> readers;
  for (std::uint64_t seed = 0; seed < 64; ++seed) {
    readers.emplace_back([&, seed] {
      RandomBytes random(seed);
      std::string buffer(1 << 18, '\0');
      for (int i = 0; i < 100; ++i) {
        const Tensor& tensor = tensors[random.next() % tensors.size()];
        const std::size_t offset = random.next() % tensor.bytes.size();
        const std::size_t length =
            std::min<std::size_t>(random.next() % buffer.size() + 1, tensor.bytes.size() - offset);
        const Fd file(mount / tensor.name);
        const ssize_t got = ::pread64(file, buffer.data(), length, static_cast<off64_t>(offset));
        if (got != static_cast<ssize_t>(length) ||
            std::memcmp(buffer.data(), tensor.bytes.data() + offset, length) != 0)
          ++wrong;
      }
    });
  }
  for (std::thread& reader : readers) reader.join();

  EXPECT_EQ(wrong, 0);
}

class Opening : public MountTest {};

TEST_F(Opening, AbsentFileIsENOENTAndReadOfDirectoryIsEISDIR) {
  const TempDir dir;
  write_safetensors(dir / "m.safetensors", {random_tensor("d/w", "U8", {3})});
  const Mounted mount({dir / "m.safetensors"});

  EXPECT_EQ(Fd(mount / "absent"), -1);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(Fd(mount / "absent"), -1);  // answered by the negative dentry of the kernel
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(Fd(mount / "d/w/x"), -1);
  EXPECT_EQ(errno, ENOTDIR);
  EXPECT_EQ(Fd(mount / std::string(256, 'x')), -1);
  EXPECT_TRUE(errno == ENAMETOOLONG || errno == ENOENT) << errno;
  EXPECT_EQ(Fd(mount / "d/w", O_RDONLY | O_DIRECTORY), -1);
  EXPECT_EQ(errno, ENOTDIR);
  const Fd directory(mount / "d");
  char byte;
  EXPECT_EQ(::read(directory, &byte, 1), -1);
  EXPECT_EQ(errno, EISDIR);
}

TEST_F(Opening, SetsReadAheadOfKernelIfPermitted) {
  const TempDir dir;
  write_safetensors(dir / "m.safetensors", {random_tensor("w", "U8", {10}, 1)});
  const Mounted mount({dir / "m.safetensors"});
  struct stat status {};
  ASSERT_EQ(::stat(mount.path().c_str(), &status), 0);
  const std::string setting = "/sys/class/bdi/" + std::to_string(major(status.st_dev)) + ":" +
                              std::to_string(minor(status.st_dev)) + "/read_ahead_kb";
  if (::access(setting.c_str(), W_OK) != 0) GTEST_SKIP() << setting << " cannot be written";

  EXPECT_GE(std::stoul(read_file(setting)), 2048U);
}

TEST_F(Opening, ModelOfRealShapesReadsBack) {
  const TempDir dir;
  ASSERT_EQ(run({STFS_MAKE_CHECKPOINT, dir / "m", "--preset", "7b", "--scale", "0.03125"}).status,
            0);
  const Mounted mount({dir / "m"});

  const Outcome compare = sh(R"sh(
    tail -n +2 "$1/.stfs/tensors.tsv" | while IFS=$'\t' read -r path _ _ _ bytes source offset; do
      [ "$(stat -c %s "$1/$path")" = "$bytes" ] || echo "$path has another size"
      cmp -n "$bytes" -i "$offset:0" "$source" "$1/$path" || true
    done 2>&1; ls "$1" | wc -l)sh",
                             {mount.path()});

  EXPECT_EQ(compare.out, "291\n");
}

}  // namespace
}  // namespace stfs::test
