// Private memory for programs, which may write to it without changing a file or other memory.
//
// Thread safety: all members of PrivateFile may be called from any thread; one thread at a time
// uses a Memory.
#pragma once

#include "core/base/forks.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace stfs {

// A copy-on-write mapping of a whole file. It lends each byte to one owner at a time, so that all
// tensors that a program keeps share one mapping: a process may have only vm.max_map_count
// mappings.
class PrivateFile {
 public:
  PrivateFile(void* base, std::size_t length)
      : base_(static_cast<std::byte*>(base)), length_(length) {}
  PrivateFile(const PrivateFile&) = delete;
  PrivateFile& operator=(const PrivateFile&) = delete;
  ~PrivateFile();

  // Lends `length` bytes from offset `begin` with the content of the file, which `descriptor`
  // refers to. Returns nullptr if some of these bytes are already lent, or cannot be read.
  std::byte* lend(std::size_t begin, std::size_t length, int descriptor);
  void give_back(const std::byte* data);

 private:
  // Makes the whole pages of a range show the file again. Returns false if madvise(2) refuses, for
  // instance because the pages are locked by mlock(2).
  bool drop(std::size_t begin, std::size_t end) const;

  std::byte* const base_;
  const std::size_t length_;
  const std::uint64_t process_ = this_process();
  std::mutex mutex_;                         // guards the members below
  std::map<std::size_t, std::size_t> lent_;  // the lent ranges: begin -> end, in bytes
  bool was_used_ = false;  // a range was given back, and its owner may have written to it
};

// Owns private memory: a mapping of a file, a part of a PrivateFile, or allocated bytes.
class Memory {
 public:
  Memory() = default;
  explicit Memory(std::size_t length);  // `length` in bytes; uninitialised
  // A copy-on-write mapping of a whole file. Empty if `descriptor` is negative or mmap(2) fails.
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
  // Returns the memory, which the caller then has to free.
  void* release() { return std::exchange(base_, nullptr); }

 private:
  void* base_ = nullptr;
  // Bytes of an own mapping; 0: the memory is from malloc(3) or a part of file_.
  std::size_t mapped_ = 0;
  std::shared_ptr<PrivateFile> file_;  // shared by all its parts that are lent
};

}  // namespace stfs
