// The options of stfs_open and stfs_save_delta: words "key=value" into what those need.
//
// Thread safety and lifetime: plain values.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/remote/sources.h"
#include "core/write/delta.h"

#include <span>
#include <string>
#include <vector>

namespace stfs {

// The options of stfs_open. Throws Error kUsage for what is none.
struct OpenOptions {
  explicit OpenOptions(std::span<const std::string> options);

  LoadOptions load;
  SourceOptions sources;
  std::string version;              // "": any
  std::vector<std::string> others;  // all but layers and the version, with absolute paths
};

// The options of stfs_save_delta. Throws Error kUsage for what is none.
struct DeltaWords {
  explicit DeltaWords(std::span<const std::string> options);

  DeltaOptions delta;
};

}  // namespace stfs
