// The verbs of stfs-gpu, one function each. Each prints to standard output and returns the exit
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

// The parsed command line. Each verb reads the members it needs.
struct GpuArguments {
  std::string program;               // path of stfs-gpu, to start the holder
  std::string device;                // for find_device(); empty: not given
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
  std::optional<std::uint64_t> keep_free = {};  // bytes; empty: default_keep_free()
  std::uint64_t tile_bytes = 0;                 // 0: the default
  unsigned workers = 0;                         // 0: the device's default
  HolderOptions holder;
};

// The options of sources elsewhere, with warnings to standard error.
SourceOptions source_options(const GpuArguments& arguments);

// Verbs about devices.
int devices(const GpuArguments& arguments);
int doctor(const GpuArguments& arguments);

// Verbs about resident tensors, through the holder.
int plan(const GpuArguments& arguments);
int load(const GpuArguments& arguments);
int list_resident(const GpuArguments& arguments);
int get(const GpuArguments& arguments);
int evict(const GpuArguments& arguments);
int pin(const GpuArguments& arguments);
int unpin(const GpuArguments& arguments);

// Copies without a holder, then becomes the command (execvp(3)). Returns only when that fails.
int run(const GpuArguments& arguments);

// The table of the command line; its arguments are a GpuArguments.
const CommandRow& gpu_command();

}  // namespace stfs::gpu
