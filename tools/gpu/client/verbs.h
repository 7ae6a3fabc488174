// What stfs-gpu does: a function a verb. Each prints to standard output and returns the exit
// status, or throws Error.
#pragma once

#include "core/base/command.h"
#include "tools/gpu/client/selection.h"
#include "tools/gpu/holder/holder.h"

#include <cstdint>
#include <string>
#include <vector>

namespace stfs::gpu {

// What the command line said; a verb looks at what concerns it.
struct GpuArguments {
  std::string program;               // stfs-gpu itself, to start the holder
  std::string device;                // as find_device() takes it; empty: not named
  std::vector<std::string> tensors;  // as Selection::resolve() takes them
  std::vector<std::string> command;  // of run
  SelectionOptions selection;
  bool all = false;
  bool force = false;
  bool verify = false;
  bool pin = false;
  bool dry_run = false;
  bool json = false;
  std::uint64_t keep_free = 0;   // bytes
  std::uint64_t tile_bytes = 0;  // 0: the default
  unsigned workers = 0;          // 0: what the device says
  unsigned rounds = 5;           // of bench
  HolderOptions holder;
};

// Of devices.
int devices(const GpuArguments& arguments);
int doctor(const GpuArguments& arguments);
int bench(const GpuArguments& arguments);

// Of what is resident, by way of the holder.
int plan(const GpuArguments& arguments);
int load(const GpuArguments& arguments);
int list_resident(const GpuArguments& arguments);
int get(const GpuArguments& arguments);
int evict(const GpuArguments& arguments);
int pin(const GpuArguments& arguments);
int unpin(const GpuArguments& arguments);

// Without a holder: copies, and becomes the command. Returns only by throwing.
int run(const GpuArguments& arguments);

// The table of the command line; its arguments are a GpuArguments.
const CommandRow& gpu_command();

}  // namespace stfs::gpu
