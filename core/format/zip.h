// The directory of a zip archive (PKWARE's APPNOTE.TXT), as PyTorch and NumPy write it:
//
//   local header | data | descriptor                 for each member
//   central directory: an entry for each member
//   zip64 record and locator, if a number needs them | end record, and a comment
//
// Sizes and checksums come only from the central directory, because a local header may have them
// after the data instead. A local header is read only to find where the data begins; its name must
// match. Refused are members that overlap or are outside of the archive, two members with the same
// name, an archive on several disks, and a file with anything besides one archive: several
// archives, or bytes before or after the archive.
//
// Thread safety: the functions may be called from any thread. Lifetime: the names of members are
// valid as long as the directory exists, even after it is moved.
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
  std::uint64_t header = 0;    // offset of its local header in the file
  std::uint64_t end = 0;       // offset of the next member, or of the central directory
  std::uint64_t packed = 0;    // bytes in the archive
  std::uint64_t unpacked = 0;  // bytes after decompression
  std::uint32_t crc = 0;       // CRC-32 of these bytes
  std::uint16_t method = 0;
  bool is_encrypted = false;

  static constexpr std::uint16_t kStored = 0;
  static constexpr std::uint16_t kDeflated = 8;
  // Returns why stfs cannot read its bytes, or "" if it can.
  std::string refusal() const;
};

struct ZipDirectory {
  ByteRange raw;                       // the central directory in the file
  std::vector<ZipMember> members;      // sorted by offset
  std::vector<std::uint32_t> by_name;  // indices of `members`, bytewise by name; names are unique

  const ZipMember* find(std::string_view name) const;  // null if there is none

  std::vector<char> text;  // the bytes at `raw`, from which the names borrow
};

// What to do about a distributed checkpoint of PyTorch, for messages.
inline constexpr std::string_view kConvertDistributed =
    "convert its directory with python -m torch.distributed.checkpoint.format_utils dcp_to_torch "
    "DIR FILE";

// Returns true if a file that begins with these bytes is a zip archive. Returns false for every
// safetensors file.
bool is_zip(std::span<const std::byte> first);

// A tensor with elements all over a compressed member is refused if one tile of it (8 MiB) would
// need more bytes than this to be decompressed.
inline constexpr std::uint64_t kMaxInflatedAgain = 1 << 30;

// The bytes at the end of an archive that are read first: the end record, the longest comment, and
// the zip64 locator.
inline constexpr std::uint64_t kZipEnd = 22 + 65'535 + 20;

// Reads and checks the central directory. `place` begins the messages of errors. Throws Error:
// kUnreadable or kArchive.
ZipDirectory read_zip_directory(const Source& source, const std::string& place,
                                const ReadBytes& read);

// If the source is remote, begins to fetch the local header of each member and the `more` bytes
// after it, without waiting.
void prefetch_members(const Source& source, std::span<const ZipMember> members, std::uint64_t more);

// Reads the local header of a member and returns the place of its data, ZipMember::packed bytes.
// Throws Error: kUnreadable or kArchive.
ByteRange data_of(const ZipMember& member, const Source& source, const std::string& place,
                  const ReadBytes& read);

// Fills `out` from `offset` with `read`. Throws Error kUnreadable with the subject `subject`.
void read_or_throw(const Source& source, const std::string& place, const std::string& subject,
                   const ReadBytes& read, std::uint64_t offset, std::span<std::byte> out);

}  // namespace stfs
