#include "tools/info/lines.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "tools/info/verbs.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace stfs {

Lines::Lines(bool json, ProgressBar& bar, std::string heading)
    : json_(json), bar_(bar), heading_(std::move(heading)) {
  if (json_) bar_.print("[\n");
}

void Lines::add(std::string line) {
  if (line.empty()) return;
  if (!json_) {
    if (!heading_.empty()) bar_.print(std::exchange(heading_, "") + "\n");
    return bar_.print(line + "\n");
  }
  // Keep the line until the next one arrives, because a comma follows it only then.
  if (last_) bar_.print(*last_ + ",\n");
  last_ = std::move(line);
}

void Lines::end() {
  if (json_) bar_.print(last_ ? *last_ + "\n]\n" : "]\n");
}

void add_in_order(Lines& out, std::size_t count, unsigned jobs,
                  const std::function<std::string(std::size_t, const std::atomic<bool>&)>& make) {
  std::mutex mutex;
  std::condition_variable line_done;
  std::vector<std::optional<std::string>> lines(count);
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> stop = false;
  std::exception_ptr failure;
  const auto work = [&] {
    for (std::size_t i; !stop && (i = next++) < count;) {
      try {
        std::string line = make(i, stop);
        const std::lock_guard lock(mutex);
        lines[i] = std::move(line);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        stop = true;
      }
      line_done.notify_one();
    }
  };
  {
    std::vector<std::jthread> threads;
    try {
      for (std::size_t i = 0; i < std::min<std::size_t>(jobs, count); ++i)
        threads.emplace_back(work);
    } catch (const std::exception&) {
      // No more threads can be started: continue with the threads so far, or with this one.
      if (threads.empty()) work();
    }
    std::unique_lock lock(mutex);
    for (std::size_t i = 0; i < count; ++i) {
      line_done.wait(lock, [&] { return failure || lines[i]; });
      if (!lines[i]) break;
      std::string line = std::move(*lines[i]);
      lock.unlock();
      try {
        out.add(std::move(line));
      } catch (...) {
        stop = true;  // the other lines will not be printed
        throw;
      }
      lock.lock();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace stfs
