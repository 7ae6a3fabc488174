// Calls that fail while a checkpoint is loaded and mounted: one line, the right exit status,
// nothing left mounted. tests/support/failing_calls makes the Nth call of a kind fail.
#include "tests/support/failing_calls.h"

#include "tests/support/checkpoint_writer.h"
#include "tests/support/long_tests.h"
#include "tests/support/mounted.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <map>
#include <ostream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

class FailingCalls : public MountTest {
 protected:
  void SetUp() override {
    skip_where_calls_cannot_fail();
    MountTest::SetUp();
  }
  FailingCalls() {
    std::filesystem::create_directory(mountpoint());
    std::filesystem::create_directory(dir_ / "model");
    write_safetensors(dir_ / "model/1.safetensors", {random_tensor("a", "U8", {100}, 1)});
    write_safetensors(dir_ / "model/2.safetensors", {random_tensor("b/c", "U8", {100}, 2)},
                      Metadata{{"key", "value"}});
    write_index(dir_ / "model/model.safetensors.index.json",
                {{"a", "1.safetensors"}, {"b/c", "2.safetensors"}}, 200);
  }
  ~FailingCalls() override { unmount_all(mountpoint()); }

  std::filesystem::path mountpoint() const { return dir_ / "mnt"; }

  // Mounts while the Nth call fails (and those after it, with `on`).
  Outcome mount(const std::string& call, unsigned long at, bool on,
                const std::string& least = "0") const {
    std::vector<std::string> settings = {"STFS_FAIL_AT=" + std::to_string(at),
                                         "STFS_FAIL_SIZE=" + least};
    if (on) settings.emplace_back("STFS_FAIL_ON=1");
    return run({STFS_BINARY, dir_ / "model", mountpoint()},
               {.environment = failing(call, settings)});
  }

  // It failed as it should, or mounted all the same and works, but for the calls that
  // fail `then`; nothing is left. Whether it failed.
  enum class Then { kNothingFails, kOneMayFail, kAllMayFail };
  bool expect_clean(const Outcome& result, const std::string& what,
                    Then then = Then::kNothingFails) const {
    EXPECT_FALSE(result.timed_out) << what;
    EXPECT_TRUE(result.status == 0 || result.status == 3 || result.status == 4)
        << what << ": " << result.status << ": " << result.err;
    if (result.status == 0) {
      EXPECT_EQ(mounts_at(mountpoint()).size(), 1u) << what;
      try {
        if (then != Then::kNothingFails) names_in(mountpoint());
      } catch (const std::system_error& error) {
        EXPECT_EQ(error.code(), std::errc::not_enough_memory) << what;
      }
      if (then != Then::kAllMayFail) {
        EXPECT_EQ(names_in(mountpoint()).size(), 2u) << what;
      }
      EXPECT_EQ(run({STFS_BINARY, "-u", mountpoint()}).status, 0) << what;
    } else {
      EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << what << result.err;
      EXPECT_TRUE(result.err.starts_with("stfs: ")) << what << result.err;
    }
    EXPECT_TRUE(mounts_at(mountpoint()).empty()) << what << " left a mount";
    EXPECT_TRUE(eventually([&] { return processes_with(mountpoint()).empty(); }))
        << what << " left a process";
    unmount_all(mountpoint());
    return result.status != 0;
  }

  TempDir dir_;
};

TEST_F(FailingCalls, OfOpenAreUnreadableSources) {
  for (const unsigned long at : {1UL, 2UL, 3UL}) {
    const Outcome result = mount("open", at, false);
    EXPECT_TRUE(expect_clean(result, "open " + std::to_string(at)));
    EXPECT_EQ(result.status, 3) << result.err;
    EXPECT_NE(result.err.find("Too many open files"), std::string::npos) << result.err;
  }
}

TEST_F(FailingCalls, OfMmapAreUnreadableSources) {
  for (const unsigned long at : {1UL, 2UL}) {
    const Outcome result = mount("mmap", at, false);
    EXPECT_TRUE(expect_clean(result, "mmap " + std::to_string(at)));
    EXPECT_EQ(result.status, 3) << result.err;
    EXPECT_NE(result.err.find(".safetensors"), std::string::npos) << result.err;
  }
}

TEST_F(FailingCalls, OfPreadAreUnreadableSources) {
  for (unsigned long at = 1; at <= 5; ++at) {
    const Outcome result = mount("pread", at, false);
    EXPECT_TRUE(expect_clean(result, "pread " + std::to_string(at)));
    EXPECT_EQ(result.status, 3) << result.err;
    EXPECT_NE(result.err.find("Input/output error"), std::string::npos) << result.err;
  }
}

TEST_F(FailingCalls, OfThreadsAreAFailedMountOrAWorkingOne) {
  int failed = 0;
  for (unsigned long at = 1; at <= 8; ++at) {
    for (const bool on : {false, true}) {
      const Outcome result = mount("pthread_create", at, on);
      if (expect_clean(result, "pthread_create " + std::to_string(at))) {
        ++failed;
        EXPECT_EQ(result.status, 4) << result.err;
      }
    }
  }
  EXPECT_GT(failed, 0);
}

TEST_F(FailingCalls, OfAThreadThatWouldSortNamesOnlyTakesLonger) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "one processor sorts alone";
  std::vector<Tensor> tensors;
  for (int i = 140'000; i > 0; --i) tensors.push_back({"t" + std::to_string(i), "U8", {0}, ""});
  write_safetensors(dir_ / "model/1.safetensors", tensors);
  std::filesystem::remove(dir_ / "model/2.safetensors");
  std::filesystem::remove(dir_ / "model/model.safetensors.index.json");

  const Outcome result = mount("pthread_create", 1, false);

  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(names_in(mountpoint()).size(), 140'000u);
  EXPECT_EQ(run({STFS_BINARY, "-u", mountpoint()}).status, 0);
}

TEST_F(FailingCalls, OfMallocAreOneLineWhereverTheyCome) {
  int failed = 0;
  for (unsigned long at = 1; at < long_or(20'000, 1300); at += long_or(1, 13)) {
    for (const bool on : {false, true}) {
      const Outcome result = mount("malloc", at, on);
      const Then then = on ? Then::kAllMayFail : Then::kOneMayFail;
      if (expect_clean(result, "malloc " + std::to_string(at) + ": ", then)) ++failed;
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(failed, 0);
}

TEST_F(FailingCalls, OfLargeAllocationsSayThatMemoryIsOut) {
  const Outcome result = mount("malloc", 1, true, "50");

  EXPECT_TRUE(expect_clean(result, "malloc"));
  EXPECT_NE(result.err.find("memory"), std::string::npos) << result.err;
}

// All calls of a kind fail for a while, under 32 readers who ask for much that needs them: more
// threads, new names, computed files. Each gets the right bytes or an error, and when it is over
// all is as before.
struct Failing {
  const char* name;
  const char* call;
  const char* least;  // bytes
  bool is_noticed;    // by a reader

  friend std::ostream& operator<<(std::ostream& out, const Failing& failing) {
    return out << failing.name;
  }
};
class FailingWhileServing : public FailingCalls, public testing::WithParamInterface<Failing> {};

TEST_P(FailingWhileServing, NothingElseIsLost) {
  const std::string source = dir_ / "bytes.safetensors";
  const Tensor tensor = random_tensor("w", "U8", {1000, 1000});
  write_safetensors(source, {tensor});
  const std::string flag = dir_ / "now";
  const auto& [name, call, least, is_noticed] = GetParam();
  const std::vector<std::string> environment = failing(
      call, {std::string("STFS_FAIL_SIZE=") + least, "STFS_FAIL_ON=1", "STFS_FAIL_WHILE=" + flag});
  ASSERT_EQ(run({STFS_BINARY, source, mountpoint()}, {.environment = environment}).status, 0);
  std::atomic<unsigned> refused = 0;
  const auto read_all = [&](unsigned round) {
    std::vector<std::thread> readers;
    for (unsigned reader = 0; reader < 32; ++reader) {
      readers.emplace_back([&, reader] {
        const std::string row = std::to_string(round * 32 + reader);
        const std::string paths[] = {"w", ".stfs/slice/w/" + row, ".stfs/npy/w.npy",
                                     ".stfs/sha256/w"};
        for (const std::string& path : paths) {
          const Outcome reading = run({"head", "-c1000", mountpoint() / path});
          if (reading.status != 0) {
            ++refused;
          } else if (path == paths[0]) {
            EXPECT_EQ(reading.out, tensor.bytes.substr(0, 1000));
          } else if (path == paths[1]) {
            EXPECT_EQ(reading.out, tensor.bytes.substr(1000 * std::stoul(row), 1000));
          }
        }
      });
    }
    for (std::thread& reader : readers) reader.join();
  };

  write_file(flag, "");
  read_all(0);
  std::filesystem::remove(flag);
  EXPECT_EQ(refused > 0, is_noticed) << refused;
  refused = 0;
  read_all(1);

  EXPECT_EQ(refused, 0u);
  EXPECT_EQ(read_file(mountpoint() / "w"), tensor.bytes);

  // Nothing that ending needs is asked for only then.
  write_file(flag, "");
  const std::vector<pid_t> daemons = processes_with(mountpoint());
  ASSERT_EQ(daemons.size(), 1u);
  ::kill(daemons[0], SIGTERM);
  EXPECT_TRUE(eventually([&] { return processes_with(mountpoint()).empty(); }));
  EXPECT_TRUE(mounts_at(mountpoint()).empty());
}

INSTANTIATE_TEST_SUITE_P(
    Calls, FailingWhileServing,
    testing::Values(Failing{"Malloc", "malloc", "0", true},
                    // What a thread reads requests into: those that have it go on.
                    Failing{"LargeMalloc", "malloc", "1000000", false},
                    Failing{"Threads", "pthread_create", "0", false}),
    [](const auto& failing) { return std::string(failing.param.name); });

// Every Nth allocation fails, so that requests get half of what they need, wherever that is. What
// is read is right or refused, also where readers go away in the middle.
TEST_F(FailingCalls, OfSomeMallocWhileServingAreNoticedByNobodyElse) {
  const std::string source = dir_ / "floats.safetensors";
  const Tensor tensor = random_tensor("w", "F16", {1000, 1000});
  write_safetensors(source, {tensor, random_tensor("v", "BF16", {100})}, Metadata{{"k", "v"}});
  const std::vector<std::string> paths = {"w",
                                          ".stfs/sha256/w",
                                          ".stfs/stats/w.json",
                                          ".stfs/f32/w",
                                          ".stfs/npy-f32/v.npy",
                                          ".stfs/tensors.tsv",
                                          ".stfs/tensors.json",
                                          ".stfs/metadata/k",
                                          ".stfs/merged.safetensors",
                                          ".stfs/json/w.json",
                                          ".stfs/safetensors/v.safetensors"};
  std::map<std::string, std::string> right;
  {
    const Mounted mount({source});
    for (const std::string& path : paths) right[path] = read_file(mount / path);
  }
  const std::string flag = dir_ / "now";
  for (const unsigned every : {2, 3, 5, 7, 11, 13, 31, 101}) {
    ASSERT_EQ(run({STFS_BINARY, source, mountpoint()},
                  {.environment = failing("malloc", {"STFS_FAIL_WHILE=" + flag,
                                                     "STFS_FAIL_EVERY=" + std::to_string(every)})})
                  .status,
              0);
    write_file(flag, "");
    std::atomic<unsigned> wrong = 0;
    std::vector<std::thread> readers;
    for (unsigned reader = 0; reader < 16; ++reader) {
      readers.emplace_back([&, reader] {
        for (unsigned i = 0; i < long_or(40, 12); ++i) {
          const std::string& path = paths[(i + reader) % paths.size()];
          try {
            if (read_file(mountpoint() / path) != right.at(path)) ++wrong;
          } catch (const std::system_error&) {
            // Refused.
          }
          // Other names each time.
          const std::string slice =
              ".stfs/slice/w/" + std::to_string(i) + ",:" + std::to_string(reader);
          const int fd = ::open((mountpoint() / slice).c_str(), O_RDONLY | O_CLOEXEC);
          if (fd >= 0) ::close(fd);
          std::error_code error;
          for (auto entry = std::filesystem::directory_iterator(mountpoint() / ".stfs", error);
               !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
          }
          if (i % 8 == 0) {
            const Process leaving({"cat", mountpoint() / ".stfs/sha256/w"});
            leaving.signal(SIGKILL);
          }
        }
      });
    }
    for (std::thread& reader : readers) reader.join();
    std::filesystem::remove(flag);

    EXPECT_EQ(wrong, 0u) << every;
    for (const std::string& path : paths)
      EXPECT_EQ(read_file(mountpoint() / path), right[path]) << every << " " << path;
    ASSERT_EQ(run({STFS_BINARY, "-u", mountpoint()}).status, 0) << every;
    ASSERT_TRUE(eventually([&] { return processes_with(mountpoint()).empty(); })) << every;
  }
}

TEST_F(FailingCalls, OfMallocWhileServingFailThatReadAlone) {
  constexpr std::size_t kCount = 10'001;
  const std::string size = std::to_string(kCount * sizeof(float));  // nothing else has it
  const std::string source = dir_ / "halves.safetensors";
  write_safetensors(source,
                    {random_tensor("h", "F16", {kCount}), random_tensor("i", "U8", {9})});

  // With its cache the kernel would ask for the file in parts.
  ASSERT_EQ(run({STFS_BINARY, "-o", "cache=direct", source, mountpoint()},
                {.environment = failing("malloc", {"STFS_FAIL_ON=1", "STFS_FAIL_SIZE=" + size,
                                                   "STFS_FAIL_MOST=" + size})})
                .status,
            0);

  const Outcome reader = run({"cat", mountpoint() / ".stfs/f32/h"});
  EXPECT_EQ(reader.status, 1);
  EXPECT_NE(reader.err.find("Cannot allocate memory"), std::string::npos) << reader.err;
  EXPECT_EQ(read_file(mountpoint() / "h").size(), kCount * 2);
  EXPECT_EQ(read_file(mountpoint() / "i").size(), 9u);
  EXPECT_EQ(run({STFS_BINARY, "-u", mountpoint()}).status, 0);
  EXPECT_TRUE(eventually([&] { return processes_with(mountpoint()).empty(); }));
}

}  // namespace
}  // namespace stfs::test
