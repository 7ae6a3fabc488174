// Computes tensors that have a Description (header.h): tensors that are compressed or stored in
// another order.
//
// Thread safety: const members may be called from any thread. Lifetime: the part must outlive a
// DescribedTensors and must not move. If tensors are removed from the part, no computed tensor made
// before may be used any more.
#pragma once

#include "core/recipe/inflate_producer.h"
#include "core/recipe/tile_cache.h"
#include "core/stored/tensor_list.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace stfs {

class DescribedTensors : public ComputedTensors {
 public:
  explicit DescribedTensors(const Part& part) : part_(part) {}

  // Makes the computed tensor of a record, which must have a description. Owned by this.
  const ComputedTensor& add(std::uint32_t record);

 private:
  const Part& part_;
  mutable TileCache tiles_;
  mutable InflatedPlaces places_;
  std::vector<std::unique_ptr<const ComputedTensor>> tensors_;
};

}  // namespace stfs
