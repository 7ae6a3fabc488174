// Reads any bytes as a safetensors file. The result is a header or an stfs::Error, and both ways of
// reading have the same result.
//
// If the first eight bytes are the length of JSON in the input, the input is a whole file, like the
// files of tests/corpus. Otherwise they are the number of bytes after the header, and the rest of
// the input is the JSON.
#include "core/base/error.h"
#include "core/format/guess.h"
#include "core/format/safetensors.h"
#include "core/source/local_file.h"
#include "tests/fuzz/check.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace stfs::fuzz {
namespace {

constexpr std::size_t kLengthBytes = 8;

// Checks the guarantees of Header for tensor data that begins at `data_begin` and has `data_length`
// bytes.
void check_header(const Header& header, std::uint64_t data_begin, std::uint64_t data_length) {
  std::uint64_t next = data_begin;
  for (const TensorRecord& tensor : header.tensors) {
    check(tensor.offset == next);
    next += tensor.length;
    check(header.name(tensor).size() == tensor.name_length);
    std::uint64_t bits = type_info(tensor.dtype).bits();
    for (const std::uint64_t dim : header.shape(tensor)) bits *= dim;
    check(bits == tensor.length * 8);
  }
  check(next == data_begin + data_length);
  check(header.by_name.size() == header.tensors.size());
  for (std::size_t i = 1; i < header.by_name.size(); ++i) {
    check(header.name(header.tensors[header.by_name[i - 1]]) <
          header.name(header.tensors[header.by_name[i]]));
  }
  for (std::size_t i = 1; i < header.metadata.size(); ++i) {
    check(header.metadata[i - 1].first < header.metadata[i].first);
  }
}

// Returns the code of the error, or nullopt if `load` accepts the header.
std::optional<ErrorCode> error_of(const std::function<void()>& load) {
  try {
    load();
  } catch (const Error& error) {
    check(!error.message().empty());
    for (const char c : std::string_view(error.what())) {
      const auto byte = static_cast<unsigned char>(c);
      check(byte >= 0x20 && byte != 0x7f);
    }
    return error.code();
  }
  return std::nullopt;
}

std::optional<ErrorCode> parse(std::string_view json, std::uint64_t data_length) {
  return error_of([&] {
    check_header(parse_safetensors(json, data_length, "fuzz"), kLengthBytes + json.size(),
                 data_length);
  });
}

// Reads the input from a file in memory, which the whole run reuses.
std::optional<ErrorCode> read(std::string_view input) {
  static const std::string path = "/dev/shm/stfs_header_fuzz." + std::to_string(::getpid());
  static const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  static const int removed_at_exit = std::atexit([] { ::unlink(path.c_str()); });
  check(fd >= 0 && removed_at_exit == 0);
  check(::ftruncate(fd, 0) == 0);
  check(::pwrite(fd, input.data(), input.size(), 0) == static_cast<ssize_t>(input.size()));
  return error_of([&] {
    const LocalFile source(path);
    try {
      read_safetensors(source, "fuzz");
    } catch (const Error& error) {
      const Error with_explanation = explained(error, source, "fuzz");
      check(with_explanation.code() == error.code());
      throw with_explanation;
    }
  });
}

void run(std::string_view input) {
  const std::optional<ErrorCode> whole = read(input);
  if (input.size() < kLengthBytes) {
    check(whole == ErrorCode::kHeaderTooSmall);
    return;
  }
  std::uint64_t length = 0;
  std::memcpy(&length, input.data(), kLengthBytes);  // little-endian, as on all supported machines
  const std::string_view rest = input.substr(kLengthBytes);
  if (length <= rest.size()) {
    check(whole == parse(rest.substr(0, length), rest.size() - length));
  } else {
    check(whole == ErrorCode::kHeaderTooLarge || whole == ErrorCode::kInvalidHeaderLength);
    parse(rest, length);
  }
}

}  // namespace
}  // namespace stfs::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  stfs::fuzz::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
