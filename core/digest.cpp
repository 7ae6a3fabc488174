#include "core/digest.h"

// The functions that OpenSSL 3 calls deprecated: what it wants instead sets up the library when it
// is first used, and crashes where there is no memory for that.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

namespace stfs {

int sha256(const Content& content, const std::atomic<bool>& stop, std::string& hex,
           const Progress& progress) {
  SHA256_CTX context;
  SHA256_Init(&context);
  constexpr std::uint64_t kChunk = 256 << 10;  // stays in the second-level cache
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(kChunk, content.size())));
  for (std::uint64_t offset = 0; offset < content.size();) {
    if (stop.load(std::memory_order_relaxed)) return EINTR;
    const auto length = static_cast<std::size_t>(std::min(kChunk, content.size() - offset));
    if (const int error = content.copy(offset, std::span(buffer).first(length))) return error;
    SHA256_Update(&context, buffer.data(), length);
    if (progress) progress(length);
    offset += length;
  }
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256_Final(digest.data(), &context);
  constexpr std::string_view kHex = "0123456789abcdef";
  hex.clear();
  for (const unsigned char byte : digest) {
    hex += kHex[byte >> 4];
    hex += kHex[byte & 15];
  }
  return 0;
}

std::string sha256sum_line(std::string_view hex, std::string_view name) {
  std::string escaped;
  for (const char c : name) {
    switch (c) {
      case '\\':
        escaped += "\\\\";
        break;
      case '\n':
        escaped += "\\n";
        break;
      case '\r':
        escaped += "\\r";
        break;
      default:
        escaped += c;
    }
  }
  std::string line = escaped.size() == name.size() ? "" : "\\";
  line.append(hex).append("  ").append(escaped).push_back('\n');
  return line;
}

}  // namespace stfs
