#include "tests/gpu/failing_new.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace stfs::gpu::test {
namespace {

thread_local bool fails = false;

void* allocated(std::size_t size) {
  void* memory = fails ? nullptr : std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

NoMemory::NoMemory() { fails = true; }
NoMemory::~NoMemory() { fails = false; }

}  // namespace stfs::gpu::test

void* operator new(std::size_t size) { return stfs::gpu::test::allocated(size); }
void* operator new[](std::size_t size) { return stfs::gpu::test::allocated(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return std::malloc(size == 0 ? 1 : size);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
