// Reads that wait without a thread: for bytes that a source fetches, or for a text that is computed
// (texts.h). The reply travels with the arrival.
//
// The states of a ticket:
//
//   wait() ──► issued ──will_wait() has returned──► waiting ──arrive──► answered
//                │ cancel, stop                        │ cancel, stop
//                ▼                                     ▼
//              cancelled ──will_wait() has returned──► answered with EINTR
//
//   transition   made by
//   wait         the thread of the read
//   arrive       what the read waits for; go_on() does not change the state
//   cancel       FUSE_INTERRUPT; the thread for cancelled waiters answers
//   stop         the destructor or stop(), which answers itself
//
// Thread safety: all members except the destructor.
#pragma once

#include "fs/mount/recipes.h"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

namespace stfs {

class Waiting {
 public:
  using Ticket = std::uint64_t;
  using WillWait = std::function<void(Ticket ticket)>;

  // Called once for each ticket: with 0 and a reply, which is valid during the call, or with an
  // errno; EINTR after cancel() or stop(). Runs on the thread that makes the transition. Must not
  // throw.
  using Done = std::function<void(int error, const Reply& reply)>;

  // Starts the thread that answers cancelled waiters. All signals are blocked in it.
  Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting() { stop(); }

  // Answers all waiters with EINTR and waits for the answers that arrive() is giving. Later waiters
  // get EINTR at once. Not to be called by such an answer.
  void stop();

  // Issues a ticket, passes it to `will_wait`, which must not throw, and keeps `done` until
  // arrive(). The ticket may be cancelled from then on; `done` is called after `will_wait` has
  // returned. Throws std::bad_alloc before it calls either.
  Ticket wait(const WillWait& will_wait, Done done);
  bool is_waiting(Ticket ticket) const;  // neither answered nor cancelled

  // Runs `step` on this thread unless the waiter with this ticket was answered or cancelled. While
  // it runs, stop() waits; so it may use objects that end after stop(). Returns whether it ran.
  bool go_on(Ticket ticket, const std::function<void()>& step);
  // Answers the waiter with this ticket; does nothing if it was answered or cancelled.
  void arrive(Ticket ticket, int error, const Reply& reply);

  // Has `done` called with EINTR, soon and on another thread; does nothing if it was called.
  void cancel(Ticket ticket);

 private:
  struct Waiter {
    Done done;  // empty while the ticket is only issued
    bool is_cancelled = false;
  };

  void answer_cancelled();
  void end_arrival();  // with the lock

  mutable std::mutex mutex_;
  std::condition_variable wake_answer_, all_arrived_;
  bool stopping_ = false;
  std::size_t arriving_ = 0;  // answers that arrive() is giving, and steps of go_on()
  Ticket next_ticket_ = 1;
  std::map<Ticket, Waiter> waiters_;
  std::map<Ticket, Waiter> cancelled_;
  std::thread thread_;
};

}  // namespace stfs
