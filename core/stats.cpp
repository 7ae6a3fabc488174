#include "core/stats.h"

#include "core/convert.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace stfs {
namespace {

// Collects chunk by chunk. The means and squared deviations of chunks are combined as in Chan,
// Golub and LeVeque, "Updating formulae and a pairwise algorithm" (1979), so that neither a large
// mean nor a large count costs precision.
class Collector {
 public:
  template <class T>
  void add(std::span<const T> values) {
    std::uint64_t finite = 0;
    double sum = 0;
    for (const T value : values) {
      const auto x = static_cast<double>(value);
      if (!std::isfinite(x)) {
        ++(std::isnan(x) ? stats_.nan : stats_.inf);
        continue;
      }
      stats_.zeros += x == 0 ? 1 : 0;
      min_ = std::min(min_, x);
      max_ = std::max(max_, x);
      sum += x;
      ++finite;
    }
    stats_.count += values.size();
    if (finite == 0) return;
    const double mean = sum / static_cast<double>(finite);
    double squares = 0;
    for (const T value : values) {
      const auto x = static_cast<double>(value);
      if (std::isfinite(x)) squares += (x - mean) * (x - mean);
    }
    const auto before = static_cast<double>(finite_);
    const auto added = static_cast<double>(finite);
    const double difference = mean - mean_;
    mean_ += difference * added / (before + added);
    squares_ += squares + difference * difference * before * added / (before + added);
    finite_ += finite;
  }

  void add_complex(std::span<const float> parts) {
    for (std::size_t i = 0; i + 1 < parts.size(); i += 2) {
      const float real = parts[i];
      const float imaginary = parts[i + 1];
      ++stats_.count;
      if (std::isnan(real) || std::isnan(imaginary)) {
        ++stats_.nan;
      } else if (std::isinf(real) || std::isinf(imaginary)) {
        ++stats_.inf;
      } else if (real == 0 && imaginary == 0) {
        ++stats_.zeros;
      }
    }
  }

  ValueStats result() const {
    ValueStats stats = stats_;
    if (finite_ == 0) return stats;
    stats.min = min_;
    stats.max = max_;
    stats.mean = mean_;
    stats.std = std::sqrt(squares_ / static_cast<double>(finite_));
    return stats;
  }

 private:
  ValueStats stats_;
  std::uint64_t finite_ = 0;
  double min_ = std::numeric_limits<double>::infinity();
  double max_ = -std::numeric_limits<double>::infinity();
  double mean_ = 0;
  double squares_ = 0;  // sum of squared deviations from the mean
};

// A whole number of elements of each type, of sub-byte ones too.
constexpr std::size_t kChunk = 192 << 10;

template <class T>
void add_as(Collector& collector, std::span<const std::byte> bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  collector.add(std::span<const T>(values));
}

void add_bytes(Collector& collector, DType dtype, std::span<const std::byte> bytes) {
  switch (dtype) {
    case DType::kBool: {
      std::vector<std::uint8_t> values(bytes.size());
      std::ranges::transform(bytes, values.begin(),
                             [](std::byte b) -> std::uint8_t { return b == std::byte{0} ? 0 : 1; });
      return collector.add(std::span<const std::uint8_t>(values));
    }
    case DType::kU8:
      return add_as<std::uint8_t>(collector, bytes);
    case DType::kI8:
      return add_as<std::int8_t>(collector, bytes);
    case DType::kU16:
      return add_as<std::uint16_t>(collector, bytes);
    case DType::kI16:
      return add_as<std::int16_t>(collector, bytes);
    case DType::kU32:
      return add_as<std::uint32_t>(collector, bytes);
    case DType::kI32:
      return add_as<std::int32_t>(collector, bytes);
    case DType::kU64:
      return add_as<std::uint64_t>(collector, bytes);
    case DType::kI64:
      return add_as<std::int64_t>(collector, bytes);
    case DType::kF64:
      return add_as<double>(collector, bytes);
    case DType::kC64: {
      std::vector<float> parts(bytes.size() / sizeof(float));
      convert_to_f32(DType::kF32, bytes, parts);
      return collector.add_complex(parts);
    }
    default: {
      std::vector<float> values(bytes.size() * 8 / dtype_bits(dtype));
      convert_to_f32(dtype, bytes, values);
      return collector.add(std::span<const float>(values));
    }
  }
}

}  // namespace

int value_stats(const Tensor& tensor, const std::atomic<bool>& stop, ValueStats& stats,
                const Progress& progress) {
  Collector collector;
  std::vector<std::byte> buffer(
      static_cast<std::size_t>(std::min<std::uint64_t>(kChunk, tensor.length)));
  for (std::uint64_t offset = 0; offset < tensor.length;) {
    if (stop.load(std::memory_order_relaxed)) return EINTR;
    const auto length =
        static_cast<std::size_t>(std::min<std::uint64_t>(kChunk, tensor.length - offset));
    const std::span<std::byte> chunk = std::span(buffer).first(length);
    if (const int error = tensor.source->file.read(chunk, tensor.offset + offset)) return error;
    add_bytes(collector, tensor.dtype, chunk);
    if (progress) progress(length);
    offset += length;
  }
  stats = collector.result();
  return 0;
}

std::string stats_json(const ValueStats& stats) {
  const auto number = [](const std::optional<double>& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  const nlohmann::ordered_json json{{"count", stats.count},     {"min", number(stats.min)},
                                    {"max", number(stats.max)}, {"mean", number(stats.mean)},
                                    {"std", number(stats.std)}, {"zeros", stats.zeros},
                                    {"nan", stats.nan},         {"inf", stats.inf}};
  return json.dump();
}

}  // namespace stfs
