#include "core/recipe/elements.h"
#include "core/recipe/slice.h"
#include "core/values/distribution.h"
#include "core/values/picture/histogram.h"
#include "core/values/picture/png.h"
#include "core/values/stats.h"
#include "fs/view/families.h"
#include "fs/view/stats_cache.h"

#include <algorithm>
#include <cerrno>
#include <thread>
#include <vector>

namespace stfs {
namespace {

// Use few threads, because several files are computed at the same time, and each thread may need
// megabytes.
PassOptions options_for(const std::atomic<bool>& stop) {
  return {.stop = stop, .threads = std::clamp(std::thread::hardware_concurrency(), 1U, 4U)};
}

// The expression of a file, parsed for the file's tensor.
struct PartShown {
  std::vector<Range> ranges;
  Slice elements;
};

// Returns 0, EINVAL, ERANGE, or ENOENT if the part has no elements.
int parse(const ViewFile& file, const Tensor& tensor, PartShown& part) {
  if (const int error = parse_ranges(file.expression, tensor.shape, part.ranges)) return error;
  part.elements = elements_of(part.ranges, tensor.shape);
  return part.elements.size() == 0 ? ENOENT : 0;
}

// Sets `stats` to the statistics of the whole tensor, and passes its values to the sinks, in a
// single pass. Reads nothing if the statistics are known and `sinks` is empty. Returns 0 or an
// errno.
int stats_of(const ViewFile& file, const std::atomic<bool>& stop, ValueStats& stats,
             const std::vector<ValueSink*>& sinks = {}) {
  const Tensor tensor = file.tensor().valued();
  const auto known = file.kept->find(file.number);
  if (known) {
    stats = *known;
    if (sinks.empty()) return 0;
    return see_values(tensor.content(), tensor.dtype, options_for(stop), sinks);
  }
  const int error = value_stats(tensor.content(), tensor.dtype, options_for(stop), stats, sinks);
  if (error == 0) file.kept->keep(file.number, stats);
  return error;
}

}  // namespace

bool has_picture(const Tensor& tensor) {
  return type_info(tensor.dtype).to_f32 != nullptr && tensor.elements() > 0;
}
bool has_picture_and_can_be_sliced(const Tensor& tensor) {
  return has_picture(tensor) && can_be_sliced(tensor);
}
bool has_histogram(const Tensor& tensor) {
  return type_info(tensor.dtype).kind != TypeKind::kComplex && tensor.elements() > 0;
}

int compute_stats(const ViewFile& file, const std::atomic<bool>& stop, std::string& text) {
  ValueStats stats;
  if (const int error = stats_of(file, stop, stats)) return error;
  text = stats_json(stats, file.tensor().shape) + "\n";
  return 0;
}

int png_size(const ViewFile& file, std::uint64_t& bytes) {
  bytes = picture_shape(file.tensor().shape).png_bytes();
  return 0;
}
int compute_png(const ViewFile& file, const std::atomic<bool>& stop, std::string& text) {
  Pixels pixels(picture_shape(file.tensor().shape));
  ValueStats stats;
  if (const int error = stats_of(file, stop, stats, {&pixels})) return error;
  text = pixels.png(stats);
  return 0;
}

int png_slice_size(const ViewFile& file, std::uint64_t& bytes) {
  PartShown part;
  if (const int error = parse(file, file.tensor(), part)) return error;
  bytes = picture_shape(part.elements.shape).png_bytes();
  return 0;
}
int compute_png_slice(const ViewFile& file, const std::atomic<bool>& stop, std::string& text) {
  const Tensor tensor = file.tensor().valued();
  PartShown part;
  if (const int error = parse(file, tensor, part)) return error;
  ValueStats stats;
  if (const int error = stats_of(file, stop, stats)) return error;
  Pixels pixels(picture_shape(part.elements.shape));
  Slice bytes;
  const bool is_whole_blocks =
      slice_of(part.ranges, type_info(tensor.dtype), tensor.shape, bytes) == 0;
  const Content values = is_whole_blocks ? slice_content(bytes, tensor.content())
                                         : f32_slice_content(tensor.content(), tensor.dtype,
                                                             part.ranges, tensor.shape);
  const DType dtype = is_whole_blocks ? tensor.dtype : DType::kF32;
  if (const int error = see_values(values, dtype, options_for(stop), {&pixels})) return error;
  text = pixels.png(stats);
  return 0;
}

int compute_histogram(const ViewFile& file, const std::atomic<bool>& stop, std::string& text) {
  const Tensor tensor = file.tensor().valued();
  Distribution distribution;
  if (const int error =
          value_distribution(tensor.content(), tensor.dtype, options_for(stop), distribution)) {
    return error;
  }
  file.kept->keep(file.number, distribution.stats);
  text = histogram_svg(tensor.name, tensor.dtype, tensor.shape, distribution);
  return 0;
}

}  // namespace stfs
