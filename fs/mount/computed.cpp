#include "fs/mount/computed.h"

#include "core/base/posix.h"

#include <cerrno>
#include <exception>
#include <iterator>
#include <new>
#include <utility>

namespace stfs {

Computed::Computed(unsigned threads, Work work, MayWait may_wait)
    : work_(std::move(work)), may_wait_(std::move(may_wait)) {
  // push_back must not throw and destroy a running thread.
  threads_.reserve(threads + 1 + kMostWaiting);
  try {
    for (unsigned i = 0; i < threads; ++i) {
      threads_.push_back(start_thread([this] { compute(queue_); }));
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
  for (const auto& [ticket, waiter] : cancelled_) waiter.done(EINTR, "");
  cancelled_.clear();
  std::unique_lock lock(mutex_);
  all_arrived_.wait(lock, [this] { return arriving_ == 0; });
}

Computed::Ticket Computed::ticket() {
  const std::lock_guard lock(mutex_);
  const Ticket ticket = next_ticket_++;
  waiters_.emplace(ticket, Waiter{});
  return ticket;
}

bool Computed::has_waiting_thread() {
  if (idle_waiting_ > waiting_queue_.size() || waiting_threads_ == kMostWaiting) return true;
  try {
    threads_.push_back(start_thread([this] { compute(waiting_queue_); }));
    ++waiting_threads_;
  } catch (const std::exception&) {
    // The others do it.
  }
  return waiting_threads_ > 0;
}

void Computed::request(Ticket ticket, Key key, Done done) {
  const bool may_wait = may_wait_ && may_wait_(key);
  std::unique_lock lock(mutex_);
  const auto waiter = waiters_.find(ticket);
  const auto text = texts_.find(key);
  const bool is_cancelled = stopping_ || waiter == waiters_.end() || waiter->second.cancelled;
  if (is_cancelled || text != texts_.end()) {
    if (waiter != waiters_.end()) waiters_.erase(waiter);
    std::shared_ptr<const std::string> known;
    if (!is_cancelled) {
      known = text->second.text;
      by_age_.splice(by_age_.end(), by_age_, text->second.age);
    }
    lock.unlock();
    return known == nullptr ? done(EINTR, "") : done(0, *known);
  }
  auto job = jobs_.find(key);
  if (job == jobs_.end()) {
    // Queue it first: if emplace throws, compute() drops the result of the queued job. A job in
    // jobs_ alone would never answer its waiters.
    std::deque<Queued>& queue = may_wait && has_waiting_thread() ? waiting_queue_ : queue_;
    queue.emplace_back(key, std::make_shared<Job>());
    job = jobs_.emplace(key, queue.back().second).first;
    wake_compute_.notify_all();
  }
  ++job->second->waiters;
  waiter->second.key = key;
  waiter->second.done = std::move(done);
}

void Computed::forget(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  waiters_.erase(ticket);
}

void Computed::wait(Ticket ticket, Done done) {
  std::unique_lock lock(mutex_);
  const auto waiter = waiters_.find(ticket);
  if (!stopping_ && waiter != waiters_.end() && !waiter->second.cancelled) {
    waiter->second.done = std::move(done);
    return;
  }
  if (waiter != waiters_.end()) waiters_.erase(waiter);
  lock.unlock();
  done(EINTR, "");
}

bool Computed::go_on(Ticket ticket, const std::function<void()>& step) {
  std::unique_lock lock(mutex_);
  if (stopping_ || !waiters_.contains(ticket)) return false;
  ++arriving_;
  lock.unlock();
  step();
  lock.lock();
  if (--arriving_ == 0) all_arrived_.notify_all();
  return true;
}

void Computed::arrive(Ticket ticket, int error) {
  std::unique_lock lock(mutex_);
  auto waiter = waiters_.extract(ticket);
  if (waiter.empty()) return;
  ++arriving_;
  lock.unlock();
  waiter.mapped().done(error, "");
  waiter = {};  // before stop() returns: `done` may use objects that end after stop()
  lock.lock();
  if (--arriving_ == 0) all_arrived_.notify_all();
}

void Computed::cancel(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  const auto found = waiters_.find(ticket);
  if (found == waiters_.end()) return;  // answered
  Waiter& waiter = found->second;
  if (!waiter.done) {  // wait() or request() answers
    waiter.cancelled = true;
    return;
  }
  const auto job = waiter.key ? jobs_.find(*waiter.key) : jobs_.end();
  if (job != jobs_.end() && --job->second->waiters == 0) {
    job->second->stop = true;
    jobs_.erase(job);  // the next request starts a new job
  }
  cancelled_.insert(waiters_.extract(found));
  wake_answer_.notify_one();
}

void Computed::answer_cancelled() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_answer_.wait(lock, [this] { return stopping_ || !cancelled_.empty(); });
    if (stopping_) return;
    const auto first = cancelled_.extract(cancelled_.begin());
    lock.unlock();
    first.mapped().done(EINTR, "");
    lock.lock();
  }
}

void Computed::keep(Key key, const std::shared_ptr<const std::string>& text) {
  const auto age = by_age_.insert(by_age_.end(), key);
  try {
    texts_.emplace(key, Text{text, age});
  } catch (...) {
    by_age_.erase(age);
    throw;
  }
  bytes_ += text->size();
  drop_surplus();
}

void Computed::drop_surplus() {
  for (auto key = by_age_.begin(); key != by_age_.end() && texts_.size() > 1;) {
    if (texts_.size() <= kMaxTexts && bytes_ <= kMaxBytes) return;
    const bool is_newest = std::next(key) == by_age_.end();
    if (is_newest || held_.contains(*key)) {
      ++key;
      continue;
    }
    const auto oldest = texts_.find(*key);
    bytes_ -= oldest->second.text->size();
    texts_.erase(oldest);
    key = by_age_.erase(key);
  }
}

void Computed::hold(Key key) {
  const std::lock_guard lock(mutex_);
  ++held_[key];
}

void Computed::let_go(Key key) {
  const std::lock_guard lock(mutex_);
  const auto held = held_.find(key);
  if (held == held_.end() || --held->second > 0) return;
  held_.erase(held);
  drop_surplus();
}

void Computed::compute(std::deque<Queued>& queue) {
  const bool may_wait = &queue == &waiting_queue_;
  std::unique_lock lock(mutex_);
  while (true) {
    idle_waiting_ += may_wait ? 1 : 0;
    wake_compute_.wait(lock, [&] { return stopping_ || !queue.empty(); });
    idle_waiting_ -= may_wait ? 1 : 0;
    if (stopping_) return;
    const auto [key, job] = std::move(queue.front());
    queue.pop_front();
    if (job->stop) continue;
    lock.unlock();
    std::shared_ptr<const std::string> text;  // one copy: it may have 100 MB
    int error = 0;
    try {
      std::string computed;
      error = work_(key, job->stop, computed);
      text = std::make_shared<const std::string>(std::move(computed));
    } catch (const std::bad_alloc&) {
      error = ENOMEM;
    } catch (const std::exception&) {
      error = EIO;
    }
    lock.lock();
    const auto current = jobs_.find(key);
    if (current == jobs_.end() || current->second != job) continue;  // all waiters were cancelled
    jobs_.erase(current);
    std::map<Ticket, Waiter> waiting;
    for (auto waiter = waiters_.begin(); waiter != waiters_.end();) {
      const auto next = std::next(waiter);
      if (waiter->second.key == key) waiting.insert(waiters_.extract(waiter));
      waiter = next;
    }
    try {
      if (error == 0) keep(key, text);
    } catch (const std::bad_alloc&) {
      // Not kept: the next request computes it again.
    }
    lock.unlock();
    const std::string none;
    for (const auto& [ticket, waiter] : waiting) waiter.done(error, text ? *text : none);
    text.reset();
    lock.lock();
  }
}

}  // namespace stfs
