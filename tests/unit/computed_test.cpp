// Computed texts: jobs, waiters and cancellation. Threads meet at latches; nothing here sleeps.
#include "fs/mount/computed.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <future>
#include <latch>
#include <new>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

struct Answer {
  int error = -1;
  std::string text;
};

// One request, and the promise of its answer.
class Asked {
 public:
  Asked(Computed& computed, Computed::Key key) : Asked(computed, key, computed.ticket()) {}
  Asked(Computed& computed, Computed::Key key, Computed::Ticket ticket) : ticket_(ticket) {
    computed.request(ticket, key, [promise = promise_](int error, const std::string& text) {
      promise->set_value({error, text});  // a second call throws and ends the test
    });
  }
  Computed::Ticket ticket() const { return ticket_; }
  Answer answer() { return future_.get(); }
  bool is_answered() {
    return future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

 private:
  std::shared_ptr<std::promise<Answer>> promise_ = std::make_shared<std::promise<Answer>>();
  std::future<Answer> future_ = promise_->get_future();
  Computed::Ticket ticket_;
};

int echo(Computed::Key key, const std::atomic<bool>&, std::string& text) {
  text = "text " + std::to_string(key);
  return 0;
}

// Works until it is stopped, as a long computation that checks `stop` does.
int until_stopped(const std::atomic<bool>& stop) {
  while (!stop) std::this_thread::yield();
  return EINTR;
}

TEST(Computed, AnswersWithTheTextOfTheKey) {
  Computed computed(2, echo);

  for (Computed::Key key = 0; key < 20; ++key) {
    const Answer answer = Asked(computed, key).answer();
    EXPECT_EQ(answer.error, 0);
    EXPECT_EQ(answer.text, "text " + std::to_string(key));
  }
}

TEST(Computed, WorkThatMayWaitHoldsUpNoOther) {
  constexpr Computed::Key kFar = 100;
  Computed computed(
      1,
      [](Computed::Key key, const std::atomic<bool>& stop, std::string& text) {
        return key >= kFar ? until_stopped(stop) : echo(key, stop, text);
      },
      [](Computed::Key key) { return key >= kFar; });
  std::vector<std::unique_ptr<Asked>> far;
  for (Computed::Key key = 0; key < 2 * Computed::kMostWaiting; ++key) {
    far.push_back(std::make_unique<Asked>(computed, kFar + key));
  }

  EXPECT_EQ(Asked(computed, 1).answer().text, "text 1");

  computed.stop();
  for (const auto& waiter : far) EXPECT_EQ(waiter->answer().error, EINTR);
}

TEST(Computed, ComputesOnceForAllWhoWait) {
  std::atomic<int> times = 0;
  std::latch all_asked(1);
  Computed computed(3, [&](Computed::Key key, const std::atomic<bool>& stop, std::string& text) {
    ++times;
    all_asked.wait();
    return echo(key, stop, text);
  });
  std::vector<std::unique_ptr<Asked>> waiters;
  for (int i = 0; i < 100; ++i) waiters.push_back(std::make_unique<Asked>(computed, 5));
  all_asked.count_down();

  for (const auto& waiter : waiters) {
    const Answer answer = waiter->answer();
    EXPECT_EQ(answer.error, 0);
    EXPECT_EQ(answer.text, "text 5");
  }
  EXPECT_EQ(times, 1);
}

TEST(Computed, KeepsTheTextOfAnOpenFileHoweverManyOthersAreComputed) {
  std::atomic<int> times = 0;
  Computed computed(1, [&](Computed::Key key, const std::atomic<bool>&, std::string& text) {
    times += key == 5 ? 1 : 0;
    text.assign(Computed::kMaxBytes / 4, 'x');
    return 0;
  });
  const auto compute_others = [&] {
    for (Computed::Key key = 10; key < 20; ++key) Asked(computed, key).answer();
  };
  computed.hold(5);
  computed.hold(5);
  computed.let_go(77);  // was never held
  Asked(computed, 5).answer();
  computed.let_go(5);

  compute_others();
  Asked(computed, 5).answer();
  EXPECT_EQ(times, 1);

  computed.let_go(5);
  compute_others();
  Asked(computed, 5).answer();
  EXPECT_EQ(times, 2);
}

TEST(Computed, KeepsTheTextAndAnswersAtOnceOnTheRequestingThread) {
  std::atomic<int> times = 0;
  Computed computed(1, [&](Computed::Key key, const std::atomic<bool>& stop, std::string& text) {
    ++times;
    return echo(key, stop, text);
  });
  Asked(computed, 5).answer();

  std::thread::id thread;
  computed.request(computed.ticket(), 5, [&](int error, const std::string& text) {
    thread = std::this_thread::get_id();
    EXPECT_EQ(error, 0);
    EXPECT_EQ(text, "text 5");
  });

  EXPECT_EQ(thread, std::this_thread::get_id());
  EXPECT_EQ(times, 1);
}

TEST(Computed, ComputesAsManyAtOnceAsThereAreThreads) {
  std::latch both(2);
  Computed computed(2, [&](Computed::Key key, const std::atomic<bool>& stop, std::string& text) {
    both.arrive_and_wait();  // with a single thread this would hang
    return echo(key, stop, text);
  });
  Asked first(computed, 1);
  Asked second(computed, 2);

  EXPECT_EQ(first.answer().error, 0);
  EXPECT_EQ(second.answer().error, 0);
}

TEST(Computed, KeepsABoundedNumberOfTextsAndComputesTheOldestAgain) {
  std::atomic<int> times = 0;
  Computed computed(1, [&](Computed::Key key, const std::atomic<bool>& stop, std::string& text) {
    ++times;
    return echo(key, stop, text);
  });
  for (Computed::Key key = 0; key <= Computed::kMaxTexts; ++key) Asked(computed, key).answer();
  const int before = times;

  EXPECT_EQ(Asked(computed, Computed::kMaxTexts).answer().text,
            "text " + std::to_string(Computed::kMaxTexts));
  EXPECT_EQ(times, before) << "the newest is kept";
  EXPECT_EQ(Asked(computed, 0).answer().text, "text 0");
  EXPECT_EQ(times, before + 1);
}

TEST(Computed, KeepsABoundedNumberOfBytesAndDropsTheLeastRecentlyUsed) {
  std::atomic<int> times = 0;
  Computed computed(1, [&](Computed::Key, const std::atomic<bool>&, std::string& text) {
    ++times;
    text.assign(Computed::kMaxBytes / 3, 'x');
    return 0;
  });
  for (const Computed::Key key : {1, 2, 3, 1, 4}) Asked(computed, key).answer();
  EXPECT_EQ(times, 4);

  for (const Computed::Key key : {1, 3, 4}) Asked(computed, key).answer();
  EXPECT_EQ(times, 4) << "1 was used after 2";
  Asked(computed, 2).answer();
  EXPECT_EQ(times, 5);
}

TEST(Computed, DoesNotKeepAnError) {
  std::atomic<int> times = 0;
  Computed computed(1, [&](Computed::Key key, const std::atomic<bool>& stop, std::string& text) {
    if (++times < 3) return ESTALE;
    return echo(key, stop, text);
  });

  EXPECT_EQ(Asked(computed, 1).answer().error, ESTALE);
  EXPECT_EQ(Asked(computed, 1).answer().error, ESTALE);
  EXPECT_EQ(Asked(computed, 1).answer().error, 0);
  EXPECT_EQ(Asked(computed, 1).answer().text, "text 1");
  EXPECT_EQ(times, 3);
}

TEST(Computed, TurnsRunningOutOfMemoryIntoAnErrno) {
  Computed computed(1, [](Computed::Key, const std::atomic<bool>&, std::string&) -> int {
    throw std::bad_alloc();
  });

  EXPECT_EQ(Asked(computed, 1).answer().error, ENOMEM);
}

TEST(Computed, AnswersARequestThatWasCancelledBeforeItWasMade) {
  std::atomic<int> times = 0;
  Computed computed(1, [&](Computed::Key key, const std::atomic<bool>& stop, std::string& text) {
    ++times;
    return echo(key, stop, text);
  });
  const Computed::Ticket ticket = computed.ticket();
  computed.cancel(ticket);

  Asked asked(computed, 1, ticket);

  EXPECT_TRUE(asked.is_answered()) << "at once";
  EXPECT_EQ(asked.answer().error, EINTR);
  EXPECT_EQ(times, 0);
}

TEST(Computed, AnswersACancelledRequestAndStopsTheWorkWhenNobodyIsLeft) {
  std::latch running(1);
  std::latch stopped(1);
  Computed computed(1, [&](Computed::Key, const std::atomic<bool>& stop, std::string&) {
    running.count_down();
    const int error = until_stopped(stop);
    stopped.count_down();
    return error;
  });
  Asked asked(computed, 1);
  running.wait();

  computed.cancel(asked.ticket());

  const Answer answer = asked.answer();
  EXPECT_EQ(answer.error, EINTR);
  EXPECT_EQ(answer.text, "");
  stopped.wait();
}

TEST(Computed, AnswersACancelledRequestThoughEveryThreadIsBusyAndDeaf) {
  std::latch running(1);
  std::latch release(1);
  Computed computed(1, [&](Computed::Key key, const std::atomic<bool>& stop, std::string& text) {
    running.count_down();
    release.wait();
    return echo(key, stop, text);
  });
  Asked asked(computed, 1);
  running.wait();
  Asked queued(computed, 2);

  computed.cancel(asked.ticket());
  computed.cancel(queued.ticket());

  EXPECT_EQ(asked.answer().error, EINTR);
  EXPECT_EQ(queued.answer().error, EINTR);
  release.count_down();
}

TEST(Computed, GoesOnForThoseWhoStillWait) {
  std::latch running(1);
  std::latch release(1);
  std::atomic<bool> was_stopped = false;
  Computed computed(1, [&](Computed::Key key, const std::atomic<bool>& stop, std::string& text) {
    running.count_down();
    release.wait();
    was_stopped = stop.load();
    return echo(key, stop, text);
  });
  Asked gone(computed, 1);
  Asked stays(computed, 1);
  running.wait();

  computed.cancel(gone.ticket());
  EXPECT_EQ(gone.answer().error, EINTR);
  release.count_down();

  EXPECT_EQ(stays.answer().error, 0);
  EXPECT_FALSE(was_stopped);
}

TEST(Computed, BeginsAnewForWhoAsksAfterAllHadGone) {
  std::atomic<int> times = 0;
  std::latch running(1);
  Computed computed(1, [&](Computed::Key key, const std::atomic<bool>& stop, std::string& text) {
    if (++times == 1) {
      running.count_down();
      return until_stopped(stop);
    }
    return echo(key, stop, text);
  });
  Asked gone(computed, 1);
  running.wait();
  computed.cancel(gone.ticket());

  Asked asked(computed, 1);

  EXPECT_EQ(asked.answer().error, 0);
  EXPECT_EQ(gone.answer().error, EINTR);
  EXPECT_EQ(times, 2);
}

TEST(Computed, DoesNotBeginWorkThatAllLeftWhileItWasQueued) {
  std::latch running(1);
  std::latch release(1);
  std::atomic<int> times_of_two = 0;
  Computed computed(1, [&](Computed::Key key, const std::atomic<bool>& stop, std::string& text) {
    if (key == 1) {
      running.count_down();
      release.wait();
    }
    if (key == 2) ++times_of_two;
    return echo(key, stop, text);
  });
  Asked first(computed, 1);
  running.wait();
  Asked second(computed, 2);
  computed.cancel(second.ticket());
  EXPECT_EQ(second.answer().error, EINTR);
  release.count_down();

  EXPECT_EQ(Asked(computed, 3).answer().error, 0);
  EXPECT_EQ(times_of_two, 0);
}

TEST(Computed, TakesCancellingWhatWasAnsweredOrNeverAskedCalmly) {
  Computed computed(1, echo);
  Asked asked(computed, 1);
  EXPECT_EQ(asked.answer().error, 0);

  computed.cancel(asked.ticket());
  computed.cancel(12345);

  EXPECT_EQ(Asked(computed, 1).answer().error, 0);
}

TEST(Computed, AnswersAllWhoWaitWhenItIsStopped) {
  std::latch running(1);
  Computed computed(1, [&](Computed::Key, const std::atomic<bool>& stop, std::string&) {
    running.count_down();
    return until_stopped(stop);
  });
  Asked first(computed, 1);
  running.wait();
  Asked same(computed, 1);
  Asked queued(computed, 2);

  computed.stop();

  EXPECT_TRUE(first.is_answered() && same.is_answered() && queued.is_answered());
  EXPECT_EQ(first.answer().error, EINTR);
  EXPECT_EQ(same.answer().error, EINTR);
  EXPECT_EQ(queued.answer().error, EINTR);
}

TEST(Computed, AnswersThoseWhoComeAfterItWasStopped) {
  Computed computed(1, echo);
  EXPECT_EQ(Asked(computed, 1).answer().error, 0);
  const Computed::Ticket early = computed.ticket();
  computed.stop();
  computed.stop();

  Asked late(computed, 2);
  Asked known(computed, 1);
  Asked ticketed(computed, 3, early);

  EXPECT_TRUE(late.is_answered() && known.is_answered() && ticketed.is_answered());
  EXPECT_EQ(late.answer().error, EINTR);
  EXPECT_EQ(known.answer().error, EINTR);
  EXPECT_EQ(ticketed.answer().error, EINTR);
  computed.cancel(early);
}

// The objects that an answer uses may end when stop() has returned.
TEST(Computed, WaitsForAnAnswerOfAnArrivalWhenItIsStopped) {
  Computed computed(1, echo);
  const Computed::Ticket ticket = computed.ticket();
  std::latch begun(1), go_on(1);
  std::atomic<bool> is_over = false;
  computed.wait(ticket, [&](int, const std::string&) {
    begun.count_down();
    go_on.wait();
    is_over = true;
  });
  std::thread source([&] { computed.arrive(ticket, 0); });
  begun.wait();

  auto stopped = std::async(std::launch::async, [&] {
    computed.stop();
    return is_over.load();
  });

  EXPECT_EQ(stopped.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  go_on.count_down();
  EXPECT_TRUE(stopped.get());
  source.join();
}

TEST(Computed, MayBeAskedFromTheAnswer) {
  Computed computed(1, echo);
  std::promise<Answer> inner;
  std::promise<void> outer;
  computed.request(computed.ticket(), 1, [&](int, const std::string&) {
    computed.request(computed.ticket(), 2, [&](int error, const std::string& text) {
      inner.set_value({error, text});
    });
    outer.set_value();
  });

  outer.get_future().get();
  EXPECT_EQ(inner.get_future().get().text, "text 2");
}

TEST(Computed, AnswersEachOfManyThreadsOnceWhateverIsCancelled) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 500;
  std::atomic<int> answers = 0;
  {
    Computed computed(3, [&](Computed::Key key, const std::atomic<bool>& stop, std::string& text) {
      for (int i = 0; i < 50; ++i) {
        if (stop) return EINTR;
        std::this_thread::yield();
      }
      return key % 3 == 0 ? EIO : echo(key, stop, text);
    });
    std::latch start(kThreads);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        start.arrive_and_wait();
        for (int i = 0; i < kRounds; ++i) {
          const auto key = static_cast<Computed::Key>(i / 5);
          const Computed::Ticket ticket = computed.ticket();
          if ((i + t) % 7 == 0) computed.cancel(ticket);
          computed.request(ticket, key, [&answers, key](int error, const std::string& text) {
            EXPECT_TRUE(error == 0 || error == EINTR || (error == EIO && key % 3 == 0)) << error;
            EXPECT_EQ(text, error == 0 ? "text " + std::to_string(key) : "");
            ++answers;
          });
          if ((i + t) % 3 == 0) computed.cancel(ticket);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(answers, kThreads * kRounds);
}

}  // namespace
}  // namespace stfs::test
