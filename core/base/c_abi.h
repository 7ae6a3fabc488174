// The boundary between C++ and the C ABI of stfs.h and stfs_gpu.h. It turns exceptions into
// statuses, and reads and writes structs of callers that were compiled against another version.
//
// Thread safety: the functions may be called from any thread; each thread has its own last error.
#pragma once

#include "core/base/error.h"
#include "core/base/text.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <new>
#include <string>
#include <string_view>

namespace stfs::abi {

// The message of a thread's last failure, cut to 4,095 bytes. store() allocates no memory, so it
// also works after std::bad_alloc.
class LastError {
 public:
  // Keeps the message and the errno, and returns `status`.
  int store(int status, std::string_view message, int system_error) noexcept {
    const std::size_t length = utf8_floor(message, sizeof text_ - 1);
    std::memcpy(text_, message.data(), length);
    text_[length] = '\0';
    system_error_ = system_error;
    return status;
  }
  const char* text() const { return text_; }
  int system_error() const { return system_error_; }  // an errno, or 0 if there is none

 private:
  char text_[4096] = "";
  int system_error_ = 0;
};

inline constinit thread_local LastError last_error;

// Runs `call` and returns 0. If `call` throws an Error, stores its message and errno in last_error
// and returns its exit status, at most `kGreatest`, the greatest status of the ABI. Any other
// exception is stored too and gives `kGreatest`.
template <int kGreatest, class Call>
int guarded(Call&& call) noexcept {
  try {
    call();
    return 0;
  } catch (const Error& error) {
    return last_error.store(std::min(exit_status(error.code()), kGreatest), error.what(),
                            error.system_error());
  } catch (const std::bad_alloc&) {
    return last_error.store(kGreatest, "out of memory", ENOMEM);
  } catch (const std::exception& error) {
    return last_error.store(kGreatest, error.what(), 0);
  } catch (...) {
    return last_error.store(kGreatest, "unknown failure (please report it)", 0);
  }
}

// Throws Error kUsage with no place.
[[noreturn]] inline void refuse(const std::string& rule) {
  throw Error(ErrorCode::kUsage, "", rule);
}

// Clears the result that `pointer` points to. Throws Error kUsage if it is NULL. Functions call
// this first, so that they refuse a NULL before they create the result, which would leak.
template <class T>
void prepare(T* pointer) {
  if (pointer == nullptr) refuse("the result pointer: NULL");
  *pointer = {};
}

// Returns the size that the caller has set in the first member of its struct. `what` names the
// struct in messages. Throws Error kUsage if the size is smaller than that member.
template <class Struct>
std::size_t size_of(const Struct* given, const char* what) {
  std::size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  if (size < sizeof size) refuse(std::string(what) + ": its size is not set");
  return size;
}

// Returns a copy of a caller's struct of any version, or a zeroed struct if `given` is NULL.
// Members that the caller's version lacks are zero. Throws Error kUsage if a member that this
// library does not know is not zero.
template <class Struct>
Struct read_sized(const Struct* given, const char* what) {
  Struct known{};
  if (given == nullptr) return known;
  const std::size_t size = size_of(given, what);
  const auto* bytes = reinterpret_cast<const char*>(given);
  if (size > sizeof known &&
      !std::all_of(bytes + sizeof known, bytes + size, [](char byte) { return byte == 0; })) {
    refuse(std::string(what) + ": this version of the library does not know some options");
  }
  std::memcpy(&known, bytes, std::min(size, sizeof known));
  return known;
}

// Copies `known`, without its size, into a caller's struct of any version. Members that this
// library does not know become zero. Throws Error kUsage if `given` is NULL.
template <class Struct>
void write_sized(const Struct& known, Struct* given, const char* what) {
  if (given == nullptr) refuse(std::string(what) + ": NULL");
  const std::size_t size = size_of(given, what);
  auto* bytes = reinterpret_cast<char*>(given);
  const std::size_t shared = std::min(size, sizeof known);
  std::memcpy(bytes + sizeof size, reinterpret_cast<const char*>(&known) + sizeof size,
              shared - sizeof size);
  std::memset(bytes + shared, 0, size - shared);
}

}  // namespace stfs::abi
