#include "fs/computed.h"

#include "core/posix.h"

#include <cerrno>
#include <new>
#include <utility>

namespace stfs {

Computed::Computed(unsigned threads, Work work) : work_(std::move(work)) {
  threads_.reserve(threads + 1);  // there is no room for failure once a thread runs
  try {
    for (unsigned i = 0; i < threads; ++i) {
      threads_.push_back(start_thread([this] { compute(); }));
    }
    threads_.push_back(start_thread([this] { answer_cancelled(); }));
  } catch (...) {
    stop();
    throw;
  }
}

void Computed::stop() {
  std::map<Ticket, Waiter> left;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (auto& [key, job] : jobs_) job->stop = true;
    left.swap(waiters_);
  }
  wake_compute_.notify_all();
  wake_answer_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  for (auto& [ticket, waiter] : left) {
    if (waiter.done) waiter.done(EINTR, "");
  }
  for (const Done& done : cancelled_) done(EINTR, "");
  cancelled_.clear();
}

Computed::Ticket Computed::ticket() {
  const std::lock_guard lock(mutex_);
  const Ticket ticket = next_ticket_++;
  waiters_.emplace(ticket, Waiter{});
  return ticket;
}

void Computed::request(Ticket ticket, Key key, Done done) {
  std::unique_lock lock(mutex_);
  const auto waiter = waiters_.find(ticket);
  const auto text = texts_.find(key);
  const bool is_over = stopping_ || waiter == waiters_.end() || waiter->second.cancelled;
  if (is_over || text != texts_.end()) {
    if (waiter != waiters_.end()) waiters_.erase(waiter);
    const std::string* known = is_over ? nullptr : &text->second;  // never removed
    lock.unlock();
    done(is_over ? EINTR : 0, is_over ? std::string() : *known);
    return;
  }
  waiter->second.key = key;
  waiter->second.done = std::move(done);
  std::shared_ptr<Job>& job = jobs_[key];
  if (!job) {
    job = std::make_shared<Job>();
    queue_.emplace_back(key, job);
    wake_compute_.notify_one();
  }
  ++job->waiters;
}

void Computed::cancel(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  const auto found = waiters_.find(ticket);
  if (found == waiters_.end()) return;  // answered
  Waiter& waiter = found->second;
  if (!waiter.key) {  // request() will see it
    waiter.cancelled = true;
    return;
  }
  cancelled_.push_back(std::move(waiter.done));
  const auto job = jobs_.find(*waiter.key);
  if (job != jobs_.end() && --job->second->waiters == 0) {
    job->second->stop = true;
    jobs_.erase(job);  // whoever asks now begins anew
  }
  waiters_.erase(found);
  wake_answer_.notify_one();
}

void Computed::answer_cancelled() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_answer_.wait(lock, [this] { return stopping_ || !cancelled_.empty(); });
    if (stopping_) return;
    const Done done = std::move(cancelled_.front());
    cancelled_.pop_front();
    lock.unlock();
    done(EINTR, "");
    lock.lock();
  }
}

void Computed::compute() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_compute_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    const auto [key, job] = std::move(queue_.front());
    queue_.pop_front();
    if (job->stop) continue;
    lock.unlock();
    std::string text;
    int error = 0;
    try {
      error = work_(key, job->stop, text);
    } catch (const std::bad_alloc&) {
      error = ENOMEM;
    }
    lock.lock();
    const auto current = jobs_.find(key);
    if (current == jobs_.end() || current->second != job) continue;  // all have gone
    jobs_.erase(current);
    if (error == 0) texts_.emplace(key, text);
    std::vector<Done> waiting;
    for (auto waiter = waiters_.begin(); waiter != waiters_.end();) {
      if (waiter->second.key != key) {
        ++waiter;
        continue;
      }
      waiting.push_back(std::move(waiter->second.done));
      waiter = waiters_.erase(waiter);
    }
    lock.unlock();
    for (const Done& done : waiting) done(error, text);
    lock.lock();
  }
}

}  // namespace stfs
