// A run: versions of one checkpoint, such as step-100, step-200 and so on, and the change of each
// tensor from one version to the next.
//
// Thread safety: the values need none; the functions may be called from any thread.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/values/pass.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace stfs {

// A tensor in a version.
struct RunCell {
  enum class State : std::uint8_t { kThere, kAbsent, kUnreadable };
  State state = State::kAbsent;
  // All elements are zero, and the tensor is of a kind that should not be zero.
  bool is_zero = false;
  std::uint64_t not_finite = 0;  // the number of NaN and infinite values
  // Only consider finite values; NaN for a tensor without finite values.
  float rms = 0;
  float largest = 0;  // |x|
  // The relative distance from the first version that has the tensor; NaN if it cannot be expressed
  // as a number.
  float distance = 0;

  bool is_broken() const { return state == State::kUnreadable || is_zero || not_finite > 0; }
};

struct RunTensor {
  std::string name;
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;
  std::vector<RunCell> cells;  // by version

  // Returns the first version in which the tensor is broken, or lacking although the version before
  // has it. Returns the number of versions if the tensor did not break.
  std::size_t broken_at() const;
};

struct Run {
  std::vector<std::string> versions;  // their names, in the order of the run
  std::vector<RunTensor> tensors;     // of all versions, in natural order of their names

  // The first version in which a tensor broke (RunTensor::broken_at()), and the tensors that broke
  // in it. nullopt if no tensor broke.
  struct Break {
    std::size_t version;
    std::vector<std::uint32_t> tensors;
  };
  std::optional<Break> first_break() const;
  // The largest change of a tensor's RMS from one version to the next, if it is at least by a
  // factor of three.
  struct Jump {
    std::size_t version;  // the later one
    std::uint32_t tensor;
    double ratio;
  };
  std::optional<Jump> largest_jump() const;
  // Returns the sentence that a user should read first, in printable form.
  std::string verdict() const;
};

// Returns the order of a run: the order in which the user gave the sources. If that is the lexical
// order, as from a shell (step-1, step-10, step-2), returns the natural order instead.
std::vector<std::string> in_order_of_run(std::span<const std::string> sources);

// Returns true if two of these checkpoints have a tensor with the same name. Then they are versions
// of a checkpoint, and not parts of one.
bool are_versions(std::span<const Checkpoint* const> checkpoints);

// Reads all tensors of all versions once, and the tensors of the first version again for each other
// version. Returns 0, or EINTR soon after a stop. Progress counts the bytes of all versions.
int collect_run(std::span<const Checkpoint* const> versions, std::span<const std::string> names,
                const PassOptions& options, Run& run);

}  // namespace stfs
