#include "fs/mount/computed_texts.h"

#include "core/base/posix.h"

#include <cerrno>
#include <exception>
#include <iterator>
#include <new>
#include <utility>

namespace stfs {

ComputedTexts::ComputedTexts(unsigned threads, Work work, MayWait may_wait)
    : work_(std::move(work)), may_wait_(std::move(may_wait)) {
  // A push_back() that throws would destroy a running thread.
  threads_.reserve(threads + kMaxWaiting);
  try {
    for (unsigned i = 0; i < threads; ++i) {
      threads_.push_back(start_thread([this] { compute(queue_); }));
    }
  } catch (...) {
    stop();
    throw;
  }
}

void ComputedTexts::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (auto& [key, job] : jobs_) job->stop = true;
    jobs_.clear();
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

bool ComputedTexts::has_waiting_thread() {
  if (idle_waiting_ > waiting_queue_.size() || waiting_threads_ == kMaxWaiting) return true;
  try {
    threads_.push_back(start_thread([this] { compute(waiting_queue_); }));
    ++waiting_threads_;
  } catch (const std::exception&) {
    // The threads that run already compute the text.
  }
  return waiting_threads_ > 0;
}

void ComputedTexts::request(Asker asker, Key key, Ready ready) {
  const bool may_wait = may_wait_ && may_wait_(key);
  std::unique_lock lock(mutex_);
  if (stopping_) return;
  if (const auto text = texts_.find(key); text != texts_.end()) {
    by_age_.splice(by_age_.end(), by_age_, text->second.age);
    const std::shared_ptr<const std::string> known = text->second.text;
    lock.unlock();
    return ready(0, *known);
  }
  if (const auto job = jobs_.find(key); job != jobs_.end()) {
    job->second->askers.emplace(asker, std::move(ready));
    return;
  }
  const auto job = std::make_shared<Job>();
  job->askers.emplace(asker, std::move(ready));
  // Queue the job first: if emplace() throws, compute() drops the result of the queued job. If the
  // job were only in jobs_, its askers would never be called back.
  std::deque<Queued>& queue = may_wait && has_waiting_thread() ? waiting_queue_ : queue_;
  queue.emplace_back(key, job);
  jobs_.emplace(key, job);
  wake_.notify_all();
}

void ComputedTexts::leave(Asker asker) {
  const std::lock_guard lock(mutex_);
  for (auto job = jobs_.begin(); job != jobs_.end(); ++job) {
    if (job->second->askers.erase(asker) == 0) continue;
    if (!job->second->askers.empty()) return;
    job->second->stop = true;
    jobs_.erase(job);  // the next request starts a new job
    return;
  }
}

void ComputedTexts::keep(Key key, const std::shared_ptr<const std::string>& text) {
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

void ComputedTexts::drop_surplus() {
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

std::size_t ComputedTexts::size(Key key) const {
  const std::lock_guard lock(mutex_);
  const auto found = texts_.find(key);
  return found == texts_.end() ? 0 : found->second.text->size();
}

void ComputedTexts::hold(Key key) {
  const std::lock_guard lock(mutex_);
  ++held_[key];
}

void ComputedTexts::let_go(Key key) {
  const std::lock_guard lock(mutex_);
  const auto held = held_.find(key);
  if (held == held_.end() || --held->second > 0) return;
  held_.erase(held);
  drop_surplus();
}

void ComputedTexts::compute(std::deque<Queued>& queue) {
  const bool may_wait = &queue == &waiting_queue_;
  std::unique_lock lock(mutex_);
  while (true) {
    idle_waiting_ += may_wait ? 1 : 0;
    wake_.wait(lock, [&] { return stopping_ || !queue.empty(); });
    idle_waiting_ -= may_wait ? 1 : 0;
    if (stopping_) return;
    const auto [key, job] = std::move(queue.front());
    queue.pop_front();
    if (job->stop) continue;
    lock.unlock();
    std::shared_ptr<const std::string> text;  // only one copy, because a text may have 100 MB
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
    if (current == jobs_.end() || current->second != job) continue;  // all askers have left
    jobs_.erase(current);
    try {
      if (error == 0) keep(key, text);
    } catch (const std::bad_alloc&) {
      // The text is not kept, so the next request computes it again.
    }
    lock.unlock();
    const std::string none;
    for (const auto& [asker, ready] : job->askers) ready(error, text ? *text : none);
    text.reset();
    lock.lock();
  }
}

}  // namespace stfs
