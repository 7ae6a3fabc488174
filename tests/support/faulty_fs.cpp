// faulty_fs MOUNTPOINT DIR CACHE
//
// A FUSE file system that shows the files of DIR like a failing disk. It stays in the foreground
// and ends when it is unmounted. It is read-only, because after each read of a file on a writable
// mount the kernel asks for its atime. Opening the file "MOUNTPOINT/tell COMMAND" runs a command:
//
//   fail NAME BEGIN END    reads of these bytes fail with EIO
//   stall NAME BEGIN END   reads of these bytes wait
//   release                answers waiting reads with the present bytes of DIR; after this, no
//                          read waits
//   slow MILLISECONDS      every read takes this long
//
// Read MOUNTPOINT/control for the number of waiting reads. CACHE is what the kernel keeps when a
// file in DIR changes:
//
//   uncached    nothing
//   attributes  names and attributes, for a day; pages until the next open
//   all         names, attributes and pages, without limit
//   clock       nothing; and each request for attributes is answered with another ctime
#define FUSE_USE_VERSION 312
#include <fcntl.h>
#include <fuse.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

constexpr std::string_view kControl = "/control";
constexpr std::string_view kTell = "/tell ";

bool is_control(const char* path) {
  return path != nullptr && (path == kControl || std::string_view(path).starts_with(kTell));
}

struct Range {
  std::string path;  // "/NAME"
  off_t begin, end;
};

struct State {
  std::string directory;
  std::string cache;
  std::mutex mutex;
  std::condition_variable released;
  std::vector<Range> failing, stalling;
  int waiting = 0;
  std::atomic<int> clock = 1'000'000'000;
  std::chrono::milliseconds delay{0};
};

State& state() { return *static_cast<State*>(fuse_get_context()->private_data); }

bool touches(const std::vector<Range>& ranges, std::string_view path, off_t begin, off_t end) {
  for (const Range& range : ranges)
    if (range.path == path && begin < range.end && range.begin < end) return true;
  return false;
}

std::string report() {
  const std::lock_guard lock(state().mutex);
  return std::to_string(state().waiting) + "\n";
}

// Runs a command. Returns 0 or an errno.
int obey(const std::string& line) {
  std::istringstream words(line);
  std::string verb;
  words >> verb;
  const std::lock_guard lock(state().mutex);
  if (verb == "fail" || verb == "stall") {
    Range range{};
    words >> range.path >> range.begin >> range.end;
    range.path.insert(0, "/");
    (verb == "fail" ? state().failing : state().stalling).push_back(range);
  } else if (verb == "release") {
    state().stalling.clear();
    state().released.notify_all();
  } else if (verb == "slow") {
    int milliseconds = 0;
    words >> milliseconds;
    state().delay = std::chrono::milliseconds(milliseconds);
  } else {
    return EINVAL;
  }
  return words.fail() ? EINVAL : 0;
}

int get_attributes(const char* path, struct stat* out, fuse_file_info*) {
  if (is_control(path)) {
    *out = {};
    out->st_mode = S_IFREG | 0444;
    out->st_nlink = 1;
    return 0;
  }
  if (::stat((state().directory + path).c_str(), out) != 0) return -errno;
  if (state().cache == "clock") out->st_ctim.tv_sec = ++state().clock;
  return 0;
}

int list(const char*, void* buffer, fuse_fill_dir_t add, off_t, fuse_file_info*,
         fuse_readdir_flags) {
  for (const auto& entry : std::filesystem::directory_iterator(state().directory))
    add(buffer, entry.path().filename().c_str(), nullptr, 0, fuse_fill_dir_flags{});
  return 0;
}

int open_file(const char* path, fuse_file_info* file) {
  if (is_control(path)) {
    file->direct_io = 1;
    return path == kControl ? 0 : -obey(path + kTell.size());
  }
  const int fd = ::open((state().directory + path).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -errno;
  file->fh = static_cast<std::uint64_t>(fd);
  return 0;
}

int close_file(const char* path, fuse_file_info* file) {
  if (!is_control(path)) ::close(static_cast<int>(file->fh));
  return 0;
}

int read_file(const char* path, char* buffer, std::size_t size, off_t offset,
              fuse_file_info* file) {
  if (path == kControl) {
    const std::string text = report();
    if (offset >= static_cast<off_t>(text.size())) return 0;
    return static_cast<int>(text.copy(buffer, size, static_cast<std::size_t>(offset)));
  }
  const off_t end = offset + static_cast<off_t>(size);
  std::unique_lock lock(state().mutex);
  if (state().delay.count() > 0) {
    const auto delay = state().delay;
    lock.unlock();
    std::this_thread::sleep_for(delay);  // simulates a slow disk
    lock.lock();
  }
  if (touches(state().failing, path, offset, end)) return -EIO;
  if (touches(state().stalling, path, offset, end)) {
    ++state().waiting;
    state().released.wait(lock, [&] { return !touches(state().stalling, path, offset, end); });
    --state().waiting;
  }
  lock.unlock();
  const ssize_t got = ::pread(static_cast<int>(file->fh), buffer, size, offset);
  return got < 0 ? -errno : static_cast<int>(got);
}

void* start(fuse_conn_info* connection, fuse_config* config) {
  connection->max_background = 1024;
  connection->congestion_threshold = 768;
  const bool keeps_attributes = state().cache == "attributes" || state().cache == "all";
  config->attr_timeout = config->entry_timeout = keeps_attributes ? 86400 : 0;
  config->negative_timeout = 0;
  if (keeps_attributes) connection->want &= ~static_cast<unsigned>(FUSE_CAP_AUTO_INVAL_DATA);
  config->kernel_cache = state().cache == "all" ? 1 : 0;
  return fuse_get_context()->private_data;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: faulty_fs MOUNTPOINT DIR uncached|attributes|all|clock\n");
    return 2;
  }
  // End with a test that is killed, so that no stalled file system remains.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  State state;
  state.directory = argv[2];
  state.cache = argv[3];
  fuse_operations operations{};
  operations.init = start;
  operations.getattr = get_attributes;
  operations.readdir = list;
  operations.open = open_file;
  operations.release = close_file;
  operations.read = read_file;
  std::string mountpoint = argv[1];
  std::string name = argv[0];
  std::string foreground = "-f";
  std::string o = "-o";
  std::string options = "fsname=faulty_fs,ro,allow_other,max_threads=256";
  char* arguments[] = {name.data(), foreground.data(), o.data(), options.data(), mountpoint.data()};
  return fuse_main(5, arguments, &operations, &state);
}
