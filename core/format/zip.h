// The directory of a zip archive (PKWARE's APPNOTE.TXT), as PyTorch and NumPy write it:
//
//   member: local header | data | descriptor         once a member
//   central directory: an entry for each member
//   zip64 record and locator, where a number needs them | end record, and a comment
//
// The central directory alone is believed: the numbers of local headers may stand behind the data.
// Of a local header the length is needed, and its name must be the same. Refused: members that
// overlap or lie outside, two of one name, an archive of several disks, and a file that is more
// than one archive: several of them, or something before or behind the archive.
//
// Thread safety: the functions may be called from any thread. Lifetime: names are valid while the
// directory lives, also when it is moved.
#pragma once

#include "core/format/header.h"
#include "core/source/source.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

struct ZipMember {
  std::string_view name;
  std::uint64_t header = 0;    // where its local header begins
  std::uint64_t end = 0;       // where the next member begins, or the directory
  std::uint64_t packed = 0;    // bytes in the archive
  std::uint64_t unpacked = 0;  // bytes
  std::uint32_t crc = 0;
  std::uint16_t method = 0;
  bool is_encrypted = false;

  static constexpr std::uint16_t kStored = 0;
  static constexpr std::uint16_t kDeflated = 8;
  // Why its bytes cannot be had, "" where they can.
  std::string refusal() const;
};

struct ZipDirectory {
  ByteRange raw;                       // of the central directory
  std::vector<ZipMember> members;      // in the order of their places
  std::vector<std::uint32_t> by_name;  // indices of `members`, bytewise; names are unique

  const ZipMember* find(std::string_view name) const;  // null for none

  std::vector<char> text;  // what `raw` holds
};

// What to do about a distributed checkpoint of PyTorch.
inline constexpr std::string_view kConvertDistributed =
    "convert its directory with python -m torch.distributed.checkpoint.format_utils dcp_to_torch "
    "DIR FILE";

// Whether a file that begins so is a zip archive. No safetensors file is one.
bool is_zip(std::span<const std::byte> first);

// The most bytes to decompress for 8 MiB of a tensor whose elements stand all over a member.
inline constexpr std::uint64_t kMostInflatedAgain = 1 << 30;

// The bytes at the end of an archive that are read first.
inline constexpr std::uint64_t kZipEnd = 22 + 65'535 + 20;

// Throws Error: kUnreadable, or kArchive.
ZipDirectory read_zip_directory(const Source& source, const std::string& place,
                                const ReadBytes& read);

// Lets a source that fetches begin to fetch the local headers of members, and `more` bytes behind
// each.
void prefetch_members(const Source& source, std::span<const ZipMember> members, std::uint64_t more);

// Where the data of a member stand, ZipMember::packed bytes: reads its local header. Throws Error.
ByteRange data_of(const ZipMember& member, const Source& source, const std::string& place,
                  const ReadBytes& read);

// Reads bytes of a source; throws Error kUnreadable. `subject`: of the message.
void read_or_throw(const Source& source, const std::string& place, const std::string& subject,
                   const ReadBytes& read, std::uint64_t offset, std::span<std::byte> out);

}  // namespace stfs
