#include "core/recipe/strided_producer.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

namespace stfs {
namespace {

constexpr std::uint64_t kTileBytes = 8 << 20;     // bytes
constexpr std::uint64_t kWorthARead = 4096;       // bytes; a run of this length is read directly
constexpr std::uint64_t kReadAtOnce = 256 << 10;  // bytes read at a time

struct StridedDimension {
  std::uint64_t count;
  std::uint64_t stride;  // bytes in below_
};

// Reads pieces with mostly increasing offsets. Reads ahead, so that near pieces come from one read.
class NearReader {
 public:
  // Never reads bytes from `end` on.
  NearReader(const Content& below, std::uint64_t end) : below_(below), end_(end) {}

  // Sets `out` to `length` bytes from `offset` on, valid until the next call. If they are not in
  // the buffer, reads at least `near` bytes. Returns 0 or an errno.
  int get(std::uint64_t offset, std::uint64_t length, std::uint64_t near, const std::byte*& out) {
    if (offset < begin_ || offset + length > begin_ + bytes_.size()) {
      const std::uint64_t end = std::min(end_, offset + std::max(length, near));
      begin_ = offset;
      bytes_.resize(static_cast<std::size_t>(end - offset));
      if (const int error = below_.copy_unverified(offset, bytes_)) {
        bytes_.clear();
        return error;
      }
    }
    out = bytes_.data() + (offset - begin_);
    return 0;
  }

 private:
  const Content& below_;
  std::uint64_t end_;
  std::uint64_t begin_ = 0;
  std::vector<std::byte> bytes_;
};

class Strided : public Producer {
 public:
  Strided(Content below, const StridedShape& shape, TileCache& tiles, std::uint64_t number)
      : below_(std::move(below)),
        begin_(shape.begin),
        run_(shape.width),
        tiles_(tiles),
        number_(number) {
    // Go from the innermost dimension outwards. If a dimension continues where the dimension inside
    // it ends, join the two. The innermost elements may form a run in the same way.
    for (std::size_t i = shape.shape.size(); i-- > 0;) {
      const StridedDimension next{shape.shape[i], shape.strides[i]};
      if (next.count == 1) continue;
      if (dims_.empty() && next.stride == run_) {
        run_ *= next.count;
      } else if (!dims_.empty() && next.stride == dims_.back().stride * dims_.back().count &&
                 next.stride != 0) {
        dims_.back().count *= next.count;
      } else {
        dims_.push_back(next);
      }
    }
    std::ranges::reverse(dims_);
    size_ = run_;
    for (const StridedDimension& dim : dims_) size_ *= dim.count;
    plan_tiles();
  }

  std::uint64_t size() const override { return size_; }
  int verify() const override { return below_.verify(); }

  void missing(std::uint64_t offset, std::uint64_t length,
               std::vector<Extent>& missing) const override {
    for (const std::uint64_t end = offset + length; offset < end;) {
      const Part part = part_at(offset);
      const auto [begin, bytes] = reach_of(part);
      const std::vector<Extent> found = below_.missing(begin, bytes);
      missing.insert(missing.end(), found.begin(), found.end());
      offset = part.begin + part.length;
    }
  }

  int produce(std::uint64_t offset, std::span<std::byte> out) const override {
    while (!out.empty()) {
      const Part part = part_at(offset);
      const std::uint64_t skip = offset - part.begin;
      const std::span some = out.first(
          static_cast<std::size_t>(std::min(part.length - skip, std::uint64_t{out.size()})));
      const int error = is_direct() ? below_.copy_unverified(place_of(part.begin) + skip, some)
                                    : copy_of_tile(part, skip, some);
      if (error != 0) return error;
      out = out.subspan(some.size());
      offset += some.size();
    }
    return 0;
  }

 private:
  // A tile, or a run that is read directly.
  struct Part {
    std::uint64_t number, begin, length;  // the number of the tile, or 0; bytes of the result
  };

  bool is_direct() const { return dims_.empty() || run_ >= kWorthARead; }

  // Divides the result into tiles. A tile has some steps of the dimension `split_`, and all steps
  // of the dimensions inside it. A round is one pass through `split_`; its last tile may be
  // smaller.
  void plan_tiles() {
    if (dims_.empty()) return;
    step_ = run_;
    split_ = dims_.size() - 1;
    for (; split_ > 0 && step_ * dims_[split_].count <= kTileBytes; --split_) {
      step_ *= dims_[split_].count;
    }
    const std::uint64_t count = dims_[split_].count;
    const std::uint64_t in_tile = std::clamp<std::uint64_t>(kTileBytes / step_, 1, count);
    tile_ = in_tile * step_;
    round_ = count * step_;
    tiles_in_round_ = (count + in_tile - 1) / in_tile;
  }

  Part part_at(std::uint64_t offset) const {
    if (is_direct()) return {0, offset - offset % run_, run_};
    const std::uint64_t round = offset / round_;
    const std::uint64_t tile = offset % round_ / tile_;
    return {round * tiles_in_round_ + tile, round * round_ + tile * tile_,
            std::min(tile_, round_ - tile * tile_)};
  }

  // Returns the offset in below_ of the run that contains byte `offset` of the result.
  std::uint64_t place_of(std::uint64_t offset) const {
    std::uint64_t place = begin_;
    std::uint64_t run = offset / run_;
    for (std::size_t dim = dims_.size(); dim-- > 0;) {
      place += run % dims_[dim].count * dims_[dim].stride;
      run /= dims_[dim].count;
    }
    return place;
  }

  std::vector<StridedDimension> dims_of(const Part& tile) const {
    std::vector<StridedDimension> dims(dims_.begin() + static_cast<std::ptrdiff_t>(split_),
                                       dims_.end());
    dims.front().count = tile.length / step_;
    return dims;
  }
  // Returns the range of below_ from the first to the last byte that a part reads.
  ByteRange reach_of(const Part& part) const {
    std::uint64_t length = run_;
    if (!is_direct()) {
      for (const StridedDimension& dim : dims_of(part)) length += (dim.count - 1) * dim.stride;
    }
    return {place_of(part.begin), length};
  }

  int copy_of_tile(const Part& part, std::uint64_t skip, std::span<std::byte> out) const {
    const std::shared_ptr<TileCache::Tile> tile =
        tiles_.get({number_, part.number, 0}, static_cast<std::size_t>(part.length));
    {
      const std::lock_guard lock(tile->mutex);
      if (!tile->is_ready) {
        const TileCache::Turn turn(tiles_);
        if (const int error = compute(part, tile->buffer.get())) return error;
        tile->is_ready = true;
      }
    }
    std::memcpy(out.data(), tile->buffer.get() + skip, out.size());
    return 0;
  }

  // Computes a tile: reads its runs in the order of their offsets in below_, and writes each to its
  // place in the tile.
  int compute(const Part& part, std::byte* out) const {
    struct Axis {
      StridedDimension dim;
      std::uint64_t out;  // bytes between two steps in the tile
    };
    std::vector<Axis> axes;
    std::uint64_t step = run_;
    const std::vector<StridedDimension> dims = dims_of(part);
    for (std::size_t at = dims.size(); at-- > 0;) {
      axes.push_back({dims[at], step});
      step *= dims[at].count;
    }
    std::ranges::stable_sort(axes, std::greater<>(), [](const Axis& a) { return a.dim.stride; });
    const Axis last = axes.back();
    axes.pop_back();
    // The runs along the axis with the least stride form a line in below_.
    const bool is_dense = last.dim.stride < kWorthARead;
    const std::uint64_t near_line = axes.empty() ? 0 : axes.back().dim.stride;
    const std::uint64_t reach = (last.dim.count - 1) * last.dim.stride + run_;
    const std::uint64_t near = near_line < reach + kWorthARead ? kReadAtOnce : 0;
    const std::uint64_t per_window =
        is_dense
            ? std::max<std::uint64_t>(1, kReadAtOnce / std::max<std::uint64_t>(1, last.dim.stride))
            : 1;
    std::vector<std::uint64_t> index(axes.size());
    const auto [begin, length] = reach_of(part);
    NearReader window(below_, begin + length);
    for (std::uint64_t place = begin, to = 0;;) {
      for (std::uint64_t first = 0; first < last.dim.count; first += per_window) {
        const std::uint64_t some = std::min(per_window, last.dim.count - first);
        const std::byte* from = nullptr;
        const int error = window.get(place + first * last.dim.stride,
                                     (some - 1) * last.dim.stride + run_, near, from);
        if (error != 0) return error;
        scatter(from, last.dim.stride, some, out + to + first * last.out, last.out);
      }
      std::size_t axis = axes.size();
      while (axis > 0 && index[axis - 1] + 1 == axes[axis - 1].dim.count) {
        --axis;
        place -= index[axis] * axes[axis].dim.stride;
        to -= index[axis] * axes[axis].out;
        index[axis] = 0;
      }
      if (axis == 0) return 0;
      ++index[axis - 1];
      place += axes[axis - 1].dim.stride;
      to += axes[axis - 1].out;
    }
  }

  template <std::size_t width>
  static void scatter_of(const std::byte* from, std::uint64_t stride, std::uint64_t count,
                         std::byte* to, std::uint64_t step) {
    for (std::uint64_t i = 0; i < count; ++i) std::memcpy(to + i * step, from + i * stride, width);
  }
  void scatter(const std::byte* from, std::uint64_t stride, std::uint64_t count, std::byte* to,
               std::uint64_t step) const {
    if (run_ == 2) return scatter_of<2>(from, stride, count, to, step);
    if (run_ == 4) return scatter_of<4>(from, stride, count, to, step);
    if (run_ == 1) return scatter_of<1>(from, stride, count, to, step);
    for (std::uint64_t i = 0; i < count; ++i) {
      std::memcpy(to + i * step, from + i * stride, static_cast<std::size_t>(run_));
    }
  }

  Content below_;
  std::uint64_t begin_;
  std::uint64_t run_;                   // bytes that are contiguous in below_ and in the result
  std::vector<StridedDimension> dims_;  // the dimensions outside of a run, outermost first
  std::uint64_t size_ = 0;              // bytes of the result
  std::size_t split_ = 0;               // the index in dims_ of the split dimension
  std::uint64_t step_ = 0;              // bytes of a step of the split dimension
  std::uint64_t tile_ = 0;              // bytes of a tile
  std::uint64_t round_ = 0;             // bytes of all steps of the split dimension
  std::uint64_t tiles_in_round_ = 1;
  TileCache& tiles_;
  std::uint64_t number_;
};

}  // namespace

std::unique_ptr<const Producer> strided(Content below, const StridedShape& shape, TileCache& tiles,
                                        std::uint64_t number) {
  return std::make_unique<Strided>(std::move(below), shape, tiles, number);
}

}  // namespace stfs
