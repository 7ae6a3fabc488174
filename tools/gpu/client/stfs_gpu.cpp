// stfs-gpu: mapped tensors in device memory.
#include "core/base/error.h"
#include "tools/command/command_line.h"
#include "tools/gpu/client/client.h"
#include "tools/gpu/client/verbs.h"
#include "tools/gpu/copier/copier.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

namespace stfs::gpu {
namespace {

constexpr int kCopierSocket = 3;  // as the holder passes it

// CLI11 alone takes "-1" for the largest number, and larger ones too.
std::string begins_with_a_number(const std::string& size) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), number);
  return error == std::errc() ? "" : "not a number of bytes";
}

int run_command(int argc, char** argv) {
  CLI::App app("Copy mapped tensors into device memory and keep them there.", "stfs-gpu");
  app.set_version_flag("-V,--version", "stfs-gpu " STFS_VERSION);
  app.require_subcommand(1);

  GpuArguments arguments;
  std::error_code ignored;
  arguments.program = std::filesystem::read_symlink("/proc/self/exe", ignored).string();
  std::function<int(const GpuArguments&)> chosen;
  const auto add_verb = [&](const char* name, const char* what, int (*verb)(const GpuArguments&)) {
    CLI::App* added = app.add_subcommand(name, what);
    added->callback([&chosen, verb] { chosen = verb; });
    return added;
  };
  const auto add_device = [&](CLI::App* verb) {
    return verb->add_option("-d,--device", arguments.device, "cuda:N, a UUID of a GPU, or cpu")
        ->option_text("DEVICE");
  };
  std::string as;
  std::string shard;
  const auto add_names = [&](CLI::App* verb) {
    return verb->add_option("TENSOR", arguments.tensors,
                            "paths in a mount, directories there, or SOURCE::NAME");
  };
  const auto add_tensors = [&](CLI::App* verb) {
    verb->add_option("--as", as, "convert floating types")
        ->check(CLI::IsMember({"f32", "f16", "bf16"}).description(""))
        ->option_text("f32|f16|bf16");
    verb->add_option("--shard", shard, "only a rank's part: 0/8@1 is the first of eight of dim 1")
        ->option_text("RANK/WORLD@DIM");
    return add_names(verb);
  };
  const auto add_json = [&](CLI::App* verb) {
    verb->add_flag("--json", arguments.json, "print JSON");
  };
  const auto add_size = [&](CLI::App* verb, const char* name, std::uint64_t& value,
                            const char* what) {
    verb->add_option(name, value, what)
        ->transform(CLI::AsSizeValue(false))
        ->transform(
            CLI::Validator([](std::string& size) { return begins_with_a_number(size); }, ""))
        ->option_text("SIZE");
  };
  const auto add_copying = [&](CLI::App* verb) {
    verb->add_option("--workers", arguments.workers, "threads that copy")
        ->check(CLI::Range(1, 64).description(""))
        ->option_text("N");
    add_size(verb, "--tile", arguments.tile_bytes, "bytes copied at a time (default 4 MiB)");
  };
  const auto add_verify = [&](CLI::App* verb) {
    verb->add_flag("--verify", arguments.verify,
                   "read everything back and compare it with the source");
    add_size(verb, "--keep-free", arguments.keep_free, "bytes of the device that stay free");
  };

  CLI::App* verb = add_verb("devices", "list the devices", devices);
  add_json(verb);

  verb = add_verb("plan", "say what load would do", plan);
  add_device(verb)->required();
  add_tensors(verb)->required();
  add_size(verb, "--keep-free", arguments.keep_free, "bytes of the device that stay free");
  add_json(verb);

  verb = add_verb("load", "copy tensors to a device and keep them there", load);
  add_device(verb)->required();
  add_tensors(verb)->required();
  add_verify(verb);
  add_copying(verb);
  verb->add_flag("--pin", arguments.pin, "never evict them for others");
  verb->add_flag("-n,--dry-run", arguments.dry_run, "as plan");
  add_json(verb);

  verb = add_verb("ls", "list what is resident", list_resident);
  add_device(verb);
  add_json(verb);

  verb = add_verb("get", "print what a process needs to map a resident tensor", get);
  add_device(verb)->required();
  add_tensors(verb)->required();
  add_json(verb);

  for (const auto& [name, what, function] :
       {std::tuple("evict", "give the memory of tensors back", &evict),
        std::tuple("pin", "never evict tensors for others", &pin),
        std::tuple("unpin", "let them be evicted again", &unpin)}) {
    verb = add_verb(name, what, function);
    add_device(verb);
    add_tensors(verb);
    verb->add_flag("-a,--all", arguments.all, "everything that is resident");
    if (verb->get_name() == "evict") verb->add_flag("--force", arguments.force, "pinned ones too");
    add_json(verb);
  }

  verb = add_verb("run", "copy tensors and run a command that inherits them", run);
  add_device(verb)->required();
  add_tensors(verb)->required();
  add_verify(verb);
  add_copying(verb);

  verb = add_verb("bench", "measure a load against the device's limit", bench);
  add_device(verb)->required();
  add_names(verb)->required();
  add_copying(verb);
  verb->add_option("--rounds", arguments.rounds, "measurements of each")
      ->check(CLI::Range(1, 1000).description(""))
      ->option_text("N");
  add_json(verb);

  verb = add_verb("doctor", "say what would be used, and what is in the way", doctor);
  add_json(verb);

  verb = add_verb("holder", "keep what is loaded (load starts one when none runs)",
                  [](const GpuArguments& a) {
                    HolderOptions options = a.holder;
                    options.program = a.program;
                    options.socket_path = holder_socket_path();
                    return run_holder(options);
                  });
  add_size(verb, "--memory-limit", arguments.holder.memory_limit, "bytes to hold on each device");
  std::int64_t exit_idle = 0;
  std::int64_t copier_idle = arguments.holder.copier_idle.count();
  verb->add_option("--exit-idle", exit_idle, "leave after so many seconds without anything to keep")
      ->check(CLI::Range(1, 1000000).description(""))
      ->option_text("SECONDS");
  verb->add_flag("--background", arguments.holder.background, "return once it listens");
  verb->add_option("--copier-idle", copier_idle,
                   "how long a device's context is kept without a load (default 10)")
      ->check(CLI::Range(0, 1000000).description(""))
      ->option_text("SECONDS");

  verb = add_verb("copier", "", [](const GpuArguments& a) {
    return run_copier(UniqueFd(kCopierSocket), a.device, a.holder.copier_idle);
  });
  verb->group("");  // not for people: the holder starts it
  add_device(verb)->required();
  verb->add_option("--idle", copier_idle, "")->check(CLI::Range(0, 1000000));

  std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words.front() == "run") {
    const auto dashes = std::ranges::find(words, "--");
    if (dashes != words.end()) {
      arguments.command.assign(dashes + 1, words.end());
      words.erase(dashes, words.end());
    }
    const bool is_help = std::ranges::any_of(
        words, [](const std::string& word) { return word == "-h" || word == "--help"; });
    if (arguments.command.empty() && !is_help) {
      throw Error(ErrorCode::kUsage, "", "run needs a command: run TENSOR... -- COMMAND");
    }
  }
  if (const auto status = parse_words(app, std::move(words))) return *status;
  std::ranges::for_each(arguments.tensors, unguard);
  if (!as.empty()) {
    arguments.selection.as = as == "f32" ? DType::kF32 : as == "f16" ? DType::kF16 : DType::kBF16;
  }
  if (!shard.empty()) arguments.selection.shard = parse_shard(shard);
  if (exit_idle > 0) arguments.holder.exit_idle = std::chrono::seconds(exit_idle);
  arguments.holder.copier_idle = std::chrono::seconds(copier_idle);
  return chosen(arguments);
}

}  // namespace
}  // namespace stfs::gpu

int main(int argc, char** argv) {
  return stfs::run_to_exit("stfs-gpu", stfs::ErrorCode::kDeviceFailed,
                           [&] { return stfs::gpu::run_command(argc, argv); });
}
