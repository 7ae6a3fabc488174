#include "tests/gpu/tool.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <utility>

namespace stfs::gpu::test {

using namespace stfs::test;

std::string device() {
  const char* chosen = std::getenv("STFS_TEST_DEVICE");
  return chosen == nullptr ? "cpu" : chosen;
}

void kill_and_wait(pid_t pid) {
  if (pid <= 0) return;  // kill(2) would signal many processes
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process) return;
  ::kill(pid, SIGKILL);
  pollfd wanted{process.get(), POLLIN, 0};
  ::poll(&wanted, 1, 20'000);
}

void GpuToolTest::SetUp() {
  MountTest::SetUp();
  ::setenv("STFS_GPU_SOCKET", socket().c_str(), 1);
  ::setenv("XDG_RUNTIME_DIR", dir_.path().c_str(), 1);
}

void GpuToolTest::TearDown() {
  if (const pid_t pid = copier(); pid > 0) kill_and_wait(pid);
  if (const pid_t pid = holder(); pid > 0) kill_and_wait(pid);
}

Outcome GpuToolTest::gpu(std::vector<std::string> arguments, const RunOptions& options) const {
  arguments.insert(arguments.begin(), STFS_GPU_BINARY);
  return run(arguments, options);
}

json GpuToolTest::gpu_json(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin() + 1, "--json");
  const Outcome outcome = gpu(arguments);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const json parsed = json::parse(outcome.out, nullptr, false);
  EXPECT_FALSE(parsed.is_discarded()) << outcome.out;
  return parsed;
}

std::unique_ptr<Process> GpuToolTest::start(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), STFS_GPU_BINARY);
  return std::make_unique<Process>(arguments);
}

void GpuToolTest::start_holder(std::vector<std::string> options) {
  options.insert(options.begin(), "holder");
  holders_.push_back(start(options));
  EXPECT_TRUE(eventually([&] { return holder() > 0; })) << holders_.back()->err();
}

pid_t GpuToolTest::holder() const {
  try {
    std::optional<Client> client = Client::connect("");
    return client ? static_cast<pid_t>(client->status().pid) : 0;
  } catch (const Error&) {
    return 0;
  }
}

pid_t GpuToolTest::copier() const {
  const std::string pid = std::to_string(holder());
  std::ifstream children("/proc/" + pid + "/task/" + pid + "/children");
  pid_t child = 0;
  children >> child;
  return child;
}

std::vector<std::string> GpuToolTest::resident() const {
  std::vector<std::string> names;
  std::optional<Client> client = Client::connect("");
  if (!client) return names;
  for (const Resident& tensor : client->list()) {
    names.push_back(tensor.label.substr(tensor.label.find("::") + 2));
  }
  std::ranges::sort(names);
  return names;
}

std::filesystem::path GpuToolTest::small(std::string_view name) const {
  write_safetensors(file(name),
                    {random_tensor("a", "F32", {64, 48}, 1), random_tensor("b", "F32", {10}, 2),
                     random_tensor("layers.0.w", "BF16", {128, 32}, 3)});
  return file(name);
}

void GpuToolTest::MidLoad::signal_copier(int number) const {
  if (copier > 0) ::kill(copier, number);
}

GpuToolTest::MidLoad GpuToolTest::mid_load(const std::string& dtype,
                                           const std::vector<std::string>& options) const {
  // With the smallest tiles, a conversion and --verify, the load lasts long enough to be stopped.
  const std::uint64_t bytes = 256 << 20;
  HeaderBuilder header;
  header.add("large", dtype, {bytes / (dtype == "BF16" ? 2 : 1)}, bytes);
  const std::string head = safetensors_bytes(header.finish(), "");
  write_file(large(), head);
  std::filesystem::resize_file(large(), head.size() + bytes);
  std::vector<std::string> words{"load",      "--device", device(),
                                 "--workers", "1",        "--tile",
                                 "4096",      "--verify", large().string() + "::large"};
  words.insert(words.end(), options.begin(), options.end());
  MidLoad load{start(words), 0};
  const auto has_segment = [&] {
    load.copier = copier();
    if (load.copier == 0) return false;
    const std::string fds = "/proc/" + std::to_string(load.copier) + "/fd";
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(fds, error)) {
      if (std::filesystem::read_symlink(entry, error).string().find("memfd:stfs-gpu") !=
          std::string::npos) {
        return true;
      }
    }
    return false;
  };
  EXPECT_TRUE(eventually(has_segment)) << load.client->err();
  load.signal_copier(SIGSTOP);
  EXPECT_TRUE(load.client->running()) << "the load ended too early";
  return load;
}

std::string GpuToolTest::bytes_of(const json& row) {
  const auto path = row.at("path").get<std::string>();
  const auto length = row.at("bytes").get<std::size_t>();
  std::string bytes(length, '\0');
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_TRUE(fd) << path;
  EXPECT_EQ(::pread(fd.get(), bytes.data(), length, row.at("offset").get<off_t>()),
            static_cast<ssize_t>(length));
  return bytes;
}

void expect_one_line(const Outcome& outcome, int status, std::string_view part) {
  EXPECT_EQ(outcome.status, status) << outcome.err;
  EXPECT_TRUE(outcome.err.starts_with("stfs-gpu: ")) << outcome.err;
  EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
  EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
}

}  // namespace stfs::gpu::test
