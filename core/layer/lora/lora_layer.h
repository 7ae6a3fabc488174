// The layer `lora`: merges adapters into the weights of a checkpoint.
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

// The parts of "[SCALE@]ADAPTER". Text before the first "@" is a scale if it is a number.
struct AdapterChoice {
  double scale;                // a factor for all updates of the adapter
  std::string_view directory;  // a path or a URL
};
// Splits an argument. The directory is "" if the argument names no adapter.
AdapterChoice adapter_choice(std::string_view argument);
// Returns the argument with an absolute path, or with a pinned URL without secrets.
std::string resolved_adapter(const std::string& argument, Sources& sources);

// Merges the adapters in the order of the arguments. `below` has sorted names
// (TensorList::sort_names()). Throws Error kAdapter for an adapter that is not supported or does
// not fit the tensors.
TensorList merge_adapters(TensorList below, std::span<const std::string> arguments,
                          Sources& sources);

}  // namespace stfs
