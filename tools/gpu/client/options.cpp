#include "core/opened/open_rows.h"
#include "tools/gpu/client/client.h"
#include "tools/gpu/client/verbs.h"
#include "tools/gpu/copier/copier.h"
#include "tools/gpu/device/narrowing.h"

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace stfs::gpu {
namespace {

int hold(const GpuArguments& arguments) {
  HolderOptions options = arguments.holder;
  options.program = arguments.program;
  options.socket_path = holder_socket_path();
  return run_holder(options);
}

int copy_for_holder(const GpuArguments& arguments) {
  return run_copier(UniqueFd(kCopierSocket), arguments.device, arguments.holder.copier_idle);
}

constexpr std::array kVerbs = {
    VerbRow{"devices", "list the devices", run_verb<devices>},
    VerbRow{"plan", "print what load would do", run_verb<plan>},
    VerbRow{"load", "copy tensors to a device and keep them there", run_verb<load>},
    VerbRow{"ls", "list the resident tensors", run_verb<list_resident>},
    VerbRow{"get", "print how a process can map a resident tensor", run_verb<get>},
    VerbRow{"evict", "free the memory of tensors", run_verb<evict>},
    VerbRow{"pin", "never evict tensors to make room for others", run_verb<pin>},
    VerbRow{"unpin", "permit their eviction again", run_verb<unpin>},
    VerbRow{"run", "copy tensors and run a command that inherits them", run_verb<run>},
    VerbRow{"doctor", "print driver, devices and holder, and find problems", run_verb<doctor>},
    VerbRow{"holder", "keep loaded tensors (load starts a holder if none runs)", run_verb<hold>},
    VerbRow{"copier", "", run_verb<copy_for_holder>},
};

GpuArguments& of(void* arguments) { return *static_cast<GpuArguments*>(arguments); }

// CUDA shows an instance of a GPU (MIG) only if the variable names it before the process
// initialises CUDA.
void set_device(void* to, const std::string& device) {
  of(to).device = device;
  if (device.starts_with("MIG-")) ::setenv("CUDA_VISIBLE_DEVICES", device.c_str(), 0);
}

std::chrono::seconds seconds(const std::string& value) {
  return std::chrono::seconds(std::stoll(value, nullptr, 0));
}

void set_copier_idle(void* to, const std::string& value) {
  of(to).holder.copier_idle = seconds(value);
}

constexpr std::array kOwnOptions = {
    OptionRow{.flags = "-d,--device",
              .verbs = "plan! load! ls get! evict pin unpin run! copier!",
              .argument = "DEVICE",
              .value = Value::kDevice,
              .set = set_device,
              .help = "cuda:N, a UUID of a GPU, or cpu",
              .man = "The device: `cuda:N`, a UUID of a GPU or of an instance of one (MIG), or "
                     "`cpu`."},
    OptionRow{.flags = "TENSOR...",
              .verbs = "plan! load! get! evict pin unpin run!",
              .value = Value::kTensorPath,
              .set = set<&GpuArguments::tensors>,
              .help =
                  "a path in a mount, SOURCE::NAME, or SOURCE: a .safetensors or .gguf file, an "
                  "index of shards, a directory with one, or a URL"},
    OptionRow{.flags = "--",
              .verbs = "run!",
              .argument = "COMMAND [ARGUMENT...]",
              .value = Value::kCommand,
              .help = "the program to run"},
    OptionRow{.flags = "--as",
              .verbs = "plan load get evict pin unpin run",
              .argument = "f32|f16|bf16",
              .value = Value::kChoice,
              .set = [](void* to,
                        const std::string& type) { of(to).selection.as = conversion_target(type); },
              .help = "convert floating and block types",
              .man =
                  "Convert floating-point elements, and the block types of GGUF, rounded to "
                  "nearest, ties to even. "
                  "A warning says where the host must convert for a GPU, which is slower. "
                  "Values that become infinite and NaNs are counted, and the counts go to standard "
                  "error. "
                  "If several are loaded, tensors of other types keep their type, and the command "
                  "counts them. "
                  "If only one tensor is named, this is an error."},
    OptionRow{.flags = "--shard",
              .verbs = "plan load get evict pin unpin run",
              .argument = "RANK/WORLD@DIM",
              .set = [](void* to,
                        const std::string& value) { of(to).selection.shard = parse_shard(value); },
              .help = "a rank's part: 0/8@1 is the first eighth of dimension 1",
              .man =
                  "The part of a rank in tensor parallelism: part <rank> of <world> equal parts of "
                  "dimension <dim>. "
                  "Ranks and dimensions count from 0. "
                  "If several are loaded, tensors without the dimension are loaded whole, and the "
                  "command counts them as `replicated`. "
                  "If only one tensor is named, this is an error. "
                  "A dimension that cannot be divided into equal parts, or only inside of the "
                  "blocks of a type of GGUF, is always an error."},
    OptionRow{.flags = "--verify",
              .verbs = "load run",
              .set = set<&GpuArguments::verify>,
              .help = "read everything back and compare it with the source",
              .man = "Read everything back from the device and compare it with the source."},
    OptionRow{
        .flags = "--keep-free",
        .verbs = "plan load run",
        .argument = "SIZE",
        .value = Value::kSize,
        .set = [](void* to,
                  const std::string& value) { of(to).keep_free = std::stoull(value, nullptr, 0); },
        .help = "bytes of the device that stay free (default of a GPU: 1 GiB)",
        .man = "Leave <size> of the device's memory free. "
               "The default is 1 GiB for a GPU, for the contexts of the programs that use the "
               "tensors, and 0 for `cpu`. "
               "It is in bytes, or has a unit of powers of 1024: `16G`, `512MiB`."},
    OptionRow{.flags = "--workers",
              .verbs = "load run",
              .argument = "N",
              .value = Value::kNumber,
              .set = set<&GpuArguments::workers>,
              .help = "threads that copy",
              .man = "Threads that read and copy. "
                     "The default is half of the processors for a GPU, all of them for `cpu`, and "
                     "at most 8.",
              .least = 1,
              .most = 64},
    OptionRow{.flags = "--tile",
              .verbs = "load run",
              .argument = "SIZE",
              .value = Value::kSize,
              .set = set<&GpuArguments::tile_bytes>,
              .help = "bytes copied at a time (default 4 MiB)",
              .man = "Bytes copied at a time, a multiple of 4 KiB; 4 MiB by default. "
                     "Pinned memory is three tiles for each worker, whatever the size of the "
                     "model."},
    OptionRow{.flags = "--pin",
              .verbs = "load",
              .set = set<&GpuArguments::pin>,
              .help = "never evict them to make room for others",
              .man = "Pin the loaded tensors: they are never evicted to make room for others."},
    OptionRow{.flags = "-n,--dry-run",
              .verbs = "load",
              .set = set<&GpuArguments::dry_run>,
              .help = "do what plan does",
              .man = "Do what `plan` does."},
    OptionRow{.flags = "-a,--all",
              .verbs = "evict pin unpin",
              .set = set<&GpuArguments::all>,
              .help = "all resident tensors",
              .man = "All resident tensors."},
    OptionRow{.flags = "-a,--all",
              .verbs = "ls",
              .set = set<&GpuArguments::all>,
              .help = "a line for each tensor",
              .man = "Print a line for each tensor, and not for each source."},
    OptionRow{.flags = "--force",
              .verbs = "evict",
              .set = set<&GpuArguments::force>,
              .help = "evict pinned tensors too",
              .man = "Evict pinned tensors too."},
    OptionRow{.flags = "--memory-limit",
              .verbs = "holder",
              .argument = "SIZE",
              .value = Value::kSize,
              .set =
                  [](void* to, const std::string& value) {
                    of(to).holder.memory_limit = std::stoull(value, nullptr, 0);
                  },
              .help = "bytes to hold on each device",
              .man = "The most bytes to hold on each device."},
    OptionRow{
        .flags = "--exit-idle",
        .verbs = "holder",
        .argument = "SECONDS",
        .value = Value::kNumber,
        .set = [](void* to, const std::string& value) { of(to).holder.exit_idle = seconds(value); },
        .help = "end after this time without tensors and clients",
        .man = "End after this time without a tensor and without a connection. "
               "For a holder that `load` starts it is 60.",
        .least = 1,
        .most = 1000000},
    OptionRow{.flags = "--background",
              .verbs = "holder",
              .set = [](void* to, const std::string&) { of(to).holder.background = true; },
              .help = "return when it listens",
              .man = "Return when the holder listens. "
                     "Messages then go to a file beside its socket, `stfs-gpu.sock.log`."},
    OptionRow{.flags = "--copier-idle",
              .verbs = "holder",
              .argument = "SECONDS",
              .value = Value::kNumber,
              .set = set_copier_idle,
              .help = "time to keep a device's context after a load (default 10)",
              .man =
                  "The time that the copying process stays after a load, with the device's context "
                  "and pinned memory; 10 by default.",
              .least = 0,
              .most = 1000000},
    OptionRow{.flags = "--idle",
              .verbs = "copier",
              .argument = "SECONDS",
              .value = Value::kNumber,
              .set = set_copier_idle,
              .least = 0,
              .most = 1000000},
    OptionRow{.flags = "--json",
              .verbs = "devices plan load ls get evict pin unpin doctor",
              .set = set<&GpuArguments::json>,
              .help = "print JSON",
              .man = "Print JSON."},
};

Layers& layers_of(void* arguments) { return of(arguments).selection.layers; }

constexpr std::array kOptions =
    joined(joined(kOwnOptions, layer_rows<layers_of>("plan load get evict pin unpin run", false)),
           source_rows<&GpuArguments::sources>("plan load get evict pin unpin run",
                                               "plan load get evict pin unpin run", false));

std::vector<std::string> device_names() {
  std::vector<std::string> names;
  for (const DeviceInfo& device : list_devices()) names.push_back(device.id);
  return names;
}

constexpr CommandRow kCommand = {
    .name = "stfs-gpu",
    .help = "Copy mapped tensors into device memory and keep them there.",
    .notes =
        "Exit status: 0 done, 1 a checkpoint breaks the format, 2 wrong usage, 3 a source\n"
        "cannot be read or has changed, 5 the device failed.\n",
    .verbs = kVerbs,
    .options = kOptions,
    .devices = device_names};

}  // namespace

SourceOptions source_options(const GpuArguments& arguments) {
  SourceOptions options = arguments.sources;
  options.warn = [](const std::string& line) {
    std::fprintf(stderr, "stfs-gpu: warning: %s\n", line.c_str());
  };
  return options;
}

const CommandRow& gpu_command() { return kCommand; }

}  // namespace stfs::gpu
