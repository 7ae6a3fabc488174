// Requests that have to wait, and hold no thread meanwhile: for bytes that a source brings, or for
// a text that takes long to compute (statistics, digests). Each text is computed once, by a few
// threads of its own, and kept; when all who wait for it have gone away, its computation stops.
//
//   ticket ──► (known) ──wait, request──► waiting ──arrive, the text is there──► answered
//                 │ cancel                    │ cancel, stop
//                 ▼                           ▼
//             cancelled ──wait, request──► answered with EINTR
//
// Thread safety: all members.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace stfs {

class Computed {
 public:
  using Key = std::uint64_t;  // what is computed: an inode number
  using Ticket = std::uint64_t;

  // Fills the text and returns 0, or an errno; EINTR soon after `stop` is set. Runs on a thread of
  // the pool.
  using Work = std::function<int(Key key, const std::atomic<bool>& stop, std::string& text)>;

  // Called once for each ticket that was requested: with the text and 0, or with an errno, EINTR
  // when it was cancelled. Runs on the requesting thread when the text is there already, else on
  // one of the pool. Must not throw.
  using Done = std::function<void(int error, const std::string& text)>;

  // Starts `threads` threads that compute, and one that answers those who were cancelled. They take
  // no signals.
  Computed(unsigned threads, Work work);
  Computed(const Computed&) = delete;
  Computed& operator=(const Computed&) = delete;
  ~Computed() { stop(); }

  // Ends the threads; whoever still waits gets EINTR before this returns, and whoever asks later
  // too. Waits for the answers that arrive() is giving, so it is not called in one.
  void stop();

  // A ticket comes first, so that it can be cancelled from the moment that it is asked for.
  Ticket ticket();
  // Where it throws std::bad_alloc, `done` is not called, and the ticket has to be forgotten.
  void request(Ticket ticket, Key key, Done done);
  void forget(Ticket ticket);

  // Lets `done` be called by arrive(), on its thread, with its errno and an empty text. Throws as
  // request() does.
  void wait(Ticket ticket, Done done);
  // Answers the request that waits with this ticket, if it still does.
  void arrive(Ticket ticket, int error);

  // Lets `done` be called with EINTR, soon and on another thread, unless it was called already.
  void cancel(Ticket ticket);

 private:
  struct Waiter {
    std::optional<Key> key;  // of the text; none while nothing is waited for, or bytes are
    Done done;               // none before wait() or request()
    bool cancelled = false;
  };
  struct Job {
    std::size_t waiters = 0;
    std::atomic<bool> stop = false;
  };

  using Queued = std::pair<Key, std::shared_ptr<Job>>;

  void compute();
  void answer_cancelled();

  Work work_;
  std::mutex mutex_;
  std::condition_variable wake_compute_, wake_answer_, all_arrived_;
  bool stopping_ = false;
  std::size_t arriving_ = 0;  // answers that arrive() is giving
  Ticket next_ticket_ = 1;
  std::map<Ticket, Waiter> waiters_;
  std::map<Key, std::shared_ptr<Job>>
      jobs_;  // queued or running; shared with the thread that runs it
  std::deque<Queued> queue_;
  std::map<Ticket, Waiter> cancelled_;
  std::map<Key, std::string> texts_;
  std::vector<std::thread> threads_;
};

}  // namespace stfs
