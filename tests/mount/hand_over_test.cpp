// Mounts that another process made and hands over to stfs: stfs SOURCE /dev/fd/N.
#include "tests/mount/handed_over.h"
#include "tests/support/mounted.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

TEST_F(HandOver, UnprivilegedUserServesMountUntilUnmount) {
  mount();
  Process server = serve();
  release();
  expect_served();
  EXPECT_EQ(read_file(mountpoint() / ".stfs/info.json").find("error"), std::string::npos);

  unmount();

  const Outcome result = server.wait();
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.err, "");
}

TEST_F(HandOver, ClearsNonblockFlag) {
  mount(MS_RDONLY | MS_NOSUID | MS_NODEV, O_RDWR | O_NONBLOCK);
  Process server = serve();
  expect_served();
  EXPECT_EQ(::fcntl(device_, F_GETFL) & O_NONBLOCK,
            0);  // the open file has changed, not only a descriptor
}

TEST_F(HandOver, CommandReturnsWhenMountAnswers) {
  mount();
  std::vector<std::string> argv = command();
  std::erase(argv, "-f");
  const Outcome result = run(argv);
  release();
  EXPECT_EQ(result.status, 0) << result.err;
  expect_served();
}

TEST_F(HandOver, ServerNeverUnmounts) {
  for (const std::vector<std::string>& options :
       {std::vector<std::string>{}, std::vector<std::string>{"-o", "supervise"}}) {
    mount();
    Process server = serve(options);
    expect_served();

    server.signal(SIGTERM);

    EXPECT_EQ(server.wait().status, 0);
    EXPECT_EQ(mounts_at(mountpoint()).size(), 1U);
    release();
    unmount_all(mountpoint());
  }
}

TEST_F(HandOver, SupervisedServerSurvivesDeathOfWorker) {
  mount();
  Process server = serve({"-o", "supervise"});
  release();
  expect_served();
  const auto worker = [&] {
    std::vector<pid_t> all = processes_with(source());
    std::erase(all, server.pid());
    return all.empty() ? 0 : all.front();
  };
  const pid_t first = worker();
  if (first == 0) GTEST_SKIP() << "this kernel cannot repeat requests";

  ::kill(first, SIGKILL);

  expect_served();
  EXPECT_TRUE(eventually([&] { return worker() != 0 && worker() != first; }));
  unmount();
  EXPECT_EQ(server.wait().status, 0);
}

TEST_F(HandOver, ServesWithReadOnlyRootEmptyDevAndNoProc) {
#ifdef STFS_SANITIZED
  GTEST_SKIP() << "sanitizers need /proc";
#endif
  // The mount ends once it is unmounted in every namespace, so the unmount must propagate to the
  // namespace of the server.
  checked(::mount(dir_.path().c_str(), dir_.path().c_str(), nullptr, MS_BIND, nullptr), "mount");
  checked(::mount(nullptr, dir_.path().c_str(), nullptr, MS_SHARED, nullptr), "mount");
  mount();
  const std::filesystem::path root = dir_ / "root";
  std::filesystem::create_directory(root);
  Process server({"unshare", "--mount", "--propagation", "slave", "--pid", "--ipc", "--uts",
                  "--fork", "--kill-child", "bash", "-ec", R"(
cd "$1"
mkdir usr lib lib64 bin dev
for d in usr lib lib64 bin; do [ ! -e /$d ] || mount --rbind /$d $d; done
touch stfs model.safetensors
mount --bind "$2" stfs
mount --bind "$3" model.safetensors
mount --rbind "$1" "$1"
mount -o remount,ro,bind "$1"
exec chroot "$1" /usr/bin/setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs \
  --bounding-set=-all /stfs -f -o supervise /model.safetensors "$4")",
                  "bash", root, STFS_BINARY, source(), device_path()});
  release();
  EXPECT_EQ(names_in(mountpoint()), (std::vector<std::string>{"mask", "tokens"})) << server.err();
  EXPECT_EQ(read_file(mountpoint() / "tokens").size(),
            std::filesystem::file_size(mountpoint() / "tokens"));
  unmount();
  const Outcome result = server.wait();
  EXPECT_EQ(result.status, 0) << result.err;
}

TEST_F(HandOver, DescriptorIsCloseOnExec) {
  mount();
  const Process server = serve();
  expect_served();
  const std::string info =
      read_file("/proc/" + std::to_string(server.pid()) + "/fdinfo/" + std::to_string(device_));
  const std::size_t flags = info.find("flags:");
  ASSERT_NE(flags, std::string::npos) << info;
  EXPECT_NE(std::stoul(info.substr(flags + 6), nullptr, 8) & O_CLOEXEC, 0U) << info;
}

TEST_F(HandOver, ClosesOtherDescriptorsOfCaller) {
  mount();
  const int pipe_of_the_caller = checked(::open("/dev/null", O_RDONLY), "open");
  const int above = checked(::fcntl(pipe_of_the_caller, F_DUPFD, device_ + 10), "fcntl");
  const Process server = serve();
  ::close(pipe_of_the_caller);
  ::close(above);
  expect_served();
  const std::filesystem::path fds = "/proc/" + std::to_string(server.pid()) + "/fd";
  for (const auto& entry : std::filesystem::directory_iterator(fds)) {
    const int number = std::stoi(entry.path().filename());
    if (number > 2) {
      EXPECT_NE(std::filesystem::read_symlink(entry.path()), "/dev/null") << number;
    }
  }
}

TEST_F(HandOver, RefusesWritesToWritableMount) {
  mount(MS_NOSUID | MS_NODEV);
  const Process server = serve();
  release();
  expect_served();
  EXPECT_EQ(::open((mountpoint() / "new").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644), -1);
  EXPECT_EQ(errno, EROFS);
  EXPECT_EQ(::open((mountpoint() / "tokens").c_str(), O_RDWR | O_CLOEXEC), -1);
  EXPECT_EQ(errno, EROFS);
  EXPECT_EQ(::unlink((mountpoint() / "tokens").c_str()), -1);
  EXPECT_EQ(errno, EROFS);
}

TEST_F(HandOver, RejectsOptionsThatMounterSets) {
  mount();
  for (const std::string option : {"allow_other", "default-permissions", "nosuid", "nodev",
                                   "max_read=65536", "fsname=x", "noexec", "auto_unmount"}) {
    expect_refusal(run(command({"-o", option})), 2,
                   "is mounted already: the process that mounted it sets this option");
  }
  // Options of fstab, and options that stfs itself applies.
  const Process server = serve({"-o", "ro,_netdev,uid=7,umask=077,views=visible"});
  EXPECT_EQ(names_in(mountpoint()).front(), ".stfs");
  struct stat status {};
  EXPECT_EQ(::stat((mountpoint() / "tokens").c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, 7U);
  EXPECT_EQ(status.st_mode & 0777U, 0400U);
}

TEST_F(HandOver, RejectsDescriptorThatIsNotAMount) {
  const auto stfs = [&](const std::string& mountpoint) {
    return run({STFS_BINARY, source(), mountpoint});
  };
  expect_refusal(stfs("/dev/fd/200"), 4, "no such descriptor");
  for (const char* const name : {"/dev/fd/2", "/dev/fd/", "/dev/fd/-1", "/dev/fd/3x"}) {
    expect_refusal(stfs(name), 2, "expected a descriptor of /dev/fuse, a number of at least 3");
  }
  expect_refusal(run({STFS_BINARY, "-u", "/dev/fd/3"}), 2, "name the directory");

  device_ = checked(::open("/dev/null", O_RDWR), "open");
  expect_refusal(stfs(device_path()), 4, "not a descriptor of /dev/fuse");
  release();
  device_ = checked(::open("/dev/fuse", O_RDONLY), "open");
  expect_refusal(stfs(device_path()), 4, "not open for reading and writing");
  release();
  device_ = checked(::open("/dev/fuse", O_RDWR), "open");
  expect_refusal(stfs(device_path()), 4, "was never mounted");
}

TEST_F(HandOver, RejectsUnmountedMount) {
  mount();
  unmount();
  expect_refusal(run(command()), 4, "the mount has ended");
}

using ServedMount = HandOver;

TEST_F(ServedMount, RejectsSecondServerAndContinues) {
  mount();
  const Process server = serve();
  expect_served();
  // The second server gets no handshake, or it gets a request that belongs to the first server.
  expect_refusal(run(command()), 4, "another process");
  expect_served();
}

TEST_F(HandOver, SecondServerTakesNoRequestFromFirst) {
  mount();
  Process server = serve();
  expect_served();
  // The first server stops, so the second server gets a request that is not for it.
  server.signal(SIGSTOP);
  const std::filesystem::path threads = "/proc/" + std::to_string(server.pid()) + "/task";
  EXPECT_TRUE(eventually([&] {
    return std::ranges::all_of(names_in(threads), [&](const std::string& thread) {
      return read_file(threads / thread / "status").find("State:\tT") != std::string::npos;
    });
  }));
  std::thread reader([&] { EXPECT_EQ(names_in(mountpoint() / ".stfs/npy").size(), 2U); });
  const Outcome second = run(command());
  server.signal(SIGCONT);
  reader.join();
  EXPECT_EQ(second.status, 4) << second.err;
  EXPECT_NE(second.err.find("another process"), std::string::npos) << second.err;
  expect_served();
}

TEST_F(HandOver, ExampleMountsAndHandsOver) {
  const std::string example = STFS_SOURCE_DIR "/docs/examples/hand_over.py";
  {
    const Process server({"python3", example, mountpoint(), "--user", "65534", "--allow-other",
                          "--", "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups",
                          STFS_BINARY, "-f", source(), "@FD@"});
    EXPECT_TRUE(eventually([&] { return !mounts_at(mountpoint()).empty(); }));
    expect_served();
  }
  unmount_all(mountpoint());
  const std::filesystem::path socket = dir_ / "socket";
  Process mounter(
      {"python3", example, mountpoint(), "--user", "65534", "--allow-other", "--send", socket});
  EXPECT_TRUE(eventually([&] { return std::filesystem::exists(socket); }));
  std::unique_ptr<Process> receiver;
  // The receiver can connect once the mounter listens.
  EXPECT_TRUE(eventually([&] {
    receiver = std::make_unique<Process>(std::vector<std::string>{
        "python3", example, "--receive", socket, "--", STFS_BINARY, "-f", source(), "@FD@"});
    return eventually([&] { return !mounter.running() || !receiver->running(); }) &&
           !mounter.running();
  }));
  EXPECT_EQ(mounter.wait().status, 0);
  expect_served();
}

}  // namespace
}  // namespace stfs::test
