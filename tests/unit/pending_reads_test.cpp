// Tests of waiting reads: arrival, cancellation and stop(). Threads meet at latches; no test
// sleeps.
#include "fs/mount/pending_reads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <future>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

struct ReadAnswer {
  int error = -1;
  std::string bytes;
  std::thread::id thread;
};

// One waiter, and the promise of its answer.
class Waiter {
 public:
  explicit Waiter(
      PendingReads& waiting,
      const PendingReads::WillWait& will_wait = [](PendingReads::Ticket) {}) {
    ticket = waiting.wait(will_wait, [promise = promise_](int error, const Reply& reply) {
      std::string bytes;
      for (const iovec& piece : reply.pieces()) {
        bytes.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
      }
      // A second call throws and ends the test.
      promise->set_value({error, bytes, std::this_thread::get_id()});
    });
  }
  ReadAnswer answer() { return future_.get(); }
  bool is_answered() {
    return future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  PendingReads::Ticket ticket = 0;

 private:
  std::shared_ptr<std::promise<ReadAnswer>> promise_ = std::make_shared<std::promise<ReadAnswer>>();
  std::future<ReadAnswer> future_ = promise_->get_future();
};

TEST(PendingReads, AnswersOnceOnThreadOfArrival) {
  PendingReads waiting;
  Waiter waiter(waiting);
  EXPECT_TRUE(waiting.is_waiting(waiter.ticket));
  EXPECT_FALSE(waiter.is_answered());
  std::string text = "reply";
  Reply reply;
  reply.reading.pieces.push_back({text.data(), text.size()});

  waiting.arrive(waiter.ticket, 0, reply);
  waiting.arrive(waiter.ticket, EIO, {});
  waiting.cancel(waiter.ticket);
  waiting.cancel(12345);

  EXPECT_FALSE(waiting.is_waiting(waiter.ticket));
  const ReadAnswer answer = waiter.answer();
  EXPECT_EQ(answer.error, 0);
  EXPECT_EQ(answer.bytes, "reply");
  EXPECT_EQ(answer.thread, std::this_thread::get_id());
}

TEST(PendingReads, CancelledReadGetsEINTROnOtherThreadAndNoMoreSteps) {
  PendingReads waiting;
  Waiter waiter(waiting);
  EXPECT_TRUE(waiting.go_on(waiter.ticket, [] {}));

  waiting.cancel(waiter.ticket);

  const ReadAnswer answer = waiter.answer();
  EXPECT_EQ(answer.error, EINTR);
  EXPECT_NE(answer.thread, std::this_thread::get_id());
  EXPECT_FALSE(waiting.go_on(waiter.ticket, [] { ADD_FAILURE(); }));
  waiting.arrive(waiter.ticket, 0, {});
}

// libfuse cancels while it takes the ticket, and holds a lock that the answer needs.
TEST(PendingReads, ReadCancelledDuringWillWaitIsAnsweredAfterwards) {
  PendingReads waiting;
  bool has_ticket = false;
  Waiter waiter(waiting, [&](PendingReads::Ticket ticket) {
    waiting.cancel(ticket);
    has_ticket = true;
  });

  EXPECT_TRUE(has_ticket);
  EXPECT_TRUE(waiter.is_answered());
  EXPECT_EQ(waiter.answer().error, EINTR);
  EXPECT_FALSE(waiting.is_waiting(waiter.ticket));
}

TEST(PendingReads, StopAnswersWaitingAndLaterReads) {
  PendingReads waiting;
  Waiter first(waiting);
  Waiter second(waiting);

  waiting.stop();
  waiting.stop();
  Waiter late(waiting);

  for (Waiter* const waiter : {&first, &second, &late}) {
    ASSERT_TRUE(waiter->is_answered());
    EXPECT_EQ(waiter->answer().error, EINTR);
  }
}

// The objects that an answer or a step uses may be destroyed after stop() has returned.
TEST(PendingReads, StopWaitsForRunningAnswerOrStep) {
  for (const bool is_step : {false, true}) {
    SCOPED_TRACE(is_step ? "step" : "answer");
    PendingReads waiting;
    std::latch begun(1), may_continue(1);
    std::atomic<bool> is_over = false;
    const auto work = [&] {
      begun.count_down();
      may_continue.wait();
      is_over = true;
    };
    const PendingReads::Ticket ticket = waiting.wait(
        [](PendingReads::Ticket) {}, [&](int, const Reply&) { is_step ? void() : work(); });
    std::thread source(
        [&] { is_step ? void(waiting.go_on(ticket, work)) : waiting.arrive(ticket, 0, {}); });
    begun.wait();

    auto stopped = std::async(std::launch::async, [&] {
      waiting.stop();
      return is_over.load();
    });

    EXPECT_EQ(stopped.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
    may_continue.count_down();
    EXPECT_TRUE(stopped.get());
    source.join();
  }
}

TEST(PendingReads, AnswersEachReadOnceDespiteConcurrentCancels) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 500;
  std::atomic<int> answers = 0;
  {
    PendingReads waiting;
    std::latch start(kThreads);
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        start.arrive_and_wait();
        for (int i = 0; i < kRounds; ++i) {
          const PendingReads::Ticket ticket = waiting.wait(
              [&](PendingReads::Ticket issued) {
                (i + t) % 7 == 0 ? waiting.cancel(issued) : void();
              },
              [&](int error, const Reply&) {
                EXPECT_TRUE(error == 0 || error == EINTR) << error;
                ++answers;
              });
          if ((i + t) % 3 == 0) waiting.cancel(ticket);
          if (i % 5 != 0) waiting.arrive(ticket, 0, {});
        }
      });
    }
  }
  EXPECT_EQ(answers, kThreads * kRounds);
}

}  // namespace
}  // namespace stfs::test
