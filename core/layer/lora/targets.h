// Finds the tensor of a base that an adapter's name means. The names of the base may have a prefix
// that the adapter's names lack, or the reverse, or both may have different prefixes: "model.",
// "language_model.".
//
// Thread safety: one thread at a time. Lifetime: the list must outlive it.
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
  // `list` has sorted names (TensorList::sort_names()).
  explicit Targets(const TensorList& list) : list_(list) {}

  // Returns the tensor with this name. Otherwise returns the tensor with the name that shares the
  // most components with `name`, counted from the end, and nullopt if no tensor qualifies. A tensor
  // qualifies only if the common end includes everything from the component before the first number
  // on (the last two components, if there is no number), and if one name is the end of the other or
  // only names of wrapping models precede the common end in both. Sets `other` if a second tensor
  // fits equally well.
  std::optional<std::uint32_t> find(std::string_view name,
                                    std::optional<std::uint32_t>& other) const;

 private:
  const TensorList& list_;
  // The tensors by the end of their names that naming schemes have in common; filled when first
  // needed.
  mutable std::unordered_map<std::string, std::vector<std::uint32_t>> by_end_;
};

}  // namespace stfs
