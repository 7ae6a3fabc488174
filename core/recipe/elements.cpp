#include "core/recipe/elements.h"

#include <utility>
#include <vector>

namespace stfs {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kWindow = 48 << 10;  // bytes read at a time, small enough for the L1 cache
constexpr std::uint64_t kNoWindow = std::uint64_t{1} << 56;

// A reusable buffer that is not cleared.
class Room {
 public:
  std::span<std::byte> of(std::uint64_t bytes) {
    if (bytes > size_) bytes_ = std::make_unique_for_overwrite<std::byte[]>(size_ = bytes);
    return {bytes_.get(), static_cast<std::size_t>(bytes)};
  }

 private:
  std::uint64_t size_ = 0;
  std::unique_ptr<std::byte[]> bytes_;
};

class Float32 : public Elements {
 public:
  Float32(Content raw, const TypeInfo& type, Slice elements)
      : Elements(std::move(raw), type, std::move(elements), sizeof(float)) {}

  int produce(std::uint64_t offset, std::span<std::byte> out) const override {
    std::vector<float> unaligned;
    return fill(offset, out,
                [&](const TypeInfo& from, std::span<const std::byte> blocks, std::size_t count,
                    std::byte* to) {
                  if (reinterpret_cast<std::uintptr_t>(to) % alignof(float) == 0) {
                    return from.to_f32(blocks.data(), count, reinterpret_cast<float*>(to));
                  }
                  unaligned.resize(count);
                  from.to_f32(blocks.data(), count, unaligned.data());
                  std::memcpy(to, unaligned.data(), count * sizeof(float));
                });
  }
};

}  // namespace

Elements::Elements(Content raw, const TypeInfo& type, Slice elements, std::uint64_t width)
    : raw_(std::move(raw)),
      type_(type),
      slice_(std::move(elements)),
      width_(width),
      inner_(slice_.inner()),
      is_dense_(type.offset_of(inner_.stride - slice_.run) < kPage),
      in_window_(std::max<std::uint64_t>(
          1, type.elements_in(kWindow) / std::max<std::uint64_t>(1, inner_.stride))) {}

void Elements::missing(std::uint64_t offset, std::uint64_t length,
                       std::vector<Extent>& missing) const {
  const std::uint64_t end = (offset + length - 1) / width_ + 1;
  for (std::uint64_t at = offset / width_; at < end;) {
    const Runs runs = runs_at(at, end - at, kNoWindow);
    const auto [begin, bytes] = window_of(runs);
    const auto found = raw_.missing(begin, bytes);
    missing.insert(missing.end(), found.begin(), found.end());
    at += elements_in(runs);
  }
}

int Elements::fill(std::uint64_t offset, std::span<std::byte> out, const Convert& convert) const {
  Room window;
  std::vector<float> values;
  const std::uint64_t block = type_.block_elements;
  return fill_elements(
      offset, out, width_, [&](std::uint64_t first, std::uint64_t& count, std::byte* to) {
        const Runs runs = runs_at(first, count, kWindow);
        const ByteRange range = window_of(runs);
        const std::span bytes = window.of(range.length);
        if (const int error = raw_.copy_unverified(range.offset, bytes)) return error;
        for (std::uint64_t i = 0; i < runs.count; ++i) {
          const auto [begin, end] = run_of(runs, i);
          const auto taken = static_cast<std::size_t>(end - begin);
          const auto lead = static_cast<std::size_t>(begin % block);
          const auto in_blocks =
              static_cast<std::size_t>((lead + taken + block - 1) / block * block);
          const std::span blocks =
              bytes.subspan(static_cast<std::size_t>(type_.offset_of(begin) - range.offset),
                            static_cast<std::size_t>(type_.offset_of(in_blocks)));
          if (taken == in_blocks) {
            convert(type_, blocks, taken, to);
          } else {
            values.resize(in_blocks);
            type_.to_f32(blocks.data(), in_blocks, values.data());
            convert(type_info(DType::kF32), std::as_bytes(std::span(values).subspan(lead, taken)),
                    taken, to);
          }
          to += taken * width_;
        }
        count = elements_in(runs);
        return 0;
      });
}

Elements::Runs Elements::runs_at(std::uint64_t first, std::uint64_t count,
                                 std::uint64_t window) const {
  const std::uint64_t run = first / slice_.run;
  const std::uint64_t in_pass = run % inner_.count;
  Runs runs{slice_.pass_begin(run / inner_.count) + in_pass * inner_.stride, 1, first % slice_.run,
            0};
  const std::uint64_t wanted = runs.skip + count;  // elements from the start of the first run
  if (is_dense_) {
    runs.count =
        std::min({(wanted + slice_.run - 1) / slice_.run, inner_.count - in_pass, in_window_});
  }
  runs.end = std::min(slice_.run, wanted - (runs.count - 1) * slice_.run);
  if (runs.count == 1) {
    const std::uint64_t most =
        type_.elements_in(window) - (runs.begin + runs.skip) % type_.block_elements;
    if (runs.end - runs.skip > most) runs.end = runs.skip + most;
  }
  return runs;
}

std::uint64_t Elements::elements_in(const Runs& runs) const {
  return (runs.count - 1) * slice_.run + runs.end - runs.skip;
}

// Returns the begin and the end of the wanted elements in run `i`, as indices in the tensor.
std::pair<std::uint64_t, std::uint64_t> Elements::run_of(const Runs& runs, std::uint64_t i) const {
  const std::uint64_t begin = runs.begin + i * inner_.stride;
  return {begin + (i == 0 ? runs.skip : 0), begin + (i + 1 == runs.count ? runs.end : slice_.run)};
}

// Returns the range of the blocks that contain the runs, in bytes of the tensor.
ByteRange Elements::window_of(const Runs& runs) const {
  const std::uint64_t end = run_of(runs, runs.count - 1).second + type_.block_elements - 1;
  const std::uint64_t begin = type_.offset_of(run_of(runs, 0).first);
  return {begin, type_.offset_of(end) - begin};
}

Slice whole_run(std::uint64_t count) {
  Slice slice;
  slice.run = count;
  return slice;
}

bool has_f32(DType dtype, std::uint64_t count) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 60;
  return type_info(dtype).to_f32 != nullptr && count <= kMost;
}

std::unique_ptr<const Producer> as_f32(Content raw, const TypeInfo& type, Slice elements) {
  return std::make_unique<Float32>(std::move(raw), type, std::move(elements));
}

Content f32_content(Content raw, DType dtype, std::uint64_t count) {
  if (dtype == DType::kF32) return raw;
  Content content;
  content.production(as_f32(std::move(raw), type_info(dtype), whole_run(count)));
  return content;
}

Content f32_slice_content(Content whole, DType dtype, std::span<const Range> ranges,
                          std::span<const std::uint64_t> shape) {
  const TypeInfo& type = type_info(dtype);
  Slice elements = elements_of(ranges, shape);
  Slice bytes;
  if (slice_of(ranges, type, shape, bytes) == 0) {
    return f32_content(slice_content(bytes, std::move(whole)), dtype, elements.size());
  }
  Content content;
  content.production(as_f32(std::move(whole), type, std::move(elements)));
  return content;
}

}  // namespace stfs
