#include "core/values/difference.h"

#include "core/values/moments.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

namespace stfs {
namespace {

constexpr std::uint64_t kBlock = 32 * kRun;  // elements; the same as in value_stats()

// Compares a run that contains values that are not finite, because the vector loops only handle
// finite values.
template <class T>
RunDifferences differences_of_some(std::span<const T> a, std::span<const double> b,
                                   std::uint64_t first, ValueDifference& found) {
  RunDifferences run;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto x = static_cast<double>(a[i]);
    const double y = b[i];
    if (std::isfinite(x) && std::isfinite(y)) {
      run.squares += (x - y) * (x - y);
      run.norm += y * y;
      run.largest = std::max(run.largest, std::abs(x - y));
      run.equal += x == y ? 1 : 0;
    } else if (x == y || (std::isnan(x) && std::isnan(y))) {
      ++run.equal;
    } else {
      if (found.unlike == 0 || first + i < found.first_unlike) found.first_unlike = first + i;
      ++found.unlike;
      found.nan_in_one += std::isnan(x) || std::isnan(y) ? 1 : 0;
    }
  }
  return run;
}

template <class T>
std::uint64_t place_of(double largest, std::span<const T> a, std::span<const double> b) {
  std::size_t i = 0;
  while (i + 1 < a.size() && std::abs(static_cast<double>(a[i]) - b[i]) != largest) ++i;
  return i;
}

void add_largest(ValueDifference& found, double largest, std::uint64_t place) {
  if (largest < found.largest || (largest == found.largest && place >= found.first_largest)) return;
  found.largest = largest;
  found.first_largest = place;
}

}  // namespace

std::optional<double> ValueDifference::distance() const {
  if (unlike > 0) return std::nullopt;
  if (squares == 0) return largest == 0 ? std::optional(0.0) : std::nullopt;
  if (norm == 0 || !std::isfinite(squares) || !std::isfinite(norm)) return std::nullopt;
  return std::sqrt(squares) / std::sqrt(norm);
}

double ValueDifference::equal_share() const {
  return elements == 0 ? 1 : static_cast<double>(equal) / static_cast<double>(elements);
}

void DifferenceSink::Sums::add(const Sums& other) {
  elements += other.elements;
  equal += other.equal;
  squares += other.squares;
  norm += other.norm;
}

DifferenceSink::DifferenceSink(const Content& b, DType dtype, const PassOptions& options,
                               ValueSink* values_of_b)
    : b_(b),
      dtype_(dtype),
      options_(options),
      values_of_b_(values_of_b),
      is_here_(is_here(b)),
      lanes_(std::max(1U, options.threads)),
      in_order_(b, &options.stop) {}

bool DifferenceSink::read(Lane& lane, std::uint64_t first, std::size_t count) {
  if (error_ != 0) return false;
  const TypeInfo& info = type_info(dtype_);
  const std::uint64_t block = first / kBlock;
  if (lane.block != block) {
    const std::uint64_t offset = info.offset_of(block * kBlock);
    lane.bytes.resize(
        static_cast<std::size_t>(std::min(info.offset_of(kBlock), b_.size() - offset)));
    int error = 0;
    if (is_here_) {
      error = fetch_and_copy(b_, offset, lane.bytes, &options_.stop);
    } else {
      const std::lock_guard lock(mutex_);
      error = in_order_.copy_unverified(offset, lane.bytes);  // fetches the next bytes in advance
    }
    if (error != 0) {
      error_ = error;
      return false;
    }
    lane.block = block;
    if (options_.progress) options_.progress(lane.bytes.size());
  }
  lane.values.resize(count);
  const std::uint64_t skip = info.offset_of(first - block * kBlock);
  to_doubles(dtype_, std::span(lane.bytes).subspan(static_cast<std::size_t>(skip)), lane.values);
  return true;
}

template <class T>
void DifferenceSink::compare(std::uint64_t first, std::span<const T> a, unsigned thread) {
  Lane& lane = lanes_[thread];
  if (!read(lane, first, a.size())) return;
  const std::span<const double> b = lane.values;
  if (values_of_b_ != nullptr) values_of_b_->see(first, b, thread);
  RunDifferences run = differences_of(a, b);
  if (!std::isfinite(run.squares) || !std::isfinite(run.norm)) {
    run = differences_of_some(a, b, first, lane.found);
  }
  if (run.largest > 0 && run.largest >= lane.found.largest) {
    add_largest(lane.found, run.largest, first + place_of(run.largest, a, b));
  }
  const std::lock_guard lock(mutex_);
  sum_.add(first / kRun, {a.size(), run.equal, run.squares, run.norm});
}

void DifferenceSink::see(std::uint64_t first, std::span<const float> values, unsigned thread) {
  compare(first, values, thread);
}
void DifferenceSink::see(std::uint64_t first, std::span<const double> values, unsigned thread) {
  compare(first, values, thread);
}

int DifferenceSink::result(ValueDifference& difference) const {
  if (error_ == EINTR) return EINTR;
  if (const int changed = b_.verify()) return changed;
  if (error_ != 0) return error_;
  const Sums sums = sum_.result();
  difference = {};
  difference.elements = sums.elements;
  difference.equal = sums.equal;
  difference.squares = sums.squares;
  difference.norm = sums.norm;
  for (const Lane& lane : lanes_) {
    const ValueDifference& found = lane.found;
    if (found.unlike > 0 &&
        (difference.unlike == 0 || found.first_unlike < difference.first_unlike)) {
      difference.first_unlike = found.first_unlike;
    }
    difference.unlike += found.unlike;
    difference.nan_in_one += found.nan_in_one;
    if (found.largest > 0) add_largest(difference, found.largest, found.first_largest);
  }
  return 0;
}

int first_difference(const Content& a, const Content& b, const PassOptions& options,
                     std::optional<std::uint64_t>& at, bool& is_in_b) {
  SequentialReader reader_a(a, &options.stop);
  SequentialReader reader_b(b, &options.stop);
  constexpr std::uint64_t kChunk = 256 << 10;  // bytes
  std::vector<std::byte> chunk_a(static_cast<std::size_t>(std::min(kChunk, a.size())));
  std::vector<std::byte> chunk_b(chunk_a.size());
  at.reset();
  for (std::uint64_t offset = 0; offset < a.size();) {
    if (options.stop.load(std::memory_order_relaxed)) return EINTR;
    const auto length = static_cast<std::size_t>(std::min(kChunk, a.size() - offset));
    const std::span in_a = std::span(chunk_a).first(length);
    const std::span in_b = std::span(chunk_b).first(length);
    is_in_b = false;
    if (const int error = reader_a.copy(offset, in_a)) return error;
    is_in_b = true;
    if (const int error = reader_b.copy(offset, in_b)) return error;
    if (std::memcmp(in_a.data(), in_b.data(), length) != 0) {
      at =
          offset + static_cast<std::uint64_t>(std::ranges::mismatch(in_a, in_b).in1 - in_a.begin());
      return 0;
    }
    if (options.progress) options.progress(length);
    offset += length;
  }
  return 0;
}

}  // namespace stfs
