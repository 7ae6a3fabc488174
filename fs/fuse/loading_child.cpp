#include "fs/fuse/loading_child.h"

#include "core/base/text.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <span>
#include <string_view>
#include <utility>

namespace stfs {
namespace {

// The child's message: kDone and the text; or kFailed, the code, the length of the place, the place
// and the message.
constexpr char kDone = 'd';
constexpr char kFailed = 'f';

void send(int socket, std::string_view text) {
  // Ignore a failure: the parent may have been killed.
  static_cast<void>(write_exact(socket, std::as_bytes(std::span(text))));
}

void send_error(int socket, const Error& error) {
  const std::size_t length = error.place().size();
  std::string text{kFailed, static_cast<char>(error.code())};
  text.append(reinterpret_cast<const char*>(&length), sizeof length);
  send(socket, text + error.place() + error.message());
}

[[noreturn]] void throw_received(std::string_view text) {
  const auto code = static_cast<ErrorCode>(text[1]);
  std::size_t length = 0;
  std::memcpy(&length, text.data() + 2, sizeof length);
  text.remove_prefix(2 + sizeof length);
  throw Error(code, text.substr(0, length), text.substr(length));
}

void run(int socket, const std::function<std::string()>& load) {
  try {
    const std::string text = load();
    send(socket, {&kDone, 1});
    send(socket, text);
  } catch (const Error& error) {
    send_error(socket, error);
  } catch (const std::bad_alloc&) {
    send_error(socket, Error(ErrorCode::kUnreadable, "", "out of memory"));
  } catch (const std::exception& error) {
    send_error(socket, Error(ErrorCode::kUnreadable, "", printable(error.what())));
  }
  ::shutdown(socket, SHUT_WR);
  char end = 0;
  while (::read(socket, &end, 1) < 0 && errno == EINTR) {
  }
}

}  // namespace

LoadingChild::LoadingChild(const std::function<std::string()>& load) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw_errno(ErrorCode::kUnreadable, "", "supervise: socketpair", errno);
  }
  socket_ = UniqueFd(ends[0]);
  UniqueFd theirs(ends[1]);
  const pid_t parent = ::getpid();
  child_ = ::fork();
  if (child_ < 0) throw_errno(ErrorCode::kUnreadable, "", "supervise: fork", errno);
  if (child_ == 0) {
    socket_ = UniqueFd();
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(0);
    run(theirs.get(), load);
    ::_exit(0);
  }
  theirs = UniqueFd();

  std::string received;
  std::array<char, 65536> buffer{};
  for (ssize_t n = 1; n > 0 || (n < 0 && errno == EINTR);) {
    n = ::read(socket_.get(), buffer.data(), buffer.size());
    if (n > 0) received.append(buffer.data(), static_cast<std::size_t>(n));
  }
  if (received.starts_with(kDone)) {
    text_ = std::move(received).substr(1);
    return;
  }
  const int status = end();
  if (received.starts_with(kFailed) && received.size() >= 2 + sizeof(std::size_t)) {
    throw_received(received);
  }
  throw Error(ErrorCode::kUnreadable, "",
              "supervise: the process that loads the sources ended" +
                  (WIFSIGNALED(status) ? " by signal " + std::to_string(WTERMSIG(status)) : ""));
}

LoadingChild::~LoadingChild() { end(); }

int LoadingChild::end() {
  int status = 0;
  socket_ = UniqueFd();
  if (child_ > 0) {
    while (::waitpid(child_, &status, 0) < 0 && errno == EINTR) {
    }
  }
  child_ = -1;
  return status;
}

}  // namespace stfs
