#include "tools/library/memory.h"

#include "core/base/posix.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <new>

namespace stfs {
namespace {

constexpr std::size_t kAlignment = 256;  // bytes; DLPack requires this alignment of data
const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));

}  // namespace

Memory::Memory(std::size_t length)
    : base_(std::aligned_alloc(kAlignment, (length + kAlignment - 1) / kAlignment * kAlignment)) {
  if (base_ == nullptr) throw std::bad_alloc();
}

Memory Memory::mapped(int descriptor, std::size_t length) {
  Memory memory;
  if (descriptor < 0) return memory;
  void* const base =
      ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, descriptor, 0);
  if (base == MAP_FAILED) return memory;  // too many mappings, or a file system without mmap(2)
  memory.base_ = base;
  memory.mapped_ = length;
  return memory;
}

Memory::~Memory() {
  if (base_ == nullptr) return;
  if (file_ != nullptr) {
    file_->give_back(data());
  } else if (mapped_ != 0) {
    ::munmap(base_, mapped_);
  } else {
    std::free(base_);
  }
}

PrivateFile::~PrivateFile() { ::munmap(base_, length_); }

std::byte* PrivateFile::lend(std::size_t begin, std::size_t length, int descriptor) {
  const std::size_t end = begin + length;
  const std::lock_guard lock(mutex_);
  const auto after = lent_.lower_bound(end);
  if (after != lent_.begin() && std::prev(after)->second > begin) return nullptr;
  if (was_used_) {
    // Discard what earlier owners have written: drop() restores whole pages, and the rest of a page
    // that the range shares with other owners is read from the file.
    const auto read = [&](std::size_t from, std::size_t to) {
      return from >= to || pread_exact(descriptor, {base_ + from, to - from}, from) == 0;
    };
    const std::size_t first = std::min(begin + (page_bytes - begin % page_bytes) % page_bytes, end);
    if (!drop(begin, end) || !read(begin, first) ||
        !read(std::max(first, end - end % page_bytes), end)) {
      return nullptr;
    }
  }
  lent_.emplace(begin, end);
  return base_ + begin;
}

void PrivateFile::give_back(const std::byte* data) {
  if (process_ != this_process()) return;  // a child: a thread of the parent may have held the lock
  const std::lock_guard lock(mutex_);
  const auto at = lent_.find(static_cast<std::size_t>(data - base_));
  drop(at->first, at->second);
  lent_.erase(at);
  was_used_ = true;
}

bool PrivateFile::drop(std::size_t begin, std::size_t end) const {
  begin += (page_bytes - begin % page_bytes) % page_bytes;
  end -= end % page_bytes;
  return begin >= end || ::madvise(base_ + begin, end - begin, MADV_DONTNEED) == 0;
}

}  // namespace stfs
