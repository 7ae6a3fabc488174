// stfs-gpu and the leases of stfs_gpu.h with checkpoints on a web server, in host memory. A holder
// starts before the first load, so every option has to be sent to it.
#include "core/base/error.h"
#include "tests/gpu/tool.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/http_server.h"
#include "tools/gpu/library/tensor_leases.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace stfs::gpu::test {
namespace {

bool is_conditional(const WebRequest& request) { return !request.header("if-none-match").empty(); }
// Returns true for a request of bytes after the first block, which holds the header.
bool is_for_tensors(const WebRequest& request) {
  return !request.header("range").empty() && !request.header("range").starts_with("bytes=0-");
}

class RemoteGpu : public GpuToolTest {
 protected:
  void SetUp() override {
    GpuToolTest::SetUp();
    ::setenv("STFS_CACHE", cache().c_str(), 1);
    write(1);
    start_holder({});
  }
  void TearDown() override {
    GpuToolTest::TearDown();
    ::unsetenv("STFS_CACHE");
  }

  std::string cache() const { return file("cache").string(); }
  std::string url(const std::string& name = "") const {
    return server_.url("/m.safetensors") + (name.empty() ? "" : "::" + name);
  }
  std::string local(const std::string& name = "") const {
    return file("m.safetensors").string() + (name.empty() ? "" : "::" + name);
  }

  // Makes another version of the object, which has a header and slightly more than 1 MiB of data.
  void write(std::uint64_t seed) {
    tensors_ = {random_tensor("layers.0.w", "BF16", {512, 1024}, seed),
                random_tensor("b", "F32", {256, 4}, seed + 1)};
    write_safetensors(local(), tensors_);
    const std::lock_guard lock(mutex_);
    objects_["/m.safetensors"] = {.bytes = read_file(local()),
                                  .etag = "\"v" + std::to_string(seed) + "\""};
  }
  WebAnswer answer(const WebRequest& request) {
    const std::lock_guard lock(mutex_);
    return answer_object(request, objects_);
  }
  // From now on, requests that fulfil `is_held` get the head of a response and no bytes.
  void hold_back(std::function<bool(const WebRequest&)> is_held) {
    server_.set([this, is_held](const WebRequest& request) {
      WebAnswer given = answer(request);
      if (!is_held(request)) return given;
      given.cut_after = 0;
      given.stall = true;
      return given;
    });
  }
  std::size_t count(const std::function<bool(const WebRequest&)>& is_counted) const {
    const std::vector<WebRequest> all = server_.requests();
    return static_cast<std::size_t>(std::ranges::count_if(all, is_counted));
  }

  Outcome load(std::vector<std::string> words) const {
    words.insert(words.begin(), {"load", "-d", "cpu"});
    return gpu(words);
  }
  std::string bytes_on_device(std::vector<std::string> words) const {
    words.insert(words.begin(), {"get", "-d", "cpu"});
    const json rows = gpu_json(words);
    return rows.size() == 1 ? bytes_of(rows.front()) : "";
  }
  void expect_device_is_free() const {
    EXPECT_EQ(load({local("b")}).status, 0);
    EXPECT_EQ(bytes_on_device({local("b")}), tensors_[1].bytes);
  }

  std::vector<stfs::test::Tensor> tensors_;
  std::mutex mutex_;
  std::map<std::string, WebObject> objects_;
  HttpServer server_{[this](const WebRequest& request) { return answer(request); }};
};

TEST_F(RemoteGpu, LoadsCheckpointAndFetchesEachBlockOnce) {
  const json loaded = gpu_json({"load", "-d", "cpu", "--verify", url()});

  EXPECT_EQ(loaded["tensors"].size(), 2U);
  EXPECT_EQ(loaded["verified"], true);
  for (const auto& tensor : tensors_) {
    EXPECT_TRUE(bytes_on_device({url(tensor.name)}) == tensor.bytes) << tensor.name;
  }
  std::set<std::string> ranges;
  for (const WebRequest& request : server_.requests()) {
    if (is_conditional(request)) continue;
    EXPECT_TRUE(ranges.insert(request.header("range")).second) << request.header("range");
  }
  EXPECT_EQ(gpu_json({"load", "-d", "cpu", url()})["copied_bytes"], 0);
}

TEST_F(RemoteGpu, ComputesValuesOfQuantizedWeights) {
  const std::string config =
      R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})";
  std::filesystem::create_directories(file("q"));
  const std::string path = file("q/m.safetensors").string();
  write_safetensors(path, {random_tensor("w", "F8_E4M3", {256, 1024}, 1),
                           random_tensor("w_scale_inv", "F32", {2, 8}, 2)});
  write_file(file("q/config.json"), config);
  {
    const std::lock_guard lock(mutex_);
    objects_["/q/m.safetensors"] = {.bytes = read_file(path), .etag = "\"q\""};
    objects_["/q/config.json"] = {.bytes = config, .etag = "\"c\""};
  }
  const std::string remote = server_.url("/q/m.safetensors");
  const std::vector<std::string> words{"--verify", "--tile", "65536", "--dequantize", "bf16"};
  const auto with = [&](std::vector<std::string> more, const std::string& name) {
    more.push_back(name);
    return more;
  };

  ASSERT_EQ(load(with(words, remote)).status, 0);
  ASSERT_EQ(load(with(words, path)).status, 0);

  const std::string values = bytes_on_device({"--dequantize", "bf16", remote + "::w"});
  EXPECT_EQ(values.size(), 256U * 1024 * 2);
  EXPECT_TRUE(values == bytes_on_device({"--dequantize", "bf16", path + "::w"}));
  const Mounted mount({remote}, {"-o", "dequantize=bf16,cache_dir=" + cache()});
  EXPECT_EQ(gpu_json({"load", "-d", "cpu", mount / "w"})["copied_bytes"], 0);
}

TEST_F(RemoteGpu, PartsTypesAndGlobsEqualLocalFile) {
  const std::vector<std::vector<std::string>> requests{{"", "layers.0.w"},
                                                       {"", "layers.*"},
                                                       {"", "b", "--shard", "1/2@0"},
                                                       {"", "layers.0.w", "--shard", "3/4@1"},
                                                       {"", "layers.0.w", "--as", "f32"},
                                                       {"", "b", "--as", "f16"}};
  for (const auto& request : requests) {
    std::vector<std::string> far(request.begin() + 1, request.end()), near = far;
    far[0] = url(request[1]);
    near[0] = local(request[1]);
    EXPECT_EQ(load(far).status, 0) << load(far).err;
    EXPECT_EQ(load(near).status, 0);
    EXPECT_TRUE(bytes_on_device(far) == bytes_on_device(near)) << request[1];
    EXPECT_NE(bytes_on_device(far), "");
  }
}

TEST_F(RemoteGpu, MountAndUrlShareDeviceMemoryAndCache) {
  const Mounted mount({url()}, {"-o", "cache_dir=" + cache()});
  EXPECT_EQ(read_file(mount / "layers.0.w"), tensors_[0].bytes);
  EXPECT_EQ(read_file(mount / "b"), tensors_[1].bytes);
  server_.forget_requests();

  EXPECT_EQ(load({mount.path().string()}).status, 0);
  const json again = gpu_json({"load", "-d", "cpu", url()});

  EXPECT_EQ(again["copied_bytes"], 0) << "the mount and the URL have the same version";
  EXPECT_EQ(count(is_conditional), server_.requests().size());
  EXPECT_EQ(load({(mount / "layers.0.w").string(), (mount / ".stfs/slice/b/3:7").string(),
                  (mount / ".stfs/f32/layers.0.w").string()})
                .status,
            0);
  EXPECT_EQ(bytes_on_device({(mount / ".stfs/slice/b/3:7").string()}),
            tensors_[1].bytes.substr(3 * 16, 4 * 16));
}

TEST_F(RemoteGpu, RejectsObjectChangedSinceMount) {
  const Mounted mount({url()}, {"-o", "cache_dir=" + cache()});
  write(7);

  expect_one_line(load({(mount / "b").string()}), 3, "mount it again");
  expect_one_line(load({mount.path().string()}), 3, "mount");
  EXPECT_EQ(load({url("b")}).status, 0);
  EXPECT_EQ(bytes_on_device({url("b")}), tensors_[1].bytes);
}

TEST_F(RemoteGpu, RejectsObjectChangedDuringLoad) {
  server_.set([this](const WebRequest& request) {
    if (is_for_tensors(request)) {
      const std::lock_guard lock(mutex_);
      objects_["/m.safetensors"].etag = "\"other\"";
    }
    return answer(request);
  });

  expect_one_line(load({url()}), 3, "it has changed on its server");
  EXPECT_TRUE(resident().empty());
}

TEST_F(RemoteGpu, UnreachableSourceIsOneLine) {
  expect_one_line(load({"http://127.0.0.1:1/m.safetensors"}), 3,
                  "http://127.0.0.1:1/m.safetensors: ");
  expect_one_line(load({"http://[::1]:1/m.safetensors::b"}), 3, "http://[::1]:1/m.safetensors: ");
  expect_one_line(load({server_.url("/none.safetensors")}), 3, "No such object");
  expect_one_line(load({url("none")}), 2, "none");
  expect_one_line(load({"ftp://host/m.safetensors"}), 2, "unknown URL scheme");
  expect_one_line(load({"http://192.0.2.1/m.safetensors"}), 3, "insecure_http");
}

TEST_F(RemoteGpu, SilentServerFailsLoadAtDeadlineWithReason) {
  hold_back(is_for_tensors);
  expect_one_line(load({url(), "--timeout", "1"}), 3, "no bytes within 1 s");
  hold_back([](const WebRequest&) { return true; });
  expect_one_line(load({url(), "--timeout", "1"}), 3, url() + ": ");
  EXPECT_TRUE(resident().empty());

  server_.set([this](const WebRequest& request) { return answer(request); });
  EXPECT_EQ(load({url()}).status, 0);
}

TEST_F(RemoteGpu, ErrorNamesFailedSource) {
  objects_["/n.safetensors"] = objects_["/m.safetensors"];
  hold_back([](const WebRequest& request) {
    return is_for_tensors(request) && request.target == "/n.safetensors";
  });
  const std::string other = server_.url("/n.safetensors");

  expect_one_line(load({url("b"), other + "::b", "--timeout", "1"}), 3,
                  other + ": no bytes within 1 s");
}

TEST_F(RemoteGpu, OfflineUsesCacheAndSendsNoRequest) {
  EXPECT_EQ(load({url("b")}).status, 0);
  EXPECT_EQ(gpu({"evict", "--all"}).status, 0);
  server_.forget_requests();

  EXPECT_EQ(load({url("b"), "--offline"}).status, 0);
  EXPECT_EQ(bytes_on_device({url("b"), "--offline"}), tensors_[1].bytes);
  EXPECT_EQ(run({STFS_GPU_BINARY, "load", "-d", "cpu", url("b"), "--as", "f16"},
                {.environment = {"HF_HUB_OFFLINE=1"}})
                .status,
            0);
  expect_one_line(load({server_.url("/never.safetensors"), "--offline"}), 3, "never fetched");
  expect_one_line(load({url("layers.0.w"), "--offline"}), 3, "never fetched");
  EXPECT_EQ(server_.requests().size(), 0U);
}

TEST_F(RemoteGpu, OptionsReachRunningHolder) {
  const std::string other = file("other").string();
  EXPECT_EQ(load({url(), "--cache-dir", other, "--connections", "1"}).status, 0);
  EXPECT_TRUE(std::filesystem::exists(other + "/v1"));
  EXPECT_FALSE(std::filesystem::exists(cache()));
  server_.forget_requests();

  EXPECT_EQ(gpu({"evict", "--all"}).status, 0);
  EXPECT_EQ(load({url(), "--cache-dir", other, "--offline"}).status, 0);
  EXPECT_EQ(server_.requests().size(), 0U);
  EXPECT_EQ(run({STFS_GPU_BINARY, "run", "-d", "cpu", "--cache-dir", other, "--offline", url("b"),
                 "--", "true"})
                .status,
            0);
  expect_one_line(load({url(), "--timeout", "0"}), 2, "--timeout");
}

TEST_F(RemoteGpu, ConcurrentLoadsFetchEachBlockOnce) {
  std::vector<std::unique_ptr<Process>> loads;
  for (int i = 0; i < 2; ++i) loads.push_back(start({"load", "-d", "cpu", url()}));
  for (const auto& process : loads) EXPECT_EQ(process->wait().status, 0) << process->err();

  EXPECT_EQ(resident().size(), 2U);
  std::set<std::string> ranges;
  for (const WebRequest& request : server_.requests()) {
    if (!is_for_tensors(request)) continue;
    EXPECT_TRUE(ranges.insert(request.header("range")).second) << request.header("range");
  }
}

TEST_F(RemoteGpu, InterruptDuringFetchFreesDevice) {
  hold_back(is_for_tensors);
  const auto waiting = start({"load", "-d", "cpu", "--timeout", "3600", url()});
  EXPECT_TRUE(eventually([&] { return count(is_for_tensors) > 0; })) << waiting->err();

  waiting->signal(SIGINT);

  EXPECT_EQ(waiting->wait().status, 128 + SIGINT);
  expect_device_is_free();
}

TEST_F(RemoteGpu, InterruptWhileCopierOpensSourceFreesDevice) {
  hold_back(is_conditional);
  const auto waiting = start({"load", "-d", "cpu", "--timeout", "3600", url()});
  EXPECT_TRUE(eventually([&] { return count(is_conditional) > 0; })) << waiting->err();

  waiting->signal(SIGINT);

  EXPECT_EQ(waiting->wait().status, 128 + SIGINT);
  expect_device_is_free();
}

TEST_F(RemoteGpu, EvictsTensorByLabelWithoutRequest) {
  EXPECT_EQ(load({url("b")}).status, 0);
  hold_back([](const WebRequest&) { return true; });
  server_.forget_requests();

  EXPECT_EQ(gpu({"pin", url("b")}).status, 0);
  EXPECT_EQ(gpu({"evict", "--force", url("b")}).status, 0);
  EXPECT_EQ(server_.requests().size(), 0U);
  EXPECT_TRUE(resident().empty());
}

TEST_F(RemoteGpu, RejectsUrlWithSecretWithoutShowingIt) {
  for (const std::string& name : {url() + "?signature=hidden", url() + "?signature=hidden::b",
                                  std::string("http://user:hidden@127.0.0.1:1/m.safetensors")}) {
    const Outcome refused = load({name});
    expect_one_line(refused, 2, "may contain a secret");
    EXPECT_EQ(refused.err.find("hidden"), std::string::npos) << refused.err;
  }
  EXPECT_EQ(server_.requests().size(), 0U);
}

TEST_F(RemoteGpu, RejectsMountOfUrlWithQuery) {
  const Mounted mount({url() + "?signature=hidden"}, {"-o", "cache_dir=" + cache()});

  const Outcome refused = load({(mount / "b").string()});

  expect_one_line(refused, 3, "a URL without a query");
  EXPECT_EQ(refused.err.find("hidden"), std::string::npos) << refused.err;
}

TEST_F(RemoteGpu, ErrorSaysToRestartHolderWithoutToken) {
  // The server answers the client's first request and refuses the copier's request.
  server_.set([this](const WebRequest& request) {
    return is_conditional(request) ? WebAnswer{.status = 401} : answer(request);
  });

  expect_one_line(load({url()}), 3, "(kill " + std::to_string(holder()) + "), and load again");
}

TEST_F(RemoteGpu, AcquiresNextVersionOfUrlAfterFailedAcquire) {
  const auto leases = TensorLeases::connect("", "");
  AcquireRequest request;
  request.names = {url("b")};
  request.device = "cpu";
  request.load_if_missing = true;
  const auto bytes = [&] {
    const auto tensors = leases->acquire(request);
    return std::string(reinterpret_cast<const char*>(tensors.front()->address()),
                       tensors.front()->bytes);
  };
  EXPECT_EQ(bytes(), tensors_[1].bytes);
  EXPECT_EQ(gpu({"evict", "--all"}).status, 0);
  write(9);

  // The process notices the change when this load fails.
  try {
    bytes();
    FAIL() << "loaded another version than the named one";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnreadable);
    EXPECT_NE(std::string(error.what()).find("load it again"), std::string::npos) << error.what();
  }
  EXPECT_EQ(bytes(), tensors_[1].bytes);
}

}  // namespace
}  // namespace stfs::gpu::test
