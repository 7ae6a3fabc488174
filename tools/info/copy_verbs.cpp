// The verbs cat and extract.
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/checkpoint/checkpoint.h"
#include "core/opened/part.h"
#include "core/write/save.h"
#include "tools/info/output.h"
#include "tools/info/save_verbs.h"
#include "tools/info/select.h"
#include "tools/info/verbs.h"

#include <unistd.h>

#include <string>

namespace stfs {
namespace {

// Throws an Error if standard output is a terminal, because a terminal would obey control sequences
// in the bytes of a tensor.
void refuse_terminal(const std::string& instead) {
  if (::isatty(STDOUT_FILENO) != 1) return;
  throw Error(ErrorCode::kUsage, "", "standard output is a terminal: redirect it, or " + instead);
}

}  // namespace

int cat(const Arguments& arguments) {
  VerbSources sources(arguments);
  const Checkpoint checkpoint = open_checkpoint(arguments, sources);
  const Tensor tensor = find_tensor(checkpoint, arguments.source, arguments.tensor);
  PartOptions part{.as_f32 = arguments.as_f32, .has_npy_header = arguments.npy};
  if (!arguments.slice.empty()) part.slice = arguments.slice;
  PartRecipe recipe;
  if (part_recipe(tensor, part, recipe) != 0) {
    throw Error(ErrorCode::kUsage, public_name(arguments.source),
                "tensor " + in_quotes(tensor.name) + ": " + part_refusal(tensor, part));
  }
  refuse_terminal("pipe it to od(1)");
  refuse_source_as_output(sources);
  write_bytes(checkpoint, recipe.content, STDOUT_FILENO, kStandardOutput, nullptr);
  return 0;
}

int extract(const Arguments& arguments) {
  VerbSources sources(arguments);
  const Checkpoint checkpoint = open_checkpoint(arguments, sources);
  return save(checkpoint, select_tensors(checkpoint, arguments.source, arguments.globs), arguments,
              sources);
}

}  // namespace stfs
