// Mounting, signals, death and unmounting; the exit status of each way to fail.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/mounted.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

class Lifecycle : public MountTest {
 protected:
  Lifecycle() { std::filesystem::create_directory(mountpoint()); }
  ~Lifecycle() override { unmount_all(mountpoint()); }

  std::filesystem::path mountpoint() const { return dir_ / "mnt"; }
  static std::string source() { return test_data("single/voices.safetensors"); }

  static Outcome stfs(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), STFS_BINARY);
    return run(arguments);
  }

  static void expect_one_line(const Outcome& result, int status) {
    EXPECT_FALSE(result.timed_out);
    EXPECT_EQ(result.status, status) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_TRUE(result.err.starts_with("stfs: ")) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }

  TempDir dir_;
};

TEST_F(Lifecycle, CommandReturnsWhenMountAnswers) {
  for (int i = 0; i < 10; ++i) {
    const Outcome result =
        sh(R"("$1" "$2" "$3"; ls "$3"; "$1" -u "$3")", {STFS_BINARY, source(), mountpoint()});
    ASSERT_EQ(result.out, "mask\ntokens\n") << result.err;
    ASSERT_EQ(result.status, 0);
    ASSERT_EQ(result.err, "");
  }
}

TEST_F(Lifecycle, DaemonReleasesOutputAndDirectoryOfCaller) {
  // `$(...)` returns only when every process has closed the output.
  const Outcome result = sh(R"(cd "$4"; out=$("$1" "$2" "$3" 2>&1); echo "<$out>")",
                            {STFS_BINARY, source(), mountpoint(), dir_.path()});

  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.out, "<>\n") << result.err;
  const std::vector<pid_t> daemon = processes_with(mountpoint());
  ASSERT_EQ(daemon.size(), 1u);
  EXPECT_NE(::getsid(daemon[0]), ::getsid(0));
  const std::filesystem::path process = "/proc/" + std::to_string(daemon[0]);
  EXPECT_EQ(std::filesystem::read_symlink(process / "cwd"), "/");
  for (const char* fd : {"0", "1", "2"})
    EXPECT_EQ(std::filesystem::read_symlink(process / "fd" / fd), "/dev/null") << fd;
}

TEST_F(Lifecycle, AcceptsRelativeMountpoint) {
  const Outcome result = run({STFS_BINARY, source(), "mnt"}, {.directory = dir_.path()});

  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(names_in(mountpoint()).size(), 2u);
  EXPECT_EQ(run({STFS_BINARY, "-u", "mnt"}, {.directory = dir_.path()}).status, 0);
  EXPECT_TRUE(mounts_at(mountpoint()).empty());
}

TEST_F(Lifecycle, AcceptsMountpointWithBlanksAndCommas) {
  const std::filesystem::path odd = dir_ / "a b,c\\d";
  const std::filesystem::path file = dir_ / "m,fsname=x y.safetensors";
  std::filesystem::create_directory(odd);
  std::filesystem::copy_file(source(), file);

  const Outcome mounted = stfs({file, odd});
  const std::size_t files = mounted.status == 0 ? names_in(odd).size() : 0;
  const Outcome unmounted = stfs({"-u", odd});
  unmount_all(odd);

  EXPECT_EQ(mounted.status, 0) << mounted.err;
  EXPECT_EQ(files, 2u);
  EXPECT_EQ(unmounted.status, 0) << unmounted.err;
}

TEST_F(Lifecycle, HidesFilesInMountpointUntilUnmount) {
  write_file(mountpoint() / "below", "x");

  EXPECT_EQ(stfs({source(), mountpoint()}).status, 0);
  EXPECT_EQ(names_in(mountpoint()), (std::vector<std::string>{"mask", "tokens"}));
  EXPECT_EQ(stfs({"-u", mountpoint()}).status, 0);

  EXPECT_EQ(names_in(mountpoint()), std::vector<std::string>{"below"});
}

TEST_F(Lifecycle, EveryWayOfUnmountingEndsDaemon) {
  const struct {
    const char* name;
    std::function<int(Mounted&)> unmount;  // returns an exit status
  } rows[] = {
      {"stfs -u", [](Mounted& mount) { return mount.unmount().status; }},
      {"umount",
       [](Mounted& mount) {
         return run({"umount", mount.path()}).status;
       }},
      {"SIGTERM", [](Mounted& mount) { return ::kill(mount.daemon(), SIGTERM); }},
  };
  for (const auto& [name, unmount] : rows) {
    if (name == std::string("umount") && ::geteuid() != 0) continue;
    SCOPED_TRACE(name);
    Mounted mount({source()});

    EXPECT_TRUE(eventually([&, &unmount = unmount] { return unmount(mount) == 0; }));

    EXPECT_TRUE(eventually([&] { return processes_with(mount.path()).empty(); }));
    EXPECT_TRUE(mounts_at(mount.path()).empty());
  }
}

TEST_F(Lifecycle, SigtermSigintAndSighupUnmountAndExit0) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    ForegroundMount mount({source()});
    EXPECT_EQ(names_in(mount.path()).size(), 2u);

    mount.process().signal(signal);
    const Outcome result = mount.process().wait();

    EXPECT_EQ(result.status, 0) << strsignal(signal) << result.err;
    EXPECT_EQ(result.err, "");
    EXPECT_TRUE(mounts_at(mount.path()).empty());
  }
}

TEST_F(Lifecycle, SignalDuringMountUnmounts) {
  for (int i = 0; i < 40; ++i) {
    Process process({STFS_BINARY, "-f", source(), mountpoint()});
    // Sends the signal as soon as the mount is visible, and a little later in each round.
    while (process.running() && mounts_at(mountpoint()).empty()) {
    }
    for (int j = 0; j < i % 8; ++j) mounts_at(mountpoint());

    process.signal(SIGTERM);
    const Outcome result = process.wait();

    ASSERT_FALSE(result.timed_out) << "the signal was lost in round " << i;
    ASSERT_EQ(result.status, 0) << "round " << i << ": " << result.err;
    ASSERT_TRUE(mounts_at(mountpoint()).empty()) << "still mounted in round " << i;
  }
}

TEST_F(Lifecycle, ForegroundExits0WhenUnmountedByAnotherProcess) {
  ForegroundMount mount({source()});

  const Outcome unmounted = stfs({"-u", mount.path()});
  const Outcome result = mount.process().wait();

  EXPECT_EQ(unmounted.status, 0) << unmounted.err;
  EXPECT_EQ(result.status, 0) << result.err;
}

TEST_F(Lifecycle, UnmountAndNewMountWorkAfterSigkill) {
  Mounted mount({source()});
  EXPECT_EQ(read_file(mount / "mask").size(), 32406u);

  mount.kill_daemon();
  struct stat64 status = {};
  EXPECT_EQ(::stat64((mount / "absent").c_str(), &status), -1);
  const Outcome unmounted = mount.unmount();
  const Outcome again = stfs({source(), mount.path()});

  EXPECT_EQ(unmounted.status, 0) << unmounted.err;
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(mounts_at(mount.path()).size(), 1u);
  EXPECT_EQ(read_file(mount / "mask").size(), 32406u);
}

TEST_F(Lifecycle, NewMountDoesNotStackOnDeadMount) {
  Mounted mount({source()});
  EXPECT_EQ(names_in(mount.path()).size(), 2u);
  mount.kill_daemon();

  const Outcome again = stfs({source(), mount.path()});

  expect_one_line(again, 4);
  EXPECT_NE(again.err.find("a dead mount: its server has ended; \"stfs -u "), std::string::npos)
      << again.err;
  EXPECT_EQ(mounts_at(mount.path()).size(), 1u);
}

TEST_F(Lifecycle, UnmountsDeadMountByAnyName) {
  std::filesystem::create_directory_symlink(mountpoint(), dir_ / "link");
  for (const std::string& name :
       {mountpoint().string(), mountpoint().string() + "/", (dir_ / "link").string()}) {
    ASSERT_EQ(stfs({source(), mountpoint()}).status, 0);
    const std::vector<pid_t> daemon = processes_with(mountpoint());
    ASSERT_EQ(daemon.size(), 1u);
    ::kill(daemon[0], SIGKILL);
    ASSERT_TRUE(eventually([&] { return processes_with(mountpoint()).empty(); }));

    const Outcome unmounted = stfs({"-u", name});

    EXPECT_EQ(unmounted.status, 0) << name << ": " << unmounted.err;
    EXPECT_TRUE(mounts_at(mountpoint()).empty()) << name;
    unmount_all(mountpoint());
  }
}

TEST_F(Lifecycle, UnmountsLiveMountByAnyName) {
  std::filesystem::create_directory_symlink(mountpoint(), dir_ / "link");
  for (const std::string& name :
       {mountpoint().string() + "/", (dir_ / "link").string(), (dir_ / "mnt/../mnt").string()}) {
    ASSERT_EQ(stfs({source(), name}).status, 0) << name;
    EXPECT_EQ(mounts_at(mountpoint()).size(), 1u) << name;

    const Outcome unmounted = stfs({"-u", name});

    EXPECT_EQ(unmounted.status, 0) << name << ": " << unmounted.err;
    EXPECT_TRUE(mounts_at(mountpoint()).empty()) << name;
  }
}

TEST_F(Lifecycle, SigtermEndsBusyMountWith0) {
  ForegroundMount mount({source()});
  const int fd = ::open((mount / "mask").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);

  mount.process().signal(SIGTERM);
  const Outcome result = mount.process().wait();
  ::close(fd);

  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_TRUE(mounts_at(mount.path()).empty());
}

TEST_F(Lifecycle, MountsWithClosedStandardDescriptors) {
  const Outcome result = sh(R"("$1" "$2" "$3" <&- >&- 2>&-; ls "$3"; cmp "$3/mask" "$3/mask")",
                            {STFS_BINARY, source(), mountpoint()});

  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, "mask\ntokens\n");
}

TEST_F(Lifecycle, BusyMountIsUnmountedOnlyLazily) {
  const Mounted mount({source()});
  Process holder({"/usr/bin/python3", "-c", R"(
import os, signal, sys
f = open(sys.argv[1], 'rb')
os.mkdir(sys.argv[2])
signal.pause()
)",
                  mount / "mask", dir_ / "open"});
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(dir_ / "open"); }));

  const Outcome busy = stfs({"-u", mount.path()});
  const std::size_t mounts = mounts_at(mount.path()).size();
  const Outcome lazy = stfs({"-u", "-z", mount.path()});

  expect_one_line(busy, 4);
  EXPECT_NE(busy.err.find("fuser -m " + mount.path().string() + " lists them"), std::string::npos)
      << busy.err;
  EXPECT_EQ(mounts, 1u);
  EXPECT_EQ(lazy.status, 0) << lazy.err;
  EXPECT_TRUE(mounts_at(mount.path()).empty());
}

TEST_F(Lifecycle, UnmountRejectsOtherDirectories) {
  expect_one_line(stfs({"-u", mountpoint()}), 4);
  expect_one_line(stfs({"-u", dir_ / "absent"}), 4);
  expect_one_line(stfs({"-u", "/proc"}), 4);
  EXPECT_FALSE(mounts_at("/proc").empty());
}

TEST_F(Lifecycle, UnmountRejectsOtherFileSystem) {
  if (::geteuid() != 0) GTEST_SKIP() << "mounting tmpfs needs root";
  ASSERT_EQ(::mount("tmpfs", mountpoint().c_str(), "tmpfs", 0, "size=1m"), 0);

  const Outcome result = stfs({"-u", mountpoint()});

  expect_one_line(result, 4);
  EXPECT_EQ(mounts_at(mountpoint()).size(), 1u);
}

TEST_F(Lifecycle, UnmountRejectsDirectoryInsideMount) {
  write_safetensors(dir_ / "m.safetensors", {random_tensor("d/w", "U8", {1})});
  const Mounted mount({dir_ / "m.safetensors"});

  const Outcome result = stfs({"-u", mount / "d"});

  expect_one_line(result, 4);
  EXPECT_EQ(mounts_at(mount.path()).size(), 1u);
}

TEST_F(Lifecycle, RejectsMountpointThatIsNotADirectory) {
  write_file(dir_ / "file", "x");
  const struct {
    const char* name;
    const char* why;
  } rows[] = {{"absent", "/absent: no such directory (mkdir it first)"},
              {"file", "the mountpoint is not a directory"}};
  for (const auto& [name, why] : rows) {
    for (const char* const flag : {"--", "-f"}) {
      const Outcome result = stfs({flag, source(), dir_ / name});
      expect_one_line(result, 4);
      EXPECT_NE(result.err.find(why), std::string::npos) << result.err;
    }
  }
}

TEST_F(Lifecycle, ReportsUnknownOptionOrMountpointBeforeSource) {
  const Outcome option = stfs({"-o", "nosuch", dir_ / "gone.safetensors", mountpoint()});
  expect_one_line(option, 2);
  EXPECT_NE(option.err.find("-o nosuch: unknown option"), std::string::npos) << option.err;
  const Outcome place = stfs({dir_ / "gone.safetensors", dir_ / "absent"});
  expect_one_line(place, 4);
  EXPECT_NE(place.err.find("mkdir it first"), std::string::npos) << place.err;
}

TEST_F(Lifecycle, WorkingDirectoryKeepsMountBusy) {
  const Mounted mount({source()});
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(mount.path());

  const Outcome busy = stfs({"-u", mount.path()});

  std::filesystem::current_path(before);
  expect_one_line(busy, 4);
  EXPECT_NE(busy.err.find("or a process has its working directory there"), std::string::npos)
      << busy.err;
}

TEST_F(Lifecycle, MountpointWithStfsMountIsBusy) {
  const Mounted mount({source()});

  const Outcome result = stfs({source(), mount.path()});

  expect_one_line(result, 4);
  EXPECT_EQ(mounts_at(mount.path()).size(), 1u);
  EXPECT_EQ(names_in(mount.path()).size(), 2u);
}

TEST_F(Lifecycle, MountpointWithOtherFileSystemIsBusy) {
  if (::geteuid() != 0) GTEST_SKIP() << "mounting tmpfs needs root";
  ASSERT_EQ(::mount("tmpfs", mountpoint().c_str(), "tmpfs", 0, "size=1m"), 0);

  const Outcome result = stfs({source(), mountpoint()});

  expect_one_line(result, 4);
  EXPECT_NE(result.err.find("a mount of type tmpfs is there"), std::string::npos) << result.err;
  EXPECT_EQ(mounts_at(mountpoint()).size(), 1u);
}

TEST_F(Lifecycle, MissingFuseDeviceIsReported) {
  if (run({"unshare", "-m", "mount", "-t", "tmpfs", "none", "/dev"}).status != 0)
    GTEST_SKIP() << "no mount namespaces";

  const Outcome result =
      run({"unshare", "-m", "/bin/bash", "-c", R"sh(mount -t tmpfs none /dev && exec "$@")sh", "sh",
           STFS_BINARY, source(), mountpoint()});

  expect_one_line(result, 4);
  EXPECT_NE(result.err.find("/dev/fuse: No such file"), std::string::npos) << result.err;
}

TEST_F(Lifecycle, MissingPermissionFailsMount) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  if (run({"which", "setpriv"}).status != 0) GTEST_SKIP() << "no setpriv";
  std::filesystem::permissions(dir_.path(), std::filesystem::perms(0755));
  std::filesystem::copy_file(STFS_BINARY, dir_ / "stfs");
  std::filesystem::copy_file(source(), dir_ / "m.safetensors");

  // User 65534 cannot mount on a directory of root, with or without fusermount3.
  const Outcome result = run({"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
                              dir_ / "stfs", dir_ / "m.safetensors", mountpoint()});

  EXPECT_EQ(result.status, 4) << result.err;
  EXPECT_TRUE(mounts_at(mountpoint()).empty());
}

TEST_F(Lifecycle, WrongUsageIsExit2) {
  expect_one_line(stfs({}), 2);
  expect_one_line(stfs({source()}), 2);
  expect_one_line(stfs({"--bogus", source(), mountpoint()}), 2);
  expect_one_line(stfs({"-o", "views=maybe", source(), mountpoint()}), 2);
  expect_one_line(stfs({"-o", "cache=none", source(), mountpoint()}), 2);
  expect_one_line(stfs({"-o", "threads=0", source(), mountpoint()}), 2);
  expect_one_line(stfs({"-o", "threads=many", source(), mountpoint()}), 2);
  expect_one_line(stfs({"-o", "uid=me", source(), mountpoint()}), 2);
  expect_one_line(stfs({"-o", "umask=9", source(), mountpoint()}), 2);
  expect_one_line(stfs({"-o", "frobnicate", source(), mountpoint()}), 2);
  expect_one_line(stfs({"-o", "remount", source(), mountpoint()}), 2);
  expect_one_line(stfs({"-u"}), 2);
  expect_one_line(stfs({"-u", mountpoint(), mountpoint()}), 2);
  EXPECT_TRUE(mounts_at(mountpoint()).empty());
}

TEST_F(Lifecycle, HelpAndVersionGoToStandardOutput) {
  for (const char* flag : {"-h", "--help", "-V", "--version"}) {
    const Outcome result = stfs({flag});
    EXPECT_EQ(result.status, 0) << flag;
    EXPECT_NE(result.out, "") << flag;
    EXPECT_EQ(result.err, "") << flag;
  }
  const std::string version = stfs({"--version"}).out;
  EXPECT_TRUE(version.starts_with("stfs " STFS_VERSION "\nbuilt with ")) << version;
  for (const char* library : {"libfuse 3.", "libcurl ", "OpenSSL "}) {
    EXPECT_NE(version.find(library), std::string::npos) << version;
  }
  EXPECT_NE(stfs({"--help"}).out.find("MOUNTPOINT"), std::string::npos);
}

TEST_F(Lifecycle, OldDaemonDoesNotUnmountNextMount) {
#ifdef STFS_SANITIZED
  GTEST_SKIP() << "libfuse leaks the name of the mountpoint if it does not unmount, and this "
                  "daemon must not";
#endif
  ForegroundMount old({source()});
  const int open_file = ::open((old / "mask").c_str(), O_RDONLY);
  ASSERT_GE(open_file, 0);
  ASSERT_EQ(stfs({"-u", "-z", old.path()}).status, 0);
  ASSERT_EQ(stfs({source(), old.path()}).status, 0);

  old.process().signal(SIGTERM);
  const Outcome ended = old.process().wait();

  EXPECT_EQ(ended.status, 0) << ended.err;
  EXPECT_EQ(mounts_at(old.path()).size(), 1u);
  EXPECT_EQ(names_in(old.path()).size(), 2u);
  ::close(open_file);
}

TEST_F(Lifecycle, OldDaemonDoesNotUnmountNextMountWithSameDeviceNumber) {
  ForegroundMount old({source()});
  old.process().signal(SIGSTOP);
  unmount_all(old.path());  // the kernel gives its device number to the next mount
  ASSERT_EQ(stfs({source(), old.path()}).status, 0);

  old.process().signal(SIGCONT);
  const Outcome ended = old.process().wait();

  EXPECT_EQ(ended.status, 0) << ended.err;
  EXPECT_EQ(mounts_at(old.path()).size(), 1u);
  EXPECT_EQ(names_in(old.path()).size(), 2u);
}

TEST_F(Lifecycle, OneOfConcurrentMountsSucceedsAndOthersAreBusy) {
  const Outcome result = sh(
      R"(pids=; for i in 1 2 3 4; do "$1" "$2" "$3" & pids="$pids $!"; done
         for pid in $pids; do wait $pid && echo 0 || echo $?; done)",
      {STFS_BINARY, source(), mountpoint()});

  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '0'), 1) << result.out;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '4'), 3) << result.out;
  EXPECT_EQ(mounts_at(mountpoint()).size(), 1u);
}

TEST_F(Lifecycle, IgnoresSignalsThatCallerIgnores) {
  // Like nohup(1), and like a shell for background jobs.
  Process process({"/bin/sh", "-c", R"(trap '' HUP INT; exec "$@")", "sh", STFS_BINARY, "-f",
                   source(), mountpoint()});
  ASSERT_TRUE(eventually([&] { return !mounts_at(mountpoint()).empty(); }));

  process.signal(SIGHUP);
  process.signal(SIGINT);
  EXPECT_EQ(names_in(mountpoint()).size(), 2u);
  process.signal(SIGTERM);

  EXPECT_EQ(process.wait().status, 0);
  EXPECT_TRUE(mounts_at(mountpoint()).empty());
}

TEST_F(Lifecycle, ReportsErrorIfCallerIgnoresSigchld) {
  write_file(dir_ / "broken.safetensors", "not a checkpoint");

  const Outcome result =
      run({STFS_BINARY, dir_ / "broken.safetensors", mountpoint()}, {.ignored_signals = {SIGCHLD}});

  expect_one_line(result, 1);
}

TEST_F(Lifecycle, DaemonReceivesSignalsThatCallerIgnoresAndBlocks) {
  const std::vector<int> signals = {SIGTERM, SIGIO, SIGPIPE, SIGCHLD, SIGALRM};
  const std::filesystem::path copy = dir_ / "copy.safetensors";
  std::filesystem::copy_file(source(), copy);
  Process process({STFS_BINARY, "-f", copy, mountpoint()},
                  {.ignored_signals = signals, .blocked_signals = signals});
  ASSERT_TRUE(eventually([&] { return !mounts_at(mountpoint()).empty(); }));
  EXPECT_EQ(names_in(mountpoint()).size(), 2u);

  // The kernel asks for the lease with SIGIO. Without that signal a writer waits for 45 seconds.
  EXPECT_TRUE(eventually(
      [&] {
        const int fd = ::open(copy.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
        if (fd >= 0) ::close(fd);
        return fd >= 0;
      },
      std::chrono::seconds(40)));
  process.signal(SIGTERM);

  const Outcome result = process.wait();
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_TRUE(mounts_at(mountpoint()).empty());
}

TEST_F(Lifecycle, ClosesInheritedDescriptors) {
  const Outcome result = sh(
      R"(exec 9>"$3.lock"; flock -n 9 || exit 1; "$1" "$2" "$3" || exit 2; exec 9>&-
         flock -n "$3.lock" true && echo free)",
      {STFS_BINARY, source(), mountpoint()});

  EXPECT_EQ(result.out, "free\n") << result.err;
}

TEST_F(Lifecycle, BracketsInNamesAreNotGlobs) {
  std::filesystem::copy_file(source(), dir_ / "[a].safetensors");
  std::filesystem::create_directory(dir_ / "[mnt]");

  const Outcome result = run({STFS_BINARY, "[a].safetensors", "[mnt]"}, {.directory = dir_.path()});

  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(names_in(dir_ / "[mnt]").size(), 2u);
  unmount_all(dir_ / "[mnt]");
}

}  // namespace
}  // namespace stfs::test
