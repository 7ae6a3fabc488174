// Finds the tensors that a pickle of PyTorch describes. Has a table of the functions that make
// tensors, and walks through everything that the pickle contains.
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
  // Why the tensor cannot be shown, or "" if it can. If it is not "", only `class_name` is valid.
  std::string refusal;
  std::string class_name;           // the class of a tensor that cannot be shown; "" if unknown
  std::string_view storage;         // the key of its storage; borrowed from the pickle
  std::uint64_t storage_bytes = 0;  // the least size that its storage must have
  DType dtype = DType::kU8;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;             // offset of the first element in the storage, bytes
  std::vector<std::uint64_t> strides;  // bytes; empty if the tensor is row-major without gaps
  std::uint64_t bytes = 0;             // bytes of the tensor
};

// The number of objects, by class, that are not tensors or are tensors that cannot be shown.
using ClassCounts = std::map<std::string, std::uint64_t>;

// Calls `found` for each tensor and its name, in the order of the pickle. If a tensor has several
// paths, calls `found` for each of them. Returns the counts of two kinds of objects: objects that
// contain no tensor, unless they are inside another such object, and tensors that cannot be shown.
// Throws Error kPickle. Refuses also a pickle that shares values so often that its paths are out of
// proportion to its length.
ClassCounts walk_tensors(
    const Pickle& pickle, const std::string& place,
    const std::function<void(std::string_view name, const TorchTensor&)>& found);

}  // namespace stfs
