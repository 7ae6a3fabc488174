// The boundary between C++ and a C ABI: exceptions become statuses, and structs of other versions
// are read and written. For the functions of stfs.h and stfs_gpu.h.
//
// Thread safety: the functions may be called from any thread; the last error is the thread's own.
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

// The message of the last failure. Storing one allocates nothing.
class LastError {
 public:
  int store(int status, std::string_view message, int system_error) noexcept {
    const std::size_t length = utf8_floor(message, sizeof text_ - 1);
    std::memcpy(text_, message.data(), length);
    text_[length] = '\0';
    system_error_ = system_error;
    return status;
  }
  const char* text() const { return text_; }
  int system_error() const { return system_error_; }  // an errno; 0 for none

 private:
  char text_[4096] = "";
  int system_error_ = 0;
};

inline constinit thread_local LastError last_error;

// Runs a call and returns 0, or the exit status of what it throws. `kGreatest` is the greatest
// status of the ABI; a failure that is not an Error gives it too.
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

[[noreturn]] inline void refuse(const std::string& rule) {
  throw Error(ErrorCode::kUsage, "", rule);
}

// Clears a result. Called first, so that nothing leaks when `pointer` is NULL.
template <class T>
void prepare(T* pointer) {
  if (pointer == nullptr) refuse("the result pointer: NULL");
  *pointer = {};
}

template <class Struct>
std::size_t size_of(const Struct* given, const char* what) {
  std::size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  if (size < sizeof size) refuse(std::string(what) + ": its size is not set");
  return size;
}

// A copy of a caller's struct of any version; all zero of NULL. Members that the caller lacks are
// zero; members that this library lacks must be zero.
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

// Fills a caller's struct of any version; members that this library lacks become zero.
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
