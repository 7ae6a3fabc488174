// Elements of a tensor that are converted while they are read: of the whole tensor or of a slice,
// whatever a block of their type is (TypeInfo). Where a slice or a read begins or ends inside a
// block, the whole block is converted, and elements are picked.
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

// Fills `out` with the bytes from `offset` on of elements of `width` bytes, at most 8. Calls
// `some(first, count, to)`: it writes at most `count` elements (at least 1) from `first` on, sets
// `count` to their number, and returns 0 or an errno.
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
    } else {  // a part of one
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

// The producer; a derived class says how elements are converted. Reads the blocks that hold the
// elements, and the bytes between two runs if they are fewer than a page. Its memory does not grow
// with the number of runs.
class Elements : public Producer {
 public:
  // `raw` is the tensor, in whole blocks of `type`, which has a to_f32 and outlives this;
  // `elements` counts in elements (elements_of()). `width` is that of the results, in bytes. If
  // `elements` has loops, `raw` is an extent: fill() may read a gap that missing() did not name.
  Elements(Content raw, const TypeInfo& type, Slice elements, std::uint64_t width);

  std::uint64_t size() const override { return slice_.size() * width_; }
  int verify() const override { return raw_.verify(); }
  void missing(std::uint64_t offset, std::uint64_t length,
               std::vector<Extent>& missing) const override;

 protected:
  // Converts `count` elements of type `from`: that of the tensor, in whole blocks, or F32, of
  // values that were picked from a block.
  using Convert = std::function<void(const TypeInfo& from, std::span<const std::byte> blocks,
                                     std::size_t count, std::byte* out)>;
  int fill(std::uint64_t offset, std::span<std::byte> out, const Convert& convert) const;

 private:
  // Runs of one pass of the innermost loop, which are read together.
  struct Runs {
    std::uint64_t begin;  // the element at which the first begins
    std::uint64_t count;
    std::uint64_t skip;  // elements of the first that are not wanted
    std::uint64_t end;   // and where in the last the wanted ones end
  };

  // The runs of `count` elements from `first` on; a single run ends after `window` bytes.
  Runs runs_at(std::uint64_t first, std::uint64_t count, std::uint64_t window) const;
  std::uint64_t elements_in(const Runs& runs) const;
  std::pair<std::uint64_t, std::uint64_t> run_of(const Runs& runs, std::uint64_t i) const;
  ByteRange window_of(const Runs& runs) const;

  Content raw_;
  const TypeInfo& type_;
  Slice slice_;
  std::uint64_t width_;
  Slice::Loop inner_;  // or one pass over a single run
  bool is_dense_;
  std::uint64_t in_window_;  // runs
};

// The first `count` elements of a tensor.
Slice whole_run(std::uint64_t count);

// Whether elements have a form in binary32: they are of a floating type, and their file can have
// its size with a header (a size is a number of 63 bits).
bool has_f32(DType dtype, std::uint64_t count);

// A producer of binary32 values; the arguments are those of Elements.
std::unique_ptr<const Producer> as_f32(Content raw, const TypeInfo& type, Slice elements);

// The recipe of the values of `count` elements; `raw` itself if they are binary32 already.
Content f32_content(Content raw, DType dtype, std::uint64_t count);

// The recipe of the values of a slice: `whole` is the tensor, `ranges` are those of parse_ranges().
// The type has a conversion. Reads only the bytes of the slice where it consists of whole blocks.
Content f32_slice_content(Content whole, DType dtype, std::span<const Range> ranges,
                          std::span<const std::uint64_t> shape);

}  // namespace stfs
