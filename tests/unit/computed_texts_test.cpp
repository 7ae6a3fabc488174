// Tests of computed texts: jobs, and askers that come and leave. Threads meet at latches; no test
// sleeps.
#include "fs/mount/computed_texts.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <future>
#include <latch>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

struct TextAnswer {
  int error = -1;
  std::string text;
};

// One request, and the promise of its answer.
class Asked {
 public:
  Asked(ComputedTexts& texts, ComputedTexts::Key key) {
    static std::atomic<ComputedTexts::Asker> next = 0;
    asker = next++;
    texts.request(asker, key, [promise = promise_](int error, const std::string& text) {
      promise->set_value({error, text});  // a second call throws and ends the test
    });
  }
  TextAnswer answer() { return future_.get(); }
  bool is_answered() {
    return future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  ComputedTexts::Asker asker = 0;

 private:
  std::shared_ptr<std::promise<TextAnswer>> promise_ = std::make_shared<std::promise<TextAnswer>>();
  std::future<TextAnswer> future_ = promise_->get_future();
};

int echo(ComputedTexts::Key key, std::string& text) {
  text = "text " + std::to_string(key);
  return 0;
}

// Works until it is stopped, like a long computation that checks `stop`.
int until_stopped(const std::atomic<bool>& stop) {
  while (!stop) std::this_thread::yield();
  return EINTR;
}

TEST(ComputedTexts, WaitingWorkDelaysNoOtherWork) {
  constexpr ComputedTexts::Key kFar = 100;
  ComputedTexts texts(
      1,
      [](ComputedTexts::Key key, const std::atomic<bool>& stop, std::string& text) {
        return key >= kFar ? until_stopped(stop) : echo(key, text);
      },
      [](ComputedTexts::Key key) { return key >= kFar; });
  for (ComputedTexts::Key key = 0; key < 2 * ComputedTexts::kMaxWaiting; ++key)
    Asked(texts, kFar + key);

  EXPECT_EQ(Asked(texts, 1).answer().text, "text 1");
}

TEST(ComputedTexts, ComputesOnceForAllAskers) {
  std::atomic<int> times = 0;
  std::latch all_asked(1);
  ComputedTexts texts(3, [&](ComputedTexts::Key key, const std::atomic<bool>&, std::string& text) {
    ++times;
    all_asked.wait();
    return echo(key, text);
  });
  std::vector<std::unique_ptr<Asked>> askers;
  for (int i = 0; i < 100; ++i) askers.push_back(std::make_unique<Asked>(texts, 5));
  all_asked.count_down();

  for (const auto& asker : askers) {
    const TextAnswer answer = asker->answer();
    EXPECT_EQ(answer.error, 0);
    EXPECT_EQ(answer.text, "text 5");
  }
  EXPECT_EQ(times, 1);
}

TEST(ComputedTexts, KeepsHeldTextWhileOthersAreEvicted) {
  std::atomic<int> times = 0;
  ComputedTexts texts(1, [&](ComputedTexts::Key key, const std::atomic<bool>&, std::string& text) {
    times += key == 5 ? 1 : 0;
    text.assign(ComputedTexts::kMaxBytes / 4, 'x');
    return 0;
  });
  const auto compute_others = [&] {
    for (ComputedTexts::Key key = 10; key < 20; ++key) Asked(texts, key).answer();
  };
  texts.hold(5);
  texts.hold(5);
  texts.let_go(77);  // was never held
  Asked(texts, 5).answer();
  texts.let_go(5);

  compute_others();
  Asked(texts, 5).answer();
  EXPECT_EQ(times, 1);

  texts.let_go(5);
  compute_others();
  Asked(texts, 5).answer();
  EXPECT_EQ(times, 2);
}

TEST(ComputedTexts, AnswersKeptTextAtOnceOnRequestingThread) {
  std::atomic<int> times = 0;
  ComputedTexts texts(1, [&](ComputedTexts::Key key, const std::atomic<bool>&, std::string& text) {
    ++times;
    return echo(key, text);
  });
  Asked(texts, 5).answer();

  std::thread::id thread;
  texts.request(77, 5, [&](int error, const std::string& text) {
    thread = std::this_thread::get_id();
    EXPECT_EQ(error, 0);
    EXPECT_EQ(text, "text 5");
  });

  EXPECT_EQ(thread, std::this_thread::get_id());
  EXPECT_EQ(times, 1);
}

TEST(ComputedTexts, ComputesInAllThreadsConcurrently) {
  std::latch both(2);
  ComputedTexts texts(2, [&](ComputedTexts::Key key, const std::atomic<bool>&, std::string& text) {
    both.arrive_and_wait();  // with a single thread this would hang
    return echo(key, text);
  });
  Asked first(texts, 1);
  Asked second(texts, 2);

  EXPECT_EQ(first.answer().error, 0);
  EXPECT_EQ(second.answer().error, 0);
}

TEST(ComputedTexts, LimitsKeptTextsAndEvictsOldest) {
  std::atomic<int> times = 0;
  ComputedTexts texts(1, [&](ComputedTexts::Key key, const std::atomic<bool>&, std::string& text) {
    ++times;
    return echo(key, text);
  });
  for (ComputedTexts::Key key = 0; key <= ComputedTexts::kMaxTexts; ++key)
    Asked(texts, key).answer();
  const int before = times;

  EXPECT_EQ(Asked(texts, ComputedTexts::kMaxTexts).answer().text,
            "text " + std::to_string(ComputedTexts::kMaxTexts));
  EXPECT_EQ(times, before) << "the newest text was evicted";
  EXPECT_EQ(Asked(texts, 0).answer().text, "text 0");
  EXPECT_EQ(times, before + 1);
}

TEST(ComputedTexts, LimitsKeptBytesAndEvictsLeastRecentlyUsed) {
  std::atomic<int> times = 0;
  ComputedTexts texts(1, [&](ComputedTexts::Key, const std::atomic<bool>&, std::string& text) {
    ++times;
    text.assign(ComputedTexts::kMaxBytes / 3, 'x');
    return 0;
  });
  for (const ComputedTexts::Key key : {1U, 2U, 3U, 1U, 4U}) Asked(texts, key).answer();
  EXPECT_EQ(times, 4);

  for (const ComputedTexts::Key key : {1U, 3U, 4U}) Asked(texts, key).answer();
  EXPECT_EQ(times, 4) << "text 1 was evicted although it was used after 2";
  Asked(texts, 2).answer();
  EXPECT_EQ(times, 5);
}

TEST(ComputedTexts, DoesNotKeepErrorsAndReportsENOMEM) {
  std::atomic<int> times = 0;
  ComputedTexts texts(1, [&](ComputedTexts::Key key, const std::atomic<bool>&, std::string& text) {
    switch (++times) {
      case 1: return ESTALE;
      case 2: throw std::bad_alloc();
      default: return echo(key, text);
    }
  });

  EXPECT_EQ(Asked(texts, 1).answer().error, ESTALE);
  EXPECT_EQ(Asked(texts, 1).answer().error, ENOMEM);
  EXPECT_EQ(Asked(texts, 1).answer().error, 0);
  EXPECT_EQ(Asked(texts, 1).answer().text, "text 1");
  EXPECT_EQ(times, 3);
}

TEST(ComputedTexts, StopsAfterLastAskerLeavesAndRestartsForNext) {
  std::atomic<int> times = 0;
  std::latch running(1), stopped(1);
  ComputedTexts texts(
      1, [&](ComputedTexts::Key key, const std::atomic<bool>& stop, std::string& text) {
        if (++times > 1) return echo(key, text);
        running.count_down();
        const int error = until_stopped(stop);
        stopped.count_down();
        return error;
      });
  Asked gone(texts, 1);
  Asked gone_too(texts, 1);
  running.wait();

  texts.leave(gone.asker);
  texts.leave(gone_too.asker);
  texts.leave(12345);  // never asked
  Asked asked(texts, 1);

  EXPECT_EQ(asked.answer().error, 0);
  stopped.wait();
  EXPECT_FALSE(gone.is_answered() || gone_too.is_answered());
  EXPECT_EQ(times, 2);
}

TEST(ComputedTexts, ContinuesWhileAnyAskerStays) {
  std::latch running(1), release(1);
  std::atomic<bool> was_stopped = false;
  ComputedTexts texts(
      1, [&](ComputedTexts::Key key, const std::atomic<bool>& stop, std::string& text) {
        running.count_down();
        release.wait();
        was_stopped = stop.load();
        return echo(key, text);
      });
  Asked gone(texts, 1);
  Asked stays(texts, 1);
  running.wait();

  texts.leave(gone.asker);
  release.count_down();

  EXPECT_EQ(stays.answer().error, 0);
  EXPECT_FALSE(was_stopped);
  EXPECT_FALSE(gone.is_answered());
}

TEST(ComputedTexts, SkipsQueuedWorkWithoutAskers) {
  std::latch running(1), release(1);
  std::atomic<int> times_of_two = 0;
  ComputedTexts texts(1, [&](ComputedTexts::Key key, const std::atomic<bool>&, std::string& text) {
    if (key == 1) {
      running.count_down();
      release.wait();
    }
    if (key == 2) ++times_of_two;
    return echo(key, text);
  });
  Asked first(texts, 1);
  running.wait();
  Asked second(texts, 2);
  texts.leave(second.asker);
  release.count_down();

  EXPECT_EQ(Asked(texts, 3).answer().error, 0);
  EXPECT_EQ(times_of_two, 0);
}

TEST(ComputedTexts, AnswersNoAskerAfterStop) {
  std::latch running(1);
  ComputedTexts texts(1, [&](ComputedTexts::Key, const std::atomic<bool>& stop, std::string&) {
    running.count_down();
    return until_stopped(stop);
  });
  Asked first(texts, 1);
  running.wait();
  Asked queued(texts, 2);

  texts.stop();
  texts.stop();
  Asked late(texts, 3);

  EXPECT_FALSE(first.is_answered() || queued.is_answered() || late.is_answered());
}

TEST(ComputedTexts, AllowsRequestFromAnswer) {
  std::promise<std::string> inner;
  ComputedTexts texts(1, [](ComputedTexts::Key key, const std::atomic<bool>&, std::string& text) {
    return echo(key, text);
  });
  texts.request(1, 1, [&](int, const std::string&) {
    texts.request(2, 2, [&](int, const std::string& text) { inner.set_value(text); });
  });

  EXPECT_EQ(inner.get_future().get(), "text 2");
}

TEST(ComputedTexts, AnswersEachStayingAskerOnceUnderConcurrency) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 200;
  std::atomic<int> answers = 0;
  std::atomic<int> left = 0;
  ComputedTexts texts(
      3, [&](ComputedTexts::Key key, const std::atomic<bool>& stop, std::string& text) {
        for (int i = 0; i < 50; ++i) {
          if (stop) return EINTR;
          std::this_thread::yield();
        }
        return key % 3 == 0 ? EIO : echo(key, text);
      });
  std::latch start(kThreads);
  std::vector<std::jthread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      start.arrive_and_wait();
      std::vector<std::unique_ptr<Asked>> stay;
      for (int i = 0; i < kRounds; ++i) {
        const auto key = static_cast<ComputedTexts::Key>(i / 5);
        auto asked = std::make_unique<Asked>(texts, key);
        if ((i + t) % 3 != 0) {
          stay.push_back(std::move(asked));
          continue;
        }
        texts.leave(asked->asker);
        ++left;
      }
      for (std::size_t i = 0; i < stay.size(); ++i) {
        const TextAnswer answer = stay[i]->answer();
        EXPECT_TRUE(answer.error == 0 || answer.error == EIO) << answer.error;
        EXPECT_EQ(answer.text.empty(), answer.error != 0);
        ++answers;
      }
    });
  }
  threads.clear();
  EXPECT_EQ(answers + left, kThreads * kRounds);
}

}  // namespace
}  // namespace stfs::test
