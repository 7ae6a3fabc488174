// The commands on GPUs of the fake driver that have the faults of real GPUs: operations fail, free
// memory cannot be allocated, and freed memory becomes available late.
#include "tests/gpu/tool.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/sizes.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace stfs::gpu::test {

using namespace stfs::test;

namespace {

using Names = std::vector<std::string>;

class GpuCuda : public GpuToolTest {
 protected:
  void SetUp() override {
    GpuToolTest::SetUp();
    space_ = "cuda_tool" + std::to_string(::getpid());
    set("STFS_GPU_DRIVER", STFS_FAKE_DRIVER);
    set("STFS_FAKE_CUDA_SPACE", space_);
    set("STFS_FAKE_CUDA_LATE", "never");
    ::unsetenv("CUDA_VISIBLE_DEVICES");
  }
  void TearDown() override {
    GpuToolTest::TearDown();
    for (const std::string& name : variables_) ::unsetenv(name.c_str());
  }

  // Sets a variable of the holder, which must not have started yet.
  void set(const std::string& name, const std::string& value) {
    variables_.insert(name);
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  void set(const std::string& name, std::uint64_t value) { set(name, std::to_string(value)); }

  // Writes a sparse source with the tensors "a" to "f" of 50 MiB each. Returns its path.
  std::string source() const {
    HeaderBuilder header;
    for (const char* name : {"a", "b", "c", "d", "e", "f"})
      header.add(name, "U8", {50 * kMiB}, 50 * kMiB);
    const std::string head = safetensors_bytes(header.finish(), "");
    write_file(file("m.safetensors"), head);
    std::filesystem::resize_file(file("m.safetensors"), head.size() + 6 * 50 * kMiB);
    return file("m.safetensors");
  }

  Outcome load(const std::string& tensor, std::vector<std::string> options = {}) const {
    options.insert(options.begin(), {"load", "--device", "cuda:0"});
    options.push_back(tensor);
    return gpu(options);
  }
  void load_all(const std::string& source, const Names& names) const {
    for (const std::string& name : names) {
      const Outcome outcome = load(source + "::" + name, {"--keep-free", "0"});
      ASSERT_EQ(outcome.status, 0) << name << ": " << outcome.err;
    }
  }

  // Takes device memory like another program, until the descriptor is closed.
  UniqueFd taken(std::uint64_t bytes) const {
    UniqueFd fd(::memfd_create(("stfs_fake_cuda." + space_ + ".0").c_str(), MFD_CLOEXEC));
    EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
    return fd;
  }

 private:
  std::string space_;
  std::set<std::string> variables_;
};

TEST_F(GpuCuda, LoadAfterFaultUsesNewCopier) {
  set("STFS_FAKE_CUDA_FAULT", "5");  // counted in each process
  write_safetensors(file("m.safetensors"),
                    {random_tensor("a", "U8", {65536}), random_tensor("b", "U8", {4096})});
  const std::string source = file("m.safetensors");

  expect_one_line(load(source + "::a", {"--tile", "4096", "--workers", "1"}), 5,
                  "CUDA_ERROR_ILLEGAL_ADDRESS");

  const Outcome next = load(source + "::b");
  EXPECT_EQ(next.status, 0) << next.err;
  EXPECT_EQ(resident(), Names{"b"});
}

TEST_F(GpuCuda, LaterLoadsReusePinnedMemory) {
  set("STFS_FAKE_CUDA_REPORT", file("report"));
  const std::string path = source();
  for (const char* name : {"a", "b", "c"})
    ASSERT_EQ(load(path + "::" + name, {"--workers", "1"}).status, 0);

  kill_and_wait(holder());  // its copier exits too

  EXPECT_TRUE(eventually([&] {
    return read_file(file("report")).find("pinned 3 times") != std::string::npos;
  })) << read_file(file("report"));
}

// The teardown of a context takes long on a GPU. Here it lasts until the test removes "gate".
TEST_F(GpuCuda, HolderAnswersAndLoadsWhileCopierExits) {
  write_file(file("gate"), "");
  set("STFS_FAKE_CUDA_END", file("gate"));
  start_holder({"--copier-idle", "0"});
  const std::string path = source();
  const auto loading = start({"load", "--device", "cuda:0", path + "::a"});
  pid_t ending = 0;
  ASSERT_TRUE(eventually([&] {
    ending = std::max(ending, copier());
    return ending > 0 && !std::filesystem::exists("/proc/" + std::to_string(ending) + "/fd/3");
  }));
  ASSERT_EQ(loading->wait().status, 0);

  EXPECT_EQ(resident(), Names{"a"});
  EXPECT_EQ(::kill(ending, 0), 0) << "the holder has answered before its copier ended";
  const auto next = start({"load", "--device", "cuda:0", path + "::b"});
  EXPECT_TRUE(eventually([&] { return resident() == Names{"a", "b"}; }));

  std::filesystem::remove(file("gate"));
  EXPECT_EQ(next->wait().status, 0);
}

TEST_F(GpuCuda, LoadsToMigInstanceByUuid) {
  set("STFS_FAKE_CUDA_MIG", "3");
  const std::string path = source();
  set("CUDA_VISIBLE_DEVICES", "1");
  const auto uuid = gpu_json({"devices"})[0]["uuid"].get<std::string>();
  ASSERT_TRUE(uuid.starts_with("MIG-")) << uuid;

  EXPECT_EQ(load(path + "::a").status, 0) << "the instance is cuda:0 of a client that sees it";
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  const json loaded = gpu_json({"load", "--device", uuid, path + "::a", path + "::b"});

  EXPECT_EQ(loaded["uuid"], uuid);
  EXPECT_EQ(loaded["copied_bytes"], 50 * kMiB) << "\"a\" was loaded before";
}

TEST_F(GpuCuda, FailedAllocationEvictsDespiteReportedFreeMemory) {
  set("STFS_FAKE_CUDA_MEMORY", 200 * kMiB);
  set("STFS_FAKE_CUDA_HIDDEN", 40 * kMiB);
  const std::string path = source();
  load_all(path, {"a", "b", "c"});

  load_all(path, {"d"});

  EXPECT_EQ(resident(), (Names{"b", "c", "d"}));
}

TEST_F(GpuCuda, WaitsForLateFreedMemoryInsteadOfEvictingMore) {
  set("STFS_FAKE_CUDA_MEMORY", 200 * kMiB);
  set("STFS_FAKE_CUDA_LAG", 5);
  const std::string path = source();
  load_all(path, {"a", "b", "c", "d"});

  load_all(path, {"e"});

  EXPECT_EQ(resident(), (Names{"b", "c", "d", "e"}));
}

TEST_F(GpuCuda, WaitsForMemoryFromEndedProgram) {
  set("STFS_FAKE_CUDA_MEMORY", 120 * kMiB);
  set("STFS_FAKE_CUDA_LAG", 5);
  const std::string path = source();
  UniqueFd other = taken(60 * kMiB);
  load_all(path, {"a"});
  ASSERT_EQ(gpu({"pin", path + "::a"}).status, 0);
  other = UniqueFd();

  load_all(path, {"b"});

  EXPECT_EQ(resident(), (Names{"a", "b"}));
}

TEST_F(GpuCuda, EvictsToMakeRoomForContext) {
  set("STFS_FAKE_CUDA_MEMORY", 200 * kMiB);
  set("STFS_FAKE_CUDA_CONTEXT", 60 * kMiB);
  set("STFS_FAKE_CUDA_LAG", 5);          // the memory of "a" is free only after several checks
  start_holder({"--copier-idle", "1"});  // s: the copier that loads "s" serves both attempts
  const std::string path = source();
  load_all(path, {"a"});
  EXPECT_TRUE(eventually([&] { return copier() == 0; }));
  const UniqueFd other = taken(92 * kMiB);  // while "a" is resident, no context fits
  write_safetensors(file("small.safetensors"), {random_tensor("s", "U8", {100})});

  load_all(file("small.safetensors"), {"s"});

  EXPECT_EQ(resident(), Names{"s"});
}

TEST_F(GpuCuda, ReportsMissingMemoryForContext) {
  set("STFS_FAKE_CUDA_MEMORY", 200 * kMiB);
  set("STFS_FAKE_CUDA_CONTEXT", 60 * kMiB);
  const UniqueFd other = taken(150 * kMiB);

  expect_one_line(load(source() + "::a"), 5, "out of memory");
}

TEST_F(GpuCuda, KeepsMemoryFreeForContextsUnlessKeepFreeIsZero) {
  set("STFS_FAKE_CUDA_MEMORY", 1060 * kMiB);
  const std::string path = source();

  EXPECT_EQ(gpu_json({"plan", "--device", "cuda:0", path + "::a"})["fits"], false);
  expect_one_line(load(path + "::a"), 5, "1.0 GiB stay free (--keep-free)");

  EXPECT_EQ(gpu_json({"plan", "--device", "cuda:0", "--keep-free", "0", path + "::a"})["fits"],
            true);
  load_all(path, {"a"});
}

}  // namespace
}  // namespace stfs::gpu::test
