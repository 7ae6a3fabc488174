// The verb follow.
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/checkpoint/follow.h"
#include "core/command/terminal.h"
#include "tools/info/verbs.h"

#include <cstdio>
#include <optional>
#include <string>

namespace stfs {

int follow(const Arguments& arguments) {
  VerbSources sources(arguments);
  Follower follower(arguments.source, sources,
                    {.marker = arguments.marker, .latest = arguments.latest});
  for (;;) {
    std::optional<std::string> version;
    try {
      version = follower.next();
    } catch (const Error& error) {
      if (arguments.latest || error.code() == ErrorCode::kUsage) throw;
      print_warning(std::string(error.what()) + ": trying again");
      continue;
    }
    if (!version) return 0;
    print(printable(*version) + "\n");
    std::fflush(stdout);
  }
}

}  // namespace stfs
