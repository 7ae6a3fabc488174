// A FUSE session, from mount to unmount: what stfs does with libfuse, but for the answers
// (fuse_ops.h).
//
// Thread safety: none but of drop(); all else is called on the thread that made it.
#pragma once

#include "core/posix.h"
#include "fs/options.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

struct fuse_session;

namespace stfs {

struct FuseContext;

class Session {
 public:
  // Mounts, and reads the kernel's handshake. SIGHUP, SIGINT and SIGTERM are blocked from then on.
  // Throws Error kUsage for an option that neither libfuse nor the kernel knows, and kMountFailed.
  Session(const Options& options, FuseContext& context);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();

  // Whether the kernel can send a worker the requests that the one before it did not answer.
  bool can_resend() const;
  int signals() const { return signals_.get(); }  // a signalfd(2) of those that ask to end

  // Agrees with the kernel on what both can do; each supervised worker learns of it in this way.
  // Throws Error kMountFailed.
  void answer_handshake();
  // Asks for what the worker before this one did not answer. With `refuse` it is answered with EIO.
  void take_over(bool refuse);

  struct Hooks {
    std::function<void()> serving;   // a thread is there; nothing is answered before this returns
    std::function<void()> orphaned;  // poll(2) shows POLLERR for `lifeline`, which may be -1
  };
  // Answers requests until the mount is taken away or one of the signals comes; both are a success.
  // At most `threads` are answered at the same time. From the end on the process has ten seconds: a
  // source that hangs does not keep it.
  void run(unsigned threads, int lifeline, const Hooks& hooks);

  // Lets the kernel forget a file, if nobody uses it. False when this kernel does not know how
  // (before Linux 6.18). May be called by any thread, but not while it answers a request: the
  // kernel may wait for a read of the file.
  bool drop(std::uint64_t inode) const;

 private:
  void read_handshake();
  std::size_t longest_request() const;
  void process(std::span<std::byte> request);
  void refuse_what_was_sent_before();
  void detach() const;

  std::string place_;
  std::string device_;  // of the mount, as mountinfo names it
  UniqueFd signals_;    // signalfd(2)
  FuseContext& context_;
  fuse_session* session_ = nullptr;
  std::vector<std::byte> handshake_;  // a FUSE_INIT request
};

}  // namespace stfs
