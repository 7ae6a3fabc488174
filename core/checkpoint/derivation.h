// The tensors of a checkpoint that shows others than its files hold: some stand for themselves,
// some are computed from stored tensors.
//
// Thread safety: const members may be called from any thread. Lifetime: the checkpoint that owns a
// derivation, and whose stored tensors it names, outlives it.
#pragma once

#include "core/format/types.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

class Checkpoint;
class ComputedTensor;

// Computed tensors of one kind, which share what they can: a checkpoint may have a hundred
// thousand.
class ComputedTensors {
 public:
  ComputedTensors() = default;
  ComputedTensors(const ComputedTensors&) = delete;
  ComputedTensors& operator=(const ComputedTensors&) = delete;
  virtual ~ComputedTensors() = default;

  virtual std::string_view name(std::uint32_t i) const = 0;
  virtual std::span<const std::uint64_t> shape(std::uint32_t i) const = 0;
  virtual DType dtype(std::uint32_t i) const = 0;
  virtual std::uint64_t length(std::uint32_t i) const = 0;  // bytes
  virtual const ComputedTensor& tensor(std::uint32_t i) const = 0;

  // The stored tensors, which are the inputs, have become those of `owner`, and their numbers are
  // larger by `added`. Called while loading.
  virtual void move_to(const Checkpoint& owner, std::uint32_t added) = 0;
};

struct Derivation {
  static constexpr std::uint32_t kStored = ~std::uint32_t{0};

  // In the order of the tensors' numbers, which is that of `stored`.
  struct Shown {
    std::uint32_t stored;         // its number among the stored tensors; of its first input
    std::uint32_t set = kStored;  // of `sets`; kStored: it is that tensor
    std::uint32_t number = 0;     // in its set
  };
  std::vector<Shown> shown;
  std::uint32_t stored = 0;  // the stored tensors before this number were regarded
  std::vector<std::unique_ptr<ComputedTensors>> sets;
  // Says what was done, with all that decided it, for version_of(). A set each.
  std::vector<std::string> texts;
};

}  // namespace stfs
