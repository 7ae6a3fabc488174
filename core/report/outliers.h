// Finds tensors that differ from others of their kind, in a grid of layers and roles.
//
// "model.layers.3.mlp.up_proj.weight" is in the layer "model.layers.3" and has the role
// "model.layers.*.mlp.up_proj.weight". A statistic of a tensor is first compared with the median of
// its role (its column of the grid), and the result with the median of its layer (its row). So a
// layer with larger values throughout results in one finding, not in ten.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/report/report.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

struct Outlier {
  std::uint32_t tensor;  // a position in Report::tensors
  double ratio;          // to the value that its role and its layer suggest
};

struct OddLayer {
  std::vector<std::uint32_t> tensors;  // the tensors of the layer
  std::string name;                    // "model.layers.3"
  // The median, over the layer's tensors, of the ratio of a tensor's RMS to the median of its role.
  double ratio;
};

struct Outliers {
  std::vector<Outlier> rms;  // the largest deviations first
  // The largest |x| divided by the std; only tensors with larger values.
  std::vector<Outlier> reach;
  std::vector<OddLayer> layers;  // by RMS
};

// Considers roles of at least five tensors that are not all zero. A tensor is an outlier if it
// differs from its kind by a factor of three or more, and six times as much as the median tensor of
// its role.
Outliers outliers_of(const Report& report);

// Returns the role of a tensor's name: "model.layers.*.mlp.up_proj.weight".
std::string without_numbers(std::string_view name);

}  // namespace stfs
