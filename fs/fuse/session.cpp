#include "fs/fuse/session.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "fs/fuse/daemon.h"
#include "fs/fuse/fuse_ops.h"
#include "fs/fuse/request_loop.h"

#include <linux/fuse.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <latch>
#include <string>
#include <thread>
#include <vector>

namespace stfs {
namespace {

// Returns the number of threads that keeps the processors busy. RequestLoop starts more threads
// while these wait for a slow source.
unsigned busy_threads() { return std::clamp(std::thread::hardware_concurrency(), 4U, 16U); }

// Version 7.40 of the FUSE protocol (Linux 6.9), with the names of <linux/fuse.h>.
constexpr std::uint64_t kHasResend = 1ULL << 39;      // FUSE_HAS_RESEND
constexpr std::uint64_t kWasSentBefore = 1ULL << 63;  // FUSE_UNIQUE_RESEND

// Writes a supervised worker's reply to /dev/fuse. Pre-faults its pages, because SIGKILL during a
// page fault in the kernel's copy gives the reader EIO instead of a resend.
ssize_t write_reply(int fd, iovec* pieces, int count, void*) {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (const iovec& piece : std::span(pieces, static_cast<std::size_t>(count))) {
    auto* const bytes = static_cast<std::byte*>(piece.iov_base);
    const std::size_t into_page = reinterpret_cast<std::uintptr_t>(bytes) % page;
    // Ignore failures (a truncated source), because writev(2) then fails as well.
    ::madvise(bytes - into_page, into_page + piece.iov_len, MADV_POPULATE_READ);
  }
  return ::writev(fd, pieces, count);
}

}  // namespace

bool can_resend(const Mount& mount) {
  fuse_init_in init{};
  const std::span handshake = mount.handshake();
  if (handshake.size() < sizeof(fuse_in_header) + sizeof init) return false;
  std::memcpy(&init, handshake.data() + sizeof(fuse_in_header), sizeof init);
  const std::uint64_t flags = init.flags | std::uint64_t{init.flags2} << 32;
  return (init.flags & FUSE_INIT_EXT) != 0 && (flags & kHasResend) != 0;
}

void Session::answer_handshake() {
  // The kernel uses the first worker's answer and ignores those of later workers.
  std::vector<std::byte> request(mount_.handshake().begin(), mount_.handshake().end());
  const std::string said = capture_stderr([&] { process(request); });
  const bool is_agreed = context_.max_write != 0 && fuse_session_exited(session_) == 0;
  if (!is_agreed) {
    throw Error(ErrorCode::kMountFailed, mount_.mountpoint(), "handshake: " + last_line(said));
  }
}

std::size_t Session::longest_request() const {
  // The longest request is a WRITE: its data, and a page for its headers, as libfuse computes it.
  constexpr std::size_t kHeaders = 4096;
  return kHeaders + context_.max_write;
}

void Session::process(std::span<std::byte> request) {
  fuse_in_header header{};
  std::memcpy(&header, request.data(), std::min(request.size(), sizeof header));
  const bool interrupts = header.opcode == FUSE_INTERRUPT;
  std::uint64_t late = interrupts ? 0 : late_interrupts_.load();
  while (late > 0 && !late_interrupts_.compare_exchange_weak(late, late - 1)) {
  }
  fuse_buf buffer{};
  buffer.size = request.size();
  buffer.mem = request.data();
  fuse_session_process_buf(session_, &buffer);
  if (interrupts) ++late_interrupts_;
}

// libfuse stores an INTERRUPT that arrives after the answer to its request. Each later request of
// another kind frees one of them, but the end of the session does not free the rest. Therefore
// sends as many FORGET requests of no effect to libfuse.
void Session::drop_late_interrupts() {
  struct {
    fuse_in_header header;
    fuse_forget_in nothing;
  } request{};
  request.header.len = sizeof request;
  request.header.opcode = FUSE_FORGET;
  request.header.nodeid = FUSE_ROOT_ID;
  while (late_interrupts_ > 0) process(std::as_writable_bytes(std::span(&request, 1)));
}

void Session::take_over(bool refuse) {
  fuse_custom_io io{};
  // libfuse requires a read function. It never calls this one: RequestLoop reads.
  io.read = [](int fd, void* buffer, std::size_t size, void*) { return ::read(fd, buffer, size); };
  io.writev = write_reply;
  if (const int error = fuse_session_custom_io(session_, &io, fuse_session_fd(session_))) {
    throw_errno(ErrorCode::kMountFailed, mount_.mountpoint(), "supervise", -error);
  }
  if (!resend_unanswered(fuse_session_fd(session_))) return;  // the mount was unmounted
  if (refuse) refuse_what_was_sent_before();
}

void Session::refuse_what_was_sent_before() {
  const int device = fuse_session_fd(session_);
  pollfd readable{device, POLLIN, 0};
  std::vector<std::byte> buffer(longest_request());
  // The kernel sends these requests before all new ones. FORGETs and INTERRUPTs may come in
  // between.
  bool is_new = false;
  while (!is_new && ::poll(&readable, 1, 0) > 0) {
    const ssize_t n = read_request(device, buffer);
    if (n < 0) return;
    fuse_in_header header{};
    std::memcpy(&header, buffer.data(), sizeof header);
    if ((header.unique & kWasSentBefore) != 0 && header.opcode != FUSE_INTERRUPT) {
      const fuse_out_header refusal{sizeof refusal, -EIO, header.unique};
      if (::write(device, &refusal, sizeof refusal) < 0) continue;  // the reader has ended
    } else {
      process(std::span(buffer).first(static_cast<std::size_t>(n)));
      is_new = header.opcode != FUSE_INTERRUPT && header.opcode != FUSE_FORGET &&
               header.opcode != FUSE_BATCH_FORGET;
    }
  }
}

void Session::run(unsigned threads, const Events& events, const Hooks& hooks) {
  const struct AfterTheLoop {
    ~AfterTheLoop() { session.drop_late_interrupts(); }
    Session& session;
  } after_the_loop{*this};
  std::latch hook_done(1);  // answer no request before `serving` returns
  const RequestLoop loop(
      fuse_session_fd(session_),
      {.request = longest_request(), .idle = std::min(threads, busy_threads()), .threads = threads},
      [&](std::span<std::byte> request) {
        hook_done.wait();
        process(request);
      });
  {
    const struct CountDown {  // even if `serving` throws: ~RequestLoop waits
      ~CountDown() { latch.count_down(); }
      std::latch& latch;
    } count_down{hook_done};
    hooks.serving();
  }
  pollfd polled[] = {
      {events.signals, POLLIN, 0}, {loop.ended(), POLLIN, 0}, {events.lifeline, 0, 0}};
  while (polled[0].revents == 0 && polled[1].revents == 0) {
    if (::poll(polled, 3, -1) < 0) {  // `polled` is unchanged
      // For example EINVAL while RLIMIT_NOFILE is less than three. Keep serving and try again.
      if (errno != EINTR) std::this_thread::sleep_for(kPollAgain);
      continue;
    }
    if (polled[2].revents != 0) {
      polled[2] = {-1, 0, 0};
      hooks.orphaned();
    }
  }
  if (polled[1].revents != 0) context_.is_unmounted = true;
  end_within(kTimeToEnd);
  const int error = loop.error();
  hooks.ending(error);
  if (error != 0) {
    throw_errno(ErrorCode::kMountFailed, mount_.mountpoint(), "serving ended", error);
  }
}

}  // namespace stfs
