// SHA-256 (FIPS 180-4) of a text, or of bytes that come in pieces. Cannot fail; only hex()
// allocates memory.
//
// Thread safety: one thread at a time uses an object.
#pragma once

#include <openssl/sha.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

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

// The digest of a text as 64 lower-case digits.
std::string sha256_hex(std::string_view text);

constexpr std::size_t kSha256Digits = 64;
// Whether a text is so many hex digits in lower case.
bool is_digest(std::string_view text, std::size_t digits);

}  // namespace stfs
