// Asks a driver in a process of its own, and prints JSON.
//
//   device_probe devices
//   device_probe survival DEVICE BYTES    does a descriptor alone keep memory?
//
// DEVICE is as for stfs-gpu. Exit status 0, 1 when memory did not survive, 2 for wrong usage, 5
// when the device failed.
#include "core/base/posix.h"
#include "tests/gpu/device_pattern.h"
#include "tools/gpu/device/device.h"
#include "tools/gpu/device/driver.h"

#include <nlohmann/json.hpp>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace stfs::gpu::test {
namespace {

using nlohmann::json;

constexpr std::size_t kTile = 4 << 20;

// For verbs that copy: keeps the primary context current until the process ends.
struct Session {
  explicit Session(const DeviceInfo& info) : cuda(cuda_driver()) {
    const int ordinal = std::stoi(info.id.substr(info.id.find(':') + 1));
    cuda.check(cuda.cuDeviceGet(&device, ordinal), "cuDeviceGet");
    cuda.check(cuda.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    cuda.check(cuda.cuCtxPushCurrent(context), "cuCtxPushCurrent");
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() {
    cuda.cuCtxPopCurrent(&context);
    cuda.cuDevicePrimaryCtxRelease(device);
  }

  const CudaDriver& cuda;
  CUdevice device = 0;
  CUcontext context = nullptr;
};

json as_json(const DeviceInfo& info) {
  return {{"id", info.id},
          {"name", info.name},
          {"uuid", info.uuid},
          {"pci", info.pci},
          {"total_bytes", info.total_bytes},
          {"free_bytes", info.free_bytes}};
}

void send_descriptor(int socket, int fd) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof fd)> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  if (sendmsg(socket, &message, 0) != 1)
    throw_errno(ErrorCode::kDeviceFailed, "", "sendmsg", errno);
}

// Returns none when the other end has closed the socket.
UniqueFd receive_descriptor(int socket) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return {};
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return {};
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return UniqueFd(fd);
}

// The child writes a pattern into device memory, exports it and is killed. The parent makes its
// context after that; like a holder, it has only the descriptor.
json survival(const std::string& device_name, std::size_t bytes) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw_errno(ErrorCode::kDeviceFailed, "", "socketpair", errno);
  const UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  const std::vector<std::byte> written = pattern(42, bytes);

  const pid_t child = fork();
  if (child < 0) throw_errno(ErrorCode::kDeviceFailed, "", "fork", errno);
  if (child == 0) {
    try {
      const auto device = open_cuda(find_device(device_name));
      const auto segment = device->allocate(bytes);
      const auto lane = device->lane(kTile);
      send_all(*lane, *segment, written, kTile);
      lane->drain();
      send_descriptor(theirs.get(), segment->publish().get());
      std::raise(SIGKILL);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "device_probe: %s\n", error.what());
    }
    _exit(5);
  }
  theirs = UniqueFd();
  UniqueFd fd = receive_descriptor(ours.get());
  int status = 0;
  waitpid(child, &status, 0);
  if (!fd || !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
    throw Error(ErrorCode::kDeviceFailed, "", "the exporting process failed");

  const DeviceInfo info = find_device(device_name);
  const Session session(info);
  const auto device = open_cuda(info);
  const std::uint64_t free_while_held = device->info().free_bytes;
  json result{{"bytes", bytes}, {"exporter", "killed"}};
  std::vector<std::byte> read(bytes);
  const auto begin = std::chrono::steady_clock::now();
  auto mapped = map_cuda_segment(info, fd.get(), bytes);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  session.cuda.check(session.cuda.cuMemcpyDtoH(read.data(), mapped->address(), bytes),
                     "cuMemcpyDtoH");
  result["map_milliseconds"] = took.count();
  result["survives"] = read == written;
  fd = UniqueFd();
  session.cuda.check(session.cuda.cuMemcpyDtoH(read.data(), mapped->address(), bytes),
                     "cuMemcpyDtoH");
  result["mapping_outlives_descriptor"] = read == written;
  mapped.reset();
  const std::uint64_t free_afterwards = device->info().free_bytes;
  result["bytes_freed_with_the_last_user"] =
      free_afterwards > free_while_held ? free_afterwards - free_while_held : 0;
  return result;
}

int run(const std::vector<std::string>& arguments) {
  const auto usage = [] { throw Error(ErrorCode::kUsage, "", "see the head of its source"); };
  json result;
  if (arguments.empty()) usage();
  const std::string& verb = arguments[0];
  if (verb == "devices" && arguments.size() == 1) {
    result = json::array();
    for (const DeviceInfo& info : cuda_infos()) result.push_back(as_json(info));
  } else if (verb == "survival" && arguments.size() == 3) {
    result = survival(arguments[1], std::stoull(arguments[2]));
  } else {
    usage();
  }
  std::printf("%s\n", result.dump(2).c_str());
  return result.is_object() && !result.value("survives", true) ? 1 : 0;
}

}  // namespace
}  // namespace stfs::gpu::test

int main(int argc, char** argv) {
  try {
    return stfs::gpu::test::run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const stfs::Error& error) {
    std::fprintf(stderr, "device_probe: %s\n", error.what());
    return stfs::exit_status(error.code());
  }
}
