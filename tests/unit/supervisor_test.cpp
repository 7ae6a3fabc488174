// A supervisor and workers that do nothing but end, as processes of this test.
#include "fs/supervisor.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <new>

namespace stfs::test {
namespace {

// What all the processes of a test count in.
struct Shared {
  std::atomic<int> workers;
  std::atomic<int> lines;
  std::atomic<int> ready;
};

class SupervisorTest : public testing::Test {
 protected:
  ~SupervisorTest() override { ::munmap(shared_, sizeof *shared_); }

  // The exit status of a supervisor whose workers do `work`, given their number, counted from 1.
  int supervise(
      const std::function<void(Supervisor& supervisor, int number)>& work,
      const std::function<void(const std::string& line)>& log = [](const auto&) {}) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      const UniqueFd no_signal(::eventfd(0, EFD_CLOEXEC));
      const Ledger ledger(1);
      Supervisor supervisor(no_signal.get(), ledger,
                            {.ready = [this] { ++shared_->ready; },
                             .log =
                                 [&](const std::string& line) {
                                   ++shared_->lines;
                                   log(line);
                                 }});
      const std::optional<int> status = supervisor.run();
      if (status) ::_exit(*status);
      work(supervisor, ++shared_->workers);
      ::_exit(0);
    }
    int status = -1;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  Shared* shared_ = new (::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Shared{};
};

TEST_F(SupervisorTest, StartsAnotherWorkerForOneThatDied) {
  const auto work = [](Supervisor& supervisor, int number) {
    supervisor.serving();
    if (number < 3) ::raise(SIGKILL);
  };

  EXPECT_EQ(supervise(work), 0);
  EXPECT_EQ(shared_->workers, 3);
  EXPECT_EQ(shared_->lines, 2);
  EXPECT_EQ(shared_->ready, 1);
}

TEST_F(SupervisorTest, GoesOnWithoutMemoryForALineOfTheLog) {
  const auto work = [](Supervisor& supervisor, int number) {
    supervisor.serving();
    if (number == 1) ::raise(SIGKILL);
  };

  EXPECT_EQ(supervise(work, [](const std::string&) { throw std::bad_alloc(); }), 0);
  EXPECT_EQ(shared_->workers, 2);
}

TEST_F(SupervisorTest, GivesUpWhenNoWorkerLives) {
  const auto work = [](Supervisor& supervisor, int) {
    supervisor.serving();
    ::raise(SIGKILL);
  };

  EXPECT_EQ(supervise(work), 4);
  EXPECT_EQ(shared_->workers, 5);
  EXPECT_EQ(shared_->lines, 5);
}

TEST_F(SupervisorTest, TheFirstWorkersStatusIsItsOwnWhenItNeverServed) {
  EXPECT_EQ(supervise([](Supervisor&, int) { ::_exit(3); }), 3);
  EXPECT_EQ(shared_->workers, 1);
  EXPECT_EQ(shared_->ready, 0);
}

}  // namespace
}  // namespace stfs::test
