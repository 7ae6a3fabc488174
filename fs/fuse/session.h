// Serves a mount: answers the kernel's handshake, then requests until the end. Requests and replies
// pass through libfuse only here, in mount.h (the mount) and in fuse_ops.h (the replies). A session
// never unmounts.
//
// Thread safety: none; all members must be called on the thread that constructed it.
#pragma once

#include "fs/fuse/mount.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace stfs {

class Session {
 public:
  // Both must outlive this.
  Session(const Mount& mount, FuseContext& context)
      : mount_(mount), session_(mount.session()), context_(context) {}
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() = default;

  // Answers FUSE_INIT, the kernel's handshake. Each supervised worker calls it to set up its
  // libfuse session. Throws Error kMountFailed.
  void answer_handshake();
  // Asks the kernel to resend the requests that the previous worker left unanswered
  // (FUSE_NOTIFY_RESEND). With `refuse` it answers them with EIO. Throws Error kMountFailed.
  void take_over(bool refuse);

  struct Events {
    int signals;   // a signalfd(2) of the signals that end the process
    int lifeline;  // poll(2) returns POLLERR after the supervisor's death; -1 without a supervisor
  };
  struct Hooks {
    // Called when the first thread has started. No request is answered before this returns.
    std::function<void()> serving;
    std::function<void()> orphaned;  // called when the supervisor has died
    // Called when serving ends: with 0 after a signal or an unmount, otherwise with the errno of
    // read(2) from /dev/fuse. The requests in flight are still answered.
    std::function<void(int error)> ending;
  };
  // Answers requests, at most `threads` at a time, until a signal, an unmount or an error. After
  // that the process must end within kTimeToEnd. Throws Error kMountFailed.
  void run(unsigned threads, const Events& events, const Hooks& hooks);

 private:
  std::size_t longest_request() const;
  void process(std::span<std::byte> request);
  void refuse_what_was_sent_before();
  void drop_late_interrupts();

  const Mount& mount_;
  fuse_session* const session_;
  FuseContext& context_;
  std::atomic<std::uint64_t> late_interrupts_ = 0;  // at most this many are stored in libfuse
};

// Returns true if the kernel can resend unanswered requests to another worker (Linux 6.9).
bool can_resend(const Mount& mount);

}  // namespace stfs
