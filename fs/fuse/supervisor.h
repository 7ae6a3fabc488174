// -o supervise: the parent of the process that serves. It holds the mount, the checkpoint as it was
// loaded, and the ledger; it serves nothing itself, and sleeps until its child, the worker, ends.
// When a worker dies, another is forked, which finds all of that in its memory as the one before
// did: nothing is opened, parsed or negotiated a second time.
//
// A worker's life:
//
//              fork                serving()            ending()             _exit(0)
//   replaced --------> starting ------------> serving ------------> ending ------------> ended
//       ^                 |                      |
//       |   pause         +----------+-----------+
//       +-------------- dead <-------+
//
//   starting   the supervisor has forked it
//   serving    the worker says so by serving(): it answers requests
//   ending     the worker says so by ending(): SIGTERM came, or the mount was taken away. The
//              supervisor takes the mount away. It also does when a signal came to itself, and then
//              sends SIGTERM to the worker
//   ended      by the worker's own _exit, or killed by the supervisor when kTimeToEnd is over. Then
//              run() returns
//   dead       it crashed, was killed, or could not start (an exit status other than 0). Dead young
//              if it had lived less than kEnoughTime and had answered fewer than kEnoughAnswers
//   replaced   the supervisor logs the death, waits for pause_after(how many died young in a row),
//              and forks another. After kDistrust of them the next one answers EIO to what was
//              under way
//
// A worker that dies before any has served is not replaced: run() ends as that worker did. A worker
// whose supervisor has died goes on serving, and takes the mount away at its own end.
//
// Thread safety: none. The supervisor has a single thread, as fork() asks.
#pragma once

#include "core/base/posix.h"
#include "fs/mount/ledger.h"

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <utility>

namespace stfs {

// A worker's end of the pipe to its supervisor. By it each learns that the other has died. The
// worker alone holds the end to write to, so its death closes the pipe. The supervisor alone holds
// the other end.
class Worker {
 public:
  // It serves. When the supervisor has died before that, this process sends itself SIGTERM, as
  // nobody was told of the mount.
  void serving();
  // It ends, and the mount is to be taken away.
  void ending();

  // poll(2) shows POLLERR for this descriptor when the supervisor has died.
  int lifeline() const { return pipe_.get(); }
  // The supervisor has died.
  bool is_orphan() const;
  // The last workers died so young that a request which was under way must be the cause.
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
    std::function<void()> ending;                      // takes the mount away; may come twice
    std::function<void(const std::string& line)> log;  // for the administrator
  };
  // The work of a worker, which returns its exit status. The worker ends by _exit(2), so that it
  // destroys and flushes nothing of the supervisor's. May not throw.
  using Work = std::function<int(Worker& worker)>;

  // `signals` is a signalfd(2) of the signals that ask to end. Everything outlives this.
  Supervisor(int signals, const Ledger& ledger, Hooks hooks);

  // Forks a worker, and another whenever one dies. Returns the exit status: 0 when a worker has
  // ended by itself or a signal came here; or that of the first worker, if it ended before it
  // served. Throws Error kMountFailed if the first one could not be forked or was killed.
  int run(const Work& work);

  // How long to wait after so many workers in a row that died young: longer each time, at most a
  // second.
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
  bool has_served_ = false;  // some worker
  bool is_ending_ = false;
  unsigned failures_ = 0;  // workers in a row that died young
};

}  // namespace stfs
