#include "tools/gpu/client/client.h"

#include "core/base/error.h"
#include "core/base/spawn.h"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs::gpu {
namespace {

[[noreturn]] void holder_failed(const std::string& place, const std::string& text) {
  throw Error(ErrorCode::kDeviceFailed, place, text);
}

// Throws Error unless `path` is a directory of this user to which no other user can write.
void check_private(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    throw_errno(ErrorCode::kDeviceFailed, path, "", errno);
  }
  if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & 022) != 0) {
    holder_failed(path,
                  "not a directory that only this user can write to: set XDG_RUNTIME_DIR or "
                  "STFS_GPU_SOCKET");
  }
}

// Returns a connection to the socket, or an empty descriptor if no process listens.
UniqueFd connect_to(const std::string& path) {
  const sockaddr_un address = socket_address(path);
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) throw_errno(ErrorCode::kDeviceFailed, "socket", "", errno);
  int result = 0;
  do {
    result = ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  } while (result != 0 && errno == EINTR);
  if (result == 0) {
    // Other users may be able to create a socket in the directory of the path.
    ucred peer{};
    socklen_t length = sizeof peer;
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 ||
        (peer.uid != ::geteuid() && peer.uid != 0)) {
      holder_failed(
          path, "the holder belongs to another user: set STFS_GPU_SOCKET to a path of this user");
    }
    return fd;
  }
  if (errno == ENOENT || errno == ECONNREFUSED) return {};
  throw_errno(ErrorCode::kDeviceFailed, path, "", errno);
}

// Reads a pipe until every writer has closed it.
std::string text_from(const UniqueFd& pipe) {
  std::string text;
  std::array<char, 512> bytes;
  for (;;) {
    const ssize_t n = ::read(pipe.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return text;
    text.append(bytes.data(), static_cast<std::size_t>(n));
  }
}

// Runs `program holder --background`. This command exits when the holder listens at `path`, or
// after it has printed one line of error text.
void start_holder(const std::string& program, const std::string& path) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno(ErrorCode::kDeviceFailed, "pipe", "", errno);
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  pid_t pid = -1;
  const int error = spawn(
      {program, "holder", "--background", "--exit-idle", "60"},
      {.descriptors = {{writing.get(), STDERR_FILENO}}, .variables = {"STFS_GPU_SOCKET=" + path}},
      pid);
  writing = UniqueFd();
  if (error != 0) throw_errno(ErrorCode::kDeviceFailed, program, "the holder", error);
  const std::string said = text_from(reading);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    // ECHILD: the caller ignores SIGCHLD. The caller's connect() shows whether the holder listens.
    if (errno != EINTR) break;
  }
  const std::string_view prefix = "stfs-gpu: ";
  if (said.starts_with(prefix)) {
    holder_failed("", said.substr(prefix.size(), said.find('\n') - prefix.size()));
  }
  if (status != 0) holder_failed(program, "the holder did not start: see " + path + ".log");
}

ErrorCode code_of(std::uint64_t status) {
  switch (status) {
    case 2: return ErrorCode::kUsage;
    case 3: return ErrorCode::kUnreadable;
    default: return ErrorCode::kDeviceFailed;
  }
}

Resident resident_of(const Json& row) {
  Resident resident;
  resident.id = number_of(row, "id");
  resident.key = text_of(row, "key");
  resident.label = text_of(row, "label");
  const auto dtype = dtype_from_name(text_of(row, "dtype"));
  if (!dtype) holder_failed("", "the holder's answer: unknown dtype");
  resident.dtype = *dtype;
  for (const Json& dimension : list_of(row, "shape")) {
    resident.shape.push_back(dimension.get<std::uint64_t>());
  }
  resident.bytes = number_of(row, "bytes");
  resident.device_uuid = text_of(row, "uuid");
  resident.segment = number_of(row, "segment");
  resident.offset = number_of(row, "offset");
  resident.pinned = flag_of(row, "pinned");
  for (const Json& pid : list_of(row, "users")) {
    resident.users.push_back(pid.get<std::int64_t>());
  }
  resident.idle_seconds = number_of(row, "idle_seconds");
  resident.holder_fd = row.value("holder_fd", -1);
  resident.segment_bytes = number_of(row, "segment_bytes");
  return resident;
}

std::vector<Resident> residents_of(const Json& body) {
  std::vector<Resident> residents;
  for (const Json& row : list_of(body, "tensors")) residents.push_back(resident_of(row));
  return residents;
}

// Returns the descriptors of an answer, which belong to the first of `segments`, by number.
std::map<std::uint64_t, UniqueFd> by_number(std::span<const std::uint64_t> segments,
                                            Message& answer) {
  if (answer.descriptors.size() != std::min(segments.size(), kSegmentsAtOnce))
    holder_failed("", "the holder's answer: segments are missing");
  std::map<std::uint64_t, UniqueFd> found;
  for (std::size_t i = 0; i < answer.descriptors.size(); ++i) {
    found[segments[i]] = std::move(answer.descriptors[i]);
  }
  return found;
}

// Returns false if the soft limit equals the hard limit already, or cannot be raised.
bool raise_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return false;
  limit.rlim_cur = limit.rlim_max;
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

Json filter_body(const char* request, const ResidentFilter& filter) {
  Json labels = Json::array();
  for (const std::string& label : filter.labels) labels.push_back(to_json_text(label));
  Json body{{"request", request}, {"all", filter.all}, {"labels", std::move(labels)}};
  if (filter.device_uuid) body["uuid"] = *filter.device_uuid;
  return body;
}

}  // namespace

std::string holder_socket_path() {
  if (const char* path = std::getenv("STFS_GPU_SOCKET"); path != nullptr && *path != '\0') {
    std::error_code error;
    const std::filesystem::path absolute = std::filesystem::absolute(path, error);
    if (error) throw_errno(ErrorCode::kDeviceFailed, path, "", error.value());
    return absolute.string();  // the holder has another working directory
  }
  const std::string uid = std::to_string(::geteuid());
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  std::string directory = runtime == nullptr ? "" : runtime;
  std::error_code ignored;
  if (directory.empty() && std::filesystem::is_directory("/run/user/" + uid, ignored)) {
    directory = "/run/user/" + uid;
  }
  if (directory.empty()) {
    directory = "/tmp/stfs-gpu-" + uid;
    if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
      holder_failed(directory, errno_text(errno) + ": set XDG_RUNTIME_DIR or STFS_GPU_SOCKET");
    }
  }
  check_private(directory);
  return directory + "/stfs-gpu.sock";
}

Client::Client(UniqueFd socket)
    : channel_(std::move(socket), {.body_bytes = std::size_t{256} << 20}) {}

std::optional<Client> Client::connect(const std::string& program, const std::string& socket) {
  const std::string path = socket.empty() ? holder_socket_path() : socket;
  UniqueFd connection = connect_to(path);
  if (!connection && program.empty()) return std::nullopt;
  if (!connection) {
    start_holder(program, path);
    connection = connect_to(path);
    if (!connection) holder_failed(path, "the new holder does not listen: see " + path + ".log");
  }
  Client client(std::move(connection));
  client.say_hello();
  return client;
}

void Client::say_hello() {
  channel_.send_now({{"request", "hello"}, {"version", kProtocolVersion}});
  const Message answer = channel_.wait();
  const std::uint64_t version = number_of(answer.body(), "version", 1);
  if (version == kProtocolVersion) return;
  // A holder of version 1 rejects a hello with kUsage, and gives its pid in its status.
  const bool knows_hello = answer.body().contains("version");
  if (!knows_hello && answer.body().contains("error")) {
    const Json& error = answer.body().at("error");
    const ErrorCode code = code_of(number_of(error, "status"));
    if (code != ErrorCode::kUsage) throw Error(code, "", text_of(error, "message"));
  }
  const std::int64_t pid =
      knows_hello ? static_cast<std::int64_t>(number_of(answer.body(), "pid")) : status().pid;
  holder_failed("", version_error(version, pid, "this program", kProtocolVersion, true));
}

Message Client::ask(const Json& body, const LoadRequest* request) {
  is_in_step_ = false;
  channel_.send_now(body);
  for (;;) {
    Message message = channel_.wait();
    is_in_step_ = !message.body().contains("progress");
    if (const auto error = message.body().find("error"); error != message.body().end()) {
      throw Error(code_of(number_of(*error, "status")), "", text_of(*error, "message"));
    }
    if (is_in_step_) return message;
    if (request != nullptr && request->progress) {
      request->progress(number_of(message.body(), "progress"), number_of(message.body(), "total"));
    }
  }
}

Loaded Client::load(const DeviceInfo& device, std::span<const Item> items,
                    const LoadRequest& request) {
  Json body{{"request", "load"},      {"uuid", device.uuid},
            {"device", device.id},    {"pin", request.pin},
            {"lease", request.lease}, {"only_resident", request.only_resident}};
  CopyOptions options = request;
  options.sources = resolved(request.sources);
  body.update(to_json(options));
  put_items(body, items);
  Message answer = ask(body, &request);
  Loaded loaded;
  loaded.tensors = residents_of(answer.body());
  for (const Json& number : list_of(answer.body(), "segments")) {
    loaded.segments.push_back(number.get<std::uint64_t>());
  }
  // If this process had too few free descriptors, the caller asks again, with descriptors().
  if (!answer.lacks_descriptors) loaded.descriptors = by_number(loaded.segments, answer);
  loaded.copied_bytes = number_of(answer.body(), "copied_bytes");
  for (const Json& warning : list_of(answer.body(), "warnings")) {
    loaded.warnings.push_back(from_json_text(warning));
  }
  return loaded;
}

std::map<std::uint64_t, UniqueFd> Client::descriptors(std::span<const std::uint64_t> segments) {
  const Json request{{"request", "segments"},
                     {"numbers", std::vector(segments.begin(), segments.end())}};
  Message answer = ask(request);
  if (answer.lacks_descriptors && raise_file_limit()) answer = ask(request);
  if (answer.lacks_descriptors) {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    holder_failed("", "too many open files: this process may have " +
                          std::to_string(limit.rlim_cur) +
                          " and may not raise that: close some, or raise ulimit -n");
  }
  return by_number(segments, answer);
}

void Client::release(std::span<const std::uint64_t> ids) noexcept {
  constexpr std::string_view kBegin = R"({"request":"release","ids":[)";
  constexpr std::size_t kDigits = 20;  // the digits of the largest id
  constexpr std::size_t kAtOnce = 512;
  std::array<char, kBegin.size() + kAtOnce*(kDigits + 1) + 2> text;
  while (!ids.empty() && is_in_step_) {
    char* end = std::ranges::copy(kBegin, text.begin()).out;
    for (const std::uint64_t id : ids.first(std::min(ids.size(), kAtOnce))) {
      end = std::to_chars(end, text.end(), id).ptr;
      *end++ = ',';
    }
    end[-1] = ']';
    *end++ = '}';
    is_in_step_ = channel_.tell({text.begin(), end});
    ids = ids.subspan(std::min(ids.size(), kAtOnce));
  }
}

bool Client::is_open() const {
  // POLLIN means that the connection has ended, or that there is an unexpected answer.
  pollfd end{channel_.fd(), POLLIN, 0};
  return is_in_step_ && ::poll(&end, 1, 0) <= 0;
}

std::vector<Resident> Client::list() { return residents_of(ask({{"request", "list"}}).body()); }

Evicted Client::evict(const ResidentFilter& filter, bool force) {
  Json body = filter_body("evict", filter);
  body["force"] = force;
  const Message answer = ask(body);
  return {.count = number_of(answer.body(), "count"),
          .pinned = number_of(answer.body(), "pinned"),
          .used = number_of(answer.body(), "used")};
}

std::uint64_t Client::pin(const ResidentFilter& filter, bool pinned) {
  Json body = filter_body("pin", filter);
  body["pinned"] = pinned;
  return number_of(ask(body).body(), "count");
}

HolderStatus Client::status() {
  const Message answer = ask({{"request", "status"}});
  HolderStatus status;
  status.pid = static_cast<std::int64_t>(number_of(answer.body(), "pid"));
  status.memory_limit = number_of(answer.body(), "memory_limit");
  status.clients = number_of(answer.body(), "clients");
  for (const auto& [uuid, held] : answer.body().at("devices").items()) {
    status.devices[uuid] = {.bytes = number_of(held, "held"),
                            .evictable = number_of(held, "evictable")};
  }
  return status;
}

}  // namespace stfs::gpu
