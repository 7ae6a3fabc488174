#include "core/format/archive.h"

#include "core/base/error.h"
#include "core/format/npz.h"
#include "core/format/torch.h"
#include "core/format/zip.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace stfs {

bool begins_as_npz(std::span<const std::byte> first) {
  if (!is_zip(first)) return false;
  const std::string_view text(reinterpret_cast<const char*>(first.data()), first.size());
  constexpr std::size_t kLocal = 30, kNameLength = 26;
  if (text.starts_with("PK\5\6") || text.size() < kLocal) return text.starts_with("PK\5\6");
  std::uint16_t length = 0;
  std::memcpy(&length, text.data() + kNameLength, sizeof length);
  return text.substr(kLocal, length).ends_with(".npy");
}

std::uint64_t archive_beginning(std::span<const std::byte> first) {
  constexpr std::uint64_t kUsual = 64 << 10;  // a pickle of a few hundred tensors
  return std::max<std::uint64_t>(kUsual, first.size());
}

Header read_archive(const Source& source, const std::string& place, const ReadBytes& read) {
  if (place.ends_with(".distcp")) {
    throw Error(ErrorCode::kArchive, place,
                "a shard of a distributed checkpoint of PyTorch, which has no names of tensors: " +
                    std::string(kConvertDistributed));
  }
  const ZipDirectory zip = read_zip_directory(source, place, read);
  if (is_torch(zip)) return read_torch(zip, source, place, read);
  if (is_npz(zip)) return read_npz(zip, source, place, read);
  throw Error(ErrorCode::kArchive, place,
              "a zip archive with neither PyTorch's data.pkl nor arrays of NumPy: unpack it");
}

}  // namespace stfs
