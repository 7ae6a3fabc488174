#include "core/values/compare.h"

namespace stfs {

Comparison compare_tensors(const Tensor& before, const Tensor& after, CompareBy by,
                           const PassOptions& options,
                           const std::function<int(ValueSink&)>& pass_over_after,
                           ValueSink* values_of_before) {
  Comparison result;
  if (after.elements() == 0 || are_one(before, after)) {
    if (options.progress) options.progress(before.length);
    result.values.emplace();
    result.values->elements = result.values->equal = after.elements();
    return result;
  }
  const Tensor from = by == CompareBy::kValues ? before.valued() : before;
  const Tensor to = by == CompareBy::kValues ? after.valued() : after;
  const Content content = from.content();
  if (by == CompareBy::kBytes) {
    bool is_in_after = false;
    result.error =
        first_difference(content, after.content(), options, result.first_byte, is_in_after);
    result.is_in_before = !is_in_after;
    return result;
  }
  DifferenceSink differences(content, from.dtype, options, values_of_before);
  result.error = pass_over_after
                     ? pass_over_after(differences)
                     : see_values(to.content(), to.dtype, {.stop = options.stop}, {&differences});
  if (result.error != 0) return result;
  ValueDifference values;
  result.error = differences.result(values);
  result.is_in_before = result.error != 0;
  if (result.error == 0) result.values = values;
  return result;
}

}  // namespace stfs
