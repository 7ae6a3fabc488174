// The rows of the command lines for DeltaOptions. They have the same names in all commands.
//
// Thread safety and lifetime: rows are constants.
#pragma once

#include "core/command/command.h"
#include "core/write/delta.h"

#include <array>

namespace stfs {

// Returns the rows. `kMember` is the member of a command's arguments that holds the DeltaOptions.
// With `in_list`, the rows are for a list: "encoding" instead of "--encoding".
template <auto kMember>
constexpr std::array<OptionRow, 4> delta_rows(bool in_list) {
  return {{
      {.flags = in_list ? "encoding" : "--encoding",
       .verbs = "delta",
       .argument = "xor|overwrite",
       .value = Value::kChoice,
       .set = set<kMember, &DeltaOptions::encoding>,
       .help = "how changes are written (default: xor)",
       .man = "How changes are written: `xor`, the default, as differences of all bytes, or "
              "`overwrite`, as positions and new bytes."},
      {.flags = in_list ? "checksum" : "--checksum",
       .verbs = "delta",
       .argument = "xxh3-128|adler32",
       .value = Value::kChoice,
       .set = set<kMember, &DeltaOptions::checksum>,
       .help = "the checksum of each tensor (default: xxh3-128)",
       .man = "The checksum of each changed tensor; `xxh3-128` by default."},
      {.flags = in_list ? "version" : "--version",
       .verbs = "delta",
       .argument = "N",
       .value = Value::kNumber,
       .set = set<kMember, &DeltaOptions::version>,
       .help = "the number of the version (default: from the name of DIR)",
       .man = "The number of the version, in place of the number in the name of <dir>.",
       .least = 1,
       .most = 999999999},
      {.flags = in_list ? "base" : "--base",
       .verbs = "delta",
       .argument = "N",
       .value = Value::kNumber,
       .set = set<kMember, &DeltaOptions::base>,
       .help = "the number of OLD (default: one less)",
       .man = "The number of <old>; by default the number of the version minus one.",
       .least = 0,
       .most = 999999999},
  }};
}

}  // namespace stfs
