#include "core/recipe/slice_f32.h"

#include "core/recipe/convert.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace stfs {
namespace {

class Float32Slice : public Producer {
 public:
  Float32Slice(Content raw, const TypeInfo& type, Slice elements)
      : raw_(std::move(raw)), type_(type), slice_(std::move(elements)), inner_(slice_.inner()) {
    is_dense_ = type_.offset_of(inner_.stride - slice_.run) < kPage;
    in_window_ = std::max<std::uint64_t>(1, type_.elements_in(kWindow) / inner_.stride);
  }

  std::uint64_t size() const override { return slice_.size() * sizeof(float); }

  int verify() const override { return raw_.verify(); }

  void missing(std::uint64_t offset, std::uint64_t length,
               std::vector<Extent>& missing) const override {
    const std::uint64_t end = offset + length;
    while (offset < end) {
      const Runs runs = runs_at(offset, end - offset);
      const auto [begin, bytes] = window_of(runs);
      const auto found = raw_.missing(begin, bytes);
      missing.insert(missing.end(), found.begin(), found.end());
      const std::uint64_t elements = (runs.count - 1) * slice_.run + runs.end - runs.skip;
      offset = offset / sizeof(float) * sizeof(float) + elements * sizeof(float);
    }
  }

  int produce(std::uint64_t offset, std::span<std::byte> out) const override {
    std::vector<std::byte> window;
    std::vector<float> values;
    while (!out.empty()) {
      const Runs runs = runs_at(offset, out.size());
      std::uint64_t begin = 0;  // of the window, an element
      if (const int error = read(runs, window, begin)) return error;
      for (std::uint64_t i = 0; i < runs.count; ++i) {
        const auto [first, last] = run_of(runs, i);
        const std::uint64_t lead = first % type_.block_elements;
        const std::uint64_t whole_blocks = (lead + last - first + type_.block_elements - 1) /
                                           type_.block_elements * type_.block_elements;
        values.resize(static_cast<std::size_t>(whole_blocks));
        const auto from = static_cast<std::size_t>(type_.offset_of(first - lead - begin));
        type_.to_f32(window.data() + from, values.size(), values.data());
        const auto skip = static_cast<std::size_t>(lead * sizeof(float) + offset % sizeof(float));
        const auto bytes =
            std::as_bytes(std::span(values).first(lead + last - first)).subspan(skip);
        const std::size_t take = std::min(bytes.size(), out.size());
        std::memcpy(out.data(), bytes.data(), take);
        out = out.subspan(take);
        offset += take;
      }
    }
    return 0;
  }

 private:
  static constexpr std::uint64_t kPage = 4096;
  static constexpr std::uint64_t kWindow = 32 << 10;  // bytes read at a time

  // Runs of one pass of the innermost loop, which are read together.
  struct Runs {
    std::uint64_t begin;  // the element at which the first begins
    std::uint64_t count;
    std::uint64_t skip;  // elements of the first that are not wanted
    std::uint64_t end;   // and where in the last the wanted ones end
  };

  Runs runs_at(std::uint64_t offset, std::uint64_t bytes) const {
    const std::uint64_t first = offset / sizeof(float);
    const std::uint64_t run = first / slice_.run;
    const std::uint64_t in_pass = run % inner_.count;
    Runs runs{slice_.pass_begin(run / inner_.count) + in_pass * inner_.stride, 1,
              first % slice_.run, 0};
    // Counted from the beginning of the first run.
    const std::uint64_t wanted =
        runs.skip + (offset % sizeof(float) + bytes + sizeof(float) - 1) / sizeof(float);
    if (is_dense_) {
      runs.count =
          std::min({(wanted + slice_.run - 1) / slice_.run, inner_.count - in_pass, in_window_});
    }
    runs.end = std::min(slice_.run, wanted - (runs.count - 1) * slice_.run);
    if (runs.count == 1) {
      runs.end = std::min(runs.end, runs.skip + type_.elements_in(kWindow));
    }
    return runs;
  }

  // The wanted elements of run `i`.
  std::pair<std::uint64_t, std::uint64_t> run_of(const Runs& runs, std::uint64_t i) const {
    const std::uint64_t begin = runs.begin + i * inner_.stride;
    return {begin + (i == 0 ? runs.skip : 0),
            begin + (i + 1 == runs.count ? runs.end : slice_.run)};
  }

  // The bytes of the blocks that cover the runs.
  ByteRange window_of(const Runs& runs) const {
    const std::uint64_t end = run_of(runs, runs.count - 1).second + type_.block_elements - 1;
    const std::uint64_t begin = type_.offset_of(run_of(runs, 0).first);
    return {begin, type_.offset_of(end) - begin};
  }

  // Fills `window` with them, which begin at element `begin`.
  int read(const Runs& runs, std::vector<std::byte>& window, std::uint64_t& begin) const {
    const ByteRange range = window_of(runs);
    begin = type_.elements_in(range.offset);
    window.resize(static_cast<std::size_t>(range.length));
    return raw_.copy_unverified(range.offset, window);
  }

  Content raw_;
  const TypeInfo& type_;
  Slice slice_;
  Slice::Loop inner_;  // or one pass over a single run
  bool is_dense_ = false;
  std::uint64_t in_window_ = 1;  // runs
};

}  // namespace

Content f32_slice_content(Content whole, DType dtype, std::span<const Range> ranges,
                          std::span<const std::uint64_t> shape) {
  const TypeInfo& type = type_info(dtype);
  Slice elements = elements_of(ranges, shape);
  Slice bytes;
  if (slice_of(ranges, type, shape, bytes) == 0) {
    return f32_content(slice_content(bytes, std::move(whole)), dtype, elements.size());
  }
  Content content;
  content.production(as_f32_slice(std::move(whole), type, std::move(elements)));
  return content;
}

std::unique_ptr<const Producer> as_f32_slice(Content whole, const TypeInfo& type, Slice elements) {
  return std::make_unique<Float32Slice>(std::move(whole), type, std::move(elements));
}

}  // namespace stfs
