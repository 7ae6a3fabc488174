// Preloaded into stfs. Changes the FUSE handshake that read(2) returns, and refuses the command to
// resend requests. The kernel then seems unable to resend requests, and opens directories before it
// lists them.
#include <dlfcn.h>
#include <linux/fuse.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

extern "C" ssize_t read(int fd, void* buffer, size_t size) {
  using Read = ssize_t (*)(int, void*, size_t);
  static const auto real = reinterpret_cast<Read>(::dlsym(RTLD_NEXT, "read"));
  const ssize_t n = real(fd, buffer, size);
  struct {
    fuse_in_header header;
    fuse_init_in init;
  } request{};
  if (n < static_cast<ssize_t>(sizeof request)) return n;
  std::memcpy(&request, buffer, sizeof request);
  if (request.header.opcode != FUSE_INIT || request.header.len != static_cast<std::uint32_t>(n)) {
    return n;
  }
  request.init.flags &= ~static_cast<std::uint32_t>(FUSE_NO_OPENDIR_SUPPORT);
  request.init.flags2 &= ~(1U << (39 - 32));
  std::memcpy(buffer, &request, sizeof request);
  return n;
}

extern "C" ssize_t write(int fd, const void* buffer, size_t size) {
  using Write = ssize_t (*)(int, const void*, size_t);
  static const auto real = reinterpret_cast<Write>(::dlsym(RTLD_NEXT, "write"));
  constexpr int kNotifyResend = 7;  // FUSE_NOTIFY_RESEND
  fuse_out_header header{};
  if (size == sizeof header) std::memcpy(&header, buffer, sizeof header);
  if (size != sizeof header || header.len != size || header.error != kNotifyResend ||
      header.unique != 0) {
    return real(fd, buffer, size);
  }
  errno = EINVAL;
  return -1;
}
