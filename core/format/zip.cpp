#include "core/format/zip.h"

#include "core/base/error.h"
#include "core/base/sort.h"
#include "core/base/text.h"
#include "core/format/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

namespace stfs {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint64_t kMaxDirectory = 256 << 20;  // bytes, enough for two million members
constexpr std::uint64_t kEndRecordBytes = 22, kLocatorBytes = 20, kRecord64Bytes = 56,
                        kEntryBytes = 46, kLocalBytes = 30;
constexpr std::uint16_t kZip64 = 1;  // the number of an extra field
constexpr std::uint32_t kIn64 = 0xFFFFFFFF;
constexpr std::uint16_t kEncrypted = 1;  // a flag

// The greatest number of bytes that deflate can make from one byte: four copies of 258 bytes, each
// in two bits.
constexpr std::uint64_t kMaxInflation = 1032;

[[noreturn]] void refuse_zip(const std::string& place, const std::string& rule) {
  throw Error(ErrorCode::kArchive, place, rule);
}

template <class T>
T number_in(std::string_view text, std::size_t at) {
  T value{};
  std::memcpy(&value, text.data() + at, sizeof value);
  return value;
}

class ZipReader {
 public:
  ZipReader(const Source& source, const std::string& place, const ReadBytes& read)
      : source_(source), place_(place), read_(read) {}

  ZipDirectory directory() {
    find_end();
    ZipDirectory directory;
    directory.raw = {directory_end_ - length_, length_};
    directory.text.resize(static_cast<std::size_t>(length_));
    read_or_throw(source_, place_, "", read_, directory.raw.offset,
                  std::as_writable_bytes(std::span(directory.text)));
    std::string_view rest(directory.text.data(), directory.text.size());
    while (!rest.empty()) directory.members.push_back(take_member(rest));
    check(directory);
    return directory;
  }

 private:
  std::string text_at(std::uint64_t offset, std::uint64_t length) const {
    std::string text(static_cast<std::size_t>(length), '\0');
    read_or_throw(source_, place_, "", read_, offset, std::as_writable_bytes(std::span(text)));
    return text;
  }

  // Finds the end record, and the zip64 record if there is one.
  void find_end() {
    const std::uint64_t size = source_.size();
    const std::uint64_t tail_length = std::min(size, kZipEnd);
    const std::string tail = text_at(size - tail_length, tail_length);
    std::size_t at =
        tail.size() < kEndRecordBytes ? std::string::npos : tail.size() - kEndRecordBytes;
    const auto is_end = [&] {
      return number_in<std::uint16_t>(tail, at + 20) == tail.size() - at - kEndRecordBytes;
    };
    for (; at != std::string::npos; --at) {
      at = tail.rfind("PK\5\6", at);
      if (at == std::string::npos || is_end()) break;
      if (at == 0) at = std::string::npos;
      if (at == std::string::npos) break;
    }
    if (at == std::string::npos) refuse_without_end(tail);
    directory_end_ = size - tail.size() + at;
    length_ = number_in<std::uint32_t>(tail, at + 12);
    std::uint64_t begin = number_in<std::uint32_t>(tail, at + 16);
    const bool has_locator =
        at >= kLocatorBytes && std::string_view(tail).substr(at - kLocatorBytes, 4) == "PK\6\7";
    bool is_one_disk = number_in<std::uint16_t>(tail, at + 4) == 0 || has_locator;
    if (has_locator) {
      const auto stated = number_in<std::uint64_t>(tail, at - kLocatorBytes + 8);
      const std::string record = record64(stated, directory_end_ - kLocatorBytes);
      is_one_disk = number_in<std::uint32_t>(record, 16) == 0;
      length_ = number_in<std::uint64_t>(record, 40);
      begin = number_in<std::uint64_t>(record, 48);
    }
    if (!is_one_disk) refuse_zip(place_, "a zip archive of several disks: join them");
    if (length_ > directory_end_ || begin > directory_end_ - length_) {
      refuse_zip(place_, "the central directory lies outside of the zip archive");
    }
    if (length_ > kMaxDirectory) refuse_zip(place_, "the central directory is over 256 MiB");
    if (const std::uint64_t before = directory_end_ - length_ - begin; before != 0) {
      refuse_several(before);
    }
  }

  [[noreturn]] void refuse_without_end(std::string_view tail) const {
    const std::size_t at = tail.rfind("PK\5\6");
    if (at != std::string_view::npos && tail.size() - at >= kEndRecordBytes) {
      const std::size_t length = kEndRecordBytes + number_in<std::uint16_t>(tail, at + 20);
      if (at + length < tail.size()) {
        refuse_zip(place_, "the file has " + std::to_string(tail.size() - at - length) +
                               " more bytes after its zip archive: damaged? download it again");
      }
    }
    refuse_zip(place_, "the zip archive has no end record: truncated? download it again");
  }

  // Refuses several archives in one file, because it is not clear which one is meant. torch.load
  // reads whatever it finds at the offsets, which may be any of them.
  [[noreturn]] void refuse_several(std::uint64_t before) const {
    refuse_zip(
        place_,
        "the file is several zip archives one after the other (the last begins at byte " +
            std::to_string(before) +
            "): save each in its own file; if the file is a shard of a distributed checkpoint, " +
            std::string(kConvertDistributed));
  }

  // Returns the zip64 record, and sets directory_end_ to its offset. `stated` is the offset from
  // the locator, and `before` is the offset of the locator itself.
  std::string record64(std::uint64_t stated, std::uint64_t before) {
    for (const std::uint64_t at : {stated, before - std::min(before, kRecord64Bytes)}) {
      if (before < kRecord64Bytes || at > before - kRecord64Bytes) continue;
      std::string record = text_at(at, kRecord64Bytes);
      if (!record.starts_with("PK\6\6")) continue;
      // If the record does not reach to the locator, it belongs to an earlier archive in the file.
      constexpr std::uint64_t kUncounted = 12;  // bytes that the record's own size does not count
      if (number_in<std::uint64_t>(record, 4) != before - at - kUncounted) continue;
      directory_end_ = at;
      return record;
    }
    refuse_zip(place_, "the zip archive's zip64 record is not where its locator says");
  }

  ZipMember take_member(std::string_view& rest) const {
    if (rest.size() < kEntryBytes || !rest.starts_with("PK\1\2")) {
      refuse_zip(place_, "the central directory of the zip archive is not valid");
    }
    const std::size_t name = number_in<std::uint16_t>(rest, 28);
    const std::size_t extra = number_in<std::uint16_t>(rest, 30);
    const std::size_t comment = number_in<std::uint16_t>(rest, 32);
    if (rest.size() - kEntryBytes < name + extra + comment) {
      refuse_zip(place_, "the central directory of the zip archive ends in the middle of an entry");
    }
    ZipMember member{.name = rest.substr(kEntryBytes, name),
                     .header = number_in<std::uint32_t>(rest, 42),
                     .packed = number_in<std::uint32_t>(rest, 20),
                     .unpacked = number_in<std::uint32_t>(rest, 24),
                     .crc = number_in<std::uint32_t>(rest, 16),
                     .method = number_in<std::uint16_t>(rest, 10),
                     .is_encrypted = (number_in<std::uint16_t>(rest, 8) & kEncrypted) != 0};
    apply_extra(rest.substr(kEntryBytes + name, extra), member);
    rest.remove_prefix(kEntryBytes + name + extra + comment);
    if (member.header > directory_end_ - length_) {
      refuse_member(member, "lies outside of the archive");
    }
    return member;
  }

  // Reads the numbers that do not fit into 32 bits from the zip64 field.
  void apply_extra(std::string_view extra, ZipMember& member) const {
    while (extra.size() >= 4) {
      const auto number = number_in<std::uint16_t>(extra, 0);
      const std::size_t length = number_in<std::uint16_t>(extra, 2);
      if (length > extra.size() - 4) return;  // some programs write a padding that is cut off
      std::string_view field = extra.substr(4, length);
      extra.remove_prefix(4 + length);
      if (number != kZip64) continue;
      for (std::uint64_t* const value : {&member.unpacked, &member.packed, &member.header}) {
        if (*value != kIn64) continue;
        if (field.size() < sizeof *value) refuse_member(member, "its zip64 field is too short");
        *value = number_in<std::uint64_t>(field, 0);
        field.remove_prefix(sizeof *value);
      }
    }
  }

  [[noreturn]] void refuse_member(const ZipMember& member, const std::string& rule) const {
    refuse_zip(place_, "member " + in_quotes(member.name) + ": " + rule);
  }

  void check(ZipDirectory& directory) const {
    std::ranges::stable_sort(directory.members, {}, &ZipMember::header);
    if (!directory.members.empty() && directory.members.front().header != 0) {
      refuse_several(directory.members.front().header);
    }
    for (std::size_t i = 0; i < directory.members.size(); ++i) {
      ZipMember& member = directory.members[i];
      const bool is_last = i + 1 == directory.members.size();
      member.end = is_last ? directory.raw.offset : directory.members[i + 1].header;
      const std::uint64_t room = member.end - member.header;
      if (room < kLocalBytes + member.name.size() ||
          member.packed > room - kLocalBytes - member.name.size()) {
        refuse_member(member, is_last ? "lies outside of the archive" : "overlaps the next member");
      }
      const bool is_stored = member.method == ZipMember::kStored;
      if (is_stored && !member.is_encrypted && member.unpacked != member.packed) {
        refuse_member(member, "its two sizes differ, although it is not compressed");
      }
      if (member.method == ZipMember::kDeflated &&
          member.unpacked / kMaxInflation > member.packed) {
        refuse_member(member, "its uncompressed size is impossible for its compressed size");
      }
    }
    auto [order, any_equal] = sorted_order(
        directory.members.size(), [&](std::uint32_t i) { return directory.members[i].name; });
    for (std::size_t i = 1; any_equal && i < order.size(); ++i) {
      const ZipMember& member = directory.members[order[i]];
      if (member.name == directory.members[order[i - 1]].name) {
        refuse_member(member, "the name occurs twice");
      }
    }
    directory.by_name = std::move(order);
  }

  const Source& source_;
  const std::string& place_;
  const ReadBytes& read_;
  std::uint64_t directory_end_ = 0;  // offset of the end of the central directory
  std::uint64_t length_ = 0;         // bytes of the central directory
};

}  // namespace

const ZipMember* ZipDirectory::find(std::string_view name) const {
  const auto at = std::ranges::lower_bound(by_name, name, {},
                                           [this](std::uint32_t i) { return members[i].name; });
  return at != by_name.end() && members[*at].name == name ? &members[*at] : nullptr;
}

std::string ZipMember::refusal() const {
  if (is_encrypted) return "is encrypted";
  if (method != kStored && method != kDeflated) {
    return "is compressed by method " + std::to_string(method) + ": only deflate is supported";
  }
  return "";
}

bool is_zip(std::span<const std::byte> first) {
  const std::string_view text(reinterpret_cast<const char*>(first.data()), first.size());
  if (text.starts_with("PK\5\6")) return true;  // an archive without members
  constexpr std::size_t kLength = sizeof(std::uint64_t);
  if (!text.starts_with("PK\3\4") || text.size() <= kLength) return false;
  // Read as a length, these bytes may begin a safetensors file. Then a JSON object follows.
  return number_in<std::uint64_t>(text, 0) > kMaxJsonLength ||
         std::string_view(" \t\r\n{").find(text[kLength]) == std::string_view::npos;
}

ZipDirectory read_zip_directory(const Source& source, const std::string& place,
                                const ReadBytes& read) {
  return ZipReader(source, place, read).directory();
}

void prefetch_members(const Source& source, std::span<const ZipMember> members,
                      std::uint64_t more) {
  if (source.is_complete()) return;
  for (const ZipMember& member : members) {
    const std::uint64_t length = kLocalBytes + member.name.size() + more;
    source.prefetch({member.header, std::min(length, member.end - member.header)});
  }
}

ByteRange data_of(const ZipMember& member, const Source& source, const std::string& place,
                  const ReadBytes& read) {
  std::string local(kLocalBytes + member.name.size(), '\0');
  read_or_throw(source, place, "member " + in_quotes(member.name), read, member.header,
                std::as_writable_bytes(std::span(local)));
  const auto refuse_local = [&](const std::string& rule) {
    refuse_zip(place, "member " + in_quotes(member.name) + ": " + rule);
  };
  if (!local.starts_with("PK\3\4") || number_in<std::uint16_t>(local, 26) != member.name.size() ||
      std::string_view(local).substr(kLocalBytes) != member.name) {
    refuse_local("the directory points to something else");
  }
  const std::uint64_t begin = member.header + local.size() + number_in<std::uint16_t>(local, 28);
  if (begin > member.end || member.packed > member.end - begin) {
    refuse_local("overlaps the next member or the directory");
  }
  return {begin, member.packed};
}

void read_or_throw(const Source& source, const std::string& place, const std::string& subject,
                   const ReadBytes& read, std::uint64_t offset, std::span<std::byte> out) {
  if (const int error = read(offset, out)) throw_read_failure(source, place, subject, error);
}

}  // namespace stfs
