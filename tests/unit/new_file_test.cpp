// A new file must appear complete, whether it starts without a name or with a temporary name.
#include "core/write/new_file.h"

#include "core/base/error.h"
#include "core/checkpoint/checkpoint.h"
#include "core/write/save.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
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
std::function<void(int fd)> on_sync;  // called before a file or directory is synced
}  // namespace

// In this program, this definition replaces that in libc.
extern "C" int fsync(int fd) {
  if (on_sync) on_sync(fd);
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace stfs::test {
namespace {

using NameList = std::vector<std::string>;

constexpr auto kReplace = NewFile::Existing::kReplace;
constexpr auto kRemove = SignalCleanup::kRemove;

sigset_t blocked_signals() {
  sigset_t blocked;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  return blocked;
}

bool are_equal(const sigset_t& a, const sigset_t& b) {
  for (int number = 1; number < SIGRTMIN; ++number) {
    if (::sigismember(&a, number) != ::sigismember(&b, number)) return false;
  }
  return true;
}

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

TEST_P(NewFileTest, AppearsOnlyWhenComplete) {
  write_file(path(), "before");
  NewFile file(path(), kReplace, kRemove, GetParam());
  write(file, "after");

  EXPECT_EQ(read_file(path()), "before");
  file.commit();

  EXPECT_EQ(read_file(path()), "after");
  EXPECT_EQ(left(), NameList{"new"});
}

// With this order, a crash of the machine leaves either the old file or the complete new file.
TEST_P(NewFileTest, SyncsFileBeforeNamingIt) {
  NameList synced;
  on_sync = [&](int fd) {
    struct stat status {};
    EXPECT_EQ(::fstat(fd, &status), 0);
    synced.push_back(std::string(S_ISDIR(status.st_mode) ? "directory" : "file") +
                     (std::filesystem::exists(path()) ? ", named" : ", without a name"));
  };
  NewFile file(path(), kReplace, kRemove, GetParam());
  write(file, "after");
  file.commit();
  on_sync = nullptr;

  EXPECT_EQ(synced, (NameList{"file, without a name", "directory, named"}));
}

TEST_P(NewFileTest, LeavesNoFileIfAbandoned) {
  write_file(path(), "before");
  write(NewFile(path(), kReplace, kRemove, GetParam()), "after");

  EXPECT_EQ(read_file(path()), "before");
  EXPECT_EQ(left(), NameList{"new"});
}

TEST_P(NewFileTest, LeavesNoFileIfRenameFails) {
  NewFile file(path(), kReplace, kRemove, GetParam());
  write(file, "after");
  std::filesystem::create_directory(path());  // rename(2) does not replace a directory

  EXPECT_EQ(refusal([&] { file.commit(); }), path() + ": Is a directory");
  EXPECT_EQ(left(), NameList{"new"});
}

TEST_P(NewFileTest, HasModeFromUmask) {
  const mode_t before = ::umask(027);
  NewFile file(path(), kReplace, kRemove, GetParam());
  file.commit();
  ::umask(before);

  EXPECT_EQ(std::filesystem::status(path()).permissions(), std::filesystem::perms(0640));
}

TEST_P(NewFileTest, ReportsMissingDirectory) {
  const std::string missing = "directory \"" + path("missing/") + "\": No such file or directory";
  EXPECT_EQ(refusal([&] { NewFile(path("missing/new"), kReplace, kRemove, GetParam()); }),
            path("missing/new") + ": " + missing);
  EXPECT_EQ(refusal([&] { NewDirectory(path("missing/new"), kRemove); }),
            path("missing/new") + ": " + missing);
}

TEST_P(NewFileTest, CanBeCreatedInUnreadableDirectory) {
  constexpr uid_t kUnprivileged = 65534;
  const bool is_root = ::geteuid() == 0;
  ASSERT_TRUE(!is_root || ::chown(dir_.path().c_str(), kUnprivileged, kUnprivileged) == 0);
  ASSERT_EQ(::chmod(dir_.path().c_str(), 0300), 0);
  std::thread([&] {
    if (is_root) ::syscall(SYS_setfsuid, kUnprivileged);  // affects only this thread
    NewFile file(path(), kReplace, kRemove, GetParam());
    write(file, "bytes");
    file.commit();
  }).join();
  ASSERT_EQ(::chmod(dir_.path().c_str(), 0700), 0);
  EXPECT_EQ(read_file(path()), "bytes");
  EXPECT_EQ(left(), NameList{"new"});
}

TEST_P(NewFileTest, AcceptsLongestName) {
  const std::string name(255, 'n');
  NewFile file(path(name), kReplace, kRemove, GetParam());
  file.commit();

  EXPECT_EQ(left(), NameList{name});
}

TEST_P(NewFileTest, ReplacesOnlyRegularFile) {
  std::filesystem::create_directory(path("directory"));
  for (const std::string& directory : {path("directory"), path(""), path(".")}) {
    EXPECT_EQ(refusal([&] { NewFile(directory, kReplace, kRemove, GetParam()); }),
              directory + ": a directory: choose a file in it");
  }
  EXPECT_EQ(refusal([&] { NewFile("/dev/null", kReplace, kRemove, GetParam()); }),
            "/dev/null: not a regular file: choose another name");
  EXPECT_EQ(refusal([&] { NewFile("", kReplace, kRemove, GetParam()); }),
            "the name is empty: choose a file name");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_EQ(left(), NameList{"directory"});
}

TEST_P(NewFileTest, DoesNotReplaceFileWithoutForce) {
  constexpr auto kKeep = NewFile::Existing::kKeep;
  write_file(path(), "before");
  for (const std::string& name : {path(), path("link")}) {
    if (name != path()) std::filesystem::create_symlink("new", name);
    try {
      const NewFile file(name, kKeep, kRemove, GetParam());
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      EXPECT_EQ(error.message(), "already exists: --force replaces it");
    }
  }
  // This includes a file that appears later.
  NewFile file(path("late"), kKeep, kRemove, GetParam());
  write(file, "after");
  write_file(path("late"), "appeared");
  EXPECT_THROW(file.commit(), Error);
  EXPECT_EQ(read_file(path("late")), "appeared");
  EXPECT_EQ(read_file(path()), "before");
  EXPECT_EQ(left(), (NameList{"late", "link", "new"}));
}

TEST_P(NewFileTest, ReplacesTargetOfSymlink) {
  std::filesystem::create_directory(path("there"));
  write_file(path("there/file"), "before");
  std::filesystem::create_symlink("there/file", path("link"));
  std::filesystem::create_symlink("nothing", path("dangling"));

  NewFile file(path("link"), kReplace, kRemove, GetParam());
  write(file, "after");
  file.commit();

  EXPECT_TRUE(std::filesystem::is_symlink(path("link")));
  EXPECT_EQ(read_file(path("there/file")), "after");
  EXPECT_EQ(
      refusal([&] { NewFile(path("dangling"), kReplace, kRemove, GetParam()); }),
      path("dangling") + ": a symbolic link to \"nothing\", which is missing: choose another name");
  EXPECT_EQ(left(), (NameList{"dangling", "link", "there"}));
}

TEST_P(NewFileTest, LeavesNoFileIfSignalEndsProcess) {
  for (const int number : {SIGHUP, SIGINT, SIGTERM}) {
    EXPECT_EXIT(
        {
          ::signal(number, SIG_DFL);  // under nohup(1) the tests ignore SIGHUP
          const NewFile file(dir_ / "new", kReplace, kRemove, GetParam());
          write(file, "after");
          ::kill(::getpid(), number);
          for (;;) ::pause();
        },
        ::testing::KilledBySignal(number), "");
    EXPECT_EQ(left(), NameList());
  }
}

TEST_P(NewFileTest, RestoresSignalMaskAtEnd) {
  const sigset_t before = blocked_signals();
  NewFile(path(), kReplace, kRemove, GetParam()).commit();
  NewFile(path(), kReplace, kRemove, GetParam());

  EXPECT_TRUE(are_equal(before, blocked_signals()));
}

TEST_P(NewFileTest, DoesNotChangeSignalsOfHostProgram) {
  static volatile std::sig_atomic_t taken;
  taken = 0;
  const sigset_t before = blocked_signals();
  const auto others = ::signal(SIGTERM, [](int) { taken = 1; });
  {
    NewFile file(path(), kReplace, SignalCleanup::kNothing, GetParam());
    NewDirectory directory(path("directory"), SignalCleanup::kNothing);
    EXPECT_TRUE(are_equal(before, blocked_signals()));
    on_sync = [&](int) { EXPECT_TRUE(are_equal(before, blocked_signals())); };
    ::kill(::getpid(), SIGTERM);
    file.commit();
    directory.commit();
    on_sync = nullptr;
  }
  ::signal(SIGTERM, others);
  EXPECT_EQ(taken, 1);
  EXPECT_EQ(left(), (NameList{"directory", "new"}));
}

TEST_P(NewFileTest, FollowsRenamedDirectory) {
  for (const bool is_given_up : {false, true}) {
    const std::string before = path("before"), after = path(is_given_up ? "given up" : "after");
    std::filesystem::create_directory(before);
    {
      NewFile file(before + "/new", kReplace, kRemove, GetParam());
      NewDirectory directory(before + "/directory", kRemove);
      directory.create("in it");
      std::filesystem::rename(before, after);
      std::filesystem::create_directory(before);
      if (!is_given_up) file.commit();
      if (!is_given_up) directory.commit();
    }
    EXPECT_EQ(names_in(before), NameList());
    EXPECT_EQ(names_in(after), is_given_up ? NameList() : (NameList{"directory", "new"}));
    std::filesystem::remove(before);
  }
}

TEST_P(NewFileTest, NextWriterRemovesLeftoversOfKilledProcess) {
  const NewDirectory under_way(path("under way"), SignalCleanup::kNothing);
  EXPECT_EXIT(
      {
        const NewFile file(path(), kReplace, kRemove, GetParam());
        NewDirectory directory(path("directory"), kRemove);
        directory.create("in it");
        ::kill(::getpid(), SIGKILL);
      },
      ::testing::KilledBySignal(SIGKILL), "");
  std::filesystem::create_directory(path(".stfs-new-theirs"));
  const bool is_root = ::geteuid() == 0;
  ASSERT_TRUE(!is_root || ::chown(path(".stfs-new-theirs").c_str(), 65534, 65534) == 0);
  EXPECT_GT(left().size(), 2U);

  NewFile(path(), kReplace, kRemove, GetParam()).commit();
  EXPECT_EQ(left().size(), is_root ? 3U : 2U);  // the unfinished one, another user's, the new file
}

// The signal arrives after each step in turn. The writer continues until the signal stops it.
TEST(NewDirectories, SignalLeavesCompleteDirectoryOrNothing) {
  const NameList files{"0", "1", "2"};
  for (int step = 0; step < 4; ++step) {
    const TempDir dir;
    EXPECT_EXIT(
        {
          ::signal(SIGTERM, SIG_DFL);
          NewDirectory directory(dir / "out", kRemove);
          const std::filesystem::path begun = dir / names_in(dir.path()).front();
          const auto is_done = [&](int number) {
            if (number != step) return;
            ::kill(::getpid(), SIGTERM);
            while (number < 3 && std::filesystem::exists(begun / files.front())) ::usleep(100);
          };
          for (int i = 0; i < 3; ++i) {
            directory.finish(directory.create(files[static_cast<std::size_t>(i)]), "file");
            is_done(i);
          }
          directory.commit();
          is_done(3);
          for (;;) ::pause();
        },
        ::testing::KilledBySignal(SIGTERM), "");
    EXPECT_EQ(names_in(dir.path()), step < 3 ? NameList() : NameList{"out"}) << step;
    if (step == 3) {
      EXPECT_EQ(names_in(dir / "out"), files);
    }
  }
}

// The index is synced last, and the directory gets its name only when everything is on disk.
// With this order, a crash of the machine leaves either the complete directory or none.
TEST(NewDirectories, SyncFilesInOrderBeforeNamingDirectory) {
  const TempDir dir;
  write_safetensors(dir / "model.safetensors",
                    {random_tensor("v", "F32", {500}), random_tensor("w", "F32", {500})});
  write_file(dir / "config.json", "{}");
  const std::vector<std::string> source{(dir / "model.safetensors").string()};
  Sources sources;
  const Checkpoint checkpoint(source, {.with_model_files = true, .sources = &sources});
  NameList synced;
  on_sync = [&](int fd) {
    const auto name =
        std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd)).filename().string();
    synced.push_back((name.starts_with(".stfs-")      ? ".stfs-"
                      : name == dir.path().filename() ? "parent"
                                                      : name) +
                     (std::filesystem::exists(dir / "out") ? ", named" : ""));
  };
  save(checkpoint, sources, {.source = source.front(), .output = dir / "out", .shard_size = 2000},
       false);
  on_sync = nullptr;
  EXPECT_EQ(synced,
            (NameList{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                      "config.json", "model.safetensors.index.json", ".stfs-", "parent, named"}));
  EXPECT_EQ(names_in(dir / "out"),
            (NameList{"config.json", "model-00001-of-00002.safetensors",
                      "model-00002-of-00002.safetensors", "model.safetensors.index.json"}));
}

// SIGXFSZ would end a program that uses the library. The program's disposition of the signal must
// stay unchanged.
TEST(NewFiles, FileSizeLimitGivesErrorInsteadOfSignal) {
  const TempDir dir;
  write_safetensors(dir / "m.safetensors", {random_tensor("w", "F32", {500})});
  const std::vector<std::string> source{(dir / "m.safetensors").string()};
  for (const std::string output : {"new.safetensors", "new"}) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::signal(SIGXFSZ, SIG_DFL);
      const rlimit limit{1000, 1000};
      EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
      try {
        Sources sources;
        const Checkpoint checkpoint(source, {.sources = &sources});
        save(checkpoint, sources, {.source = source.front(), .output = dir / output}, false);
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kUnreadable);
        EXPECT_NE(std::string(error.what()).find("File too large: raise the limit"),
                  std::string::npos)
            << error.what();
      }
      struct sigaction now {};
      ::sigaction(SIGXFSZ, nullptr, &now);
      EXPECT_EQ(now.sa_handler, SIG_DFL);
      ::_exit(HasFailure() ? 1 : 0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << output;
    EXPECT_EQ(names_in(dir.path()), NameList{"m.safetensors"});
  }
}

INSTANTIATE_TEST_SUITE_P(Begin, NewFileTest,
                         ::testing::Values(NewFile::Begin::kUnnamed, NewFile::Begin::kNamed),
                         [](const auto& begin) {
                           return begin.param == NewFile::Begin::kNamed ? "Named" : "Unnamed";
                         });

}  // namespace
}  // namespace stfs::test
