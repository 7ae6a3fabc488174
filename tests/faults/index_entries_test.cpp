// Index entries that are not shards are rejected without hanging, whatever they are.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/mounted.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>

namespace stfs::test {
namespace {

namespace fs = std::filesystem;

struct Entry {
  const char* name;
  std::string shard;  // the name in the index
  int status;         // exit status of the command
  std::function<void(const fs::path& directory)> make;
};

const Entry kEntries[] = {
    {"ParentDirectory", "../outside.safetensors", 1, [](auto&) {}},
    {"ParentInTheMiddle", "sub/../../outside.safetensors", 1,
     [](auto& d) { fs::create_directory(d / "sub"); }},
    {"ParentAtTheEnd", "sub/..", 1, [](auto& d) { fs::create_directory(d / "sub"); }},
    {"AbsolutePath", "/etc/passwd", 1, [](auto&) {}},
    {"EmptyName", "", 1, [](auto&) {}},
    {"DirectoryItself", ".", 3, [](auto&) {}},
    {"Subdirectory", "d", 3, [](auto& d) { fs::create_directory(d / "d"); }},
    {"FileWithTrailingSlash", "good.safetensors/", 3, [](auto&) {}},
    {"Fifo", "fifo", 3, [](auto& d) { ASSERT_EQ(::mkfifo((d / "fifo").c_str(), 0666), 0); }},
    {"SymlinkToFifo", "link", 3,
     [](auto& d) {
       ASSERT_EQ(::mkfifo((d / "fifo").c_str(), 0666), 0);
       fs::create_symlink("fifo", d / "link");
     }},
    {"SymlinkToDevice", "link", 3, [](auto& d) { fs::create_symlink("/dev/zero", d / "link"); }},
    {"SymlinkToTerminal", "link", 3, [](auto& d) { fs::create_symlink("/dev/tty", d / "link"); }},
    {"SymlinkToItself", "link", 3, [](auto& d) { fs::create_symlink("link", d / "link"); }},
    {"SymlinkLoop", "a", 3,
     [](auto& d) {
       fs::create_symlink("b", d / "a");
       fs::create_symlink("a", d / "b");
     }},
    {"SymlinkToProcFile", "link", 1,
     [](auto& d) { fs::create_symlink("/proc/self/cmdline", d / "link"); }},
    {"Socket", "socket", 3,
     [](auto& d) {
       sockaddr_un address{};
       address.sun_family = AF_UNIX;
       std::strncpy(address.sun_path, (d / "socket").c_str(), sizeof address.sun_path - 1);
       const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
       ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
       ::close(fd);
     }},
    {"NameOf100KB", std::string(100'000, 'n'), 3, [](auto&) {}},
    {"PathOf10000Directories",
     [] {
       std::string path;
       for (int i = 0; i < 10'000; ++i) path += "d/";
       return path + "f";
     }(),
     3, [](auto&) {}},
    {"MissingFile", "absent.safetensors", 3, [](auto&) {}},
    {"DanglingSymlink", "link", 3, [](auto& d) { fs::create_symlink("absent", d / "link"); }},
};

class IndexEntry : public MountTest, public ::testing::WithParamInterface<Entry> {};

INSTANTIATE_TEST_SUITE_P(All, IndexEntry, ::testing::ValuesIn(kEntries),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(IndexEntry, InvalidEntryIsRejectedInOneLineWithoutHanging) {
  const TempDir dir;
  const fs::path model = dir / "model";
  fs::create_directory(model);
  fs::create_directory(dir / "mnt");
  write_safetensors(model / "good.safetensors", {random_tensor("a", "U8", {10})});
  write_safetensors(dir / "outside.safetensors", {random_tensor("b", "U8", {10})});
  GetParam().make(model);
  write_index(model / "model.safetensors.index.json",
              {{"a", "good.safetensors"}, {"b", GetParam().shard}});

  const Outcome result = run({STFS_BINARY, model, dir / "mnt"});

  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.status, GetParam().status) << result.err.substr(0, 300);
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1);
  EXPECT_TRUE(mounts_at(dir / "mnt").empty());
  unmount_all(dir / "mnt");
}

}  // namespace
}  // namespace stfs::test
