// -o supervise: the supervisor, and the worker that it forks to serve the mount. The supervisor
// holds the mount, the loaded checkpoint and the ledger, and sleeps until the worker ends. If the
// worker dies, it forks another. A fork has all of these in its memory, so no worker opens, parses
// or negotiates anything again.
//
// The states of a worker:
//
//              fork                serving()           ending(), signal        exit
//   replaced --------> starting ------------> serving ------------------> ending ----> ended
//       ^                 |                      |
//       | pause           +----------+-----------+
//       +-------------- dead <-------+
//
//   Not drawn: a signal moves a starting worker to ending; exit status 0 moves any worker to ended.
//
//   state      entered when
//   starting   the supervisor has forked the worker
//   serving    the worker calls serving(): it answers requests
//   ending     the worker calls ending(), after SIGTERM or an unmount; the supervisor then detaches
//              the mount. Or the supervisor gets a signal: it detaches the mount and sends SIGTERM
//              to the worker
//   ended      an ending worker exits, or dies, or the supervisor kills it after kTimeToEnd; or any
//              worker exits with status 0. run() returns 0
//   dead       the worker crashed, was killed or failed; or fork(2) failed. It died young if it
//              lived less than kEnoughTime and answered fewer than kEnoughAnswers requests
//   replaced   the supervisor has logged the death. It waits for pause_after(the number of workers
//              that died young in a row); a signal meanwhile makes run() return 0. If the last
//              kDistrust workers died young, the next one answers the resent requests with EIO
//
// If a worker dies before any has served, it is not replaced: run() ends as that worker did. If the
// supervisor dies, the worker goes on serving, and unmounts when it ends.
//
// Thread safety: none. The supervisor has a single thread, because it forks.
#pragma once

#include "core/base/posix.h"
#include "fs/mount/ledger.h"

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <utility>

namespace stfs {

// A worker's end of the pipe to its supervisor. Only the worker holds the writing end and only the
// supervisor the reading end, so each death closes one end and the other process sees it.
//
// Thread safety: all members, once constructed. Lives in the worker until it exits.
class Worker {
 public:
  // Tells the supervisor that this worker serves. If the supervisor of a first worker has died,
  // sends SIGTERM to this process: the command has failed and must leave no mount.
  void serving();
  // Tells the supervisor that this worker ends; it then detaches the mount.
  void ending();

  // poll(2) gives POLLERR for this descriptor after the supervisor's death.
  int lifeline() const { return pipe_.get(); }
  // Whether the supervisor has died.
  bool is_orphan() const;
  // Whether to refuse the resent requests: the last workers died so young that one of these is the
  // likely cause.
  bool distrusts_requests() const { return distrusts_requests_; }

 private:
  friend class Supervisor;
  Worker(UniqueFd pipe, bool is_first, bool distrusts_requests)
      : pipe_(std::move(pipe)), is_first_(is_first), distrusts_requests_(distrusts_requests) {}

  UniqueFd pipe_;
  bool is_first_;
  bool distrusts_requests_;
};

class Supervisor {
 public:
  struct Hooks {
    std::function<void()> ready;                       // the first worker serves
    std::function<void()> ending;                      // detaches the mount; may be called twice
    std::function<void(const std::string& line)> log;  // for the administrator
  };
  // Runs in the worker and returns its exit status. The worker ends by _exit(2), so that it neither
  // destroys nor flushes the supervisor's objects. Must not throw.
  using Work = std::function<int(Worker& worker)>;

  // `signals` is a signalfd(2) of the signals that end the process. It and the ledger must outlive
  // this.
  Supervisor(int signals, const Ledger& ledger, Hooks hooks);

  // Forks a worker, and another whenever one dies. Returns the exit status: 0 after a worker ended
  // (see above) or a signal; or that of the first worker, if it exits before it serves. Throws
  // Error kMountFailed if the first worker cannot be forked or is killed before it serves.
  int run(const Work& work);

  // The pause after `failures` workers in a row died young: 100 ms for each, at most a second.
  static std::chrono::milliseconds pause_after(unsigned failures);

 private:
  using Clock = std::chrono::steady_clock;

  static constexpr std::uint64_t kEnoughAnswers = 1000;
  static constexpr std::chrono::seconds kEnoughTime{10};
  static constexpr unsigned kDistrust = 2;

  pid_t start(const Work& work, UniqueFd& pipe) const;
  int wait_for(pid_t worker, const UniqueFd& pipe);
  bool sleep_until_signal(std::chrono::milliseconds time) const;

  int signals_;
  const Ledger& ledger_;
  Hooks hooks_;
  bool has_served_ = false;  // any worker so far
  bool is_ending_ = false;
  unsigned failures_ = 0;  // workers in a row that died young
};

}  // namespace stfs
