// Reads any bytes as a GGUF file. The result is a header with valid tensors, or an stfs::Error of
// one printable line. Each value of the metadata is written as JSON.
#include "core/base/error.h"
#include "core/checkpoint/metadata.h"
#include "core/format/gguf.h"
#include "core/format/gguf_split.h"
#include "core/source/local_file.h"
#include "tests/fuzz/check.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::fuzz {
namespace {

void check_tensors(const Header& header, std::uint64_t size) {
  std::uint64_t next = header.raw.length;
  for (const TensorRecord& tensor : header.tensors) {
    check(tensor.offset >= next && tensor.offset <= size && tensor.length <= size - tensor.offset);
    next = tensor.offset + tensor.length;
    std::uint64_t elements = 1;
    for (const std::uint64_t dim : header.shape(tensor)) elements *= dim;
    check(type_info(tensor.dtype).bytes_of(elements) == tensor.length);
  }
  check(header.by_name.size() == header.tensors.size());
  for (std::size_t i = 1; i < header.by_name.size(); ++i) {
    check(header.name(header.tensors[header.by_name[i - 1]]) <
          header.name(header.tensors[header.by_name[i]]));
  }
}

void check_metadata(const Header& header, const Source& source) {
  for (std::size_t i = 0; i < header.metadata.size(); ++i) {
    const std::string_view key = header.metadata[i].first;
    check(header.metadata.find(key) == i);
    check(i == 0 || header.metadata[i - 1].first < key);
    const MetadataValue value = header.metadata.value(i);
    check(value.encoded.offset + value.encoded.length <= header.raw.length);
    const MetadataItem item{
        .key = key, .text = header.metadata[i].second, .value = value, .source = &source};
    Content content;
    check(make_text(item, content) == 0);
    std::vector<std::byte> text(content.size());
    check(content.copy(0, text) == 0);
  }
}

void run(std::string_view input) {
  static const std::string path = "/dev/shm/stfs_gguf_fuzz." + std::to_string(::getpid());
  static const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  static const int removed_at_exit = std::atexit([] { ::unlink(path.c_str()); });
  check(fd >= 0 && removed_at_exit == 0);
  check(::ftruncate(fd, 0) == 0);
  check(::pwrite(fd, input.data(), input.size(), 0) == static_cast<ssize_t>(input.size()));
  try {
    const LocalFile source(path);
    const Header header = read_gguf(source, "fuzz");
    check(header.raw.offset == 0 && header.raw.length <= input.size());
    check_tensors(header, input.size());
    check_metadata(header, source);
    if (const auto split = gguf_split(header, "fuzz")) check(split->number < split->count);
  } catch (const Error& error) {
    check(exit_status(error.code()) == 1);
    for (const char c : std::string_view(error.what())) {
      const auto byte = static_cast<unsigned char>(c);
      check(byte >= 0x20 && byte != 0x7f);
    }
  }
}

}  // namespace
}  // namespace stfs::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  stfs::fuzz::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
