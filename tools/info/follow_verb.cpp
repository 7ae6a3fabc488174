// follow
#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/checkpoint/follow.h"
#include "core/command/terminal.h"
#include "tools/info/verbs.h"

#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>
#include <vector>

namespace stfs {
namespace {

constexpr int kPause = 1000;  // milliseconds; poll(2) counts them on the monotonic clock
// Two looks this far apart tell a file that grows, even where something happens all the time.
constexpr int kLeast = 200;

// Wakes for what happens in a directory, where the file system tells: network ones do not.
class Watch {
 public:
  explicit Watch(const std::string& directory) : fd_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
    if (!fd_) return;
    constexpr auto kEvents = IN_CREATE | IN_MOVED_TO | IN_CLOSE_WRITE | IN_ATTRIB;
    ::inotify_add_watch(fd_.get(), directory.c_str(), kEvents);
  }

  void wait() const {
    pollfd polled{fd_.get(), POLLIN, 0};  // a negative descriptor is ignored
    ::poll(nullptr, 0, kLeast);
    ::poll(&polled, 1, kPause - kLeast);
    std::array<char, 4096> events{};
    while (fd_ && ::read(fd_.get(), events.data(), events.size()) > 0) {
    }
  }

 private:
  UniqueFd fd_;
};

}  // namespace

int follow(const Arguments& arguments) {
  Follower follower(arguments.source, arguments.marker);
  const Watch watch(arguments.source);
  if (arguments.latest) {
    follower.look();
    watch.wait();
    const std::vector<std::string> complete = follower.look();
    if (complete.empty()) {
      throw Error(ErrorCode::kAbsent, arguments.source, "no complete version");
    }
    print(printable(complete.back()) + "\n");
    return 0;
  }
  for (bool is_out = false;; watch.wait()) {
    try {
      for (const std::string& path : follower.look()) print(printable(path) + "\n");
      std::fflush(stdout);
      is_out = false;
    } catch (const Error& error) {
      if (error.place() != arguments.source) throw;  // standard output
      if (!is_out) print_warning(std::string(error.what()) + ": trying again");
      is_out = true;
    }
  }
}

}  // namespace stfs
