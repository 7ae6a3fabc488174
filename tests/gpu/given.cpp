#include "tests/gpu/given.h"

#include "core/base/text.h"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <system_error>

namespace stfs::gpu::test {

using namespace stfs::test;

namespace {

constexpr std::size_t kSegmentBytes = 2 << 20;
constexpr std::size_t kAlignment = 512;

// Encodes each byte as the code point with its value.
std::string code_points(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      text += c;
    } else {
      text += {static_cast<char>(0xc0 | (byte >> 6)), static_cast<char>(0x80 | (byte & 0x3f))};
    }
  }
  return text;
}

void set_variable(int list) {
  ::setenv("STFS_GPU_TENSORS", ("/proc/self/fd/" + std::to_string(list)).c_str(), 1);
}

}  // namespace

int memfd_of(const std::string& name, const std::string& bytes) {
  const int fd = ::memfd_create(name.c_str(), MFD_ALLOW_SEALING);
  if (fd < 0 || ::write(fd, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()) ||
      ::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK) != 0)
    throw std::system_error(errno, std::generic_category(), "memfd");
  return fd;
}

Given::Given(const std::vector<GivenTensor>& tensors) {
  std::string segment;
  nlohmann::json list = nlohmann::json::array();
  for (const GivenTensor& tensor : tensors) {
    list.push_back({{"name", tensor.name},
                    {"label", "/w/model.safetensors::" + tensor.name},
                    {"key", "key of " + tensor.name},
                    {"offset", segment.size()},
                    {"bytes", tensor.bytes.size()},
                    {"segment_bytes", kSegmentBytes},
                    {"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"uuid", tensor.device}});
    if (!is_utf8(tensor.name)) {
      list.back()["raw_name"] = code_points(tensor.name);
      list.back()["raw_label"] = code_points("/w/model.safetensors::" + tensor.name);
    }
    segment += tensor.bytes;
    segment.resize((segment.size() + kAlignment - 1) / kAlignment * kAlignment);
  }
  segment.resize(kSegmentBytes);
  segment_ = memfd_of("given-segment", segment);
  for (auto& entry : list) entry["fd"] = segment_;
  json_ = list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  list_ = memfd_of("given-list", json_);
  set_variable(list_);
}

Given::~Given() {
  ::unsetenv("STFS_GPU_TENSORS");
  ::close(list_);
  ::close(segment_);
}

GivenText::GivenText(const std::string& text) : list_(memfd_of("given-list", text)) {
  set_variable(list_);
}

GivenText::~GivenText() {
  ::unsetenv("STFS_GPU_TENSORS");
  ::close(list_);
}

}  // namespace stfs::gpu::test
