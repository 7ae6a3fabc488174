// More looked-up names than the bound: the kernel is asked to forget unused ones.
#include "fs/mount/looked_up.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/mounted.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace stfs::test {
namespace {

constexpr int kNames = static_cast<int>(LookedUpNames::kBound) + 1500;

bool kernel_can_drop_names() {
  utsname name{};
  int major = 0;
  int minor = 0;
  ::uname(&name);
  return std::sscanf(name.release, "%d.%d", &major, &minor) == 2 &&
         std::pair(major, minor) >= std::pair(6, 18);
}

// The inode number of a path.
ino_t number_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
  return status.st_ino;
}

class DroppedNames : public MountTest {
 protected:
  void SetUp() override {
    MountTest::SetUp();
    if (!kernel_can_drop_names()) GTEST_SKIP() << "this kernel cannot drop names; Linux 6.18 can";
    w_ = random_tensor("w", "U8", {1'000'000});
    write_safetensors(dir_ / "m.safetensors", {w_});
  }

  std::vector<std::string> source() const { return {dir_ / "m.safetensors"}; }

  TempDir dir_;
  Tensor w_;
};

class DroppedNamesOfAMount : public DroppedNames,
                             public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(With, DroppedNamesOfAMount, ::testing::Values("cache=kernel", "supervise"),
                         [](const auto& test) {
                           return test.param[0] == 's' ? "Supervised" : "Plain";
                         });

TEST_P(DroppedNamesOfAMount, AreThoseThatNobodyUses) {
  const Mounted mount(source(), {"-o", GetParam()});
  const std::string names = mount / ".stfs/slice/w/";
  const int open = ::open((names + "0").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(open, 0);
  const ino_t unused = number_of(names + "1");

  for (int i = 2; i < kNames; ++i) number_of(names + std::to_string(i));

  // A name that was forgotten gets a new number at the next lookup.
  EXPECT_TRUE(
      eventually([&] { return number_of(names + "1") != unused; }, std::chrono::seconds(60)));
  struct stat status {};
  EXPECT_EQ(::fstat(open, &status), 0);
  EXPECT_EQ(number_of(names + "0"), status.st_ino) << "it is open";
  const std::string link = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(open));
  EXPECT_EQ(link, names + "0") << "it is still the file of that name";
  char byte = 0;
  EXPECT_EQ(::pread(open, &byte, 1, 0), 1);
  EXPECT_EQ(byte, w_.bytes[0]);
  ::close(open);
  EXPECT_EQ(read_file(names + "7"), w_.bytes.substr(7, 1));
}

// Eight threads that look up name after name, relative to a descriptor, so that they go on after
// the mount is detached. Each ends at its first error.
class Lookups {
 public:
  explicit Lookups(const std::filesystem::path& directory)
      : directory_(::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {
    for (int i = 0; i < 8; ++i) {
      threads_.emplace_back([this] {
        struct stat status {};
        while (!stop_) {
          const std::string name = std::to_string(next_++ % 1'000'000);
          if (::fstatat(directory_, name.c_str(), &status, 0) == 0) continue;
          ++failed_;
          return;
        }
      });
    }
  }
  ~Lookups() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    ::close(directory_);
  }

  int failed() const { return failed_; }
  // Waits until so many more names were looked up.
  bool go_on(int count) const {
    const int enough = next_ + count;
    return eventually([&] { return next_ > enough || failed_ > 0; }, std::chrono::minutes(2)) &&
           failed_ == 0;
  }

 private:
  int directory_;
  std::atomic<bool> stop_ = false;
  std::atomic<int> next_ = 0;
  std::atomic<int> failed_ = 0;
  std::vector<std::thread> threads_;
};

TEST_P(DroppedNamesOfAMount, DoNotKeepAProcessFromEnding) {
  const std::vector<std::pair<int, int>> signals{{SIGTERM, 0}, {SIGKILL, 128 + SIGKILL}};
  for (const auto& [signal, expected] : signals) {
    ForegroundMount mount(source(), {"-o", GetParam()});
    const Lookups lookups(mount / ".stfs/slice/w");
    ASSERT_TRUE(lookups.go_on(kNames));

    for (const pid_t pid : processes_with(mount.path())) ::kill(pid, signal);
    const Outcome ended = mount.process().wait();

    EXPECT_EQ(ended.status, expected);
    EXPECT_EQ(ended.err.find("did not answer"), std::string::npos) << "nothing kept it";
    EXPECT_TRUE(eventually([&] { return lookups.failed() == 8; })) << "readers were told";
  }
}

TEST_F(DroppedNames, AreDroppedByTheNextWorkerTooAndNoReaderNotices) {
  ForegroundMount mount(source(), {"-o", "supervise"});
  const std::string names = mount / ".stfs/slice/w/";
  const ino_t unused = number_of(names + "999999");
  Lookups lookups(mount / ".stfs/slice/w");
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(lookups.go_on(i == 0 ? kNames : 2000));
    for (const pid_t pid : processes_with(mount.path())) {
      if (pid != mount.process().pid()) ::kill(pid, SIGKILL);
    }
  }

  EXPECT_TRUE(lookups.go_on(2000));
  EXPECT_TRUE(eventually([&] { return number_of(names + "999999") != unused; }));
}

}  // namespace
}  // namespace stfs::test
