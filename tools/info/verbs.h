// The verbs of stfs-info: a function a verb. Each prints to standard output and returns the exit
// status, or throws Error.
#pragma once

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/checkpoint/checkpoint.h"
#include "core/command/command.h"
#include "core/layer/layer.h"
#include "core/remote/http/url.h"
#include "core/remote/sources.h"
#include "core/write/delta.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace stfs {

// The parsed command line. A verb uses the members of the options that it takes.
struct Arguments {
  enum class Sort { kName, kSize, kOffset };

  std::string source;
  std::string other;               // the second checkpoint of diff
  std::string tensor;              // of cat: a name, or a glob that means one tensor
  std::vector<std::string> globs;  // names and globs; empty: all tensors
  std::vector<std::string> paths;  // of info, check, report: checkpoints; of where: mounted files
  std::string output;              // of extract and report
  bool force = false;              // of extract and report: an existing file may be replaced
  std::uint64_t shard_size = 0;    // bytes; 0: one file
  bool dry_run = false;            // extract, edit: tell what would be written
  bool shares = false;             // edit: lay the file out so that it shares blocks with SOURCE
  std::string against;             // of report: another checkpoint; "": none
  std::string slice;               // of cat (core/recipe/slice.h); "": the whole tensor
  bool as_f32 = false;
  bool npy = false;
  bool json = false;
  bool values = false;     // diff: how far the values are from each other
  bool nonfinite = false;  // stats: only tensors with NaN or infinity
  std::string sort_by;     // stats, diff: a column; "": the order of the tensors
  unsigned top = 0;        // list, stats, diff: only so many; 0: all
  bool no_header = false;  // list, stats, diff
  bool allow_missing = false;
  Layers layers;
  Layers old_layers, new_layers;  // of one of two checkpoints
  DeltaOptions delta;
  bool latest = false;  // of follow, as is what follows
  std::string marker;   // a file; "": none
  Sort sort = Sort::kName;
  unsigned jobs = 0;  // threads; 0: one a processor
  SourceOptions sources = {};
  std::string action;                          // of cache: list, prune, verify
  std::optional<std::uint64_t> prune_to = {};  // bytes
  bool prune_all = false;

  unsigned threads() const {
    return jobs != 0 ? jobs : std::max(1U, std::thread::hardware_concurrency());
  }
};

// Sources that warn the user on standard error. Throws Error kUsage for one that the standard
// output would overwrite: when it is made, those of the command line, and later those that are
// read.
struct VerbSources : Sources {
  explicit VerbSources(const Arguments& arguments);
};

void print_warning(const std::string& line);  // to standard error
void print_note(const std::string& place, const std::string& text);

// How a verb loads its checkpoints.
// `more` are the layers of one of two checkpoints.
inline LoadOptions load_options(const Arguments& arguments, Sources& sources,
                                const Layers& more = {}) {
  Layers layers = arguments.layers;
  for (const Layer& layer : more) choose(layers, layer.option, layer.argument);
  return {.allow_missing = arguments.allow_missing,
          .layers = layers,
          .with_model_files = arguments.shares || arguments.shard_size != 0,
          .missing_hint = "--allow-missing reads the rest",
          // Warnings of layers are about values; `info` shows those about files.
          .warn = print_warning,
          .warns_of_refused_alone = layers.empty(),
          .sources = &sources};
}

// Runs `work` in another thread, since a read may never return and this thread can still take a
// signal; in this one where the system refuses threads. Throws the exception of `work`.
void run_beside(const std::function<void()>& work);

// These read headers alone, and no tensor's bytes.
int info(const Arguments& arguments);
int list(const Arguments& arguments);
int show(const Arguments& arguments);
int check(const Arguments& arguments);
int where(const Arguments& arguments);

// These read the bytes of several tensors at a time.
int stats(const Arguments& arguments);
int hash(const Arguments& arguments);
int diff(const Arguments& arguments);
int report(const Arguments& arguments);

// These write bytes.
int cat(const Arguments& arguments);
int extract(const Arguments& arguments);
int edit_verb(const Arguments& given);
int delta(const Arguments& arguments);
// Prints the versions in a directory as they become complete.
int follow(const Arguments& arguments);

// Prints the entries of the cache of sources elsewhere, removes them, or reads and checks them.
int cache(const Arguments& arguments);

// The table of the command line. Its setters take an Arguments.
const CommandRow& info_command();

}  // namespace stfs
