// A server without privileges, writable file systems or devices, and with limits on memory and
// processes. It serves a checkpoint from S3 through a mount that another process made.
#include "tests/mount/handed_over.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/http_server.h"
#include "tests/support/memory_group.h"
#include "tests/support/mounted.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

constexpr std::size_t kMebibyte = 1 << 20;

class Confined : public HandOver {
 protected:
  Confined() {
    write_safetensors(dir_ / "m.safetensors", {small_, large_});
    objects_["/models/" + name_] = {.bytes = read_file(dir_ / "m.safetensors")};
  }

  // Returns a command that serves the mount. Its environment has only the variables of the store.
  // Without HOME, stfs uses no cache.
  std::vector<std::string> serving(const std::vector<std::string>& program,
                                   const std::string& options) const {
    std::vector<std::string> argv{"env",
                                  "-i",
                                  "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
                                  "AWS_ENDPOINT_URL_S3=" + server_.url(""),
                                  "AWS_ACCESS_KEY_ID=key",
                                  "AWS_SECRET_ACCESS_KEY=secret",
                                  "AWS_EC2_METADATA_DISABLED=true"};
    argv.insert(argv.end(), program.begin(), program.end());
    argv.insert(argv.end(), {STFS_BINARY, "-f", "-o", options, url_, device_path()});
    return argv;
  }
  std::vector<std::string> as_user(const std::string& user) const {
    return {"setpriv",
            "--reuid",
            user,
            "--regid",
            user,
            "--clear-groups",
            "--no-new-privs",
            "--bounding-set=-all"};
  }
  // Returns the value of a line of /proc/PID/status, or "" if the process has ended.
  static std::string status_of(pid_t pid, const std::string& name) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with(name + ":\t")) return line.substr(name.size() + 2);
    }
    return "";
  }
  // Returns the stfs processes that serve, without the programs that started them.
  std::vector<pid_t> servers() const {
    std::vector<pid_t> found = processes_with(url_);
    std::erase_if(found, [](pid_t pid) { return status_of(pid, "Name") != "stfs"; });
    return found;
  }
  // Waits for a worker, which is a child of another server, and kills it.
  void kill_worker() const {
    pid_t worker = 0;
    ASSERT_TRUE(eventually([&] {
      const std::vector<pid_t> all = servers();
      for (const pid_t pid : all) {
        const pid_t parent = std::atoi(status_of(pid, "PPid").c_str());
        if (std::ranges::find(all, parent) != all.end()) worker = pid;
      }
      return worker != 0;
    }));
    ASSERT_EQ(::kill(worker, SIGKILL), 0);
  }

  // Unique to this test, because other tests run at the same time.
  const std::string name_ = dir_.path().filename().string() + ".safetensors";
  const std::string url_ = "s3://models/" + name_;
  const Tensor small_ = random_tensor("small", "U8", {1000}, 1);
  const Tensor large_ = random_tensor("large", "U8", {48, kMebibyte}, 2);
  std::map<std::string, WebObject> objects_;
  std::atomic<bool> is_closed_ = false;  // the store does not answer
  std::atomic<bool> is_asked_ = false;   // a request arrived while the store was closed
  HttpServer server_{[this](const WebRequest& request) {
    if (is_closed_) is_asked_ = true;
    eventually([&] { return !is_closed_; });
    return answer_object(request, objects_);
  }};
};

TEST_F(Confined, ServesMountOfOtherProcessAndSurvivesWorkerDeath) {
#ifdef STFS_SANITIZED
  GTEST_SKIP() << "sanitizers need /proc";
#endif
  const std::string confined = STFS_SOURCE_DIR "/tests/support/confined";
  if (run({confined, "/bin/true"}).status != 0) GTEST_SKIP() << "users cannot make user namespaces";
  // A mount ends when the last namespace drops it, so unmounting must also reach the server's
  // namespace.
  checked(::mount(dir_.path().c_str(), dir_.path().c_str(), nullptr, MS_BIND, nullptr), "mount");
  checked(::mount(nullptr, dir_.path().c_str(), nullptr, MS_SHARED, nullptr), "mount");
  mount();
  Process server(serving({confined}, "supervise"));
  release();
  EXPECT_EQ(names_in(mountpoint()), (std::vector<std::string>{"large", "small"})) << server.err();

  std::vector<pid_t> processes;
  ASSERT_TRUE(eventually([&] { return (processes = servers()).size() == 2; }));
  for (const pid_t pid : processes) {
    const std::filesystem::path process = "/proc/" + std::to_string(pid);
    const std::string status = read_file(process / "status");
    EXPECT_NE(status.find("Uid:\t65534\t65534\t65534\t65534\n"), std::string::npos) << status;
    EXPECT_NE(status.find("NoNewPrivs:\t1\n"), std::string::npos) << status;
    for (const char* const set : {"Inh", "Prm", "Eff", "Bnd", "Amb"}) {
      EXPECT_NE(status.find(std::string("Cap") + set + ":\t0000000000000000\n"), std::string::npos)
          << status;
    }
    for (const char* const name : {"mnt", "pid", "ipc", "uts", "user", "cgroup", "net"}) {
      const bool is_ours = std::filesystem::read_symlink(process / "ns" / name) ==
                           std::filesystem::read_symlink(std::string("/proc/self/ns/") + name);
      EXPECT_EQ(is_ours, name == std::string("net")) << name;
    }
    EXPECT_TRUE(names_in(process / "root/dev").empty());
    EXPECT_FALSE(std::filesystem::exists(process / "root/proc"));
    const std::string mounts = read_file(process / "mountinfo");
    EXPECT_EQ(std::ranges::count(mounts, '\n'), 1) << mounts;
    EXPECT_NE(mounts.find(" / / ro,"), std::string::npos) << mounts;
  }

  // A worker dies while it waits for the store and a reader waits for the worker.
  constexpr std::size_t kFar = 32 * kMebibyte;
  is_closed_ = true;
  std::thread reader([&] {
    const int direct = ::open((mountpoint() / "large").c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    void* memory = nullptr;
    EXPECT_EQ(::posix_memalign(&memory, 4096, kMebibyte), 0);
    EXPECT_EQ(::pread(direct, memory, kMebibyte, kFar), static_cast<ssize_t>(kMebibyte))
        << std::strerror(errno);
    EXPECT_EQ(std::memcmp(memory, large_.bytes.data() + kFar, kMebibyte), 0);
    std::free(memory);
    ::close(direct);
  });
  EXPECT_TRUE(eventually([&] { return is_asked_.load(); }));
  kill_worker();
  is_closed_ = false;
  reader.join();

  // Kills workers only between reads, because a request that waits fails when a third worker in a
  // row dies early.
  const int file = checked(::open((mountpoint() / "large").c_str(), O_RDONLY | O_CLOEXEC), "open");
  std::string bytes;
  std::vector<char> part(kMebibyte);
  for (ssize_t n = 0; (n = ::read(file, part.data(), part.size())) != 0;) {
    ASSERT_GT(n, 0) << std::strerror(errno) << " at " << bytes.size();
    bytes.append(part.data(), static_cast<std::size_t>(n));
    if (bytes.size() % (12 * kMebibyte) == 0 && bytes.size() < large_.bytes.size()) kill_worker();
  }
  ::close(file);
  EXPECT_TRUE(bytes == large_.bytes);

  unmount();
  EXPECT_EQ(server.wait().status, 0) << server.err();
}

TEST_F(Confined, StreamsWithin64MiBOfMemory) {
#ifdef STFS_SANITIZED
  GTEST_SKIP() << "a sanitizer needs more";
#endif
  for (const char* const options : {"ro", "supervise"}) {
    const MemoryGroup group(dir_.path().filename(), 64 * kMebibyte);
    if (!group.missing().empty()) GTEST_SKIP() << group.missing();
    mount();
    std::vector<std::string> argv{"bash", "-c", R"(echo $$ >"$0" && exec "$@")", group.processes()};
    for (const std::string& word : serving(as_user("65534"), options)) argv.push_back(word);
    Process server(argv);
    release();
    std::atomic<int> right = 0;
    std::vector<std::thread> readers;
    for (int i = 0; i < 4; ++i) {
      readers.emplace_back([&] { right += read_file(mountpoint() / "large") == large_.bytes; });
    }
    for (std::thread& reader : readers) reader.join();
    EXPECT_EQ(right, 4) << server.err();
    EXPECT_EQ(server.err().find("was killed"), std::string::npos) << server.err();
    unmount();
    EXPECT_EQ(server.wait().status, 0) << server.err();
  }
}

// Fetching needs threads. If they cannot be started, a read fails, at the latest at its deadline,
// and no reader hangs. With enough threads the read returns the right bytes.
TEST_F(Confined, ProcessLimitNeitherHangsNorKillsMount) {
#ifdef STFS_SANITIZED
  GTEST_SKIP() << "sanitizers have threads of their own";
#endif
  const std::string user = std::to_string(1'000'000 + ::getpid());  // a user without processes
  constexpr int kEnough = 40;
  for (const char* const mode : {"ro", "supervise"}) {
    for (const int limit : {1, 7, 8, 10, 13, 14, 15, kEnough}) {
      SCOPED_TRACE(mode + (", " + std::to_string(limit)));
      const std::string options =
          mode + std::string(limit < kEnough ? ",timeout=1" : ",timeout=300");
      mount();
      std::vector<std::string> program{"prlimit", "--nproc=" + std::to_string(limit)};
      for (const std::string& word : as_user(user)) program.push_back(word);
      Process server(serving(program, options));
      release();
      const bool is_served = run({"ls", mountpoint()}).status == 0;
      const Outcome bytes = run({"cat", mountpoint() / "large"});
      EXPECT_TRUE(large_.bytes.starts_with(bytes.out));
      if (bytes.status == 0) {
        EXPECT_EQ(bytes.out.size(), large_.bytes.size());
      }
      EXPECT_FALSE(limit == 1 && bytes.status == 0);
      EXPECT_FALSE(limit == kEnough && bytes.status != 0) << server.err();
      if (is_served) {
        // These bytes were fetched with the header.
        EXPECT_EQ(run({"cat", mountpoint() / "small"}).out, small_.bytes);
        unmount();
      }
      EXPECT_EQ(server.wait().status == 0, is_served) << server.err();
      if (!is_served) unmount_all(mountpoint());
    }
  }
}

}  // namespace
}  // namespace stfs::test
