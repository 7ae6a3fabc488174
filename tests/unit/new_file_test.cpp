// A new file appears complete, whether it begins without a name or with a temporary one.
#include "core/checkpoint/new_file.h"

#include "core/base/error.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/new_directory.h"
#include "core/checkpoint/saved.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace {
std::function<void(int fd)> on_sync;  // is called before a file or directory is synced
}  // namespace

// Stands before libc's, of this program.
extern "C" int fsync(int fd) {
  if (on_sync) on_sync(fd);
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace stfs::test {
namespace {

using NameList = std::vector<std::string>;

constexpr auto kReplace = NewFile::Existing::kReplace;

class NewFileTest : public ::testing::TestWithParam<NewFile::Begin> {
 protected:
  std::string path(const std::string& name = "new") const { return dir_ / name; }
  NameList left() const { return names_in(dir_.path()); }

  static void write(const NewFile& file, const std::string& text) {
    EXPECT_EQ(write_exact(file.fd(), std::as_bytes(std::span(text))), 0);
  }
  static std::string refusal(const std::function<void()>& work) {
    try {
      work();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnreadable);
      return error.what();
    }
    return "";
  }

  TempDir dir_;
};

TEST_P(NewFileTest, HasItsNameOnlyWhenItIsComplete) {
  write_file(path(), "before");
  NewFile file(path(), kReplace, GetParam());
  write(file, "after");

  EXPECT_EQ(read_file(path()), "before");
  file.commit();

  EXPECT_EQ(read_file(path()), "after");
  EXPECT_EQ(left(), NameList{"new"});
}

// So a machine that stops leaves the old file or all of the new one.
TEST_P(NewFileTest, IsOnTheDiskBeforeItsNameIs) {
  NameList synced;
  on_sync = [&](int fd) {
    struct stat status {};
    EXPECT_EQ(::fstat(fd, &status), 0);
    synced.push_back(std::string(S_ISDIR(status.st_mode) ? "directory" : "file") +
                     (std::filesystem::exists(path()) ? ", named" : ", without a name"));
  };
  NewFile file(path(), kReplace, GetParam());
  write(file, "after");
  file.commit();
  on_sync = nullptr;

  EXPECT_EQ(synced, (NameList{"file, without a name", "directory, named"}));
}

TEST_P(NewFileTest, LeavesNothingWhenItIsGivenUp) {
  write_file(path(), "before");
  write(NewFile(path(), kReplace, GetParam()), "after");

  EXPECT_EQ(read_file(path()), "before");
  EXPECT_EQ(left(), NameList{"new"});
}

TEST_P(NewFileTest, LeavesNothingWhenItCannotGetItsName) {
  NewFile file(path(), kReplace, GetParam());
  write(file, "after");
  std::filesystem::create_directory(path());  // rename(2) does not replace a directory

  EXPECT_EQ(refusal([&] { file.commit(); }), path() + ": Is a directory");
  EXPECT_EQ(left(), NameList{"new"});
}

TEST_P(NewFileTest, HasTheModeThatTheUmaskLeaves) {
  const mode_t before = ::umask(027);
  NewFile file(path(), kReplace, GetParam());
  file.commit();
  ::umask(before);

  EXPECT_EQ(std::filesystem::status(path()).permissions(), std::filesystem::perms(0640));
}

TEST_P(NewFileTest, OfADirectoryThatIsMissingNamesTheDirectory) {
  const std::string missing = "directory \"" + path("missing/") + "\": No such file or directory";
  EXPECT_EQ(refusal([&] { NewFile(path("missing/new"), kReplace, GetParam()); }), path("missing/new") + ": " + missing);
  EXPECT_EQ(refusal([&] { NewDirectory(path("missing/new"), false); }), path("missing/new") + ": " + missing);
}

TEST_P(NewFileTest, MayBeMadeInADirectoryThatCannotBeRead) {
  constexpr uid_t kNobody = 65534;
  const bool is_root = ::geteuid() == 0;
  ASSERT_TRUE(!is_root || ::chown(dir_.path().c_str(), kNobody, kNobody) == 0);
  ASSERT_EQ(::chmod(dir_.path().c_str(), 0300), 0);
  std::thread([&] {
    if (is_root) ::syscall(SYS_setfsuid, kNobody);  // of this thread
    NewFile file(path(), kReplace, GetParam());
    write(file, "bytes");
    file.commit();
  }).join();
  ASSERT_EQ(::chmod(dir_.path().c_str(), 0700), 0);
  EXPECT_EQ(read_file(path()), "bytes");
  EXPECT_EQ(left(), NameList{"new"});
}

TEST_P(NewFileTest, MayHaveTheLongestName) {
  const std::string name(255, 'n');
  NewFile file(path(name), kReplace, GetParam());
  file.commit();

  EXPECT_EQ(left(), NameList{name});
}

TEST_P(NewFileTest, ReplacesNothingButARegularFile) {
  std::filesystem::create_directory(path("directory"));
  for (const std::string& directory : {path("directory"), path(""), path(".")}) {
    EXPECT_EQ(refusal([&] { NewFile(directory, kReplace, GetParam()); }),
              directory + ": a directory: name a file in it");
  }
  EXPECT_EQ(refusal([&] { NewFile("/dev/null", kReplace, GetParam()); }),
            "/dev/null: not a regular file: name another");
  EXPECT_EQ(refusal([&] { NewFile("", kReplace, GetParam()); }), "the name is empty: name a file");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_EQ(left(), NameList{"directory"});
}

TEST_P(NewFileTest, KeepsAFileThatItMayNotReplace) {
  constexpr auto kKeep = NewFile::Existing::kKeep;
  write_file(path(), "before");
  for (const std::string& name : {path(), path("link")}) {
    if (name != path()) std::filesystem::create_symlink("new", name);
    try {
      const NewFile file(name, kKeep, GetParam());
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      EXPECT_EQ(error.message(), "there is a file of this name: --force replaces it");
    }
  }
  // Also one that appears later.
  NewFile file(path("late"), kKeep, GetParam());
  write(file, "after");
  write_file(path("late"), "appeared");
  EXPECT_THROW(file.commit(), Error);
  EXPECT_EQ(read_file(path("late")), "appeared");
  EXPECT_EQ(read_file(path()), "before");
  EXPECT_EQ(left(), (NameList{"late", "link", "new"}));
}

TEST_P(NewFileTest, OfALinkReplacesTheFileThatItLeadsTo) {
  std::filesystem::create_directory(path("there"));
  write_file(path("there/file"), "before");
  std::filesystem::create_symlink("there/file", path("link"));
  std::filesystem::create_symlink("nothing", path("dangling"));

  NewFile file(path("link"), kReplace, GetParam());
  write(file, "after");
  file.commit();

  EXPECT_TRUE(std::filesystem::is_symlink(path("link")));
  EXPECT_EQ(read_file(path("there/file")), "after");
  EXPECT_EQ(refusal([&] { NewFile(path("dangling"), kReplace, GetParam()); }),
            path("dangling") + ": a symbolic link to \"nothing\", which is missing: name another");
  EXPECT_EQ(left(), (NameList{"dangling", "link", "there"}));
}

TEST_P(NewFileTest, LeavesNothingWhenASignalEndsTheProcess) {
  for (const int number : {SIGHUP, SIGINT, SIGTERM}) {
    EXPECT_EXIT(
        {
          ::signal(number, SIG_DFL);  // nohup(1) makes the tests ignore one of them
          const NewFile file(dir_ / "new", kReplace, GetParam());
          write(file, "after");
          ::kill(::getpid(), number);
          for (;;) ::pause();
        },
        ::testing::KilledBySignal(number), "");
    EXPECT_EQ(left(), NameList());
  }
}

TEST_P(NewFileTest, TakesTheSignalsForItsOwnLifeAlone) {
  sigset_t before, after;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &before);
  NewFile(path(), kReplace, GetParam()).commit();
  NewFile(path(), kReplace, GetParam());
  ::pthread_sigmask(SIG_BLOCK, nullptr, &after);

  for (int number = 1; number < SIGRTMIN; ++number) {
    EXPECT_EQ(::sigismember(&before, number), ::sigismember(&after, number)) << number;
  }
}

// The index comes last, and the name when all is on the disk: a machine that stops leaves the whole
// directory or none of this name.
TEST(NewDirectories, AreOnTheDiskInOrderBeforeTheirNameIs) {
  const TempDir dir;
  write_safetensors(dir / "model.safetensors",
                    {random_tensor("v", "F32", {500}), random_tensor("w", "F32", {500})});
  write_file(dir / "config.json", "{}");
  const std::vector<std::string> source{(dir / "model.safetensors").string()};
  Sources sources;
  const Checkpoint checkpoint(source, {.with_model_files = true, .sources = &sources});
  NameList synced;
  on_sync = [&](int fd) {
    const auto name = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd)).filename().string();
    synced.push_back((name.starts_with(".stfs-") ? ".stfs-" : name == dir.path().filename() ? "parent" : name) +
                     (std::filesystem::exists(dir / "out") ? ", named" : ""));
  };
  save(checkpoint, sources,
       {.source = source.front(), .output = dir / "out", .shard_size = 2000}, false);
  on_sync = nullptr;
  EXPECT_EQ(synced, (NameList{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "config.json",
                              "model.safetensors.index.json", ".stfs-", "parent, named"}));
  EXPECT_EQ(names_in(dir / "out"),
            (NameList{"config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                      "model.safetensors.index.json"}));
}

INSTANTIATE_TEST_SUITE_P(Begun, NewFileTest,
                         ::testing::Values(NewFile::Begin::kUnnamed, NewFile::Begin::kNamed),
                         [](const auto& begin) {
                           return begin.param == NewFile::Begin::kNamed ? "WithAName"
                                                                        : "WithoutAName";
                         });

}  // namespace
}  // namespace stfs::test
