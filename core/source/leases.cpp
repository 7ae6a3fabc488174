#include "core/source/leases.h"

#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <ctime>

namespace stfs {

Leases::Leases(const std::vector<const Source*>& sources, const Times& times) : times_(times) {
  for (const Source* source : sources) {
    if (const LocalFile* file = source->local_file()) files_.push_back(file);
  }
  thread_ = start_thread([this] { watch(); });  // blocks SIGIO, so that sigwait(3) can receive it
  ready_.wait(false);
}

Leases::~Leases() {
  stopping_ = true;
  ::pthread_kill(thread_.native_handle(), SIGIO);
  thread_.join();
}

void Leases::watch() {
  using Clock = LocalFile::Clock;
  const std::chrono::nanoseconds between_looks =
      std::chrono::nanoseconds(times_.rest) / LocalFile::kQuietLooks;
  for (const LocalFile* file : files_) file->begin_lease(times_.pause, &writers_);
  ready_ = true;
  ready_.notify_one();
  sigset_t io;
  sigemptyset(&io);
  sigaddset(&io, SIGIO);
  bool are_held = false;
  Clock::time_point next_look;
  // Standard signals do not queue: one SIGIO may be sent for several leases that writers ask for,
  // and a reader that has taken a lease sends SIGIO as well.
  while (!stopping_) {
    if (are_held) {
      const std::chrono::nanoseconds left = std::max(Clock::duration(0), next_look - Clock::now());
      const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
      const timespec time{seconds.count(), (left - seconds).count()};
      ::sigtimedwait(&io, nullptr, &time);
    } else {
      ::sigwaitinfo(&io, nullptr);
    }
    const Clock::time_point now = Clock::now();  // the same for all: a writer may wait
    for (const LocalFile* file : files_) file->give_back_lease_if_asked(now);
    if (are_held && now >= next_look) {
      for (const LocalFile* file : files_) file->let_lease_rest();
    }
    if (!are_held || now >= next_look) next_look = now + between_looks;
    are_held = std::ranges::any_of(files_, &LocalFile::is_leased);
  }
  for (const LocalFile* file : files_) file->end_lease();
}

}  // namespace stfs
