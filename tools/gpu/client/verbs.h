// The verbs of stfs-gpu, one function per verb. Each prints to standard output and returns the exit
// status, or throws Error.
#pragma once

#include "core/command/command.h"
#include "tools/gpu/client/selection.h"
#include "tools/gpu/holder/holder.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stfs::gpu {

// The parsed command line. Each verb reads the members that it needs.
struct GpuArguments {
  std::string program;               // the path of stfs-gpu, to start the holder
  std::string device;                // for find_device(); "": not given
  std::vector<std::string> tensors;  // for Selection::resolve()
  std::vector<std::string> command;  // for run
  SelectionOptions selection;
  SourceOptions sources = {};
  bool all = false;
  bool force = false;
  bool verify = false;
  bool pin = false;
  bool dry_run = false;
  bool json = false;
  std::optional<std::uint64_t> keep_free = {};  // bytes; nullopt: default_keep_free()
  std::uint64_t tile_bytes = 0;                 // bytes; 0: the default
  unsigned workers = 0;                         // 0: the device's default
  HolderOptions holder;
};

// Returns the options for remote sources. Their warnings are printed to standard error.
SourceOptions source_options(const GpuArguments& arguments);

// The verbs about devices.
int devices(const GpuArguments& arguments);
int doctor(const GpuArguments& arguments);

// The verbs about resident tensors, which use the holder.
int plan(const GpuArguments& arguments);
int load(const GpuArguments& arguments);
int list_resident(const GpuArguments& arguments);
int get(const GpuArguments& arguments);
int evict(const GpuArguments& arguments);
int pin(const GpuArguments& arguments);
int unpin(const GpuArguments& arguments);

// Copies the tensors without a holder, then becomes the command (execvp(3)). Returns only if that
// fails.
int run(const GpuArguments& arguments);

// The table of the command line. Its options set members of a GpuArguments.
const CommandRow& gpu_command();

}  // namespace stfs::gpu
