#include "tools/select.h"

#include "core/error.h"
#include "core/text.h"

#include <fnmatch.h>

#include <algorithm>

namespace stfs {

std::vector<std::uint32_t> select_tensors(const Checkpoint& checkpoint,
                                          std::span<const std::string> globs) {
  std::vector<std::uint32_t> selected;
  std::string name;
  const auto matches = [&](const std::string& glob) {
    // fnmatch reads to the first NUL: a name with one in it is matched by no pattern.
    return name.find('\0') == std::string::npos && ::fnmatch(glob.c_str(), name.c_str(), 0) == 0;
  };
  for (std::uint32_t i = 0; i < checkpoint.tensor_count(); ++i) {
    name = checkpoint.name(i);
    if (globs.empty() || std::ranges::any_of(globs, matches)) selected.push_back(i);
  }
  return selected;
}

Tensor find_tensor(const Checkpoint& checkpoint, const std::string& source,
                   const std::string& name) {
  if (const auto found = checkpoint.find(name)) return checkpoint.tensor(*found);
  throw Error(ErrorCode::kUsage, source, "tensor " + in_quotes(name) + ": not in the checkpoint");
}

}  // namespace stfs
