#include "core/layer/edit/cast.h"

#include "core/format/from_f32.h"
#include "core/format/ieee.h"
#include "core/recipe/elements.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <utility>

namespace stfs {
namespace {

class Cast : public Elements {
 public:
  Cast(Content raw, const TypeInfo& from, DType to, std::uint64_t elements)
      : Elements(std::move(raw), from, whole_run(elements), type_info(to).block_bytes),
        to_(type_info(to)) {}

  int produce(std::uint64_t offset, std::span<std::byte> out) const override {
    const IeeeArithmetic ieee;
    return fill(offset, out,
                [this](const TypeInfo& from, std::span<const std::byte> blocks, std::size_t count,
                       std::byte* to) { convert(from, blocks, count, to); });
  }

 private:
  static constexpr std::size_t kSome = 1024;

  void convert(const TypeInfo& from, std::span<const std::byte> blocks, std::size_t count,
               std::byte* out) const {
    const std::size_t step = kSome / from.block_elements * from.block_elements;
    std::array<float, kSome> values{};
    for (std::size_t some = 0; count > 0; count -= some) {
      some = std::min(step, count);
      to_f32_for(to_, from, blocks.data(), some, values.data());
      to_.from_f32(values.data(), some, out);
      blocks = blocks.subspan(static_cast<std::size_t>(from.offset_of(some)));
      out += some * to_.block_bytes;
    }
  }

  const TypeInfo& to_;
};

}  // namespace

std::unique_ptr<const Producer> cast(Content raw, DType from, DType to, std::uint64_t elements) {
  return std::make_unique<Cast>(std::move(raw), type_info(from), to, elements);
}

}  // namespace stfs
