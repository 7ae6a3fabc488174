// Compares a tensor with the tensor of the same name in another checkpoint.
//
// Thread safety: the function may be called from any thread.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/values/difference.h"

#include <cstdint>
#include <functional>
#include <optional>

namespace stfs {

struct Comparison {
  std::optional<std::uint64_t> first_byte;  // for kBytes: the first byte in which they differ
  std::optional<ValueDifference> values;    // for kValues
  // The errno of a read, or EINTR after a stop. If it is not 0, is_in_before is set, and first_byte
  // and values are not.
  int error = 0;
  bool is_in_before = false;  // the error is from reading `before`

  bool differs() const { return first_byte || (values && values->equal != values->elements); }
};

enum class CompareBy {
  kBytes,   // both tensors have the same type
  kValues,  // any types except complex ones
};

// Compares two tensors of equal shape. The distance of their values is relative to `before`.
// Progress counts the bytes of one of them. Tensors that are the same extent of the same version
// are equal without being read.
//
// `pass_over_after` makes a pass over the values of `after` and shows them to the sink. It returns
// 0 or an errno. Pass it if the caller also needs these values; without it, this function makes the
// pass. If values are compared, `values_of_before` sees the values of `before`.
Comparison compare_tensors(const Tensor& before, const Tensor& after, CompareBy by,
                           const PassOptions& options,
                           const std::function<int(ValueSink&)>& pass_over_after = nullptr,
                           ValueSink* values_of_before = nullptr);

}  // namespace stfs
