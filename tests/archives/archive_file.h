// Writes zip archives like PyTorch and NumPy, and invalid archives.
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
    bool has_descriptor = true;    // like PyTorch: the local header has no sizes
    std::string local_extra = {};  // bytes between the name and the data
    // Changes that make the directory wrong.
    std::uint64_t unpacked_more = 0;
    std::int64_t header_shift = 0;
    std::uint16_t method_instead = 0;  // 0: the true method
    std::uint16_t flags = 0;
    std::uint32_t crc_flip = 0;
  };
  std::vector<Member> members;
  std::string prefix;  // before the archive; offsets count from the start of the file
  std::string comment;
  bool is_zip64 = false;  // the directory has its numbers in zip64 fields, and a zip64 record

  void add(std::string name, std::string data) {
    members.push_back({std::move(name), std::move(data)});
  }
  std::string bytes() const;
};

// Returns a .npy file. `shape` is like "(2, 3)".
std::string npy_file(std::string_view descr, std::string_view shape, std::string_view data,
                     bool is_fortran = false);

// Parts of pickles in protocol 2, without memo.
namespace pickled {
std::string text(std::string_view text);
std::string integer(std::int32_t value);
std::string tuple(const std::vector<std::string>& items);
std::string list(const std::vector<std::string>& items);
std::string dict(
    const std::vector<std::pair<std::string, std::string>>& items);  // the keys become texts
std::string global(std::string_view module, std::string_view name);
std::string call(std::string_view module, std::string_view name,
                 const std::vector<std::string>& arguments);
// Returns the reference of a tensor to the storage `key`, which has `elements` elements.
std::string storage(std::string_view type, std::string_view key, std::int32_t elements);
std::string tensor(const std::string& storage, std::int32_t offset,
                   const std::vector<std::int32_t>& shape,
                   const std::vector<std::int32_t>& strides);
std::string whole(const std::string& value);  // PROTO, the value, STOP
}  // namespace pickled

// Returns the archive of a pickle (pickled::whole) and its storages. Their keys are "0", "1", ...
ZipFile torch_file(const std::string& pickle, const std::vector<std::string>& storages);

}  // namespace stfs::test
