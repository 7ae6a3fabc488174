// stfs: mounts a safetensors checkpoint so that every tensor is a file.
#include "core/checkpoint.h"
#include "core/error.h"
#include "core/text.h"
#include "fs/daemon.h"
#include "fs/fuse_ops.h"
#include "fs/mount_table.h"
#include "fs/options.h"
#include "fs/session.h"
#include "fs/supervisor.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <new>
#include <optional>
#include <string>

namespace stfs {
namespace {

// That may wait for a slow source at the same time.
constexpr unsigned kMostThreads = 64;

// A shard needs a descriptor for as long as it is mounted, and there may be thousands.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void refuse_sources_inside(const Checkpoint& checkpoint, const std::string& mountpoint) {
  const std::string prefix = mountpoint == "/" ? mountpoint : mountpoint + "/";
  for (const auto& source : checkpoint.sources()) {
    if (!source->file.path().starts_with(prefix)) continue;
    throw Error(ErrorCode::kMountFailed, mountpoint,
                "the source " + printable(source->file.path()) + " lies in it and would be hidden");
  }
}

// Returns the exit status.
int mount(Options options) {
  options.mountpoint = resolve_mountpoint(options.mountpoint);
  check_mountpoint(options.mountpoint);
  UniqueFd lock = lock_mountpoint(options.mountpoint);
  raise_descriptor_limit();
  Daemon daemon(options.foreground);

  const Checkpoint checkpoint(options.sources, {.allow_missing = options.allow_missing});
  refuse_sources_inside(checkpoint, options.mountpoint);
  for (const std::string& warning : checkpoint.warnings()) {
    std::fprintf(stderr, "stfs: warning: %s\n", warning.c_str());
  }
  if (options.fsname.empty()) options.fsname = absolute_path(options.sources.front());

  ::malloc_trim(0);  // what parsing the headers needed
  FuseContext context{.direct = options.direct, .max_read = options.max_read};
  Session session(options, context);
  lock = UniqueFd();

  std::optional<Ledger> ledger;
  std::optional<Supervisor> supervisor;
  if (options.supervise && !session.can_resend()) {
    std::fprintf(stderr,
                 "stfs: warning: supervise: this kernel cannot send requests a second time (Linux "
                 "6.9 can): not supervised\n");
  } else if (options.supervise) {
    ledger.emplace(checkpoint.sources().size());
    supervisor.emplace(
        session.signals(), *ledger,
        Supervisor::Hooks{.ready = [&daemon] { daemon.ready(); },
                          .log = [&daemon](const std::string& line) { daemon.log(line); }});
    if (const auto status = supervisor->run()) return *status;
    // From here on this process is a worker.
    context.ledger = &*ledger;
  }

  FileSystem filesystem(checkpoint,
                        {.uid = options.uid.value_or(::getuid()),
                         .gid = options.gid.value_or(::getgid()),
                         .umask = options.umask,
                         .control = options.control,
                         .ledger = context.ledger,
                         .drop = [&session](std::uint64_t inode) { return session.drop(inode); }},
                        [&daemon](const std::string& line) { daemon.log(line); });
  context.filesystem = &filesystem;
  session.answer_handshake();
  if (supervisor) session.take_over(supervisor->distrusts_requests());
  const auto serving = [&] {
    if (supervisor) {
      daemon.ready_as_child();
      supervisor->serving();
    } else {
      daemon.ready();
    }
  };
  const auto orphaned = [&daemon] {
    daemon.log("supervise: the supervisor has ended: serving goes on without one");
  };
  session.run(options.threads != 0 ? options.threads : kMostThreads,
              supervisor ? supervisor->lifeline() : -1, {.serving = serving, .orphaned = orphaned});
  return 0;
}

// What the caller left open is not ours to keep: a lock, a pipe that somebody waits on.
void close_inherited_descriptors() { ::close_range(STDERR_FILENO + 1, ~0U, 0); }

// A descriptor that is opened later must not become standard input, output or error because the
// caller left one of these closed.
void open_standard_descriptors() {
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
}

int run(int argc, char** argv) {
  close_inherited_descriptors();
  open_standard_descriptors();
  const Options options = parse_options(argc, argv);
  switch (options.command) {
    case Options::Command::kHelp:
      std::fputs(help_text(), stdout);
      break;
    case Options::Command::kVersion:
      std::printf("stfs %s (libfuse %s)\n", STFS_VERSION, fuse_pkgversion());
      break;
    case Options::Command::kUnmount:
      unmount(resolve_mountpoint(options.mountpoint), options.lazy);
      break;
    case Options::Command::kMount:
      return mount(options);
  }
  return 0;
}

}  // namespace
}  // namespace stfs

int main(int argc, char** argv) {
  try {
    return stfs::run(argc, argv);
  } catch (const stfs::Error& error) {
    std::fprintf(stderr, "stfs: %s\n", error.what());
    return stfs::exit_status(error.code());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "stfs: out of memory\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "stfs: %s\n", stfs::printable(error.what()).c_str());
  }
  return stfs::exit_status(stfs::ErrorCode::kUnreadable);
}
