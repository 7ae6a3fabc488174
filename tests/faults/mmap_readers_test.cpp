// 256 readers of mappings while the kernel drops their pages. No reader hangs, and every byte is
// compared.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/long_tests.h"
#include "tests/support/mounted.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

class MmapReaders : public MountTest {};

TEST_F(MmapReaders, SeeRightBytesWhilePagesAreDropped) {
  constexpr std::size_t kBytes = 8 << 20;
  constexpr int kMany = 256;
  const TempDir dir;
  const Tensor tensor = random_tensor("w", "U8", {kBytes}, 1);
  write_safetensors(dir / "m.safetensors", {tensor});
  const Mounted mount({dir / "m.safetensors"});
  const std::string path = mount / "w";
  std::atomic<int> finished = 0;
  std::atomic<int> right = 0;
  std::vector<std::thread> readers;
  const std::uint64_t passes = long_or(20, 1);

  for (int i = 0; i < kMany; ++i) {
    readers.emplace_back([&, i] {
      const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
      void* map = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd, 0);
      bool same = map != MAP_FAILED;
      for (std::uint64_t pass = 0; same && pass < passes; ++pass) {
        // Each reader begins at another offset, so that pages are faulted in many orders.
        const std::size_t from = static_cast<std::size_t>(i) * (kBytes / kMany);
        const char* bytes = static_cast<const char*>(map);
        same = std::memcmp(bytes + from, tensor.bytes.data() + from, kBytes - from) == 0 &&
               std::memcmp(bytes, tensor.bytes.data(), from) == 0;
        ::madvise(map, kBytes, MADV_DONTNEED);
      }
      if (map != MAP_FAILED) ::munmap(map, kBytes);
      ::close(fd);
      right += same ? 1 : 0;
      ++finished;
    });
  }
  // Drops the pages of the mount and of the source, and in a long run the pages of the whole
  // system.
  const int in_mount = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const int in_source = ::open((dir / "m.safetensors").c_str(), O_RDONLY | O_CLOEXEC);
  const int system = long_tests() ? ::open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC) : -1;
  const bool all_end = eventually([&] {
    ::posix_fadvise(in_mount, 0, 0, POSIX_FADV_DONTNEED);
    ::posix_fadvise(in_source, 0, 0, POSIX_FADV_DONTNEED);
    if (system >= 0 && ::write(system, "3", 1) != 1) ADD_FAILURE() << "drop_caches";
    return finished == kMany;
  });

  EXPECT_TRUE(all_end) << kMany - finished << " readers hang";
  for (std::thread& reader : readers) reader.join();
  for (const int fd : {in_mount, in_source, system})
    if (fd >= 0) ::close(fd);
  EXPECT_EQ(right, kMany);
}

}  // namespace
}  // namespace stfs::test
