#include "core/source/leases.h"

#include <pthread.h>

#include <csignal>

namespace stfs {

Leases::Leases(const std::vector<const Source*>& sources, std::chrono::milliseconds pause)
    : pause_(pause) {
  for (const Source* source : sources) {
    if (const LocalFile* file = source->local_file()) files_.push_back(file);
  }
  thread_ = start_thread([this] { watch(); });  // blocks SIGIO, so that sigwait(3) can take it
  ready_.wait(false);
}

Leases::~Leases() {
  stopping_ = true;
  ::pthread_kill(thread_.native_handle(), SIGIO);
  thread_.join();
}

void Leases::watch() {
  constexpr std::chrono::milliseconds kTouch{250};
  for (const LocalFile* file : files_) file->take_lease(pause_);
  ready_ = true;
  ready_.notify_one();
  sigset_t io;
  sigemptyset(&io);
  sigaddset(&io, SIGIO);
  // Standard signals do not queue: one SIGIO may stand for several leases.
  while (!stopping_) {
    int signal = 0;
    sigwait(&io, &signal);
    const auto end =
        std::chrono::steady_clock::now() + kTouch;  // for all together: a writer may wait
    for (const LocalFile* file : files_) file->give_back_lease_if_asked(end);
  }
  for (const LocalFile* file : files_) file->end_lease();
}

}  // namespace stfs
