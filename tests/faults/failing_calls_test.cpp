// Calls that fail while stfs loads, mounts and serves. A failed mount prints one line, exits with
// the right status and leaves no mount. tests/support/failing_calls makes the Nth call of a
// function fail.
#include "tests/support/failing_calls.h"

#include "tests/support/checkpoint_writer.h"
#include "tests/support/mounted.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <string>
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

  // Mounts while the Nth call fails, and with `on` also all later calls.
  Outcome mount(const std::string& call, unsigned long at, bool on,
                const std::string& least = "0") const {
    std::vector<std::string> settings = {"STFS_FAIL_AT=" + std::to_string(at),
                                         "STFS_FAIL_SIZE=" + least};
    if (on) settings.emplace_back("STFS_FAIL_ON=1");
    return run({STFS_BINARY, dir_ / "model", mountpoint()},
               {.environment = failing(call, settings)});
  }

  // Expects a clean failure or a working mount, and no remaining mount or process. Returns true if
  // the mount failed.
  bool expect_clean(const Outcome& result, const std::string& what) const {
    EXPECT_FALSE(result.timed_out) << what;
    EXPECT_TRUE(result.status == 0 || result.status == 3 || result.status == 4)
        << what << ": " << result.status << ": " << result.err;
    if (result.status == 0) {
      EXPECT_EQ(mounts_at(mountpoint()).size(), 1u) << what;
      EXPECT_EQ(names_in(mountpoint()).size(), 2u) << what;
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

TEST_F(FailingCalls, FailedOpenGivesUnreadableSource) {
  for (const unsigned long at : {1UL, 2UL, 3UL}) {
    const Outcome result = mount("open", at, false);
    EXPECT_TRUE(expect_clean(result, "open " + std::to_string(at)));
    EXPECT_EQ(result.status, 3) << result.err;
    EXPECT_NE(result.err.find("Too many open files"), std::string::npos) << result.err;
  }
}

TEST_F(FailingCalls, FailedMmapGivesUnreadableSource) {
  for (const unsigned long at : {1UL, 2UL}) {
    const Outcome result = mount("mmap", at, false);
    EXPECT_TRUE(expect_clean(result, "mmap " + std::to_string(at)));
    EXPECT_EQ(result.status, 3) << result.err;
    EXPECT_NE(result.err.find(".safetensors"), std::string::npos) << result.err;
  }
}

TEST_F(FailingCalls, FailedPreadGivesUnreadableSource) {
  for (unsigned long at = 1; at <= 5; ++at) {
    const Outcome result = mount("pread", at, false);
    EXPECT_TRUE(expect_clean(result, "pread " + std::to_string(at)));
    EXPECT_EQ(result.status, 3) << result.err;
    EXPECT_NE(result.err.find("Input/output error"), std::string::npos) << result.err;
  }
}

TEST_F(FailingCalls, ThreadFailureFailsMountCleanlyOrNotAtAll) {
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

TEST_F(FailingCalls, MountSortsNamesWithoutExtraThread) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "one processor starts no thread";
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

TEST_F(FailingCalls, FailedAllocationReportsOutOfMemory) {
  const Outcome result = mount("malloc", 1, true, "50");

  EXPECT_TRUE(expect_clean(result, "malloc"));
  EXPECT_NE(result.err.find("memory"), std::string::npos) << result.err;
}

// The thread that releases leases cannot allocate memory.
TEST_F(FailingCalls, MountSurvivesNoMemoryWhileWriterWaitsForLease) {
  const std::string source = dir_ / "bytes.safetensors";
  const Tensor tensor = random_tensor("w", "U8", {1000, 1000});
  write_safetensors(source, {tensor});
  const std::string flag = dir_ / "now";
  ASSERT_EQ(run({STFS_BINARY, source, mountpoint()},
                {.environment = failing("malloc", {"STFS_FAIL_ON=1", "STFS_FAIL_WHILE=" + flag})})
                .status,
            0);

  write_file(flag, "");
  const int writer = ::open(source.c_str(), O_WRONLY | O_CLOEXEC);
  EXPECT_GE(writer, 0);
  ::close(writer);
  std::filesystem::remove(flag);

  EXPECT_EQ(read_file(mountpoint() / "w"), tensor.bytes);
}

// For a while no thread can be started, although 32 readers need more threads. Each reader still
// gets the right bytes.
TEST_F(FailingCalls, ThreadFailureWhileServingFailsNoReader) {
  const std::string source = dir_ / "bytes.safetensors";
  const Tensor tensor = random_tensor("w", "U8", {1000, 1000});
  write_safetensors(source, {tensor});
  const std::string flag = dir_ / "now";
  ASSERT_EQ(
      run({STFS_BINARY, source, mountpoint()},
          {.environment = failing("pthread_create", {"STFS_FAIL_ON=1", "STFS_FAIL_WHILE=" + flag})})
          .status,
      0);

  write_file(flag, "");
  std::vector<std::thread> readers;
  for (unsigned reader = 0; reader < 32; ++reader) {
    readers.emplace_back([&, row = std::to_string(reader)] {
      const auto first_bytes = [&](const std::string& path) {
        const Outcome reading = run({"head", "-c1000", mountpoint() / path});
        EXPECT_EQ(reading.status, 0) << path << ": " << reading.err;
        return reading.out;
      };
      EXPECT_EQ(first_bytes("w"), tensor.bytes.substr(0, 1000));
      EXPECT_EQ(first_bytes(".stfs/slice/w/" + row),
                tensor.bytes.substr(1000 * std::stoul(row), 1000));
      EXPECT_EQ(first_bytes(".stfs/npy/w.npy").size(), 1000u);
      EXPECT_EQ(first_bytes(".stfs/sha256/w").size(), 64u + 2 + 2);
    });
  }
  for (std::thread& reader : readers) reader.join();

  // Unmounting does not need another thread.
  const std::vector<pid_t> daemons = processes_with(mountpoint());
  ASSERT_EQ(daemons.size(), 1u);
  ::kill(daemons[0], SIGTERM);
  EXPECT_TRUE(eventually([&] { return processes_with(mountpoint()).empty(); }));
  EXPECT_TRUE(mounts_at(mountpoint()).empty());
}

TEST_F(FailingCalls, FailedMallocWhileServingFailsOnlyItsRead) {
  constexpr std::size_t kCount = 10'001;
  const std::string size =
      std::to_string(kCount * sizeof(float));  // no other allocation has this size
  const std::string source = dir_ / "halves.safetensors";
  write_safetensors(source, {random_tensor("h", "F16", {kCount}), random_tensor("i", "U8", {9})});

  // page_cache=direct, because with its cache the kernel would read the file in parts.
  ASSERT_EQ(run({STFS_BINARY, "-o", "page_cache=direct", source, mountpoint()},
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
