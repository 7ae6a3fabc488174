#include "core/format/npz.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/format/archive_tensors.h"
#include "core/format/inflate.h"

#include <algorithm>
#include <cerrno>
#include <optional>

namespace stfs {
namespace {

constexpr std::string_view kNpyEnding = ".npy";
constexpr std::uint64_t kUsualNpyHeader = 128;  // bytes

class NpzReader {
 public:
  NpzReader(const Source& source, const std::string& place, const ReadBytes& read)
      : source_(source), place_(place), read_(read) {}

  Header read(const ZipDirectory& zip) {
    header_.raw = zip.raw;
    header_.beginning = 0;
    prefetch_members(source_, zip.members, kUsualNpyHeader);
    {
      Refusals refusals(place_, header_);
      for (const ZipMember& member : zip.members) {
        const bool is_directory = member.name.ends_with('/') && member.unpacked == 0;
        if (!is_directory) add(member, refusals);
      }
    }
    finish_header(header_, place_);
    return std::move(header_);
  }

 private:
  void add(const ZipMember& member, Refusals& refusals) {
    std::string_view name = member.name;
    if (!name.ends_with(kNpyEnding)) return refusals.add(name, "is not a NumPy array");
    name.remove_suffix(kNpyEnding.size());
    if (!is_utf8(name)) return refusals.add(name, "its name is not UTF-8");
    if (const std::string why = member.refusal(); !why.empty()) return refusals.add(name, why);
    const ByteRange data = data_of(member, source_, place_, read_);
    Description from{.member = static_cast<std::uint32_t>(header_.members.size()), .stored = data};
    if (member.method == ZipMember::kDeflated) {
      from.deflated = {.length = member.unpacked, .crc = member.crc};
    }
    const NpyHeader array = header_of(member, from);
    if (!array.refusal.empty()) return refusals.add(name, array.refusal);
    if (array.bytes != member.unpacked - array.length) {
      throw Error(ErrorCode::kArchive, place_,
                  "tensor " + in_quotes(name) + ": its size does not fit its shape");
    }
    if (array.is_fortran && from.deflated && array.bytes > kMaxInflatedAgain) {
      return refusals.add(
          name,
          "is compressed and in Fortran order, so that a few rows are spread over all of its " +
              human_bytes(array.bytes) + ": save what numpy.ascontiguousarray() gives");
    }
    add_array(array, name, std::move(from), header_);
    header_.members.emplace_back(member.name);
  }

  NpyHeader header_of(const ZipMember& member, const Description& from) const {
    NpyHeader none;
    none.refusal = "is not a NumPy array";
    if (member.unpacked < kNpyPrefix) return none;
    std::optional<Inflater> inflater;
    if (from.deflated) inflater.emplace(from.stored, *from.deflated, read_);
    std::string text(std::min(member.unpacked, kUsualNpyHeader), '\0');
    take(member, from, inflater, 0, text);
    const std::optional<std::uint64_t> length = npy_header_length(text);
    if (!length || *length > member.unpacked) return none;
    const std::size_t had = text.size();
    text.resize(static_cast<std::size_t>(*length));
    if (text.size() > had) take(member, from, inflater, had, std::span(text).subspan(had));
    return parse_npy_header(text);
  }

  void take(const ZipMember& member, const Description& from, std::optional<Inflater>& inflater,
            std::uint64_t at, std::span<char> out) const {
    const auto bytes = std::as_writable_bytes(out);
    const int error = inflater ? inflater->take(bytes) : read_(from.stored.offset + at, bytes);
    if (error == EBADMSG) {
      throw Error(ErrorCode::kArchive, place_,
                  "member " + in_quotes(member.name) + ": is damaged: download it again");
    }
    if (error != 0) throw_read_failure(source_, place_, "member " + in_quotes(member.name), error);
  }

  const Source& source_;
  const std::string& place_;
  const ReadBytes& read_;
  Header header_;
};

}  // namespace

bool is_npz(const ZipDirectory& zip) {
  return zip.members.empty() || std::ranges::any_of(zip.members, [](const ZipMember& member) {
           return member.name.ends_with(kNpyEnding);
         });
}

Header read_npz(const ZipDirectory& zip, const Source& source, const std::string& place,
                const ReadBytes& read) {
  return NpzReader(source, place, read).read(zip);
}

void add_array(const NpyHeader& array, std::string_view name, Description from, Header& header) {
  from.begin = array.length;
  if (array.is_fortran) {
    const std::size_t dims = array.shape.size() - (array.has_opaque ? 1 : 0);
    std::uint64_t stride = type_info(array.dtype).block_bytes;
    from.strides.assign(array.shape.size(), stride);
    if (array.has_opaque) stride = array.shape.back();
    for (std::size_t i = 0; i < dims && array.bytes > 0; ++i) {
      from.strides[i] = stride;
      stride *= array.shape[i];
    }
  }
  add_described(name, array.dtype, array.shape, array.bytes, std::move(from), header);
}

}  // namespace stfs
