// Mounts with a damaged, full, shared or unusable cache, or with processes that die.
#include "tests/remote/remote_support.h"
#include "tests/remote/scripted_mount.h"
#include "tests/support/daemon_figures.h"
#include "tests/support/failing_calls.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

class FailingCache : public ScriptedMount {
 protected:
  // Returns the path of "data", "map" or "id.json" in the only entry.
  std::filesystem::path in_entry(const std::string& name) const {
    for (const auto& entry : std::filesystem::directory_iterator(cache() / "v1/entries")) {
      return entry.path() / name;
    }
    throw std::runtime_error("no entry");
  }
  // Changes `length` bytes of a file at `offset`.
  static void flip(const std::filesystem::path& path, std::uint64_t offset, std::size_t length) {
    std::string bytes = read_file(path).substr(offset, length);
    for (char& byte : bytes) byte = static_cast<char>(byte ^ 0x55);
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
        .seekp(static_cast<std::streamoff>(offset))
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  void fill_cache() {
    const Mounted mount({url()}, options());
    for (const char* name : {"v", "w", "x"}) EXPECT_EQ(read_file(mount / name), bytes_of(name));
  }
  void expect_right(const std::filesystem::path& mount) const {
    for (const Tensor& tensor : tensors_) {
      EXPECT_TRUE(read_file(mount / tensor.name) == tensor.bytes) << tensor.name;
    }
  }
  static pid_t worker_of(ForegroundMount& mount) {
    pid_t worker = -1;
    EXPECT_TRUE(eventually([&] {
      for (const pid_t pid : processes_with(mount.path().string())) {
        if (pid != mount.process().pid()) worker = pid;
      }
      return worker > 0;
    }));
    return worker;
  }
};

TEST_F(FailingCache, DamagedCacheIsFetchedAgain) {
  const std::vector<std::pair<const char*, std::function<void()>>> damages{
      {"data cut", [&] { std::filesystem::resize_file(in_entry("data"), 1 << 20); }},
      {"data empty", [&] { std::filesystem::resize_file(in_entry("data"), 0); }},
      {"data flipped", [&] { flip(in_entry("data"), 3 << 20, 1); }},
      {"data longer", [&] { std::filesystem::resize_file(in_entry("data"), 100 << 20); }},
      {"map cut", [&] { std::filesystem::resize_file(in_entry("map"), 70); }},
      {"map flipped", [&] { flip(in_entry("map"), 64 + 8 * 5, 8); }},
      {"another format", [&] { flip(in_entry("map"), 8, 4); }},
      {"no map", [&] { std::filesystem::remove(in_entry("map")); }},
      {"another id", [&] { flip(in_entry("id.json"), 0, 20); }},
      {"a directory",
       [&] {
         std::filesystem::remove(in_entry("data"));
         std::filesystem::create_directory(in_entry("data"));
       }},
      {"a link",
       [&] {
         std::filesystem::remove(in_entry("data"));
         std::filesystem::create_symlink(local(), in_entry("data"));
       }},
  };
  const std::string before = read_file(local());
  for (const auto& [name, damage] : damages) {
    SCOPED_TRACE(name);
    std::filesystem::remove_all(cache());
    fill_cache();
    damage();
    const Mounted mount({url()}, options());
    expect_right(mount.path());
  }
  EXPECT_EQ(read_file(local()), before);
}

TEST_F(FailingCache, CacheTruncatedDuringMountGivesNoWrongByte) {
  fill_cache();
  const Mounted mount({url()}, options());
  EXPECT_EQ(read_file(mount / "v"), bytes_of("v"));

  std::filesystem::resize_file(in_entry("data"), 4096);

  for (int round = 0; round < 2; ++round) {
    for (const char* name : {"v", "w", "x"}) {
      std::string bytes;
      const int error = read_part(mount / name, 1 << 20, 64 << 10, &bytes, O_DIRECT);
      EXPECT_TRUE(error == EIO || bytes == bytes_of(name).substr(1 << 20, 64 << 10)) << error;
    }
  }
  EXPECT_EQ(names_in(mount.path()).size(), 4U);
}

// After a truncation inside a page, the kernel fills the rest of the page with zeros and keeps it
// in memory.
TEST_F(FailingCache, CacheTruncatedInsidePageGivesNoZeros) {
  for (const char* const more : {"", "page_cache=direct", "supervise"}) {
    SCOPED_TRACE(more);
    std::filesystem::remove_all(cache());
    fill_cache();
    const Mounted mount({url()}, options(more));
    // This mount has now verified the blocks, and the kernel has the cached file in memory. No page
    // of the mount's own files is in memory, because the reads are direct.
    std::string bytes;
    for (const Tensor& tensor : tensors_) {
      ASSERT_EQ(read_part(mount / tensor.name, 0, tensor.bytes.size(), &bytes, O_DIRECT), 0);
      ASSERT_TRUE(bytes == tensor.bytes);
    }
    read_file(in_entry("data"));

    const std::uint64_t in_v = offset_of("v") + (1 << 20) + 100;
    std::filesystem::resize_file(in_entry("data"), in_v);
    ASSERT_EQ(read_part(mount / "v", (1 << 20) + 100, 64, &bytes, O_DIRECT), 0);
    EXPECT_TRUE(bytes == bytes_of("v").substr((1 << 20) + 100, 64));

    std::filesystem::resize_file(in_entry("data"), offset_of("small") + 3);
    ASSERT_EQ(read_part(mount / "small", 0, 16, &bytes, O_DIRECT), 0);
    EXPECT_EQ(bytes, bytes_of("small")) << "read(2)";
    EXPECT_EQ(read_file(mount / "small"), bytes_of("small")) << "read(2) through a page";
    const int fd = ::open((mount / "small").c_str(), O_RDONLY | O_CLOEXEC);
    void* const mapped = ::mmap(nullptr, 16, PROT_READ, MAP_PRIVATE, fd, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    EXPECT_EQ(std::string(static_cast<const char*>(mapped), 16), bytes_of("small")) << "mmap(2)";
    ::munmap(mapped, 16);
    const int out = ::open((dir_ / "sent").c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT_EQ(::sendfile(out, fd, nullptr, 16), 16);
    EXPECT_EQ(read_file(dir_ / "sent"), bytes_of("small")) << "sendfile(2)";
    ::close(out);
    ::close(fd);
    expect_right(mount.path());
  }
}

// The header is valid, but the claimed size does not match it.
TEST_F(FailingCache, RejectedMountWithFalseSizeLeavesNoEntry) {
  set_change([](WebAnswer& answer) {
    for (const char* const name : {"Content-Range", "content-range"}) {
      std::erase_if(answer.headers, [&](const auto& header) { return header.first == name; });
    }
    answer.headers.emplace_back("Content-Range", "bytes 0-262143/15000000000000");
  });
  std::filesystem::create_directories(dir_ / "mnt");
  for (const char* const more : {"", "supervise"}) {
    std::vector<std::string> argv = options(more);
    argv.insert(argv.begin(), STFS_BINARY);
    argv.push_back(url());
    argv.push_back((dir_ / "mnt").string());
    const Outcome refused = run(argv);
    EXPECT_EQ(refused.status, 1) << refused.err;
    const Outcome info =
        run({STFS_INFO_BINARY, "list", url()}, {.environment = {"STFS_CACHE=" + cache().string()}});
    EXPECT_EQ(info.status, 1) << info.err;
    EXPECT_EQ(names_in(cache() / "v1/entries"), std::vector<std::string>{});
    EXPECT_EQ(names_in(cache() / "v1/trash"), std::vector<std::string>{});
    // Under a supervisor, the child process that loads has written the name.
    if (*more == '\0') {
      EXPECT_EQ(names_in(cache() / "v1/names"), std::vector<std::string>{});
    }
  }
}

TEST_F(FailingCache, MountFailingAfterLoadingLeavesNoNewEntry) {
  std::filesystem::create_directories(dir_ / "mnt");
  const auto mount = [&](const std::string& more) {
    std::vector<std::string> argv = options(more);
    argv.insert(argv.begin(), STFS_BINARY);
    argv.push_back(url());
    argv.push_back((dir_ / "mnt").string());
    return run(argv);
  };
  const Outcome failed = mount("blkdev");  // the kernel refuses it
  EXPECT_EQ(failed.status, 4) << failed.err;
  EXPECT_EQ(names_in(cache() / "v1/entries"), std::vector<std::string>{});
  EXPECT_EQ(names_in(cache() / "v1/names"), std::vector<std::string>{});

  // The entry of another mount stays.
  const Mounted working({url()}, options());
  EXPECT_EQ(mount("blkdev").status, 4);
  EXPECT_EQ(names_in(cache() / "v1/entries").size(), 1U);
  EXPECT_EQ(names_in(cache() / "v1/names").size(), 1U);
  expect_right(working.path());
}

TEST_F(FailingCache, CacheOfOtherUserIsNotUsed) {
  std::filesystem::create_directories(cache());
  if (::chown(cache().c_str(), 12345, 12345) != 0) GTEST_SKIP() << "this process may not chown";
  ForegroundMount mount({url()}, options());
  expect_right(mount.path());
  EXPECT_NE(mount.process().err().find(cache().string() + ": "), std::string::npos);
  EXPECT_EQ(names_in(cache()), std::vector<std::string>{});
}

TEST_F(FailingCache, UnusableCacheGivesOneWarning) {
  write_file(dir_ / "file", "");
  for (const char* more : {"", ",supervise"}) {
    ForegroundMount mount({url()}, {"-o", "cache_dir=" + (dir_ / "file").string() + more});
    expect_right(mount.path());
    EXPECT_EQ(read_file(mount / ".stfs/slice/w/:,0:3").size(), 1024U * 3 * 2);
    const std::string err = mount.process().err();
    EXPECT_EQ(std::ranges::count(err, '\n'), 1) << err;
  }
}

TEST_F(FailingCache, FullDiskFailsNoReader) {
  const SmallDisk disk(cache(), "size=1m,mode=700");
  SKIP_WITHOUT(disk);
  const Mounted mount({url()}, options());
  for (int round = 0; round < 2; ++round) {
    expect_right(mount.path());
    EXPECT_EQ(read_file(mount / ".stfs/merged.safetensors").size(), read_file(local()).size());
  }
}

TEST_F(FailingCache, TwoMountsFetchEachBlockOnce) {
  set_change([](WebAnswer& answer) { answer.delay = std::chrono::milliseconds(5); });
  const Mounted first({url()}, options());
  const Mounted second({url()}, options());
  server_.forget_requests();
  std::vector<std::future<bool>> readers;
  for (const Mounted* mount : {&first, &second}) {
    for (const char* name : {"v", "w", "x"}) {
      readers.push_back(std::async(std::launch::async, [this, mount, name] {
        return read_file(*mount / name) == bytes_of(name);
      }));
    }
  }
  for (auto& reader : readers) EXPECT_TRUE(reader.get());
  for (const auto& [block, times] : asked_blocks()) EXPECT_EQ(times, 1U) << "block " << block;
}

TEST_F(FailingCache, KilledProcessReleasesItsBlocks) {
  Mounted first({url()}, options());
  const Mounted second({url()}, options());
  server_.forget_requests();
  fall_silent();
  auto stuck = std::async(std::launch::async, [&] { return read_part(first / "w", 0, 4096); });
  ASSERT_TRUE(was_asked(1));
  auto waiting = std::async(std::launch::async, [&] { return read_file(second / "w"); });
  mend();

  first.kill_daemon();

  EXPECT_NE(stuck.get(), 0);
  EXPECT_EQ(waiting.get(), bytes_of("w"));
}

TEST_F(FailingCache, StoppedProcessDelaysOthersAtMostUntilDeadline) {
  ForegroundMount first({url()}, options());
  const Mounted second({url()}, options("timeout=1"));
  server_.forget_requests();
  fall_silent();
  Process stuck({"cat", (first / "w").string()});
  ASSERT_TRUE(was_asked(1));
  first.process().signal(SIGSTOP);
  mend();

  std::string bytes;
  const int error = read_part(second / "w", 1 << 20, 4096, &bytes);
  EXPECT_TRUE(error == EIO || bytes == bytes_of("w").substr(1 << 20, 4096)) << error;
  EXPECT_EQ(read_part(second / "x", 1 << 20, 4096, &bytes), 0);
  EXPECT_EQ(bytes, bytes_of("x").substr(1 << 20, 4096));

  first.process().signal(SIGKILL);
  EXPECT_TRUE(read_file(second / "w") == bytes_of("w"));
}

TEST_F(FailingCache, MountAfterKillDuringFetchReadsRightBytes) {
  for (int round = 0; round < 3; ++round) {
    std::filesystem::remove_all(cache());
    put("/m.safetensors", {.bytes = read_file(local()), .etag = "\"v1\""});
    server_.forget_requests();
    set_change([](WebAnswer& answer) { answer.bytes_per_second = 40 << 20; });
    {
      Mounted mount({url()}, options());
      auto reader = std::async(std::launch::async, [&] {
        for (const char* name : {"v", "w", "x"}) read_part(mount / name, 0, 2 << 20);
      });
      ASSERT_TRUE(was_asked(2));
      mount.kill_daemon();
      unmount_all(mount.path());
      reader.get();
    }
    mend();
    {
      const Mounted mount({url()}, options());
      expect_right(mount.path());
    }
    // Another version has the same size. A mount of it must return no byte of the first version.
    std::vector<Tensor> others = tensors_;
    for (Tensor& tensor : others) std::ranges::fill(tensor.bytes, '\x77');
    write_safetensors(dir_ / "other", others);
    put("/m.safetensors", {.bytes = read_file(dir_ / "other"), .etag = "\"v2\""});
    const Mounted mount({url()}, options());
    EXPECT_EQ(read_file(mount / "w"), std::string(2 << 20, '\x77'));
  }
}

TEST_F(FailingCache, WorkerKilledDuringFetchFailsNoReader) {
  ForegroundMount mount({url()}, options("supervise"));
  EXPECT_EQ(read_file(mount / "small"), bytes_of("small"));
  const pid_t worker = worker_of(mount);
  server_.forget_requests();
  fall_silent();
  std::vector<std::future<std::string>> readers;
  for (const char* name : {"v", "w", ".stfs/npy/x.npy"}) {
    readers.push_back(
        std::async(std::launch::async, [&mount, name] { return read_file(mount / name); }));
  }
  ASSERT_TRUE(was_asked(1));
  mend();

  ASSERT_EQ(::kill(worker, SIGKILL), 0);

  EXPECT_EQ(readers[0].get(), bytes_of("v"));
  EXPECT_EQ(readers[1].get(), bytes_of("w"));
  EXPECT_EQ(readers[2].get().substr(128), bytes_of("x"));
}

// A block is received into memory, both with a cache and without.
TEST_F(FailingCache, FailedAllocationOfBlockFailsNoReader) {
  skip_where_calls_cannot_fail();
  const std::string size = std::to_string(kFetchBlock);
  const std::filesystem::path flag = dir_ / "now";
  const std::filesystem::path mountpoint = dir_ / "mnt";
  std::filesystem::create_directory(mountpoint);
  for (const std::string& place : {cache().string(), std::string("/proc/none")}) {
    SCOPED_TRACE(place);
    ASSERT_EQ(run({STFS_BINARY, "-o", "cache_dir=" + place, url(), mountpoint.string()},
                  {.environment = failing(
                       "malloc", {"STFS_FAIL_ON=1", "STFS_FAIL_SIZE=" + size,
                                  "STFS_FAIL_MOST=" + size, "STFS_FAIL_WHILE=" + flag.string()})})
                  .status,
              0);
    server_.forget_requests();
    write_file(flag, "");
    auto reader =
        std::async(std::launch::async, [&mountpoint] { return read_file(mountpoint / "w"); });
    EXPECT_TRUE(was_asked(2)) << "the fetch was not retried";
    std::filesystem::remove(flag);

    EXPECT_TRUE(reader.get() == bytes_of("w"));
    EXPECT_EQ(run({STFS_BINARY, "-u", mountpoint.string()}).status, 0);
  }
}

TEST_F(FailingCache, FileSizeLimitFailsNoReader) {
  const std::filesystem::path mountpoint = dir_ / "mnt";
  std::filesystem::create_directory(mountpoint);
  ASSERT_EQ(sh(R"(ulimit -f 100; exec "$@")",
               {STFS_BINARY, "-o", "cache_dir=" + cache().string(), url(), mountpoint.string()})
                .status,
            0);

  expect_right(mountpoint);

  EXPECT_EQ(run({STFS_BINARY, "-u", mountpoint.string()}).status, 0);
}

TEST_F(FailingCache, CountersOutliveWorkerButOpenSnapshotsDoNot) {
  ForegroundMount mount({url()}, options("supervise"));
  EXPECT_EQ(read_file(mount / "w"), bytes_of("w"));
  const int fd = ::open((mount / ".stfs/counters.json").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  char buffer[16];
  EXPECT_EQ(::read(fd, buffer, sizeof buffer), 16);
  const pid_t worker = worker_of(mount);

  ASSERT_EQ(::kill(worker, SIGKILL), 0);

  EXPECT_EQ(::read(fd, buffer, sizeof buffer), -1);
  EXPECT_EQ(errno, EIO);
  ::close(fd);
  const std::string counters = read_file(mount / ".stfs/counters.json");
  const std::size_t at = counters.find("\"bytes_fetched\"");
  ASSERT_NE(at, std::string::npos) << counters;
  EXPECT_GE(std::stoull(counters.substr(counters.find_first_of("0123456789", at))), 2U << 20);
}

}  // namespace
}  // namespace stfs::test
