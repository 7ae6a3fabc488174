#include "tools/info/save_verbs.h"

#include "core/base/text.h"
#include "core/command/terminal.h"
#include "core/format/types.h"
#include "core/write/save.h"
#include "tools/info/output.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

namespace stfs {
namespace {

// Returns a text such as "3 tensors, 14.2 GiB, 14.1 GiB of it shared with the source".
std::string summary(std::size_t tensors, std::uint64_t bytes, std::uint64_t shared) {
  std::string text =
      std::to_string(tensors) + (tensors == 1 ? " tensor, " : " tensors, ") + human_bytes(bytes);
  if (shared != 0) text += ", " + human_bytes(shared) + " of it shared with the source";
  return text;
}

// Prints a note if tensors of block types are written to a safetensors file, which has no such
// types.
void note_blocks(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors,
                 const std::string& output) {
  if (output.ends_with(".gguf")) return;
  std::uint64_t count = 0, stored = 0, written = 0;
  for (const std::uint32_t number : tensors) {
    const Tensor tensor = checkpoint.tensor(number);
    if (type_info(tensor.dtype).kind != TypeKind::kQuantized) continue;
    ++count;
    stored += tensor.length;
    written += tensor.elements() * sizeof(float);
  }
  if (count == 0) return;
  print_note(output, std::to_string(count) + (count == 1 ? " tensor" : " tensors") +
                         " of block types written as F32: " + human_bytes(written) +
                         " in place of " + human_bytes(stored) +
                         " (a name that ends in .gguf keeps the blocks)");
}

// Prints a note if several shards become one file in a directory although shards were possible.
void note_shards(const Checkpoint& checkpoint, const Plan& plan, const Arguments& arguments) {
  const auto shards = std::ranges::count(checkpoint.parts(), false, &Part::is_input);
  if (!plan.is_directory() || arguments.shard_size != 0 || shards < 2) return;
  print_note(arguments.output, std::to_string(shards) + " files become one, of " +
                                   human_bytes(plan.bytes()) + " (--shard-size=5GB makes shards)");
}

}  // namespace

int save(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors,
         const Arguments& arguments, const Sources& sources) {
  const Plan plan(checkpoint, tensors,
                  {.source = arguments.source,
                   .output = arguments.output,
                   .shard_size = arguments.shard_size,
                   .shares = arguments.shares});
  note_blocks(checkpoint, tensors, arguments.output);
  note_shards(checkpoint, plan, arguments);
  if (arguments.dry_run) {
    const std::uint64_t shared = plan.shareable();
    print(printable(arguments.output) + ": would have " +
          summary(tensors.size(), plan.bytes(), shared) + ", " +
          human_bytes(plan.bytes() - shared) + " copied\n");
    return 0;
  }
  std::uint64_t shared = 0;
  bool is_new_file = true;
  {
    ProgressBar bar(plan.bytes());
    const Progress progress = [&](std::uint64_t bytes) { bar.add(bytes); };
    if (plan.is_directory()) {
      shared = plan.write_directory(SignalCleanup::kRemove, progress);
    } else {
      Output output(arguments, sources);
      run_beside([&] { shared = plan.write_file(output.fd(), output.name(), progress); });
      is_new_file = output.is_new_file();
      bar.end();
      output.commit();
    }
  }
  if (is_new_file && Terminal().is_terminal) {
    print(printable(arguments.output) + ": " + summary(tensors.size(), plan.bytes(), shared) +
          "\n");
  }
  return 0;
}

}  // namespace stfs
