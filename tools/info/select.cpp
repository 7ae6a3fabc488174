#include "tools/info/select.h"

#include "core/base/error.h"
#include "core/base/text.h"

namespace stfs {

Tensor find_tensor(const Checkpoint& checkpoint, const std::string& source,
                   const std::string& name) {
  if (const auto number = checkpoint.find(name)) return checkpoint.tensor(*number);
  throw Error(ErrorCode::kUsage, source, "tensor " + in_quotes(name) + ": not in the checkpoint");
}

}  // namespace stfs
