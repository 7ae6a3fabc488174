// With few descriptors, many shards, mounts or readers, or little memory, stfs works, or reports
// the limit in one line when it mounts.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/daemon_figures.h"
#include "tests/support/long_tests.h"
#include "tests/support/memory_group.h"
#include "tests/support/mounted.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

class Limits : public MountTest {
 protected:
  ~Limits() override { unmount_all(dir_ / "mnt"); }

  std::filesystem::path new_directory(const char* name) const {
    std::filesystem::create_directory(dir_ / name);
    return dir_ / name;
  }

  TempDir dir_;
};

TEST_F(Limits, TooFewDescriptorsForShardsFailTheMount) {
#ifdef STFS_SANITIZED
  GTEST_SKIP() << "the sanitizer needs descriptors to check the type of an exception";
#endif
  const int shards = static_cast<int>(long_or(5000, 500));
  const std::filesystem::path model = new_directory("model");
  std::map<std::string, std::string> map;
  for (int i = 0; i < shards; ++i) {
    const std::string name = "t" + std::to_string(i);
    map[name] = name + ".safetensors";
    write_safetensors(model / map[name], {random_tensor(name, "U8", {1})});
  }
  write_index(model / "model.safetensors.index.json", map);
  const std::string mountpoint = new_directory("mnt");

  // Sets the hard limit too, so that stfs cannot raise it.
  const Outcome refused = sh(R"(ulimit -n 64; exec "$@")", {STFS_BINARY, model, mountpoint});
  const std::size_t left = mounts_at(mountpoint).size();
  const Outcome mounted = sh(R"(ulimit -S -n 64; exec "$@")", {STFS_BINARY, model, mountpoint});

  EXPECT_EQ(refused.status, 3) << refused.err;
  EXPECT_EQ(std::count(refused.err.begin(), refused.err.end(), '\n'), 1) << refused.err;
  EXPECT_NE(refused.err.find("Too many open files"), std::string::npos) << refused.err;
  EXPECT_EQ(left, 0u);
  EXPECT_EQ(mounted.status, 0) << mounted.err;
  EXPECT_EQ(names_in(mountpoint).size(), static_cast<std::size_t>(shards));
}

TEST_F(Limits, ManyMountsOfOneCheckpointWork) {
  const std::size_t count = long_or(1000, 40);
  write_safetensors(dir_ / "m.safetensors", {random_tensor("w", "U8", {100})});
  const std::string bytes = random_tensor("w", "U8", {100}).bytes;
  std::vector<std::unique_ptr<Mounted>> mounts;

  for (std::size_t i = 0; i < count; ++i) {
    mounts.push_back(std::make_unique<Mounted>(std::vector<std::string>{dir_ / "m.safetensors"}));
  }

  for (const auto& mount : mounts) EXPECT_EQ(read_file(*mount / "w"), bytes);
  if (long_tests()) {
    std::printf("resident memory of one of %zu daemons: %.1f MB\n", count,
                static_cast<double>(DaemonFigures(mounts[0]->daemon()).resident) / 1e6);
  }
}

TEST_F(Limits, OpenFilesCostDaemonNoDescriptors) {
  const rlim_t files = 10'000;
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit before = limit;
  limit.rlim_cur = std::min(limit.rlim_max, files + 100);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < files + 100) GTEST_SKIP() << "at most " << limit.rlim_max << " descriptors";
  write_safetensors(dir_ / "m.safetensors", {random_tensor("w", "U8", {100})});
  const Mounted mount({dir_ / "m.safetensors"});
  const DaemonFigures empty(mount.daemon());
  std::vector<int> open;

  for (rlim_t i = 0; i < files; ++i) {
    open.push_back(
        ::open((mount / (i % 2 == 0 ? "w" : ".stfs/slice/w/1:")).c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_GE(open.back(), 0) << i;
  }

  const DaemonFigures full(mount.daemon());
  EXPECT_LE(full.descriptors, empty.descriptors + 4);
  EXPECT_EQ(read_file(mount / "w").size(), 100u);
  for (const int fd : open) ::close(fd);
  ::setrlimit(RLIMIT_NOFILE, &before);
}

TEST_F(Limits, LookedUpGlobsCostDaemonLittleMemory) {
  std::vector<Tensor> tensors;
  for (int i = 0; i < 100'000; ++i) tensors.push_back({"t" + std::to_string(i), "U8", {1}, "x"});
  write_safetensors(dir_ / "m.safetensors", tensors);
  const Mounted mount({dir_ / "m.safetensors"});
  // Each glob matches all tensors.
  const auto size_of = [&](int i) {
    return std::filesystem::file_size(mount /
                                      (".stfs/subset/[t" + std::to_string(i) + "]*.safetensors"));
  };
  const std::uint64_t size = size_of(0);
  const DaemonFigures before(mount.daemon());

#ifdef STFS_SANITIZED  // a sanitizer keeps freed memory
  ASSERT_EQ(size_of(1), size);
#else
  for (int i = 1; i <= 40; ++i) ASSERT_EQ(size_of(i), size);

  EXPECT_LT(DaemonFigures(mount.daemon()).resident, before.resident + (8 << 20));
#endif
}

TEST_F(Limits, TooLongAttributesCostDaemonNoMemory) {
  Tensor tensor = random_tensor(std::string(16 << 20, 'n'), "U8", {1});
  write_safetensors(dir_ / "m.safetensors", {tensor});
  const Mounted mount({dir_ / "m.safetensors"});
  const std::string path = mount / names_in(mount.path()).at(0);
  const auto peak = [&] {
    const std::string status = read_file("/proc/" + std::to_string(mount.daemon()) + "/status");
    return std::stoul(status.substr(status.find("VmHWM:") + 6));  // kB
  };
  [[maybe_unused]] const auto before = peak();

  std::vector<std::thread> readers;
  for (int i = 0; i < 16; ++i) {
    readers.emplace_back([&] {
      for (int k = 0; k < 20; ++k) {
        EXPECT_EQ(::getxattr(path.c_str(), "user.stfs.name", nullptr, 0), -1);
        EXPECT_EQ(errno, E2BIG);
      }
    });
  }
  for (std::thread& reader : readers) reader.join();

#ifndef STFS_SANITIZED  // a sanitizer keeps freed memory
  EXPECT_LT(peak(), before + (8 << 10));
#endif
}

TEST_F(Limits, ThreeHundredConcurrentReadersGetRightBytes) {
  const Tensor tensor = random_tensor("w", "BF16", {512, 1024});
  write_safetensors(dir_ / "m.safetensors", {tensor});
  for (const char* cache : {"page_cache=kernel", "page_cache=direct"}) {
    const Mounted mount({dir_ / "m.safetensors"}, {"-o", cache});
    std::atomic<int> right = 0;
    std::vector<std::thread> readers;
    for (int i = 0; i < 300; ++i) {
      readers.emplace_back([&] { right += read_file(mount / "w") == tensor.bytes ? 1 : 0; });
    }
    for (std::thread& reader : readers) reader.join();
    EXPECT_EQ(right, 300) << cache;
  }
}

TEST_F(Limits, Memory64MiBSufficesFor2GiBCheckpoint) {
#ifdef STFS_SANITIZED
  GTEST_SKIP() << "a sanitizer needs more";
#endif
  const MemoryGroup group(dir_.path().filename(), 64 << 20);
  if (!group.missing().empty()) GTEST_SKIP() << group.missing();
  // A hole of 2 GiB with a few bytes at its end.
  const std::uint64_t size = 2ULL << 30;
  HeaderBuilder header;
  header.add("hole", "U8", {size - 4096}, size - 4096);
  header.add("end", "U8", {4096}, 4096);
  const Tensor end = random_tensor("end", "U8", {4096});
  const std::string begin = safetensors_bytes(header.finish(), "");
  write_file(dir_ / "m.safetensors", begin);
  std::filesystem::resize_file(dir_ / "m.safetensors", begin.size() + size - 4096);
  {
    const int fd = ::open((dir_ / "m.safetensors").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
    ASSERT_EQ(::write(fd, end.bytes.data(), 4096), 4096);
    ::close(fd);
  }

  const Outcome mounted =
      sh(R"(echo $$ >"$1" && exec "$2" "$3" "$4")",
         {group.processes(), STFS_BINARY, dir_ / "m.safetensors", new_directory("mnt")});
  ASSERT_EQ(mounted.status, 0) << mounted.err;
  std::vector<std::thread> readers;
  std::atomic<int> right = 0;
  for (int i = 0; i < 8; ++i) {
    readers.emplace_back([&, i] {
      const std::string path = dir_ / (i % 2 == 0 ? "mnt/hole" : "mnt/.stfs/merged.safetensors");
      const Outcome read = run({"dd", "if=" + path, "of=/dev/null", "bs=1M", "status=none",
                                "count=" + std::to_string(long_or(2048, 256))});
      right += read.status == 0 ? 1 : 0;
    });
  }
  for (std::thread& reader : readers) reader.join();

  EXPECT_EQ(right, 8);
  EXPECT_EQ(read_file(dir_ / "mnt/end"), end.bytes);
  const std::vector<pid_t> daemon = processes_with(dir_ / "mnt");
  ASSERT_EQ(daemon.size(), 1u) << "the daemon was killed";
  if (long_tests()) {
    std::printf("most resident memory in 64 MiB: %.1f MB\n",
                static_cast<double>(DaemonFigures(daemon[0]).most_resident) / 1e6);
  }
  EXPECT_EQ(run({STFS_BINARY, "-u", dir_ / "mnt"}).status, 0);
  EXPECT_TRUE(eventually([&] { return processes_with(dir_ / "mnt").empty(); }));
}

}  // namespace
}  // namespace stfs::test
