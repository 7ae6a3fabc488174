#include "core/digest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <vector>

namespace stfs {
namespace {

// Nothing when there was no memory for it. It is not tried again then: OpenSSL cannot be relied on
// once it has run out of memory while it set itself up.
const EVP_MD* method() {
  static const EVP_MD* const kMethod = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  return kMethod;
}

}  // namespace

void prepare_sha256() { method(); }

int sha256(const Content& content, const std::atomic<bool>& stop, std::string& hex,
           const Progress& progress) {
  if (method() == nullptr) return ENOMEM;
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        &EVP_MD_CTX_free);
  if (!context || EVP_DigestInit_ex(context.get(), method(), nullptr) != 1) return ENOMEM;
  constexpr std::uint64_t kChunk = 256 << 10;  // stays in the second-level cache
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(kChunk, content.size())));
  for (std::uint64_t offset = 0; offset < content.size();) {
    if (stop.load(std::memory_order_relaxed)) return EINTR;
    const auto length = static_cast<std::size_t>(std::min(kChunk, content.size() - offset));
    if (const int error = content.copy(offset, std::span(buffer).first(length))) return error;
    EVP_DigestUpdate(context.get(), buffer.data(), length);
    if (progress) progress(length);
    offset += length;
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned length = 0;
  EVP_DigestFinal_ex(context.get(), digest.data(), &length);
  constexpr std::string_view kHex = "0123456789abcdef";
  hex.clear();
  for (unsigned i = 0; i < length; ++i) {
    hex += kHex[digest[i] >> 4];
    hex += kHex[digest[i] & 15];
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
