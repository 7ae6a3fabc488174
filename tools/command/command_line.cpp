#include "tools/command/command_line.h"

#include "core/base/posix.h"
#include "core/base/text.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <new>
#include <utility>

namespace stfs {
namespace {

// A file that is opened gets the lowest number that is free: that of a standard descriptor which
// the caller closed, say, and then what is printed. What stands there instead fails as a closed one
// does, and a command that is executed does not get it.
void fill_closed_standard_descriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    const int wrong_way = fd == STDIN_FILENO ? O_WRONLY : O_RDONLY;
    if (::open("/dev/null", wrong_way | O_CLOEXEC) < 0) return;
  }
}

}  // namespace

int run_command(const CommandRow& command, std::vector<std::string> words, void* arguments) {
  const Parsed parsed = parse_command(command, std::move(words), arguments);
  if (parsed.wish == Parsed::Wish::kHelp) {
    std::fputs(help_text(command, parsed.verb).c_str(), stdout);
    return 0;
  }
  if (parsed.wish == Parsed::Wish::kVersion) {
    std::printf("%s %s\n", std::string(command.name).c_str(), STFS_VERSION);
    return 0;
  }
  return parsed.verb->run(arguments);
}

int run_to_exit(const char* program, ErrorCode otherwise, const std::function<int()>& command) {
  fill_closed_standard_descriptors();
  try {
    const int status = command();
    if (std::fflush(stdout) != 0) {
      std::fprintf(stderr, "%s: standard output: %s\n", program, errno_text(errno).c_str());
      return exit_status(ErrorCode::kUnreadable);
    }
    if (std::ferror(stdout) != 0) {  // of a write before the last one, which may have succeeded
      std::fprintf(stderr, "%s: standard output: not all could be written\n", program);
      return exit_status(ErrorCode::kUnreadable);
    }
    return status;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
    return exit_status(error.code());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "%s: out of memory\n", program);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program, printable(error.what()).c_str());
  }
  return exit_status(otherwise);
}

}  // namespace stfs
