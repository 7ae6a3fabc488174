// Hostile GGUF files, each like a file that broke another reader, are rejected in one line, with
// little memory and in little time. Parts are rewritten while they are mounted.
#include "tests/gguf/gguf_file.h"
#include "tests/support/mounted.h"
#include "tests/support/sizes.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace stfs::test {
namespace {

std::string counts(std::uint64_t tensors, std::uint64_t keys) {
  return "GGUF" + little<std::uint32_t>(3) + little(tensors) + little(keys);
}

std::string key_of_type(ValueType type) {
  return gguf_string("k") + little(static_cast<std::uint32_t>(type));
}

std::string info(const std::vector<std::int64_t>& dims, std::uint32_t rank, std::uint32_t type) {
  std::string bytes = gguf_string("w") + little(rank);
  for (const std::int64_t dim : dims) bytes += little(dim);
  return bytes + little(type) + little<std::uint64_t>(0);
}

struct HostileGguf {
  const char* name;
  std::string header;
  const char* error;
  std::uint64_t size;  // size of the file; the header is followed by a hole
};

// The numbers come from these reports: ollama#17042, ggml#1516, llama.cpp#27188,
// huggingface.js#2028, gguf-tools#25, zackshen/gguf#15 and GHSA-96jg-mvhq-q7q7.
std::vector<HostileGguf> hostile_files() {
  const auto most = std::numeric_limits<std::uint64_t>::max();
  const std::string string = key_of_type(ValueType::kString);
  const std::string array = key_of_type(ValueType::kArray);
  const std::string u8 = little(static_cast<std::uint32_t>(ValueType::kU8));
  const std::string texts = little(static_cast<std::uint32_t>(ValueType::kString));
  const std::string alignment =
      gguf_string("general.alignment") + little(static_cast<std::uint32_t>(ValueType::kU32));
  return {
      {"StringLongerThanFile", counts(0, 1) + string + little(kGiB), "GgufTruncated", 1 << 20},
      {"StringOf2To40Bytes", counts(0, 1) + string + little(kGiB << 10), "GgufCount", 8 * kGiB},
      {"StringOf2To64Bytes", counts(0, 1) + string + little(most), "GgufCount", 1 << 20},
      {"KeyOf1GiB", counts(0, 1) + little(kGiB), "GgufKey", 8 * kGiB},
      {"ArrayOf2To63Elements", counts(0, 1) + array + u8 + little(1ULL << 63), "GgufCount",
       1 << 20},
      {"ArrayLongerThanFile", counts(0, 1) + array + u8 + little(kGiB), "GgufTruncated", 1 << 20},
      {"StringArrayLongerThanFile", counts(0, 1) + array + texts + little(kGiB), "GgufCount",
       1 << 20},
      {"ArraysInArrays",
       counts(0, 1) + array + little(static_cast<std::uint32_t>(ValueType::kArray)), "GgufValue",
       1 << 20},
      {"2To60Keys", counts(0, 1ULL << 60), "GgufCount", 8 * kGiB},
      {"2To60Tensors", counts(1ULL << 60, 0), "GgufCount", 8 * kGiB},
      {"NegativeTensorCount", counts(most, 0), "GgufCount", 1 << 20},
      {"MaximumKeyCount", counts(0, (kGiB - 24) / 14), "GgufCount", kGiB},
      {"RankOf2To31", counts(1, 0) + info({}, 1U << 31, 0), "GgufShape", 1 << 20},
      {"RankOf9", counts(1, 0) + info({1, 1, 1, 1, 1, 1, 1, 1, 1}, 9, 0), "GgufShape", 1 << 20},
      {"ProductWraps", counts(1, 0) + info({1LL << 62, 4}, 2, 0), "GgufShape", 1 << 20},
      {"ProductWrapsToSmallValue", counts(1, 0) + info({(1LL << 62) + 1, 4}, 2, 24), "GgufShape",
       1 << 20},
      {"TensorPastEndOfFile", counts(1, 0) + info({1LL << 40}, 1, 24), "GgufData", 1 << 20},
      {"AlignmentPastEndOfFile", counts(1, 1) + alignment + little(1U << 31) + info({1}, 1, 24),
       "GgufTruncated", 1 << 20},
      {"AlignmentOf0", counts(1, 1) + alignment + little(0U) + info({1}, 1, 24), "GgufAlignment",
       1 << 20},
  };
}

class GgufFaults : public MountTest {
 protected:
  GgufFaults() { std::filesystem::create_directory(dir_ / "mnt"); }
  ~GgufFaults() override { unmount_all(dir_ / "mnt"); }

  std::filesystem::path write(const std::string& name, const std::string& bytes,
                              std::uint64_t size = 0) const {
    write_file(dir_ / name, bytes);
    if (size > bytes.size()) std::filesystem::resize_file(dir_ / name, size);
    return dir_ / name;
  }
  // Mounts with at most `mebibytes` of address space in addition to the mapped file, and at most
  // `seconds` of processor time.
  Outcome mount(const std::filesystem::path& file, std::uint64_t mebibytes,
                int seconds = 60) const {
    std::string limits = "ulimit -t " + std::to_string(seconds) + "; ";
#ifndef STFS_SANITIZED  // a sanitizer needs all addresses
    const std::uint64_t room = std::filesystem::file_size(file) + (mebibytes << 20);
    limits += "ulimit -v " + std::to_string(room >> 10) + "; ";
#else
    static_cast<void>(mebibytes);
#endif
    return sh(limits + R"(exec "$@")", {STFS_BINARY, file, dir_ / "mnt"});
  }
  // Writes a split file of two parts with one tensor each, and with a long array in the first part.
  // Returns the path of the first part.
  std::filesystem::path write_parts(char fill) const {
    for (int i = 0; i < 2; ++i) {
      GgufFile part;
      part.key("split.no", ValueType::kU16, little(static_cast<std::uint16_t>(i)));
      part.key("split.count", ValueType::kU16, little<std::uint16_t>(2));
      part.key("split.tensors.count", ValueType::kI32, little<std::int32_t>(2));
      if (i == 0) {
        part.key("array", ValueType::kArray,
                 gguf_array(ValueType::kU8, 200'000, std::string(200'000, fill)));
      }
      part.tensor(i == 0 ? "a" : "b", {500'000}, 24, std::string(500'000, fill));
      write("m-0000" + std::to_string(i + 1) + "-of-00002.gguf", part.bytes());
    }
    return dir_ / "m-00001-of-00002.gguf";
  }

  TempDir dir_;
};

// Opens a file and reads its last byte. Returns 0 or an errno.
int error_of_reading(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  char byte = 0;
  const ssize_t n = ::pread(fd, &byte, 1, ::lseek(fd, 0, SEEK_END) - 1);
  const int error = n < 0 ? errno : n == 0 ? -1 : 0;
  ::close(fd);
  return error;
}

TEST_F(GgufFaults, HostileFilesAreRejectedInOneLineWithBoundedMemory) {
  for (const HostileGguf& hostile : hostile_files()) {
    SCOPED_TRACE(hostile.name);
    const Outcome result = mount(write("m.gguf", hostile.header, hostile.size), 256);

    EXPECT_EQ(result.status, 1) << result.err;
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
    EXPECT_NE(result.err.find(hostile.error), std::string::npos) << result.err;
    EXPECT_LT(result.err.size(), 1000U);
    EXPECT_TRUE(mounts_at(dir_ / "mnt").empty());
  }
}

TEST_F(GgufFaults, LongValuesTakeNoMemory) {
  GgufFile file;
  std::string header = counts(0, 3);
  header += gguf_string("a") + little(static_cast<std::uint32_t>(ValueType::kArray)) +
            little(static_cast<std::uint32_t>(ValueType::kU8)) + little(kGiB / 16);
  const std::uint64_t array_end = header.size() + kGiB / 16;
  write("m.gguf", header, array_end + kGiB + 200);
  const auto put = [&](std::uint64_t at, const std::string& bytes) {
    std::fstream out(dir_ / "m.gguf", std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(static_cast<std::streamoff>(at));
    out << bytes;
  };
  const std::string string =
      gguf_string("s") + little(static_cast<std::uint32_t>(ValueType::kString)) + little(kGiB);
  put(array_end, string);
  put(array_end + string.size() + kGiB, gguf_string("z") +
                                            little(static_cast<std::uint32_t>(ValueType::kString)) +
                                            gguf_string("end"));

  const Outcome result = mount(dir_ / "m.gguf", 512);

  ASSERT_EQ(result.status, 0) << result.err;
  const std::filesystem::path metadata = dir_ / "mnt/.stfs/metadata";
  EXPECT_EQ(read_file(metadata / "z"), "end");
  EXPECT_EQ(std::filesystem::file_size(metadata / "s"), kGiB);
  EXPECT_EQ(std::filesystem::file_size(metadata / "a"), kGiB / 8 + 1);
  EXPECT_EQ(error_of_reading(metadata / "s"), 0);
  EXPECT_EQ(error_of_reading(metadata / "a"), 0);
}

TEST_F(GgufFaults, LargeHeaderTakesLinearTime) {
  // A reader that compares every name with every other would need 10^11 comparisons.
  constexpr std::uint64_t kMany = 300'000;
  std::string header = counts(kMany, kMany);
  for (std::uint64_t i = 0; i < kMany; ++i) {
    header += gguf_string("key" + std::to_string(i)) +
              little(static_cast<std::uint32_t>(ValueType::kBool)) + '\1';
  }
  for (std::uint64_t i = 0; i < kMany; ++i) {
    header += gguf_string(std::to_string(i)) + little(1U) + little<std::int64_t>(0) + little(24U) +
              little<std::uint64_t>(0);
  }
  header.resize((header.size() + 31) / 32 * 32);

  const Outcome result = mount(write("m.gguf", header), 2048, 120);

  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(read_file(dir_ / "mnt/.stfs/metadata/key299999"), "true");
}

TEST_F(GgufFaults, OnlyRewrittenPartIsStale) {
  const Mounted mount({write_parts('x')});
  ASSERT_EQ(error_of_reading(mount / "a"), 0);
  const std::string second = read_file(dir_ / "m-00002-of-00002.gguf");

  write_file(dir_ / "m-00002-of-00002.gguf", second + "!");

  EXPECT_EQ(error_of_reading(mount / "b"), ESTALE);
  EXPECT_EQ(error_of_reading(mount / "a"), 0);
  EXPECT_EQ(error_of_reading(mount / ".stfs/metadata/array"), 0);
}

TEST_F(GgufFaults, OnlyArraysOfRewrittenFileAreStale) {
  GgufFile file;
  file.key("array", ValueType::kArray,
           gguf_array(ValueType::kU8, 100'000, std::string(100'000, 1)));
  file.key("other", ValueType::kArray, gguf_array(ValueType::kU8, 2, "ab"));
  file.key("name", "kept");
  const Mounted mount({write("m.gguf", file.bytes())});
  ASSERT_EQ(error_of_reading(mount / ".stfs/metadata/array"), 0);

  write_file(dir_ / "m.gguf", file.bytes() + "!");

  EXPECT_EQ(error_of_reading(mount / ".stfs/metadata/array"), ESTALE);
  EXPECT_EQ(error_of_reading(mount / ".stfs/metadata/other"),
            ESTALE);  // first read after the change
  EXPECT_EQ(read_file(mount / ".stfs/metadata/name"), "kept");
}

TEST_F(GgufFaults, NextWorkerServesSplitFile) {
  ForegroundMount mount({write_parts('x')}, {"-o", "supervise"});
  const std::string array = read_file(mount / ".stfs/metadata/array");
  std::filesystem::rename(dir_ / "m-00002-of-00002.gguf", dir_ / "moved");

  pid_t worker = -1;
  ASSERT_TRUE(eventually([&] {
    for (const pid_t pid : processes_with(mount.path())) {
      if (pid != mount.process().pid()) worker = pid;
    }
    return worker > 0;
  }));
  ::kill(worker, SIGKILL);

  EXPECT_EQ(read_file(mount / "b"), std::string(500'000, 'x'));
  EXPECT_EQ(read_file(mount / ".stfs/metadata/array"), array);
}

}  // namespace
}  // namespace stfs::test
