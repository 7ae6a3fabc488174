// Holder, copier and client with different versions, as after an upgrade. One line names
// the versions and says what to do.
#include "tests/gpu/tool.h"
#include "tests/gpu/wire.h"
#include "tools/gpu/protocol/message.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>
#include <thread>

namespace stfs::gpu::test {

using namespace stfs::test;

namespace {

const std::string kOurs = std::to_string(kProtocolVersion);

// The answers of a holder, by request.
using Answers = std::map<std::string, Json>;

// A fake holder with another version. It serves one client.
class OtherHolder {
 public:
  OtherHolder(const std::string& path, Answers answers) : answers_(std::move(answers)) {
    EXPECT_EQ(at_path(::bind, listener_, path), 0);
    EXPECT_EQ(::listen(listener_.get(), 1), 0);
    thread_ = std::thread([this] { serve(); });
  }
  ~OtherHolder() {
    ::shutdown(listener_.get(), SHUT_RDWR);  // ends accept(2)
    thread_.join();
  }
  OtherHolder(const OtherHolder&) = delete;
  OtherHolder& operator=(const OtherHolder&) = delete;

 private:
  void serve() {
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd) return;
    Channel channel(std::move(fd), {});
    try {
      for (;;) channel.send_now(answers_.at(text_of(channel.wait().body(), "request")));
    } catch (const std::exception&) {  // the client has disconnected
    }
  }

  UniqueFd listener_ = new_socket();
  const Answers answers_;
  std::thread thread_;
};

Json error_of(int status, const std::string& message) {
  return {{"status", status}, {"message", message}};
}

class GpuVersions : public GpuToolTest {
 protected:
  // Loads through a holder after its stfs-gpu was replaced by a program. That program sends
  // `message` and reads until the holder closes the socket.
  Outcome load_with_copier(const std::string& message) {
    const auto program = file("stfs-gpu-copy");
    std::filesystem::copy_file(STFS_GPU_BINARY, program);
    holding_ = std::make_unique<Process>(std::vector<std::string>{program.string(), "holder"});
    EXPECT_TRUE(eventually([&] { return holder() > 0; })) << holding_->err();
    std::filesystem::remove(program);
    write_file(file("message"), frame(message));
    write_file(program, "#!/bin/sh\ncat '" + file("message").string() + "' >&3; exec cat <&3\n");
    EXPECT_EQ(::chmod(program.c_str(), 0755), 0);
    return gpu({"load", "--device", "cpu", small().string() + "::a"});
  }

  // Returns the expected error text after "stfs-gpu: ".
  std::string line(const std::string& holders, pid_t pid, const std::string& peer) const {
    return "the holder (process " + std::to_string(pid) + ") speaks version " + holders +
           " of the protocol, " + peer;
  }
  static std::string kill_and_load(pid_t pid) {
    return ": end the holder (kill " + std::to_string(pid) + "), and load again";
  }

  std::unique_ptr<Process> holding_;
};

TEST_F(GpuVersions, ErrorForOlderHolderSaysHowToEndIt) {
  const OtherHolder older(
      socket(),
      {{"hello", {{"error", error_of(2, "malformed message: no request \"hello\"")}}},
       {"status",
        {{"pid", 4711}, {"memory_limit", 0}, {"clients", 1}, {"devices", Json::object()}}}});

  expect_one_line(gpu({"ls"}), 5,
                  line("1", 4711, "this program version " + kOurs) + kill_and_load(4711));
}

TEST_F(GpuVersions, ErrorForNewerHolderSaysToRestartProgram) {
  const OtherHolder newer(
      socket(),
      {{"hello",
        {{"version", 99}, {"pid", 4711}, {"error", error_of(5, "a line in its own words")}}}});

  expect_one_line(gpu({"ls"}), 5,
                  line("99", 4711, "this program version " + kOurs) +
                      ": start this program again, with the newer stfs");
}

TEST_F(GpuVersions, HolderThatIsOutOfMemoryIsNotCalledOld) {
  const OtherHolder busy(socket(),
                         {{"hello", {{"error", error_of(5, "the holder is out of memory")}}}});

  expect_one_line(gpu({"ls"}), 5, "stfs-gpu: the holder is out of memory");
}

TEST_F(GpuVersions, CopierWithOtherVersionFailsOnlyLoad) {
  for (const auto& [version, message] :
       {std::pair{"99", R"({"load":0,"hello":99})"},
        {"1", R"({"load":1,"error":{"status":5,"message":"it has sent no hello"}})"}}) {
    const Outcome loaded = load_with_copier(message);

    const pid_t pid = holding_->pid();
    expect_one_line(
        loaded, 5,
        line(kOurs, pid, std::string("the stfs-gpu that is installed version ") + version) +
            kill_and_load(pid));
    EXPECT_EQ(holder(), pid) << version;
    kill_and_wait(pid);
    std::filesystem::remove(file("stfs-gpu-copy"));
  }
}

// This process acts as the holder.
TEST_F(GpuVersions, CopierRefusesOlderHolder) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  Channel channel(UniqueFd(ends[0]), {});
  const UniqueFd theirs(ends[1]);
  ASSERT_EQ(::dup2(theirs.get(), 100), 100);  // inherited
  Process copier({"/bin/bash", "-c", R"(exec 3<&100; exec "$1" copier --device cpu --idle 1)",
                  "bash", STFS_GPU_BINARY});
  ::close(100);

  channel.send_now({{"load", 7}, {"items", Json::array()}});

  EXPECT_EQ(channel.wait().body().at("hello"), kProtocolVersion);
  for (;;) {
    const Message answer = channel.wait();
    EXPECT_EQ(answer.body().at("load"), 7);
    if (answer.body().contains("progress")) continue;
    EXPECT_EQ(answer.body().at("error").at("message"),
              line("1", ::getpid(), "the stfs-gpu that is installed version " + kOurs) +
                  kill_and_load(::getpid()));
    break;
  }
}

}  // namespace
}  // namespace stfs::gpu::test
