#include "core/format/format.h"

#include "core/base/posix.h"
#include "core/format/archive.h"
#include "core/format/gguf.h"
#include "core/format/npz.h"
#include "core/format/safetensors.h"
#include "core/format/torch.h"
#include "core/format/zip.h"

#include <algorithm>
#include <array>

namespace stfs {
namespace {

// In the order in which format_of() tries them. The last row accepts every file.
constexpr std::array<Format, 4> kFormats{{
    {kGgufName, is_gguf,
     [](const Source& source, const std::string& place, const ReadBytes&) {
       return read_gguf(source, place);
     },
     gguf_header_length, ".gguf"},
    {kNpzName, begins_as_npz, read_archive, archive_beginning, ".directory", kZipEnd},
    {kTorchName, is_zip, read_archive, archive_beginning, ".pkl", kZipEnd},
    {kSafetensorsName, [](std::span<const std::byte>) { return true; },
     [](const Source& source, const std::string& place, const ReadBytes&) {
       return read_safetensors(source, place);
     },
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
  constexpr std::size_t kLeast = 8;  // enough bytes to contain a header's length
  if (first.size() < kLeast || !source.has({0, first.size()}) ||
      source.read_unverified(first, 0) != 0) {
    return;
  }
  const Format& format = format_of(first);
  const std::uint64_t at_end = std::min(format.at_end, source.size());
  source.prefetch({0, std::min(format.header_length(first), source.size())});
  if (at_end > 0) source.prefetch({source.size() - at_end, at_end});
}

}  // namespace stfs
