#include "core/recipe/npy.h"

namespace stfs {

std::string npy_header(std::string_view code, std::span<const std::uint64_t> shape) {
  constexpr std::size_t kPrefix = 10;  // magic, version, length
  constexpr std::size_t kAlignment = 64;
  std::string dict = "{'descr': '" + std::string(code) + "', 'fortran_order': False, 'shape': (";
  for (const std::uint64_t dim : shape) dict += std::to_string(dim) + ", ";
  if (shape.size() > 1) dict.resize(dict.size() - 2);  // "(3, 4)", but "(3,)" and "()"
  if (shape.size() == 1) dict.pop_back();
  dict += "), }";
  const std::size_t unpadded = kPrefix + dict.size() + 1;
  dict.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  dict += '\n';
  std::string header = "\x93NUMPY\x01";
  header += '\0';
  header += static_cast<char>(dict.size() & 0xFF);
  header += static_cast<char>(dict.size() >> 8);
  return header + dict;
}

}  // namespace stfs
