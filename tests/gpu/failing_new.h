// An operator new that fails on demand, for code that must not allocate. It replaces the run-time
// library's in programs that link it.
#pragma once

namespace stfs::gpu::test {

// While an object exists, operator new throws std::bad_alloc in the thread that constructed it.
class NoMemory {
 public:
  NoMemory();
  ~NoMemory();
  NoMemory(const NoMemory&) = delete;
  NoMemory& operator=(const NoMemory&) = delete;
};

}  // namespace stfs::gpu::test
