// stfs-info: inspects checkpoints without mounting them.
#include "core/command/command_line.h"
#include "tools/info/verbs.h"

int main(int argc, char** argv) {
  return stfs::run_to_exit("stfs-info", stfs::ErrorCode::kUnreadable, [&] {
    stfs::Arguments arguments;
    return stfs::run_command(stfs::info_command(), {argv + 1, argv + argc}, &arguments);
  });
}
