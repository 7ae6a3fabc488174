#include "core/recipe/convert.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace stfs {
namespace {

// Reads raw elements and converts them in chunks that fit into the first-level cache.
class Float32 : public Producer {
 public:
  Float32(Content raw, const TypeInfo& type, std::uint64_t count)
      : raw_(std::move(raw)), type_(type), count_(count) {}

  std::uint64_t size() const override { return count_ * sizeof(float); }

  int verify() const override { return raw_.verify(); }

  void missing(std::uint64_t offset, std::uint64_t length,
               std::vector<Extent>& missing) const override {
    const std::uint64_t block = type_.block_elements;
    const std::uint64_t begin = type_.offset_of(offset / sizeof(float) / block * block);
    const std::uint64_t last = (offset + length - 1) / sizeof(float);
    const std::uint64_t end = std::min(raw_.size(), type_.offset_of((last / block + 1) * block));
    const auto raw_missing = raw_.missing(begin, end - begin);
    missing.insert(missing.end(), raw_missing.begin(), raw_missing.end());
  }

  int produce(std::uint64_t offset, std::span<std::byte> out) const override {
    const std::uint64_t block = type_.block_elements;
    const std::uint64_t max_elements = type_.elements_in(kRawBytes);
    const auto raw = std::make_unique_for_overwrite<std::byte[]>(kRawBytes);
    std::vector<float> edge;  // for blocks partly outside `out`, or an unaligned `out`
    while (!out.empty()) {
      const std::uint64_t first = offset / sizeof(float) / block * block;
      const auto skip = static_cast<std::size_t>(offset - first * sizeof(float));
      const std::uint64_t wanted = (skip + out.size() + sizeof(float) - 1) / sizeof(float);
      const std::uint64_t whole_blocks = (wanted + block - 1) / block * block;
      auto elements =
          static_cast<std::size_t>(std::min({count_ - first, max_elements, whole_blocks}));
      const std::uint64_t begin = type_.offset_of(first);
      const std::span bytes(
          raw.get(), static_cast<std::size_t>(
                         std::min(raw_.size() - begin, type_.offset_of(elements + block - 1))));
      if (const int error = raw_.copy_unverified(begin, bytes)) return error;
      const std::size_t fits = out.size() / sizeof(float) / block * block;
      const bool is_aligned = reinterpret_cast<std::uintptr_t>(out.data()) % alignof(float) == 0;
      std::size_t take = 0;
      if (skip == 0 && fits > 0 && is_aligned) {
        elements = std::min(elements, fits);
        type_.to_f32(raw.get(), elements, reinterpret_cast<float*>(out.data()));
        take = elements * sizeof(float);
      } else {
        edge.resize(elements);
        type_.to_f32(raw.get(), elements, edge.data());
        take = std::min(out.size(), elements * sizeof(float) - skip);
        std::memcpy(out.data(), std::as_bytes(std::span(edge)).data() + skip, take);
      }
      out = out.subspan(take);
      offset += take;
    }
    return 0;
  }

 private:
  static constexpr std::size_t kRawBytes = 48 << 10;  // read at a time

  Content raw_;
  const TypeInfo& type_;
  std::uint64_t count_;
};

}  // namespace

bool has_f32(DType dtype, std::uint64_t count) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 60;
  return type_info(dtype).to_f32 != nullptr && count <= kMost;
}

std::unique_ptr<const Producer> as_f32(Content raw, const TypeInfo& type, std::uint64_t count) {
  return std::make_unique<Float32>(std::move(raw), type, count);
}

Content f32_content(Content raw, DType dtype, std::uint64_t count) {
  if (dtype == DType::kF32) return raw;
  Content content;
  content.production(as_f32(std::move(raw), type_info(dtype), count));
  return content;
}

}  // namespace stfs
