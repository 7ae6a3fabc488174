// Private memory that programs get: they may write to it, and nobody else sees it.
//
// Thread safety: PrivateFile all members; one thread at a time uses a Memory.
#pragma once

#include "core/base/forks.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace stfs {

// A copy-on-write mapping of a whole file, of which each byte is lent to one owner at a time: all
// tensors that a program keeps need one mapping, since a process has few (vm.max_map_count).
class PrivateFile {
 public:
  PrivateFile(void* base, std::size_t length)
      : base_(static_cast<std::byte*>(base)), length_(length) {}
  PrivateFile(const PrivateFile&) = delete;
  PrivateFile& operator=(const PrivateFile&) = delete;
  ~PrivateFile();

  // The bytes as they are in the file, which has this descriptor; null where some are lent, or
  // cannot be read.
  std::byte* lend(std::size_t begin, std::size_t length, int descriptor);
  void give_back(const std::byte* data);

 private:
  // The whole pages of a range show the file again. False where they cannot (mlock(2)).
  bool drop(std::size_t begin, std::size_t end) const;

  std::byte* const base_;
  const std::size_t length_;
  const std::uint64_t process_ = this_process();
  std::mutex mutex_;                         // of the rest
  std::map<std::size_t, std::size_t> lent_;  // begin -> end, bytes
  bool was_used_ = false;  // something was given back, and may have been written to
};

// Private memory: a mapping of a file, a part of one, or bytes that were read.
class Memory {
 public:
  Memory() = default;
  explicit Memory(std::size_t length);  // bytes; uninitialised
  // A copy-on-write mapping of a file; empty where there can be none.
  static Memory mapped(int descriptor, std::size_t length);
  Memory(std::shared_ptr<PrivateFile> file, std::byte* data)
      : base_(data), file_(std::move(file)) {}
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(mapped_, other.mapped_);
    file_.swap(other.file_);
    return *this;
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  std::byte* data() const { return static_cast<std::byte*>(base_); }
  void* release() { return std::exchange(base_, nullptr); }

 private:
  void* base_ = nullptr;
  std::size_t mapped_ = 0;             // bytes; 0: from malloc(3), or a part of `file_`
  std::shared_ptr<PrivateFile> file_;  // shared: of all parts that live
};

}  // namespace stfs
