// Which source made a read fail, and why.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/base/error.h"
#include "core/checkpoint/checkpoint.h"
#include "core/source/source.h"
#include "core/stored/tensor.h"

#include <span>
#include <string>
#include <vector>

namespace stfs {

// The sources that a tensor is read from, the one with most of its bytes first.
std::vector<const Source*> sources_of(const Tensor& tensor);

// The error kUnreadable of a read that failed with `error`. Its place is the first source that has
// changed (ESTALE) or has failed; without one, the first. Its message is "subject: rule", or the
// rule.
Error read_failure(std::span<const Source* const> sources, const std::string& subject, int error);
// The same, with the tensor as the subject.
Error read_failure(const Tensor& tensor, int error);
// The same, of all files of a checkpoint: without a cause, its place is the checkpoint.
Error read_failure(const Checkpoint& checkpoint, const std::string& subject, int error);

}  // namespace stfs
