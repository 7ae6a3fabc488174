// stfs: mounts a safetensors checkpoint so that every tensor is a file.
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/mount_source.h"
#include "core/command/build.h"
#include "core/command/complete.h"
#include "core/remote/cache/cache.h"
#include "core/remote/http/url.h"
#include "core/remote/sources.h"
#include "core/source/counters.h"
#include "core/source/local_file.h"
#include "fs/fuse/daemon.h"
#include "fs/fuse/fuse_ops.h"
#include "fs/fuse/loading_child.h"
#include "fs/fuse/mount.h"
#include "fs/fuse/mount_table.h"
#include "fs/fuse/options.h"
#include "fs/fuse/session.h"
#include "fs/fuse/supervisor.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs {
namespace {

// The default of -o threads: the maximum number of requests that may wait for a slow source at the
// same time.
constexpr unsigned kMaxThreads = 64;

// Raises the limit of open descriptors, because each shard needs a descriptor and a checkpoint may
// have thousands of shards.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void refuse_sources_inside(const Checkpoint& checkpoint, const std::string& mountpoint) {
  const std::string directory = mountpoint == "/" ? "" : mountpoint;
  std::vector<std::string> paths = checkpoint.mounts();
  for (const Part& part : checkpoint.parts()) {
    const LocalFile* const file = part.source->local_file();
    paths.push_back(file == nullptr ? part.source->path() : file->file_path());
  }
  for (const std::string& path : paths) {
    if (!is_at_or_below(path, directory)) continue;
    throw Error(ErrorCode::kMountFailed, mountpoint,
                "the source " + printable(path) +
                    " lies in it and would be hidden: choose another directory");
  }
}

// Throws an Error if the cache is inside the mountpoint. Call it before anything is written to the
// cache.
void refuse_cache_inside(const Options& options) {
  std::string cache = options.remote.cache_dir;
  if (cache.empty()) cache = Cache::default_directory();
  if (cache.empty()) return;
  std::error_code error;
  const std::filesystem::path directory = std::filesystem::weakly_canonical(cache, error);
  if (error) return;
  const std::filesystem::path mountpoint(options.mountpoint);
  const auto [rest, unused] = std::ranges::mismatch(mountpoint, directory);
  if (rest != mountpoint.end()) return;
  throw Error(ErrorCode::kMountFailed, options.mountpoint,
              "the cache " + printable(cache) +
                  " lies in it and would be hidden: choose another directory with -o cache_dir");
}

// Counters in memory that all processes of a mount share, and that outlive a worker.
class SharedCounters {
 public:
  SharedCounters()
      : memory_(::mmap(nullptr, sizeof(Counters), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (memory_ == MAP_FAILED) throw_errno(ErrorCode::kMountFailed, "", "mmap", errno);
    counters_ = new (memory_) Counters;
  }
  SharedCounters(const SharedCounters&) = delete;
  SharedCounters& operator=(const SharedCounters&) = delete;
  ~SharedCounters() { ::munmap(memory_, sizeof(Counters)); }

  Counters* get() const { return counters_; }

 private:
  void* memory_;
  Counters* counters_ = nullptr;
};

void print_warning(const std::string& line) {
  std::fprintf(stderr, "stfs: warning: %s\n", line.c_str());
}

// Returns a function that shows on a terminal how many headers have arrived. It shows nothing in
// the first second.
std::function<void(std::size_t, std::size_t)> header_progress(const std::string& source) {
  const char* terminal = std::getenv("TERM");
  const bool can_erase = terminal != nullptr && std::string_view(terminal) != "dumb";
  if (!can_erase || ::isatty(STDERR_FILENO) == 0) return nullptr;
  using Clock = std::chrono::steady_clock;
  return [name = printable(public_name(source)), begin = Clock::now()](std::size_t opened,
                                                                       std::size_t all) {
    if (Clock::now() - begin < std::chrono::seconds(1)) return;
    std::fputs("\r\033[K", stderr);
    if (opened == all) return;
    std::fprintf(stderr, "stfs: %s: %zu of %zu headers", name.c_str(), opened, all);
  };
}

// Returns true if loading a source uses the network, because the source is a URL, a mount of a URL,
// or a mount with a layer that uses the network. Returns false for a source in `asked`. Adds the
// sources that it checks to `asked`.
bool is_remote(const std::string& source, std::set<std::string>& asked, unsigned depth = 0) {
  if (is_url(source)) return true;
  // Loading refuses mounts that are nested more deeply.
  if (depth == kMaxMounts || !asked.insert(source).second) return false;
  const std::optional<MountSource> mounted = find_mount_source(source);
  const auto is_below = [&](const std::string& name) { return is_remote(name, asked, depth + 1); };
  return mounted && (any_is_remote(mounted->content.layers) ||
                     std::ranges::any_of(mounted->content.sources, is_below));
}

// A checkpoint, and the Sources that opened it.
struct LoadedSources {
  std::unique_ptr<Sources> sources;
  std::unique_ptr<const Checkpoint> checkpoint;
};

LoadOptions load_options(const Options& options, Sources& sources) {
  return {.allow_missing = options.allow_missing,
          .layers = options.layers,
          .with_model_files = options.control != ControlDirectory::kOff,
          .others_may_read = options.allows_other_users(),
          .missing_hint = "-o allow_missing mounts the rest",
          .sources = &sources};
}

// Loads the checkpoint in a child, so that this process stays without threads. Then loads it in
// this process with the child's resolutions, without the network.
LoadedSources load_elsewhere(const Options& options, bool again = true) {
  auto sources = std::make_unique<Sources>(options.remote);
  const LoadOptions how = load_options(options, *sources);
  // Used only in the child. The checkpoint exists until the child ends, so that no process evicts
  // its cache entries before the parent has opened them.
  std::unique_ptr<const Checkpoint> held;
  const LoadingChild child([&] {
    held = std::make_unique<const Checkpoint>(options.sources, how);
    std::vector<Sources::Beginning> beginnings;
    for (const Part& part : held->parts()) {
      if (!is_url(part.source->path())) continue;
      beginnings.push_back({part.source.get(), part.beginning()});
    }
    for (const ModelFile& file : held->model_files()) {
      if (!file.text || !is_url(file.source->path())) continue;
      beginnings.push_back({file.source.get(), file.source->size()});
    }
    return sources->resolutions(beginnings);
  });
  sources->use(child.text());
  try {
    auto checkpoint = std::make_unique<const Checkpoint>(options.sources, how);
    sources->start_fetching();
    return {std::move(sources), std::move(checkpoint)};
  } catch (const Error&) {
    if (!again) throw;
  }
  return load_elsewhere(options, false);  // because the cache has lost bytes that the child fetched
}

LoadedSources load(const Options& options) {
  std::set<std::string> asked;
  const auto uses_network = [&](const std::string& source) { return is_remote(source, asked); };
  if (std::ranges::any_of(options.sources, uses_network) || any_is_remote(options.layers)) {
    refuse_cache_inside(options);
    if (options.supervise) return load_elsewhere(options);
  }
  auto sources = std::make_unique<Sources>(options.remote);
  auto checkpoint =
      std::make_unique<const Checkpoint>(options.sources, load_options(options, *sources));
  return {std::move(sources), std::move(checkpoint)};
}

// The objects that a serving process needs; a worker inherits them by fork(2).
struct Loaded {
  const Options& options;
  const Checkpoint& checkpoint;
  Counters* counters;
  const Mount& mount;
  FuseContext& context;
  Daemon& daemon;
  int signals;  // signalfd(2)
};

// Serves the mount until it ends. `worker` is null if there is no supervisor.
void serve(const Loaded& loaded, const Worker* worker, const Session::Hooks& hooks) {
  Session session(loaded.mount, loaded.context);
  FileSystem filesystem(
      loaded.checkpoint,
      {.uid = loaded.options.uid.value_or(::getuid()),
       .gid = loaded.options.gid.value_or(::getgid()),
       .umask = loaded.options.umask,
       .control = loaded.options.control,
       .content =
           [&] {
             // No list has the version "", so a mount with a changed copy cannot be opened again.
             const Checkpoint& checkpoint = loaded.checkpoint;
             return mount_json(
                 {checkpoint.origins(), loaded.options.allow_missing, checkpoint.layers(),
                  are_copies_current(checkpoint) ? version_of(checkpoint.list()) : ""});
           },
       .ledger = loaded.context.ledger,
       .prefetch_all = loaded.options.prefetch,
       .counters = loaded.counters},
      [&](const std::string& line) { loaded.daemon.log(line); });
  loaded.context.filesystem = &filesystem;
  session.answer_handshake();
  if (worker != nullptr) session.take_over(worker->rejects_resent_requests());
  session.run(loaded.options.threads != 0 ? loaded.options.threads : kMaxThreads,
              {.signals = loaded.signals, .lifeline = worker != nullptr ? worker->lifeline() : -1},
              hooks);
}

void serve_alone(const Loaded& loaded) {
  serve(loaded, nullptr,
        {.serving = [&] { loaded.daemon.ready(); },
         .orphaned = [] {},
         .ending = [&](int) { loaded.mount.detach(); }});
}

// Runs `command` and returns its exit status. Passes an exception to `say` as one line.
int run_to_exit(const std::function<int()>& command,
                const std::function<void(const std::string& line)>& say) noexcept {
  try {
    return command();
  } catch (const Error& error) {
    say(error.what());
    return exit_status(error.code());
  } catch (const std::bad_alloc&) {
    say("out of memory");
  } catch (const std::exception& error) {
    say(printable(error.what()));
  }
  return exit_status(ErrorCode::kUnreadable);
}

// Serves as a worker. It leaves the unmounting to its supervisor unless the supervisor has died.
int serve_as(Worker& worker, const Loaded& loaded) {
  const auto unmount_if_orphaned = [&] {
    if (worker.is_orphan()) loaded.mount.detach();
  };
  const Session::Hooks hooks = {
      .serving =
          [&] {
            loaded.daemon.ready_as_child();
            worker.serving();
          },
      .orphaned =
          [&] {
            loaded.daemon.log(
                "supervise: the supervisor has ended: unmount and mount again to be supervised");
          },
      .ending =
          [&](int error) {
            if (error == 0) worker.ending();
            unmount_if_orphaned();
          }};
  const int status = run_to_exit(
      [&] {
        serve(loaded, &worker, hooks);
        return 0;
      },
      [&](const std::string& line) { loaded.daemon.log(line); });
  unmount_if_orphaned();
  return status;
}

int supervise(const Loaded& loaded) {
  const std::vector<const Source*> sources = loaded.checkpoint.sources();
  Ledger ledger(sources.size());
  for (std::size_t i = 0; i < sources.size(); ++i) {
    sources[i]->share_change_flag(ledger.change(i));
    if (const LocalFile* file = sources[i]->local_file()) file->share_state(ledger.standing(i));
  }
  loaded.context.ledger = &ledger;
  Supervisor supervisor(loaded.signals, ledger,
                        {.ready = [&] { loaded.daemon.ready(); },
                         .ending = [&] { loaded.mount.detach(); },
                         .log = [&](const std::string& line) { loaded.daemon.log(line); }});
  return supervisor.run([&](Worker& worker) { return serve_as(worker, loaded); });
}

// Makes the paths in environment variables absolute, because a daemon changes its working directory
// and reads these files again later. Call it while there are no other threads.
void make_variables_absolute() {
  for (const char* const name :
       {"CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR", "NETRC", "AWS_CA_BUNDLE",
        "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "HF_TOKEN_PATH", "HF_HOME"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value == '\0' || *value == '/' || *value == '~') continue;
    std::error_code error;
    const auto absolute = std::filesystem::absolute(value, error);
    if (!error) ::setenv(name, absolute.c_str(), 1);
  }
}

// Mounts the loaded checkpoint. `lock` is the lock of the mountpoint. Returns the exit status.
int mount_loaded(Options& options, const Checkpoint& checkpoint, Daemon& daemon, UniqueFd lock) {
  refuse_sources_inside(checkpoint, options.mountpoint);
  for (const std::string& warning : checkpoint.warnings()) print_warning(warning);
  if (options.fsname.empty()) {
    const std::string& first = options.sources.front();
    options.fsname = is_url(first) ? public_name(first) : absolute_path(first);
  }

  ::malloc_trim(0);  // returns the memory of parsing the headers
  const UniqueFd signals = take_ending_signals(ErrorCode::kMountFailed);
  const bool is_for_root_too = std::ranges::count(options.mount_options, "allow_root") != 0;
  FuseContext context{.direct = options.direct,
                      .max_read = options.max_read,
                      .has_private_listings = is_for_root_too};
  const Mount mount(options, context);
  lock = UniqueFd();

  const Loaded loaded{options, checkpoint,   options.remote.counters, mount, context,
                      daemon,  signals.get()};
  if (options.supervise && can_resend(mount)) return supervise(loaded);
  if (options.supervise) {
    print_warning(
        "supervise: this kernel cannot repeat requests (Linux 6.9 can): the mount is not "
        "supervised");
  }
  serve_alone(loaded);
  return 0;
}

// Loads the checkpoint, mounts it and serves it. Returns the exit status.
int mount(Options options) {
  UniqueFd lock;
  if (options.descriptor) {
    check_descriptor(*options.descriptor, options.mountpoint);
  } else {
    options.mountpoint = resolve_mountpoint(options.mountpoint, "mkdir it first");
    check_mountpoint(options.mountpoint);
    lock = lock_mountpoint(options.mountpoint);
  }
  raise_descriptor_limit();
  make_variables_absolute();
  Daemon daemon(options.foreground);

  const SharedCounters counters;
  options.remote.counters = counters.get();
  options.remote.warn = print_warning;
  options.remote.progress = header_progress(options.sources.front());
  LoadedSources sources = load(options);
  try {
    return mount_loaded(options, *sources.checkpoint, daemon, std::move(lock));
  } catch (...) {
    sources.checkpoint.reset();  // because it holds its cache entries
    if (!daemon.is_ready()) sources.sources->remove_created_since(0);
    throw;
  }
}

// Sets signals whose dispositions a program inherits from its caller.
void set_signals() {
  ::signal(SIGPIPE, SIG_IGN);  // write(2) to a closed pipe fails with EPIPE instead
  ::signal(SIGCHLD, SIG_DFL);  // waitpid(2) gives no status while SIGCHLD is ignored
}

// Closes all inherited descriptors except `kept` and 0 to 2, because a daemon must not keep the
// caller's locks, or pipes whose readers wait for their end. `kept` is the descriptor of the mount,
// if the caller has passed it.
void close_inherited_descriptors(std::optional<int> kept) {
  auto first = static_cast<unsigned>(STDERR_FILENO) + 1;
  if (kept) {
    const auto descriptor = static_cast<unsigned>(*kept);
    if (descriptor > first) ::close_range(first, descriptor - 1, 0);
    first = descriptor + 1;
  }
  ::close_range(first, ~0U, 0);
}

// If the caller closed standard input, output or error, a later open(2) would take its number.
void open_standard_descriptors() {
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
}

int run(int argc, char** argv) {
  open_standard_descriptors();
  set_signals();
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words.front() == kCompleteWord) {
    return complete(mount_command(), std::span(words).subspan(1));
  }
  const Options options = parse_options(argc, argv);
  close_inherited_descriptors(options.descriptor);
  switch (options.command) {
    case Options::Command::kHelp: std::fputs(help_text(mount_command()).c_str(), stdout); break;
    case Options::Command::kVersion:
      std::fputs(version_text("stfs", std::string("libfuse ") + fuse_pkgversion()).c_str(), stdout);
      break;
    case Options::Command::kUnmount:
      unmount(
          resolve_mountpoint(options.mountpoint, "findmnt -t fuse.stfs lists the mounts of stfs"),
          options.lazy);
      break;
    case Options::Command::kMount: return mount(options);
  }
  return 0;
}

}  // namespace
}  // namespace stfs

int main(int argc, char** argv) {
  return stfs::run_to_exit(
      [&] { return stfs::run(argc, argv); },
      [](const std::string& line) { std::fprintf(stderr, "stfs: %s\n", line.c_str()); });
}
