#include "core/recipe/slice_f32.h"

#include "core/recipe/convert.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

namespace stfs {
namespace {

// The fewest elements that fill whole bytes: F4 in pairs, F6 in fours.
struct Block {
  std::uint64_t elements;
  std::uint64_t bytes;
};
Block block_of(DType dtype) {
  const unsigned bits = dtype_bits(dtype);
  const std::uint64_t elements = 8 / std::gcd(bits, 8U);
  return {elements, elements * bits / 8};
}

class Float32Slice : public Producer {
 public:
  Float32Slice(Content raw, DType dtype, Slice elements)
      : raw_(std::move(raw)),
        dtype_(dtype),
        block_(block_of(dtype)),
        slice_(std::move(elements)),
        inner_(slice_.loops.empty() ? Slice::Loop{1, slice_.run} : slice_.loops.back()) {
    is_dense_ = bytes_of(inner_.stride - slice_.run) < kPage;
    in_window_ = std::max<std::uint64_t>(1, kWindow / std::max(kOne, bytes_of(inner_.stride)));
  }

  std::uint64_t size() const override { return slice_.size() * sizeof(float); }

  int verify() const override { return raw_.verify(); }

  int produce(std::uint64_t offset, std::span<std::byte> out) const override {
    std::vector<std::byte> window;
    std::vector<float> values;
    while (!out.empty()) {
      const Runs runs = runs_at(offset, out.size());
      std::uint64_t begin = 0;  // of the window, an element
      if (const int error = read(runs, window, begin)) return error;
      for (std::uint64_t i = 0; i < runs.count; ++i) {
        const auto [first, last] = run_of(runs, i);
        const std::uint64_t lead = first % block_.elements;
        values.resize(static_cast<std::size_t>(lead + last - first));
        const auto from = static_cast<std::size_t>((first - lead - begin) / block_.elements);
        convert_to_f32(dtype_, std::span(window).subspan(from * block_.bytes), values);
        const auto skip = static_cast<std::size_t>(lead * sizeof(float) + offset % sizeof(float));
        const auto bytes = std::as_bytes(std::span(values)).subspan(skip);
        const std::size_t take = std::min(bytes.size(), out.size());
        std::memcpy(out.data(), bytes.data(), take);
        out = out.subspan(take);
        offset += take;
      }
    }
    return 0;
  }

 private:
  static constexpr std::uint64_t kOne = 1;
  static constexpr std::uint64_t kPage = 4096;
  static constexpr std::uint64_t kWindow = 32 << 10;  // bytes read at a time

  // Runs of one pass of the innermost loop, which are read together.
  struct Runs {
    std::uint64_t begin;  // the element at which the first begins
    std::uint64_t count;
    std::uint64_t skip;  // elements of the first that are not wanted
    std::uint64_t end;   // and where in the last the wanted ones end
  };

  std::uint64_t bytes_of(std::uint64_t elements) const {
    return elements / block_.elements * block_.bytes;
  }

  // Where the given pass of the innermost loop begins.
  std::uint64_t position(std::uint64_t pass) const {
    std::uint64_t at = slice_.begin;
    for (std::size_t i = slice_.loops.empty() ? 0 : slice_.loops.size() - 1; i-- > 0;) {
      at += pass % slice_.loops[i].count * slice_.loops[i].stride;
      pass /= slice_.loops[i].count;
    }
    return at;
  }

  Runs runs_at(std::uint64_t offset, std::size_t bytes) const {
    const std::uint64_t first = offset / sizeof(float);
    const std::uint64_t run = first / slice_.run;
    const std::uint64_t in_pass = run % inner_.count;
    Runs runs{position(run / inner_.count) + in_pass * inner_.stride, 1, first % slice_.run, 0};
    // Counted from the beginning of the first run.
    const std::uint64_t wanted =
        runs.skip + (offset % sizeof(float) + bytes + sizeof(float) - 1) / sizeof(float);
    if (is_dense_) {
      runs.count =
          std::min({(wanted + slice_.run - 1) / slice_.run, inner_.count - in_pass, in_window_});
    }
    runs.end = std::min(slice_.run, wanted - (runs.count - 1) * slice_.run);
    if (runs.count == 1) {
      const std::uint64_t most = kWindow / block_.bytes * block_.elements;
      runs.end = std::min(runs.end, runs.skip + most);
    }
    return runs;
  }

  // The wanted elements of run `i`.
  std::pair<std::uint64_t, std::uint64_t> run_of(const Runs& runs, std::uint64_t i) const {
    const std::uint64_t begin = runs.begin + i * inner_.stride;
    return {begin + (i == 0 ? runs.skip : 0),
            begin + (i + 1 == runs.count ? runs.end : slice_.run)};
  }

  // Fills `window` with the blocks that cover the runs.
  int read(const Runs& runs, std::vector<std::byte>& window, std::uint64_t& begin) const {
    const std::uint64_t first = run_of(runs, 0).first / block_.elements;
    const std::uint64_t last =
        (run_of(runs, runs.count - 1).second + block_.elements - 1) / block_.elements;
    begin = first * block_.elements;
    window.resize(static_cast<std::size_t>((last - first) * block_.bytes));
    return raw_.copy_unverified(first * block_.bytes, window);
  }

  Content raw_;
  DType dtype_;
  Block block_;
  Slice slice_;
  Slice::Loop inner_;  // or one pass over a single run
  bool is_dense_ = false;
  std::uint64_t in_window_ = 1;  // runs
};

}  // namespace

std::unique_ptr<const Producer> as_f32_slice(Content raw, DType dtype, Slice elements) {
  return std::make_unique<Float32Slice>(std::move(raw), dtype, std::move(elements));
}

}  // namespace stfs
