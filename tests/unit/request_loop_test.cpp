// The tests send requests through a packet socket, which separates them as /dev/fuse does. Threads
// meet at latches; no test sleeps.
#include "fs/fuse/request_loop.h"

#include "tests/support/files.h"
#include "tests/support/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/fuse.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <future>
#include <latch>
#include <set>
#include <system_error>
#include <vector>

namespace stfs::test {
namespace {

class RequestLoopTest : public testing::Test {
 protected:
  RequestLoopTest() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
      throw std::system_error(errno, std::generic_category());
    kernel_ = UniqueFd(ends[0]);
    device_ = UniqueFd(ends[1]);
  }

  void send(std::uint64_t number, std::uint32_t opcode = FUSE_GETATTR) const {
    fuse_in_header header{};
    header.len = sizeof header;
    header.opcode = opcode;
    header.unique = number;
    ASSERT_EQ(::send(kernel_.get(), &header, sizeof header, 0), ssize_t{sizeof header});
  }

  static std::uint64_t number(std::span<const std::byte> request) {
    fuse_in_header header{};
    EXPECT_EQ(request.size(), sizeof header);
    std::memcpy(&header, request.data(), sizeof header);
    return header.unique;
  }

  static std::size_t threads() { return names_in("/proc/self/task").size(); }

  static constexpr std::size_t kLongest = 8192;
  UniqueFd kernel_;
  UniqueFd device_;
};

TEST_F(RequestLoopTest, AnswersEachRequestOnce) {
  constexpr std::uint64_t kRequests = 1000;
  std::vector<std::atomic<int>> answers(kRequests);
  std::latch all(kRequests);
  {
    const RequestLoop loop(device_.get(), {kLongest, 2, 4}, [&](std::span<std::byte> request) {
      ++answers.at(number(request));
      all.count_down();
    });
    for (std::uint64_t i = 0; i < kRequests; ++i) send(i);
    all.wait();
  }

  for (std::uint64_t i = 0; i < kRequests; ++i) EXPECT_EQ(answers[i], 1) << i;
}

TEST_F(RequestLoopTest, StartsThreadsUpToLimitWhileOthersAreBusy) {
  constexpr unsigned kThreads = 8;
  std::latch busy(kThreads);  // each thread waits for all others
  std::atomic<unsigned> now = 0;
  std::atomic<unsigned> most = 0;
  std::latch all(3L * kThreads);
  const RequestLoop loop(device_.get(), {kLongest, 1, kThreads}, [&](std::span<std::byte> request) {
    const unsigned with_this = ++now;
    for (unsigned known = most;
         known < with_this && !most.compare_exchange_weak(known, with_this);) {
    }
    if (number(request) < kThreads) busy.arrive_and_wait();
    --now;
    all.count_down();
  });

  for (std::uint64_t i = 0; i < 3UL * kThreads; ++i) send(i);
  all.wait();

  EXPECT_EQ(most, kThreads);
}

TEST_F(RequestLoopTest, IdleThreadsEnd) {
  constexpr unsigned kThreads = 16;
  constexpr unsigned kIdle = 2;
  std::thread([] {}).join();  // ThreadSanitizer starts its own thread with the first one
  const std::size_t before = threads();
  std::latch busy(kThreads);
  const RequestLoop loop(device_.get(), {kLongest, kIdle, kThreads},
                         [&](std::span<std::byte>) { busy.arrive_and_wait(); });

  for (std::uint64_t i = 0; i < kThreads; ++i) send(i);
  busy.wait();

  EXPECT_TRUE(eventually([&] { return threads() <= before + kIdle; })) << threads();
}

TEST_F(RequestLoopTest, ForgetRequestsStartNoThread) {
  std::set<std::thread::id> threads;  // needs no lock, because a single thread uses it
  std::latch all(100);
  const RequestLoop loop(device_.get(), {kLongest, 4, 8}, [&](std::span<std::byte>) {
    threads.insert(std::this_thread::get_id());
    all.count_down();
  });

  for (std::uint64_t i = 0; i < 100; ++i) send(i, i % 2 == 0 ? FUSE_FORGET : FUSE_BATCH_FORGET);
  all.wait();

  EXPECT_EQ(threads.size(), 1u);
}

TEST_F(RequestLoopTest, CanBeDestroyedAtAnyMoment) {
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> answers = 0;
    {
      const RequestLoop loop(device_.get(), {kLongest, 4, 8},
                             [&](std::span<std::byte>) { ++answers; });
      for (int i = 0; i < round % 4; ++i) send(1);
    }
    char left[64];
    int unread = 0;
    while (::recv(device_.get(), left, sizeof left, MSG_DONTWAIT) > 0) ++unread;
    // Each request was answered, is still queued, or was being read when the loop ended.
    EXPECT_LE(answers + unread, round % 4);
  }
}

TEST_F(RequestLoopTest, DestructorWaitsForRunningAnswers) {
  std::promise<void> may_answer;
  std::latch has_begun(1);
  std::atomic<bool> answered = false;
  std::thread other;
  {
    const RequestLoop loop(device_.get(), {kLongest, 1, 2}, [&](std::span<std::byte>) {
      has_begun.count_down();
      may_answer.get_future().wait();
      answered = true;
    });
    send(1);
    has_begun.wait();
    other = std::thread([&] { may_answer.set_value(); });
  }
  EXPECT_TRUE(answered);
  other.join();
}

TEST_F(RequestLoopTest, ReportsErrnoOfFailedRead) {
  const UniqueFd directory(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const RequestLoop loop(directory.get(), {kLongest, 1, 1}, [](std::span<std::byte>) { FAIL(); });

  pollfd ended{loop.ended(), POLLIN, 0};
  ASSERT_EQ(::poll(&ended, 1, -1), 1);
  EXPECT_EQ(loop.error(), EISDIR);
}

// Makes read(2) of a descriptor fail in this thread and in the threads that it starts.
void fail_reads(int fd, int error) {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_read, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(fd), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(rules), rules};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

TEST_F(RequestLoopTest, UnmountGivesNoError) {
  for (const auto& [read_fails_with, error] :
       {std::pair(ENODEV, 0), std::pair(ECONNABORTED, 0), std::pair(EPERM, EPERM)}) {
    std::thread([&, fails_with = read_fails_with, expected = error] {
      fail_reads(device_.get(), fails_with);
      const RequestLoop loop(device_.get(), {kLongest, 1, 1}, [](std::span<std::byte>) { FAIL(); });

      pollfd ended{loop.ended(), POLLIN, 0};
      ASSERT_EQ(::poll(&ended, 1, -1), 1);
      EXPECT_EQ(loop.error(), expected) << fails_with;
    }).join();
  }
}

TEST_F(RequestLoopTest, ShortRequestIsEIO) {
  ASSERT_EQ(::send(kernel_.get(), "short", 5, 0), 5);
  const RequestLoop loop(device_.get(), {kLongest, 1, 1}, [](std::span<std::byte>) { FAIL(); });

  pollfd ended{loop.ended(), POLLIN, 0};
  ASSERT_EQ(::poll(&ended, 1, -1), 1);
  EXPECT_EQ(loop.error(), EIO);
}

}  // namespace
}  // namespace stfs::test
