// The tensors that a pickle of PyTorch describes: a table of the names that make tensors, and a
// walk through all that the pickle holds.
//
// Thread safety: the function may be called from any thread.
#pragma once

#include "core/format/pickle.h"
#include "core/format/types.h"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

struct TorchTensor {
  std::string refusal;              // why it is not shown; only the class is set then
  std::string class_name;           // of one that is not shown
  std::string_view storage;         // its key
  std::uint64_t storage_bytes = 0;  // that it must have
  DType dtype = DType::kU8;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;             // of the first element in the storage, bytes
  std::vector<std::uint64_t> strides;  // bytes; none: row-major without gaps
  std::uint64_t bytes = 0;
};

// Objects that are no tensors, or none that can be shown: how many there are of each class.
using ClassCounts = std::map<std::string, std::uint64_t>;

// Calls `found` for each tensor with its name, in the order of the pickle. A tensor that is reached
// by several paths has several names. Returns the objects without tensors that no other such object
// holds. Throws Error kPickle, also for a pickle that shares so much
// that its paths are out of proportion to its length.
ClassCounts walk_tensors(
    const Pickle& pickle, const std::string& place,
    const std::function<void(std::string_view name, const TorchTensor&)>& found);

}  // namespace stfs
