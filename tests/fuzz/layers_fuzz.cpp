// Reads any bytes as an input of a layer; the first byte selects the kind. The result is valid or
// an stfs::Error.
//
//   0  lines of edits, and the substitution in their second words
//   1  adapter_config.json, and the module that the pattern of a tensor's name selects
//   2  a frame of a delta for a tensor of zeros: no write past its end, no endless loop
//   3  a NumPy file
#include "core/base/error.h"
#include "core/base/pattern.h"
#include "core/layer/delta/frame.h"
#include "core/layer/edit/edit_lines.h"
#include "core/layer/edit/npy_file.h"
#include "core/layer/lora/adapter.h"
#include "core/source/local_file.h"
#include "tests/fuzz/check.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs::fuzz {
namespace {

std::unique_ptr<const Source> source_of(std::string_view bytes) {
  UniqueFd file(::memfd_create("fuzz", MFD_CLOEXEC));
  check(::write(file.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  return std::make_unique<LocalFile>("/fuzz.npy", std::move(file));
}

class OneSource : public Sources {
 public:
  explicit OneSource(std::string_view bytes) : bytes_(bytes) {}
  std::unique_ptr<const Source> open(const std::string&) override { return source_of(bytes_); }

 private:
  std::string_view bytes_;
};

void edits(std::string_view text) {
  for_each_edit_line("/f\n" + std::string(text), [](const EditLine& line) {
    check(!line.words.empty());
    if (line.words.size() < 2) return;
    try {
      const Substitution substitution(line.words[1]);
      substitution.apply("model.layers.10.self_attn.q_proj.weight");
      substitution.apply("");
    } catch (const std::invalid_argument&) {
      return;
    }
  });
}

void adapter(std::string_view text) {
  const AdapterConfig config("c", text);
  MatchingWork work = MatchingWork::for_tensors(1);
  const auto scaling = config.scaling_of("model.layers.10.self_attn.q_proj", work);
  check(scaling.rank > 0 && scaling.divisor > 0);
  adapter_tensor(text);
}

void frame(std::string_view text) {
  constexpr std::uint64_t kLength = 5000;
  const auto source = source_of(text);
  for (const DeltaEncoding encoding : {DeltaEncoding::kXor, DeltaEncoding::kOverwrite}) {
    const auto frame = Frame::open(encoding, {source.get(), 0, text.size()}, kLength, 1 << 20);
    std::array<std::byte, 700> some{};
    int error = 0;
    for (std::uint64_t at = 0; error == 0 && at < kLength; at += some.size()) {
      const std::size_t count = std::min<std::uint64_t>(some.size(), kLength - at);
      error = at % 3 == 0 ? frame->skip(count) : frame->apply(std::span(some).first(count));
    }
    if (error == 0) error = frame->end();
    check(error == 0 || error == EBADMSG || error == EFBIG);
  }
}

void npy(std::string_view text) {
  OneSource sources(text);
  const Part part = read_npy("/fuzz.npy", sources);
  const TensorRecord& tensor = part.header.tensors.front();
  check(tensor.offset + tensor.length == text.size());
}

}  // namespace
}  // namespace stfs::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    switch (data[0] % 4) {
      case 0: stfs::fuzz::edits(text); break;
      case 1: stfs::fuzz::adapter(text); break;
      case 2: stfs::fuzz::frame(text); break;
      default: stfs::fuzz::npy(text); break;
    }
  } catch (const stfs::Error& error) {
    stfs::fuzz::check(!error.message().empty());
  }
  return 0;
}
