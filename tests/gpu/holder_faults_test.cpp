// Hostile clients of the holder: it refuses, limits and logs them, and still serves other clients.
#include "tests/gpu/tool.h"
#include "tests/gpu/wire.h"
#include "tests/support/failing_calls.h"
#include "tools/gpu/client/selection.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace stfs::gpu::test {

using namespace stfs::test;

namespace {

class GpuHolderFaults : public GpuToolTest {
 protected:
  void SetUp() override {
    GpuToolTest::SetUp();
    if (IsSkipped()) return;
    running_ = std::make_unique<Process>(std::vector<std::string>{STFS_GPU_BINARY, "holder"});
    ASSERT_TRUE(eventually([&] { return holder() > 0; })) << running_->err();
    tensor_ = small().string() + "::a";
    ASSERT_EQ(gpu({"load", "--device", device(), tensor_}).status, 0);
  }

  UniqueFd connected() const {
    UniqueFd fd = new_socket();
    EXPECT_EQ(at_path(::connect, fd, socket()), 0);
    return fd;
  }

  UniqueFd greeted() const {
    UniqueFd fd = connected();
    push(fd, frame(Json{{"request", "hello"}, {"version", kProtocolVersion}}.dump()));
    return fd;
  }

  // Writes until all is sent or the holder has read nothing for `patience`. Returns the bytes
  // written.
  static std::size_t push(const UniqueFd& fd, std::string_view bytes,
                          std::chrono::milliseconds patience = std::chrono::milliseconds(500)) {
    std::size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t n =
          ::send(fd.get(), bytes.data() + sent, bytes.size() - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n > 0) sent += static_cast<std::size_t>(n);
      if (n > 0) continue;
      if (errno != EAGAIN) break;
      pollfd room{fd.get(), POLLOUT, 0};
      if (::poll(&room, 1, static_cast<int>(patience.count())) == 0) break;
    }
    return sent;
  }

  static bool is_disconnected(const UniqueFd& fd) {
    return eventually([&] {
      char c = 0;
      return ::recv(fd.get(), &c, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET;
    });
  }

  std::uint64_t status_value(const char* name) const {
    std::ifstream file("/proc/" + std::to_string(running_->pid()) + "/status");
    std::string word;
    std::uint64_t value = 0;
    while (file >> word) {
      if (word == name && file >> value) return value;
    }
    return 0;
  }
  std::uint64_t peak_kilobytes() const { return status_value("VmHWM:"); }
  std::size_t holder_descriptors() const {
    return names_in("/proc/" + std::to_string(running_->pid()) + "/fd").size();
  }

  // Checks that the holder still serves other clients.
  void expect_others_served() const {
    EXPECT_TRUE(running_->running()) << running_->err();
    const Outcome outcome = gpu({"get", "--device", device(), tensor_});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    const std::string other = tensor_.substr(0, tensor_.size() - 1) + "b";
    EXPECT_EQ(gpu({"load", "--device", device(), other}).status, 0);
  }

  std::unique_ptr<Process> running_;
  std::string tensor_;
};

// Larger with sanitizers, because they delay the reuse of freed memory.
#ifdef STFS_SANITIZED
constexpr std::uint64_t kMaxKilobytes = 4'000'000;
#else
constexpr std::uint64_t kMaxKilobytes = 800'000;
#endif

TEST_F(GpuHolderFaults, RandomBytesEndOnlyTheirConnection) {
  RandomBytes random(4);
  for (int i = 0; i < 200; ++i) {
    const UniqueFd fd = connected();
    push(fd, random.bytes(1 + random.next() % 5000));
    ::shutdown(fd.get(), SHUT_WR);
  }
  for (int i = 0; i < 200; ++i) {
    const UniqueFd fd = connected();
    push(fd, frame(random.bytes(random.next() % 500)));
    EXPECT_TRUE(is_disconnected(fd));
  }

  expect_others_served();
}

// 2^32 + 1 workers must not become 1 worker.
TEST_F(GpuHolderFaults, RejectsOverflowingNumberOfWorkers) {
  Channel channel(greeted(), {});
  channel.wait();
  const DeviceInfo chosen = find_device(device());
  const std::string source = tensor_.substr(0, tensor_.size() - 1);
  const Item item = Selection().resolve(source + "b", {}).at(0);

  Json body{{"request", "load"},
            {"uuid", chosen.uuid},
            {"device", chosen.id},
            {"workers", (std::uint64_t{1} << 32) + 1}};
  put_items(body, {&item, 1});
  channel.send_now(body);
  Message answer = channel.wait();
  while (answer.body().contains("progress")) answer = channel.wait();

  ASSERT_TRUE(answer.body().contains("error")) << answer.body();
  EXPECT_EQ(answer.body().at("error").at("status"), 2);
  expect_others_served();
}

TEST_F(GpuHolderFaults, IncompleteMessagesAreLimitedAndDelayNoOtherClient) {
  const std::string half = frame(std::string(60 << 20, ' ')).substr(0, 59 << 20);
  std::vector<UniqueFd> hogs;
  for (int i = 0; i < 8; ++i) {
    hogs.push_back(connected());
    push(hogs.back(), half, kHang);
  }

  expect_others_served();

  EXPECT_LT(peak_kilobytes(), kMaxKilobytes);
  EXPECT_TRUE(eventually(
      [&] { return running_->err().find("disconnected a client") != std::string::npos; }));
}

TEST_F(GpuHolderFaults, DoesNotAcceptDescriptors) {
  const std::size_t before = holder_descriptors();
  for (int i = 0; i < 50; ++i) {
    Channel channel(connected(), {});
    std::vector<UniqueFd> descriptors;
    for (int j = 0; j < 200; ++j) descriptors.emplace_back(::dup(STDIN_FILENO));
    channel.queue({{"request", "list"}}, std::move(descriptors));
    ASSERT_TRUE(channel.send());
    EXPECT_TRUE(eventually([&] { return !channel.receive(); }));
  }

  EXPECT_LE(holder_descriptors(), before + 2);
  expect_others_served();
}

TEST_F(GpuHolderFaults, StopsReadingRequestsWhileAnswersAreUnread) {
  const Mounted mount({small("n.safetensors")});
  ASSERT_EQ(gpu({"load", "--device", device(), mount.path().string()}).status, 0);
  std::string many;
  while (many.size() < (1 << 20)) many += frame("{\"request\":\"list\"}");
  const UniqueFd fd = greeted();
  std::size_t taken = 0;
  for (int i = 0; i < 64; ++i) {
    const std::size_t sent = push(fd, many);
    taken += sent;
    if (sent < many.size()) break;
  }

  EXPECT_LT(taken, 16u << 20) << "bytes of requests";
  EXPECT_LT(peak_kilobytes(), kMaxKilobytes);
  expect_others_served();
}

TEST_F(GpuHolderFaults, RefusesClientsWhenOutOfDescriptorsAndKeepsRunning) {
  kill_and_wait(running_->pid());
  running_ = std::make_unique<Process>(
      std::vector<std::string>{"prlimit", "--nofile=40:40", STFS_GPU_BINARY, "holder"});
  ASSERT_TRUE(eventually([&] { return holder() > 0; }));
  std::vector<UniqueFd> flood;
  int cut = 0;
  for (int i = 0; i < 100; ++i) flood.push_back(connected());
  ASSERT_TRUE(
      eventually([&] { return running_->err().find("too many open files") != std::string::npos; }));
  for (const UniqueFd& fd : flood) {
    char c = 0;
    if (::recv(fd.get(), &c, 1, MSG_DONTWAIT) == 0) ++cut;
  }
  EXPECT_GT(cut, 0);
  // The holder sleeps in poll(2) instead of retrying accept4(2) in a loop.
  EXPECT_TRUE(eventually([&] {
    std::ifstream status("/proc/" + std::to_string(running_->pid()) + "/status");
    std::string line;
    while (std::getline(status, line)) {
      if (line.starts_with("State:")) return line.find('S') != std::string::npos;
    }
    return false;
  }));
  flood.clear();

  EXPECT_TRUE(eventually([&] { return holder() > 0; }));
}

TEST_F(GpuHolderFaults, RefusesAndLogsClientsBeyondLimit) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max < 3000) GTEST_SKIP() << "needs 3000 open files";
  rlimit raised{limit.rlim_max, limit.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &raised);
  {
    std::vector<UniqueFd> flood;
    for (int i = 0; i < 1100; ++i) flood.push_back(connected());
    EXPECT_TRUE(is_disconnected(flood.back()));
    EXPECT_NE(running_->err().find("refused a connection"), std::string::npos);
  }
  ::setrlimit(RLIMIT_NOFILE, &limit);

  EXPECT_TRUE(eventually([&] { return holder() > 0; }));
  expect_others_served();
}

// System calls fail in the holder or its copier.
class GpuFailingCalls : public GpuToolTest {
 protected:
  void SetUp() override {
    skip_where_calls_cannot_fail();
    if (!IsSkipped()) GpuToolTest::SetUp();
  }

  // Loads with a holder and a copier in which pthread_create fails from call `first` on.
  Outcome load_without_threads_from(const std::string& first) const {
    return gpu(
        {"load", "--device", "cpu", "--verify", "--workers", "4", "--tile", "4096",
         small().string() + "::a"},
        {.environment = failing("pthread_create", {"STFS_FAIL_AT=" + first, "STFS_FAIL_ON=1"})});
  }
};

TEST_F(GpuFailingCalls, LoadSucceedsIfOnlyAdditionalThreadsFail) {
  const Outcome loaded = load_without_threads_from("2");

  EXPECT_EQ(loaded.status, 0) << loaded.err;
  EXPECT_EQ(resident(), std::vector<std::string>{"a"});
}

TEST_F(GpuFailingCalls, FailureToStartFirstThreadFailsLoad) {
  const Outcome loaded = load_without_threads_from("1");

  expect_one_line(loaded, 5, "the copier ended");
  EXPECT_TRUE(resident().empty());
}

// After ENOMEM the connection stays in the queue, and poll(2) reports it at once.
TEST_F(GpuFailingCalls, Accept4FailureIsLoggedOnceAndClientWaits) {
  const std::string flag = file("now").string();
  const Process holding(
      {STFS_GPU_BINARY, "holder"},
      {.environment = failing("accept4", {"STFS_FAIL_ON=1", "STFS_FAIL_WHILE=" + flag})});
  ASSERT_TRUE(eventually([&] { return holder() > 0; })) << holding.err();
  write_file(flag, "");
  const auto waiting = start({"ls"});
  EXPECT_TRUE(eventually([&] { return holding.err().find("accept4: ") != std::string::npos; }));

  std::filesystem::remove(flag);

  EXPECT_EQ(waiting->wait().status, 0);
  EXPECT_EQ(std::ranges::count(holding.err(), '\n'), 1) << holding.err();
}

}  // namespace
}  // namespace stfs::gpu::test
