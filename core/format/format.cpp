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
    {kGgufName, is_gguf, read_gguf, gguf_header_length, ".gguf"},
    {kSafetensorsName, [](std::span<const std::byte>) { return true; }, read_safetensors,
     safetensors_header_length, ".json"},
}};

std::span<std::byte> first_of(const Source& source, std::array<std::byte, kFirstBytes>& buffer) {
  return std::span(buffer).first(
      static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), source.size())));
}

const Format& format_of(std::span<const std::byte> first) {
  return *std::ranges::find_if(kFormats, [&](const Format& f) { return f.recognises(first); });
}

}  // namespace

const Format& format_of(const Source& source) {
  std::array<std::byte, kFirstBytes> buffer{};
  const std::span first = first_of(source, buffer);
  if (const int error = source.read(first, 0)) {
    throw_read_failure(source, source.path(), "", error);
  }
  return format_of(first);
}

void prefetch_header(const Source& source) {
  if (source.is_complete()) return;
  std::array<std::byte, kFirstBytes> buffer{};
  const std::span first = first_of(source, buffer);
  if (first.size() < kFirstBytes || !source.has({0, first.size()}) ||
      source.read_unverified(first, 0) != 0) {
    return;
  }
  source.prefetch({0, std::min(format_of(first).header_length(first), source.size())});
}

}  // namespace stfs
