// Tensors that a file describes (Description in header.h): compressed, or in another order.
//
// Thread safety: const members may be called from any thread. Lifetime: the part outlives it, and
// stays where it is; its tensors may be removed, if those that are described are forgotten.
#pragma once

#include "core/recipe/inflated.h"
#include "core/recipe/tile_cache.h"
#include "core/stored/tensor_list.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace stfs {

class DescribedTensors : public ComputedTensors {
 public:
  explicit DescribedTensors(const Part& part) : part_(part) {}

  // The computed tensor of a record that has a description.
  const ComputedTensor& add(std::uint32_t record);

 private:
  const Part& part_;
  mutable TileCache tiles_;
  mutable InflatedPlaces places_;
  std::vector<std::unique_ptr<const ComputedTensor>> tensors_;
};

}  // namespace stfs
