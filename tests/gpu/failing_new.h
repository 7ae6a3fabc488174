// operator new that fails on demand: for code that must not need memory. Linked into a program, it
// takes the place of the run-time library's.
#pragma once

namespace stfs::gpu::test {

// While one exists, operator new throws std::bad_alloc in the thread that made it.
class NoMemory {
 public:
  NoMemory();
  ~NoMemory();
  NoMemory(const NoMemory&) = delete;
  NoMemory& operator=(const NoMemory&) = delete;
};

}  // namespace stfs::gpu::test
