// SHA-256 (FIPS 180-4) of bytes that come in pieces. Cannot fail; only hex() allocates memory.
//
// Thread safety: one thread at a time uses an object.
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
  // The digest as 64 lower-case digits. Ends the object: call it once.
  std::string hex();

 private:
  SHA256_CTX context_;
};

}  // namespace stfs
