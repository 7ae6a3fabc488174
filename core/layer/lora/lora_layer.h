// The layer `lora`: adapters merged into the weights of a checkpoint.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/remote/sources.h"
#include "core/stored/tensor_list.h"

#include <span>
#include <string>
#include <string_view>

namespace stfs {

inline constexpr std::string_view kLoraOption = "lora";

// "[SCALE@]ADAPTER": a number before the first "@" is a factor of the updates.
struct AdapterChoice {
  double scale;
  std::string_view directory;  // a path or a URL
};
AdapterChoice adapter_choice(std::string_view argument);
// The argument with an absolute path, or a pinned URL without secrets.
std::string resolved_adapter(const std::string& argument, Sources& sources);

// Merges the adapters in their order. `below` has sort_names(). Throws Error kAdapter for an
// adapter that is refused or does not fit the tensors.
TensorList merge_adapters(TensorList below, std::span<const std::string> arguments,
                          Sources& sources);

}  // namespace stfs
