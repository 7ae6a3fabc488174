// The verb delta: writes the changes between two checkpoints in the form in which trainers publish
// them.
#include "core/base/text.h"
#include "core/checkpoint/checkpoint.h"
#include "core/command/terminal.h"
#include "core/write/delta.h"
#include "tools/info/verbs.h"

#include <cstdint>
#include <span>
#include <string>

namespace stfs {

int delta(const Arguments& arguments) {
  DeltaOptions options = arguments.delta;
  options.output = arguments.output;
  options.shard_size = arguments.shard_size;
  options.threads = arguments.threads();
  set_numbers(options);
  VerbSources sources(arguments);
  const Checkpoint before(std::span(&arguments.source, 1),
                          load_options(arguments, sources, arguments.old_layers));
  const Checkpoint after(std::span(&arguments.other, 1),
                         load_options(arguments, sources, arguments.new_layers));
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < after.tensor_count(); ++i) bytes += after.tensor(i).length;
  ProgressBar bar(bytes);
  const NewDelta made = write_delta(before, after, arguments.other, options,
                                    [&](std::uint64_t done) { bar.add(done); });
  bar.end();
  if (Terminal().is_terminal) {
    print(printable(arguments.output) + ": " + std::to_string(made.changed) + " of " +
          std::to_string(after.tensor_count()) + " tensors changed, " + human_bytes(made.bytes) +
          "\n");
  }
  return 0;
}

}  // namespace stfs
