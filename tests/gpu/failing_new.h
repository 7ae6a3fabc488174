// An operator new that fails on demand, to test code when memory is exhausted. It replaces the
// operator new of the run-time library in programs that link this file.
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
