// stfs-info: the same checkpoints without a mount.
#include "tools/command/command_line.h"
#include "tools/info/verbs.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <functional>
#include <string>

namespace stfs {
namespace {

int run(int argc, char** argv) {
  CLI::App app("Look into a safetensors checkpoint without mounting it.", "stfs-info");
  app.set_version_flag("-V,--version", "stfs-info " STFS_VERSION);
  app.require_subcommand(1);

  Arguments arguments;
  std::function<int(const Arguments&)> chosen;
  const auto add_verb = [&](const char* name, const char* what, int (*verb)(const Arguments&)) {
    CLI::App* added = app.add_subcommand(name, what);
    added->callback([&chosen, verb] { chosen = verb; });
    return added;
  };
  const auto add_source = [&](CLI::App* verb) {
    verb->add_option("SOURCE", arguments.source, "a .safetensors file, an index, or a directory")
        ->required();
  };
  const auto add_allow_missing = [&](CLI::App* verb) {
    verb->add_flag("--allow-missing", arguments.allow_missing,
                   "go on without missing shards and tensors");
  };
  const auto add_tensor = [&](CLI::App* verb) {
    verb->add_option("TENSOR", arguments.tensor, "its name")->required();
  };
  const auto add_globs = [&](CLI::App* verb) {
    return verb->add_option("GLOB", arguments.globs, "only the tensors whose names match one");
  };
  const auto add_json = [&](CLI::App* verb) {
    verb->add_flag("--json", arguments.json, "print JSON");
  };
  const auto add_jobs = [&](CLI::App* verb) {
    verb->add_option("-j,--jobs", arguments.jobs,
                     "tensors read at a time (default: one a processor)")
        ->check(CLI::Range(1, 1024))
        ->option_text("N");
  };

  CLI::App* verb = add_verb("list", "print the tensors", list);
  add_source(verb);
  add_globs(verb);
  add_json(verb);
  add_allow_missing(verb);
  std::string sort = "name";
  verb->add_option("--sort", sort, "name, size (the largest first) or offset")
      ->check(CLI::IsMember({"name", "size", "offset"}).description(""))
      ->option_text("name|size|offset");

  verb = add_verb("show", "print what is known of one tensor", show);
  add_source(verb);
  add_tensor(verb);
  add_json(verb);
  add_allow_missing(verb);

  verb = add_verb("check", "check files against the format", check);
  verb->add_option("FILE", arguments.paths, "files, index files or directories")->required();

  verb = add_verb("cat", "write a tensor's bytes to standard output", cat);
  add_source(verb);
  add_tensor(verb);
  verb->add_option("--slice", arguments.slice, "a part, as between NumPy's brackets: 0:128,:")
      ->option_text("EXPR");
  std::string as;
  verb->add_option("--as", as, "convert a floating type")
      ->check(CLI::IsMember({"f32"}).description(""))
      ->option_text("f32");
  verb->add_flag("--npy", arguments.npy, "as a NumPy file");
  add_allow_missing(verb);

  verb = add_verb("where", "print where the bytes of a mounted file are", where);
  verb->add_option("PATH", arguments.paths, "files in a mount of stfs")->required();
  add_json(verb);

  verb = add_verb("stats", "print count, min, max, mean, std, zeros, nan and inf", stats);
  add_source(verb);
  add_globs(verb);
  add_json(verb);
  add_jobs(verb);
  add_allow_missing(verb);

  verb = add_verb("hash", "print the tensors' SHA-256 as sha256sum does of a mount", hash);
  add_source(verb);
  add_globs(verb);
  add_json(verb);
  add_jobs(verb);
  add_allow_missing(verb);

  verb = add_verb("diff", "compare two checkpoints; exit status 1 when they differ", diff);
  verb->add_option("A", arguments.source, "a checkpoint")->required();
  verb->add_option("B", arguments.other, "another")->required();
  add_json(verb);
  add_jobs(verb);
  add_allow_missing(verb);

  verb = add_verb("extract", "write some tensors to a new safetensors file", extract);
  add_source(verb);
  add_globs(verb)->required();
  verb->add_option("-o,--output", arguments.output, "the file, replaced when it is complete")
      ->required()
      ->option_text("FILE");
  add_allow_missing(verb);

  if (const auto status = parse_words(app, {argv + 1, argv + argc})) return *status;
  for (std::string* word : {&arguments.source, &arguments.other, &arguments.tensor,
                            &arguments.output, &arguments.slice}) {
    unguard(*word);
  }
  std::ranges::for_each(arguments.globs, unguard);
  std::ranges::for_each(arguments.paths, unguard);
  arguments.as_f32 = !as.empty();
  arguments.sort = sort == "size"     ? Arguments::Sort::kSize
                   : sort == "offset" ? Arguments::Sort::kOffset
                                      : Arguments::Sort::kName;
  return chosen(arguments);
}

}  // namespace
}  // namespace stfs

int main(int argc, char** argv) {
  return stfs::run_to_exit("stfs-info", stfs::ErrorCode::kUnreadable,
                           [&] { return stfs::run(argc, argv); });
}
