#include "tests/archives/archive_file.h"

#include <zlib.h>

#include <cstring>
#include <stdexcept>
#include <utility>

namespace stfs::test {
namespace {

template <class T>
std::string packed(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
std::string u16(std::uint64_t value) { return packed(static_cast<std::uint16_t>(value)); }
std::string u32(std::uint64_t value) { return packed(static_cast<std::uint32_t>(value)); }

std::string deflated(const std::string& data) {
  z_stream z{};
  if (::deflateInit2(&z, 6, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::runtime_error("deflateInit2");
  std::string out(::deflateBound(&z, data.size()), '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
  z.avail_in = static_cast<uInt>(data.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  if (::deflate(&z, Z_FINISH) != Z_STREAM_END) throw std::runtime_error("deflate");
  out.resize(z.total_out);
  ::deflateEnd(&z);
  return out;
}

}  // namespace

std::string ZipFile::bytes() const {
  std::string out = prefix, directory;
  for (const Member& member : members) {
    const std::string data = member.is_deflated ? deflated(member.data) : member.data;
    const std::uint32_t crc =
        static_cast<std::uint32_t>(::crc32(0, reinterpret_cast<const Bytef*>(member.data.data()),
                                           static_cast<uInt>(member.data.size()))) ^
        member.crc_flip;
    const std::uint64_t method = member.method_instead != 0 ? member.method_instead
                                 : member.is_deflated       ? 8U
                                                            : 0U;
    const std::uint64_t flags = member.flags | (member.has_descriptor ? 0x808U : 0U);
    const std::uint64_t header = out.size() + static_cast<std::uint64_t>(member.header_shift);
    const std::uint64_t unpacked = member.data.size() + member.unpacked_more;
    const bool has_sizes = !member.has_descriptor;
    out += "PK\3\4" + u16(0) + u16(flags) + u16(method) + u32(0) + u32(has_sizes ? crc : 0) +
           u32(has_sizes ? data.size() : 0) + u32(has_sizes ? unpacked : 0) +
           u16(member.name.size()) + u16(member.local_extra.size()) + member.name +
           member.local_extra + data;
    if (member.has_descriptor) out += "PK\7\10" + u32(crc) + u32(data.size()) + u32(unpacked);
    const std::string extra = is_zip64 ? u16(1) + u16(24) + packed(unpacked) +
                                             packed<std::uint64_t>(data.size()) + packed(header)
                                       : "";
    directory += "PK\1\2" + u16(0) + u16(0) + u16(flags) + u16(method) + u32(0) + u32(crc) +
                 u32(is_zip64 ? ~0U : data.size()) + u32(is_zip64 ? ~0U : unpacked) +
                 u16(member.name.size()) + u16(extra.size()) + u16(0) + u16(0) + u16(0) + u32(0) +
                 u32(is_zip64 ? ~0U : header) + member.name + extra;
  }
  const std::uint64_t begin = out.size();
  out += directory;
  if (is_zip64) {
    const std::uint64_t record = out.size();
    out += "PK\6\6" + packed<std::uint64_t>(44) + u16(45) + u16(45) + u32(0) + u32(0) +
           packed<std::uint64_t>(members.size()) + packed<std::uint64_t>(members.size()) +
           packed<std::uint64_t>(directory.size()) + packed(begin);
    out += "PK\6\7" + u32(0) + packed(record) + u32(1);
  }
  out += "PK\5\6" + u16(0) + u16(0) + u16(members.size()) + u16(members.size()) +
         u32(is_zip64 ? ~0U : directory.size()) + u32(is_zip64 ? ~0U : begin) +
         u16(comment.size()) + comment;
  return out;
}

std::string npy_file(std::string_view descr, std::string_view shape, std::string_view data,
                     bool is_fortran) {
  std::string dict = "{'descr': '" + std::string(descr) +
                     "', 'fortran_order': " + (is_fortran ? "True" : "False") +
                     ", 'shape': " + std::string(shape) + ", }";
  dict.append(63 - (10 + dict.size()) % 64, ' ');
  dict += '\n';
  return "\x93NUMPY\1" + std::string(1, '\0') + u16(dict.size()) + dict + std::string(data);
}

namespace pickled {

std::string text(std::string_view value) { return "X" + u32(value.size()) + std::string(value); }
std::string integer(std::int32_t value) { return "J" + packed(value); }

namespace {
std::string joined(const std::vector<std::string>& items) {
  std::string out;
  for (const std::string& item : items) out += item;
  return out;
}
}  // namespace

std::string tuple(const std::vector<std::string>& items) { return "(" + joined(items) + "t"; }
std::string list(const std::vector<std::string>& items) { return "](" + joined(items) + "e"; }
std::string dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string out = "}(";
  for (const auto& [key, value] : items) out += text(key) + value;
  return out + "u";
}
std::string global(std::string_view module, std::string_view name) {
  return "c" + std::string(module) + "\n" + std::string(name) + "\n";
}
std::string call(std::string_view module, std::string_view name,
                 const std::vector<std::string>& arguments) {
  return global(module, name) + tuple(arguments) + "R";
}
std::string storage(std::string_view type, std::string_view key, std::int32_t elements) {
  return tuple(
             {text("storage"), global("torch", type), text(key), text("cpu"), integer(elements)}) +
         "Q";
}
std::string tensor(const std::string& storage, std::int32_t offset,
                   const std::vector<std::int32_t>& shape,
                   const std::vector<std::int32_t>& strides) {
  const auto numbers = [](const std::vector<std::int32_t>& values) {
    std::vector<std::string> items;
    items.reserve(values.size());
    for (const std::int32_t value : values) items.push_back(integer(value));
    return tuple(items);
  };
  return call("torch._utils", "_rebuild_tensor_v2",
              {storage, integer(offset), numbers(shape), numbers(strides), "\x89",
               call("collections", "OrderedDict", {})});
}
std::string whole(const std::string& value) { return "\x80\2" + value + "."; }

}  // namespace pickled

ZipFile torch_file(const std::string& pickle, const std::vector<std::string>& storages) {
  ZipFile zip;
  zip.add("archive/data.pkl", pickle);
  zip.add("archive/byteorder", "little");
  for (std::size_t i = 0; i < storages.size(); ++i) {
    zip.add("archive/data/" + std::to_string(i), storages[i]);
    zip.members.back().local_extra = "FB" + u16(20) + std::string(20, 'Z');
  }
  zip.add("archive/version", "3\n");
  return zip;
}

}  // namespace stfs::test
