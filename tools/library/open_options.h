// The options of the library: the same words as in `stfs -o`, "key=value" or "key", one per string.
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

// Returns the absolute form of a path, which stays valid when the working directory changes.
std::string absolute(const std::string& path);

// Sets the member of the object `to` that the row of an option describes. Throws Error kUsage if no
// row has this key or the value is invalid.
void set_option(std::span<const OptionRow> rows, const std::string& option, void* to);

// The options of stfs_open(). Throws Error kUsage for an unknown or invalid option.
struct OpenOptions {
  explicit OpenOptions(std::span<const std::string> options);

  LoadOptions load;
  SourceOptions sources;
  std::string version;  // the expected version; "": any
  // The options except layers and the version, with absolute paths.
  std::vector<std::string> others;
  std::string directory;  // the base of relative paths in `edits`; "": they have none
};

// The options of stfs_save_delta(). Throws Error kUsage for an unknown or invalid option.
struct DeltaWords {
  explicit DeltaWords(std::span<const std::string> options);

  DeltaOptions delta;
};

}  // namespace stfs
