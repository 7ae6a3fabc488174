// Opens the checkpoint and finds the tensors that a command line names. What is named and means no
// tensor is an Error kUsage that begins with `source`, the checkpoint as the user typed it.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "tools/info/verbs.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// Loads Arguments::source. Throws Error as Checkpoint does, and kUsage when the operands seem to be
// in another order.
Checkpoint open_checkpoint(const Arguments& arguments, Sources& sources);

// The numbers, ascending, of the tensors that the operands of a verb mean: each is a name or a glob
// (core/checkpoint/select.h) and must mean a tensor. All tensors without operands.
std::vector<std::uint32_t> select_tensors(const Checkpoint& checkpoint, const std::string& source,
                                          std::span<const std::string> operands);

// Sorts tensors by name, in the natural order (core/base/text.h).
void sort_naturally(const Checkpoint& checkpoint, std::vector<std::uint32_t>& numbers);

// The one tensor that `operand` means, borrowed from the checkpoint.
Tensor find_tensor(const Checkpoint& checkpoint, const std::string& source,
                   const std::string& operand);

// The quantised weights that the checkpoint shows as codes (core/layer/quantised), in words: "224
// quantised weights (block FP8) are shown as stored: --dequantize=bf16 shows their values"; "" for
// none. `option` is the one that shows the values.
std::string stored_codes_text(const Checkpoint& checkpoint, Sources& sources,
                              std::string_view option = "--dequantize");
// Prints that of Arguments::source on standard error; with --json nothing.
void note_stored_codes(const Checkpoint& checkpoint, const Arguments& arguments, Sources& sources);

}  // namespace stfs
