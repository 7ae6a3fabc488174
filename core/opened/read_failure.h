// Finds out which source made a read fail, and why.
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

// Returns the sources that a tensor is read from. The first provides most of its bytes.
std::vector<const Source*> sources_of(const Tensor& tensor);

// Returns an Error kUnreadable for a read that failed with the errno `error`. Its place is the
// first source that has changed (if `error` is ESTALE) or that has failed, or else the first
// source. Its message is "subject: rule", or only the rule if `subject` is "".
Error read_failure(std::span<const Source* const> sources, const std::string& subject, int error);
// Returns the same with the tensor as the subject.
Error read_failure(const Tensor& tensor, int error);
// Returns the same for all files of a checkpoint. If no source is the cause, its place is the
// checkpoint.
Error read_failure(const Checkpoint& checkpoint, const std::string& subject, int error);

}  // namespace stfs
