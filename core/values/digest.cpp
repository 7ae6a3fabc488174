#include "core/values/digest.h"

#include "core/base/sha256.h"
#include "core/base/text.h"
#include "core/recipe/fetch_missing.h"
#include "core/source/local_file.h"

#include <algorithm>
#include <cerrno>
#include <vector>

namespace stfs {

int sha256(const Content& content, const std::atomic<bool>& stop, std::string& hex,
           const Progress& progress) {
  Sha256 digest;
  constexpr std::uint64_t kChunk = 256 << 10;  // bytes; fits into the second-level cache
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

int check_published(const Source& source, const std::atomic<bool>& stop, std::string& why,
                    const Progress& progress) {
  const std::string published = source.sha256();
  if (published.empty()) return 0;
  Content content;
  content.extent(source, 0, source.size());
  std::string found;
  if (const int error = sha256(content, stop, found, progress)) return error;
  if (found == published) return 0;
  source.refuse();
  const LocalFile* const file = source.local_file();
  why = "its bytes have SHA-256 " + found + ", not " + published + " as its server says: remove " +
        (file != nullptr ? printable(file->file_path()) : "it from the cache");
  return ESTALE;
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
