// A tensor: its name, type and shape, and the recipe of its bytes, which either stand in a source
// or are computed from those of others.
//
// Thread safety: const members and the functions may be called from any thread. Lifetime: a Tensor
// borrows its name, shape and source from the list that has it (tensor_list.h).
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

// Has either a `locator` or a `computed`.
struct Tensor {
  std::string_view name;
  std::string_view path;  // in the mount, relative to its root (names.h); "" in a list
  DType dtype;
  std::span<const std::uint64_t> shape;
  std::uint64_t length;           // bytes
  std::optional<Extent> locator;  // its bytes in a source
  const ComputedTensor* computed = nullptr;
  // Its values as F32, where another tensor scales them (GGUF); null: its type tells them.
  const ComputedTensor* values = nullptr;

  // The tensor itself, or `values` under its name and shape: for who needs numbers, not bytes.
  Tensor valued() const;
  std::uint64_t elements() const;
  Content content() const;  // the recipe of its bytes
  timespec mtime() const;
  int verify() const;  // Source::verify() of its sources
};

// A tensor whose bytes are computed when they are read.
class ComputedTensor {
 public:
  ComputedTensor() = default;
  ComputedTensor(const ComputedTensor&) = delete;
  ComputedTensor& operator=(const ComputedTensor&) = delete;
  virtual ~ComputedTensor() = default;

  virtual Tensor tensor() const = 0;    // with `computed`, without a path
  virtual Content content() const = 0;  // Tensor::length bytes
  // The stored tensors that it is made of, the one with most of its bytes first.
  virtual std::vector<Tensor> inputs() const = 0;
  // How it is computed, in words for a user: "block FP8".
  virtual std::string_view scheme() const = 0;
  virtual bool is_dequantized() const { return false; }  // its value stands for quantised codes
};

// Whether two tensors are the same bytes of one version of a source.
bool are_one(const Tensor& a, const Tensor& b);

}  // namespace stfs
