// Careless and hostile parents of a handed-over mount: wrong descriptors, several servers,
// processes that die, and limits on processes.
#include "tests/mount/handed_over.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fuse.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace stfs::test {
namespace {

class HandOverAttacks : public HandOver, public ::testing::WithParamInterface<const char*> {
 protected:
  // Returns -o ro, which has no effect, or -o supervise.
  std::vector<std::string> options() const { return {"-o", GetParam()}; }
  bool is_supervised() const { return GetParam() == std::string("supervise"); }

  // Hands over `descriptor`, closes it, and expects an error of one line that contains `rule`.
  void expect_refused(int descriptor, const std::string& rule) {
    device_ = checked(descriptor, "a descriptor");
    SCOPED_TRACE(rule + ", " + std::to_string(device_));
    expect_refusal(run(command(options())), 4, rule);
    release();
  }
  // Returns true if a process has the source open.
  bool has_loaded(pid_t pid) const {
    const std::filesystem::path fds = "/proc/" + std::to_string(pid) + "/fd";
    return std::ranges::any_of(names_in(fds), [&](const std::string& fd) {
      std::error_code error;
      return std::filesystem::read_symlink(fds / fd, error) == std::filesystem::canonical(source());
    });
  }
  static bool is_stopped(pid_t pid) {
    return read_file("/proc/" + std::to_string(pid) + "/status").find("State:\tT") !=
           std::string::npos;
  }
  // Starts a process with a script that starts the server and prints the server's process id.
  std::unique_ptr<Process> start_parent(const std::string& script) const {
    std::vector<std::string> argv{"bash", "-c", script, "bash"};
    for (const std::string& word : command(options())) argv.push_back(word);
    return std::make_unique<Process>(argv);
  }
  static pid_t printed_pid(const Process& parent) {
    EXPECT_TRUE(eventually([&] { return parent.out().ends_with("\n"); }));
    return std::stoi(parent.out());
  }
  std::vector<pid_t> servers() const { return processes_with(source()); }
  // Lets a server take a request that belongs to another server. Expects that the reader of the
  // request gets the errno `expected`.
  void take_request(const std::vector<std::string>& environment, int expected);
};

INSTANTIATE_TEST_SUITE_P(Option, HandOverAttacks, ::testing::Values("ro", "supervise"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(HandOverAttacks, RejectsWrongDescriptor) {
  expect_refused(::open("/dev/fuse", O_RDWR | O_CLOEXEC), "no such descriptor");
  const std::string rule = "not a descriptor of /dev/fuse";
  for (const char* const name : {"/dev/null", "/dev/zero", "/dev/full", "/dev/urandom"}) {
    expect_refused(::open(name, O_RDWR), rule);
  }
  expect_refused(::open(source().c_str(), O_RDWR), rule);
  expect_refused(::open(mountpoint().c_str(), O_RDONLY | O_DIRECTORY), rule);
  expect_refused(::memfd_create("no mount", 0), rule);
  std::array<int, 2> ends{};
  checked(::pipe(ends.data()), "pipe");
  for (const int end : ends) expect_refused(end, rule);
  checked(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), "socketpair");
  for (const int end : ends) expect_refused(end, rule);
  expect_refused(::open("/dev/fuse", O_PATH), "not open for reading and writing");
  expect_refused(::open("/dev/fuse", O_WRONLY), "not open for reading and writing");
  expect_refused(::open("/dev/fuse", O_RDWR), "was never mounted");
}

TEST_P(HandOverAttacks, RejectsMountWithReadOnlyDescriptor) {
  mount(MS_RDONLY | MS_NOSUID | MS_NODEV, O_RDONLY);
  expect_refused(std::exchange(device_, -1), "not open for reading and writing");
}

TEST_P(HandOverAttacks, RejectsMountUnmountedBeforeHandshake) {
  mount();
  std::vector<char> handshake(FUSE_MIN_READ_BUFFER);  // so that the server waits for a handshake
  checked(static_cast<int>(::read(device_, handshake.data(), handshake.size())), "read");
  Process server = serve(options());
  EXPECT_TRUE(eventually([&] { return has_loaded(server.pid()) || !server.running(); }));

  unmount();

  expect_refusal(server.wait(), 4, "the mount has ended");
}

// Returns true if the kernel can resend a request that a server took and did not answer.
bool kernel_resends() {
  utsname system{};
  int major = 0;
  int minor = 0;
  return ::uname(&system) == 0 && std::sscanf(system.release, "%d.%d", &major, &minor) == 2 &&
         std::pair(major, minor) >= std::pair(6, 9);
}

// Looks up an absent name. Returns the errno, which is EIO if a server took the request and could
// not return it to the kernel.
int look_up(const std::filesystem::path& absent) {
  return ::access(absent.c_str(), F_OK) == 0 ? 0 : errno;
}

TEST_P(HandOverAttacks, OneServerServesAndOthersExit) {
  for (int mounts = 0; mounts < 20 && !HasFailure(); ++mounts) {
    mount();
    std::vector<std::unique_ptr<Process>> servers;
    for (int i = 0; i < 4; ++i) servers.push_back(std::make_unique<Process>(command(options())));
    release();
    const auto running = [&] { return std::ranges::count_if(servers, &Process::running); };
    int request = 0;
    EXPECT_TRUE(eventually([&] {
      const int error = look_up(mountpoint() / std::to_string(++request));
      EXPECT_TRUE(error == ENOENT || (error == EIO && !kernel_resends())) << std::strerror(error);
      return running() == 1;
    }));
    expect_served();
    EXPECT_EQ(running(), 1);
    unmount();
    int served = 0;
    for (const auto& server : servers) {
      const Outcome result = server->wait();
      if (result.status == 0) {
        ++served;
      } else {
        expect_refusal(result, 4, "another process");
      }
    }
    EXPECT_EQ(served, 1);
  }
}

// Continues a process that waits for SIGCONT until its poll(2) reports that the handshake has
// arrived. Returns false if the process may not be traced.
bool trace_until_handshake(pid_t pid) {
  if (::ptrace(PTRACE_SEIZE, pid, nullptr, PTRACE_O_TRACESYSGOOD) != 0) return false;
  ::kill(pid, SIGCONT);
  ::ptrace(PTRACE_INTERRUPT, pid, nullptr, nullptr);
  constexpr int kSystemCall = SIGTRAP | 0x80;
  bool is_awaiting = false;
  for (int status = 0; ::waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status);) {
    if (WSTOPSIG(status) == kSystemCall) {
      __ptrace_syscall_info info{};
      ::ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info);
      const bool is_exit = info.op == PTRACE_SYSCALL_INFO_EXIT;
      if (is_exit && is_awaiting && info.exit.rval == 1) return true;
      is_awaiting = !is_exit && info.entry.nr == SYS_poll && info.entry.args[1] == 1 &&
                    info.entry.args[2] == 10'000;
    }
    ::ptrace(PTRACE_SYSCALL, pid, nullptr, nullptr);
  }
  return false;
}

TEST_P(HandOverAttacks, DoesNotWaitForHandshakeTakenByAnotherServer) {
#ifndef SYS_poll
  GTEST_SKIP() << "this machine has no poll(2)";
#else
  mount();
  std::vector<std::string> argv{"bash", "-c", R"(kill -STOP $$; exec "$@")", "bash"};
  for (const std::string& word : command(options())) argv.push_back(word);
  Process server(argv);
  EXPECT_TRUE(eventually([&] { return is_stopped(server.pid()); }));
  if (!trace_until_handshake(server.pid())) GTEST_SKIP() << "ptrace: " << std::strerror(errno);

  std::vector<char> handshake(FUSE_MIN_READ_BUFFER);
  EXPECT_GT(::read(device_, handshake.data(), handshake.size()), 0);
  ::ptrace(PTRACE_DETACH, server.pid(), nullptr, nullptr);

  expect_refusal(server.wait(), 4, "another process");
#endif
}

// After the poll(2) of the server, this process takes the handshake and answers it as another
// server, and the request of a reader is waiting.
#ifdef SYS_poll
void HandOverAttacks::take_request(const std::vector<std::string>& environment, int expected) {
  mount();
  std::vector<std::string> argv{"bash", "-c", R"(kill -STOP $$; exec "$@")", "bash"};
  for (const std::string& word : command(options())) argv.push_back(word);
  Process server(argv, {.environment = environment});
  EXPECT_TRUE(eventually([&] { return is_stopped(server.pid()); }));
  if (!trace_until_handshake(server.pid())) GTEST_SKIP() << "ptrace: " << std::strerror(errno);
  std::vector<char> request(FUSE_MIN_READ_BUFFER);
  fuse_in_header header{};
  const auto next_request = [&] {
    EXPECT_GT(::read(device_, request.data(), request.size()), 0) << std::strerror(errno);
    std::memcpy(&header, request.data(), sizeof header);
  };
  next_request();
  struct {
    fuse_out_header header;
    fuse_init_out handshake;
  } agreed{};
  agreed.header = {sizeof agreed, 0, header.unique};
  agreed.handshake.major = FUSE_KERNEL_VERSION;
  agreed.handshake.minor = 31;
  agreed.handshake.max_write = 4096;  // so that the buffer of the losing server is large enough
  EXPECT_EQ(::write(device_, &agreed, sizeof agreed), static_cast<ssize_t>(sizeof agreed));
  std::future<int> reader =
      std::async(std::launch::async, [&] { return look_up(mountpoint() / "none"); });
  pollfd device{device_, POLLIN, 0};
  EXPECT_EQ(::poll(&device, 1, -1), 1);
  ::ptrace(PTRACE_DETACH, server.pid(), nullptr, nullptr);

  expect_refusal(server.wait(), 4, "another process serves this mount");

  if (::poll(&device, 1, 0) == 1) {
    next_request();
    const fuse_out_header absent{sizeof absent, -ENOENT, header.unique};
    EXPECT_EQ(::write(device_, &absent, sizeof absent), static_cast<ssize_t>(sizeof absent));
  }
  release();  // a reader that still waits gets ENOTCONN
  const int error = reader.get();
  EXPECT_EQ(error, expected) << std::strerror(error);
}

TEST_P(HandOverAttacks, ReturnsRequestOfAnotherServerToKernel) {
  take_request({}, kernel_resends() ? ENOENT : EIO);
}

TEST_P(HandOverAttacks, RequestOfAnotherServerFailsIfKernelCannotResend) {
  std::vector<std::string> environment = sanitizer_options("verify_asan_link_order=0");
  environment.push_back("LD_PRELOAD=" STFS_OLD_KERNEL);
  take_request(environment, EIO);
}
#endif

TEST_P(HandOverAttacks, SurvivesDeathOfParentBeforeServing) {
  mount();
  const auto parent =
      start_parent(R"(bash -c 'kill -STOP $$; exec "$@"' bash "$@" & echo $!; wait)");
  const pid_t server = printed_pid(*parent);
  release();
  EXPECT_TRUE(eventually([&] { return is_stopped(server); }));

  parent->signal(SIGKILL);
  parent->wait();
  ::kill(server, SIGCONT);

  expect_served();
  unmount();
  EXPECT_TRUE(eventually([&] { return servers().empty(); }));
}

TEST_P(HandOverAttacks, SurvivesDeathOfParentWhileServing) {
  mount();
  const auto parent = start_parent(R"("$@" & echo $!; wait)");
  const pid_t server = printed_pid(*parent);
  release();
  expect_served();

  parent->signal(SIGKILL);
  parent->wait();

  EXPECT_EQ(::access((mountpoint() / "none").c_str(), F_OK), -1);
  EXPECT_EQ(errno, ENOENT);
  for (const pid_t worker : servers()) {
    if (is_supervised() && worker != server) ::kill(worker, SIGKILL);
  }
  EXPECT_EQ(::access((mountpoint() / "nothing").c_str(), F_OK), -1);
  EXPECT_EQ(errno, ENOENT);
  expect_served();
  unmount();
  EXPECT_TRUE(eventually([&] { return servers().empty(); }));
}

TEST_P(HandOverAttacks, KilledServerLeavesDeadMountIfDescriptorIsClosed) {
  mount();
  Process server = serve(options());
  release();
  expect_served();
  for (const pid_t pid : servers()) {
    if (pid != server.pid())
      ::kill(pid, SIGSTOP);  // so that no worker continues without the server
  }

  server.signal(SIGKILL);
  for (const pid_t pid : servers()) ::kill(pid, SIGKILL);

  EXPECT_TRUE(eventually(
      [&] { return ::access((mountpoint() / "none").c_str(), F_OK) == -1 && errno == ENOTCONN; }));
}

TEST_P(HandOverAttacks, ForcedUnmountEndsServer) {
  mount();
  Process server = serve(options());
  release();
  const int file = checked(::open((mountpoint() / "tokens").c_str(), O_RDONLY | O_CLOEXEC), "open");

  ::umount2(mountpoint().c_str(), MNT_FORCE);  // the mount is busy, but its connection is aborted

  EXPECT_EQ(server.wait().status, 0) << server.err();
  ::close(file);
}

// A limit on processes counts threads. If there are too few threads, the mount fails or uses fewer
// threads, but no reader hangs.
TEST_P(HandOverAttacks, ProcessLimitFailsMountCleanlyOrNotAtAll) {
#ifdef STFS_SANITIZED
  GTEST_SKIP() << "sanitizers start additional threads";
#endif
  const std::string user =
      std::to_string(1'000'000 + ::getpid());  // a user without other processes
  bool was_served = false;
  for (const char* const limit : {"1", "2", "4", "6", "7", "8", "9", "12", "16"}) {
    SCOPED_TRACE(limit);
    mount();
    std::vector<std::string> argv{"prlimit", std::string("--nproc=") + limit};
    for (const std::string& word : command(options())) {
      argv.push_back(word == "65534" ? user : word);
    }
    Process server(argv);
    release();

    const bool is_served = run({"ls", mountpoint()}).status == 0;
    if (is_served) {
      const std::string digest = run({"sha256sum", source()}).out.substr(0, 64);
      for (const char* const file : {".stfs/sha256/tokens", ".stfs/stats/mask.json"}) {
        EXPECT_EQ(run({"cat", mountpoint() / file}).status, 0) << file;
      }
      EXPECT_EQ(run({"sha256sum", mountpoint() / ".stfs/merged.safetensors"}).out.substr(0, 64),
                digest);
      unmount();
      EXPECT_EQ(server.wait().status, 0) << server.err();
      EXPECT_EQ(server.err(), "");
    } else {
      EXPECT_FALSE(was_served) << "a lower limit was enough";
      expect_refusal(server.wait(), 4, "Resource temporarily unavailable");
      unmount_all(mountpoint());
    }
    was_served = is_served;
  }
  EXPECT_TRUE(was_served);
}

}  // namespace
}  // namespace stfs::test
