#include "core/command/delta_rows.h"
#include "core/opened/open_rows.h"
#include "tools/info/verbs.h"

#include <array>
#include <filesystem>
#include <system_error>

namespace stfs {
namespace {

constexpr std::array kVerbs = {
    VerbRow{"info", "print a summary of a checkpoint", run_verb<info>},
    VerbRow{"list", "print the tensors", run_verb<list>},
    VerbRow{"show", "print dtype, shape, size and source of tensors", run_verb<show>},
    VerbRow{"check", "check files and directories against the format", run_verb<check>},
    VerbRow{"cat", "write a tensor's bytes to standard output", run_verb<cat>},
    VerbRow{"where", "print where the bytes of a mounted file are", run_verb<where>},
    VerbRow{"stats", "print count, min, max, mean, std, zeros, nan and inf", run_verb<stats>},
    VerbRow{"hash", "print the tensors' SHA-256 in the format of sha256sum", run_verb<hash>},
    VerbRow{"diff", "compare two checkpoints; exit status 1 when they differ", run_verb<diff>},
    VerbRow{"report", "write a page that describes the weights", run_verb<report>},
    VerbRow{"extract", "write some tensors to a new safetensors or GGUF file", run_verb<extract>},
    VerbRow{"edit", "show what edits would change, or write the result", run_verb<edit_verb>},
    VerbRow{"delta", "write the changes between two checkpoints", run_verb<delta>},
    VerbRow{"follow", "print each version of a run once it is complete", run_verb<follow>},
    VerbRow{"cache", "list, prune or verify the cache of remote sources", run_verb<cache>},
};

Layers& layers_of(void* arguments) { return static_cast<Arguments*>(arguments)->layers; }

void add_edit_line(void* arguments, const std::string& line) {
  std::error_code error;
  choose_edit_line(layers_of(arguments), std::filesystem::current_path(error).string(), line);
}

constexpr std::array kOwnOptions = {
    OptionRow{.flags = "SOURCE",
              .verbs = "list! show! cat! stats! hash! extract! edit!",
              .value = Value::kSource,
              .set = set<&Arguments::source>,
              .help = kSourceHelp},
    OptionRow{.flags = "SOURCE...",
              .verbs = "info! check! report!",
              .value = Value::kSource,
              .set = set<&Arguments::paths>,
              .help = kSourceHelp},
    OptionRow{.flags = "TENSOR",
              .verbs = "cat!",
              .value = Value::kTensor,
              .set = set<&Arguments::tensor>,
              .help = "the name of a tensor, or a glob that means one tensor"},
    OptionRow{.flags = "GLOB...",
              .verbs = "list show! stats hash extract!",
              .value = Value::kTensor,
              .set = set<&Arguments::globs>,
              .help = "only tensors with this name, or that match this glob"},
    OptionRow{.flags = "PATH...",
              .verbs = "where!",
              .value = Value::kPath,
              .set = set<&Arguments::paths>,
              .help = "files in a mount of stfs"},
    OptionRow{.flags = "DIR",
              .verbs = "follow!",
              .value = Value::kPath,
              .set = set<&Arguments::source>,
              .help = "a directory that a trainer writes versions into, also s3://... or hf://..."},
    OptionRow{.flags = "OLD",
              .verbs = "delta!",
              .value = Value::kSource,
              .set = set<&Arguments::source>,
              .help = "the checkpoint before"},
    OptionRow{.flags = "NEW",
              .verbs = "delta!",
              .value = Value::kSource,
              .set = set<&Arguments::other>,
              .help = "the checkpoint after"},
    OptionRow{.flags = "A",
              .verbs = "diff!",
              .value = Value::kSource,
              .set = set<&Arguments::source>,
              .help = "the first checkpoint"},
    OptionRow{.flags = "B",
              .verbs = "diff!",
              .value = Value::kSource,
              .set = set<&Arguments::other>,
              .help = "the second checkpoint"},
    OptionRow{.flags = "list|prune|verify",
              .verbs = "cache!",
              .argument = "list|prune|verify",
              .value = Value::kChoice,
              .set = set<&Arguments::action>,
              .help = "print the entries, remove them, or check their bytes"},
    OptionRow{.flags = "NAME...",
              .verbs = "cache",
              .set = set<&Arguments::globs>,
              .help = "only entries of this name, below it, or with this ID"},

    OptionRow{.flags = "-o,--output",
              .verbs = "extract!",
              .argument = "FILE",
              .value = Value::kSource,
              .set = set<&Arguments::output>,
              .help = "the file to write, - for standard output",
              .man =
                  "The file to write: a GGUF file if its name ends in `.gguf`, else a safetensors "
                  "file. A device or a pipe is written to directly. "
                  "`-` writes to standard output; `./-` is a file of that name."},
    OptionRow{.flags = "-o,--output",
              .verbs = "edit",
              .argument = "OUT",
              .value = Value::kSource,
              .set = set<&Arguments::output>,
              .help = "write the result: a .safetensors or .gguf file, or a new directory",
              .man = "Write the result: a safetensors or a GGUF file by the ending of its name, "
                     "or a new directory with the files that loaders need. "
                     "Without it `edit` prints what would change."},
    OptionRow{.flags = "-o,--output",
              .verbs = "delta!",
              .argument = "DIR",
              .value = Value::kPath,
              .set = set<&Arguments::output>,
              .help = "the directory to write, such as weight_v000012",
              .man = "The new directory, whose name ends in the number of the version, as "
                     "`weight_v000012` does."},
    OptionRow{.flags = "--latest",
              .verbs = "follow",
              .set = set<&Arguments::latest>,
              .help = "print the newest complete version, and end",
              .man = "Print the newest version that is complete, and end."},
    OptionRow{.flags = "--marker",
              .verbs = "follow",
              .argument = "NAME",
              .set = set<&Arguments::marker>,
              .help = "wait for this file in a version, too: STABLE",
              .man = "Wait for the file <name> in a version, too, such as `STABLE`."},
    OptionRow{
        .flags = "-f",
        .verbs = "edit",
        .argument = "FILE...",
        .value = Value::kPath,
        .set = [](void* to, const std::string& value) { choose(layers_of(to), "edit", value); },
        .help = "apply the edits in FILE, as --edit",
        .man = "Apply the edits in <file>, as `--edit` does."},
    OptionRow{.flags = "-e",
              .verbs = "info list show check cat stats hash diff report extract edit delta",
              .argument = "LINE...",
              .value = Value::kEditLine,
              .set = add_edit_line,
              .help = "apply one line of edits, such as 'drop *.bias'",
              .man = "Apply one line of the language of edits. "
                     "Paths in it are relative to the working directory."},
    OptionRow{.flags = "--shard-size",
              .verbs = "extract edit delta",
              .argument = "SIZE",
              .value = Value::kSize,
              .set = set<&Arguments::shard_size>,
              .help = "write a directory of shards of this size: 5GB",
              .man = "Write a new directory with shards of at most <size> bytes, each with one "
                     "tensor or more, and an index."},
    OptionRow{.flags = "--dry-run",
              .verbs = "extract edit",
              .set = set<&Arguments::dry_run>,
              .help = "print how much would be written, and shared with the source",
              .man = "Write nothing. "
                     "Print how many bytes the result would have, and how many of them it would "
                     "share with the source on this file system."},
    OptionRow{.flags = "-o,--output",
              .verbs = "report!",
              .argument = "FILE",
              .value = Value::kSource,
              .set = set<&Arguments::output>,
              .help = "the file to write, - for standard output",
              .man = "The page to write. A device or a pipe is written to directly. "
                     "`-` writes to standard output; `./-` is a file of that name."},
    OptionRow{.flags = "--force",
              .verbs = "extract edit report",
              .set = set<&Arguments::force>,
              .help = "replace an existing file, once the new one is complete",
              .man =
                  "Replace an existing regular file, once the new one is complete; for a symbolic "
                  "link, its target, not the link itself. A file that is read is never replaced."},
    OptionRow{.flags = "--against",
              .verbs = "report",
              .argument = "SOURCE",
              .value = Value::kSource,
              .set = set<&Arguments::against>,
              .help = "another checkpoint: show the differences from it",
              .man = "Also show how the tensors differ from the tensors with the same names in "
                     "this checkpoint."},
    OptionRow{.flags = "--slice",
              .verbs = "cat",
              .argument = "EXPR",
              .set = set<&Arguments::slice>,
              .help = "a part, written as in NumPy's brackets: 0:128,:",
              .man = "A part, written as in the brackets of NumPy: `0:128,:`, `-1`, `::2`, "
                     "`...,0`. "
                     "Steps are positive."},
    OptionRow{.flags = "--as",
              .verbs = "cat",
              .argument = "f32",
              .value = Value::kChoice,
              .set = set<&Arguments::as_f32>,
              .help = "convert a floating-point type to float32",
              .man = "Convert a floating-point type to float32."},
    OptionRow{.flags = "--npy",
              .verbs = "cat",
              .set = set<&Arguments::npy>,
              .help = "write a NumPy file",
              .man = "Write a NumPy file: its header before the bytes."},
    OptionRow{.flags = "--sort",
              .verbs = "list",
              .argument = "name|size|offset",
              .value = Value::kChoice,
              .set =
                  [](void* to, const std::string& order) {
                    using Sort = Arguments::Sort;
                    static_cast<Arguments*>(to)->sort = order == "size"     ? Sort::kSize
                                                        : order == "offset" ? Sort::kOffset
                                                                            : Sort::kName;
                  },
              .help = "name, size (the largest first) or offset",
              .man =
                  "The order of the list: by name (the default), by size (the largest first), or "
                  "by the position of the bytes."},
    OptionRow{.flags = "--sort",
              .verbs = "stats",
              .argument = "name|count|min|max|mean|std|zeros|nan|inf",
              .value = Value::kChoice,
              .set = set<&Arguments::sort_by>,
              .help = "the column to sort by, the largest first",
              .man = "The order of the statistics: `name` and `min` ascending, any other column "
                     "with the largest first. Tensors without the value come last."},
    OptionRow{.flags = "--sort",
              .verbs = "diff",
              .argument = "name|largest|distance|equal",
              .value = Value::kChoice,
              .set = set<&Arguments::sort_by>,
              .help = "by name, or with --values the farthest first",
              .man = "The order of the differences: by name, or with `--values` by the largest "
                     "difference, the relative distance or the share of equal elements, those that "
                     "are farthest apart first."},
    OptionRow{.flags = "--no-header",
              .verbs = "list stats diff",
              .set = set<&Arguments::no_header>,
              .help = "leave out the line of headings",
              .man = "Leave out the line of headings."},
    OptionRow{.flags = "--top",
              .verbs = "list stats diff",
              .argument = "N",
              .value = Value::kNumber,
              .set = set<&Arguments::top>,
              .help = "only the first N",
              .man = "Print only the first <n> tensors of the order.",
              .least = 1,
              .most = 1'000'000'000},
    OptionRow{.flags = "--nonfinite",
              .verbs = "stats",
              .set = set<&Arguments::nonfinite>,
              .help = "only tensors with NaN or infinity",
              .man = "Print only the tensors with NaN or infinity. The exit status is 1 if there "
                     "are any, and 0 if there are none."},
    OptionRow{
        .flags = "--values",
        .verbs = "diff",
        .set = set<&Arguments::values>,
        .help = "print how far apart the values are",
        .man =
            "Print for each tensor of both checkpoints, whose values can be compared and "
            "which differs: the largest difference, its place, the relative distance (the "
            "Frobenius norm of B - A divided by the norm of A), and the share of equal elements."},
    OptionRow{.flags = "-j,--jobs",
              .verbs = "stats hash diff report cache",
              .argument = "N",
              .value = Value::kNumber,
              .set = set<&Arguments::jobs>,
              .help = "read N tensors at a time (default: one per processor)",
              .man = "Read <n> tensors, or blocks of the cache, at a time; one for each processor "
                     "by default.",
              .least = 1,
              .most = 1024},
    OptionRow{.flags = "--json",
              .verbs = "info list show check where stats hash diff edit cache",
              .set = set<&Arguments::json>,
              .help = "print JSON",
              .man = "Print JSON, as described below."},
    OptionRow{.flags = "--to",
              .verbs = "cache",
              .argument = "SIZE",
              .value = Value::kSize,
              .set = set<&Arguments::prune_to>,
              .help = "prune the least recently used until SIZE bytes are left",
              .man = "Remove the entries that were used least recently until at most <size> is "
                     "left. "
                     "It is in bytes, or has a unit of powers of 1024: `16G`, `512MiB`."},
    OptionRow{.flags = "--all",
              .verbs = "cache",
              .set = set<&Arguments::prune_all>,
              .help = "prune all entries that are not in use",
              .man = "Remove all entries that are not in use."},
};

Layers& old_layers_of(void* arguments) { return static_cast<Arguments*>(arguments)->old_layers; }
Layers& new_layers_of(void* arguments) { return static_cast<Arguments*>(arguments)->new_layers; }

constexpr std::array kLayerOptions =
    joined(layer_rows<layers_of>(
               "info list show check cat stats hash diff report extract edit delta", false),
           joined(layer_rows<old_layers_of>("diff report delta", false, LayersOf::kOld),
                  layer_rows<new_layers_of>("diff report delta", false, LayersOf::kNew)));

constexpr std::array kOptions = joined(
    joined(joined(joined(kOwnOptions, missing_row<&Arguments::allow_missing>(
                                          "info list show cat stats hash diff report extract edit "
                                          "delta",
                                          false)),
                  delta_rows<&Arguments::delta>(false)),
           kLayerOptions),
    source_rows<&Arguments::sources>(
        "info list show check cat stats hash diff report extract edit delta follow",
        "info list show check cat stats hash diff report extract edit delta follow cache", false));

constexpr CommandRow kCommand = {
    .name = "stfs-info",
    .help = "Inspect a safetensors checkpoint without mounting it.",
    .notes =
        "Exit status: 0 success, 1 the checkpoint breaks the format, diff found a\n"
        "difference, stats --nonfinite NaN or infinity or cache verify damage, 2 wrong\n"
        "usage, 3 the source cannot be read.\n",
    .verb_of_path = "info",
    .verbs = kVerbs,
    .options = kOptions};

}  // namespace

const CommandRow& info_command() { return kCommand; }

}  // namespace stfs
