// Reads that wait without a thread: for bytes that a source fetches, or for a text that is computed
// (computed_texts.h). The reply is passed to arrive().
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
//   arrive       the source or the pool of texts that the read waits for; go_on() changes no state
//   cancel       FUSE_INTERRUPT; a separate thread answers the cancelled waiter
//   stop         the destructor or stop(), which answers the waiters itself
//
// Thread safety: all members except the destructor may be called from any thread.
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

class PendingReads {
 public:
  using Ticket = std::uint64_t;
  using WillWait = std::function<void(Ticket ticket)>;

  // Called once for each ticket, with 0 and a reply, which is valid during the call, or with an
  // errno; EINTR after cancel() or stop(). Runs on the thread that makes the transition. Must not
  // throw.
  using Done = std::function<void(int error, const Reply& reply)>;

  // Starts the thread that answers cancelled waiters. All signals are blocked in that thread.
  PendingReads();
  PendingReads(const PendingReads&) = delete;
  PendingReads& operator=(const PendingReads&) = delete;
  ~PendingReads() { stop(); }

  // Answers all waiters with EINTR, and waits until running calls of arrive() have answered. Later
  // waiters get EINTR at once. Must not be called by an answer that arrive() is giving.
  void stop();

  // Issues a ticket, passes it to `will_wait`, which must not throw, and keeps `done` until
  // arrive(). The ticket may be cancelled from then on; `done` is called only after `will_wait` has
  // returned. Throws std::bad_alloc before it calls either.
  Ticket wait(const WillWait& will_wait, Done done);
  bool is_waiting(Ticket ticket) const;  // returns true if neither answered nor cancelled

  // Runs `step` on this thread, unless the waiter with this ticket was answered or cancelled.
  // Returns true if `step` ran. stop() waits for a running step, so the step may use objects that
  // are destroyed after stop().
  bool go_on(Ticket ticket, const std::function<void()>& step);
  // Answers the waiter with this ticket. Does nothing if it was answered or cancelled.
  void arrive(Ticket ticket, int error, const Reply& reply);

  // Makes another thread call `done` with EINTR soon. Does nothing if `done` was called.
  void cancel(Ticket ticket);

 private:
  struct Waiter {
    Done done;  // empty until `will_wait` has returned
    bool is_cancelled = false;
  };

  void answer_cancelled();
  void end_arrival();  // the caller holds mutex_

  mutable std::mutex mutex_;
  std::condition_variable wake_answer_, all_arrived_;
  bool stopping_ = false;
  std::size_t arriving_ = 0;  // running answers of arrive(), and running steps of go_on()
  Ticket next_ticket_ = 1;
  std::map<Ticket, Waiter> waiters_;
  std::map<Ticket, Waiter> cancelled_;
  std::thread thread_;
};

}  // namespace stfs
