// Reads any lines as options of stfs_open. The result is valid options or an error of one line.
#include "core/base/error.h"
#include "tests/fuzz/check.h"
#include "tools/library/open_options.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace {

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const stfs::OpenOptions options(lines_of(text));
  } catch (const stfs::Error& error) {
    stfs::fuzz::check(!error.message().empty());
    stfs::fuzz::check(error.message().find('\n') == std::string::npos);
  }
  return 0;
}
