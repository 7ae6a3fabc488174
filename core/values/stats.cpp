#include "core/values/stats.h"

#include "core/values/moments.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

namespace stfs {
namespace {

// If squares of values could overflow or underflow, their moments use the unit 2^600 or 2^-600. A
// multiplication by it is exact, or loses only bits far below the last bit of the result.
constexpr int kScale = 600;

// Returns the scale of a run with this largest absolute value.
int exponent_for(double largest) {
  if (largest > 0x1p400) return kScale;
  return largest < 0x1p-400 ? -kScale : 0;
}

// Statistics of a part of the values. Parts are combined with the formulas of Chan, Golub and
// LeVeque, "Updating formulae and a pairwise algorithm" (1979), which lose no precision to a large
// mean or a large count.
struct Summary {
  ValueStats counts;  // without min, max, mean and std
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  // The unit of `mean` is 2^exponent, and the unit of `squares` is the square of it.
  int exponent = -kScale;
  std::uint64_t finite = 0;
  double mean = 0;
  double squares = 0;  // sum of squared deviations from the mean

  void rescale(int to) {
    if (to == exponent) return;
    mean = std::ldexp(mean, exponent - to);
    squares = std::ldexp(squares, 2 * (exponent - to));
    exponent = to;
  }

  void add(Summary other) {
    counts.count += other.counts.count;
    counts.zeros += other.counts.zeros;
    counts.nan += other.counts.nan;
    counts.inf += other.counts.inf;
    if (other.finite == 0) return;
    min = std::min(min, other.min);
    max = std::max(max, other.max);
    const int larger = std::max(exponent, other.exponent);
    rescale(larger);
    other.rescale(larger);
    const auto before = static_cast<double>(finite);
    const auto added = static_cast<double>(other.finite);
    const double difference = other.mean - mean;
    mean += difference * added / (before + added);
    squares += other.squares + difference * difference * before * added / (before + added);
    finite += other.finite;
  }

  ValueStats result() const {
    ValueStats stats = counts;
    if (finite == 0) return stats;
    // Adding 0.0 turns -0 into 0. Otherwise the sign of zero would depend on the order of the
    // values.
    stats.min = min + 0.0;
    stats.max = max + 0.0;
    // Rounding must not move the mean out of [min, max], nor std above its maximum of half their
    // distance.
    stats.mean = std::clamp(std::ldexp(mean, exponent), min, max) + 0.0;
    stats.std = std::min(std::ldexp(std::sqrt(squares / static_cast<double>(finite)), exponent),
                         max / 2 - min / 2);
    return stats;
  }
};

// Summarises a run of finite values.
template <class T>
Summary summary_of_finite(std::span<const T> values, RunSums sums) {
  Summary part;
  part.counts.zeros = sums.zeros;
  part.min = sums.min;
  part.max = sums.max;
  part.finite = values.size();
  part.exponent = 0;
  const auto count = static_cast<double>(values.size());
  const auto set_moments = [&](auto scaled) {
    const double mean = sums.sum / count;
    const RunDeviations deviations = deviations_of(scaled, mean);
    // The sum of the deviations corrects the rounding of the mean.
    part.mean = mean + deviations.sum / count;
    part.squares = std::max(0.0, deviations.squares - deviations.sum * deviations.sum / count);
  };
  if constexpr (std::is_same_v<T, double>) {
    part.exponent = exponent_for(std::max(-sums.min, sums.max));
    if (part.exponent != 0) {
      std::vector<double> scaled(values.begin(), values.end());
      for (double& value : scaled) value *= std::ldexp(1, -part.exponent);
      sums = sums_of(std::span<const double>(scaled));
      set_moments(std::span<const double>(scaled));
      return part;
    }
  }
  set_moments(values);
  return part;
}

// The positions for ValueStats that one thread has found. A thread sees the runs in ascending
// order.
struct Places {
  std::vector<std::uint64_t> nan, inf;
  std::optional<std::uint64_t> largest;
  double magnitude = 0;  // the absolute value of the element `largest`

  static void add(std::vector<std::uint64_t>& places, std::uint64_t place) {
    if (places.size() < kPlaces) places.push_back(place);
  }
  // Adds a run in which `largest_of_run` is the largest magnitude of a finite value.
  template <class T>
  void add_largest(std::span<const T> values, double largest_of_run, std::uint64_t first) {
    if (largest && largest_of_run <= magnitude) return;
    magnitude = largest_of_run;
    largest =
        first +
        static_cast<std::uint64_t>(
            std::ranges::find_if(
                values, [&](T x) { return std::abs(static_cast<double>(x)) == largest_of_run; }) -
            values.begin());
  }
  void add(const Places& other) {
    for (const auto member : {&Places::nan, &Places::inf}) {
      std::vector<std::uint64_t>& places = this->*member;
      places.insert(places.end(), (other.*member).begin(), (other.*member).end());
      std::ranges::sort(places);
      places.resize(std::min(places.size(), kPlaces));
    }
    if (!other.largest || (largest && other.magnitude < magnitude)) return;
    if (largest && other.magnitude == magnitude && *other.largest > *largest) return;
    largest = other.largest;
    magnitude = other.magnitude;
  }
};

template <class T>
Summary summary_of(std::span<const T> values, std::uint64_t first, Places& places) {
  const RunSums sums = sums_of(values);
  Summary part;
  if (std::isfinite(sums.sum)) {
    part = summary_of_finite(values, sums);
  } else {
    std::vector<T> finite(values.size() + 64);
    ValueStats counts;
    finite.resize(copy_finite(values, std::span(finite), counts.nan));
    counts.inf = values.size() - finite.size() - counts.nan;
    const bool wants_places = (counts.nan > 0 && places.nan.size() < kPlaces) ||
                              (counts.inf > 0 && places.inf.size() < kPlaces);
    for (std::size_t i = 0; wants_places && i < values.size(); ++i) {
      if (std::isnan(values[i])) Places::add(places.nan, first + i);
      if (std::isinf(values[i])) Places::add(places.inf, first + i);
    }
    if (!finite.empty()) {
      part = summary_of_finite(std::span<const T>(finite), sums_of(std::span<const T>(finite)));
    }
    part.counts.nan = counts.nan;
    part.counts.inf = counts.inf;
  }
  if (part.finite > 0) places.add_largest(values, std::max(-part.min, part.max), first);
  part.counts.count = values.size();
  return part;
}

Summary summary_of_complex(std::span<const float> parts, std::uint64_t first, Places& places) {
  Summary part;
  ValueStats& counts = part.counts;
  for (std::size_t i = 0; i + 1 < parts.size(); i += 2) {
    const float real = parts[i];
    const float imaginary = parts[i + 1];
    ++counts.count;
    if (std::isnan(real) || std::isnan(imaginary)) {
      ++counts.nan;
      Places::add(places.nan, first + i / 2);
    } else if (std::isinf(real) || std::isinf(imaginary)) {
      ++counts.inf;
      Places::add(places.inf, first + i / 2);
    } else if (real == 0 && imaginary == 0) {
      ++counts.zeros;
    }
  }
  return part;
}

// The values of one run and the buffers of one thread.
struct RunValues {
  std::vector<float> floats;
  std::vector<double> doubles;  // for types that binary32 cannot represent
  Places places;
};

using ToDoubles = void (*)(std::span<const std::byte>, std::span<double>);

template <class T>
void as_doubles(std::span<const std::byte> bytes, std::span<double> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = static_cast<double>(value);
  }
}

// Indexed by the binary logarithm of the element size: 1, 2, 4 or 8 bytes.
constexpr ToDoubles kUnsignedToDoubles[] = {as_doubles<std::uint8_t>, as_doubles<std::uint16_t>,
                                            as_doubles<std::uint32_t>, as_doubles<std::uint64_t>};
constexpr ToDoubles kSignedToDoubles[] = {as_doubles<std::int8_t>, as_doubles<std::int16_t>,
                                          as_doubles<std::int32_t>, as_doubles<std::int64_t>};

void bool_to_doubles(std::span<const std::byte> bytes, std::span<double> out) {
  std::ranges::transform(bytes, out.begin(), [](std::byte b) { return b == std::byte{0} ? 0 : 1; });
}

// Returns null if to_f32 is exact.
ToDoubles to_doubles_of(const TypeInfo& info) {
  switch (info.kind) {
    case TypeKind::kBool: return bool_to_doubles;
    case TypeKind::kUnsigned: return kUnsignedToDoubles[std::countr_zero(info.block_bytes)];
    case TypeKind::kSigned: return kSignedToDoubles[std::countr_zero(info.block_bytes)];
    case TypeKind::kFloat: return info.bits() == 64 ? as_doubles<double> : nullptr;
    case TypeKind::kComplex:
    case TypeKind::kQuantized: break;
  }
  return nullptr;
}

float narrow(double value) {
  const auto narrowed = static_cast<float>(value);
  if (!std::isinf(narrowed) || std::isinf(value)) return narrowed;
  return std::copysign(std::numeric_limits<float>::max(), narrowed);
}

class ValuePass {
 public:
  ValuePass(DType dtype, bool wants_stats, std::span<ValueSink* const> sinks)
      : info_(type_info(dtype)),
        to_doubles_(to_doubles_of(info_)),
        wants_stats_(wants_stats),
        sinks_(sinks) {}

  int run(const Content& content, const PassOptions& options) {
    runs_.resize(std::max(1U, options.threads));
    return pass_over(content, info_.offset_of(kBlock), options,
                     [this](const PassBlock& block) { add(block); });
  }

  ValueStats stats() const {
    ValueStats stats = sum_.result().result();
    Places places;
    for (const RunValues& run : runs_) places.add(run.places);
    stats.nan_at = std::move(places.nan);
    stats.inf_at = std::move(places.inf);
    stats.largest_at = places.largest;
    return stats;
  }

 private:
  static constexpr std::uint64_t kBlock = 32 * kRun;  // elements

  void add(const PassBlock& block) {
    RunValues& run = runs_[block.thread];
    const std::uint64_t elements = info_.elements_in(block.bytes.size());
    Summary part;
    for (std::uint64_t at = 0; at < elements; at += kRun) {
      const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(kRun, elements - at));
      const auto bytes = block.bytes.subspan(static_cast<std::size_t>(info_.offset_of(at)));
      part.add(add_run(run, bytes, count, block.index * kBlock + at, block.thread));
    }
    if (!wants_stats_) return;
    const std::lock_guard lock(mutex_);
    sum_.add(block.index, part);
  }

  Summary add_run(RunValues& run, std::span<const std::byte> bytes, std::size_t count,
                  std::uint64_t first, unsigned thread) {
    Summary part;
    if (info_.kind == TypeKind::kComplex) {
      std::vector<float> parts(2 * count);
      std::memcpy(parts.data(), bytes.data(), parts.size() * sizeof(float));
      return summary_of_complex(parts, first, run.places);
    }
    run.floats.resize(kRun);
    const std::span floats = std::span(run.floats).first(count);
    if (to_doubles_ == nullptr) {
      info_.to_f32(bytes.data(), count, floats.data());
      if (wants_stats_) {
        part = summary_of(std::span<const float>(floats), first, run.places);
      }
    } else {
      run.doubles.resize(count);
      to_doubles_(bytes.first(static_cast<std::size_t>(info_.offset_of(count))), run.doubles);
      if (wants_stats_) {
        part = summary_of(std::span<const double>(run.doubles), first, run.places);
      }
      for (ValueSink* sink : sinks_) sink->see(first, std::span<const double>(run.doubles), thread);
      return part;
    }
    for (ValueSink* sink : sinks_) sink->see(first, std::span<const float>(floats), thread);
    return part;
  }

  const TypeInfo& info_;
  const ToDoubles to_doubles_;
  const bool wants_stats_;
  const std::span<ValueSink* const> sinks_;
  std::vector<RunValues> runs_;  // by thread
  std::mutex mutex_;
  OrderedSum<Summary> sum_;
};

}  // namespace

void ValueSink::see(std::uint64_t first, std::span<const double> values, unsigned thread) {
  std::vector<float> narrowed(values.size());
  std::ranges::transform(values, narrowed.begin(), narrow);
  see(first, std::span<const float>(narrowed), thread);
}

int value_stats(const Content& content, DType dtype, const PassOptions& options, ValueStats& stats,
                const std::vector<ValueSink*>& sinks) {
  ValuePass pass(dtype, true, sinks);
  const int error = pass.run(content, options);
  if (error == 0) stats = pass.stats();
  return error;
}

int see_values(const Content& content, DType dtype, const PassOptions& options,
               const std::vector<ValueSink*>& sinks) {
  return ValuePass(dtype, false, sinks).run(content, options);
}

void to_doubles(DType dtype, std::span<const std::byte> bytes, std::span<double> out) {
  const TypeInfo& info = type_info(dtype);
  if (const ToDoubles exact = to_doubles_of(info)) return exact(bytes, out);
  std::array<float, kRun> floats;
  for (std::size_t at = 0; at < out.size(); at += kRun) {
    const std::span part = out.subspan(at, std::min(kRun, out.size() - at));
    info.to_f32(bytes.data() + info.offset_of(at), part.size(), floats.data());
    std::copy_n(floats.begin(), part.size(), part.begin());
  }
}

std::vector<std::uint64_t> indices_of(std::uint64_t element, std::span<const std::uint64_t> shape) {
  std::vector<std::uint64_t> indices(shape.size());
  for (std::size_t i = shape.size(); i-- > 0;) {
    indices[i] = element % shape[i];
    element /= shape[i];
  }
  return indices;
}

std::string indices_json(std::span<const std::uint64_t> elements,
                         std::span<const std::uint64_t> shape) {
  auto list = nlohmann::ordered_json::array();
  for (const std::uint64_t element : elements) list.push_back(indices_of(element, shape));
  return list.dump();
}

std::string stats_json(const ValueStats& stats, std::span<const std::uint64_t> shape) {
  const auto number = [](const std::optional<double>& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  const nlohmann::ordered_json json{{"count", stats.count},     {"min", number(stats.min)},
                                    {"max", number(stats.max)}, {"mean", number(stats.mean)},
                                    {"std", number(stats.std)}, {"zeros", stats.zeros},
                                    {"nan", stats.nan},         {"inf", stats.inf}};
  std::string text = json.dump();
  text.pop_back();
  const std::string largest =
      stats.largest_at ? nlohmann::ordered_json(indices_of(*stats.largest_at, shape)).dump()
                       : "null";
  return text + ",\"nan_at\":" + indices_json(stats.nan_at, shape) +
         ",\"inf_at\":" + indices_json(stats.inf_at, shape) + ",\"largest_at\":" + largest + "}";
}

}  // namespace stfs
