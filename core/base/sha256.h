// SHA-256 (FIPS 180-4) of a text, or of bytes that arrive in pieces. The only possible failure is
// std::bad_alloc in hex() and sha256_hex(); add() allocates no memory.
//
// Thread safety: one thread at a time uses a Sha256; the functions may be called from any thread.
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
  // Returns the digest as 64 lower-case hex digits. Call it once; the object cannot be used after.
  std::string hex();

 private:
  SHA256_CTX context_;
};

// Returns the digest of a text as 64 lower-case hex digits.
std::string sha256_hex(std::string_view text);

constexpr std::size_t kSha256Digits = 64;
// Returns true if `text` consists of exactly `digits` lower-case hex digits.
bool is_digest(std::string_view text, std::size_t digits);

}  // namespace stfs
