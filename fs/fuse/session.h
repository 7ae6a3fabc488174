// Serves a mount: agrees with the kernel, and answers requests until the end. All use
// of libfuse is here, except the mount itself (mount.h) and the answers (fuse_ops.h). It never
// unmounts.
//
// Thread safety: none; all of Session is called on the thread that made it.
#pragma once

#include "fs/fuse/mount.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace stfs {

class Session {
 public:
  // Both outlive this.
  Session(const Mount& mount, FuseContext& context)
      : mount_(mount), session_(mount.session()), context_(context) {}
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() = default;

  // Agrees with the kernel on what both can do; each supervised worker learns of it in this way.
  // Throws Error kMountFailed.
  void answer_handshake();
  // Asks for what the worker before this one did not answer. With `refuse` it is answered with EIO.
  void take_over(bool refuse);

  struct Events {
    int signals;   // a signalfd(2) of those that ask to end
    int lifeline;  // shows POLLERR to poll(2) when the supervisor has died; -1 without one
  };
  struct Hooks {
    // A thread is there. Nothing is answered before this returns.
    std::function<void()> serving;
    std::function<void()> orphaned;  // the lifeline shows POLLERR
    // Serving is over: a signal came, or the mount was taken away; or reading /dev/fuse has failed
    // with an errno, else 0. The requests that are being answered still get their answers.
    std::function<void(int error)> ending;
  };
  // Answers requests until serving is over. At most `threads` are answered at the same time. From
  // the end on the process has kTimeToEnd. Throws Error kMountFailed.
  void run(unsigned threads, const Events& events, const Hooks& hooks);

 private:
  std::size_t longest_request() const;
  void process(std::span<std::byte> request);
  void refuse_what_was_sent_before();

  const Mount& mount_;
  fuse_session* const session_;
  FuseContext& context_;
};

// Whether the kernel can send a worker the requests that the one before it did not answer.
bool can_resend(const Mount& mount);

// Lets the kernel forget a file that nobody uses. False when this kernel does not know how (before
// Linux 6.18). May be called by any thread, but not while it answers a request: the kernel may wait
// for a read of the file.
bool drop(const Mount& mount, std::uint64_t inode);

}  // namespace stfs
