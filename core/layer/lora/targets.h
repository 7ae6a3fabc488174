// The tensor of a base that an adapter means by a name. The base's names may have a prefix that the
// adapter's lack, the reverse, or another one: "model.", "language_model.".
//
// Thread safety: one thread at a time. Lifetime: the list outlives it.
#pragma once

#include "core/stored/tensor_list.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace stfs {

class Targets {
 public:
  // `list` has sort_names().
  explicit Targets(const TensorList& list) : list_(list) {}

  // The tensor with this name, or else that with the longest common end of whole components, where
  // neither name has a number before it. One name is then the end of the other, or names that wrap
  // models stand before both. nullopt: there is none. Sets `other` when two tensors fit equally
  // well.
  std::optional<std::uint32_t> find(std::string_view name,
                                    std::optional<std::uint32_t>& other) const;

 private:
  const TensorList& list_;
  // By the end that equal tensors of two naming schemes share; filled when it is needed.
  mutable std::unordered_map<std::string, std::vector<std::uint32_t>> by_end_;
};

}  // namespace stfs
