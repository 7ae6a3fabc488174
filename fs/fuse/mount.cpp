#include "fs/fuse/mount.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "fs/fuse/daemon.h"
#include "fs/fuse/fuse_ops.h"
#include "fs/fuse/mount_table.h"
#include "fs/fuse/request_loop.h"

#include <linux/fuse.h>
#include <poll.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <string_view>

namespace stfs {
namespace {

// Escapes a value for libfuse's option list: commas and backslashes get a backslash before them.
std::string escape_option(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == ',' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

// Appends what to do to a message of libfuse or fusermount3(1).
std::string with_advice(const std::string& message) {
  struct Advice {
    std::string_view part;  // a part of the message
    std::string_view text;
  };
  constexpr std::array kAdvice = {
      Advice{"user_allow_other",
             "as root, add the line user_allow_other to it; all users must be able to read it"},
      Advice{"no write access", "choose a directory that you may write to"},
      Advice{"not owned by user", "choose a directory of your own"},
      Advice{"exec fusermount3", "install the package fuse3, or mount as root"},
      Advice{"of fusermount3 failed", "install the package fuse3, or mount as root"},
      Advice{"/dev/fuse", "a container needs --device /dev/fuse, and a user a device of mode 0666"},
      Advice{"not permitted",
             "a container needs --cap-add SYS_ADMIN, and a user needs fusermount3 "
             "with its setuid bit"},
      Advice{"determine username",
             "fusermount3 mounts only for users in /etc/passwd: mount as root, or in a user "
             "namespace"},
      Advice{"too many FUSE", "unmount some, or raise mount_max in /etc/fuse.conf"},
  };
  for (const Advice& advice : kAdvice) {
    if (message.find(advice.part) == std::string::npos) continue;
    return message + " (" + std::string(advice.text) + ")";
  }
  return message;
}

// Reads a request that poll(2) has reported. Returns the number of bytes, or -EINTR if another
// server has taken the request. O_NONBLOCK cannot be used, because the other server shares the
// descriptor's flags. Instead, SIGALRM interrupts a read(2) that has waited for a millisecond. A
// read that has to wait must not continue, because it would take the next request from the other
// server. All other threads block SIGALRM.
ssize_t read_at_once(int device, std::span<std::byte> buffer) {
  struct sigaction action {};
  action.sa_handler = [](int) {};  // without SA_RESTART
  struct sigaction before {};
  ::sigaction(SIGALRM, &action, &before);
  sigset_t alarm;
  sigemptyset(&alarm);
  sigaddset(&alarm, SIGALRM);
  sigset_t mask;
  ::pthread_sigmask(SIG_UNBLOCK, &alarm, &mask);
  const itimerval soon_and_again{{0, 1000}, {0, 1000}};  // the first one may arrive before read(2)
  ::setitimer(ITIMER_REAL, &soon_and_again, nullptr);
  const ssize_t n = ::read(device, buffer.data(), buffer.size());
  const int error = errno;
  const itimerval never{};
  ::setitimer(ITIMER_REAL, &never, nullptr);
  ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  ::sigaction(SIGALRM, &before, nullptr);
  return n < 0 ? -error : n;
}

// Returns a request to the server of the mount: the kernel sends the request again or, if it
// cannot, the reader gets EIO.
void give_back(int device, const fuse_in_header& request) {
  if (resend_unanswered(device)) return;
  const bool wants_answer = request.opcode != FUSE_FORGET && request.opcode != FUSE_BATCH_FORGET &&
                            request.opcode != FUSE_INTERRUPT;
  const fuse_out_header failure{sizeof failure, -EIO, request.unique};
  // write(2) fails if the reader has ended, which does not matter.
  if (wants_answer && ::write(device, &failure, sizeof failure) < 0) return;
}

}  // namespace

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  text.erase(0, text.rfind('\n') + 1);  // npos + 1 is 0
  for (const std::string_view prefix : {"fuse: ", "fusermount3: "}) {
    if (text.starts_with(prefix)) text.erase(0, prefix.size());
  }
  return printable(text);
}

Mount::Mount(const Options& options, FuseContext& context)
    : mountpoint_(options.mountpoint), is_handed_over_(options.descriptor.has_value()) {
  std::vector<std::string> words{"stfs"};
  if (!is_handed_over_) {
    words.insert(words.end(), {"-o", "ro,nosuid,nodev,default_permissions,subtype=stfs,fsname=" +
                                         escape_option(options.fsname)});
  }
  for (const std::string& option : options.mount_options) {
    words.insert(words.end(), {"-o", escape_option(option)});
  }
  std::vector<char*> argv;
  argv.reserve(words.size());
  for (std::string& word : words) argv.push_back(word.data());
  fuse_args arguments = FUSE_ARGS_INIT(static_cast<int>(argv.size()), argv.data());

  bool is_mounted = false;
  try {
    const std::string said = capture_stderr([&] {
      session_ =
          fuse_session_new(&arguments, &fuse_operations(), sizeof(fuse_lowlevel_ops), &context);
      is_mounted = session_ != nullptr && fuse_session_mount(session_, mountpoint_.c_str()) == 0;
    });
    if (session_ == nullptr) {
      throw Error(ErrorCode::kUsage, "-o",
                  last_line(said) + " (the libfuse of this system, " + fuse_pkgversion() +
                      ", does not support it)");
    }
    if (!is_mounted) {
      throw Error(ErrorCode::kMountFailed, mountpoint_,
                  said.empty() ? "the mount failed (-f -o debug may show why)"
                               : with_advice(last_line(said)));
    }
    if (is_handed_over_) {
      await_handshake();
    } else {
      if (const auto mount = mounted_at(mountpoint_)) device_ = mount->device;
      raise_readahead(device_);
    }
    read_handshake();
  } catch (...) {  // no destructor will run
    if (is_mounted) fuse_session_unmount(session_);
    if (session_ != nullptr) fuse_session_destroy(session_);
    fuse_opt_free_args(&arguments);
    throw;
  }
  fuse_opt_free_args(&arguments);
}

Mount::~Mount() {
  detach();
  // detach() has unmounted. fuse_session_unmount() frees libfuse's memory; discard its warning.
  // While the connection exists, it also unmounts by path, so do not call it if another mount may
  // be there.
  try {
    if (is_disconnected() || !mounted_at(mountpoint_)) {
      capture_stderr([this] { fuse_session_unmount(session_); });
    }
  } catch (const std::exception&) {
    // Out of memory: the process ends anyway.
  }
  fuse_session_destroy(session_);
}

void Mount::detach() const noexcept {
  if (is_handed_over_) return;
  try {
    const auto mount = mounted_at(mountpoint_);
    // Check the connection last, because while it exists no other mount has this device number.
    const bool is_ours = mount && mount->device == device_ && !is_disconnected();
    if (is_ours) unmount(mountpoint_, true);
  } catch (const std::exception&) {
    // No longer permitted. The mount remains, and is dead after this process has ended.
  }
}

// Returns true if the kernel has ended the connection: the mount was unmounted or aborted.
bool Mount::is_disconnected() const {
  pollfd device{fuse_session_fd(session_), 0, 0};
  return ::poll(&device, 1, 0) > 0;  // POLLERR
}

void Mount::await_handshake() const {
  // The kernel sends the handshake only once, to the first server that reads after mount(2).
  constexpr int kPatience = 10'000;  // milliseconds
  pollfd device{fuse_session_fd(session_), POLLIN, 0};
  int ready = 0;
  do {
    ready = ::poll(&device, 1, kPatience);
  } while (ready < 0 && errno == EINTR);
  if (ready > 0 && (device.revents & POLLERR) == 0) return;
  if (ready < 0) throw_errno(ErrorCode::kMountFailed, mountpoint_, "poll", errno);
  throw Error(ErrorCode::kMountFailed, mountpoint_,
              ready > 0
                  ? "the mount has ended, or the descriptor was never mounted: open /dev/fuse, "
                    "call mount(2) with fd=N, then start stfs"
                  : "no handshake within ten seconds: another process has served this mount");
}

void Mount::read_handshake() {
  handshake_.resize(FUSE_MIN_READ_BUFFER);
  const int device = fuse_session_fd(session_);
  const ssize_t n =
      is_handed_over_ ? read_at_once(device, handshake_) : read_request(device, handshake_);
  // EINTR: another server has taken the request after poll(2). EINVAL: the handshake was done
  // before, because the kernel now requires larger buffers; the request stays queued for its
  // server.
  bool is_too_late = is_handed_over_ && (n == -EINTR || n == -EINVAL);
  if (fuse_in_header header{}; is_handed_over_ && n >= static_cast<ssize_t>(sizeof header)) {
    std::memcpy(&header, handshake_.data(), sizeof header);
    is_too_late = header.opcode != FUSE_INIT;
    if (is_too_late) give_back(device, header);
  }
  if (is_too_late) {
    throw Error(ErrorCode::kMountFailed, mountpoint_, "another process serves this mount");
  }
  if (n < 0) throw_errno(ErrorCode::kMountFailed, mountpoint_, "handshake", static_cast<int>(-n));
  handshake_.resize(static_cast<std::size_t>(n));
}

}  // namespace stfs
