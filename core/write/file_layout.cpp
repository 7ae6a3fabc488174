#include "core/write/file_layout.h"

#include "core/write/writer.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace stfs {
namespace {

// Returns the extent of a tensor in a local file, or nullopt if its bytes are computed, converted
// or fetched.
std::optional<Extent> shareable(const Checkpoint& checkpoint, std::uint32_t number) {
  const Tensor tensor = checkpoint.tensor(number);
  if (!tensor.locator || type_in_safetensors(tensor) != tensor.dtype) return std::nullopt;
  if (tensor.locator->source->local_file() == nullptr) return std::nullopt;
  return tensor.locator;
}

// Returns the number of bytes in whole blocks that can be shared if the tensors are placed one
// after the other, starting at `phase`.
std::uint64_t shared_bytes(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors,
                           std::uint64_t phase) {
  std::uint64_t shared = 0;
  Extent run;  // neighbours in the source
  std::uint64_t at = phase, run_at = phase;
  const auto end_run = [&] {
    if (run.source != nullptr) shared += shareable_part(run_at, run).length;
  };
  for (const std::uint32_t number : tensors) {
    const std::uint64_t length = checkpoint.tensor(number).length;
    const std::optional<Extent> extent = shareable(checkpoint, number);
    const bool goes_on =
        extent && run.source == extent->source && run.offset + run.length == extent->offset;
    if (goes_on) {
      run.length += length;
    } else {
      end_run();
      run = extent.value_or(Extent{});
      run_at = at;
    }
    at += length;
  }
  end_run();
  return shared;
}

}  // namespace

FileLayout placement_of(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors) {
  std::map<std::uint64_t, std::uint64_t> bytes_by_phase;
  std::optional<std::uint64_t> first;  // the phase of the first tensor that can be shared
  for (const std::uint32_t number : tensors) {
    const std::optional<Extent> extent = shareable(checkpoint, number);
    if (!extent) continue;
    if (!first) first = extent->offset % kShareBlock;
    bytes_by_phase[extent->offset % kShareBlock] += extent->length;
  }
  FileLayout in_order{{tensors.begin(), tensors.end()}, first.value_or(0), 0};
  if (!first) return in_order;
  // Tensors before the first shareable one move it, so move the phase back.
  for (const std::uint32_t number : tensors) {
    if (shareable(checkpoint, number)) break;
    in_order.phase =
        (in_order.phase + kShareBlock - checkpoint.tensor(number).length % kShareBlock) %
        kShareBlock;
  }
  in_order.shareable = shared_bytes(checkpoint, in_order.tensors, in_order.phase);

  const auto commonest =
      std::ranges::max_element(bytes_by_phase, {}, [](const auto& entry) { return entry.second; });
  FileLayout grouped{in_order.tensors, commonest->first, 0};
  const auto is_of_group = [&](std::uint32_t number) {
    const std::optional<Extent> extent = shareable(checkpoint, number);
    return extent && extent->offset % kShareBlock == commonest->first &&
           extent->length % kShareBlock == 0;
  };
  std::stable_partition(grouped.tensors.begin(), grouped.tensors.end(), is_of_group);
  grouped.shareable = shared_bytes(checkpoint, grouped.tensors, grouped.phase);
  return grouped.shareable > in_order.shareable ? grouped : in_order;
}

}  // namespace stfs
