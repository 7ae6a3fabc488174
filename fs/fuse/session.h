// Serves a mount: answers the kernel's handshake, then requests until the end. libfuse is used
// here, in mount.h (the mount) and in fuse_ops.h (the replies) only. A session never unmounts.
//
// Thread safety: none; call all members on the thread that constructed it.
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

  // Answers FUSE_INIT, the kernel's handshake. Each supervised worker does, to set up its libfuse
  // session. Throws Error kMountFailed.
  void answer_handshake();
  // Asks the kernel to resend the requests that the previous worker left unanswered
  // (FUSE_NOTIFY_RESEND). With `refuse` answers them with EIO. Throws Error kMountFailed.
  void take_over(bool refuse);

  struct Events {
    int signals;   // a signalfd(2) of the signals that end the process
    int lifeline;  // poll(2) gives POLLERR after the supervisor's death; -1 without supervisor
  };
  struct Hooks {
    // The first thread has started. No request is answered before this returns.
    std::function<void()> serving;
    std::function<void()> orphaned;  // the supervisor has died
    // Serving ends: 0 after a signal or an unmount, else the errno of read(2) from /dev/fuse. The
    // requests under way are still answered.
    std::function<void(int error)> ending;
  };
  // Answers requests, at most `threads` at a time, until a signal, an unmount or an error. Then the
  // process must end within kTimeToEnd. Throws Error kMountFailed.
  void run(unsigned threads, const Events& events, const Hooks& hooks);

 private:
  std::size_t longest_request() const;
  void process(std::span<std::byte> request);
  void refuse_what_was_sent_before();
  void drop_late_interrupts();

  const Mount& mount_;
  fuse_session* const session_;
  FuseContext& context_;
  std::atomic<std::uint64_t> late_interrupts_ = 0;  // libfuse keeps at most so many
};

// Whether the kernel can resend unanswered requests to another worker (Linux 6.9).
bool can_resend(const Mount& mount);

}  // namespace stfs
