// -o supervise: the supervisor, and the worker that it forks to serve the mount. The supervisor
// holds the mount, the loaded checkpoint and the ledger, and sleeps until the worker ends. If the
// worker dies, the supervisor forks another one. A fork has all of these in its memory, so no
// worker opens, parses or negotiates anything again.
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
//              that died young in a row); a signal during the pause makes run() return 0. If the
//              last kDistrust workers died young, the next one answers the resent requests with EIO
//
// If a worker dies before any worker has served, it is not replaced: run() ends with its exit
// status or an Error. If the supervisor dies, the worker continues to serve, and unmounts when it
// ends.
//
// Thread safety: none. The supervisor has only one thread, because it forks.
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
// supervisor the reading end, so if either process dies, the other one sees that the pipe is
// closed.
//
// Thread safety: once constructed, all members may be called from any thread. It lives in the
// worker until the worker exits.
class Worker {
 public:
  // Reports to the supervisor that this worker serves. If the supervisor of the first worker has
  // died, sends SIGTERM to this process, because the command has failed and must leave no mount.
  void serving();
  // Reports to the supervisor that this worker ends; the supervisor then detaches the mount.
  void ending();

  // poll(2) returns POLLERR for this descriptor after the supervisor's death.
  int lifeline() const { return pipe_.get(); }
  // Returns true if the supervisor has died.
  bool is_orphan() const;
  // Returns true if the worker should refuse the resent requests: the last workers have died so
  // young that one of these requests is the likely cause.
  bool rejects_resent_requests() const { return distrusts_requests_; }

 private:
  friend class Supervisor;
  Worker(UniqueFd pipe, bool is_first, bool rejects_resent_requests)
      : pipe_(std::move(pipe)), is_first_(is_first), distrusts_requests_(rejects_resent_requests) {}

  UniqueFd pipe_;
  bool is_first_;
  bool distrusts_requests_;
};

class Supervisor {
 public:
  struct Hooks {
    std::function<void()> ready;                       // called when the first worker serves
    std::function<void()> ending;                      // detaches the mount; may be called twice
    std::function<void(const std::string& line)> log;  // logs a line for the administrator
  };
  // Runs in the worker and returns its exit status. The worker then ends by _exit(2), so that it
  // neither destroys nor flushes the supervisor's objects. Must not throw.
  using Work = std::function<int(Worker& worker)>;

  // `signals` is a signalfd(2) of the signals that end the process. It and the ledger must outlive
  // this.
  Supervisor(int signals, const Ledger& ledger, Hooks hooks);

  // Forks a worker, and another one whenever a worker dies. Returns the exit status: 0 after a
  // worker has ended (see above) or after a signal, or the status of the first worker if it exits
  // before it serves. Throws Error kMountFailed if the first worker cannot be forked or is killed
  // before it serves.
  int run(const Work& work);

  // Returns the pause after `failures` consecutive workers died young: 100 ms per worker, at most
  // one second.
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
  bool has_served_ = false;  // any worker has served so far
  bool is_ending_ = false;
  unsigned failures_ = 0;  // number of consecutive workers that died young
};

}  // namespace stfs
