#include "core/format/format.h"

#include "core/base/posix.h"
#include "core/format/gguf.h"
#include "core/format/safetensors.h"

#include <algorithm>
#include <array>

namespace stfs {
namespace {

// In the order in which format_of() asks them. The last recognises every file.
constexpr std::array<Format, 2> kFormats{{
    {kGgufName, is_gguf, read_gguf, ".gguf"},
    {kSafetensorsName, [](std::span<const std::byte>) { return true; }, read_safetensors, ".json"},
}};

}  // namespace

const Format& format_of(const Source& source) {
  std::array<std::byte, kFirstBytes> buffer{};
  const std::span first = std::span(buffer).first(
      static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), source.size())));
  if (const int error = source.read(first, 0)) {
    throw_errno(ErrorCode::kUnreadable, source.path(), "", error);
  }
  return *std::ranges::find_if(kFormats, [&](const Format& f) { return f.recognises(first); });
}

}  // namespace stfs
