// OpenSSL 3 deprecates these functions. Their successor, EVP, initialises the library on first use,
// and crashes if memory runs out while it does so.
#define OPENSSL_SUPPRESS_DEPRECATED
#include "core/base/sha256.h"

#include "core/base/text.h"

#include <array>
#include <string_view>

namespace stfs {

Sha256::Sha256() { SHA256_Init(&context_); }

void Sha256::add(std::span<const std::byte> bytes) {
  SHA256_Update(&context_, bytes.data(), bytes.size());
}

std::string Sha256::hex() {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256_Final(digest.data(), &context_);
  return stfs::hex({reinterpret_cast<const char*>(digest.data()), digest.size()});
}

std::string sha256_hex(std::string_view text) {
  Sha256 digest;
  digest.add(std::as_bytes(std::span(text)));
  return digest.hex();
}

bool is_digest(std::string_view text, std::size_t digits) {
  return text.size() == digits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace stfs
