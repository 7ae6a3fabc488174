// The functions of stfs_gpu.h with a holder, in host memory: loads, shared segments, leases.
#include "core/base/dlpack.h"
#include "core/base/posix.h"
#include "tests/gpu/failing_new.h"
#include "tests/gpu/wire.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/files.h"
#include "tests/support/process.h"
#include "tools/gpu/library/include/stfs_gpu.h"
#include "tools/gpu/protocol/message.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace stfs::gpu::test {

using namespace stfs::test;
using stfs::test::Tensor;  // not stfs::Tensor

namespace {

using ::testing::IsSubstring;

class LibraryHolder : public ::testing::Test {
 protected:
  void SetUp() override {
    write_safetensors(source(), tensors_);
    ::setenv("STFS_GPU_SOCKET", socket().c_str(), 1);
    start_holder();
    ASSERT_EQ(stfs_gpu_connect(nullptr, 0, &connection_), STFS_GPU_OK) << stfs_gpu_last_error();
  }

  void TearDown() override {
    release();
    stfs_gpu_disconnect(std::exchange(connection_, nullptr));
    ::unsetenv("STFS_GPU_SOCKET");
    if (!holder_) return;
    holder_->signal(SIGTERM);
    EXPECT_EQ(holder_->wait().status, 0) << holder_->err();
  }

  void start_holder() {
    holder_.emplace(std::vector<std::string>{STFS_GPU_BINARY, "holder"});
    stfs_gpu_connection* connection = nullptr;
    ASSERT_TRUE(eventually([&connection] {
      return stfs_gpu_connect(nullptr, 0, &connection) == STFS_GPU_OK;
    })) << stfs_gpu_last_error();
    stfs_gpu_disconnect(connection);
  }

  void kill_holder() {
    holder_->signal(SIGKILL);
    holder_->wait();
    holder_.reset();
  }

  std::string socket() const { return dir_ / "socket"; }
  std::string source() const { return dir_ / "m.safetensors"; }
  std::string name(const std::string& tensor) const { return source() + "::" + tensor; }

  int acquire(const std::vector<std::string>& names, const stfs_gpu_acquire_options& options) {
    release();
    std::vector<const char*> pointers;
    for (const std::string& name : names) pointers.push_back(name.c_str());
    return stfs_gpu_acquire(connection_, pointers.data(), pointers.size(), &options, &acquired_);
  }
  void release() { stfs_gpu_release(std::exchange(acquired_, nullptr)); }

  // Loads the tensors "t0", "t1", ... with the bytes 1, 2, ..., each into a separate segment.
  // Returns their names.
  std::vector<std::string> load_many(std::size_t count) {
    const std::string path = dir_ / "many.safetensors";
    std::vector<Tensor> many;
    std::vector<std::string> names;
    for (std::size_t i = 0; i < count; ++i) {
      many.push_back(
          {"t" + std::to_string(i), "U8", {1}, std::string(1, static_cast<char>(i + 1))});
      names.push_back(path + "::" + many.back().name);
    }
    write_safetensors(path, many);
    for (const std::string& one : names) {
      EXPECT_EQ(acquire({one}, loading()), STFS_GPU_OK) << stfs_gpu_last_error();
      release();
    }
    return names;
  }

  static stfs_gpu_acquire_options loading() {
    stfs_gpu_acquire_options options = STFS_GPU_ACQUIRE_OPTIONS_INIT;
    options.device = "cpu";
    options.load_if_missing = 1;
    return options;
  }

  static std::string bytes_of(const stfs_gpu_tensors* tensors, std::size_t index) {
    stfs_gpu_tensor_info info{};
    info.size = sizeof info;
    EXPECT_EQ(stfs_gpu_info(tensors, index, &info), STFS_GPU_OK) << stfs_gpu_last_error();
    return {reinterpret_cast<const char*>(info.pointer), info.bytes};
  }

  // Returns the number that the next opened descriptor gets.
  static rlim_t lowest_descriptor() {
    const int lowest = ::dup(STDIN_FILENO);
    ::close(lowest);
    return static_cast<rlim_t>(lowest);
  }

  // During a scope, lowers the limit of open files so that only `more` can be opened.
  class FewFiles {
   public:
    explicit FewFiles(rlim_t more) {
      EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
      const rlimit lowered{lowest_descriptor() + more, before_.rlim_max};
      EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &lowered), 0);
    }
    ~FewFiles() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }
    FewFiles(const FewFiles&) = delete;
    FewFiles& operator=(const FewFiles&) = delete;

   private:
    rlimit before_{};
  };

  // Returns the processes with a lease on a tensor, or nullopt if it is not resident. Asks
  // `stfs-gpu ls`.
  std::optional<std::vector<pid_t>> users(const std::string& tensor) const {
    for (const auto& row : nlohmann::json::parse(run({STFS_GPU_BINARY, "ls", "--json"}).out)) {
      if (row.at("label") == name(tensor)) return row.at("users").get<std::vector<pid_t>>();
    }
    return std::nullopt;
  }

  bool nothing_is_leased() const {
    const auto rows = nlohmann::json::parse(run({STFS_GPU_BINARY, "ls", "--json"}).out);
    return std::ranges::all_of(rows, [](const auto& row) { return row.at("users").empty(); });
  }

  TempDir dir_;
  const std::vector<Tensor> tensors_{random_tensor("a.w", "F32", {4, 6}, 1),
                                     random_tensor("a.b", "BF16", {10}, 2),
                                     random_tensor("c", "U8", {3 << 20}, 3)};
  std::optional<Process> holder_;
  stfs_gpu_connection* connection_ = nullptr;
  stfs_gpu_tensors* acquired_ = nullptr;
};

const std::vector<pid_t> kNoUsers;

TEST_F(LibraryHolder, AcquiresDequantizedWeights) {
  const std::string path = dir_ / "q.safetensors";
  const std::vector<float> scales{3, 5};
  write_safetensors(
      path, {{"w", "F8_E4M3", {1, 4}, std::string(4, '\x38')},  // 1.0
             {"w_scale_inv", "F32", {1, 2}, {reinterpret_cast<const char*>(scales.data()), 8}}});
  const auto write_config = [&](const char* block) {
    write_file(dir_ / "config.json", std::string(R"({"quantization_config": {"quant_method": "fp8",
        "weight_block_size": )") + block +
                                         "}}");
  };
  write_config("[1, 2]");
  stfs_gpu_acquire_options options = loading();
  options.dequantize = "bf16";

  ASSERT_EQ(acquire({path}, options), STFS_GPU_OK) << stfs_gpu_last_error();
  ASSERT_EQ(stfs_gpu_count(acquired_), 1u);
  const std::string three = "\x40\x40";
  const std::string five = "\xa0\x40";
  EXPECT_EQ(bytes_of(acquired_, 0), three + three + five + five);
  stfs_gpu_tensor_info info{};
  info.size = sizeof info;
  ASSERT_EQ(stfs_gpu_info(acquired_, 0, &info), STFS_GPU_OK);
  EXPECT_STREQ(info.name, "w");
  EXPECT_EQ(info.label, path + "::w computed as BF16 (FP8 with scales)");

  // The files beside the checkpoint are read again.
  write_config("[1, 3]");
  ASSERT_EQ(acquire({path}, options), STFS_GPU_OK) << stfs_gpu_last_error();
  EXPECT_EQ(bytes_of(acquired_, 0), three + three + three + five);
  options.dequantize = "f64";
  EXPECT_EQ(acquire({path}, options), STFS_GPU_USAGE);
  EXPECT_PRED_FORMAT2(IsSubstring, "expected one of bf16, f16, f32",
                      std::string(stfs_gpu_last_error()));
}

TEST_F(LibraryHolder, LoadsTensorsWithLayers) {
  const std::string path = (dir_ / "m.safetensors").string();
  write_safetensors(path, {{"w", "F32", {1}, std::string("\0\0\x80\x3f", 4)}});  // 1.0
  write_file(dir_ / "edits", "cast w BF16\nrename s/w/v/\n");
  const std::string edit = "edit=" + (dir_ / "edits").string();
  stfs_gpu_acquire_options options = loading();
  const char* const layers[] = {edit.c_str(), nullptr};
  options.layers = layers;

  ASSERT_EQ(acquire({path + "::v"}, options), STFS_GPU_OK) << stfs_gpu_last_error();
  EXPECT_EQ(bytes_of(acquired_, 0), "\x80\x3f");
  const char* const none[] = {"dequantise=bf16", nullptr};
  options.layers = none;
  EXPECT_EQ(acquire({path + "::v"}, options), STFS_GPU_USAGE);
}

TEST_F(LibraryHolder, LoadsMissingTensors) {
  const stfs_gpu_acquire_options options = loading();

  ASSERT_EQ(acquire({name("c"), name("a.*")}, options), STFS_GPU_OK) << stfs_gpu_last_error();

  ASSERT_EQ(stfs_gpu_count(acquired_), 3U);
  EXPECT_EQ(bytes_of(acquired_, 0), tensors_[2].bytes);
  EXPECT_EQ(bytes_of(acquired_, 1), tensors_[0].bytes);
  EXPECT_EQ(bytes_of(acquired_, 2), tensors_[1].bytes);
  EXPECT_EQ(users("c"), std::vector<pid_t>{::getpid()});
}

TEST_F(LibraryHolder, FindsResidentTensorWithoutNamedDevice) {
  stfs_gpu_acquire_options options = STFS_GPU_ACQUIRE_OPTIONS_INIT;

  EXPECT_EQ(acquire({name("a.w")}, options), STFS_GPU_DEVICE);
  EXPECT_PRED_FORMAT2(IsSubstring, "not resident", stfs_gpu_last_error());
  options.load_if_missing = 1;
  EXPECT_EQ(acquire({name("a.w")}, options), STFS_GPU_USAGE);
  EXPECT_PRED_FORMAT2(IsSubstring, "no device is named", stfs_gpu_last_error());
  EXPECT_EQ(users("a.w"), std::nullopt);

  ASSERT_EQ(run({STFS_GPU_BINARY, "load", "--device", "cpu", name("a.w")}).status, 0);
  options.load_if_missing = 0;
  ASSERT_EQ(acquire({name("a.w")}, options), STFS_GPU_OK) << stfs_gpu_last_error();
  EXPECT_EQ(bytes_of(acquired_, 0), tensors_[0].bytes);
}

TEST_F(LibraryHolder, AcceptsOptionsOfLoad) {
  stfs_gpu_acquire_options options = loading();
  options.shard = "1/2@0";
  options.as = "f32";
  options.verify = 1;
  options.pin = 1;

  ASSERT_EQ(acquire({name("a.w")}, options), STFS_GPU_OK) << stfs_gpu_last_error();

  EXPECT_EQ(bytes_of(acquired_, 0), tensors_[0].bytes.substr(48));
  const auto rows = nlohmann::json::parse(run({STFS_GPU_BINARY, "ls", "--json"}).out);
  EXPECT_EQ(rows.at(0).at("pinned"), true);
}

TEST_F(LibraryHolder, LeaseLastsUntilLastUserReleasesTensor) {
  ASSERT_EQ(acquire({name("a.w")}, loading()), STFS_GPU_OK) << stfs_gpu_last_error();
  stfs_gpu_tensors* second = std::exchange(acquired_, nullptr);
  ASSERT_EQ(acquire({name("a.w")}, loading()), STFS_GPU_OK) << stfs_gpu_last_error();
  DLManagedTensorVersioned* exported = nullptr;
  ASSERT_EQ(stfs_gpu_export(acquired_, 0, 0, &exported), STFS_GPU_OK);

  stfs_gpu_disconnect(std::exchange(connection_, nullptr));
  stfs_gpu_release(second);
  EXPECT_EQ(users("a.w"), std::vector<pid_t>{::getpid()});
  release();
  EXPECT_EQ(users("a.w"), std::vector<pid_t>{::getpid()});
  exported->deleter(exported);
  EXPECT_EQ(users("a.w"), kNoUsers);
}

TEST_F(LibraryHolder, ForkedChildDoesNotEndLeaseOfParent) {
  ASSERT_EQ(acquire({name("a.w")}, loading()), STFS_GPU_OK) << stfs_gpu_last_error();
  DLManagedTensorVersioned* exported = nullptr;
  ASSERT_EQ(stfs_gpu_export(acquired_, 0, 0, &exported), STFS_GPU_OK);
  release();  // only the export keeps the lease

  const pid_t child = ::fork();
  if (child == 0) {
    exported->deleter(exported);
    stfs_gpu_disconnect(connection_);
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);

  EXPECT_EQ(status, 0);
  EXPECT_EQ(users("a.w"), std::vector<pid_t>{::getpid()});
  EXPECT_EQ(
      std::memcmp(exported->dl_tensor.data, tensors_[0].bytes.data(), tensors_[0].bytes.size()), 0);
  exported->deleter(exported);
  EXPECT_EQ(users("a.w"), kNoUsers);
}

// Forwards messages between a client and the holder. Calls `before` with the bytes from the client
// before it forwards them.
class Relay {
 public:
  Relay(const std::string& path, const std::string& holder,
        std::function<void(std::string_view)> before)
      : before_(std::move(before)), listener_(new_socket()), holder_(new_socket()) {
    EXPECT_EQ(at_path(::bind, listener_, path), 0);
    EXPECT_EQ(::listen(listener_.get(), 1), 0);
    EXPECT_EQ(at_path(::connect, holder_, holder), 0);
    thread_ = std::thread([this] { forward_all(); });
  }
  ~Relay() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    ::shutdown(holder_.get(), SHUT_RDWR);
    thread_.join();
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

 private:
  void forward_all() {
    const UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    std::array<pollfd, 2> polled{{{client.get(), POLLIN, 0}, {holder_.get(), POLLIN, 0}}};
    while (::poll(polled.data(), polled.size(), -1) > 0) {
      if (polled[0].revents != 0 && !forward(client.get(), holder_.get(), before_)) return;
      if (polled[1].revents != 0 && !forward(holder_.get(), client.get(), [](std::string_view) {}))
        return;
    }
  }

  // Forwards the bytes and descriptors of one recvmsg(2). Returns false at the end of the
  // connection.
  static bool forward(int from, int to, const std::function<void(std::string_view)>& before) {
    std::array<char, 65536> bytes;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(64 * sizeof(int))> control;
    iovec piece{bytes.data(), bytes.size()};
    msghdr header{};
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    const ssize_t n = ::recvmsg(from, &header, MSG_CMSG_CLOEXEC);
    if (n <= 0) return false;
    piece.iov_len = static_cast<std::size_t>(n);
    before({bytes.data(), piece.iov_len});
    const bool is_sent = ::sendmsg(to, &header, MSG_NOSIGNAL) == n;
    for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
      for (std::size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
        ::close(fd);
      }
    }
    return is_sent;
  }

  std::function<void(std::string_view)> before_;
  UniqueFd listener_;
  UniqueFd holder_;
  std::thread thread_;
};

// The holder may free memory when its lease ends, so the client must unmap it first.
TEST_F(LibraryHolder, LeaseEndsOnlyAfterMemoryIsUnmapped) {
  const auto is_mapped = [] {
    return read_file("/proc/self/maps").find("memfd:stfs-gpu") != std::string::npos;
  };
  std::atomic<int> releases = 0;
  std::atomic<int> mapped = 0;
  const std::string path = dir_ / "relay";
  const Relay relay(path, socket(), [&](std::string_view bytes) {
    if (bytes.find("release") == std::string_view::npos) return;
    ++releases;
    mapped += is_mapped() ? 1 : 0;
  });
  stfs_gpu_connection* connection = nullptr;
  ASSERT_EQ(stfs_gpu_connect(path.c_str(), 0, &connection), STFS_GPU_OK) << stfs_gpu_last_error();
  std::swap(connection, connection_);
  ASSERT_EQ(acquire({name("a.w")}, loading()), STFS_GPU_OK) << stfs_gpu_last_error();
  DLManagedTensorVersioned* exported = nullptr;
  ASSERT_EQ(stfs_gpu_export(acquired_, 0, 0, &exported), STFS_GPU_OK);
  EXPECT_TRUE(is_mapped());

  release();
  EXPECT_EQ(releases, 0);
  exported->deleter(exported);
  ASSERT_EQ(acquire({name("c")}, loading()), STFS_GPU_OK) << stfs_gpu_last_error();
  release();
  stfs_gpu_disconnect(std::exchange(connection_, connection));

  EXPECT_EQ(releases, 2);
  EXPECT_EQ(mapped, 0);
}

TEST_F(LibraryHolder, FailedAcquireReleasesItsLeases) {
  ASSERT_EQ(acquire({name("a.w")}, loading()), STFS_GPU_OK) << stfs_gpu_last_error();
  release();

  EXPECT_NE(acquire({name("a.w"), name("nothing")}, loading()), STFS_GPU_OK);

  EXPECT_EQ(acquired_, nullptr);
  EXPECT_EQ(users("a.w"), kNoUsers);
}

// Runs `work` in a child process that can open only `more` files and cannot raise this limit.
// Returns the result of `work`.
std::string with_few_files(rlim_t more, const std::function<std::string()>& work) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const int lowest = ::dup(STDIN_FILENO);
    ::close(lowest);
    const rlimit limit{static_cast<rlim_t>(lowest) + more, static_cast<rlim_t>(lowest) + more};
    const std::string text =
        ::setrlimit(RLIMIT_NOFILE, &limit) == 0 ? work() : std::string("setrlimit");
    ::_exit(::write(ends[1], text.data(), text.size()) >= 0 ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text;
  char bytes[512];
  for (ssize_t n = 0; (n = ::read(ends[0], bytes, sizeof bytes)) > 0;)
    text.append(bytes, static_cast<std::size_t>(n));
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return text;
}

// Acquires the tensors over a new connection. Returns the first byte of each, or the error.
std::string first_bytes_or_error(const std::vector<std::string>& names) {
  std::vector<const char*> pointers;
  for (const std::string& name : names) pointers.push_back(name.c_str());
  stfs_gpu_connection* connection = nullptr;
  stfs_gpu_tensors* tensors = nullptr;
  if (stfs_gpu_connect(nullptr, 0, &connection) != STFS_GPU_OK ||
      stfs_gpu_acquire(connection, pointers.data(), pointers.size(), nullptr, &tensors) !=
          STFS_GPU_OK)
    return stfs_gpu_last_error();
  std::string first_bytes;
  for (std::size_t i = 0; i < stfs_gpu_count(tensors); ++i) {
    stfs_gpu_tensor_info info{};
    info.size = sizeof info;
    stfs_gpu_info(tensors, i, &info);
    first_bytes += *reinterpret_cast<const char*>(info.pointer);
  }
  return first_bytes;
}

TEST_F(LibraryHolder, AcquiresMoreSegmentsThanOpenFileLimitAndLeasesEndWithProcess) {
#ifdef STFS_SANITIZED
  GTEST_SKIP() << "the sanitizer needs descriptors";
#endif
  const std::vector<std::string> names = load_many(200);
  std::string expected;
  for (std::size_t i = 0; i < names.size(); ++i) expected += static_cast<char>(i + 1);

  EXPECT_EQ(with_few_files(kSegmentsAtOnce + 20, [&] { return first_bytes_or_error(names); }),
            expected);

  EXPECT_TRUE(eventually([&] { return nothing_is_leased(); }));
}

TEST_F(LibraryHolder, AcquireRaisesSoftDescriptorLimit) {
#ifdef STFS_SANITIZED
  GTEST_SKIP() << "the sanitizer needs descriptors to find an exception's type";
#endif
  ASSERT_EQ(acquire({name("a.w")}, loading()), STFS_GPU_OK) << stfs_gpu_last_error();
  // Two segments, and a limit that allows one descriptor.
  for (const char* tensor : {"a.b", "c"}) {
    ASSERT_EQ(run({STFS_GPU_BINARY, "load", "--device", "cpu", name(tensor)}).status, 0);
  }
  stfs_gpu_tensors* first = std::exchange(acquired_, nullptr);
  int status = STFS_GPU_USAGE;
  {
    const FewFiles one(1);
    status = acquire({name("a.b"), name("c")}, loading());
  }

  EXPECT_EQ(status, STFS_GPU_OK) << stfs_gpu_last_error();
  EXPECT_EQ(bytes_of(acquired_, 1), tensors_[2].bytes);
  release();
  std::swap(first, acquired_);
  EXPECT_EQ(users("a.w"), std::vector<pid_t>{::getpid()});
}

TEST_F(LibraryHolder, AcquireBeyondHardDescriptorLimitFailsWithoutLease) {
#ifdef STFS_SANITIZED
  GTEST_SKIP() << "the sanitizer needs descriptors to find an exception's type";
#endif
  const std::vector<std::string> names = load_many(60);

  const std::string error = with_few_files(30, [&] { return first_bytes_or_error(names); });

  EXPECT_PRED_FORMAT2(IsSubstring, "too many open files: this process may have ", error);
  EXPECT_TRUE(eventually([&] { return nothing_is_leased(); }));
}

TEST_F(LibraryHolder, FailedAcquireDoesNotLoadTensorTwice) {
#ifdef STFS_SANITIZED
  GTEST_SKIP() << "the sanitizer needs descriptors to find an exception's type";
#endif
  ASSERT_EQ(acquire({name("c")}, loading()), STFS_GPU_OK) << stfs_gpu_last_error();
  release();
  int status = STFS_GPU_OK;
  {
    const FewFiles none(0);
    status = acquire({name("c")}, loading());
  }

  EXPECT_EQ(status, STFS_GPU_DEVICE);
  EXPECT_PRED_FORMAT2(IsSubstring, "Too many open files", stfs_gpu_last_error());
  EXPECT_EQ(nlohmann::json::parse(run({STFS_GPU_BINARY, "ls", "--json"}).out).size(), 1U);
}

TEST_F(LibraryHolder, AcquireAfterHolderDiedUsesNextHolder) {
  ASSERT_EQ(acquire({name("a.w")}, loading()), STFS_GPU_OK) << stfs_gpu_last_error();
  stfs_gpu_tensors* kept = std::exchange(acquired_, nullptr);
  kill_holder();
  EXPECT_EQ(acquire({name("c")}, loading()), STFS_GPU_DEVICE);
  EXPECT_STRNE(stfs_gpu_last_error(), "");
  EXPECT_EQ(bytes_of(kept, 0), tensors_[0].bytes);
  start_holder();

  ASSERT_EQ(acquire({name("c")}, loading()), STFS_GPU_OK) << stfs_gpu_last_error();

  // The next holder again numbers segments and tensors from 1.
  EXPECT_EQ(bytes_of(acquired_, 0), tensors_[2].bytes);
  EXPECT_EQ(bytes_of(kept, 0), tensors_[0].bytes);
  stfs_gpu_release(kept);
  EXPECT_EQ(users("c"), std::vector<pid_t>{::getpid()}) << "the lease ended with its holder";
  release();
  EXPECT_EQ(users("c"), kNoUsers);
}

TEST_F(LibraryHolder, ReleaseEndsOnlyItsOwnLease) {
  ASSERT_EQ(acquire({name("a.w")}, loading()), STFS_GPU_OK) << stfs_gpu_last_error();
  stfs_gpu_tensors* evicted = std::exchange(acquired_, nullptr);
  ASSERT_EQ(run({STFS_GPU_BINARY, "evict", "--all"}).status, 0);
  ASSERT_EQ(acquire({name("a.w")}, loading()), STFS_GPU_OK) << stfs_gpu_last_error();

  stfs_gpu_release(evicted);

  EXPECT_EQ(users("a.w"), std::vector<pid_t>{::getpid()});
  release();
  EXPECT_EQ(users("a.w"), kNoUsers);
}

TEST_F(LibraryHolder, ReleaseNeedsNoMemory) {
  ASSERT_EQ(acquire({name("a.*"), name("c")}, loading()), STFS_GPU_OK) << stfs_gpu_last_error();
  DLManagedTensorVersioned* exported = nullptr;
  ASSERT_EQ(stfs_gpu_export(acquired_, 2, 0, &exported), STFS_GPU_OK);

  {
    const NoMemory none;
    release();
    exported->deleter(exported);
  }

  for (const Tensor& tensor : tensors_) EXPECT_EQ(users(tensor.name), kNoUsers) << tensor.name;
}

TEST_F(LibraryHolder, OneCallReleasesManyLeases) {
  std::vector<Tensor> many;
  for (int i = 0; i < 3000; ++i)
    many.push_back(random_tensor("t" + std::to_string(i), "U8", {1}, 1));
  const std::string file = dir_ / "many.safetensors";
  write_safetensors(file, many);
  ASSERT_EQ(acquire({file + "::t*"}, loading()), STFS_GPU_OK) << stfs_gpu_last_error();
  ASSERT_EQ(stfs_gpu_count(acquired_), many.size());

  release();

  EXPECT_TRUE(nothing_is_leased());
}

TEST_F(LibraryHolder, ChangedSourceIsAnotherTensor) {
  ASSERT_EQ(acquire({name("a.w")}, loading()), STFS_GPU_OK) << stfs_gpu_last_error();
  stfs_gpu_tensors* before = std::exchange(acquired_, nullptr);
  const Tensor changed = random_tensor("a.w", "F32", {4, 6}, 9);
  write_safetensors(dir_ / "new", {changed});
  std::filesystem::rename(dir_ / "new", source());

  ASSERT_EQ(acquire({name("a.w")}, loading()), STFS_GPU_OK) << stfs_gpu_last_error();

  EXPECT_EQ(bytes_of(before, 0), tensors_[0].bytes);
  EXPECT_EQ(bytes_of(acquired_, 0), changed.bytes);
  stfs_gpu_release(before);
}

TEST_F(LibraryHolder, AnotherMountAtSamePathIsAnotherSource) {
  const std::string mountpoint = dir_ / "mount";
  std::filesystem::create_directory(mountpoint);
  const Tensor other = random_tensor("a.w", "F32", {4, 6}, 9);
  write_safetensors(dir_ / "other.safetensors", {other});
  for (const auto& [path, bytes] :
       {std::pair{source(), tensors_[0].bytes},
        std::pair{std::string(dir_ / "other.safetensors"), other.bytes}}) {
    ASSERT_EQ(run({STFS_BINARY, path, mountpoint}).status, 0);
    const int status = acquire({mountpoint + "::a.w"}, loading());
    EXPECT_EQ(run({STFS_BINARY, "-u", mountpoint}).status, 0);
    ASSERT_EQ(status, STFS_GPU_OK) << stfs_gpu_last_error();
    EXPECT_EQ(bytes_of(acquired_, 0), bytes);
  }
}

TEST_F(LibraryHolder, FindsCheckpointInDirectoryAgain) {
  const std::filesystem::path directory = dir_ / "d";
  std::filesystem::create_directory(directory);
  std::filesystem::copy(source(), directory / "other.safetensors");
  ASSERT_EQ(acquire({directory.string() + "::a.w"}, loading()), STFS_GPU_OK);
  const Tensor changed = random_tensor("a.w", "F32", {4, 6}, 9);
  write_safetensors(directory / "model.safetensors", {changed});

  ASSERT_EQ(acquire({directory.string() + "::a.w"}, loading()), STFS_GPU_OK);

  EXPECT_EQ(bytes_of(acquired_, 0), changed.bytes);
}

TEST_F(LibraryHolder, ManyThreadsAcquireAndReleaseOnOneConnection) {
  std::atomic<int> failures = 0;
  std::vector<std::thread> threads;

  for (std::size_t i = 0; i < 6; ++i) {
    threads.emplace_back([this, i, &failures] {
      const stfs_gpu_acquire_options options = loading();
      const std::size_t index = i % tensors_.size();
      const std::string tensor = name(tensors_[index].name);
      const char* names[] = {tensor.c_str()};
      for (int round = 0; round < 20; ++round) {
        stfs_gpu_tensors* tensors = nullptr;
        if (stfs_gpu_acquire(connection_, names, 1, &options, &tensors) != STFS_GPU_OK ||
            bytes_of(tensors, 0) != tensors_[index].bytes)
          ++failures;
        stfs_gpu_release(tensors);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(failures, 0);
  for (const Tensor& tensor : tensors_) EXPECT_EQ(users(tensor.name), kNoUsers) << tensor.name;
}

TEST_F(LibraryHolder, StartsHolderIfNoneListens) {
  const std::string other = dir_ / "other";
  stfs_gpu_connection* connection = nullptr;

  ASSERT_EQ(stfs_gpu_connect(other.c_str(), STFS_GPU_START_HOLDER, &connection), STFS_GPU_OK)
      << stfs_gpu_last_error();

  const std::string found =
      run({STFS_GPU_BINARY, "doctor"}, {.environment = {"STFS_GPU_SOCKET=" + other}}).out;
  const std::string_view words = "runs as process ";
  const std::size_t at = found.find(words);
  ASSERT_NE(at, std::string::npos) << found;
  const pid_t holder = std::stoi(found.substr(at + words.size()));
  stfs_gpu_disconnect(connection);
  ::kill(holder, SIGTERM);
  EXPECT_TRUE(eventually([holder] { return ::kill(holder, 0) != 0; }));
}

}  // namespace
}  // namespace stfs::gpu::test
