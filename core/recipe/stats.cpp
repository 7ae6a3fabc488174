#include "core/recipe/stats.h"

#include "core/recipe/arrival.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace stfs {
namespace {

// Collects statistics chunk by chunk. Chan, Golub and LeVeque, "Updating formulae and a pairwise
// algorithm" (1979), combine the means and squared deviations of chunks without losing precision to
// a large mean or a large count.
//
// Squares of binary64 values outside 2^-400 to 2^400 could overflow or vanish. Such a chunk is
// multiplied by 2^-600 or 2^600, which is exact, and its moments keep that scale. combine()
// converts the moments of the smaller scale to the larger one; the bits lost lie far below the last
// bit of the result.
class Collector {
 public:
  template <class T>
  void add(std::span<const T> values) {
    std::uint64_t finite = 0;
    double sum = 0;
    double min = std::numeric_limits<double>::infinity();
    double max = -min;
    for (const T value : values) {
      const auto x = static_cast<double>(value);
      if (!std::isfinite(x)) {
        ++(std::isnan(x) ? stats_.nan : stats_.inf);
        continue;
      }
      stats_.zeros += x == 0 ? 1 : 0;
      min = std::min(min, x);
      max = std::max(max, x);
      sum += x;
      ++finite;
    }
    stats_.count += values.size();
    if (finite == 0) return;
    min_ = std::min(min_, min);
    max_ = std::max(max_, max);
    const int exponent = exponent_for(std::max(-min, max));
    const double scale = std::ldexp(1, -exponent);
    if (exponent != 0) {
      sum = 0;
      for (const T value : values) {
        const auto x = static_cast<double>(value);
        if (std::isfinite(x)) sum += x * scale;
      }
    }
    const auto count = static_cast<double>(finite);
    const double mean = sum / count;
    double squares = 0;
    double residue = 0;  // sum of deviations: corrects the rounding error of the mean
    for (const T value : values) {
      const auto x = static_cast<double>(value);
      const double deviation = x * scale - mean;
      if (!std::isfinite(x)) continue;
      squares += deviation * deviation;
      residue += deviation;
    }
    combine({exponent, finite, mean + residue / count,
             std::max(0.0, squares - residue * residue / count)});
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
    const auto& [exponent, finite, mean, squares] = total_;
    if (finite == 0) return stats;
    stats.min = min_;
    stats.max = max_;
    // Rounding must not move the mean out of [min, max] or std over its bound, half their distance.
    stats.mean = std::clamp(std::ldexp(mean, exponent), min_, max_);
    stats.std = std::min(std::ldexp(std::sqrt(squares / static_cast<double>(finite)), exponent),
                         max_ / 2 - min_ / 2);
    return stats;
  }

 private:
  static constexpr int kScale = 600;
  struct Moments {
    int exponent = -kScale;  // the unit of mean is 2^exponent; that of squares is its square
    std::uint64_t finite = 0;
    double mean = 0;
    double squares = 0;  // sum of squared deviations from the mean
  };

  // The scale of a chunk, by the largest absolute value in it.
  static int exponent_for(double largest) {
    if (largest > 0x1p400) return kScale;
    return largest < 0x1p-400 ? -kScale : 0;
  }
  static void rescale(Moments& moments, int exponent) {
    moments.mean = std::ldexp(moments.mean, moments.exponent - exponent);
    moments.squares = std::ldexp(moments.squares, 2 * (moments.exponent - exponent));
    moments.exponent = exponent;
  }
  void combine(Moments chunk) {
    const int exponent = std::max(total_.exponent, chunk.exponent);
    rescale(total_, exponent);
    rescale(chunk, exponent);
    const auto before = static_cast<double>(total_.finite);
    const auto added = static_cast<double>(chunk.finite);
    const double difference = chunk.mean - total_.mean;
    total_.mean += difference * added / (before + added);
    total_.squares += chunk.squares + difference * difference * before * added / (before + added);
    total_.finite += chunk.finite;
  }

  ValueStats stats_;
  double min_ = std::numeric_limits<double>::infinity();
  double max_ = -std::numeric_limits<double>::infinity();
  Moments total_;
};

constexpr std::size_t kChunk = 192 << 10;  // bytes read at a time

using Add = void (*)(Collector&, std::span<const std::byte>);

template <class T>
void add_as(Collector& collector, std::span<const std::byte> bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  collector.add(std::span<const T>(values));
}

// For elements of 1, 2, 4 and 8 bytes.
constexpr Add kAddUnsigned[] = {add_as<std::uint8_t>, add_as<std::uint16_t>, add_as<std::uint32_t>,
                                add_as<std::uint64_t>};
constexpr Add kAddSigned[] = {add_as<std::int8_t>, add_as<std::int16_t>, add_as<std::int32_t>,
                              add_as<std::int64_t>};

void add_bytes(Collector& collector, const TypeInfo& info, std::span<const std::byte> bytes) {
  switch (info.kind) {
    case TypeKind::kBool: {
      std::vector<std::uint8_t> values(bytes.size());
      std::ranges::transform(bytes, values.begin(),
                             [](std::byte b) -> std::uint8_t { return b == std::byte{0} ? 0 : 1; });
      return collector.add(std::span<const std::uint8_t>(values));
    }
    case TypeKind::kUnsigned:
      return kAddUnsigned[std::countr_zero(info.block_bytes)](collector, bytes);
    case TypeKind::kSigned:
      return kAddSigned[std::countr_zero(info.block_bytes)](collector, bytes);
    case TypeKind::kComplex: {
      std::vector<float> parts(bytes.size() / sizeof(float));
      std::memcpy(parts.data(), bytes.data(), parts.size() * sizeof(float));
      return collector.add_complex(parts);
    }
    case TypeKind::kFloat:
      if (info.bits() == 64) return add_as<double>(collector, bytes);  // to_f32 would round F64
      [[fallthrough]];
    case TypeKind::kQuantized: {
      std::vector<float> values(static_cast<std::size_t>(info.elements_in(bytes.size())));
      info.to_f32(bytes.data(), values.size(), values.data());
      return collector.add(std::span<const float>(values));
    }
  }
}

}  // namespace

int value_stats(const Content& content, DType dtype, const std::atomic<bool>& stop,
                ValueStats& stats, const Progress& progress) {
  Collector collector;
  const TypeInfo& info = type_info(dtype);
  const std::uint64_t whole_blocks = kChunk / info.block_bytes * info.block_bytes;
  const std::uint64_t size = content.size();
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(whole_blocks, size)));
  SequentialReader reader(content, &stop);
  for (std::uint64_t offset = 0; offset < size;) {
    if (stop.load(std::memory_order_relaxed)) return EINTR;
    const auto length = static_cast<std::size_t>(std::min(whole_blocks, size - offset));
    const std::span<std::byte> chunk = std::span(buffer).first(length);
    if (const int error = reader.copy_unverified(offset, chunk)) {
      const int changed = content.verify();
      return changed != 0 ? changed : error;
    }
    add_bytes(collector, info, chunk);
    if (progress) progress(length);
    offset += length;
  }
  stats = collector.result();
  return content.verify();
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
