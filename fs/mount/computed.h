// Reads that wait without a thread: for bytes that a source fetches, or for a text that takes long
// to compute (statistics, a digest). A pool of threads computes a text and keeps the newest ones.
// When all waiters of a text are cancelled, its computation stops.
//
// The states of a ticket:
//
//   ticket() ──► issued ──wait, request──► waiting ──arrive, text──► answered
//                │    │ cancel, stop          │ cancel, stop
//         forget │    ▼                       ▼
//                ▼   cancelled ──wait, request──► answered with EINTR
//              (gone)
//
//   transition     made by
//   wait, request  the thread of the read; request() of a known text answers at once
//   arrive         the source; go_on() does not change the state
//   text           the thread of the pool that has computed it, or failed: an errno
//   cancel         FUSE_INTERRUPT; the thread for cancelled waiters answers
//   stop           the destructor or stop(), which answers itself
//   forget         the thread of the read, when wait() or request() throws
//
// Thread safety: all members except the destructor.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
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
  // Of the texts that it keeps. Beyond them the least recently used that nobody holds is dropped;
  // the newest stays.
  static constexpr std::size_t kMaxTexts = 16'384;
  static constexpr std::size_t kMaxBytes = std::size_t{64} << 20;

  using Key = std::uint64_t;  // the inode number of the text's file
  using Ticket = std::uint64_t;

  // Fills the text and returns 0, or returns an errno; EINTR soon after `stop` is set. Runs on a
  // thread of the pool.
  using Work = std::function<int(Key key, const std::atomic<bool>& stop, std::string& text)>;

  // Called once for each ticket passed to wait() or request(): with 0 and the text, or with an
  // errno; EINTR after cancel() or stop(). Runs on the caller's thread if the answer is known
  // there, else on the thread that makes the transition. Must not throw.
  using Done = std::function<void(int error, const std::string& text)>;

  // Whether the work for a key may have to wait for a network. Called by request().
  using MayWait = std::function<bool(Key key)>;

  // Starts `threads` threads that compute, and one that answers cancelled waiters. All signals are
  // blocked in them. Work that may wait gets threads of its own, at most kMostWaiting, started when
  // they are needed: it never holds up the work that does not wait.
  Computed(unsigned threads, Work work, MayWait may_wait = nullptr);
  static constexpr std::size_t kMostWaiting = 32;
  Computed(const Computed&) = delete;
  Computed& operator=(const Computed&) = delete;
  ~Computed() { stop(); }

  // Ends the threads, answers all waiters with EINTR and waits for the answers that arrive() is
  // giving. Later requests get EINTR too. Not to be called by such an answer.
  void stop();

  // Issue a ticket before the request: an interrupt can then cancel it at any moment.
  Ticket ticket();
  // Computes the text and passes it to `done`. Throws std::bad_alloc without having called `done`;
  // the caller must then forget() the ticket.
  void request(Ticket ticket, Key key, Done done);
  void forget(Ticket ticket);

  // Keeps the text of a key, once it is there, until let_go() was called as often: a reader that
  // has begun sees one text to its end, however many others are computed. let_go() of a key that is
  // not held does nothing.
  void hold(Key key);
  void let_go(Key key);

  // Keeps `done` until arrive(), which calls it with its errno and an empty text. Throws as
  // request() does.
  void wait(Ticket ticket, Done done);
  // Runs `step` on this thread unless the waiter with this ticket was answered or cancelled. While
  // it runs, stop() waits; so it may use objects that end after stop(). Returns whether it ran.
  bool go_on(Ticket ticket, const std::function<void()>& step);
  // Answers the waiter with this ticket; does nothing if it was answered.
  void arrive(Ticket ticket, int error);

  // Has `done` called with EINTR, soon and on another thread; does nothing if it was called.
  void cancel(Ticket ticket);

 private:
  struct Waiter {
    std::optional<Key> key;  // set by request()
    Done done;               // set by wait() or request()
    bool cancelled = false;
  };
  struct Job {
    std::size_t waiters = 0;
    std::atomic<bool> stop = false;
  };

  struct Text {
    std::shared_ptr<const std::string> text;  // shared with a request's answer
    std::list<Key>::iterator age;
  };
  using Queued = std::pair<Key, std::shared_ptr<Job>>;

  void compute(std::deque<Queued>& queue);
  bool has_waiting_thread();                                           // starts one if none is idle
  void keep(Key key, const std::shared_ptr<const std::string>& text);  // of a key without a text
  void drop_surplus();  // texts over the bounds that nobody holds
  void answer_cancelled();

  Work work_;
  MayWait may_wait_;
  std::mutex mutex_;
  std::condition_variable wake_compute_, wake_answer_, all_arrived_;
  bool stopping_ = false;
  std::size_t arriving_ = 0;  // answers that arrive() is giving, and steps of go_on()
  Ticket next_ticket_ = 1;
  std::map<Ticket, Waiter> waiters_;
  // Queued or running. Shared with the thread that runs it: a cancelled job leaves the map first.
  std::map<Key, std::shared_ptr<Job>> jobs_;
  std::deque<Queued> queue_;
  std::deque<Queued> waiting_queue_;  // of work that may wait
  std::size_t waiting_threads_ = 0;   // for waiting_queue_
  std::size_t idle_waiting_ = 0;      // of them
  std::map<Ticket, Waiter> cancelled_;
  std::map<Key, Text> texts_;
  std::list<Key> by_age_;  // the keys of texts_, the least recently used first
  std::size_t bytes_ = 0;  // of texts_
  std::map<Key, std::size_t> held_;
  std::vector<std::thread> threads_;
};

}  // namespace stfs
