#include "tools/gpu/device/narrowing.h"

#include "core/recipe/convert.h"
#include "tools/gpu/device/narrow.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

namespace stfs::gpu {
namespace {

constexpr std::size_t kBlock = 8192;  // elements converted at a time: 32 KiB as binary32

constexpr std::uint32_t kMagnitude = 0x7fffffff;
constexpr std::uint32_t kInfinity = 0x7f800000;

// Narrows a block to 16 bits with `narrow`, whose infinity is `infinity`.
template <class Narrow>
ConversionCounts narrow_block(std::span<const std::uint32_t> in, std::byte* out,
                              std::uint16_t infinity, const Narrow& narrow) {
  ConversionCounts counts;
  for (const std::uint32_t bits : in) {
    const std::uint16_t narrowed = narrow(bits);
    counts.nan += (bits & kMagnitude) > kInfinity ? 1 : 0;
    counts.out_of_range +=
        (bits & kMagnitude) < kInfinity && (narrowed & 0x7fff) == infinity ? 1 : 0;
    std::memcpy(out, &narrowed, sizeof narrowed);
    out += sizeof narrowed;
  }
  return counts;
}

// binary64 elements, rounded so that narrowing them again rounds once (narrow.h).
void to_odd(std::span<const std::byte> in, std::span<std::uint32_t> out) {
  for (std::uint32_t& bits : out) {
    std::uint64_t wide = 0;
    std::memcpy(&wide, in.data(), sizeof wide);
    in = in.subspan(sizeof wide);
    bits = to_odd_f32(wide);
  }
}

class Conversion : public Producer {
 public:
  Conversion(Content raw, DType from, DType to, std::uint64_t count, ConversionTally* tally)
      : raw_(std::move(raw)), from_(from), to_(to), count_(count), tally_(tally) {}

  std::uint64_t size() const override { return count_ * dtype_bits(to_) / 8; }
  int verify() const override { return raw_.verify(); }

  int produce(std::uint64_t offset, std::span<std::byte> out) const override {
    const std::uint64_t bits = dtype_bits(from_);
    const std::uint64_t width = dtype_bits(to_) / 8;
    const std::uint64_t group = 8 / std::gcd(bits, std::uint64_t{8});  // begins at whole bytes
    std::vector<std::byte> raw(kBlock * bits / 8);
    std::vector<std::byte> converted(kBlock * width);
    ConversionCounts counts;
    while (!out.empty()) {
      const std::uint64_t first = offset / width / group * group;
      const std::uint64_t end = (offset + out.size() + width - 1) / width;
      const std::uint64_t last =
          std::min({count_, first + kBlock, (end + group - 1) / group * group});
      const std::span elements(raw.data(),
                               static_cast<std::size_t>(((last - first) * bits + 7) / 8));
      if (const int error = raw_.copy_unverified(first * bits / 8, elements)) return error;
      counts += convert_elements(from_, to_, last - first, elements, converted);
      const auto skip = static_cast<std::size_t>(offset - first * width);
      const auto take =
          std::min(out.size(), static_cast<std::size_t>((last - first) * width) - skip);
      std::memcpy(out.data(), converted.data() + skip, take);
      out = out.subspan(take);
      offset += take;
    }
    if (tally_ != nullptr) tally_->add(counts);
    return 0;
  }

 private:
  Content raw_;
  DType from_;
  DType to_;
  std::uint64_t count_;
  ConversionTally* tally_;
};

}  // namespace

bool converts(DType from, DType to) {
  return has_f32(from) && (to == DType::kF32 || to == DType::kF16 || to == DType::kBF16);
}

ConversionCounts convert_elements(DType from, DType to, std::uint64_t count,
                                  std::span<const std::byte> in, std::span<std::byte> out) {
  std::array<float, kBlock> block;
  ConversionCounts counts;
  const std::size_t width = dtype_bits(to) / 8;
  while (count > 0) {
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(count, kBlock));
    const std::span floats = std::span(block).first(n);
    const std::size_t taken = n * dtype_bits(from) / 8;
    std::array<std::uint32_t, kBlock> bits;
    const std::span block_bits = std::span(bits).first(n);
    if (from == DType::kF64 && to != DType::kF32) {
      to_odd(in, block_bits);
    } else {
      convert_to_f32(from, in, floats);
      std::memcpy(bits.data(), block.data(), n * sizeof(float));
    }
    if (to == DType::kF16) {
      counts += narrow_block(block_bits, out.data(), 0x7c00, to_f16);
    } else if (to == DType::kBF16) {
      counts += narrow_block(block_bits, out.data(), 0x7f80, to_bf16);
    } else {
      for (std::size_t i = 0; i < n; ++i) {
        counts.nan += (bits[i] & kMagnitude) > kInfinity ? 1 : 0;
        if (from != DType::kF64 || (bits[i] & kMagnitude) != kInfinity) continue;
        double wide = 0;
        std::memcpy(&wide, in.data() + i * sizeof wide, sizeof wide);
        counts.out_of_range += std::isinf(wide) ? 0 : 1;
      }
      std::memcpy(out.data(), bits.data(), n * sizeof(float));
    }
    in = in.subspan(taken);
    out = out.subspan(n * width);
    count -= n;
  }
  return counts;
}

std::unique_ptr<const Producer> as_type(Content raw, DType from, DType to, std::uint64_t count,
                                        ConversionTally* tally) {
  return std::make_unique<Conversion>(std::move(raw), from, to, count, tally);
}

}  // namespace stfs::gpu
