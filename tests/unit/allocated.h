// How much memory this thread has asked operator new for: for tests of what is not made.
#pragma once

#include <cstdint>

namespace stfs::test {

// Bytes since the thread began, whether they were given back or not. Not in builds with a
// sanitizer, which brings an allocator of its own.
std::uint64_t allocated_bytes();

}  // namespace stfs::test
