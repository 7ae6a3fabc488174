// A tensor: its name, type and shape, and the recipe of its bytes. The bytes are either stored in a
// source or computed from other tensors.
//
// Thread safety: const members and the functions may be called from any thread. Lifetime: a Tensor
// borrows its name, shape and source from its list (tensor_list.h).
#pragma once

#include "core/base/text.h"
#include "core/format/types.h"
#include "core/recipe/content.h"

#include <cstdint>
#include <ctime>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

class ComputedTensor;

// Exactly one of `locator` and `computed` is set.
struct Tensor {
  std::string_view name;
  std::string_view path;  // in the mount, relative to its root (names.h); "" in a list
  DType dtype;
  std::span<const std::uint64_t> shape;
  std::uint64_t length;           // bytes
  std::optional<Extent> locator;  // its bytes in a source
  const ComputedTensor* computed = nullptr;
  // Its values as F32, if another tensor scales them (GGUF). Null: the values follow from its type.
  const ComputedTensor* values = nullptr;

  // Returns the tensor to read numbers from: `values` with the name and shape of this tensor, or
  // this tensor if `values` is null.
  Tensor valued() const;
  std::uint64_t elements() const;
  Content content() const;  // the recipe of its bytes
  timespec mtime() const;   // the latest mtime of its sources
  int verify() const;       // Source::verify() of its sources: 0 or an errno
};

// A tensor whose bytes are computed when they are read.
class ComputedTensor {
 public:
  ComputedTensor() = default;
  ComputedTensor(const ComputedTensor&) = delete;
  ComputedTensor& operator=(const ComputedTensor&) = delete;
  virtual ~ComputedTensor() = default;

  virtual Tensor tensor() const = 0;    // has `computed` and no path
  virtual Content content() const = 0;  // the recipe of its Tensor::length bytes
  // The stored tensors that it is computed from. The first provides most of its bytes.
  virtual std::vector<Tensor> inputs() const = 0;
  // How it is computed, in words for a user, such as "block FP8".
  virtual std::string_view scheme() const = 0;
  virtual bool is_dequantized() const { return false; }  // true if computed from quantised codes
};

// Returns true if two stored tensors are the same bytes of the same version of a source, with the
// same type.
bool are_one(const Tensor& a, const Tensor& b);

}  // namespace stfs
