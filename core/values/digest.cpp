#include "core/values/digest.h"

#include "core/base/sha256.h"
#include "core/recipe/arrival.h"

#include <algorithm>
#include <cerrno>
#include <vector>

namespace stfs {

int sha256(const Content& content, const std::atomic<bool>& stop, std::string& hex,
           const Progress& progress) {
  Sha256 digest;
  constexpr std::uint64_t kChunk = 256 << 10;  // stays in the second-level cache
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(kChunk, content.size())));
  SequentialReader reader(content, &stop);
  for (std::uint64_t offset = 0; offset < content.size();) {
    if (stop.load(std::memory_order_relaxed)) return EINTR;
    const auto length = static_cast<std::size_t>(std::min(kChunk, content.size() - offset));
    if (const int error = reader.copy_unverified(offset, std::span(buffer).first(length))) {
      const int changed = content.verify();
      return changed != 0 ? changed : error;
    }
    digest.add(std::span(buffer).first(length));
    if (progress) progress(length);
    offset += length;
  }
  hex = digest.hex();
  return content.verify();
}

std::string sha256sum_line(std::string_view hex, std::string_view name) {
  std::string escaped;
  for (const char c : name) {
    switch (c) {
      case '\\': escaped += "\\\\"; break;
      case '\n': escaped += "\\n"; break;
      case '\r': escaped += "\\r"; break;
      default: escaped += c;
    }
  }
  std::string line = escaped.size() == name.size() ? "" : "\\";
  line.append(hex).append("  ").append(escaped).push_back('\n');
  return line;
}

}  // namespace stfs
