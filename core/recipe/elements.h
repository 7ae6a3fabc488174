// Converts the elements of a tensor or of a slice while they are read. The type may have blocks of
// any size (TypeInfo). If a slice or a read begins or ends inside a block, the whole block is
// converted, and only the wanted elements are kept.
//
// Thread safety: the functions, and const members, may be called from any thread.
#pragma once

#include "core/format/types.h"
#include "core/recipe/content.h"
#include "core/recipe/slice.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace stfs {

// Fills `out` from byte `offset` of a sequence of elements. An element has `width` bytes, at most
// 8. Calls `some(first, count, to)` repeatedly. It must write between 1 and `count` elements, from
// element `first` on, to `to`, set `count` to their number, and return 0 or an errno.
template <class Some>
int fill_elements(std::uint64_t offset, std::span<std::byte> out, std::uint64_t width,
                  const Some& some) {
  while (!out.empty()) {
    const std::uint64_t first = offset / width;
    const auto skip = static_cast<std::size_t>(offset % width);
    std::uint64_t count = out.size() / width;
    std::size_t take = 0;
    if (skip == 0 && count > 0) {
      if (const int error = some(first, count, out.data())) return error;
      take = static_cast<std::size_t>(count * width);
    } else {  // a part of an element
      alignas(8) std::array<std::byte, 8> edge{};
      count = 1;
      if (const int error = some(first, count, edge.data())) return error;
      take = std::min(out.size(), static_cast<std::size_t>(width) - skip);
      std::memcpy(out.data(), edge.data() + skip, take);
    }
    out = out.subspan(take);
    offset += take;
  }
  return 0;
}

// The base class of such producers. A derived class defines how elements are converted. Reads the
// blocks that contain the elements, and also the bytes between two runs if they are fewer than a
// page. The memory does not grow with the number of runs.
class Elements : public Producer {
 public:
  // `raw` is the whole tensor, in blocks of `type`, which must have a to_f32 and outlive this.
  // `elements` counts in elements (elements_of()). `width` is the size of a converted element in
  // bytes. If `elements` has loops, `raw` must be an extent, because fill() may read gaps that
  // missing() did not return.
  Elements(Content raw, const TypeInfo& type, Slice elements, std::uint64_t width);

  std::uint64_t size() const override { return slice_.size() * width_; }
  int verify() const override { return raw_.verify(); }
  void missing(std::uint64_t offset, std::uint64_t length,
               std::vector<Extent>& missing) const override;

 protected:
  // Converts `count` elements of type `from`. This is either the type of the tensor, and `blocks`
  // are whole blocks, or F32, and `blocks` are values from a block that was converted before.
  using Convert = std::function<void(const TypeInfo& from, std::span<const std::byte> blocks,
                                     std::size_t count, std::byte* out)>;
  int fill(std::uint64_t offset, std::span<std::byte> out, const Convert& convert) const;

 private:
  // Runs of one pass of the innermost loop, which are read together.
  struct Runs {
    std::uint64_t begin;  // the element of the tensor at which the first run begins
    std::uint64_t count;  // the number of runs
    std::uint64_t skip;   // unwanted elements at the beginning of the first run
    std::uint64_t end;    // the end of the wanted elements in the last run
  };

  // Returns the next runs for `count` elements of the slice from `first` on. A single run is cut
  // after `window` bytes.
  Runs runs_at(std::uint64_t first, std::uint64_t count, std::uint64_t window) const;
  std::uint64_t elements_in(const Runs& runs) const;
  std::pair<std::uint64_t, std::uint64_t> run_of(const Runs& runs, std::uint64_t i) const;
  ByteRange window_of(const Runs& runs) const;

  Content raw_;
  const TypeInfo& type_;
  Slice slice_;
  std::uint64_t width_;
  Slice::Loop inner_;        // the innermost loop; without loops, one pass over a single run
  bool is_dense_;            // the gaps between runs are less than a page, so they are read too
  std::uint64_t in_window_;  // the number of runs that are read at a time
};

// Returns a slice of the first `count` elements of a tensor.
Slice whole_run(std::uint64_t count);

// Returns true if `count` elements can be shown as binary32: the type must have a to_f32, and the
// size of the file with a header must fit into 63 bits.
bool has_f32(DType dtype, std::uint64_t count);

// Returns a producer of binary32 values. The arguments are the same as for Elements.
std::unique_ptr<const Producer> as_f32(Content raw, const TypeInfo& type, Slice elements);

// Returns the recipe of `count` elements as binary32. If they are binary32 already, this is `raw`.
Content f32_content(Content raw, DType dtype, std::uint64_t count);

// Returns the recipe of a slice as binary32. `whole` is the tensor, `ranges` come from
// parse_ranges(), and the type must have a to_f32. If the slice consists of whole blocks, only its
// bytes are read.
Content f32_slice_content(Content whole, DType dtype, std::span<const Range> ranges,
                          std::span<const std::uint64_t> shape);

}  // namespace stfs
