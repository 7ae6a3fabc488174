// Sockets for the protocol, and its messages as bytes.
#pragma once

#include "core/base/posix.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>
#include <string>

namespace stfs::gpu::test {

inline UniqueFd new_socket(int flags = 0, int type = SOCK_STREAM) {
  return UniqueFd(::socket(AF_UNIX, type | SOCK_CLOEXEC | flags, 0));
}

// Calls `call`, which is bind(2) or connect(2). Returns 0 or -1.
inline int at_path(int (*call)(int, const sockaddr*, socklen_t), const UniqueFd& fd,
                   const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  return call(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
}

// Returns a message that announces this number of descriptors.
inline std::string frame(const std::string& body, std::uint32_t descriptors = 0) {
  std::string bytes;
  for (const std::size_t value : {body.size(), std::size_t{descriptors}}) {
    for (unsigned i = 0; i < 4; ++i) bytes += static_cast<char>((value >> (8 * i)) & 0xff);
  }
  return bytes + body;
}

}  // namespace stfs::gpu::test
