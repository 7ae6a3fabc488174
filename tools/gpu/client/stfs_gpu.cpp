// stfs-gpu: keeps tensors in device memory, where processes map them.
#include "core/base/error.h"
#include "core/command/command_line.h"
#include "tools/gpu/client/verbs.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace stfs::gpu {
namespace {

// Moves "-- COMMAND [ARGUMENT...]" from the words of run to the arguments.
void take_command(std::vector<std::string>& words, GpuArguments& arguments) {
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

int run_gpu(std::vector<std::string> words) {
  GpuArguments arguments;
  std::error_code ignored;
  arguments.program = std::filesystem::read_symlink("/proc/self/exe", ignored).string();
  if (!words.empty() && words.front() == "run") take_command(words, arguments);
  return run_command(gpu_command(), std::move(words), &arguments);
}

}  // namespace
}  // namespace stfs::gpu

int main(int argc, char** argv) {
  return stfs::run_to_exit("stfs-gpu", stfs::ErrorCode::kDeviceFailed, [&] {
    return stfs::gpu::run_gpu({argv + 1, argv + argc});
  });
}
