// The options of the library: words like those of `stfs -o`, "key=value" or "key", one in each
// string.
//
// Thread safety and lifetime: plain values.
#pragma once

#include "core/base/option_row.h"
#include "core/checkpoint/checkpoint.h"
#include "core/remote/sources.h"
#include "core/write/delta.h"

#include <span>
#include <string>
#include <vector>

namespace stfs {

// A path that stays true when the working directory changes.
std::string absolute(const std::string& path);

// Sets what an option means after its row. Throws Error kUsage, also for one that has no row.
void set_option(std::span<const OptionRow> rows, const std::string& option, void* to);

// The options of stfs_open. Throws Error kUsage for what is none.
struct OpenOptions {
  explicit OpenOptions(std::span<const std::string> options);

  LoadOptions load;
  SourceOptions sources;
  std::string version;              // "": any
  std::vector<std::string> others;  // all but layers and the version, with absolute paths
  std::string directory;            // to which paths in lines of edits are relative; "": none
};

// The options of stfs_save_delta. Throws Error kUsage for what is none.
struct DeltaWords {
  explicit DeltaWords(std::span<const std::string> options);

  DeltaOptions delta;
};

}  // namespace stfs
