// With -o supervise, readers see no error and no wrong byte while workers are killed: 25 workers
// for each way of reading, or 200 with STFS_LONG=1 in the environment.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/failing_calls.h"
#include "tests/support/long_tests.h"
#include "tests/support/mounted.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kRows = 512;
constexpr std::uint64_t kColumns = 1024;

// A worker that dies after fewer replies has died early.
constexpr std::uint64_t kUsefulLife = 1100;

int count_lines(const std::string& text, std::string_view part) {
  int count = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    count += line.find(part) != std::string::npos ? 1 : 0;
  }
  return count;
}

// Returns the sum of the numbers after a word such as "Private_Dirty:" in a file of /proc.
std::uint64_t number_in(const std::filesystem::path& file, const std::string& word) {
  std::ifstream in(file);
  std::uint64_t sum = 0;
  for (std::string read; in >> read;) {
    std::uint64_t value = 0;
    if (read == word && in >> value) sum += value;
  }
  return sum;
}

class Supervise : public MountTest {
 protected:
  Supervise() {
    tensors_ = {random_tensor("w", "BF16", {kRows, kColumns}, 1),
                random_tensor("layer.0.bias", "F32", {257}, 2),
                random_tensor("layer.1.bias", "F32", {257}, 3)};
    write_safetensors(source(), tensors_);
  }

  std::filesystem::path source() const { return dir_ / "m.safetensors"; }
  const std::string& w() const { return tensors_[0].bytes; }

  // Runs `stfs -f -o supervise`.
  std::unique_ptr<ForegroundMount> mount(std::vector<std::string> more = {},
                                         const RunOptions& run_options = {}) const {
    more.insert(more.begin(), {"-o", "supervise"});
    return std::make_unique<ForegroundMount>(std::vector<std::string>{source()}, more, run_options);
  }

  // Returns the worker, which is the other process with the supervisor's arguments. Without a
  // worker, the test fails and this returns -1.
  static pid_t worker_of(ForegroundMount& mount) {
    pid_t worker = -1;
    EXPECT_TRUE(eventually([&] {
      for (const pid_t pid : processes_with(mount.path())) {
        if (pid != mount.process().pid()) worker = pid;
      }
      return worker > 0;
    }));
    return worker;
  }

  // Does not pass -1 to kill(2), because that would mean every process.
  static void signal(pid_t worker, int number) {
    if (worker > 0) ::kill(worker, number);
  }

  static void kill_worker(ForegroundMount& mount, int number = SIGKILL) {
    const pid_t worker = worker_of(mount);
    signal(worker, number);
    EXPECT_TRUE(eventually([&] { return has_ended(worker); }));
  }

  // Reads a tensor often enough that the death of the worker is not an early one.
  static void live_usefully(const ForegroundMount& mount) {
    struct stat64 status = {};
    for (std::uint64_t i = 0; i < kUsefulLife; ++i) {
      const int fd = ::open((mount / "layer.0.bias").c_str(), O_RDONLY | O_CLOEXEC);
      ASSERT_GE(fd, 0) << std::strerror(errno);
      ASSERT_EQ(::fstat64(fd, &status), 0);
      ::close(fd);
    }
  }

  static void expect_nothing_left(const std::filesystem::path& mountpoint) {
    EXPECT_TRUE(mounts_at(mountpoint).empty());
    EXPECT_TRUE(eventually([&] { return processes_with(mountpoint).empty(); }));
  }

  TempDir dir_;
  std::vector<Tensor> tensors_;
};

// A file of the mount and its expected bytes.
struct File {
  std::string path;
  std::string bytes;
};

enum class How { kRead, kDirect, kMap, kWhole };

// Opens and reads a file again and again, and compares each byte.
class Reader {
 public:
  Reader(const std::filesystem::path& root, File file, How how, std::uint64_t seed)
      : path_(root / file.path), file_(std::move(file)), how_(how), random_(seed) {}

  void run(const std::atomic<bool>& stop) {
    while (!stop) {
      const auto begin = Clock::now();
      const std::string problem = read_once();
      worst = std::max(worst, Clock::now() - begin);
      if (!problem.empty()) {
        ADD_FAILURE() << file_.path << ": " << problem;
        return;
      }
      ++rounds;
    }
  }

  std::atomic<std::uint64_t> rounds = 0;
  Clock::duration worst{};

 private:
  // Returns the first failure, or "".
  std::string read_once() {
    const int flags = how_ == How::kDirect ? O_DIRECT : 0;
    const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | flags);
    if (fd < 0) return std::string("open: ") + std::strerror(errno);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    std::string problem = how_ == How::kMap     ? by_map(fd)
                          : how_ == How::kWhole ? whole(fd)
                                                : by_read(fd);
    ::close(fd);
    return problem;
  }

  std::string by_read(int fd) {
    constexpr std::size_t kPage = 4096;
    const std::size_t at = random_.next() % (file_.bytes.size() / kPage) * kPage;
    const std::size_t length = std::min<std::size_t>(
        (1 + random_.next() % (kBuffer / kPage)) * kPage, file_.bytes.size() - at);
    const ssize_t n = ::pread64(fd, buffer_.get(), length, static_cast<off64_t>(at));
    if (n < 0) return std::string("read: ") + std::strerror(errno);
    if (static_cast<std::size_t>(n) != length) return "a short read of " + std::to_string(n);
    return compare(buffer_.get(), at, length);
  }

  std::string by_map(int fd) {
    void* const map = ::mmap(nullptr, file_.bytes.size(), PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) return std::string("mmap: ") + std::strerror(errno);
    const std::size_t at = random_.next() % file_.bytes.size();
    const std::size_t length = std::min<std::size_t>(kBuffer, file_.bytes.size() - at);
    std::string problem = compare(static_cast<const char*>(map) + at, at, length);
    ::munmap(map, file_.bytes.size());
    return problem;
  }

  std::string whole(int fd) {
    std::string got;
    ssize_t n = 0;
    // Reads small parts, so that the next worker also has to answer some.
    while ((n = ::read(fd, buffer_.get(), 4096)) > 0) {
      got.append(buffer_.get(), static_cast<std::size_t>(n));
    }
    if (n < 0) return std::string("read: ") + std::strerror(errno);
    return got == file_.bytes ? "" : "wrong bytes, " + std::to_string(got.size()) + " in all";
  }

  std::string compare(const char* got, std::size_t at, std::size_t length) const {
    return std::memcmp(got, file_.bytes.data() + at, length) == 0
               ? ""
               : "wrong bytes in " + std::to_string(length) + " at " + std::to_string(at);
  }

  static constexpr std::size_t kBuffer = 256 * 1024;

  std::filesystem::path path_;
  File file_;
  How how_;
  RandomBytes random_;
  std::unique_ptr<char[], decltype(&std::free)> buffer_{
      static_cast<char*>(std::aligned_alloc(4096, kBuffer)), &std::free};
};

class SuperviseUnderLoad : public Supervise, public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Cache, SuperviseUnderLoad, ::testing::Values("kernel", "direct"),
                         [](const auto& cache) { return std::string(cache.param); });

TEST_P(SuperviseUnderLoad, ReadersSeeNoErrorOrWrongByteWhileWorkersAreKilled) {
  const auto mount = this->mount({"-o", std::string("cache=") + GetParam()});
  std::string floats;  // a BF16 is the upper half of a binary32
  for (std::size_t i = 0; i < w().size(); i += 2) {
    floats += std::string(2, '\0') + w().substr(i, 2);
  }
  std::string rows;
  for (std::size_t row = 0; row < kRows; row += 2) {
    rows += w().substr(row * kColumns * 2, kColumns * 2);
  }
  const File raw{"w", w()};
  const File f32{".stfs/f32/w", floats};
  const File slice{".stfs/slice/w/::2", rows};
  const File part{".stfs/slice/w/1", w().substr(kColumns * 2, kColumns * 2)};
  const auto current = [&](const std::string& path) {
    return File{path, read_file(*mount / path)};
  };
  const File digest = current(".stfs/sha256/layer.0.bias");
  const File subset = current(".stfs/subset/layer.*.safetensors");
  const File table = current(".stfs/tensors.json");
  ASSERT_NE(subset.bytes.find(tensors_[1].bytes), std::string::npos);

  std::vector<std::unique_ptr<Reader>> readers;
  const auto add = [&](const File& file, How how) {
    readers.push_back(std::make_unique<Reader>(mount->path(), file, how, readers.size() + 1));
  };
  for (const How how : {How::kRead, How::kRead, How::kDirect, How::kDirect, How::kMap}) {
    add(raw, how);
  }
  for (const How how : {How::kRead, How::kDirect, How::kMap}) add(f32, how);
  for (const How how : {How::kRead, How::kDirect, How::kMap, How::kWhole}) add(slice, how);
  for (const File& file : {part, digest, subset, table}) add(file, How::kWhole);
  ASSERT_EQ(readers.size(), 16u);
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (const auto& reader : readers) threads.emplace_back([&] { reader->run(stop); });
  const auto rounds = [&] {
    std::uint64_t sum = 0;
    for (const auto& reader : readers) sum += reader->rounds;
    return sum;
  };

  const std::filesystem::path supervisor = "/proc/" + std::to_string(mount->process().pid());
  const auto descriptors = [&] { return names_in(supervisor / "fd").size(); };
  const auto memory = [&] { return number_in(supervisor / "smaps_rollup", "Private_Dirty:"); };
  std::size_t descriptors_before = 0;
  std::uint64_t memory_before = 0;
  const std::uint64_t kills = long_or(200, 25);
  std::uint64_t killed = 0;
  for (; killed < kills && !HasFailure(); ++killed) {
    const std::uint64_t before = rounds();
    if (!eventually([&] { return rounds() - before >= kUsefulLife || HasFailure(); })) {
      ADD_FAILURE() << "the readers make no progress";
    }
    if (killed == 5) {
      worker_of(*mount);  // waits for a worker, because the supervisor has no pipe without one
      descriptors_before = descriptors();
      memory_before = memory();
    }
    kill_worker(*mount);
  }
  worker_of(*mount);
  // While it starts a worker, the supervisor has both ends of a pipe.
  EXPECT_TRUE(eventually([&] { return descriptors() <= descriptors_before; }));
  const std::uint64_t memory_after = memory();
  stop = true;
  for (std::thread& thread : threads) thread.join();

  Clock::duration worst{};
  for (const auto& reader : readers) worst = std::max(worst, reader->worst);
  std::printf("%d workers killed under %d readings of 16 readers, the longest took %d ms\n",
              static_cast<int>(killed), static_cast<int>(rounds()),
              static_cast<int>(worst / std::chrono::milliseconds(1)));
  EXPECT_EQ(count_lines(mount->process().err(), "was killed by signal 9"), static_cast<int>(kills));
  EXPECT_EQ(count_lines(mount->process().err(), ""), static_cast<int>(kills))
      << mount->process().err();
  EXPECT_LT(worst, kHang);
#ifndef STFS_SANITIZED
  EXPECT_LT(memory_after, memory_before + 1024) << "KiB";
#else
  (void)memory_before, (void)memory_after;
#endif
  mount->process().signal(SIGTERM);
  EXPECT_EQ(mount->process().wait().status, 0);
  expect_nothing_left(mount->path());
}

TEST_F(Supervise, WorkerKilledDuringLargeRepliesCausesNoError) {
  // A new worker has no page of the source in its page table.
  constexpr std::uint64_t kBytes = 64 << 20;
  constexpr std::size_t kPart = 1 << 20;
  tensors_[0] = random_tensor("w", "U8", {kBytes});
  write_safetensors(source(), tensors_);
  const auto mount = this->mount({"-o", "page_cache=direct"});
  std::atomic<bool> stop = false;
  std::atomic<std::uint64_t> rounds = 0;
  std::vector<std::thread> readers;
  for (std::uint64_t i = 0; i < 16; ++i) {
    readers.emplace_back([&, i] {
      RandomBytes random(i + 1);
      std::string got(kPart, '\0');
      const int fd = ::open((*mount / "w").c_str(), O_RDONLY | O_CLOEXEC);
      while (!stop && !HasFailure()) {
        const std::uint64_t at = random.next() % (kBytes / kPart) * kPart;
        const ssize_t n = ::pread64(fd, got.data(), kPart, static_cast<off64_t>(at));
        EXPECT_EQ(n, static_cast<ssize_t>(kPart)) << std::strerror(errno);
        EXPECT_EQ(std::memcmp(got.data(), w().data() + at, kPart), 0) << at;
        ++rounds;
      }
      ::close(fd);
    });
  }

  const std::uint64_t kills = long_or(200, 4);
  for (std::uint64_t killed = 0; killed < kills && !HasFailure(); killed += 2) {
    live_usefully(*mount);
    kill_worker(*mount);
    // Kills the next worker early. After a second early death, requests would be refused.
    const pid_t next = worker_of(*mount);
    const std::uint64_t before = rounds;
    while (rounds < before + killed % 16 && !HasFailure()) std::this_thread::yield();
    signal(next, SIGKILL);
    EXPECT_TRUE(eventually([&] { return has_ended(next); }));
  }

  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_TRUE(mount->process().running()) << mount->process().err();
}

TEST_F(Supervise, CrashedWorkerIsReplaced) {
  // Disables the handlers of sanitizers, which would report the intended crash.
  const auto mount =
      this->mount({}, {.environment = sanitizer_options("handle_segv=0:handle_sigbus=0")});

  for (const int signal : {SIGSEGV, SIGABRT, SIGBUS}) {
    live_usefully(*mount);
    kill_worker(*mount, signal);
    EXPECT_EQ(read_file(*mount / "w"), w());
  }

  EXPECT_EQ(count_lines(mount->process().err(), "another worker takes over"), 3);
}

TEST_F(Supervise, LookedUpFilesKeepInodeAndBytesAcrossWorkers) {
  const auto mount = this->mount();
  std::vector<std::string> paths = {"w", ".stfs/slice/w/3", ".stfs/npy-slice/w/0:2.npy",
                                    ".stfs/subset/layer*.safetensors", ".stfs/stats/w.json"};
  struct Open {
    int fd;
    struct stat64 status;
  };
  std::vector<Open> before;
  std::vector<std::string> bytes;
  for (const std::string& path : paths) {
    bytes.push_back(read_file(*mount / path));
    const int fd = ::open((*mount / path).c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
    struct stat64 status = {};
    EXPECT_EQ(::fstat64(fd, &status), 0);
    before.push_back({fd, status});
  }

  for (int life = 0; life < 3; ++life) {
    live_usefully(*mount);
    kill_worker(*mount);
  }

  for (std::size_t i = 0; i < paths.size(); ++i) {
    EXPECT_EQ(read_file("/proc/self/fd/" + std::to_string(before[i].fd)), bytes[i]) << paths[i];
    ::close(before[i].fd);
    struct stat64 status = {};
    EXPECT_EQ(::stat64((*mount / paths[i]).c_str(), &status), 0) << paths[i];
    EXPECT_EQ(status.st_ino, before[i].status.st_ino) << paths[i];
  }
  // New names get new inode numbers.
  std::set<ino64_t> numbers;
  for (const Open& open : before) numbers.insert(open.status.st_ino);
  struct stat64 status = {};
  EXPECT_EQ(::stat64((*mount / ".stfs/slice/w/4").c_str(), &status), 0);
  EXPECT_TRUE(numbers.insert(status.st_ino).second);
}

TEST_F(Supervise, NextWorkerContinuesPartlyReadFile) {
  const auto mount = this->mount();
  for (const char* path : {".stfs/sha256/w", ".stfs/stats/w.json", ".stfs/tensors.tsv"}) {
    const std::string whole = read_file(*mount / path);
    std::ifstream file(*mount / path, std::ios::binary);
    file.rdbuf()->pubsetbuf(nullptr, 0);
    std::string got(20, '\0');
    file.read(got.data(), 20);

    live_usefully(*mount);
    kill_worker(*mount);

    got.append(std::istreambuf_iterator<char>(file), {});
    EXPECT_EQ(got, whole) << path;
  }
}

TEST_F(Supervise, NextWorkerContinuesDirectoryListing) {
  constexpr std::size_t kFiles = 3000;
  std::vector<Tensor> tensors;
  for (std::size_t i = 0; i < kFiles; ++i) {
    tensors.push_back(random_tensor("tensor-" + std::to_string(i), "U8", {1}, i));
  }
  tensors.push_back(tensors_[1]);
  write_safetensors(source(), tensors);
  const auto mount = this->mount();
  DIR* const directory = ::opendir(mount->path().c_str());
  ASSERT_NE(directory, nullptr);
  std::vector<std::string> names;
  const auto next = [&] {
    const dirent64* entry = ::readdir64(directory);
    if (entry != nullptr) names.emplace_back(entry->d_name);
    return entry != nullptr;
  };
  for (int i = 0; i < 10; ++i) next();

  live_usefully(*mount);
  kill_worker(*mount);

  while (next()) {
  }
  ::closedir(directory);
  std::ranges::sort(names);
  EXPECT_EQ(names.size(), kFiles + 3);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
}

TEST_F(Supervise, NextWorkerServesMountedVersionOfReplacedOrRemovedSource) {
  const auto mount = this->mount({"-o", "page_cache=direct"});
  const auto expect_served = [&] {
    live_usefully(*mount);
    kill_worker(*mount);
    EXPECT_EQ(read_file(*mount / "w"), w());
    EXPECT_EQ(names_in(mount->path()).size(), 3u);
  };

  const std::filesystem::path other = dir_ / "new";
  write_safetensors(other, {random_tensor("other", "U8", {5})});
  std::filesystem::rename(other, source());
  expect_served();
  std::filesystem::remove(source());
  expect_served();
}

TEST_F(Supervise, NextWorkerDoesNotReadIndexAgain) {
  write_safetensors(dir_ / "a.safetensors", {tensors_[0]});
  write_safetensors(dir_ / "b.safetensors", {tensors_[1]});
  const std::filesystem::path index = dir_ / "x.safetensors.index.json";
  write_index(index, {{"w", "a.safetensors"}, {"layer.0.bias", "b.safetensors"}});
  ForegroundMount mount({index}, {"-o", "supervise,page_cache=direct"});
  write_file(index, "{");
  std::filesystem::remove(dir_ / "b.safetensors");

  live_usefully(mount);
  kill_worker(mount);

  EXPECT_EQ(read_file(mount / "w"), w());
  EXPECT_EQ(read_file(mount / "layer.0.bias"), tensors_[1].bytes);
}

TEST_F(Supervise, ChangedSourceStaysStaleForNextWorker) {
  const auto mount = this->mount({"-o", "page_cache=direct"});
  const auto open_error = [&] {
    const int fd = ::open((*mount / "w").c_str(), O_RDONLY | O_CLOEXEC);
    const int error = fd < 0 ? errno : 0;
    if (fd >= 0) ::close(fd);
    return error;
  };
  const std::string bytes = read_file(source());
  struct stat64 before = {};
  ASSERT_EQ(::stat64(source().c_str(), &before), 0);
  live_usefully(*mount);
  std::ofstream(source(), std::ios::app) << "x";
  EXPECT_EQ(open_error(), ESTALE);

  // The times are restored to the nanosecond, but stfs has seen the change.
  std::filesystem::resize_file(source(), bytes.size());
  const timespec times[] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, source().c_str(), times, 0), 0);
  kill_worker(*mount);

  EXPECT_EQ(open_error(), ESTALE);
  EXPECT_EQ(count_lines(mount->process().err(), "changed since it was mounted"), 1);
}

TEST_F(Supervise, SourceChangedBetweenWorkersGivesESTALE) {
  const auto mount = this->mount({"-o", "page_cache=direct"});
  const int fd = ::open((*mount / "w").c_str(), O_RDONLY | O_CLOEXEC);
  live_usefully(*mount);
  const pid_t worker = worker_of(*mount);
  signal(worker, SIGSTOP);
  // Changes the time instead of writing, because the kernel would delay a write by 45 seconds for
  // the worker's lease.
  std::filesystem::last_write_time(source(), std::filesystem::file_time_type::clock::now() + 1h);

  signal(worker, SIGKILL);

  char byte = 0;
  EXPECT_EQ(::pread64(fd, &byte, 1, 0), -1);
  EXPECT_EQ(errno, ESTALE);
  ::close(fd);
}

// A mount with a tensor that takes minutes to hash.
class SuperviseSlow : public Supervise {
 protected:
  static constexpr std::uint64_t kBytes = std::uint64_t{64} << 30;

  SuperviseSlow() {
    HeaderBuilder header;
    header.add("layer.0.bias", "U8", {kBytes}, kBytes);
    const std::string bytes = safetensors_bytes(header.finish(), "");
    write_file(source(), bytes);
    std::filesystem::resize_file(source(), bytes.size() + kBytes);
  }

  static bool is_reading(pid_t worker) {
    constexpr std::uint64_t kSome = 4 << 20;
    return number_in("/proc/" + std::to_string(worker) + "/io", "rchar:") >= kSome;
  }
};

TEST_F(SuperviseSlow, RequestKillingEachWorkerFailsAndMountSurvives) {
  const auto mount = this->mount();
  std::atomic<int> error = -1;
  std::thread reader([&] {
    char byte = 0;
    const int fd = ::open((*mount / ".stfs/sha256/layer.0.bias").c_str(), O_RDONLY | O_CLOEXEC);
    error = ::read(fd, &byte, 1) < 0 ? errno : 0;
    ::close(fd);
  });

  // Kills each worker as if the request had crashed it.
  for (int life = 0; life < 3 && error < 0; ++life) {
    EXPECT_TRUE(eventually([&] { return is_reading(worker_of(*mount)) || error >= 0; }));
    if (error < 0) kill_worker(*mount);
  }

  reader.join();
  EXPECT_EQ(error, EIO);
  EXPECT_EQ(names_in(mount->path()).size(), 1u);
  EXPECT_TRUE(mount->process().running());
  mount->process().signal(SIGTERM);
  EXPECT_EQ(mount->process().wait().status, 0);
}

TEST_F(SuperviseSlow, SigtermEndsBusyWorkerAndItsReader) {
  const auto mount = this->mount();
  std::atomic<int> error = -1;
  std::thread reader([&] {
    char byte = 0;
    const int fd = ::open((*mount / ".stfs/sha256/layer.0.bias").c_str(), O_RDONLY | O_CLOEXEC);
    error = ::read(fd, &byte, 1) < 0 ? errno : 0;
    ::close(fd);
  });
  EXPECT_TRUE(eventually([&] { return is_reading(worker_of(*mount)); }));

  mount->process().signal(SIGTERM);

  EXPECT_EQ(mount->process().wait().status, 0);
  reader.join();
  EXPECT_GT(error, 0);
  expect_nothing_left(mount->path());
}

TEST_F(Supervise, WorkerUnableToStartIsReplaced) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer must be the first library";
#endif
  const std::filesystem::path flag = dir_ / "now";
  const auto mount =
      this->mount({"-o", "page_cache=direct"},
                  {.environment = failing("pthread_create",
                                          {"STFS_FAIL_ON=1", "STFS_FAIL_WHILE=" + flag.string()})});
  EXPECT_EQ(read_file(*mount / "w"), w());
  const auto failed_starts = [&] {
    return count_lines(mount->process().err(), "ended with status 4: another worker takes over");
  };

  write_file(flag, "");
  kill_worker(*mount);
  EXPECT_TRUE(eventually([&] { return failed_starts() >= 2 || !mount->process().running(); }));
  std::filesystem::remove(flag);

  ASSERT_TRUE(mount->process().running()) << mount->process().err();
  EXPECT_GE(failed_starts(), 2) << mount->process().err();
  EXPECT_GE(count_lines(mount->process().err(), "starting a thread"), 2);
  EXPECT_EQ(read_file(*mount / "w"), w());
  mount->process().signal(SIGTERM);
  EXPECT_EQ(mount->process().wait().status, 0);
  expect_nothing_left(mount->path());
}

TEST_F(Supervise, DeadWorkerIsReplacedThoughCallerIgnoresSIGCHLD) {
  const auto mount = this->mount({}, {.ignored_signals = {SIGCHLD}});
  EXPECT_EQ(read_file(*mount / "w"), w());

  kill_worker(*mount);

  EXPECT_EQ(read_file(*mount / "w"), w());
  mount->process().signal(SIGTERM);
  const Outcome result = mount->process().wait();
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(count_lines(result.err, "was killed by signal 9 (Killed): another worker takes over"),
            1)
      << result.err;
}

TEST_F(Supervise, SignalsToSupervisorUnmountAndExitWith0) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    const auto mount = this->mount();
    EXPECT_EQ(names_in(mount->path()).size(), 3u);

    mount->process().signal(signal);
    const Outcome result = mount->process().wait();

    EXPECT_EQ(result.status, 0) << strsignal(signal) << result.err;
    EXPECT_EQ(result.err, "");
    expect_nothing_left(mount->path());
  }
}

TEST_F(Supervise, UnresponsiveWorkerIsKilled) {
  if (!long_tests()) GTEST_SKIP() << "STFS_LONG=1 is not set: takes 10 seconds";
  const auto mount = this->mount();
  const pid_t worker = worker_of(*mount);
  // A traced thread stops at every signal except SIGKILL.
  if (::ptrace(PTRACE_SEIZE, worker, nullptr, nullptr) != 0 ||
      ::ptrace(PTRACE_INTERRUPT, worker, nullptr, nullptr) != 0) {
    GTEST_SKIP() << "ptrace: " << std::strerror(errno);
  }

  mount->process().signal(SIGTERM);
  int status = 0;
  do {  // the kernel first reports to the tracer that a traced process has ended
    ASSERT_EQ(::waitpid(worker, &status, __WALL), worker);
  } while (!WIFSIGNALED(status));
  const Outcome result = mount->process().wait();

  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_TRUE(mounts_at(mount->path()).empty());
}

TEST_F(Supervise, SignalDuringMountingUnmounts) {
  const std::filesystem::path mountpoint = dir_ / "mnt";
  std::filesystem::create_directory(mountpoint);
  for (int i = 0; i < 40; ++i) {
    Process process({STFS_BINARY, "-f", "-o", "supervise", source(), mountpoint});
    while (process.running() && mounts_at(mountpoint).empty()) {
    }
    for (int j = 0; j < i % 8; ++j) mounts_at(mountpoint);

    process.signal(SIGTERM);
    const Outcome result = process.wait();

    ASSERT_FALSE(result.timed_out) << "the signal was lost, round " << i;
    ASSERT_EQ(result.status, 0) << "round " << i << ": " << result.err;
    ASSERT_TRUE(mounts_at(mountpoint).empty()) << "left mounted, round " << i;
  }
  expect_nothing_left(mountpoint);
}

TEST_F(Supervise, WorkerServesAndEndsCleanlyWithoutSupervisor) {
  for (const bool by_signal : {true, false}) {
    const auto mount = this->mount({"-o", "page_cache=direct"});
    const pid_t worker = worker_of(*mount);

    mount->process().signal(SIGKILL);
    EXPECT_EQ(mount->process().wait().status, 128 + SIGKILL);

    EXPECT_EQ(read_file(*mount / "w"), w());
    EXPECT_TRUE(eventually([&] {
      return count_lines(mount->process().err(), "the supervisor has ended") == 1;
    })) << mount->process().err();
    if (by_signal) {
      signal(worker, SIGTERM);
    } else {
      EXPECT_EQ(run({STFS_BINARY, "-u", mount->path()}).status, 0);
    }
    EXPECT_TRUE(eventually([&] { return has_ended(worker); }));
    expect_nothing_left(mount->path());
  }
}

TEST_F(Supervise, UnmountAndNewMountWorkAfterBothProcessesAreKilled) {
  const auto mount = this->mount();
  EXPECT_EQ(read_file(*mount / "w"), w());
  const pid_t worker = worker_of(*mount);
  mount->process().signal(SIGKILL);
  signal(worker, SIGKILL);
  mount->process().wait();
  EXPECT_TRUE(eventually([&] { return has_ended(worker); }));
  struct stat64 status = {};
  EXPECT_EQ(::stat64((*mount / "absent").c_str(), &status), -1);

  const Outcome unmounted = run({STFS_BINARY, "-u", mount->path()});
  const Outcome again = run({STFS_BINARY, "-o", "supervise", source(), mount->path()});

  EXPECT_EQ(unmounted.status, 0) << unmounted.err;
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(read_file(*mount / "w"), w());
  EXPECT_EQ(run({STFS_BINARY, "-u", mount->path()}).status, 0);
  expect_nothing_left(mount->path());
}

TEST_F(Supervise, UnmountEndsSupervisorAndWorker) {
  const auto mount = this->mount();
  live_usefully(*mount);
  kill_worker(*mount);
  EXPECT_EQ(read_file(*mount / "w"), w());

  EXPECT_EQ(run({STFS_BINARY, "-u", mount->path()}).status, 0);

  EXPECT_EQ(mount->process().wait().status, 0);
  expect_nothing_left(mount->path());
}

TEST_F(Supervise, NextWorkerServesDetachedMountUntilLastClose) {
  const auto mount = this->mount({"-o", "page_cache=direct"});
  const int fd = ::open((*mount / "w").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  live_usefully(*mount);
  EXPECT_EQ(run({STFS_BINARY, "-u", "-z", mount->path()}).status, 0);

  kill_worker(*mount);
  const std::string got = read_file("/proc/self/fd/" + std::to_string(fd));
  const bool was_running = mount->process().running();
  ::close(fd);

  EXPECT_EQ(got, w());
  EXPECT_TRUE(was_running);
  const Outcome result = mount->process().wait();
  EXPECT_EQ(result.status, 0) << result.err;
  expect_nothing_left(mount->path());
}

TEST_F(Supervise, BackgroundMountReturnsOnceReadyAndDetachesFromCaller) {
  const std::filesystem::path mountpoint = dir_ / "mnt";
  std::filesystem::create_directory(mountpoint);

  const Outcome result = sh(R"(out=$("$1" -o supervise "$2" "$3" 2>&1); echo "<$out>"; ls "$3")",
                            {STFS_BINARY, source(), mountpoint});

  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.out, "<>\nlayer.0.bias\nlayer.1.bias\nw\n") << result.err;
  const std::vector<pid_t> both = processes_with(mountpoint);
  EXPECT_EQ(both.size(), 2u);
  for (const pid_t pid : both) {
    const std::filesystem::path process = "/proc/" + std::to_string(pid);
    EXPECT_EQ(std::filesystem::read_symlink(process / "cwd"), "/");
    EXPECT_NE(::getsid(pid), ::getsid(0));
    for (const char* fd : {"0", "1", "2"})
      EXPECT_EQ(std::filesystem::read_symlink(process / "fd" / fd), "/dev/null") << fd;
  }
  EXPECT_EQ(run({STFS_BINARY, "-u", mountpoint}).status, 0);
  expect_nothing_left(mountpoint);
}

TEST_F(Supervise, BrokenCheckpointIsRejectedInOneLine) {
  write_file(source(), "not a checkpoint");
  const std::filesystem::path mountpoint = dir_ / "mnt";
  std::filesystem::create_directory(mountpoint);

  for (const char* option : {"-f", "-osupervise"}) {
    const Outcome result = run({STFS_BINARY, option, "-o", "supervise", source(), mountpoint});
    EXPECT_EQ(result.status, 1);
    EXPECT_EQ(count_lines(result.err, ""), 1) << result.err;
  }
  expect_nothing_left(mountpoint);
}

TEST_F(Supervise, ServiceManagerIsNotifiedBySupervisor) {
  const int listener = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_un address = {AF_UNIX, {}};
  const std::string path = dir_ / "notify";
  ASSERT_LT(path.size(), sizeof address.sun_path);
  path.copy(address.sun_path, path.size());
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const int on = 1;
  ASSERT_EQ(::setsockopt(listener, SOL_SOCKET, SO_PASSCRED, &on, sizeof on), 0);
  const std::filesystem::path mountpoint = dir_ / "mnt";
  std::filesystem::create_directory(mountpoint);
  Process process({STFS_BINARY, "-f", "-o", "supervise", source(), mountpoint},
                  {.environment = {"NOTIFY_SOCKET=" + path}});

  char text[64] = {};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred))] = {};
  iovec piece = {text, sizeof text - 1};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ASSERT_GT(::recvmsg(listener, &message, 0), 0);

  EXPECT_STREQ(text, "READY=1");
  ASSERT_NE(CMSG_FIRSTHDR(&message), nullptr);
  ucred sender = {};
  std::memcpy(&sender, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof sender);
  EXPECT_EQ(sender.pid, process.pid());
  EXPECT_EQ(names_in(mountpoint).size(), 3u);
  ::close(listener);
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait().status, 0);
  expect_nothing_left(mountpoint);
}

TEST_F(Supervise, SupervisorHasLessThan1MiBOfPrivateMemory) {
#ifdef STFS_SANITIZED
  GTEST_SKIP() << "sanitizers have memory of their own";
#endif
  std::vector<Tensor> tensors = tensors_;
  for (int i = 0; i < 100'000; ++i) {
    tensors.push_back(random_tensor("tensor-" + std::to_string(i), "U8", {1}));
  }
  write_safetensors(source(), tensors);
  const auto mount = this->mount();
  EXPECT_EQ(names_in(mount->path()).size(), tensors.size());
  live_usefully(*mount);
  // A program that was just linked has dirty pages, because they are not on the disk yet.
  const int program = ::open(STFS_BINARY, O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(::fsync(program), 0);
  ::close(program);

  const std::filesystem::path rollup =
      "/proc/" + std::to_string(mount->process().pid()) + "/smaps_rollup";
  EXPECT_LT(number_in(rollup, "Private_Dirty:"), 1024u) << "KiB";
}

TEST_F(Supervise, KernelWithoutResendGivesUnsupervisedMount) {
  const std::filesystem::path mountpoint = dir_ / "mnt";
  std::filesystem::create_directory(mountpoint);
  std::vector<std::string> environment = sanitizer_options("verify_asan_link_order=0");
  environment.push_back("LD_PRELOAD=" STFS_OLD_KERNEL);
  Process process({STFS_BINARY, "-f", "-o", "supervise", source(), mountpoint},
                  {.environment = environment});

  ASSERT_TRUE(eventually([&] { return !mounts_at(mountpoint).empty(); }));
  EXPECT_EQ(read_file(mountpoint / "w"), w());
  EXPECT_EQ(names_in(mountpoint).size(), tensors_.size());
  EXPECT_EQ(processes_with(mountpoint).size(), 1u);
  process.signal(SIGTERM);
  const Outcome result = process.wait();

  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.err,
            "stfs: warning: supervise: this kernel cannot repeat requests (Linux 6.9 can): the "
            "mount is not supervised\n");
  expect_nothing_left(mountpoint);
}

}  // namespace
}  // namespace stfs::test
