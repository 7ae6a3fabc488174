#include "fs/session.h"

#include "core/error.h"
#include "core/text.h"
#include "fs/daemon.h"
#include "fs/fuse_ops.h"
#include "fs/mount_table.h"
#include "fs/request_loop.h"

#include <linux/fuse.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <exception>
#include <latch>
#include <new>
#include <string_view>
#include <thread>

namespace stfs {
namespace {

// As many as keep the processors busy. More are started when these wait for a slow source, so that
// other requests go on being answered, and end again.
unsigned busy_threads() { return std::clamp(std::thread::hardware_concurrency(), 4U, 16U); }

// Of version 7.40 of the protocol (Linux 6.9).
constexpr std::uint64_t kHasResend = 1ULL << 39;      // in the handshake: the kernel can send again
constexpr int kNotifyResend = 7;                      // asks for all that is not answered
constexpr std::uint64_t kWasSentBefore = 1ULL << 63;  // in the number of such a request
// Of version 7.45 (Linux 6.18).
constexpr int kNotifyPrune = 9;  // drops the names of files that nobody uses

// The last line of what libfuse or fusermount3 wrote, without the name that begins it.
std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  text.erase(0, text.rfind('\n') + 1);  // npos + 1 is 0
  for (const std::string_view prefix : {"fuse: ", "fusermount3: "}) {
    if (text.starts_with(prefix)) text.erase(0, prefix.size());
  }
  return printable(text);
}

// A value in libfuse's option list: commas and backslashes need a backslash.
std::string escape_option(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == ',' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

// From now on this process ends, whatever of it waits for a source that hangs: a reader's request,
// a computation. A supervisor has as much patience.
void end_within(std::chrono::seconds patience) {
  struct sigaction action {};
  action.sa_handler = [](int) {
    constexpr std::string_view kLine = "stfs: ended while a source did not answer\n";
    [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, kLine.data(), kLine.size());
    ::_exit(0);
  };
  ::sigaction(SIGALRM, &action, nullptr);
  ::alarm(static_cast<unsigned>(patience.count()));
}

// A supervised worker's way to /dev/fuse. While the kernel copies and has to bring a page of this
// process's memory in first, SIGKILL makes the copy fail, and the reader gets EIO. So the pages are
// brought in before.
ssize_t write_reply(int fd, iovec* pieces, int count, void*) {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (const iovec& piece : std::span(pieces, static_cast<std::size_t>(count))) {
    auto* const bytes = static_cast<std::byte*>(piece.iov_base);
    const std::size_t into_page = reinterpret_cast<std::uintptr_t>(bytes) % page;
    // Where it fails (a truncated source) the reply will too.
    ::madvise(bytes - into_page, into_page + piece.iov_len, MADV_POPULATE_READ);
  }
  return ::writev(fd, pieces, count);
}

}  // namespace

Session::Session(const Options& options, FuseContext& context)
    : place_(options.mountpoint),
      signals_(take_ending_signals(ErrorCode::kMountFailed)),
      context_(context) {
  ::signal(SIGPIPE, SIG_IGN);
  std::vector<std::string> words{
      "stfs", "-o",
      "ro,nosuid,nodev,default_permissions,subtype=stfs,fsname=" + escape_option(options.fsname)};
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
      // libfuse 3.14 takes 0, its success in adding an option, for the descriptor of the mount when
      // it has no memory for what follows.
      is_mounted = session_ != nullptr && fuse_session_mount(session_, place_.c_str()) == 0 &&
                   fuse_session_fd(session_) > STDERR_FILENO;
    });
    if (session_ == nullptr) {
      const std::string line = last_line(said);
      const bool is_out_of_memory = line.empty() || line.ends_with("memory allocation failed") ||
                                    line.starts_with("failed to allocate");
      if (is_out_of_memory) throw std::bad_alloc();
      throw Error(ErrorCode::kUsage, "-o", line);
    }
    if (!is_mounted) {
      throw Error(ErrorCode::kMountFailed, place_,
                  said.empty() ? "the mount failed" : last_line(said));
    }
    if (const auto mount = mounted_at(place_)) device_ = mount->device;
    raise_readahead(device_);
    read_handshake();
  } catch (...) {  // no destructor will run
    if (is_mounted) fuse_session_unmount(session_);
    if (session_ != nullptr) fuse_session_destroy(session_);
    fuse_opt_free_args(&arguments);
    throw;
  }
  fuse_opt_free_args(&arguments);
}

Session::~Session() {
  // libfuse unmounts by the path, where another mount may be by now, if this one was detached.
  bool is_ours = true;
  bool is_gone = false;
  try {
    const auto mount = mounted_at(place_);
    is_gone = !mount;
    is_ours = is_gone || mount->device == device_;
    // There is nothing left but its memory, and it must not say so.
    if (is_gone) capture_stderr([this] { fuse_session_unmount(session_); });
  } catch (...) {
    // Out of memory to look: more likely than not it is ours, and it must not be left behind.
  }
  if (is_ours && !is_gone) fuse_session_unmount(session_);
  fuse_session_destroy(session_);
}

void Session::read_handshake() {
  handshake_.resize(FUSE_MIN_READ_BUFFER);
  const ssize_t n = read_request(fuse_session_fd(session_), handshake_);
  if (n < 0) throw_errno(ErrorCode::kMountFailed, place_, "handshake", static_cast<int>(-n));
  handshake_.resize(static_cast<std::size_t>(n));
}

bool Session::can_resend() const {
  fuse_init_in init{};
  if (handshake_.size() < sizeof(fuse_in_header) + sizeof init) return false;
  std::memcpy(&init, handshake_.data() + sizeof(fuse_in_header), sizeof init);
  const std::uint64_t flags = init.flags | std::uint64_t{init.flags2} << 32;
  return (init.flags & FUSE_INIT_EXT) != 0 && (flags & kHasResend) != 0;
}

void Session::answer_handshake() {
  // The kernel takes the first answer; for later ones it says that it does not wait for any.
  std::vector<std::byte> request = handshake_;
  const std::string said = capture_stderr([&] { process(request); });
  const bool is_agreed = context_.max_write != 0 && fuse_session_exited(session_) == 0;
  if (!is_agreed) throw Error(ErrorCode::kMountFailed, place_, "handshake: " + last_line(said));
}

std::size_t Session::longest_request() const {
  // A write and what comes before its data, for which libfuse too takes a page.
  constexpr std::size_t kHeaders = 4096;
  return kHeaders + context_.max_write;
}

void Session::process(std::span<std::byte> request) {
  fuse_buf buffer{};
  buffer.size = request.size();
  buffer.mem = request.data();
  fuse_session_process_buf(session_, &buffer);
}

void Session::take_over(bool refuse) {
  fuse_custom_io io{};
  // libfuse wants this one too, though it never reads.
  io.read = [](int fd, void* buffer, std::size_t size, void*) { return ::read(fd, buffer, size); };
  io.writev = write_reply;
  if (const int error = fuse_session_custom_io(session_, &io, fuse_session_fd(session_))) {
    throw_errno(ErrorCode::kMountFailed, place_, "supervise", -error);
  }
  const fuse_out_header again{sizeof again, kNotifyResend, 0};
  if (::write(fuse_session_fd(session_), &again, sizeof again) < 0) return;  // not mounted any more
  if (refuse) refuse_what_was_sent_before();
}

void Session::refuse_what_was_sent_before() {
  const int device = fuse_session_fd(session_);
  pollfd readable{device, POLLIN, 0};
  std::vector<std::byte> buffer(longest_request());
  // These requests come before all new ones. Between them can be some that get no answer.
  bool is_new = false;
  while (!is_new && ::poll(&readable, 1, 0) > 0) {
    const ssize_t n = read_request(device, buffer);
    if (n < 0) return;
    fuse_in_header header{};
    std::memcpy(&header, buffer.data(), sizeof header);
    if ((header.unique & kWasSentBefore) != 0 && header.opcode != FUSE_INTERRUPT) {
      const fuse_out_header refusal{sizeof refusal, -EIO, header.unique};
      if (::write(device, &refusal, sizeof refusal) < 0) continue;  // the reader has gone
    } else {
      process(std::span(buffer).first(static_cast<std::size_t>(n)));
      is_new = header.opcode != FUSE_INTERRUPT && header.opcode != FUSE_FORGET &&
               header.opcode != FUSE_BATCH_FORGET;
    }
  }
}

void Session::run(unsigned threads, int lifeline, const Hooks& hooks) {
  // Who was answered may count on everything that comes before.
  std::latch told(1);
  const RequestLoop loop(
      fuse_session_fd(session_),
      {.request = longest_request(), .idle = std::min(threads, busy_threads()), .threads = threads},
      [&](std::span<std::byte> request) {
        told.wait();
        process(request);
      });
  const auto tell = [](const std::function<void()>& hook) {
    try {
      hook();
    } catch (const std::exception&) {
      // Out of memory for a line of the log; the mount works all the same.
    }
  };
  tell(hooks.serving);
  told.count_down();
  pollfd events[] = {{signals_.get(), POLLIN, 0}, {loop.ended(), POLLIN, 0}, {lifeline, 0, 0}};
  while (events[0].revents == 0 && events[1].revents == 0) {
    if (::poll(events, 3, -1) < 0) continue;  // EINTR; nothing was written there
    if (events[2].revents != 0) {
      events[2] = {-1, 0, 0};
      tell(hooks.orphaned);
    }
  }
  detach();
  end_within(std::chrono::seconds(10));
  if (const int error = loop.error()) {
    throw_errno(ErrorCode::kMountFailed, place_, "serving ended", error);
  }
}

bool Session::drop(std::uint64_t inode) const {
  struct {
    fuse_out_header header;
    std::uint32_t count;  // of inodes
    std::uint32_t padding;
    std::uint64_t spare;
    std::uint64_t inode;
  } const message{{sizeof message, kNotifyPrune, 0}, 1, 0, 0, inode};
  return ::write(fuse_session_fd(session_), &message, sizeof message) >= 0 || errno != EINVAL;
}

// Takes the mount away from where it is, whoever uses it, if it is still there.
void Session::detach() const {
  try {
    const auto mount = mounted_at(place_);
    if (mount && mount->device == device_) unmount(place_, true);
  } catch (const std::exception&) {
    // The destructor tries again.
  }
}

}  // namespace stfs
