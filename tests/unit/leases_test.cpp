// Tests of Leases: no process can change the bytes while a pin exists, and no writer waits long for
// a lease.
#include "core/source/leases.h"

#include "core/base/error.h"
#include "core/recipe/content.h"
#include "tests/support/files.h"
#include "tests/support/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdarg>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {
std::function<void()> on_getlease;   // called once on F_GETLEASE if is_armed
std::atomic<bool> is_armed = false;  // the next F_GETLEASE calls on_getlease
std::function<void()> on_unlock;     // called when a lease is released (F_UNLCK)
std::atomic<int> sleeps = 0;         // calls of nanosleep() by threads other than the first
std::function<void()> on_seek;       // called when an opened file is checked again
}  // namespace

// In this program, these definitions replace those in libc.
extern "C" int fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  const auto result = static_cast<int>(::syscall(SYS_fcntl, fd, command, argument));
  const int error = errno;
  if (command == F_SETLEASE && argument == reinterpret_cast<void*>(F_UNLCK) && on_unlock) {
    on_unlock();
  }
  if (command == F_GETLEASE && is_armed.exchange(false)) on_getlease();
  errno = error;
  return result;
}

extern "C" off_t lseek(int fd, off_t offset, int whence) noexcept {
  if (whence == SEEK_DATA && on_seek) on_seek();
  return ::syscall(SYS_lseek, fd, offset, whence);
}

extern "C" int nanosleep(const timespec* duration, timespec* left) {
  if (::gettid() != ::getpid()) ++sleeps;
  return static_cast<int>(::syscall(SYS_nanosleep, duration, left));
}

namespace stfs::test {
namespace {

using namespace std::chrono_literals;

// Opens a file for writing. Returns 0 or an errno.
int open_for_writing(const std::string& path, int flags = 0) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | flags);
  if (fd < 0) return errno;
  ::close(fd);
  return 0;
}

ino_t inode_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  return status.st_ino;
}

// Reads through a recipe, like FileSystem. Returns 0 or an errno.
int read_by_recipe(const LocalFile& file) {
  Content content;
  content.extent(file, 0, 10);
  Reading reading;
  return content.read(0, 10, reading);
}

// Reads until the file is leased, because the thread that released the last lease may not have
// recorded this yet.
bool is_leased_again(const LocalFile& file) {
  const auto is_leased = [&] { return read_by_recipe(file) == 0 && file.is_leased(); };
  return eventually(is_leased, 60s);
}

// A lease is retaken at the first read after its release, and stays.
constexpr Leases::Times kAtOnce{.pause = 0s, .rest = 1h};

// A file that was read and therefore is leased.
class LeasesTest : public ::testing::Test {
 protected:
  LeasesTest() : path_((dir_ / "f").string()) {
    write_file(path_, std::string(10'000, 'x'));
    file_.emplace(path_);
    lease(kAtOnce);
  }
  void lease(const Leases::Times& times) {
    leases_.reset();
    leases_.emplace(std::vector<const Source*>{&*file_}, times);
    EXPECT_EQ(read_by_recipe(*file_), 0);
  }
  void SetUp() override {
    if (!file_->is_leased()) GTEST_SKIP() << "no leases on this file system";
  }
  // Returns true if the kernel has a lease on the file.
  bool is_in_kernel() const {
    const std::string inode = ":" + std::to_string(inode_of(path_)) + " 0 EOF";
    std::istringstream locks(read_file("/proc/locks"));
    for (std::string line; std::getline(locks, line);) {
      if (line.ends_with(inode) && line.find("LEASE") != std::string::npos) return true;
    }
    return false;
  }
  // Returns true if a process waits for the lease to be released.
  bool is_asked_for() const {
    const std::string inode = ":" + std::to_string(inode_of(path_)) + " 0 EOF";
    std::istringstream locks(read_file("/proc/locks"));
    for (std::string line; std::getline(locks, line);) {
      if (line.ends_with(inode) && line.find("BREAKING") != std::string::npos) return true;
    }
    return false;
  }

  TempDir dir_;
  std::string path_;
  std::optional<LocalFile> file_;
  std::optional<Leases> leases_;
};

TEST_F(LeasesTest, OpenForWritingReleasesLease) {
  const UniqueFd writer(::open(path_.c_str(), O_WRONLY | O_CLOEXEC));

  EXPECT_TRUE(bool(writer));
  EXPECT_FALSE(file_->is_leased());
  EXPECT_FALSE(bool(file_->try_pin()));
}

// Normally readers also release a lease that they cannot retake. The kernel itself revokes a lease
// after the time in lease-break-time.
TEST_F(LeasesTest, RetryingWriterSucceedsWithoutReaders) {
  const auto patience = std::chrono::seconds(std::stoi(read_file("/proc/sys/fs/lease-break-time")));
  if (patience < 30s) GTEST_SKIP() << "the kernel revokes leases early";

  EXPECT_TRUE(eventually([&] { return open_for_writing(path_, O_NONBLOCK) == 0; }, patience / 2));
}

// SIGIO arrives before the reader has recorded that it retook the lease.
TEST_F(LeasesTest, WriterArrivingDuringRetakeSucceeds) {
  std::atomic<bool> is_in = false;
  std::atomic<bool> has_looked = false;
  std::thread writer;
  on_getlease = [&] {
    writer = std::thread([&] {
      EXPECT_EQ(open_for_writing(path_), 0);
      is_in = true;
    });
    EXPECT_TRUE(eventually([&] { return is_asked_for(); }));
    has_looked = true;
  };

  // Repeats, because the thread of Leases may retake the lease before a reader does.
  EXPECT_TRUE(eventually([&] {
    EXPECT_EQ(open_for_writing(path_), 0);
    is_armed = true;
    EXPECT_EQ(read_by_recipe(*file_), 0);
    return !is_armed.exchange(false);
  }));

  ASSERT_TRUE(eventually([&] { return has_looked.load(); }));
  EXPECT_TRUE(eventually([&] { return is_in.load(); }, 20s))
      << "the writer waited until lease-break-time";
  writer.join();
}

TEST_F(LeasesTest, TruncateReleasesLease) {
  EXPECT_EQ(::truncate(path_.c_str(), 5), 0);

  EXPECT_FALSE(file_->is_leased());
}

TEST_F(LeasesTest, OpenForReadingKeepsLease) {
  std::string bytes = read_file(path_);

  EXPECT_EQ(bytes.size(), 10'000U);
  EXPECT_TRUE(file_->is_leased());
}

TEST_F(LeasesTest, PinDelaysReleaseToWriter) {
  Pinned pinned = file_->try_pin();
  ASSERT_TRUE(pinned);
  std::atomic<bool> opened = false;

  EXPECT_EQ(open_for_writing(path_, O_NONBLOCK), EWOULDBLOCK);  // breaks the lease
  std::thread writer([&] {
    EXPECT_EQ(open_for_writing(path_), 0);
    opened = true;
  });
  while (file_->is_leased()) std::this_thread::yield();
  EXPECT_FALSE(opened);
  EXPECT_EQ(open_for_writing(path_, O_NONBLOCK), EWOULDBLOCK);
  EXPECT_FALSE(bool(file_->try_pin())) << "no new pin while a writer waits for the lease";
  pinned.guard.unlock();
  writer.join();
}

TEST_F(LeasesTest, ReaderRetakesLeaseIfWriterChangedNothing) {
  for (int i = 0; i < 3; ++i) {
    {
      const UniqueFd writer(::open(path_.c_str(), O_WRONLY | O_CLOEXEC));
      ASSERT_FALSE(file_->is_leased());
    }

    EXPECT_TRUE(is_leased_again(*file_));

    EXPECT_TRUE(bool(file_->try_pin()));
    EXPECT_EQ(open_for_writing(path_, O_NONBLOCK), EWOULDBLOCK) << "the kernel has no lease";
  }
}

TEST_F(LeasesTest, ReaderRetakesLeaseOnlyAfterWriterHasClosed) {
  const int writer = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_GE(writer, 0);
  EXPECT_EQ(read_by_recipe(*file_), 0);
  EXPECT_FALSE(file_->is_leased());

  ::close(writer);

  EXPECT_TRUE(is_leased_again(*file_));
}

TEST_F(LeasesTest, ReaderDoesNotRetakeLeaseDuringPause) {
  lease({.pause = 1h, .rest = 1h});
  EXPECT_TRUE(is_in_kernel());
  EXPECT_EQ(open_for_writing(path_), 0);

  EXPECT_EQ(read_by_recipe(*file_), 0);

  EXPECT_FALSE(file_->is_leased());
  EXPECT_EQ(open_for_writing(path_, O_NONBLOCK), 0);
}

TEST_F(LeasesTest, SecondTryOfWriterSucceeds) {
  lease({.pause = 1h, .rest = 1h});
  ASSERT_EQ(open_for_writing(path_, O_NONBLOCK), EWOULDBLOCK);

  EXPECT_TRUE(eventually([&] { return open_for_writing(path_, O_NONBLOCK) == 0; }));

  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(read_by_recipe(*file_), 0);
    EXPECT_EQ(open_for_writing(path_, O_NONBLOCK), 0) << "retaken by a reader: " << i;
  }
}

// The pause is 20 ms and doubles each time, up to 640 ms after the sixth writer.
TEST_F(LeasesTest, PauseGrowsAfterEachWriter) {
  lease({.pause = 20ms, .rest = 1h});
  std::chrono::steady_clock::duration last{};
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(open_for_writing(path_), 0);
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_TRUE(is_leased_again(*file_));
    last = std::chrono::steady_clock::now() - begin;
  }

  EXPECT_GE(last, 200ms);
}

TEST_F(LeasesTest, FirstReadTakesLease) {
  leases_.reset();
  leases_.emplace(std::vector<const Source*>{&*file_}, kAtOnce);

  EXPECT_FALSE(is_in_kernel());
  EXPECT_EQ(open_for_writing(path_, O_NONBLOCK), 0);
  EXPECT_EQ(read_by_recipe(*file_), 0);
  EXPECT_TRUE(is_in_kernel());
}

TEST_F(LeasesTest, IdleLeaseIsReleasedAndNextReadRetakesIt) {
  lease({.pause = 1h, .rest = 10ms});

  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(eventually([&] { return !is_in_kernel(); })) << i;
    EXPECT_FALSE(file_->is_leased());
    EXPECT_EQ(read_by_recipe(*file_), 0);
    EXPECT_TRUE(file_->is_leased()) << i;
  }
}

TEST_F(LeasesTest, DoesNotRetakeLeaseOfChangedFile) {
  write_file(path_, std::string(10'000, 'y'));

  // The first attempt may happen before the thread has marked the lease as released.
  EXPECT_TRUE(eventually(
      [&] {
        EXPECT_FALSE(file_->retake_lease());
        return file_->has_changed();
      },
      60s));
  EXPECT_EQ(read_by_recipe(*file_), ESTALE);
  EXPECT_EQ(open_for_writing(path_, O_NONBLOCK), 0) << "a useless lease is held";
}

TEST_F(LeasesTest, DestructorPreventsRetake) {
  EXPECT_EQ(open_for_writing(path_), 0);
  leases_.reset();

  EXPECT_FALSE(file_->retake_lease());

  EXPECT_EQ(open_for_writing(path_, O_NONBLOCK), 0);
}

TEST_F(LeasesTest, ManyReadersDoNotBlockWriters) {
  std::atomic<bool> stop = false;
  std::vector<std::thread> readers;
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&] {
      while (!stop) EXPECT_EQ(read_by_recipe(*file_), 0);
    });
  }

  std::chrono::steady_clock::duration longest{};
  for (int i = 0; i < 200; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(open_for_writing(path_), 0);
    longest = std::max(longest, std::chrono::steady_clock::now() - begin);
  }

  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_LT(longest, 40s) << "the kernel revokes a lease that is not released after 45 seconds";
}

TEST_F(LeasesTest, DestructorReleasesLease) {
  leases_.reset();

  EXPECT_FALSE(file_->is_leased());
  EXPECT_EQ(open_for_writing(path_, O_NONBLOCK), 0);
}

TEST_F(LeasesTest, WriterReleasesOnlyLeaseOfItsFile) {
  write_file(dir_ / "g", "bytes");
  const LocalFile other((dir_ / "g").string());
  const Leases leases({&other, &*file_}, kAtOnce);
  EXPECT_EQ(read_by_recipe(other), 0);
  EXPECT_EQ(read_by_recipe(*file_), 0);

  const UniqueFd writer(::open((dir_ / "g").c_str(), O_WRONLY | O_CLOEXEC));

  EXPECT_FALSE(other.is_leased());
  EXPECT_TRUE(file_->is_leased());
}

// Tests of a ctime that changed although the mtime did not.

void move_ctime(const std::string& path) {
  const auto ctime = [&] {
    struct stat status {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0);
    return std::pair(status.st_ctim.tv_sec, status.st_ctim.tv_nsec);
  };
  const auto before = ctime();
  // Repeats, because the ctime does not change within one tick of a coarse clock.
  EXPECT_TRUE(eventually([&] {
    const timespec times[] = {{1, 0}, {0, UTIME_OMIT}};
    EXPECT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
    return ctime() != before;
  }));
}

TEST_F(LeasesTest, ChangedCtimeUnderHeldLeaseIsNotAChange) {
  const std::string before = file_->token();

  move_ctime(path_);

  EXPECT_EQ(file_->verify(), 0);
  EXPECT_NE(file_->token(), before);
  EXPECT_EQ(file_->token(), LocalFile(path_).token());
  EXPECT_TRUE(file_->is_current());
}

TEST_F(LeasesTest, ChangedCtimeWhilePinnedIsNotAChange) {
  const Pinned pinned = file_->try_pin();
  ASSERT_TRUE(pinned);
  EXPECT_EQ(open_for_writing(path_, O_NONBLOCK), EWOULDBLOCK);

  move_ctime(path_);

  EXPECT_EQ(file_->verify(), 0);
}

// The test revokes the lease as the kernel does after lease-break-time.
TEST_F(LeasesTest, RevokedLeaseMakesChangedCtimeStale) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    if (std::filesystem::read_symlink(entry, error) != file_->path()) continue;
    ::fcntl(std::stoi(entry.path().filename()), F_SETLEASE, F_UNLCK);
  }
  ASSERT_TRUE(file_->is_leased()) << "the file must not know yet";

  move_ctime(path_);

  EXPECT_EQ(file_->verify(), ESTALE);
}

// The file has not been read, so there is no lease, and only the watch detects writers.
class RestingLease : public LeasesTest {
 protected:
  void SetUp() override {
    LeasesTest::SetUp();
    if (!IsSkipped()) rest();
  }
  void rest() {
    leases_.reset();
    leases_.emplace(std::vector<const Source*>{&*file_}, kAtOnce);
  }
};

TEST_F(RestingLease, AcceptsCtimeChangesWithoutWrites) {
  const std::pair<const char*, std::function<int()>> acts[] = {
      {"link", [&] { return ::link(path_.c_str(), (dir_ / "link").c_str()); }},
      {"unlink", [&] { return ::unlink((dir_ / "link").c_str()); }},
      {"times", [&] { return move_ctime(path_), 0; }},
      {"chmod", [&] { return ::chmod(path_.c_str(), 0600); }},
      {"read", [&] { return read_file(path_).empty() ? 1 : 0; }},
      {"times again", [&] { return move_ctime(path_), 0; }},
  };
  for (const auto& [name, act] : acts) {
    EXPECT_EQ(act(), 0) << name;
    EXPECT_EQ(file_->verify(), 0) << name;
    EXPECT_EQ(file_->token(), LocalFile(path_).token()) << name;
  }
  EXPECT_FALSE(is_in_kernel());
}

// Tests writers before and after reads. A chmod follows, which would explain the changed ctime if
// there were no watch.
TEST_F(RestingLease, DetectsEachWriter) {
  const auto put_back = [&](const struct stat& status) {
    const timespec times[] = {status.st_atim, status.st_mtim};
    EXPECT_EQ(::utimensat(AT_FDCWD, path_.c_str(), times, 0), 0);
  };
  const auto write_one = [&](int flags) {
    const UniqueFd writer(::open(path_.c_str(), O_WRONLY | O_CLOEXEC | flags));
    EXPECT_EQ(::pwrite(writer.get(), "y", 1, 0), 1);
  };
  const std::pair<const char*, std::function<void()>> writers[] = {
      {"write", [&] { write_one(0); }},
      {"write without waiting", [&] { write_one(O_NONBLOCK); }},
      {"truncate",
       [&] {
         EXPECT_EQ(::truncate(path_.c_str(), 9'999), 0);
         EXPECT_EQ(::truncate(path_.c_str(), 10'000), 0);
       }},
      {"mapping",
       [&] {
         const UniqueFd writer(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
         void* const data =
             ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, writer.get(), 0);
         ASSERT_NE(data, MAP_FAILED);
         static_cast<char*>(data)[0] = 'y';
         ::munmap(data, 4096);
       }},
  };
  for (const auto& [name, act] : writers) {
    for (const bool is_read_before : {false, true}) {
      leases_.reset();
      write_file(path_, std::string(10'000, 'x'));
      file_.emplace(path_);
      rest();
      if (is_read_before) {
        EXPECT_EQ(read_by_recipe(*file_), 0);
        EXPECT_EQ(open_for_writing(path_), 0);
      }
      struct stat status {};
      ASSERT_EQ(::stat(path_.c_str(), &status), 0);

      act();
      EXPECT_EQ(::chmod(path_.c_str(), status.st_mode ^ 0100), 0);
      put_back(status);

      EXPECT_EQ(read_by_recipe(*file_), ESTALE) << name << is_read_before;
    }
  }
}

TEST_F(RestingLease, OpenWriterMakesChangedCtimeStale) {
  const UniqueFd writer(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_EQ(file_->verify(), 0);

  move_ctime(path_);

  EXPECT_EQ(file_->verify(), ESTALE) << "the writer may write through a mapping without an event";
}

// This happens if two names in the checkpoint refer to one file.
TEST_F(RestingLease, BothSourcesOfOneFileDetectWriter) {
  leases_.reset();
  const LocalFile other(path_);
  leases_.emplace(std::vector<const Source*>{&*file_, &other}, kAtOnce);

  move_ctime(path_);
  EXPECT_EQ(file_->verify(), 0);
  EXPECT_EQ(other.verify(), 0);
  EXPECT_EQ(open_for_writing(path_), 0);
  move_ctime(path_);
  EXPECT_EQ(file_->verify(), ESTALE);
  EXPECT_EQ(other.verify(), ESTALE);
  leases_.reset();  // before `other`
}

// There is no watch if the limits of inotify are reached, or if /proc is missing.
TEST(Leases, ChmodButNotUtimesExplainsCtimeWithoutWatch) {
  const TempDir dir;
  const std::string path = dir / "f";
  write_file(path, "0123456789");
  const LocalFile file(path);
  file.begin_lease(1s, nullptr);
  EXPECT_FALSE(file.is_leased());

  EXPECT_EQ(::chmod(path.c_str(), 0600), 0);
  EXPECT_EQ(file.verify(), 0);
  move_ctime(path);
  EXPECT_EQ(file.verify(), ESTALE);
  file.end_lease();
}

TEST(WriterWatchTest, FailsForInvalidDescriptor) {
  std::uint64_t watch = 5;

  EXPECT_FALSE(WriterWatch().renew(-1, watch));
  EXPECT_EQ(watch, 0U);
}

TEST(WriterWatchTest, StaysValidUntilWriterOpensFile) {
  const TempDir dir;
  write_file(dir / "f", "0123456789");
  const UniqueFd file(::open((dir / "f").c_str(), O_RDONLY | O_CLOEXEC));
  const WriterWatch writers;
  std::uint64_t watch = 0;
  EXPECT_FALSE(writers.renew(file.get(), watch)) << "there was no watch yet";

  EXPECT_EQ(read_file(dir / "f"), "0123456789");
  EXPECT_TRUE(writers.renew(file.get(), watch));
  EXPECT_EQ(open_for_writing(dir / "f"), 0);
  EXPECT_FALSE(writers.renew(file.get(), watch));
  EXPECT_TRUE(writers.renew(file.get(), watch));
}

// The kernel ends a watch when the last name of its file is removed, unless it is the name that was
// opened.
TEST(WriterWatchTest, SurvivesRemovalOfLastName) {
  for (const bool is_written : {false, true}) {
    const TempDir dir;
    write_file(dir / "f", "0123456789");
    const UniqueFd file(::open((dir / "f").c_str(), O_RDONLY | O_CLOEXEC));
    const WriterWatch writers;
    std::uint64_t watch = 0;
    writers.renew(file.get(), watch);
    ASSERT_EQ(::link((dir / "f").c_str(), (dir / "g").c_str()), 0);
    std::filesystem::remove(dir / "f");
    ASSERT_EQ(is_written ? open_for_writing(dir / "g") : 0, 0);
    std::filesystem::remove(dir / "g");

    EXPECT_EQ(writers.renew(file.get(), watch), !is_written);
  }
}

// There are events of more files than the watch remembers.
TEST(WriterWatchTest, LostEventsInvalidateWatch) {
  const TempDir dir;
  write_file(dir / "f", "0123456789");
  const UniqueFd file(::open((dir / "f").c_str(), O_RDONLY | O_CLOEXEC));
  const WriterWatch writers;
  std::uint64_t watch = 0;
  writers.renew(file.get(), watch);
  std::vector<UniqueFd> others;
  for (int i = 0; i < 100; ++i) {
    const std::string path = dir / std::to_string(i);
    write_file(path, "0123456789");
    others.emplace_back(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    std::uint64_t other = 0;
    writers.renew(others.back().get(), other);
    std::filesystem::create_hard_link(path, path + "b");
    std::filesystem::remove(path);
    std::filesystem::remove(path + "b");
  }

  EXPECT_FALSE(writers.renew(file.get(), watch));
  EXPECT_TRUE(writers.renew(file.get(), watch));
}

TEST_F(LeasesTest, ReleasedLeaseMakesChangedCtimeStale) {
  const UniqueFd writer(::open(path_.c_str(), O_WRONLY | O_CLOEXEC));
  EXPECT_EQ(file_->verify(), 0);

  move_ctime(path_);

  EXPECT_EQ(file_->verify(), ESTALE);
  EXPECT_TRUE(file_->has_changed());
}

TEST_F(LeasesTest, ChangedCtimeUnderRetakenLeaseIsNotAChange) {
  EXPECT_EQ(open_for_writing(path_), 0);
  EXPECT_TRUE(is_leased_again(*file_));

  move_ctime(path_);

  EXPECT_EQ(file_->verify(), 0);
}

TEST_F(LeasesTest, WriteWithChangedCtimePreventsRetake) {
  {
    const UniqueFd writer(::open(path_.c_str(), O_WRONLY | O_CLOEXEC));
    struct stat status {};
    ASSERT_EQ(::fstat(writer.get(), &status), 0);
    move_ctime(path_);
    EXPECT_EQ(::pwrite(writer.get(), "y", 1, 0), 1);
    const timespec times[] = {status.st_atim, status.st_mtim};
    ASSERT_EQ(::futimens(writer.get(), times), 0);
  }

  EXPECT_FALSE(file_->retake_lease());

  EXPECT_EQ(file_->verify(), ESTALE);
}

// touch(1) opens for writing with O_NONBLOCK, which fails because of the lease. Then touch sets the
// atime by the file's name.
TEST_F(LeasesTest, TouchOfAtimeIsNotAChange) {
  lease({.pause = 1h, .rest = 1h});
  const std::string before = file_->token();
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(run({"touch", "-a", path_}).status, 0);
    if (i % 2 == 0) {
      EXPECT_EQ(file_->verify(), 0) << i;
    }
    // Waits for the lease, because a touch without a lease is a different case.
    EXPECT_TRUE(eventually([&] {
      return read_by_recipe(*file_) == 0 && !is_asked_for() && file_->is_leased();
    })) << i;
  }

  EXPECT_EQ(file_->verify(), 0);
  EXPECT_NE(file_->token(), before);
}

TEST_F(LeasesTest, LinkChmodAndRenameExplainCtimeWithoutLease) {
  leases_.reset();
  const std::string link = dir_ / "link";
  const std::pair<const char*, std::function<int()>> acts[] = {
      {"link", [&] { return ::link(path_.c_str(), link.c_str()); }},
      {"unlink", [&] { return ::unlink(link.c_str()); }},
      {"chmod", [&] { return ::chmod(path_.c_str(), 0600); }},
      {"away", [&] { return ::rename(path_.c_str(), link.c_str()); }},
      {"back", [&] { return ::rename(link.c_str(), path_.c_str()); }},
  };
  for (const auto& [name, act] : acts) {
    EXPECT_EQ(act(), 0) << name;
    EXPECT_EQ(file_->verify(), 0) << name;
  }

  move_ctime(path_);

  EXPECT_EQ(file_->verify(), ESTALE);
}

// Moving a directory does not change the ctime of its files. So the changed path cannot explain a
// changed ctime, even if another directory takes the old path.
TEST(LocalFileInMovedDirectory, ChangedCtimeIsStale) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "a");
  write_file(dir / "a/f", "0123456789");
  const LocalFile file((dir / "a/f").string());
  std::filesystem::rename(dir / "a", dir / "b");
  std::filesystem::create_directory(dir / "a");
  EXPECT_EQ(file.verify(), 0);

  move_ctime(dir / "b/f");

  EXPECT_EQ(file.verify(), ESTALE);
}

// The file was renamed before its directory moved.
TEST(LocalFileInMovedDirectory, ChangedCtimeIsStaleAfterEarlierRename) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "a");
  write_file(dir / "a/f", "0123456789");
  const LocalFile file((dir / "a/f").string());
  std::filesystem::rename(dir / "a/f", dir / "a/g");
  EXPECT_EQ(file.verify(), 0);
  std::filesystem::rename(dir / "a", dir / "b");

  move_ctime(dir / "b/g");

  EXPECT_EQ(file.verify(), ESTALE);
}

// A file that changes between two checks in the constructor of LocalFile.
class OpeningFile : public ::testing::Test {
 protected:
  OpeningFile() { write_file(path_, "0123456789"); }
  ~OpeningFile() override { on_seek = nullptr; }

  TempDir dir_;
  const std::string path_ = dir_ / "f";
};

TEST_F(OpeningFile, FailsWhileFileIsWritten) {
  on_seek = [&, size = std::size_t{0}]() mutable { write_file(path_, std::string(++size, 'x')); };

  try {
    const LocalFile file(path_);
    ADD_FAILURE() << "the file was opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnreadable);
    EXPECT_NE(std::string(error.what()).find(path_ + ": is being written to"), std::string::npos)
        << error.what();
  }
}

TEST_F(OpeningFile, HasNewVersionAfterWriteEnds) {
  on_seek = [&, writes = 3]() mutable {
    if (writes-- > 0) write_file(path_, std::string(100 - static_cast<std::size_t>(writes), 'x'));
  };

  const LocalFile file(path_);

  EXPECT_EQ(file.size(), 100U);
  EXPECT_EQ(file.verify(), 0);
  on_seek = nullptr;
  EXPECT_EQ(file.token(), LocalFile(path_).token());
}

TEST_F(OpeningFile, SucceedsWhileLinksAreMade) {
  on_seek = [&, number = 0]() mutable {
    EXPECT_EQ(::link(path_.c_str(), (dir_ / std::to_string(++number)).c_str()), 0);
  };

  EXPECT_EQ(LocalFile(path_).verify(), 0);
}

TEST(LocalFileToken, DiffersForReusedInode) {
  const TempDir dir;
  const std::string path = dir / "f";
  const timespec times[] = {{1, 0}, {1, 0}};
  std::set<std::string> tokens;
  for (int i = 0; i < 20; ++i) {
    write_file(path, "0123456789");
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
    EXPECT_TRUE(tokens.insert(LocalFile(path).token()).second) << i;
    std::filesystem::remove(path);
  }
}

TEST(Leases, OpenWriterPreventsLease) {
  const TempDir dir;
  write_file(dir / "f", "0123456789");
  const int writer = ::open((dir / "f").c_str(), O_WRONLY | O_CLOEXEC);
  const LocalFile file((dir / "f").string());
  const Leases leases({&file}, kAtOnce);

  EXPECT_EQ(read_by_recipe(file), 0);

  EXPECT_FALSE(file.is_leased());
  ::close(writer);
}

// Runs `act` on a thread with CAP_LEASE as its only capability.
void with_only_cap_lease(const std::function<void()>& act) {
  std::thread([&] {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct only_lease[2]{};
    only_lease[0].effective = only_lease[0].permitted = 1U << CAP_LEASE;
    ASSERT_EQ(::syscall(SYS_capset, &header, only_lease), 0);
    act();
  }).join();
}

// mincore(2) reports every page of another user's file as resident, unless the caller has more
// capabilities. A reply from the mapping would then wait for the disk, and a writer for the reply.
TEST(Leases, NonResidentPagesOfOtherUsersFileAreNotPinned) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to give a file away";
  const TempDir dir;
  const std::string path = dir / "f";
  write_file(path, std::string(64 << 10, 'x'));
  ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
  std::filesystem::permissions(dir.path(), std::filesystem::perms(0755));
  const auto drop = [&] {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    ::fsync(fd.get());
    ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  };
  drop();
  if (LocalFile(path).is_resident(0, 64 << 10)) GTEST_SKIP() << "this file system keeps every page";
  bool is_leased = false;

  with_only_cap_lease([&] {
    // Repeats, because the check itself makes the kernel read ahead, and a fast disk may finish
    // before the check ends.
    const auto is_refused = [&](bool has_first) {
      drop();
      const LocalFile file(path);
      const Leases leases({&file});
      const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
      ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_RANDOM);  // reads only this page
      char byte = 0;
      const std::size_t length = has_first ? 1 : 0;
      EXPECT_EQ(::pread(fd.get(), &byte, length, 0), static_cast<ssize_t>(length));
      return !file.can_pin({0, 64 << 10});
    };
    EXPECT_TRUE(eventually([&] { return is_refused(false); }, 60s));
    EXPECT_TRUE(eventually([&] { return is_refused(true); }, 60s))
        << "only the first page is resident";
    const LocalFile file(path);
    const Leases leases({&file});
    const auto is_granted = [&] { return file.can_pin({0, 64 << 10}); };
    is_granted();
    is_leased = file.is_leased();
    if (is_leased) {
      // Repeats, because the kernel may evict pages.
      EXPECT_TRUE(eventually([&] { return read_file(path) != "" && is_granted(); }, 60s));
      EXPECT_TRUE(eventually(is_granted, 60s)) << "is granted by the page table";
    }
  });

  if (!is_leased) GTEST_SKIP() << "no leases on this file system";
}

// Blocks SIGIO in this thread, which plays the role of the thread of Leases.
class BlockedIo {
 public:
  BlockedIo() {
    sigemptyset(&io_);
    sigaddset(&io_, SIGIO);
    ::pthread_sigmask(SIG_BLOCK, &io_, &before_);
  }
  BlockedIo(const BlockedIo&) = delete;
  ~BlockedIo() {
    const timespec none{};
    ::sigtimedwait(&io_, nullptr, &none);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  void wait() const {
    int signal = 0;
    ::sigwait(&io_, &signal);
  }

 private:
  sigset_t io_{}, before_{};
};

// In a supervised mount the descriptor and its lease outlive the worker that took the lease, and
// the kernel's signal to break it reaches no process.
TEST(Leases, NextWorkerReleasesRequestedLeaseOfDeadWorker) {
  const BlockedIo io;
  const TempDir dir;
  const std::string path = dir / "f";
  write_file(path, "0123456789");
  const LocalFile file(path);
  const WriterWatch watch;
  file.begin_lease(1s, &watch);
  EXPECT_EQ(read_by_recipe(file), 0);
  if (!file.is_leased()) GTEST_SKIP() << "no leases on this file system";
  ASSERT_EQ(open_for_writing(path, O_NONBLOCK), EWOULDBLOCK);
  io.wait();

  const Leases next({&file}, kAtOnce);

  EXPECT_FALSE(file.is_leased());
  EXPECT_EQ(open_for_writing(path, O_NONBLOCK), 0);
  EXPECT_TRUE(is_leased_again(file));
}

TEST(Leases, LeaseOfDeadWorkerExplainsCtimeToNextWorker) {
  const BlockedIo io;
  const TempDir dir;
  const std::string path = dir / "f";
  write_file(path, "0123456789");
  const LocalFile file(path);
  const WriterWatch watch;
  file.begin_lease(1s, &watch);
  EXPECT_EQ(read_by_recipe(file), 0);
  if (!file.is_leased()) GTEST_SKIP() << "no leases on this file system";
  move_ctime(path);

  const Leases next({&file}, kAtOnce);

  EXPECT_EQ(file.verify(), 0);
  EXPECT_TRUE(is_leased_again(file));
}

TEST(Leases, StayWhileFileIsRead) {
  const BlockedIo io;
  const TempDir dir;
  write_file(dir / "f", "0123456789");
  const LocalFile file((dir / "f").string());
  const WriterWatch watch;
  file.begin_lease(1h, &watch);
  EXPECT_EQ(read_by_recipe(file), 0);
  if (!file.is_leased()) GTEST_SKIP() << "no leases on this file system";

  for (unsigned i = 0; i < 3 * LocalFile::kQuietLooks; ++i) {
    file.let_lease_rest();
    EXPECT_EQ(read_by_recipe(file), 0);
    EXPECT_TRUE(file.is_leased()) << i;
  }
  for (unsigned i = 0; i < LocalFile::kQuietLooks; ++i) file.let_lease_rest();
  EXPECT_EQ(open_for_writing(file.path(), O_NONBLOCK), 0);
  file.end_lease();
}

// After its open has failed, touch(1) sets the times. The lease must not be released before that.
TEST(Leases, ReleaseWaitsForTouch) {
  const BlockedIo io;
  const TempDir dir;
  const std::string path = dir / "f";
  write_file(path, "0123456789");
  const LocalFile file(path);
  file.begin_lease(1s, nullptr);  // a watch would detect a later touch
  EXPECT_EQ(read_by_recipe(file), 0);
  if (!file.is_leased()) GTEST_SKIP() << "no leases on this file system";
  ASSERT_EQ(open_for_writing(path, O_NONBLOCK), EWOULDBLOCK);
  io.wait();
  std::atomic<bool> is_touched = false;
  std::atomic<bool> is_early = false;
  on_unlock = [&] { is_early = is_early || !is_touched; };

  std::thread giver([&] { file.give_back_lease_if_asked(std::chrono::steady_clock::now() + 1h); });
  static_cast<void>(eventually([&] { return is_early.load(); }, 50ms));
  is_touched = true;
  move_ctime(path);
  giver.join();

  on_unlock = nullptr;
  EXPECT_FALSE(is_early);
  EXPECT_EQ(file.verify(), 0);
}

// Writers of many files wait together for one touch time, not one after the other.
TEST(Leases, ManyFilesShareOneWaitForTouch) {
  constexpr int kFiles = 8;
  const TempDir dir;
  std::vector<std::unique_ptr<const LocalFile>> files;
  std::vector<const Source*> sources;
  for (int i = 0; i < kFiles; ++i) {
    write_file(dir / std::to_string(i), "0123456789");
    files.push_back(std::make_unique<const LocalFile>((dir / std::to_string(i)).string()));
    sources.push_back(files.back().get());
  }
  std::atomic<int> given_back = 0, after_first = 0, after_last = 0;
  struct AtTheEnd {
    ~AtTheEnd() { on_unlock = nullptr; }
  } const at_the_end;
  const Leases leases(sources, kAtOnce);
  for (const auto& file : files) EXPECT_EQ(read_by_recipe(*file), 0);
  if (!files[0]->is_leased()) GTEST_SKIP() << "no leases on this file system";
  on_unlock = [&] {
    const int now = ++given_back;
    if (now == 1) after_first = sleeps.load();
    if (now == kFiles) after_last = sleeps.load();
  };
  Pinned pinned = files[0]->try_pin();  // until writers wait for all files
  ASSERT_TRUE(pinned);
  for (const auto& file : files) {
    ASSERT_EQ(open_for_writing(file->path(), O_NONBLOCK), EWOULDBLOCK);
  }

  pinned.guard.unlock();

  EXPECT_TRUE(eventually([&] { return given_back >= kFiles; }));
  EXPECT_EQ(after_last - after_first, 0) << "there were more waits for the other files";
}

TEST(Leases, MappingIsNotSentWithoutLease) {
  const TempDir dir;
  write_file(dir / "f", "0123456789");
  const LocalFile file((dir / "f").string());
  Content content;
  content.extent(file, 0, 10);
  Reading reading;

  ASSERT_EQ(content.read(0, 10, reading), 0);

  ASSERT_EQ(reading.pieces.size(), 1U);
  EXPECT_NE(reading.pieces[0].iov_base, file.bytes().data())
      << "sent from the mapping without a lease";
}

}  // namespace
}  // namespace stfs::test
