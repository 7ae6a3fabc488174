#include "core/report/outliers.h"

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <span>

namespace stfs {
namespace {

constexpr std::size_t kFewest = 5;       // the minimum number of tensors in a role
constexpr std::size_t kFewestRoles = 3;  // the minimum number of roles in a layer that is compared
constexpr double kFar = 1.0986122886681098;  // log(3)
constexpr double kSpreads = 6;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool separates(char c) { return c == '.' || c == '/' || c == '_'; }

// Returns the end of the first number in a name, or nullopt if it contains no number.
std::optional<std::size_t> end_of_number(std::string_view name) {
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (!is_digit(name[i]) || (i > 0 && !separates(name[i - 1]))) continue;
    std::size_t end = i;
    while (end < name.size() && is_digit(name[end])) ++end;
    if (end == name.size() || separates(name[end])) return end;
    i = end;
  }
  return std::nullopt;
}

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// Roles and layers are identified by hashes, because their names would take more memory than the
// tensors of a hostile header. If two have the same hash, only the choice of outliers changes.
struct Member {
  std::size_t role;
  std::size_t layer;
  std::uint32_t tensor;
  double value;       // the logarithm of the statistic
  double distance{};  // from its role; later from its role and its layer
};

std::vector<Member> members_of(const Report& report,
                               const std::function<double(const ValueStats&)>& measure) {
  std::vector<Member> members;
  for (std::uint32_t i = 0; i < report.tensors.size(); ++i) {
    const ReportTensor& tensor = report.tensors[i];
    if (!tensor.stats || !tensor.stats->min || !(*tensor.stats->std > 0)) continue;
    const auto end = end_of_number(tensor.name);
    const double value = measure(*tensor.stats);
    if (!end || !(value > 0) || !std::isfinite(value)) continue;
    members.push_back({std::hash<std::string>()(without_numbers(tensor.name)),
                       std::hash<std::string_view>()(std::string_view(tensor.name).substr(0, *end)),
                       i, std::log(value)});
  }
  return members;
}

// Calls `work` with each group of members that have the same `key`.
template <class Key, class Work>
void for_groups(std::vector<Member>& members, Key Member::*key, const Work& work) {
  std::ranges::stable_sort(members, {}, key);
  for (std::size_t begin = 0; begin < members.size();) {
    std::size_t end = begin;
    while (end < members.size() && members[end].*key == members[begin].*key) ++end;
    work(std::span(members).subspan(begin, end - begin));
    begin = end;
  }
}

double median_distance(std::span<const Member> group) {
  std::vector<double> values;
  values.reserve(group.size());
  for (const Member& member : group) values.push_back(member.distance);
  return median_of(std::move(values));
}

// Returns the median of the absolute distances.
double spread_of(std::span<const double> distances) {
  std::vector<double> sizes;
  sizes.reserve(distances.size());
  for (const double distance : distances) sizes.push_back(std::abs(distance));
  return median_of(std::move(sizes));
}

bool is_far(double distance, double spread) {
  return std::abs(distance) > std::max(kFar, kSpreads * spread);
}

// Sets the distances from roles. Drops the members of roles with too few tensors.
void compare_with_roles(std::vector<Member>& members) {
  std::vector<Member> compared;
  for_groups(members, &Member::role, [&](std::span<Member> role) {
    if (role.size() < kFewest) return;
    std::vector<double> values;
    values.reserve(role.size());
    for (const Member& member : role) values.push_back(member.value);
    const double middle = median_of(std::move(values));
    for (Member& member : role) {
      member.distance = member.value - middle;
      compared.push_back(member);
    }
  });
  members = std::move(compared);
}

std::vector<OddLayer> compare_with_layers(const Report& report, std::vector<Member>& members) {
  struct Layer {
    double distance;
    std::vector<std::uint32_t> tensors;
  };
  std::vector<Layer> layers;
  for_groups(members, &Member::layer, [&](std::span<Member> layer) {
    if (layer.size() < kFewestRoles) return;
    layers.push_back({median_distance(layer), {}});
    for (Member& member : layer) {
      member.distance -= layers.back().distance;
      layers.back().tensors.push_back(member.tensor);
    }
  });
  std::vector<double> distances;
  distances.reserve(layers.size());
  for (const Layer& layer : layers) distances.push_back(layer.distance);
  std::vector<OddLayer> odd;
  if (layers.size() < kFewest) return odd;
  const double spread = spread_of(distances);
  for (Layer& layer : layers) {
    if (!is_far(layer.distance, spread)) continue;
    std::ranges::sort(layer.tensors);
    const std::string& name = report.tensors[layer.tensors.front()].name;
    odd.push_back(
        {std::move(layer.tensors), name.substr(0, *end_of_number(name)), std::exp(layer.distance)});
  }
  std::ranges::sort(odd, {}, [](const OddLayer& layer) { return layer.tensors.front(); });
  return odd;
}

std::vector<Outlier> far_members(std::vector<Member>& members) {
  std::vector<Outlier> far;
  for_groups(members, &Member::role, [&](std::span<Member> role) {
    std::vector<double> distances;
    distances.reserve(role.size());
    for (const Member& member : role) distances.push_back(member.distance);
    const double spread = spread_of(distances);
    for (const Member& member : role) {
      if (is_far(member.distance, spread))
        far.push_back({member.tensor, std::exp(member.distance)});
    }
  });
  std::ranges::sort(far, {}, &Outlier::tensor);
  std::ranges::stable_sort(far, std::greater<>(), [](const Outlier& outlier) {
    return std::abs(std::log(outlier.ratio));
  });
  return far;
}

}  // namespace

Outliers outliers_of(const Report& report) {
  Outliers outliers;
  std::vector<Member> members = members_of(
      report, [](const ValueStats& stats) { return std::hypot(*stats.mean, *stats.std); });
  compare_with_roles(members);
  outliers.layers = compare_with_layers(report, members);
  outliers.rms = far_members(members);
  members = members_of(report, [](const ValueStats& stats) {
    return std::max(std::abs(*stats.min), std::abs(*stats.max)) / *stats.std;
  });
  compare_with_roles(members);
  outliers.reach = far_members(members);
  std::erase_if(outliers.reach, [](const Outlier& outlier) { return outlier.ratio < 1; });
  return outliers;
}

std::string without_numbers(std::string_view name) {
  std::string role;
  for (std::size_t i = 0; i < name.size();) {
    std::size_t end = i;
    while (end < name.size() && is_digit(name[end])) ++end;
    const bool is_number = end > i && (i == 0 || separates(name[i - 1])) &&
                           (end == name.size() || separates(name[end]));
    if (is_number) {
      role += '*';
    } else {
      end = std::max(end, i + 1);
      role += name.substr(i, end - i);
    }
    i = end;
  }
  return role;
}

}  // namespace stfs
