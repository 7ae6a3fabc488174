#include "core/checkpoint/at_signal.h"

#include "core/base/error.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <utility>

namespace stfs {

AtSignal::AtSignal() : end_(::eventfd(0, EFD_CLOEXEC)) {
  if (!end_) throw_errno(ErrorCode::kUnreadable, "", "eventfd", errno);
  pthread_sigmask(SIG_BLOCK, nullptr, &before_);
  try {
    signals_ = take_ending_signals(ErrorCode::kUnreadable);
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    throw;
  }
}

AtSignal::~AtSignal() {
  ::eventfd_write(end_.get(), 1);
  if (thread_.joinable()) thread_.join();
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void AtSignal::watch(std::function<void()> clean_up) {
  clean_up_ = std::move(clean_up);
  thread_ = start_thread([this] { wait(); });
}

void AtSignal::wait() const {
  std::array<pollfd, 2> polled{{{signals_.get(), POLLIN, 0}, {end_.get(), POLLIN, 0}}};
  while (::poll(polled.data(), polled.size(), -1) < 0) {
    if (errno != EINTR) return;
  }
  signalfd_siginfo signal{};
  if ((polled[1].revents & POLLIN) != 0 ||
      ::read(signals_.get(), &signal, sizeof signal) != sizeof signal) {
    return;
  }
  clean_up_();
  const int number = static_cast<int>(signal.ssi_signo);
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, number);
  pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  ::raise(number);
  ::_exit(128 + number);  // process 1 of a container survives raise(3)
}

BlockedSignals::BlockedSignals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before_);
}

BlockedSignals::~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

std::string temporary_name() {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number) {
    throw_errno(ErrorCode::kUnreadable, "", "getrandom", errno);
  }
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), ".stfs-%016llx", static_cast<unsigned long long>(number));
  return name.data();
}

}  // namespace stfs
