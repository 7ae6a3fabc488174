// A run: versions of one checkpoint, such as step-100, step-200 and so on, and how each tensor
// changes from one to the next.
//
// Thread safety: none needed by the values; the functions may be called from any thread.
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
  bool is_zero = false;          // all of it, and it is of a kind that should not be
  std::uint64_t not_finite = 0;  // NaN and infinite values
  // Over the finite values; NaN where there are none.
  float rms = 0;
  float largest = 0;  // |x|
  // From the first version that has the tensor, relative to it; NaN where no number says it.
  float distance = 0;

  bool is_broken() const { return state == State::kUnreadable || is_zero || not_finite > 0; }
};

struct RunTensor {
  std::string name;
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;
  std::vector<RunCell> cells;  // by version

  // The version that broke it, or lacks it where the one before has it; as many as there are: none
  // did.
  std::size_t broken_at() const;
};

struct Run {
  std::vector<std::string> versions;  // their names, in the order of the run
  std::vector<RunTensor> tensors;     // of any version, in natural order of their names

  // The first version in which a tensor broke that was whole, or never was there whole before, and
  // these tensors; nullopt: none did.
  struct Break {
    std::size_t version;
    std::vector<std::uint32_t> tensors;
  };
  std::optional<Break> first_break() const;
  // The largest change of a tensor's RMS from one version to the next, if it is threefold.
  struct Jump {
    std::size_t version;  // the later one
    std::uint32_t tensor;
    double ratio;
  };
  std::optional<Jump> largest_jump() const;
  // The sentence that a user should read first; printable.
  std::string verdict() const;
};

// The order of a run: as a user gave the sources, but a shell's order (step-1, step-10, step-2)
// means nothing and becomes the natural one.
std::vector<std::string> in_order_of_run(std::span<const std::string> sources);

// Whether two of these checkpoints have a tensor of one name: then they are versions, and not parts
// of one checkpoint.
bool are_versions(std::span<const Checkpoint* const> checkpoints);

// Reads all tensors of all versions once, and those of the first one once more for each other.
// Returns 0, or EINTR soon after a stop. Progress counts the bytes of all versions.
int collect_run(std::span<const Checkpoint* const> versions, std::span<const std::string> names,
                const PassOptions& options, Run& run);

}  // namespace stfs
