// Reads any text as a slice of any tensor. It is rejected with EINVAL or ERANGE, or the slice is
// inside the tensor and has the size of its shape.
//
// The input is a byte for the type, a byte for the rank, a 64-bit number for each dimension, and
// the expression.
#include "core/format/types.h"
#include "core/recipe/slice.h"
#include "tests/fuzz/check.h"

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace stfs::fuzz {
namespace {

using Wide = unsigned __int128;

// Returns the bytes of a tensor, or 0 if no format allows it.
std::uint64_t legal_bytes(const TypeInfo& type, const std::vector<std::uint64_t>& shape) {
  std::uint64_t elements = 1;
  for (const std::uint64_t dimension : shape)
    if (__builtin_mul_overflow(elements, dimension, &elements)) return 0;
  return type.bytes_of(elements).value_or(0);
}

void run(std::string_view input) {
  if (input.size() < 2) return;
  const auto dtype = static_cast<DType>(static_cast<unsigned char>(input[0]) % kDTypeCount);
  const std::size_t rank = static_cast<unsigned char>(input[1]) % (kSliceMaxRank + 4);
  input.remove_prefix(2);
  if (input.size() < rank * 8) return;
  std::vector<std::uint64_t> shape(rank);
  if (rank > 0) std::memcpy(shape.data(), input.data(), rank * 8);
  const TypeInfo& type = type_info(dtype);
  const std::uint64_t bytes = legal_bytes(type, shape);
  if (bytes == 0) return;

  Slice slice;
  const int error = parse_slice(input.substr(rank * 8), dtype, shape, slice);

  check(error == 0 || error == EINVAL || error == ERANGE);
  if (error != 0) return;
  check(slice.shape.size() <= rank);
  check(legal_bytes(type, slice.shape) == slice.size());
  if (slice.run == 0) return;
  Wide end = Wide{slice.begin} + slice.run;  // the end of the last run, after the loop
  for (const Slice::Loop& loop : slice.loops) {
    check(loop.count >= 2);
    end += Wide{loop.count - 1} * loop.stride;
  }
  check(end <= bytes);
}

}  // namespace
}  // namespace stfs::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  stfs::fuzz::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
