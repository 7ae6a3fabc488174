// Tensors in device memory that layers have computed: deltas, adapters and edits.
#include "tests/archives/archive_file.h"
#include "tests/gpu/tool.h"
#include "tests/support/checkpoint_reader.h"
#include "tests/support/checkpoint_writer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace stfs::gpu::test {

using namespace stfs::test;

namespace {

using Arguments = std::vector<std::string>;

class GpuLayers : public GpuToolTest {
 protected:
  void SetUp() override {
    GpuToolTest::SetUp();
    write_safetensors(base(), tensors(1));
    write_safetensors(file("new.safetensors"), tensors(2));
    const Outcome written =
        run({STFS_INFO_BINARY, "delta", base(), file("new.safetensors"), "-o", delta()});
    ASSERT_EQ(written.status, 0) << written.err;
    std::filesystem::create_directories(file("adapter"));
    write_file(file("adapter") / "adapter_config.json",
               R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["l.w"]})");
    write_safetensors(file("adapter") / "adapter_model.safetensors",
                      {random_tensor("base_model.model.l.w.lora_A.weight", "BF16", {2, 32}, 7),
                       random_tensor("base_model.model.l.w.lora_B.weight", "BF16", {64, 2}, 8)});
    write_file(file("edits"),
               "cast other F16\nrename s/large/renamed/\nreshape l.w.weight [32,64]\n");
  }

  // Only "plain" is the same for every seed.
  static std::vector<stfs::test::Tensor> tensors(unsigned seed) {
    return {random_tensor("l.w.weight", "BF16", {64, 32}, seed),
            random_tensor("large", "BF16", {1 << 12, 512}, seed + 10),
            random_tensor("other", "BF16", {10, 6}, seed + 20),
            random_tensor("plain", "F32", {10}, 30)};
  }
  std::string base() const { return file("base.safetensors").string(); }
  std::string delta() const { return file("weight_v000001").string(); }
  std::string adapter() const { return file("adapter").string(); }
  std::string edits() const { return file("edits").string(); }

  static Arguments words(const char* verb, Arguments more) {
    more.insert(more.begin(), {verb, "--device", device()});
    return more;
  }
  json load(Arguments more) const {
    more.insert(more.begin(), "--verify");
    return gpu_json(words("load", more));
  }
  std::string got(const Arguments& more) const {
    std::string bytes;
    for (const json& row : gpu_json(words("get", more))) bytes += bytes_of(row);
    return bytes;
  }
};

TEST_F(GpuLayers, LoadedTensorsEqualMountedTensors) {
  const std::vector<Arguments> all{
      {"delta=" + delta()},
      {"lora=" + adapter()},
      {"edit=" + edits()},
      {"delta=" + delta(), "lora=0.5@" + adapter(), "edit=" + edits()}};
  for (const Arguments& layers : all) {
    Arguments mounting, naming;
    for (const std::string& layer : layers) {
      mounting.insert(mounting.end(), {"-o", layer});
      naming.push_back("--" + layer);
    }
    const Mounted mount({base()}, mounting);
    const json loaded = load({"--tile", "4096", mount.path()});
    EXPECT_EQ(loaded["tensors"].size(), 4u);
    naming.push_back(base());
    EXPECT_EQ(load(naming)["copied_bytes"], 0) << "a mount and its source share one copy";
    for (const auto& entry : std::filesystem::directory_iterator(mount.path())) {
      EXPECT_TRUE(got({entry.path()}) == read_file(entry.path())) << layers[0] << entry.path();
    }
  }
}

TEST_F(GpuLayers, SlicesAndConversionsApplyToLayeredTensors) {
  const Mounted mount({base()}, {"-o", "delta=" + delta(), "-o", "edit=" + edits()});
  const auto expect_loaded_as = [&](const Arguments& more, const std::string& shown) {
    load(more);
    EXPECT_TRUE(got(more) == read_file(mount / shown)) << shown;
  };
  expect_loaded_as({mount / ".stfs/slice/l.w.weight/3:5,::2"}, ".stfs/slice/l.w.weight/3:5,::2");
  expect_loaded_as({mount / ".stfs/f32/other"}, ".stfs/f32/other");
  expect_loaded_as({"--as", "f32", mount / "renamed"}, ".stfs/f32/renamed");
  expect_loaded_as({"--shard", "1/4@0", mount / "renamed"}, ".stfs/slice/renamed/1024:2048");
}

TEST_F(GpuLayers, EvictAcceptsLabelThatLsShows) {
  load({"--delta", delta(), base() + "::large"});
  const json rows = gpu_json({"ls"});
  ASSERT_EQ(rows.size(), 1u) << rows;
  const std::string label = base() + "::large computed as BF16 (patched by a delta)";
  EXPECT_EQ(rows[0]["label"], label);
  EXPECT_EQ(gpu({"evict", "--force", label}).out, "evicted 1 tensor\n");
}

TEST_F(GpuLayers, RefusesTensorWithWrongChecksum) {
  const std::filesystem::path shard = file("weight_v000001") / "model-00000-of-00001.safetensors";
  std::string bytes = read_file(shard);
  const std::string good = bytes;
  bytes[bytes.size() / 2] ^= 1;  // in the frame of "large", which is by far the longest
  write_file(shard, bytes);

  const Outcome failed = gpu(words("load", {"--delta", delta(), base()}));

  expect_one_line(failed, 3, "the checksum of tensor \"large\" does not match");
  EXPECT_TRUE(resident().empty());
  write_file(shard, good);
  EXPECT_EQ(load({"--delta", delta(), base()})["tensors"].size(), 4u);
}

TEST_F(GpuLayers, RewrittenDeltaIsAnotherTensor) {
  const auto first = load({"--delta", delta(), base() + "::other"});
  write_safetensors(file("new.safetensors"), tensors(3));
  std::filesystem::remove_all(delta());
  ASSERT_EQ(run({STFS_INFO_BINARY, "delta", base(), file("new.safetensors"), "-o", delta()}).status,
            0);

  EXPECT_EQ(load({"--delta", delta(), base() + "::other"})["copied_bytes"], 10 * 6 * 2);
  EXPECT_TRUE(got({"--delta", delta(), base() + "::other"}) == tensors(3)[2].bytes);
}

TEST_F(GpuLayers, LoadsCompressedAndTransposedArrays) {
  const std::string numbers = random_tensor("w", "F32", {4, 6}, 5).bytes;
  ZipFile archive;
  archive.add("stored.npy", npy_file("<f4", "(4, 6)", numbers));
  archive.add("columns.npy", npy_file("<f4", "(4, 6)", numbers, true));
  archive.add("deflated.npy", npy_file("<f4", "(4, 6)", numbers));
  archive.members.back().is_deflated = true;
  write_file(file("m.npz"), archive.bytes());
  const std::string path = file("m.npz").string();
  const Mounted mount({path});

  EXPECT_EQ(load({path})["tensors"].size(), 3u);
  EXPECT_EQ(load({mount.path()})["copied_bytes"], 0);
  for (const char* name : {"stored", "columns", "deflated"}) {
    EXPECT_TRUE(got({path + "::" + name}) == read_file(mount / name)) << name;
  }
  EXPECT_TRUE(read_file(mount / "deflated") == numbers);
  const std::string part = ".stfs/slice/columns/0:2,::2";
  load({mount / part});
  EXPECT_TRUE(got({mount / part}) == read_file(mount / part));
}

}  // namespace
}  // namespace stfs::gpu::test
