// A library to preload (LD_PRELOAD): makes one call of a kind fail, or all calls from then on.
//
//   STFS_FAIL_CALL=accept4|fsync|open|mmap|malloc|pthread_create|pread|tmpfile
//                          the kind of call. malloc does not include calloc and realloc; with
//                          AddressSanitizer it includes operator new. open: only absolute paths
//                          that contain ".safetensors". mmap: only shared mappings of files.
//                          tmpfile: openat with O_TMPFILE fails, as on a file system without it
//   STFS_FAIL_AT=N         the Nth call of this kind, counted from 1
//   STFS_FAIL_ON=1         all later calls as well
//   STFS_FAIL_SIZE=BYTES   malloc, mmap and pread: only calls of at least this size
//   STFS_FAIL_MOST=BYTES   and of at most this size
//   STFS_FAIL_WHILE=PATH   only while this file exists
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

// True during main(). Calls before it (by the loader, and for the memory that C++ reserves for
// exceptions) and after it (a coverage build writes its counters) are not made by the program.
std::atomic<bool> is_started = false;

// Returns true if this call of `kind` has to fail. getenv() does not allocate memory.
bool fails(const char* kind, std::size_t size = ~std::size_t{0}) {
  if (!is_started) return false;
  const int before = errno;
  const char* wanted = ::getenv("STFS_FAIL_CALL");
  if (wanted == nullptr || std::strcmp(wanted, kind) != 0) return false;
  const char* least = ::getenv("STFS_FAIL_SIZE");
  if (least != nullptr && size < std::strtoul(least, nullptr, 10)) return false;
  const char* most = ::getenv("STFS_FAIL_MOST");
  if (most != nullptr && size > std::strtoul(most, nullptr, 10)) return false;
  const char* flag = ::getenv("STFS_FAIL_WHILE");
  if (flag != nullptr && ::syscall(SYS_access, flag, F_OK) != 0) {
    errno = before;
    return false;
  }
  static std::atomic<unsigned long> count = 0;
  const unsigned long number = ++count;
  const char* at = ::getenv("STFS_FAIL_AT");
  const unsigned long first = at == nullptr ? 1 : std::strtoul(at, nullptr, 10);
  return number == first || (number > first && ::getenv("STFS_FAIL_ON") != nullptr);
}

template <class Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

int opened_at(const char* symbol, int directory, const char* path, int flags, va_list arguments) {
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
  static const auto next = real<int (*)(int, const char*, int, ...)>(symbol);
  if ((flags & O_TMPFILE) == O_TMPFILE && fails("tmpfile")) {
    errno = EOPNOTSUPP;
    return -1;
  }
  return next(directory, path, flags, mode);
}

using Main = int(int argc, char** argv, char** environment);

int opened(const char* symbol, const char* path, int flags, va_list arguments) {
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
  static const auto next = real<int (*)(const char*, int, ...)>(symbol);
  // Do not fail for devices and for files of the loader.
  if (path[0] == '/' && std::strstr(path, ".safetensors") != nullptr && fails("open")) {
    errno = EMFILE;
    return -1;
  }
  return next(path, flags, mode);
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const int fd = opened("open", path, flags, arguments);
  va_end(arguments);
  return fd;
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const int fd = opened("open64", path, flags, arguments);
  va_end(arguments);
  return fd;
}

int openat(int directory, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const int fd = opened_at("openat", directory, path, flags, arguments);
  va_end(arguments);
  return fd;
}

int openat64(int directory, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const int fd = opened_at("openat64", directory, path, flags, arguments);
  va_end(arguments);
  return fd;
}

void* mmap(void* address, std::size_t length, int protection, int flags, int fd, off_t offset) {
  static const auto next = real<void* (*)(void*, std::size_t, int, int, int, off_t)>("mmap");
  if (fd >= 0 && (flags & MAP_SHARED) != 0 && fails("mmap", length)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return next(address, length, protection, flags, fd, offset);
}

ssize_t pread(int fd, void* buffer, std::size_t length, off_t offset) {
  static const auto next = real<ssize_t (*)(int, void*, std::size_t, off_t)>("pread");
  if (fails("pread", length)) {
    errno = EIO;
    return -1;
  }
  return next(fd, buffer, length, offset);
}

int fsync(int fd) {
  static const auto next = real<int (*)(int)>("fsync");
  if (fails("fsync")) {
    errno = EIO;
    return -1;
  }
  return next(fd);
}

int accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
  static const auto next = real<int (*)(int, sockaddr*, socklen_t*, int)>("accept4");
  if (fails("accept4")) {
    errno = ENOMEM;
    return -1;
  }
  return next(fd, address, length, flags);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) {
  static const auto next =
      real<int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create");
  if (fails("pthread_create")) return EAGAIN;
  return next(thread, attributes, start, argument);
}

int __libc_start_main(Main* program, int argc, char** argv, void (*init)(), void (*fini)(),
                      void (*loader_fini)(), void* stack_end) {
  static const auto next = real<decltype(&__libc_start_main)>("__libc_start_main");
  static Main* given = program;
  const auto start = [](int count, char** arguments, char** environment) {
    std::atexit([] { is_started = false; });
    is_started = true;
    return given(count, arguments, environment);
  };
  return next(start, argc, argv, init, fini, loader_fini, stack_end);
}

void* malloc(std::size_t size) {
  static const auto next = real<void* (*)(std::size_t)>("malloc");
  if (fails("malloc", size)) {
    errno = ENOMEM;
    return nullptr;
  }
  return next(size);
}

}  // extern "C"

#ifdef STFS_ADDRESS_SANITIZER

// Without AddressSanitizer these functions call malloc().

void* operator new(std::size_t size) {
  static const auto next = real<void* (*)(std::size_t)>("_Znwm");
  if (fails("malloc", size)) throw std::bad_alloc();
  return next(size);
}

void* operator new[](std::size_t size) {
  static const auto next = real<void* (*)(std::size_t)>("_Znam");
  if (fails("malloc", size)) throw std::bad_alloc();
  return next(size);
}

#endif
