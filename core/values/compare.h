// How a tensor differs from that of the same name in another checkpoint.
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
  std::optional<std::uint64_t> first_byte;  // by bytes: the first in which they differ
  std::optional<ValueDifference> values;    // by values
  int error = 0;                            // of a read; EINTR after stop. Then nothing else is set
  bool is_in_before = false;                // the error is that of `before`

  bool differs() const { return first_byte || (values && values->equal != values->elements); }
};

enum class CompareBy {
  kBytes,   // of one type
  kValues,  // of any types but complex ones
};

// Compares two tensors of equal shape. The distance of their values is relative to `before`;
// progress counts the bytes of one of them. Two tensors in one extent of one version are equal:
// nothing is read.
// `pass_over_after` makes a pass over the values of `after` and shows them to the sink, for who
// needs them besides: 0 or an errno. Without it this function does. `values_of_before` sees the
// values of the other, where values are compared.
Comparison compare_tensors(const Tensor& before, const Tensor& after, CompareBy by,
                           const PassOptions& options,
                           const std::function<int(ValueSink&)>& pass_over_after = nullptr,
                           ValueSink* values_of_before = nullptr);

}  // namespace stfs
