// Leases: while a guard lives nobody can change the bytes, and nobody waits for a lease for long.
#include "core/leases.h"

#include "core/content.h"
#include "tests/support/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <optional>
#include <string>
#include <thread>

namespace stfs::test {
namespace {

// The errno of an open that would have to wait for a lease; 0 when it succeeds.
int open_for_writing(const std::string& path, int flags = 0) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | flags);
  if (fd < 0) return errno;
  ::close(fd);
  return 0;
}

class LeasesTest : public ::testing::Test {
 protected:
  LeasesTest() : path_((dir_ / "f").string()) {
    write_file(path_, std::string(10'000, 'x'));
    file_.emplace(path_);
    leases_.emplace(std::vector<const Mapping*>{&*file_});
  }
  void SetUp() override {
    if (!file_->is_leased()) GTEST_SKIP() << "no leases on this file system";
  }

  TempDir dir_;
  std::string path_;
  std::optional<Mapping> file_;
  std::optional<Leases> leases_;
};

TEST_F(LeasesTest, AreGivenBackToWhoeverOpensForWriting) {
  EXPECT_EQ(open_for_writing(path_), 0);

  EXPECT_FALSE(file_->is_leased());
  EXPECT_FALSE(file_->guard().owns_lock());
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

TEST_F(LeasesTest, AreNotGivenBackWhileAGuardLives) {
  Mapping::Guard guard = file_->guard();
  ASSERT_TRUE(guard.owns_lock());
  std::atomic<bool> opened = false;

  EXPECT_EQ(open_for_writing(path_, O_NONBLOCK), EWOULDBLOCK);  // asks for the lease
  std::thread writer([&] {
    EXPECT_EQ(open_for_writing(path_), 0);
    opened = true;
  });
  while (file_->is_leased()) std::this_thread::yield();
  EXPECT_FALSE(opened);
  EXPECT_EQ(open_for_writing(path_, O_NONBLOCK), EWOULDBLOCK);
  EXPECT_FALSE(file_->guard().owns_lock()) << "no new guard while the lease is asked for";
  guard.unlock();
  writer.join();
}

TEST_F(LeasesTest, AreGivenBackAtTheirEnd) {
  leases_.reset();

  EXPECT_FALSE(file_->is_leased());
  EXPECT_EQ(open_for_writing(path_, O_NONBLOCK), 0);
}

TEST_F(LeasesTest, OfManyFilesAreGivenBackOneByOne) {
  write_file(dir_ / "g", "bytes");
  const Mapping other((dir_ / "g").string());
  const Leases leases({&other, &*file_});

  EXPECT_EQ(open_for_writing((dir_ / "g").string()), 0);

  EXPECT_FALSE(other.is_leased());
  EXPECT_TRUE(file_->is_leased());
}

TEST(Leases, AreNotHadWhileAWriterHasTheFileOpen) {
  const TempDir dir;
  write_file(dir / "f", "0123456789");
  const int writer = ::open((dir / "f").c_str(), O_WRONLY | O_CLOEXEC);
  const Mapping file((dir / "f").string());
  const Leases leases({&file});

  EXPECT_FALSE(file.is_leased());
  ::close(writer);
}

// Of a supervised mount: the descriptor, and the lease with it, outlives the worker that took it,
// and the signal that asks for it back goes to nobody.
TEST(Leases, ThatWereAskedForOfAWorkerThatDiedAreGivenBackByTheNext) {
  sigset_t io;
  sigset_t before;
  sigemptyset(&io);
  sigaddset(&io, SIGIO);
  ::pthread_sigmask(SIG_BLOCK, &io, &before);
  const TempDir dir;
  const std::string path = dir / "f";
  write_file(path, "0123456789");
  const Mapping file(path);
  file.take_lease();
  if (!file.is_leased()) GTEST_SKIP() << "no leases on this file system";
  ASSERT_EQ(open_for_writing(path, O_NONBLOCK), EWOULDBLOCK);
  int signal = 0;
  ::sigwait(&io, &signal);

  const Leases next({&file});

  EXPECT_FALSE(file.is_leased());
  EXPECT_EQ(open_for_writing(path, O_NONBLOCK), 0);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST(Leases, AreWhatTheMappingIsSentUnder) {
  const TempDir dir;
  write_file(dir / "f", "0123456789");
  const Mapping file((dir / "f").string());
  Content content;
  content.extent(file, 0, 10);
  Reading reading;

  ASSERT_EQ(content.read(0, 10, reading), 0);

  ASSERT_EQ(reading.pieces.size(), 1U);
  EXPECT_NE(reading.pieces[0].iov_base, file.bytes().data()) << "no lease, yet from the mapping";
}

}  // namespace
}  // namespace stfs::test
