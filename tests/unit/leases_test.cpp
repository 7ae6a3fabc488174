// Leases: while a pin lives no process can change the bytes, and no writer waits for a lease for
// long.
#include "core/source/leases.h"

#include "core/recipe/content.h"
#include "tests/support/files.h"
#include "tests/support/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

using namespace std::chrono_literals;

// The errno of an open that would wait for a lease; 0 if it succeeds.
int open_for_writing(const std::string& path, int flags = 0) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | flags);
  if (fd < 0) return errno;
  ::close(fd);
  return 0;
}

// The errno of a read through a recipe, as FileSystem reads; 0 if it succeeds.
int read_by_recipe(const LocalFile& file) {
  Content content;
  content.extent(file, 0, 10);
  Reading reading;
  return content.read(0, 10, reading);
}

// Reads until there is a lease: the thread that returned the last one may not have said so yet.
bool is_leased_again(const LocalFile& file) {
  const auto is_leased = [&] { return read_by_recipe(file) == 0 && file.is_leased(); };
  return eventually(is_leased, 60s);
}

// A file whose lease is taken again at the first read after it was returned.
class LeasesTest : public ::testing::Test {
 protected:
  LeasesTest() : path_((dir_ / "f").string()) {
    write_file(path_, std::string(10'000, 'x'));
    file_.emplace(path_);
    leases_.emplace(std::vector<const Source*>{&*file_}, 0s);
  }
  void SetUp() override {
    if (!file_->is_leased()) GTEST_SKIP() << "no leases on this file system";
  }

  TempDir dir_;
  std::string path_;
  std::optional<LocalFile> file_;
  std::optional<Leases> leases_;
};

TEST_F(LeasesTest, AreGivenBackToWhoeverOpensForWriting) {
  EXPECT_EQ(open_for_writing(path_), 0);

  EXPECT_FALSE(file_->is_leased());
  EXPECT_FALSE(bool(file_->try_pin()));
}

TEST_F(LeasesTest, AreGivenBackToWhoeverTruncates) {
  EXPECT_EQ(::truncate(path_.c_str(), 5), 0);

  EXPECT_FALSE(file_->is_leased());
}

TEST_F(LeasesTest, AreKeptFromReaders) {
  std::string bytes = read_file(path_);

  EXPECT_EQ(bytes.size(), 10'000U);
  EXPECT_TRUE(file_->is_leased());
}

TEST_F(LeasesTest, AreNotGivenBackWhileAPinLives) {
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
  EXPECT_FALSE(bool(file_->try_pin())) << "no new pin while the lease is asked for";
  pinned.guard.unlock();
  writer.join();
}

TEST_F(LeasesTest, AreTakenAgainByAReaderWhenTheWriterHasClosedAnUnchangedFile) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(open_for_writing(path_), 0);
    ASSERT_FALSE(file_->is_leased());

    EXPECT_TRUE(is_leased_again(*file_));

    EXPECT_TRUE(bool(file_->try_pin()));
    EXPECT_EQ(open_for_writing(path_, O_NONBLOCK), EWOULDBLOCK) << "the kernel has no lease";
  }
}

TEST_F(LeasesTest, AreTakenAgainAfterAWriterWhoHasClosedAndNotBefore) {
  const int writer = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_GE(writer, 0);
  EXPECT_EQ(read_by_recipe(*file_), 0);
  EXPECT_FALSE(file_->is_leased());

  ::close(writer);

  EXPECT_TRUE(is_leased_again(*file_));
}

TEST_F(LeasesTest, AreNotTakenAgainBeforeTheirTime) {
  leases_.reset();
  leases_.emplace(std::vector<const Source*>{&*file_}, 1h);
  EXPECT_EQ(open_for_writing(path_), 0);

  EXPECT_EQ(read_by_recipe(*file_), 0);

  EXPECT_FALSE(file_->is_leased());
}

TEST_F(LeasesTest, OfAFileThatHasChangedAreNotTakenAgain) {
  write_file(path_, std::string(10'000, 'y'));

  // The first attempt may come before the thread has marked the lease as returned.
  EXPECT_TRUE(eventually(
      [&] {
        EXPECT_FALSE(file_->retake_lease());
        return file_->has_changed();
      },
      60s));
  EXPECT_EQ(read_by_recipe(*file_), ESTALE);
  EXPECT_EQ(open_for_writing(path_, O_NONBLOCK), 0) << "a lease that serves nothing is held";
}

TEST_F(LeasesTest, AreNotTakenAgainAfterTheirEnd) {
  EXPECT_EQ(open_for_writing(path_), 0);
  leases_.reset();

  EXPECT_FALSE(file_->retake_lease());

  EXPECT_EQ(open_for_writing(path_, O_NONBLOCK), 0);
}

TEST_F(LeasesTest, AreTakenAndGivenBackUnderManyReadersAndWriters) {
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
  EXPECT_LT(longest, 40s) << "a lease that nobody gives back is taken away after 45 seconds";
}

TEST_F(LeasesTest, AreGivenBackAtTheirEnd) {
  leases_.reset();

  EXPECT_FALSE(file_->is_leased());
  EXPECT_EQ(open_for_writing(path_, O_NONBLOCK), 0);
}

TEST_F(LeasesTest, OfManyFilesAreGivenBackOneByOne) {
  write_file(dir_ / "g", "bytes");
  const LocalFile other((dir_ / "g").string());
  const Leases leases({&other, &*file_});

  EXPECT_EQ(open_for_writing((dir_ / "g").string()), 0);

  EXPECT_FALSE(other.is_leased());
  EXPECT_TRUE(file_->is_leased());
}

TEST(Leases, AreNotHadWhileAWriterHasTheFileOpen) {
  const TempDir dir;
  write_file(dir / "f", "0123456789");
  const int writer = ::open((dir / "f").c_str(), O_WRONLY | O_CLOEXEC);
  const LocalFile file((dir / "f").string());
  const Leases leases({&file});

  EXPECT_FALSE(file.is_leased());
  ::close(writer);
}

// Runs `act` on a thread whose only capability is CAP_LEASE.
void with_cap_lease_alone(const std::function<void()>& act) {
  std::thread([&] {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct lease_alone[2]{};
    lease_alone[0].effective = lease_alone[0].permitted = 1U << CAP_LEASE;
    ASSERT_EQ(::syscall(SYS_capset, &header, lease_alone), 0);
    act();
  }).join();
}

// mincore(2) reports every page of another user's file as resident, unless the caller has more
// capabilities. A reply from the mapping would then wait for the disk, and a writer for the reply.
TEST(Leases, OfAnotherUsersFileLetNothingBeSentThatIsNotAtHand) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to give a file away";
  const TempDir dir;
  const std::string path = dir / "f";
  write_file(path, std::string(64 << 10, 'x'));
  ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
  std::filesystem::permissions(dir.path(), std::filesystem::perms(0755));
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ::fsync(fd);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
  if (LocalFile(path).is_resident(0, 64 << 10)) GTEST_SKIP() << "this file system keeps every page";
  bool is_leased = false;

  with_cap_lease_alone([&] {
    const LocalFile file(path);
    const Leases leases({&file});
    is_leased = file.is_leased();
    EXPECT_FALSE(file.can_pin({0, 64 << 10}));
    const std::string bytes = read_file(path);
    EXPECT_EQ(file.can_pin({0, 64 << 10}), is_leased);
    EXPECT_EQ(file.can_pin({0, 64 << 10}), is_leased) << "and from the page table";
  });

  if (!is_leased) GTEST_SKIP() << "no leases on this file system";
}

// In a supervised mount the descriptor and its lease outlive the worker that took the lease, and
// the kernel's signal to break it reaches no process.
TEST(Leases, ThatWereAskedForOfAWorkerThatDiedAreGivenBackByTheNext) {
  sigset_t io;
  sigset_t before;
  sigemptyset(&io);
  sigaddset(&io, SIGIO);
  ::pthread_sigmask(SIG_BLOCK, &io, &before);
  const TempDir dir;
  const std::string path = dir / "f";
  write_file(path, "0123456789");
  const LocalFile file(path);
  file.take_lease(1s);
  if (!file.is_leased()) GTEST_SKIP() << "no leases on this file system";
  ASSERT_EQ(open_for_writing(path, O_NONBLOCK), EWOULDBLOCK);
  int signal = 0;
  ::sigwait(&io, &signal);

  const Leases next({&file}, 0s);

  EXPECT_FALSE(file.is_leased());
  EXPECT_EQ(open_for_writing(path, O_NONBLOCK), 0);
  EXPECT_TRUE(is_leased_again(file));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST(Leases, AreWhatTheMappingIsSentUnder) {
  const TempDir dir;
  write_file(dir / "f", "0123456789");
  const LocalFile file((dir / "f").string());
  Content content;
  content.extent(file, 0, 10);
  Reading reading;

  ASSERT_EQ(content.read(0, 10, reading), 0);

  ASSERT_EQ(reading.pieces.size(), 1U);
  EXPECT_NE(reading.pieces[0].iov_base, file.bytes().data()) << "no lease, yet from the mapping";
}

}  // namespace
}  // namespace stfs::test
