#include "tests/unit/allocated.h"

#ifndef STFS_SANITIZED

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {
thread_local std::uint64_t allocated = 0;
}

std::uint64_t stfs::test::allocated_bytes() { return allocated; }

// All other forms of new and delete call these.
void* operator new(std::size_t size) {
  allocated += size;
  if (void* const memory = std::malloc(size != 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

#endif
