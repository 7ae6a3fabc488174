// -o supervise: the parent of the process that serves. It holds the mount, the checkpoint as it was
// loaded, and the ledger; it serves nothing itself, and sleeps until its child, the worker, ends.
// When a worker dies, another is forked, which finds all of that in its memory as the one before
// did: nothing is opened, parsed or negotiated a second time.
//
// Both are one process until run() forks. Neither may have a second thread by then.
#pragma once

#include "core/posix.h"
#include "fs/ledger.h"

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>

namespace stfs {

class Supervisor {
 public:
  struct Hooks {
    std::function<void()> ready;                       // the first worker serves
    std::function<void(const std::string& line)> log;  // for the administrator
  };

  // `signals` is a signalfd(2) of the signals that ask to end. Everything outlives this.
  Supervisor(int signals, const Ledger& ledger, Hooks hooks);

  // Forks a worker, and another whenever one dies. Returns nothing in each worker; in the
  // supervisor, when all is over, the exit status:
  //   0  a worker ended by itself, since the mount was taken away or a signal came; or a signal
  //      came here, and was passed on
  //   4  the workers die faster than they answer: it was given up
  // or that of the first worker, when it ended before it served.
  std::optional<int> run();

  // In a worker: it serves. When the supervisor has gone before that, this process sends itself
  // SIGTERM, as nobody was told of the mount.
  void serving();
  // In a worker: a descriptor that poll(2) shows POLLERR for when the supervisor has gone.
  int lifeline() const { return lifeline_.get(); }
  // In a worker: whether the last ones died so soon that one of the requests that were under way
  // must be what kills them.
  bool distrusts_requests() const { return failures_ >= kDistrust; }

 private:
  using Clock = std::chrono::steady_clock;

  // A life is a failure if it ended before either of these.
  static constexpr std::uint64_t kEnoughAnswers = 1000;
  static constexpr std::chrono::seconds kEnoughTime{10};
  // How many failures, one after another, until requests are distrusted, and until it is given up.
  static constexpr unsigned kDistrust = 2;
  static constexpr unsigned kGiveUp = 5;

  int wait_for(pid_t worker, const UniqueFd& started);
  bool sleep_until_signal(std::chrono::milliseconds time) const;

  int signals_;
  const Ledger& ledger_;
  Hooks hooks_;
  UniqueFd lifeline_;
  bool has_served_ = false;  // some worker
  bool is_ending_ = false;
  unsigned failures_ = 0;
};

}  // namespace stfs
