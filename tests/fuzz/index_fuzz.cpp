// Reads any bytes as an index file. The result is an index with shards only in its own directory,
// or an stfs::Error.
#include "core/base/error.h"
#include "core/format/index.h"
#include "tests/fuzz/check.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace stfs::fuzz {
namespace {

void check_shard(std::string_view shard) {
  check(!shard.empty() && shard.front() != '/' && shard.find('\0') == std::string_view::npos);
  const std::string closed = "/" + std::string(shard) + "/";
  check(closed.find("/../") == std::string::npos);
}

void run(std::string_view input) {
  try {
    const Index index = parse_index(input, "fuzz");
    for (const std::string& shard : index.shards) check_shard(shard);
    for (std::size_t i = 1; i < index.shards.size(); ++i)
      check(index.shards[i - 1] < index.shards[i]);
    for (std::size_t i = 0; i < index.entries.size(); ++i) {
      check(index.entries[i].shard < index.shards.size());
      check(i == 0 || index.name(index.entries[i - 1]) < index.name(index.entries[i]));
    }
  } catch (const Error& error) {
    check(error.code() == ErrorCode::kInvalidIndex);
  }
}

}  // namespace
}  // namespace stfs::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  stfs::fuzz::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
