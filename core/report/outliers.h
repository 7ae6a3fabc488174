// Which tensors are unlike others of their kind: tensors in a grid of layers and roles.
//
// "model.layers.3.mlp.up_proj.weight" is in layer "model.layers.3" and has the role
// "model.layers.*.mlp.up_proj.weight". A number of a tensor is compared with the median of its role
// (its column), and that with the median of its layer (its row): so a layer that is larger as a
// whole is one thing to tell, and not ten.
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
  double ratio;          // to what its role and its layer make likely
};

struct OddLayer {
  std::vector<std::uint32_t> tensors;  // of the layer
  std::string name;                    // "model.layers.3"
  double ratio;                        // the median over its tensors, to those of their roles
};

struct Outliers {
  std::vector<Outlier> rms;      // the farthest first
  std::vector<Outlier> reach;    // the largest |x| over the std: only those that are larger
  std::vector<OddLayer> layers;  // by RMS
};

// In roles of at least five tensors with other values than zero. Far is three times or a third, and
// six times as far as the middle one of the role.
Outliers outliers_of(const Report& report);

// "model.layers.*.mlp.up_proj.weight"
std::string without_numbers(std::string_view name);

}  // namespace stfs
