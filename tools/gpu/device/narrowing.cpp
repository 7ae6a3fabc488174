#include "tools/gpu/device/narrowing.h"

#include "core/format/from_f32.h"
#include "core/format/narrow.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

namespace stfs::gpu {
namespace {

constexpr std::size_t kChunk = 8192;  // elements converted at a time: 32 KiB as binary32

// The same in whole blocks.
std::size_t chunk_of(const TypeInfo& type) {
  return kChunk / type.block_elements * type.block_elements;
}

constexpr std::uint32_t kMagnitude = 0x7fffffff;
constexpr std::uint32_t kInfinity = 0x7f800000;

// Of binary32 values, those that are NaN, and those that are finite and no less than `limit`.
ConversionCounts count_of(std::span<const std::uint32_t> values, std::uint32_t limit) {
  std::uint32_t nan = 0;
  std::uint32_t above = 0;
  for (const std::uint32_t bits : values) {
    const std::uint32_t magnitude = bits & kMagnitude;
    nan += magnitude > kInfinity ? 1 : 0;
    above += magnitude >= limit && magnitude < kInfinity ? 1 : 0;
  }
  return {.out_of_range = above, .nan = nan};
}

// The least values that become infinite: halfway from the largest finite one to the next.
constexpr std::uint32_t kF16Limit = 0x477ff000;
constexpr std::uint32_t kBf16Limit = 0x7f7f8000;

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

  std::uint64_t size() const override { return count_ * type_info(to_).block_bytes; }
  int verify() const override { return raw_.verify(); }

  void missing(std::uint64_t offset, std::uint64_t length,
               std::vector<Extent>& missing) const override {
    const TypeInfo& from = type_info(from_);
    const std::uint64_t width = type_info(to_).block_bytes;
    const std::uint64_t begin = from.offset_of(offset / width);
    const std::uint64_t last = (offset + length - 1) / width;
    const auto found = raw_.missing(begin, from.offset_of(last) + from.block_bytes - begin);
    missing.insert(missing.end(), found.begin(), found.end());
  }

  int produce(std::uint64_t offset, std::span<std::byte> out) const override {
    const TypeInfo& from = type_info(from_);
    const std::uint64_t begin = offset;
    const std::uint64_t width = type_info(to_).block_bytes;
    const std::uint64_t block = from.block_elements;
    const std::uint64_t most = chunk_of(from);
    std::vector<std::byte> raw(static_cast<std::size_t>(from.offset_of(most)));
    std::vector<std::byte> converted(static_cast<std::size_t>(most * width));
    ConversionCounts counts;
    while (!out.empty()) {
      const std::uint64_t first = offset / width;
      const std::uint64_t first_block = first / block * block;
      const std::uint64_t last =
          std::min((offset + out.size() + width - 1) / width, first_block + most);
      const std::uint64_t end_block = std::min(count_, (last + block - 1) / block * block);
      const std::span blocks = std::span(raw).first(
          static_cast<std::size_t>(from.offset_of(end_block) - from.offset_of(first_block)));
      if (const int error = raw_.copy_unverified(from.offset_of(first_block), blocks)) return error;
      counts += convert_part(blocks, end_block - first_block, first - first_block, last - first,
                             converted);
      const auto skip = static_cast<std::size_t>(offset - first * width);
      const auto take =
          std::min(out.size(), static_cast<std::size_t>((last - first) * width) - skip);
      std::memcpy(out.data(), converted.data() + skip, take);
      out = out.subspan(take);
      offset += take;
    }
    if (tally_ != nullptr) tally_->set(begin, counts);
    return 0;
  }

 private:
  // Converts `count` of the elements in whole blocks, and counts those alone.
  ConversionCounts convert_part(std::span<const std::byte> blocks, std::uint64_t in_blocks,
                                std::uint64_t skip, std::uint64_t count,
                                std::span<std::byte> out) const {
    if (count == in_blocks) return convert_elements(from_, to_, count, blocks, out);
    std::vector<float> floats(static_cast<std::size_t>(in_blocks));
    type_info(from_).to_f32(blocks.data(), floats.size(), floats.data());
    const auto part =
        std::span(floats).subspan(static_cast<std::size_t>(skip), static_cast<std::size_t>(count));
    return convert_elements(DType::kF32, to_, count, std::as_bytes(part), out);
  }

  Content raw_;
  DType from_;
  DType to_;
  std::uint64_t count_;
  ConversionTally* tally_;
};

}  // namespace

bool converts(DType from, DType to) {
  return type_info(from).to_f32 != nullptr &&
         (to == DType::kF32 || to == DType::kF16 || to == DType::kBF16);
}

ConversionCounts convert_elements(DType from, DType to, std::uint64_t count,
                                  std::span<const std::byte> in, std::span<std::byte> out) {
  const TypeInfo& type = type_info(from);
  std::array<float, kChunk> floats;
  ConversionCounts counts;
  const std::size_t width = type_info(to).block_bytes;
  while (count > 0) {
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(count, chunk_of(type)));
    std::array<std::uint32_t, kChunk> bits;
    if (from == DType::kF64 && to != DType::kF32) {
      to_odd(in, std::span(bits).first(n));
      std::memcpy(floats.data(), bits.data(), n * sizeof(float));
    } else {
      type.to_f32(in.data(), n, floats.data());
      std::memcpy(bits.data(), floats.data(), n * sizeof(float));
    }
    const std::span values = std::span(bits).first(n);
    if (to == DType::kF16) {
      f32_to_f16(floats.data(), n, out.data());
      counts += count_of(values, kF16Limit);
    } else if (to == DType::kBF16) {
      f32_to_bf16(floats.data(), n, out.data());
      counts += count_of(values, kBf16Limit);
    } else {
      counts += count_of(values, kInfinity);
      for (std::size_t i = 0; from == DType::kF64 && i < n; ++i) {
        if ((bits[i] & kMagnitude) != kInfinity) continue;
        double wide = 0;
        std::memcpy(&wide, in.data() + i * sizeof wide, sizeof wide);
        counts.out_of_range += std::isinf(wide) ? 0 : 1;
      }
      std::memcpy(out.data(), bits.data(), n * sizeof(float));
    }
    in = in.subspan(static_cast<std::size_t>(type.offset_of(n)));
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
