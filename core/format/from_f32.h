// Rounds binary32 to 16 bits: to nearest, ties to even, once. narrow.h has the rules for one value;
// these functions give the same bits with the vectors that the processor has.
//
// `out` has room for `count` elements of 2 bytes, at any address; it may be `in` itself, and must
// not overlap it otherwise.
//
// Thread safety: the functions may be called from any thread, however it rounds.
#pragma once

#include <cstddef>

namespace stfs {

using Rounding = void(const float* in, std::size_t count, std::byte* out);

Rounding f32_to_f16, f32_to_bf16;

}  // namespace stfs
