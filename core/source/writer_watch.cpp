#include "core/source/writer_watch.h"

#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <utility>

namespace stfs {

WriterWatch::WriterWatch() : events_(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {}

bool WriterWatch::Few::add(int watch) {
  if (count == watches.size()) return false;
  watches[count++] = watch;
  return true;
}

bool WriterWatch::Few::remove(int watch) {
  const auto end = watches.begin() + static_cast<std::ptrdiff_t>(count);
  const auto found = std::find(watches.begin(), end, watch);
  if (found == end) return false;
  *found = watches[--count];
  return true;
}

bool WriterWatch::renew(int file, std::uint64_t& watch) const {
  const std::uint64_t before = std::exchange(watch, 0);
  if (!events_) return false;
  std::array<char, 32> path{};
  std::snprintf(path.data(), path.size(), "/proc/self/fd/%d", file);
  const std::lock_guard lock(mutex_);
  const int added =
      ::inotify_add_watch(events_.get(), path.data(), IN_MODIFY | IN_CLOSE_WRITE | IN_ONESHOT);
  read_events();
  if (added < 0) return false;
  watch = lost_ << 32U | static_cast<std::uint64_t>(added);
  if (watch == before) return true;
  return before >> 32U == lost_ && before != 0 && removed_.remove(static_cast<int>(before));
}

// The caller holds mutex_. If an event is lost, of whatever file, no watch that was added before is
// trusted.
void WriterWatch::read_events() const {
  alignas(inotify_event) std::array<char, 4096> events{};
  ssize_t length = 0;
  while ((length = ::read(events_.get(), events.data(), events.size())) > 0) {
    for (std::size_t at = 0; at < static_cast<std::size_t>(length);) {
      inotify_event event{};
      std::memcpy(&event, events.data() + at, sizeof event);
      at += sizeof event + event.len;
      const bool is_end = (event.mask & IN_IGNORED) != 0;
      bool is_kept = (event.mask & IN_Q_OVERFLOW) == 0;
      if (is_kept && !is_end) is_kept = written_.add(event.wd);
      if (is_kept && is_end && !written_.remove(event.wd)) is_kept = removed_.add(event.wd);
      if (!is_kept) ++lost_;
    }
  }
}

}  // namespace stfs
