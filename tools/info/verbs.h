// What stfs-info does: a function a verb. Each prints to standard output and returns the exit
// status, or throws Error.
#pragma once

#include "core/base/command.h"

#include <string>
#include <vector>

namespace stfs {

// What the command line said; a verb looks at what concerns it.
struct Arguments {
  enum class Sort { kName, kSize, kOffset };

  std::string source;
  std::string other;               // the second checkpoint of diff
  std::string tensor;              // a name
  std::vector<std::string> globs;  // of names; none means all
  std::vector<std::string> paths;  // files to check, paths in a mount
  std::string output;              // of extract
  std::string slice;               // of cat, as core/recipe/slice.h says; empty means the whole
  bool as_f32 = false;
  bool npy = false;
  bool json = false;
  bool allow_missing = false;
  Sort sort = Sort::kName;
  unsigned jobs = 0;  // threads; 0: one a processor
};

// Looking at the catalogue: no tensor's bytes are read.
int list(const Arguments& arguments);
int show(const Arguments& arguments);
int check(const Arguments& arguments);
int where(const Arguments& arguments);

// Reading values, several tensors at a time.
int stats(const Arguments& arguments);
int hash(const Arguments& arguments);
int diff(const Arguments& arguments);

// Writing bytes.
int cat(const Arguments& arguments);
int extract(const Arguments& arguments);

// The table of the command line; its arguments are an Arguments.
const CommandRow& info_command();

}  // namespace stfs
