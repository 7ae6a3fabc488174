// Counts the memory that this thread requests from operator new.
#pragma once

#include <cstdint>

namespace stfs::test {

// Returns the bytes that this thread has requested since it began, including freed bytes. Missing
// in sanitizer builds, because sanitizers have their own allocator.
std::uint64_t allocated_bytes();

}  // namespace stfs::test
