// The verbs of stfs-info, one function per verb. Each function prints to standard output and
// returns the exit status, or throws Error.
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

// The parsed command line. A verb uses only the members that belong to its options.
struct Arguments {
  enum class Sort { kName, kSize, kOffset };

  std::string source;
  std::string other;               // the second checkpoint of diff
  std::string tensor;              // cat: a name, or a glob that matches exactly one tensor
  std::vector<std::string> globs;  // names and globs; empty: all tensors
  std::vector<std::string> paths;  // info, check, report: checkpoints; where: mounted files
  std::string output;              // extract, report
  bool force = false;              // extract, report: an existing file may be replaced
  std::uint64_t shard_size = 0;    // maximum bytes of a shard; 0: write one file
  bool dry_run = false;            // extract, edit: only print what would be written
  bool shares = false;             // edit: lay the file out so that it shares blocks with SOURCE
  std::string against;             // report: another checkpoint; "": none
  std::string slice;               // cat (core/recipe/slice.h); "": the whole tensor
  bool as_f32 = false;
  bool npy = false;
  bool json = false;
  bool values = false;     // diff: also measure how far the values differ
  bool nonfinite = false;  // stats: only tensors with NaN or infinity
  std::string sort_by;     // stats, diff: a column; "": the order of the tensors
  unsigned top = 0;        // list, stats, diff: print only this many rows; 0: all
  bool no_header = false;  // list, stats, diff
  bool allow_missing = false;
  Layers layers;
  Layers old_layers, new_layers;  // layers of only the first or only the second checkpoint
  DeltaOptions delta;
  bool latest = false;  // follow
  std::string marker;   // follow: the name of a file; "": none
  Sort sort = Sort::kName;
  unsigned jobs = 0;  // threads; 0: one per processor
  SourceOptions sources = {};
  std::string action;                          // cache: "list", "prune" or "verify"
  std::optional<std::uint64_t> prune_to = {};  // bytes
  bool prune_all = false;

  unsigned threads() const {
    return jobs != 0 ? jobs : std::max(1U, std::thread::hardware_concurrency());
  }
};

// Sources that print warnings on standard error. Throws Error kUsage if the standard output would
// overwrite a source. The constructor checks the sources of the command line, and each file is
// checked when it is read.
struct VerbSources : Sources {
  explicit VerbSources(const Arguments& arguments);
};

void print_warning(const std::string& line);  // to standard error
void print_note(const std::string& place, const std::string& text);

// Returns the options with which a verb loads a checkpoint. `more` has the layers that apply to
// only one of two checkpoints. `sources` must outlive the checkpoint.
inline LoadOptions load_options(const Arguments& arguments, Sources& sources,
                                const Layers& more = {}) {
  Layers layers = arguments.layers;
  for (const Layer& layer : more) choose(layers, layer.option, layer.argument);
  return {.allow_missing = arguments.allow_missing,
          .layers = layers,
          .with_model_files = arguments.shares || arguments.shard_size != 0,
          .missing_hint = "--allow-missing reads the rest",
          // Warnings of layers are about values, so every verb prints them. Warnings about files
          // are printed by `info`.
          .warn = print_warning,
          .warns_of_refused_alone = layers.empty(),
          .sources = &sources};
}

// Runs `work` in another thread and waits for it. A read in `work` may never return, but this
// thread can still handle a signal then. Runs `work` in this thread if the system refuses to start
// another. Throws the exception of `work`.
void run_beside(const std::function<void()>& work);

// These read only headers, and no bytes of tensors.
int info(const Arguments& arguments);
int list(const Arguments& arguments);
int show(const Arguments& arguments);
int check(const Arguments& arguments);
int where(const Arguments& arguments);

// These read the bytes of tensors, several tensors at the same time.
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

// Prints the entries of the cache of remote sources, removes entries, or reads and checks them.
int cache(const Arguments& arguments);

// Returns the table of the command line. Its setters take an Arguments.
const CommandRow& info_command();

}  // namespace stfs
