#include "tools/gpu/device/narrowing.h"

#include "core/format/from_f32.h"
#include "core/format/narrow.h"
#include "core/recipe/elements.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

namespace stfs::gpu {
namespace {

constexpr std::size_t kChunk = 8192;  // elements that are converted at a time: 32 KiB as binary32

// Returns kChunk rounded down to whole blocks of a type.
std::size_t chunk_of(const TypeInfo& type) {
  return kChunk / type.block_elements * type.block_elements;
}

constexpr std::uint32_t kMagnitude = 0x7fffffff;
constexpr std::uint32_t kInfinity = 0x7f800000;

// Counts the binary32 values that are NaN, and the finite values of at least `limit`.
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

class Conversion : public Elements {
 public:
  Conversion(Content raw, DType from, DType to, std::uint64_t count, ConversionTally* tally)
      : Elements(std::move(raw), type_info(from), whole_run(count), type_info(to).block_bytes),
        from_(from),
        to_(to),
        tally_(tally) {}

  int produce(std::uint64_t offset, std::span<std::byte> out) const override {
    ConversionCounts counts;
    const std::size_t width = type_info(to_).block_bytes;
    const int error =
        fill(offset, out,
             [&](const TypeInfo& from, std::span<const std::byte> elements, std::size_t count,
                 std::byte* to) {
               const DType type = &from == &type_info(from_) ? from_ : DType::kF32;
               counts += convert_elements(type, to_, count, elements, {to, count * width});
             });
    if (error == 0 && tally_ != nullptr) tally_->set(offset, counts);
    return error;
  }

 private:
  DType from_;
  DType to_;
  ConversionTally* tally_;
};

}  // namespace

std::optional<DType> conversion_target(std::string_view name) {
  for (const auto& [known, type] :
       {std::pair{"f32", DType::kF32}, {"f16", DType::kF16}, {"bf16", DType::kBF16}}) {
    if (name == known) return type;
  }
  return std::nullopt;
}

bool converts(DType from, DType to) {
  return type_info(from).to_f32 != nullptr &&
         (to == DType::kF32 || to == DType::kF16 || to == DType::kBF16);
}

ConversionCounts convert_elements(DType from, DType to, std::uint64_t count,
                                  std::span<const std::byte> in, std::span<std::byte> out) {
  const TypeInfo& type = type_info(from);
  std::array<float, kChunk> floats;
  ConversionCounts counts;
  const TypeInfo& target = type_info(to);
  const std::uint32_t limit = to == DType::kF16    ? kNarrowF16.least_overflow()
                              : to == DType::kBF16 ? kNarrowBf16.least_overflow()
                                                   : kInfinity;
  while (count > 0) {
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(count, chunk_of(type)));
    std::array<std::uint32_t, kChunk> bits;
    to_f32_for(target, type, in.data(), n, floats.data());
    std::memcpy(bits.data(), floats.data(), n * sizeof(float));
    counts += count_of(std::span(bits).first(n), limit);
    for (std::size_t i = 0; from == DType::kF64 && to == DType::kF32 && i < n; ++i) {
      if ((bits[i] & kMagnitude) != kInfinity) continue;
      double wide = 0;
      std::memcpy(&wide, in.data() + i * sizeof wide, sizeof wide);
      counts.out_of_range += std::isinf(wide) ? 0 : 1;
    }
    target.from_f32(floats.data(), n, out.data());
    in = in.subspan(static_cast<std::size_t>(type.offset_of(n)));
    out = out.subspan(n * target.block_bytes);
    count -= n;
  }
  return counts;
}

std::unique_ptr<const Producer> as_type(Content raw, DType from, DType to, std::uint64_t count,
                                        ConversionTally* tally) {
  return std::make_unique<Conversion>(std::move(raw), from, to, count, tally);
}

}  // namespace stfs::gpu
