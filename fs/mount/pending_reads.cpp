#include "fs/mount/pending_reads.h"

#include "core/base/posix.h"

#include <cerrno>
#include <iterator>
#include <utility>

namespace stfs {

PendingReads::PendingReads() : thread_(start_thread([this] { answer_cancelled(); })) {}

void PendingReads::stop() {
  std::map<Ticket, Waiter> left;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (auto waiter = waiters_.begin(); waiter != waiters_.end();) {
      const auto next = std::next(waiter);
      if (waiter->second.done) left.insert(waiters_.extract(waiter));
      waiter = next;
    }
  }
  wake_answer_.notify_all();
  if (thread_.joinable()) thread_.join();
  left.merge(cancelled_);
  cancelled_.clear();
  for (const auto& [ticket, waiter] : left) waiter.done(EINTR, {});
  std::unique_lock lock(mutex_);
  all_arrived_.wait(lock, [this] { return arriving_ == 0; });
}

PendingReads::Ticket PendingReads::wait(const WillWait& will_wait, Done done) {
  std::unique_lock lock(mutex_);
  const Ticket ticket = next_ticket_++;
  Waiter& waiter = waiters_[ticket];
  lock.unlock();
  will_wait(ticket);
  lock.lock();
  if (!stopping_ && !waiter.is_cancelled) {
    waiter.done = std::move(done);
    return ticket;
  }
  waiters_.erase(ticket);
  lock.unlock();
  done(EINTR, {});
  return ticket;
}

bool PendingReads::is_waiting(Ticket ticket) const {
  const std::lock_guard lock(mutex_);
  return waiters_.contains(ticket);
}

void PendingReads::end_arrival() {
  if (--arriving_ == 0) all_arrived_.notify_all();
}

bool PendingReads::go_on(Ticket ticket, const std::function<void()>& step) {
  std::unique_lock lock(mutex_);
  if (stopping_ || !waiters_.contains(ticket)) return false;
  ++arriving_;
  lock.unlock();
  step();
  lock.lock();
  end_arrival();
  return true;
}

void PendingReads::arrive(Ticket ticket, int error, const Reply& reply) {
  std::unique_lock lock(mutex_);
  auto waiter = waiters_.extract(ticket);
  if (waiter.empty()) return;
  ++arriving_;
  lock.unlock();
  waiter.mapped().done(error, reply);
  waiter = {};  // before stop() returns: `done` may use objects that end after stop()
  lock.lock();
  end_arrival();
}

void PendingReads::cancel(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  const auto found = waiters_.find(ticket);
  if (found == waiters_.end()) return;  // it was answered
  if (!found->second.done) {            // wait() will answer
    found->second.is_cancelled = true;
    return;
  }
  cancelled_.insert(waiters_.extract(found));
  wake_answer_.notify_one();
}

void PendingReads::answer_cancelled() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_answer_.wait(lock, [this] { return stopping_ || !cancelled_.empty(); });
    if (stopping_) return;
    const auto first = cancelled_.extract(cancelled_.begin());
    lock.unlock();
    first.mapped().done(EINTR, {});
    lock.lock();
  }
}

}  // namespace stfs
