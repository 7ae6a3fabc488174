// Opens the checkpoint and finds the tensors that a command line names. The functions throw Error
// kUsage for an operand that names no tensor. The message begins with `source`, which is the
// checkpoint as the user typed it, or with the operand if the operand is a file.
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

// Loads Arguments::source. Throws Error like Checkpoint, and kUsage if the operands seem to be in
// the wrong order.
Checkpoint open_checkpoint(const Arguments& arguments, Sources& sources);

// Returns the numbers, in ascending order, of the tensors that the operands of a verb mean. Each
// operand is a name or a glob (core/checkpoint/select.h) and must match a tensor. Without operands,
// returns all tensors.
std::vector<std::uint32_t> select_tensors(const Checkpoint& checkpoint, const std::string& source,
                                          std::span<const std::string> operands);

// Sorts tensors by name, in the natural order (core/base/text.h).
void sort_naturally(const Checkpoint& checkpoint, std::vector<std::uint32_t>& numbers);

// Returns the one tensor that `operand` means. It borrows from the checkpoint.
Tensor find_tensor(const Checkpoint& checkpoint, const std::string& source,
                   const std::string& operand);

// Returns a text about the quantised weights that the checkpoint shows as codes
// (core/layer/quantised), or "" if there are none. For instance: "224 quantised weights (block FP8)
// are shown as stored: --dequantize=bf16 shows their values". `option` is the option that shows the
// values.
std::string stored_codes_text(const Checkpoint& checkpoint, Sources& sources,
                              std::string_view option = "--dequantize");
// Prints the text for Arguments::source on standard error, or nothing with --json.
void note_stored_codes(const Checkpoint& checkpoint, const Arguments& arguments, Sources& sources);

}  // namespace stfs
