// SHA-256 (FIPS 180-4), a piece at a time. It cannot fail, and needs no memory but for its answer.
#pragma once

#include <openssl/sha.h>

#include <cstddef>
#include <span>
#include <string>

namespace stfs {

class Sha256 {
 public:
  Sha256();

  void add(std::span<const std::byte> bytes);
  // 64 lower-case digits. Call once, as the last.
  std::string hex();

 private:
  SHA256_CTX context_;
};

}  // namespace stfs
