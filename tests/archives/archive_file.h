// Writes zip archives as PyTorch and NumPy do, and archives that no writer makes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::test {

struct ZipFile {
  struct Member {
    std::string name, data;
    bool is_deflated = false;
    bool has_descriptor = true;    // as PyTorch: the local header has no sizes
    std::string local_extra = {};  // bytes between the name and the data
    // What the directory says in place of the truth.
    std::uint64_t unpacked_more = 0;
    std::int64_t header_shift = 0;
    std::uint16_t method_instead = 0;  // 0: the true one
    std::uint16_t flags = 0;
    std::uint32_t crc_flip = 0;
  };
  std::vector<Member> members;
  std::string prefix;  // before the archive, whose places count from the beginning of the file
  std::string comment;
  bool is_zip64 = false;  // the directory has its numbers in zip64 fields, and a zip64 record

  void add(std::string name, std::string data) {
    members.push_back({std::move(name), std::move(data)});
  }
  std::string bytes() const;
};

// A .npy file. `shape`: "(2, 3)".
std::string npy_file(std::string_view descr, std::string_view shape, std::string_view data,
                     bool is_fortran = false);

// Parts of pickles, of protocol 2 without memo.
namespace pickled {
std::string text(std::string_view text);
std::string integer(std::int32_t value);
std::string tuple(const std::vector<std::string>& items);
std::string list(const std::vector<std::string>& items);
std::string dict(const std::vector<std::pair<std::string, std::string>>& items);  // keys are texts
std::string global(std::string_view module, std::string_view name);
std::string call(std::string_view module, std::string_view name,
                 const std::vector<std::string>& arguments);
// The storage `key` of `elements` elements, as a tensor names it.
std::string storage(std::string_view type, std::string_view key, std::int32_t elements);
std::string tensor(const std::string& storage, std::int32_t offset,
                   const std::vector<std::int32_t>& shape,
                   const std::vector<std::int32_t>& strides);
std::string whole(const std::string& value);  // PROTO, the value, STOP
}  // namespace pickled

// The archive of a pickle (pickled::whole) and its storages, by key "0", "1" and so on.
ZipFile torch_file(const std::string& pickle, const std::vector<std::string>& storages);

}  // namespace stfs::test
