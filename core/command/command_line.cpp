#include "core/command/command_line.h"

#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/base/without_queries.h"
#include "core/command/build.h"
#include "core/command/complete.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <span>
#include <utility>

namespace stfs {
namespace {

// Opens /dev/null as each standard descriptor that is closed. Otherwise a later open(2), which
// returns the lowest free descriptor, could return the number of standard output, and printf would
// write into that file. /dev/null is opened for the wrong direction, so that reading from standard
// input or writing to standard output still fails.
void fill_closed_standard_descriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    const int wrong_direction = fd == STDIN_FILENO ? O_WRONLY : O_RDONLY;
    if (::open("/dev/null", wrong_direction | O_CLOEXEC) < 0) return;
  }
}

}  // namespace

int run_command(const CommandRow& command, std::vector<std::string> words, void* arguments) {
  if (!words.empty() && words.front() == kCompleteWord) {
    return complete(command, std::span(words).subspan(1));
  }
  const Parsed parsed = parse_command(command, std::move(words), arguments);
  if (parsed.action == Parsed::Action::kHelp) {
    std::fputs(help_text(command, parsed.verb).c_str(), stdout);
    return 0;
  }
  if (parsed.action == Parsed::Action::kVersion) {
    std::fputs(version_text(command.name).c_str(), stdout);
    return 0;
  }
  return parsed.verb->run(arguments);
}

int run_to_exit(const char* program, ErrorCode otherwise, const std::function<int()>& command) {
  fill_closed_standard_descriptors();
  ::signal(SIGXFSZ, SIG_IGN);  // so that a write beyond RLIMIT_FSIZE fails with EFBIG
  try {
    const int status = command();
    if (std::fflush(stdout) != 0) {
      std::fprintf(stderr, "%s: standard output: %s\n", program, errno_text(errno).c_str());
      return exit_status(ErrorCode::kUnreadable);
    }
    if (std::ferror(stdout) != 0) {  // an earlier write failed
      std::fprintf(stderr,
                   "%s: standard output: a write failed, so the output is incomplete: check the "
                   "disk, and run the command again\n",
                   program);
      return exit_status(ErrorCode::kUnreadable);
    }
    return status;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
    return exit_status(error.code());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "%s: out of memory\n", program);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program, printable(without_queries(error.what())).c_str());
  }
  return exit_status(otherwise);
}

}  // namespace stfs
