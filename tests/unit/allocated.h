// Counts the memory that this thread requests from operator new.
#pragma once

#include <cstdint>

namespace stfs::test {

// Bytes since the thread began, freed ones included. Not in sanitizer builds: a sanitizer brings
// its own allocator.
std::uint64_t allocated_bytes();

}  // namespace stfs::test
