#include "tools/gpu/holder/holder.h"

#include "core/base/error.h"
#include "core/base/spawn.h"
#include "core/base/text.h"
#include "tools/gpu/copier/copier.h"
#include "tools/gpu/holder/closer.h"
#include "tools/gpu/holder/holder_socket.h"
#include "tools/gpu/holder/residency.h"
#include "tools/gpu/protocol/message.h"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <new>
#include <span>
#include <utility>
#include <vector>

namespace stfs::gpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxClients = 1024;
constexpr int kMaxAccepted = 64;                 // the maximum per turn of the loop
constexpr std::size_t kMaxInRequest = 64 << 20;  // bytes; enough for some hundred thousand tensors
constexpr std::size_t kMaxBuffered = 256 << 20;  // bytes of messages of all clients
constexpr int kFirstInherited = 3;               // the first descriptor after standard error
constexpr std::chrono::milliseconds kNow{0};
// How often to check the deadlines of copiers that leave or have to stop a load.
constexpr std::chrono::milliseconds kLeavingLook{500};
constexpr std::chrono::milliseconds kAcceptAgain{1'000};  // the pause after accept4(2) has failed
// How often to check the socket's path if nothing else happens.
constexpr std::chrono::milliseconds kLook{60'000};
// How often to check a path that was lost. The first check does not restore it, because a program
// that removes a directory with its files would find the directory full again.
constexpr std::chrono::milliseconds kLookAgain{1'000};
// The time that a copier has to exit after it has closed its socket, and to stop its load after the
// order to stop.
constexpr std::chrono::milliseconds kCopierEnd{10'000};

[[noreturn]] void fail(const std::string& place, int error) {
  throw_errno(ErrorCode::kDeviceFailed, place, "", error);
}

void log(const std::string& text) {
  std::fprintf(stderr, "stfs-gpu: holder: %s\n", printable(text).c_str());
}

UniqueFd null_device() { return UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC)); }

// Forks a daemon that logs to `log_path`. Returns true in the daemon and false in the caller.
bool become_daemon(const std::string& log_path) {
  const pid_t child = ::fork();
  if (child < 0) fail("fork", errno);
  if (child > 0) return false;
  ::setsid();
  const UniqueFd null = null_device();
  const UniqueFd out(
      ::open(log_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  ::dup2(null.get(), STDIN_FILENO);
  ::dup2(null.get(), STDOUT_FILENO);
  ::dup2(out ? out.get() : null.get(), STDERR_FILENO);
  return ::chdir("/") == 0;
}

class Holder : public MessageSink {
 public:
  Holder(const HolderOptions& options, HolderSocket& socket, UniqueFd signals)
      : options_(options),
        socket_(socket),
        signals_(std::move(signals)),
        residency_(*this, options.memory_limit) {}

  void run() {
    for (;;) {
      const bool is_paused = std::exchange(pauses_, false);
      std::vector<pollfd> polled{{signals_.get(), POLLIN, 0},
                                 {is_paused ? -1 : socket_.fd(), POLLIN, 0}};
      const auto add = [&](const Channel& channel, int events) {
        if (channel.has_output()) events |= POLLOUT;
        polled.push_back({channel.fd(), static_cast<short>(events), 0});
      };
      std::vector<ClientId> clients;
      for (const auto& [id, client] : clients_) {
        add(client.channel, client.is_busy() ? POLLRDHUP : POLLIN);
        clients.push_back(id);
      }
      std::vector<std::string> copiers;
      for (const auto& [uuid, copier] : copiers_) {
        add(copier.channel, POLLIN);
        copiers.push_back(uuid);
      }
      for (const Leaving& leaving : leaving_) polled.push_back({leaving.process.get(), POLLIN, 0});
      const bool is_idle = residency_.is_idle() && copiers_.empty() && leaving_.empty();
      if (!is_idle) idle_since_.reset();
      if (is_idle && !idle_since_) idle_since_ = Clock::now();
      std::chrono::milliseconds timeout = look_again_ ? kLookAgain : kLook;
      if (options_.exit_idle) timeout = std::min(timeout, left(*options_.exit_idle));
      if (is_paused) timeout = std::min(timeout, kAcceptAgain);
      const bool stops = std::ranges::any_of(
          copiers_, [](const auto& entry) { return entry.second.stops_until.has_value(); });
      if (stops || !leaving_.empty()) timeout = std::min(timeout, kLeavingLook);
      const int ready = poll_events(polled, static_cast<int>(timeout.count()));
      if (ready == 0 && is_idle && !is_paused && options_.exit_idle &&
          left(*options_.exit_idle) == kNow) {
        if (socket_.retire()) return;
        idle_since_.reset();
      }
      if (polled[0].revents != 0) return;
      kill_those_that_do_not_stop();
      reap(std::span(polled).last(leaving_.size()));
      for (std::size_t i = 0; i < clients.size(); ++i) {
        if (polled[2 + i].revents != 0) serve_client(clients[i], polled[2 + i].revents);
      }
      for (std::size_t i = 0; i < copiers.size(); ++i) {
        if (polled[2 + clients.size() + i].revents != 0) serve_copier(copiers[i]);
      }
      if (polled[1].revents != 0) accept();
      report_failed_starts();
      for (auto& [id, client] : clients_) answer(id, client);
      report_failed_starts();
      disconnect_largest();
      if (!can_be_found() && !is_in_use()) return;
    }
  }

  void reply(ClientId client, const Json& body, std::vector<UniqueFd> descriptors) override {
    const auto found = clients_.find(client);
    if (found == clients_.end()) return;
    // Drop progress while the client has unread output.
    Channel& channel = found->second.channel;
    const bool is_progress = body.contains("progress");
    if (is_progress && channel.has_output()) return;
    if (!is_progress) found->second.waits = false;
    channel.queue(body, std::move(descriptors));
    // poll(2) will report a socket that is full or broken.
    if (channel.send()) return;
  }

  void order(const std::string& uuid, const std::string& device, const Json& body) override {
    const auto found = copiers_.find(uuid);
    if (found == copiers_.end() && body.contains("stop")) return;  // the copier is leaving
    Copier* copier = found == copiers_.end() ? start(uuid, device) : &found->second;
    if (copier == nullptr) return;
    if (body.contains("stop")) copier->stops_until = Clock::now() + kCopierEnd;
    copier->channel.queue(body);
    if (copier->channel.send()) return;
  }

  void discard(std::vector<UniqueFd> descriptors) override {
    closer_.close(std::move(descriptors));
  }

 private:
  struct Client {
    Channel channel;
    bool waits = false;  // the client waits for the answer to its request

    // The holder does not read from a busy client. So each client has one request at a time, and
    // unread answers cannot pile up.
    bool is_busy() const { return waits || channel.has_output(); }
  };
  struct Copier {
    pid_t pid;
    UniqueFd process;  // pidfd
    Channel channel;
    bool has_said_hello = false;  // with our version
    // The time at which the copier is killed if it has not stopped its load. nullopt: it has no
    // order to stop, or has answered it.
    std::optional<Clock::time_point> stops_until = {};
  };
  // A copier after its socket was closed, by itself or by the holder.
  struct Leaving {
    std::string uuid;
    pid_t pid;
    UniqueFd process;     // pidfd
    std::string useless;  // the version error for the user, or ""
    bool has_load;        // the copier's load, which ends with the process
    Clock::time_point deadline;
  };

  // Returns the time until the holder has been idle for `idle`, or `idle` if it is not idle now.
  std::chrono::milliseconds left(std::chrono::seconds idle) const {
    if (!idle_since_) return idle;
    const auto until = *idle_since_ + idle - Clock::now();
    return std::max(kNow, std::chrono::ceil<std::chrono::milliseconds>(until));
  }

  // Checks whether the socket is at its path, and if not, tries to listen there again. Returns
  // false if clients can no longer find the holder.
  bool can_be_found() {
    if (!socket_.is_lost()) {
      look_again_.reset();
      return true;
    }
    const auto now = Clock::now();
    if (!look_again_) look_again_ = now + kLookAgain;
    if (now < *look_again_) return true;
    look_again_ = now + kLookAgain;
    const std::string path = socket_.path();
    if (socket_.restore()) {
      log(path + ": was removed: listening there again");
      look_again_.reset();
      is_said_to_be_lost_ = false;
      return true;
    }
    if (!std::exchange(is_said_to_be_lost_, true)) {
      log(path + ": no longer exists: the holder ends when no process uses a tensor");
    }
    return false;
  }

  bool is_in_use() const {
    return residency_.is_in_use() ||
           std::ranges::any_of(clients_, [](const auto& entry) { return entry.second.is_busy(); });
  }

  void accept() {
    for (int i = 0; i < kMaxAccepted; ++i) {
      UniqueFd fd = accepted();
      if (!fd && (errno == EMFILE || errno == ENFILE)) {
        // Close the spare descriptor, so that the connection can be accepted and closed. Otherwise
        // poll(2) would report it again and again.
        spare_ = UniqueFd();
        fd = accepted();
        if (fd) {
          log("refused a connection: too many open files");
          fd = UniqueFd();
          spare_ = null_device();
          continue;
        }
        const int error = errno;
        spare_ = null_device();
        errno = error;
      }
      if (!fd) return pause_unless_done(errno);
      accept_has_failed_ = false;
      ucred peer{};
      socklen_t length = sizeof peer;
      if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 ||
          peer.uid != ::geteuid()) {
        log("refused a connection of user " + std::to_string(peer.uid));
        continue;
      }
      if (clients_.size() >= kMaxClients) {
        log("refused a connection: there are " + std::to_string(kMaxClients) + " already");
        continue;
      }
      const ClientId id = next_client_++;
      clients_.emplace(
          id, Client{Channel(std::move(fd), {.body_bytes = kMaxInRequest, .descriptors = 0})});
      residency_.connected(id, peer.pid);
    }
  }

  UniqueFd accepted() const {
    return UniqueFd(::accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  }

  // Unless the queue is empty, pauses accept4(), because poll(2) would report the connection again
  // at once.
  void pause_unless_done(int error) {
    if (error == EAGAIN || error == EINTR || error == ECONNABORTED) return;
    pauses_ = true;
    if (std::exchange(accept_has_failed_, true)) return;
    log("accept4: " + errno_text(error) + ": clients wait; trying again each second");
  }

  void serve_client(ClientId id, short events) {
    Client& client = clients_.at(id);
    const bool is_open = client.is_busy() ? (events & ~POLLOUT) == 0 && client.channel.send()
                                          : received(client.channel);
    if (!is_open) disconnect(id);
  }

  // Returns false if the connection has ended, or if memory for the message is missing.
  static bool received(Channel& channel) {
    try {
      return channel.receive();
    } catch (const std::bad_alloc&) {
      log("disconnected a peer: no memory for its message");
      return false;
    }
  }

  // Passes complete requests on, one at a time.
  void answer(ClientId id, Client& client) {
    while (!client.is_busy()) {
      const std::optional<Message> message = client.channel.next();
      if (!message) return;
      client.waits = true;
      residency_.request(id, message->body());
    }
  }

  void disconnect(ClientId id) {
    clients_.erase(id);
    residency_.disconnected(id);
  }

  // Disconnects the clients with the largest buffers until all buffers fit into kMaxBuffered.
  void disconnect_largest() {
    for (;;) {
      std::size_t buffered = 0;
      std::size_t most = 0;
      ClientId largest = 0;
      for (const auto& [id, client] : clients_) {
        const std::size_t bytes = client.channel.buffered_bytes();
        buffered += bytes;
        if (bytes > most) largest = id;
        most = std::max(most, bytes);
      }
      if (buffered <= kMaxBuffered) return;
      log("disconnected a client: the buffers of all clients are full");
      disconnect(largest);
    }
  }

  Copier* start(const std::string& uuid, const std::string& device) {
    int ends[2] = {-1, -1};
    const auto failed = [&](int error) -> Copier* {
      failed_.emplace_back(uuid, errno_text(error));
      return nullptr;
    };
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return failed(errno);
    UniqueFd mine(ends[0]);
    const UniqueFd original(ends[1]);
    // Use a number above kCopierSocket, because dup2(2) onto the same number would keep
    // close-on-exec.
    const UniqueFd theirs(::fcntl(ends[1], F_DUPFD_CLOEXEC, kCopierSocket + 1));
    if (!theirs) return failed(errno);
    const std::string idle = std::to_string(options_.copier_idle.count());
    const std::string name = device == "cpu" ? device : uuid;
    pid_t pid = -1;
    if (const int error = spawn({options_.program, "copier", "--device", name, "--idle", idle},
                                {.descriptors = {{theirs.get(), kCopierSocket}}}, pid)) {
      return failed(error);
    }
    UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!process) {
      const int no_process = errno;
      ::kill(pid, SIGKILL);
      end_of(pid);
      return failed(no_process);
    }
    Channel channel(std::move(mine), {.body_bytes = std::size_t{64} << 20});
    channel.queue({{"hello", kProtocolVersion}});
    return &copiers_.emplace(uuid, Copier{pid, std::move(process), std::move(channel)})
                .first->second;
  }

  // Reports failed starts after the order that caused them, because Residency must not be
  // reentered.
  void report_failed_starts() {
    while (!failed_.empty()) {  // each report may start the next load, which may fail as well
      for (const auto& [uuid, why] : std::exchange(failed_, {})) {
        residency_.copier_gone(uuid, "it could not be started: " + why);
      }
    }
  }

  void serve_copier(const std::string& uuid) {
    Copier& copier = copiers_.at(uuid);
    const bool is_open = received(copier.channel);
    std::string useless;  // the version error for the user
    while (std::optional<Message> message = copier.channel.next()) {
      if (!message->body().contains("progress")) copier.stops_until.reset();
      if (copier.has_said_hello) {
        residency_.answer(uuid, std::move(*message));
        continue;
      }
      const std::uint64_t version = version_in(message->body());
      copier.has_said_hello = version == kProtocolVersion;
      if (copier.has_said_hello) continue;
      useless = version_error(kProtocolVersion, ::getpid(), kInstalled, version, false);
      break;
    }
    if (useless.empty() && is_open && copier.channel.send()) return;
    leaving_.push_back({uuid, copier.pid, std::move(copier.process), useless,
                        residency_.is_loading(uuid), Clock::now() + kCopierEnd});
    copiers_.erase(uuid);  // closes the socket, so the copier exits
  }

  // Kills copiers that do not obey an order to stop, for instance because they hang in the driver.
  // They would delay the next loads for ever. serve_copier() handles the end of their sockets.
  void kill_those_that_do_not_stop() const {
    for (const auto& [uuid, copier] : copiers_) {
      if (copier.stops_until && Clock::now() > *copier.stops_until) ::kill(copier.pid, SIGKILL);
    }
  }

  // `polled` has an entry for each of leaving_, in the same order.
  void reap(std::span<const pollfd> polled) {
    std::vector<Leaving> ended;
    for (std::size_t i = polled.size(); i-- > 0;) {
      Leaving& leaving = leaving_[i];
      if (polled[i].revents == 0) {
        if (Clock::now() > leaving.deadline) ::kill(leaving.pid, SIGKILL);
        continue;
      }
      ended.push_back(std::move(leaving));
      leaving_.erase(leaving_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    for (const Leaving& leaving : ended) {
      const std::string why = end_of(leaving.pid);
      if (!why.empty() && leaving.useless.empty())
        log("the copier of " + leaving.uuid + ": " + why);
      if (!leaving.has_load) continue;
      if (!leaving.useless.empty()) {
        residency_.copier_useless(leaving.uuid, leaving.useless);
      } else {
        residency_.copier_gone(leaving.uuid, why);
      }
    }
  }

  // Returns the protocol version in a copier's first message.
  static std::uint64_t version_in(const Json& body) {
    const auto hello = body.find("hello");
    return hello != body.end() && hello->is_number_unsigned() ? hello->get<std::uint64_t>() : 1;
  }

  // Reaps a copier. Returns the failure, or "" for exit status 0.
  static std::string end_of(pid_t pid) {
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFSIGNALED(status)) return "killed by signal " + std::to_string(WTERMSIG(status));
    if (WEXITSTATUS(status) != 0) return "exit status " + std::to_string(WEXITSTATUS(status));
    return "";
  }

  const HolderOptions& options_;
  HolderSocket& socket_;
  UniqueFd signals_;
  UniqueFd spare_ = null_device();
  std::optional<Clock::time_point> idle_since_;  // nullopt: it is not idle
  // The time at which the lost socket is checked again; nullopt: it is not lost.
  std::optional<Clock::time_point> look_again_;
  bool is_said_to_be_lost_ = false;
  bool pauses_ = false;  // do not call accept4() for kAcceptAgain
  bool accept_has_failed_ = false;
  std::map<ClientId, Client> clients_;
  std::map<std::string, Copier> copiers_;  // by UUID
  std::vector<Leaving> leaving_;
  Closer closer_;                                            // must outlive residency_
  std::vector<std::pair<std::string, std::string>> failed_;  // the failed starts: (UUID, error)
  Residency residency_;
  ClientId next_client_ = 1;
};

}  // namespace

int run_holder(const HolderOptions& options) {
  std::optional<HolderSocket> socket = HolderSocket::handed_over();
  // Close the caller's open files, because a daemon would keep them.
  if (!socket && options.background) ::close_range(kFirstInherited, ~0U, 0);
  // If SIGCHLD were ignored, waitpid(2) would not return a copier's status.
  ::signal(SIGCHLD, SIG_DFL);
  // Block the signals before a client can connect and send one.
  UniqueFd signals = take_ending_signals(ErrorCode::kDeviceFailed);
  if (!socket) socket = HolderSocket::listen_at(options.socket_path);
  if (!socket) return 0;
  if (options.background && !become_daemon(options.socket_path + ".log")) return 0;
  // Each segment needs a descriptor.
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  // A log line to a closed pipe must not kill the holder.
  ::signal(SIGPIPE, SIG_IGN);
  // Removes the path however the serving process ends. The process that called become_daemon() has
  // returned before this.
  struct Removed {
    HolderSocket& socket;
    ~Removed() { socket.remove(); }
  };
  const Removed removed{*socket};
  Holder(options, *socket, std::move(signals)).run();
  return 0;
}

}  // namespace stfs::gpu
