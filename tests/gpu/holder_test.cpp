// The holder and its copiers: processes that die, limits, sockets.
#include "core/base/error.h"
#include "tests/gpu/tool.h"
#include "tests/gpu/wire.h"
#include "tests/support/checkpoint_writer.h"
#include "tools/gpu/client/selection.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace stfs::gpu::test {

using namespace stfs::test;

namespace {

using Names = std::vector<std::string>;

// Returns the number of bytes in the holder's answer to this user, or 255 if connecting fails.
int answer_bytes_as(uid_t user, const std::string& path) {
  if (::setresuid(user, user, user) != 0) return 255;
  const UniqueFd fd = new_socket();
  if (at_path(::connect, fd, path) != 0) return 255;
  const std::string request = frame(R"({"request":"list"})");
  ::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL);
  char answer[100];
  return static_cast<int>(std::max<ssize_t>(::recv(fd.get(), answer, sizeof answer, 0), 0));
}

class GpuHolder : public GpuToolTest {
 protected:
  Outcome load(const std::string& tensor) const {
    return gpu({"load", "--device", device(), tensor});
  }

  // Lowers the limit of open files so that the process can open no more.
  static void allow_no_descriptors(pid_t pid) { allow_descriptors(pid, 0); }
  static void allow_descriptors(pid_t pid, rlim_t count) {
    rlimit limit{};
    ASSERT_EQ(::prlimit(pid, RLIMIT_NOFILE, nullptr, &limit), 0);
    limit.rlim_cur = std::min(count, limit.rlim_max);
    ASSERT_EQ(::prlimit(pid, RLIMIT_NOFILE, &limit, nullptr), 0);
  }

  UniqueFd listening(const std::string& path, int backlog) const {
    UniqueFd fd = new_socket(SOCK_NONBLOCK);
    EXPECT_EQ(at_path(::bind, fd, path), 0);
    EXPECT_EQ(::listen(fd.get(), backlog), 0);
    return fd;
  }
};

TEST_F(GpuHolder, FirstLoadStartsHolderInItsOwnSession) {
  const auto source = small();

  EXPECT_EQ(load(source.string() + "::a").status, 0);

  const pid_t pid = holder();
  ASSERT_GT(pid, 0);
  EXPECT_NE(::getsid(pid), ::getsid(0));
  struct stat status {};
  ASSERT_EQ(::stat(socket().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(load(source.string() + "::b").status, 0);
  EXPECT_EQ(holder(), pid);
}

// The files that the holder opens first get the numbers of the closed standard descriptors.
TEST_F(GpuHolder, StartsWithClosedStandardDescriptors) {
  const std::string tensor = small().string() + "::a";
  for (const char* closed : {"<&-", "2>&-", "<&- 2>&-"}) {
    const Outcome outcome = run({"/bin/bash", "-c", std::string(R"("$@" )") + closed, "bash",
                                 STFS_GPU_BINARY, "load", "--device", device(), tensor});

    EXPECT_EQ(outcome.status, 0) << closed << outcome.err;
    EXPECT_EQ(resident(), Names{"a"}) << closed;
    kill_and_wait(holder());
  }
}

TEST_F(GpuHolder, OutputNeverGoesToFileThatReusesDescriptor1) {
  const std::string tensor = small().string() + "::a";

  const Outcome outcome = run({"/bin/bash", "-c", R"("$@" >&-)", "bash", STFS_GPU_BINARY, "load",
                               "--device", device(), tensor});

  expect_one_line(outcome, 3, "standard output: Bad file descriptor");
  EXPECT_EQ(resident(), Names{"a"});
}

TEST_F(GpuHolder, FailedStartIsOneLine) {
  write_file(socket(), "");

  expect_one_line(load(small().string() + "::a"), 5, "non-socket");
}

TEST_F(GpuHolder, RelativeSocketInRemovedDirectoryIsOneLine) {
  const Outcome outcome =
      run({"/bin/bash", "-c", R"(mkdir gone && cd gone && rmdir ../gone && STFS_GPU_SOCKET=s "$@")",
           "bash", STFS_GPU_BINARY, "ls"},
          {.directory = file("")});

  expect_one_line(outcome, 5, "stfs-gpu: s: No such file or directory");
}

TEST_F(GpuHolder, ConcurrentLoadsStartOneHolderAndCopyOnce) {
  const auto source = small();
  std::vector<std::unique_ptr<Process>> loads;
  for (int i = 0; i < 6; ++i) {
    loads.push_back(start({"load", "--json", "--device", device(), source.string() + "::*"}));
  }

  std::uint64_t copied = 0;
  for (const auto& process : loads) {
    const Outcome outcome = process->wait();
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    if (outcome.status == 0) {
      copied += json::parse(outcome.out)["copied_bytes"].get<std::uint64_t>();
    }
  }

  EXPECT_EQ(copied, 64u * 48 * 4 + 40 + 128 * 32 * 2);
  EXPECT_EQ(resident().size(), 3u);
}

TEST_F(GpuHolder, ClientKilledInMidLoadLeavesNoTensor) {
  MidLoad load = mid_load();
  load.client->signal(SIGKILL);
  load.client->wait();
  load.signal_copier(SIGCONT);

  const auto source = small();
  EXPECT_EQ(this->load(source.string() + "::a").status, 0);
  EXPECT_EQ(resident(), Names{"a"});
}

TEST_F(GpuHolder, KillsCopierThatDoesNotStopAndServesNextLoad) {
  MidLoad load = mid_load();
  load.client->signal(SIGKILL);
  load.client->wait();

  const auto source = small();
  EXPECT_EQ(this->load(source.string() + "::a").status, 0) << "its copier never continues";
  EXPECT_EQ(resident(), Names{"a"});
  EXPECT_NE(copier(), load.copier);
}

// If SIGCHLD is ignored, waitpid(2) does not return the status of a child.
TEST_F(GpuHolder, CopierKilledInMidLoadFailsOnlyThatLoad) {
  const Process ignoring({STFS_GPU_BINARY, "holder"}, {.ignored_signals = {SIGCHLD}});
  ASSERT_TRUE(eventually([&] { return holder() > 0; })) << ignoring.err();
  MidLoad load = mid_load();
  const pid_t before = holder();
  kill_and_wait(load.copier);

  expect_one_line(load.client->wait(), 5, "the copier ended: killed by signal 9");
  EXPECT_EQ(holder(), before);
  EXPECT_EQ(resident(), Names{});
  const auto source = small();
  EXPECT_EQ(this->load(source.string() + "::a").status, 0);
}

TEST_F(GpuHolder, KilledIdleCopierIsReplaced) {
  const auto source = small();
  load(source.string() + "::a");
  const pid_t first = copier();
  ASSERT_GT(first, 0);
  const auto bytes = [&] {
    return bytes_of(gpu_json({"get", "--device", device(), source.string() + "::a"})[0]);
  };
  const std::string before = bytes();
  kill_and_wait(first);

  EXPECT_EQ(load(source.string() + "::b").status, 0);
  EXPECT_EQ(resident(), (Names{"a", "b"}));
  EXPECT_TRUE(bytes() == before) << "memory outlives the process that allocated it";
}

TEST_F(GpuHolder, IdleCopierExitsAndTensorsStay) {
  start_holder({"--copier-idle", "0"});
  const auto source = small();
  EXPECT_EQ(load(source.string() + "::a").status, 0);

  EXPECT_TRUE(eventually([&] { return copier() == 0; }));
  EXPECT_EQ(resident(), Names{"a"});
  EXPECT_EQ(load(source.string() + "::b").status, 0);
}

TEST_F(GpuHolder, KeepsRunningIfItsLogIsClosed) {
  const Process unread(
      {"/bin/bash", "-c", R"("$1" holder 2>&1 >/dev/null | true)", "bash", STFS_GPU_BINARY});
  ASSERT_TRUE(eventually([&] { return holder() > 0; }));
  const pid_t pid = holder();
  const std::string source = small().string();
  ASSERT_EQ(load(source + "::a").status, 0);

  kill_and_wait(copier());  // the holder logs this

  EXPECT_EQ(load(source + "::b").status, 0);
  EXPECT_EQ(holder(), pid);
  EXPECT_EQ(resident(), (Names{"a", "b"}));
}

TEST_F(GpuHolder, KilledInMidLoadFailsLoadAndEndsCopier) {
  MidLoad load = mid_load();
  const UniqueFd copier_end(
      ::open(("/proc/" + std::to_string(load.copier)).c_str(), O_RDONLY | O_DIRECTORY));
  kill_and_wait(holder());
  load.signal_copier(SIGCONT);

  expect_one_line(load.client->wait(), 5, "holder");
  EXPECT_TRUE(eventually([&] { return ::faccessat(copier_end.get(), "stat", F_OK, 0) != 0; }))
      << "the copier still runs without its holder";
  const auto source = small();
  EXPECT_EQ(this->load(source.string() + "::a").status, 0) << "another holder is started";
  EXPECT_EQ(resident(), Names{"a"});
}

TEST_F(GpuHolder, DescriptorLimitInMidLoadFailsOnlyThatLoad) {
  MidLoad load = mid_load();
  const pid_t pid = holder();
  allow_descriptors(pid, 6);  // as many as are open; poll(2) accepts no more
  load.signal_copier(SIGCONT);

  expect_one_line(load.client->wait(), 5, "too many open files in the holder");
  allow_descriptors(pid, RLIM_INFINITY);
  EXPECT_EQ(copier(), load.copier);
  EXPECT_EQ(this->load(small().string() + "::a").status, 0);
}

// Runs `act` after a load has named its source and while it waits for the copier of another load.
class GpuQueuedLoad : public GpuToolTest {
 protected:
  Outcome load_after(const std::function<void()>& act) const {
    MidLoad other = mid_load();
    const auto client =
        start({"load", "--device", device(), "--verify", file("m.safetensors").string() + "::a"});
    EXPECT_TRUE(eventually([&] {  // it connects to the holder after it has named its source
      const std::string fds = "/proc/" + std::to_string(client->pid()) + "/fd";
      std::error_code error;
      for (const auto& entry : std::filesystem::directory_iterator(fds, error)) {
        if (std::filesystem::read_symlink(entry, error).string().starts_with("socket:"))
          return true;
      }
      return false;
    }));
    act();
    other.client->signal(SIGKILL);
    other.signal_copier(SIGCONT);
    return client->wait();
  }
};

TEST_F(GpuQueuedLoad, SucceedsIfSourceIsLinkedBeforeCopy) {
  const auto source = small();

  const Outcome loaded =
      load_after([&] { ASSERT_EQ(::link(source.c_str(), file("link").c_str()), 0); });

  EXPECT_EQ(loaded.status, 0) << loaded.err;
  EXPECT_EQ(resident(), Names{"a"});
}

TEST_F(GpuQueuedLoad, FailsIfSourceIsRewrittenBeforeCopy) {
  const auto source = small();
  const auto other = small("other.safetensors");
  ASSERT_EQ(run({"touch", "-r", source, other}).status, 0);

  const Outcome loaded = load_after([&] { ASSERT_EQ(run({"cp", "-p", other, source}).status, 0); });

  expect_one_line(loaded, 3, "has changed since it was named");
  EXPECT_EQ(resident(), Names{});
}

TEST_F(GpuHolder, EvictsToKeepMemoryLimitOrReportsIt) {
  const std::uint64_t mib = 1 << 20;
  write_safetensors(file("m.safetensors"),
                    {random_tensor("a", "U8", {2 * mib}), random_tensor("b", "U8", {2 * mib}),
                     random_tensor("c", "U8", {2 * mib}), random_tensor("d", "U8", {6 * mib})});
  const std::string source = file("m.safetensors").string();
  start_holder({"--memory-limit", "4MiB"});
  load(source + "::a");
  load(source + "::b");
  load(source + "::a");

  EXPECT_EQ(load(source + "::c").status, 0);
  EXPECT_EQ(resident(), (Names{"a", "c"}));
  gpu({"pin", source + "::a"});
  const Outcome full = load(source + "::d");
  expect_one_line(full, 5, "out of memory");
  for (const char* part : {"needed 6.0", "held 4.0", "evictable 2.0", "limit 4.0"}) {
    EXPECT_NE(full.err.find(part), std::string::npos) << full.err;
  }
  EXPECT_EQ(resident(), (Names{"a", "c"}));
  expect_one_line(gpu({"load", "--device", device(), "--keep-free", "1000000GiB", source + "::b"}),
                  5, "out of memory");
}

TEST_F(GpuHolder, RemovedProgramFailsEveryLoadAtOnce) {
  const auto program = file("stfs-gpu-copy");
  std::filesystem::copy_file(STFS_GPU_BINARY, program);
  Process running({program.string(), "holder"});
  ASSERT_TRUE(eventually([&] { return holder() > 0; }));
  std::filesystem::remove(program);
  const auto source = small();
  const auto first = start({"load", "--device", device(), source.string() + "::a"});
  const auto second = start({"load", "--device", device(), source.string() + "::b"});

  expect_one_line(first->wait(), 5, "could not be started");
  expect_one_line(second->wait(), 5, "could not be started");
}

TEST_F(GpuHolder, ExitsAfterExitIdleSeconds) {
  start_holder({"--exit-idle", "1", "--copier-idle", "0"});
  const auto source = small();
  load(source.string() + "::a");
  gpu({"evict", "--all"});

  EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(socket()); }));
  EXPECT_EQ(load(source.string() + "::a").status, 0);
}

// A holder without its socket must not keep its tensors for ever, because no client can reach it.
class GpuLostHolder : public GpuHolder {
 protected:
  void SetUp() override {
    GpuHolder::SetUp();
    make_runtime();
    ::setenv("STFS_GPU_SOCKET", (runtime() / "gpu.sock").c_str(), 1);
  }

  std::filesystem::path runtime() const { return file("runtime"); }
  void make_runtime() const {
    std::filesystem::create_directory(runtime());
    std::filesystem::permissions(runtime(), std::filesystem::perms::owner_all);
  }

  // Starts a holder that checks its socket every second, loads the tensor "a", and leases it to
  // this process.
  void hold_a() {
    first_.emplace(std::vector<std::string>{STFS_GPU_BINARY, "holder", "--exit-idle", "1"});
    ASSERT_TRUE(eventually([&] { return holder() == first_->pid(); })) << first_->err();
    ASSERT_EQ(load(small().string() + "::a").status, 0);
    client_ = Client::connect("");
    ASSERT_TRUE(client_);
    LoadRequest request;
    request.lease = true;
    Selection selection;
    ASSERT_EQ(client_
                  ->load(find_device(device()),
                         selection.resolve(file("m.safetensors").string() + "::a"), request)
                  .tensors.size(),
              1U);
  }

  bool says(const std::string& text) {
    return eventually([&] { return first_->err().find(text) != std::string::npos; });
  }

  std::optional<Process> first_;
  std::optional<Client> client_;
};

TEST_F(GpuLostHolder, ListensAgainAfterItsSocketWasRemoved) {
  hold_a();
  client_.reset();

  for (int i = 0; i < 2; ++i) {
    std::filesystem::remove(runtime() / "gpu.sock");

    EXPECT_TRUE(eventually([&] { return holder() == first_->pid(); })) << first_->err();
    EXPECT_EQ(resident(), Names{"a"});
  }
}

TEST_F(GpuLostHolder, EndsWithLastLeaseIfDirectoryWasRemoved) {
  hold_a();
  std::filesystem::remove_all(runtime());
  ASSERT_TRUE(says("no longer exists: the holder ends when no process"));
  EXPECT_EQ(client_->list().size(), 1U) << "it still serves connected clients";

  client_.reset();

  EXPECT_EQ(first_->wait().status, 0) << "it ends although the tensor was not evicted";
}

TEST_F(GpuLostHolder, DoesNotEndInMidLoad) {
  start_holder({"--exit-idle", "1"});
  const pid_t pid = holder();
  const MidLoad load = mid_load();
  std::optional<Client> watching = Client::connect("");
  std::filesystem::remove_all(runtime());
  const std::string log = "no longer exists: the holder ends";
  ASSERT_TRUE(eventually([&] { return holder_err().find(log) != std::string::npos; }));
  EXPECT_EQ(watching->status().pid, pid);
  watching.reset();

  load.signal_copier(SIGCONT);

  EXPECT_EQ(load.client->wait().status, 0) << load.client->err();
}

// poll(2) fails with EINVAL for more descriptors than RLIMIT_NOFILE.
TEST_F(GpuHolder, PollErrorEndsItWithOneLine) {
#ifdef STFS_SANITIZED
  GTEST_SKIP() << "the sanitizer needs descriptors to find an exception's type";
#endif
  Process running({STFS_GPU_BINARY, "holder"});
  ASSERT_TRUE(eventually([&] { return holder() == running.pid(); })) << running.err();
  std::optional<Client> client = Client::connect("");
  allow_no_descriptors(running.pid());

  try {
    client->status();  // makes the holder call poll(2) again
  } catch (const Error&) {
  }

  const Outcome outcome = running.wait();
  EXPECT_EQ(outcome.status, 5);
  EXPECT_NE(outcome.err.find("stfs-gpu: poll: "), std::string::npos) << outcome.err;
}

TEST_F(GpuHolder, CopierWithFailedPollIsReplaced) {
  start_holder({"--copier-idle", "1000"});
  const auto source = small();
  ASSERT_EQ(load(source.string() + "::a").status, 0);
  const pid_t failing = copier();
  ASSERT_GT(failing, 0);
  allow_no_descriptors(failing);

  load(source.string() + "::b");  // makes the holder call poll(2) again

  EXPECT_TRUE(eventually([&] { return copier() != failing; }));
  EXPECT_EQ(load(source.string() + "::b").status, 0);
}

TEST_F(GpuHolder, IgnoredSignalsStayIgnored) {
  // nohup(1) ignores signals in the same way.
  Process process(
      {"/bin/sh", "-c", R"(trap '' HUP INT; exec "$@")", "sh", STFS_GPU_BINARY, "holder"});
  ASSERT_TRUE(eventually([&] { return holder() > 0; })) << process.err();

  process.signal(SIGHUP);
  process.signal(SIGINT);
  ASSERT_EQ(gpu({"load", "--device", device(), small().string() + "::a"}).status, 0);
  EXPECT_EQ(resident(), std::vector<std::string>{"a"});
  EXPECT_TRUE(process.running());

  process.signal(SIGTERM);
  EXPECT_EQ(process.wait().status, 0);
  EXPECT_FALSE(std::filesystem::exists(socket()));
}

TEST_F(GpuHolder, SecondHolderDoesNotReplaceFirst) {
  start_holder({});
  const pid_t first = holder();

  EXPECT_EQ(gpu({"holder"}).status, 0);
  EXPECT_EQ(gpu({"holder", "--background"}).status, 0);

  EXPECT_EQ(holder(), first);
}

TEST_F(GpuHolder, BusyHolderIsNotReplaced) {
  const UniqueFd busy = listening(socket(), 0);
  std::vector<UniqueFd> waiting;
  for (int i = 0; i < 3; ++i) {
    waiting.push_back(new_socket(SOCK_NONBLOCK));
    at_path(::connect, waiting.back(), socket());
  }
  struct stat before {};
  ASSERT_EQ(::stat(socket().c_str(), &before), 0);

  EXPECT_EQ(gpu({"holder", "--background"}).status, 0);

  struct stat after {};
  ASSERT_EQ(::stat(socket().c_str(), &after), 0);
  EXPECT_EQ(after.st_ino, before.st_ino);
}

TEST_F(GpuHolder, RefusesRuntimeDirectoryThatAnotherUserMayWrite) {
  const auto source = small();
  const auto theirs = file("theirs");
  std::filesystem::create_directory(theirs);
  const RunOptions there{.environment = {"STFS_GPU_SOCKET=", "XDG_RUNTIME_DIR=" + theirs.string()}};
  const auto load_there = [&] {
    return gpu({"load", "--device", device(), source.string() + "::a"}, there);
  };
  ASSERT_EQ(::chmod(theirs.c_str(), 0777), 0);
  expect_one_line(load_there(), 5, "not a directory that only this user can write to");
  ASSERT_EQ(::chmod(theirs.c_str(), 0700), 0);
  if (::geteuid() != 0) return;
  ASSERT_EQ(::chown(theirs.c_str(), 65534, 65534), 0);

  expect_one_line(load_there(), 5, "not a directory that only this user can write to");
}

TEST_F(GpuHolder, RefusesAndLogsOtherUsers) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to act as another user";
  Process running({STFS_GPU_BINARY, "holder"});
  ASSERT_TRUE(eventually([&] { return holder() > 0; }));
  // Let everyone connect, so that the holder itself must refuse.
  ASSERT_EQ(::chmod(socket().c_str(), 0777), 0);
  ASSERT_EQ(::chmod(file("").c_str(), 0755), 0);

  const pid_t foreign = ::fork();
  if (foreign == 0) ::_exit(answer_bytes_as(65534, socket()));
  int status = -1;
  ASSERT_EQ(::waitpid(foreign, &status, 0), foreign);

  EXPECT_EQ(status, 0) << "the holder has sent an answer";
  EXPECT_TRUE(eventually([&] {
    return running.err().find("refused a connection of user 65534") != std::string::npos;
  }));
  EXPECT_GT(holder(), 0);
}

TEST_F(GpuHolder, ClientRefusesHolderOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to act as another user";
  const auto source = small();
  for (const auto& path : {file(""), source}) {
    ASSERT_EQ(::chmod(path.c_str(), 0755), 0);
  }
  ASSERT_EQ(::chmod(file("").c_str(), 0777), 0);
  Process theirs({"setpriv", "--reuid=65534", "--clear-groups", STFS_GPU_BINARY, "holder"});
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(socket()) || !theirs.running(); }));
  if (!theirs.running()) GTEST_SKIP() << "the other user cannot run the program";

  expect_one_line(load(source.string() + "::a"), 5, "another user");
}

TEST_F(GpuHolder, ListensOnPassedSocket) {
  const UniqueFd listener = listening(socket(), 16);
  const std::string script =
      "exec 3<&" + std::to_string(100) +
      "; export LISTEN_FDS=1 LISTEN_PID=$$; exec \"$1\" holder --exit-idle 1 --copier-idle 0";
  ASSERT_EQ(::dup2(listener.get(), 100), 100);  // inherited
  Process activated({"/bin/bash", "-c", script, "bash", STFS_GPU_BINARY});
  ::close(100);
  const auto source = small();

  EXPECT_EQ(load(source.string() + "::a").status, 0);
  EXPECT_EQ(holder(), activated.pid());
  gpu({"evict", "--all"});

  EXPECT_EQ(activated.wait().status, 0);
  EXPECT_TRUE(std::filesystem::exists(socket())) << "the path belongs to systemd";
}

TEST_F(GpuHolder, RefusesPassedDescriptorThatDoesNotListen) {
  for (const char* script :
       {"exec 3</dev/null; export LISTEN_FDS=1 LISTEN_PID=$$; exec \"$1\" holder",
        "exec 3<&-; export LISTEN_FDS=1 LISTEN_PID=$$; exec \"$1\" holder",
        "export LISTEN_FDS=2 LISTEN_PID=$$; exec \"$1\" holder"}) {
    expect_one_line(run({"/bin/bash", "-c", script, "bash", STFS_GPU_BINARY}), 5, "LISTEN_FDS");
  }
}

}  // namespace
}  // namespace stfs::gpu::test
