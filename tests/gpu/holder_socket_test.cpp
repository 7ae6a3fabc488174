// The socket at which a holder listens, and its file. A holder unlinks only its own socket.
#include "tools/gpu/holder/holder_socket.h"

#include "core/base/error.h"
#include "tests/gpu/wire.h"
#include "tests/support/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <filesystem>
#include <optional>
#include <string>

namespace stfs::gpu::test {

using namespace stfs::test;

namespace {

class HolderSocketTest : public ::testing::Test {
 protected:
  std::optional<HolderSocket> listen() const { return HolderSocket::listen_at(path()); }

  std::string path() const { return dir_ / "gpu.sock"; }
  bool exists() const { return std::filesystem::exists(path()); }

  int bound(const UniqueFd& fd) const { return at_path(::bind, fd, path()); }
  int connected(const UniqueFd& fd) const { return at_path(::connect, fd, path()); }
  // Returns true if a client can connect to the path. Its connection stays in the listener's queue.
  bool is_reached() const { return connected(new_socket(SOCK_NONBLOCK)) == 0; }

 private:
  TempDir dir_;
};

TEST_F(HolderSocketTest, AllowsOneHolderAndOnlyItsUser) {
  const std::optional<HolderSocket> first = listen();

  ASSERT_TRUE(first.has_value());
  struct stat status {};
  ASSERT_EQ(::stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  EXPECT_FALSE(listen().has_value());
  EXPECT_TRUE(is_reached());
}

TEST_F(HolderSocketTest, RetiresIfNoClientHasConnected) {
  std::optional<HolderSocket> socket = listen();

  EXPECT_TRUE(socket->retire());

  EXPECT_FALSE(exists());
  EXPECT_FALSE(std::filesystem::exists(path() + ".gone"));
}

TEST_F(HolderSocketTest, DoesNotRetireWhileClientWaits) {
  std::optional<HolderSocket> socket = listen();
  const UniqueFd client = new_socket(SOCK_NONBLOCK);
  ASSERT_EQ(connected(client), 0);

  EXPECT_FALSE(socket->retire());

  EXPECT_TRUE(is_reached()) << "it still listens at its path";
  socket->remove();
  EXPECT_FALSE(exists());
}

TEST_F(HolderSocketTest, DoesNotRemoveSocketOfAnotherHolder) {
  std::optional<HolderSocket> removed = listen();
  std::optional<HolderSocket> retired;
  std::filesystem::remove(path());
  retired = listen();
  std::filesystem::remove(path());
  const std::optional<HolderSocket> last = listen();
  ASSERT_TRUE(last.has_value());

  removed->remove();
  EXPECT_TRUE(retired->retire());
  retired->remove();

  EXPECT_TRUE(is_reached());
}

TEST_F(HolderSocketTest, ReplacesOnlySocketWithoutListener) {
  ASSERT_EQ(bound(new_socket(SOCK_NONBLOCK)), 0);  // closed at once
  EXPECT_TRUE(listen().has_value());

  std::filesystem::remove(path());
  write_file(path(), "precious");
  EXPECT_THROW(listen(), Error);
  EXPECT_EQ(read_file(path()), "precious");

  std::filesystem::remove(path());
  const UniqueFd other = new_socket(SOCK_NONBLOCK, SOCK_DGRAM);
  ASSERT_EQ(bound(other), 0);
  EXPECT_THROW(listen(), Error);
  EXPECT_TRUE(exists()) << "a datagram socket may be in use, although connect(2) fails";
}

TEST_F(HolderSocketTest, RestoresItsRemovedPath) {
  std::optional<HolderSocket> socket = listen();
  EXPECT_FALSE(socket->is_lost());
  std::filesystem::remove(path());

  EXPECT_TRUE(socket->is_lost());
  EXPECT_TRUE(socket->restore());

  EXPECT_FALSE(socket->is_lost());
  EXPECT_TRUE(is_reached());
  EXPECT_FALSE(socket->retire()) << "a client waits";
  socket->remove();
  EXPECT_FALSE(exists());
}

TEST_F(HolderSocketTest, RestoresItsPathInRecreatedDirectory) {
  const std::filesystem::path directory = path() + ".d";
  std::filesystem::create_directory(directory);
  std::optional<HolderSocket> socket = HolderSocket::listen_at(directory / "gpu.sock");
  std::filesystem::remove_all(directory);

  EXPECT_TRUE(socket->is_lost());
  EXPECT_FALSE(socket->restore());
  EXPECT_FALSE(std::filesystem::exists(directory))
      << "the holder must not create a directory that a user has removed";
  std::filesystem::create_directory(directory);
  std::filesystem::permissions(directory, std::filesystem::perms::owner_all);
  EXPECT_TRUE(socket->restore());

  EXPECT_FALSE(socket->is_lost());
}

TEST_F(HolderSocketTest, DoesNotRestorePathThatAnotherUserMayWrite) {
  namespace fs = std::filesystem;
  const fs::path directory = path() + ".d";
  const fs::path other = path() + ".other";
  fs::create_directory(directory);
  fs::create_directory(other);
  std::optional<HolderSocket> socket = HolderSocket::listen_at(directory / "gpu.sock");
  fs::remove_all(directory);

  fs::create_directory_symlink(other, directory);
  EXPECT_TRUE(socket->is_lost());
  EXPECT_FALSE(socket->restore());
  fs::remove(directory);
  fs::create_directory(directory);
  fs::permissions(directory, fs::perms::all);
  EXPECT_FALSE(socket->restore());
  fs::remove(directory);
  write_file(directory, "");
  EXPECT_TRUE(socket->is_lost());
  EXPECT_FALSE(socket->restore());

  EXPECT_TRUE(fs::is_empty(other));
}

TEST_F(HolderSocketTest, DoesNotRestorePathTakenByAnotherFile) {
  std::optional<HolderSocket> first = listen();
  std::filesystem::remove(path());
  std::optional<HolderSocket> second = listen();

  EXPECT_TRUE(first->is_lost());
  EXPECT_FALSE(first->restore());
  EXPECT_FALSE(second->is_lost());
  std::filesystem::remove(path());
  write_file(path(), "precious");
  EXPECT_FALSE(second->restore());

  EXPECT_EQ(read_file(path()), "precious");
}

TEST_F(HolderSocketTest, DoesNotWaitForLockWhenRestoring) {
  std::optional<HolderSocket> socket = listen();
  std::filesystem::remove(path());
  const UniqueFd lock(::open((path() + ".lock").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);

  EXPECT_FALSE(socket->restore()) << "it returns without waiting for the lock";
}

TEST_F(HolderSocketTest, RetiresWithoutErrorIfDirectoryWasRemoved) {
  std::optional<HolderSocket> socket;
  {
    const TempDir other;
    socket = HolderSocket::listen_at(other / "gpu.sock");
  }

  EXPECT_TRUE(socket->retire());
  socket->remove();
}

}  // namespace
}  // namespace stfs::gpu::test
