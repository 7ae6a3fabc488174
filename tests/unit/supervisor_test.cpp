// Runs a supervisor and its workers as child processes of this test.
#include "fs/fuse/supervisor.h"

#include "tests/support/files.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <new>
#include <sstream>
#include <string>

namespace stfs::test {
namespace {

// Counters in memory that all processes of a test share.
struct Shared {
  std::atomic<int> workers;
  std::atomic<int> lines;
  std::atomic<int> ready;
  std::atomic<int> endings;
  std::atomic<int> terminations;
};

class SupervisorTest : public testing::Test {
 protected:
  static constexpr unsigned kHangs = 60;  // seconds until a hanging supervisor is killed

  ~SupervisorTest() override { ::munmap(shared_, sizeof *shared_); }

  // Returns the exit status of a supervisor with workers that do `work`. The first worker has
  // number 1.
  int supervise(
      const std::function<void(Worker& worker, int number)>& work,
      const std::function<void()>& prepare = [] {}) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::alarm(kHangs);
      const Ledger ledger(1);
      Supervisor supervisor(signal_.get(), ledger,
                            {.ready = [this] { ++shared_->ready; },
                             .ending = [this] { ++shared_->endings; },
                             .log = [this](const std::string&) { ++shared_->lines; }});
      prepare();
      ::_exit(supervisor.run([&](Worker& worker) {
        work(worker, ++shared_->workers);
        return 0;
      }));
    }
    int status = -1;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  static inline std::atomic<int>* on_exit_ = nullptr;
  const UniqueFd signal_{::eventfd(0, EFD_CLOEXEC)};  // replaces a signalfd
  Shared* shared_ = new (::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Shared{};
};

TEST_F(SupervisorTest, RestartsDeadWorker) {
  const auto work = [](Worker& worker, int number) {
    worker.serving();
    if (number < 3) ::raise(SIGKILL);
  };

  EXPECT_EQ(supervise(work), 0);
  EXPECT_EQ(shared_->workers, 3);
  EXPECT_EQ(shared_->lines, 2);
  EXPECT_EQ(shared_->ready, 1);
}

TEST_F(SupervisorTest, NeverGivesUpAfterWorkerHasServed) {
  const auto work = [](Worker& worker, int number) {
    worker.serving();
    if (number <= 6) ::raise(SIGKILL);
  };

  EXPECT_EQ(supervise(work), 0);
  EXPECT_EQ(shared_->workers, 7);
  EXPECT_EQ(shared_->lines, 6);
}

TEST_F(SupervisorTest, NoticesDeathIfPidfdOpenFails) {
  const auto work = [](Worker& worker, int number) {
    worker.serving();
    if (number == 1) ::raise(SIGKILL);
  };
  const auto forbid_pidfd_open = [] {  // old container runtimes do this too
    sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EMFILE),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{std::size(rules), rules};
    ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
  };

  EXPECT_EQ(supervise(work, forbid_pidfd_open), 0);
  EXPECT_EQ(shared_->workers, 2);
}

// Returns true if a process sleeps, as the supervisor does after a failed poll. /proc/PID/syscall
// begins with the number of the process's system call.
bool is_sleeping(pid_t process) {
  std::istringstream call(read_file("/proc/" + std::to_string(process) + "/syscall"));
  std::string number;
  call >> number;
  return number == std::to_string(SYS_clock_nanosleep) || number == std::to_string(SYS_nanosleep);
}

TEST_F(SupervisorTest, HandlesSignalAfterPollFailure) {
  const auto allow = [](rlim_t descriptors) {
    rlimit limit{};
    ::prlimit(::getppid(), RLIMIT_NOFILE, nullptr, &limit);
    limit.rlim_cur = std::min(descriptors, limit.rlim_max);
    ::prlimit(::getppid(), RLIMIT_NOFILE, &limit, nullptr);
  };
  const auto work = [&](Worker& worker, int) {
    ::alarm(2 * kHangs);
    allow(1);  // poll(2) fails, because the supervisor polls two
    worker.serving();
    while (!is_sleeping(::getppid())) ::sched_yield();
    allow(RLIM_INFINITY);
    ::eventfd_write(signal_.get(), 1);
    ::pause();  // until SIGTERM
  };

  EXPECT_EQ(supervise(work), 0);
  EXPECT_EQ(shared_->endings, 1);
}

TEST_F(SupervisorTest, TerminatesStoppedWorkerWithSIGTERM) {
  const auto work = [this](Worker& worker, int) {
    static Shared* shared;
    shared = shared_;
    ::signal(SIGTERM, [](int) {
      ++shared->terminations;
      ::_exit(0);
    });
    worker.serving();
    const pid_t stopped = ::getpid();
    if (::fork() == 0) {
      const std::string status = "/proc/" + std::to_string(stopped) + "/status";
      while (read_file(status).find("State:\tT") == std::string::npos) ::sched_yield();
      ::eventfd_write(signal_.get(), 1);
      ::_exit(0);
    }
    ::raise(SIGSTOP);
    while (true) ::pause();
  };

  EXPECT_EQ(supervise(work), 0);
  EXPECT_EQ(shared_->terminations, 1) << "the worker was killed";
}

TEST_F(SupervisorTest, FailedStartAfterWorkerHasServedCountsAsDeath) {
  const auto work = [](Worker& worker, int number) {
    if (number == 2) ::_exit(4);
    worker.serving();
    if (number == 1) ::raise(SIGKILL);
  };

  EXPECT_EQ(supervise(work), 0);
  EXPECT_EQ(shared_->workers, 3);
  EXPECT_EQ(shared_->lines, 2);
}

TEST_F(SupervisorTest, CallsEndingWhenWorkerReportsItsEnd) {
  const auto work = [this](Worker& worker, int) {
    worker.serving();
    worker.ending();
    while (shared_->endings == 0) ::sched_yield();
  };

  EXPECT_EQ(supervise(work), 0);
  EXPECT_EQ(shared_->workers, 1);
  EXPECT_EQ(shared_->lines, 0);
}

TEST_F(SupervisorTest, WorkerDoesNotRunAtexitHandlers) {
  on_exit_ = &shared_->endings;
  const auto before_fork = [] { std::atexit([] { ++*on_exit_; }); };

  EXPECT_EQ(supervise([](Worker& worker, int) { worker.serving(); }, before_fork), 0);
  EXPECT_EQ(shared_->endings, 0);
}

TEST_F(SupervisorTest, PauseGrowsWithYoungDeathsUpToOneSecond) {
  using std::chrono::milliseconds;
  EXPECT_EQ(Supervisor::pause_after(0), milliseconds(0));
  EXPECT_EQ(Supervisor::pause_after(1), milliseconds(100));
  EXPECT_EQ(Supervisor::pause_after(9), milliseconds(900));
  EXPECT_EQ(Supervisor::pause_after(10), milliseconds(1000));
  EXPECT_EQ(Supervisor::pause_after(4'000'000'000), milliseconds(1000));
}

TEST_F(SupervisorTest, ReturnsStatusOfFirstWorkerIfItNeverServed) {
  EXPECT_EQ(supervise([](Worker&, int) { ::_exit(3); }), 3);
  EXPECT_EQ(shared_->workers, 1);
  EXPECT_EQ(shared_->ready, 0);
}

}  // namespace
}  // namespace stfs::test
