// Reads any bytes as an archive of PyTorch or NumPy, or as a pickle. The result is a header with
// valid tensors that can be read, or an stfs::Error of one printable line.
#include "core/base/error.h"
#include "core/format/archive.h"
#include "core/format/pickle.h"
#include "core/format/torch_pickle.h"
#include "core/source/local_file.h"
#include "core/stored/tensor_list.h"
#include "tests/fuzz/check.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs::fuzz {
namespace {

void check_error(const Error& error) {
  check(exit_status(error.code()) == 1);
  for (const char c : std::string_view(error.what())) {
    const auto byte = static_cast<unsigned char>(c);
    check(byte >= 0x20 && byte != 0x7f);
  }
}

void check_pickle(std::string_view input) {
  try {
    const Pickle pickle(std::string(input), "fuzz");
    walk_tensors(pickle, "fuzz", [](std::string_view, const TorchTensor& tensor) {
      if (!tensor.refusal.empty()) return;
      std::uint64_t elements = 1;
      for (const std::uint64_t dim : tensor.shape) elements *= dim;
      check(type_info(tensor.dtype).bytes_of(elements) == tensor.bytes);
      check(tensor.bytes == 0 || tensor.begin < tensor.storage_bytes);
    });
  } catch (const Error& error) {
    check_error(error);
  }
}

// Reads the beginning and the end of each tensor.
void check_tensors(const TensorList& list, std::uint64_t size) {
  for (std::uint32_t i = 0; i < list.size(); ++i) {
    const Tensor tensor = list.tensor(i);
    if (tensor.locator) {
      check(tensor.locator->offset <= size && tensor.length <= size - tensor.locator->offset);
    }
    const Content content = tensor.content();
    check(content.size() == tensor.length);
    std::vector<std::byte> bytes(std::min<std::uint64_t>(tensor.length, 4096));
    static_cast<void>(content.copy(0, bytes));
    // Reads the end only of short tensors, because it requires decompressing the whole stream.
    constexpr std::uint64_t kNear = 1 << 20;
    if (tensor.length < kNear) static_cast<void>(content.copy(tensor.length - bytes.size(), bytes));
  }
}

void check_archive(std::string_view input) {
  static const std::string path = "/dev/shm/stfs_archive_fuzz." + std::to_string(::getpid());
  static const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  static const int removed_at_exit = std::atexit([] { ::unlink(path.c_str()); });
  check(fd >= 0 && removed_at_exit == 0);
  check(::ftruncate(fd, 0) == 0);
  check(::pwrite(fd, input.data(), input.size(), 0) == static_cast<ssize_t>(input.size()));
  try {
    auto source = std::make_unique<const LocalFile>(path);
    const LocalFile& file = *source;
    Header header = read_archive(file, "fuzz", [&](std::uint64_t offset, std::span<std::byte> out) {
      return file.read(out, offset);
    });
    for (std::size_t i = 1; i < header.by_name.size(); ++i) {
      check(header.name(header.tensors[header.by_name[i - 1]]) <
            header.name(header.tensors[header.by_name[i]]));
    }
    TensorList list;
    list.add({.source = std::move(source),
              .format = &format_of(file),
              .header = std::move(header),
              .label = "fuzz"});
    check_tensors(list, input.size());
  } catch (const Error& error) {
    check_error(error);
  }
}

}  // namespace
}  // namespace stfs::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (size > 0 && data[0] == 0x80) {
    stfs::fuzz::check_pickle(input);
  } else {
    stfs::fuzz::check_archive(input);
  }
  return 0;
}
