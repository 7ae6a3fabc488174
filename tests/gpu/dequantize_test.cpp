// Dequantised weights in device memory: --dequantize, and a mount with -o dequantize.
#include "tests/gpu/tool.h"
#include "tests/support/checkpoint_reader.h"
#include "tests/support/checkpoint_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace stfs::gpu::test {

using namespace stfs::test;

namespace {

using Arguments = std::vector<std::string>;

class GpuDequantize : public GpuToolTest {
 protected:
  // Writes a directory with FP8 weights in blocks of 4 by 4. The scales are in a separate file.
  std::string model(unsigned seed = 1) const {
    std::filesystem::create_directories(file("model"));
    write_safetensors(file("model") / "model-00001-of-00002.safetensors",
                      {random_tensor("layers.0.w", "F8_E4M3", {10, 6}, seed),
                       random_tensor("layers.1.w", "F8_E4M3", {8, 12}, seed + 1),
                       random_tensor("norm", "BF16", {6}, seed + 2)});
    write_scales(seed + 3);
    write_file(file("model") / "model.safetensors.index.json",
               R"({"weight_map": {"layers.0.w": "model-00001-of-00002.safetensors",
                   "layers.1.w": "model-00001-of-00002.safetensors",
                   "norm": "model-00001-of-00002.safetensors",
                   "layers.0.w_scale_inv": "model-00002-of-00002.safetensors",
                   "layers.1.w_scale_inv": "model-00002-of-00002.safetensors"}})");
    write_file(file("model") / "config.json",
               R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [4, 4]}})");
    return file("model").string();
  }
  std::filesystem::path scales() const {
    return file("model") / "model-00002-of-00002.safetensors";
  }
  void write_scales(unsigned seed) const {
    write_safetensors(scales(), {random_tensor("layers.0.w_scale_inv", "F32", {3, 2}, seed),
                                 random_tensor("layers.1.w_scale_inv", "F32", {2, 3}, seed + 1)});
  }

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

TEST_F(GpuDequantize, ValuesEqualMountedValues) {
  const std::string source = model();
  for (const std::string type : {"bf16", "f16", "f32"}) {
    const Mounted mount({source}, {"-o", "dequantize=" + type});

    const json loaded = load({"--tile", "4096", "--dequantize", type, source});

    EXPECT_EQ(loaded["tensors"].size(), 3u);
    for (const char* name : {"layers.0.w", "layers.1.w", "norm"}) {
      EXPECT_TRUE(got({"--dequantize", type, source + "::" + name}) == read_file(mount / name))
          << type << " " << name;
    }
  }
}

TEST_F(GpuDequantize, MountAndSourceShareOneDeviceCopy) {
  const std::string source = model();
  const Mounted mount({source}, {"-o", "dequantize=bf16"});

  EXPECT_EQ(load({mount / "layers.0.w"})["copied_bytes"], 10 * 6 * 2);
  EXPECT_EQ(load({"--dequantize", "bf16", source + "::layers.0.w"})["copied_bytes"], 0);
  EXPECT_EQ(load({mount.path()})["copied_bytes"], 8 * 12 * 2 + 6 * 2);
  EXPECT_EQ(load({"--dequantize", "bf16", source})["copied_bytes"], 0);
  EXPECT_EQ(load({"--dequantize", "bf16", mount.path()})["copied_bytes"], 0);
  EXPECT_EQ(load({"--dequantize", "f16", source + "::layers.0.w"})["copied_bytes"], 10 * 6 * 2);
  EXPECT_EQ(load({source + "::layers.0.w"})["copied_bytes"], 10 * 6) << "the stored bytes";
  EXPECT_EQ(load({source + "::norm"})["copied_bytes"], 0) << "norm is not quantised";
}

TEST_F(GpuDequantize, PlainMountIsDequantizedLikeItsSource) {
  const std::string source = model();
  const Mounted mount({source});
  const Mounted values({source}, {"-o", "dequantize=f32"});

  load({"--dequantize", "f32", mount.path()});

  EXPECT_TRUE(got({"--dequantize", "f32", mount / "layers.1.w"}) ==
              read_file(values / "layers.1.w"));
  EXPECT_EQ(load({values.path()})["copied_bytes"], 0);
  const json many = load({"--dequantize", "f32", mount / "layers.*"});
  EXPECT_EQ(many["tensors"].size(), 2u) << "a dequantised checkpoint shows no scales";
}

TEST_F(GpuDequantize, SlicesAndConversionsApplyToValues) {
  const std::string source = model();
  const Mounted mount({source}, {"-o", "dequantize=bf16"});
  const std::string tensor = source + "::layers.1.w";
  for (const char* path : {".stfs/slice/layers.1.w/1:,::5", ".stfs/f32/layers.1.w",
                           ".stfs/f32-slice/layers.1.w/:,3", ".stfs/tree/layers/1/w"}) {
    load({mount / path});
    EXPECT_TRUE(got({mount / path}) == read_file(mount / path)) << path;
  }
  const auto values = [&](Arguments more) {
    more.insert(more.begin(), {"--dequantize", "bf16"});
    more.push_back(tensor);
    load(more);
    return got(more);
  };

  EXPECT_TRUE(values({"--as", "f32"}) == read_file(mount / ".stfs/f32/layers.1.w"));
  EXPECT_TRUE(values({"--shard", "2/3@1"}) == read_file(mount / ".stfs/slice/layers.1.w/:,8:12"));
  EXPECT_TRUE(values({"--shard", "1/2@0", "--as", "f32"}) ==
              read_file(mount / ".stfs/f32-slice/layers.1.w/4:"));
  expect_one_line(gpu(words("load", {"--dequantize", "bf16", "--shard", "0/5@0", tensor})), 2,
                  "cannot be divided by 5");
}

TEST_F(GpuDequantize, EvictAcceptsLabelThatLsShows) {
  const std::string source = model();
  const std::string label =
      scales().parent_path() / "model-00001-of-00002.safetensors::layers.0.w computed as BF16 ";
  load({"--dequantize", "bf16", source + "::layers.0.w"});
  load({source + "::layers.0.w"});

  const json rows = gpu_json({"ls"});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1]["label"], label + "(FP8 with scales)");
  EXPECT_EQ(rows[1]["dtype"], "BF16");
  EXPECT_EQ(gpu({"evict", label + "(FP8 with scales)"}).out, "evicted 1 tensor\n");
  EXPECT_EQ(resident(), Arguments{"layers.0.w"});
  load({"--dequantize", "bf16", source + "::layers.0.w"});
  EXPECT_EQ(gpu({"pin", "--dequantize", "bf16", source}).out, "pinned 1 tensor\n");
  EXPECT_EQ(gpu({"evict", "--force", "--dequantize=bf16", source}).out, "evicted 1 tensor\n");
  EXPECT_EQ(resident(), Arguments{"layers.0.w"});
}

TEST_F(GpuDequantize, PlanAndRunAcceptDequantize) {
  const std::string source = model();
  const json plan = gpu_json(words("plan", {"--dequantize", "f16", source + "::layers.0.w"}));
  EXPECT_EQ(plan["copy_bytes"], 10 * 6 * 2);
  EXPECT_EQ(plan["tensors"][0]["dtype"], "F16");

  const Outcome run = gpu(words(
      "run", {"--dequantize", "f16", source, "--", "/bin/sh", "-c", "cat \"$STFS_GPU_TENSORS\""}));

  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_NE(run.out.find("layers.0.w computed as F16 (FP8 with scales)"), std::string::npos)
      << run.out;
}

// Such a directory may lack the scales of its weights.
TEST_F(GpuDequantize, RefusesDirectoryInPlainMountAndNamesMount) {
  std::filesystem::create_directories(file("q"));
  write_safetensors(file("q/m.safetensors"),
                    {random_tensor("l/w", "F8_E4M3", {4, 4}), random_tensor("x", "F32", {3}),
                     random_tensor("l/w_scale_inv", "F32", {1, 1})});
  write_file(file("q/config.json"),
             R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [4, 4]}})");
  const Mounted plain({file("q").string()});
  const Mounted values({file("q").string()}, {"-o", "dequantize=bf16"});
  const std::string rule = "name the mount, " + plain.path().string();

  expect_one_line(gpu(words("load", {"--dequantize", "bf16", plain / "l"})), 2, rule);
  expect_one_line(gpu(words("load", {"--dequantize", "bf16", (plain / "l").string() + "::w"})), 2,
                  rule);
  load({"--dequantize", "bf16", plain.path().string() + "::l/*"});

  EXPECT_EQ(load({values / "l"})["copied_bytes"], 0);
  EXPECT_EQ(load({"--dequantize", "bf16", plain / "l/w"})["copied_bytes"], 0);
  EXPECT_EQ(load({"--dequantize", "bf16", plain / ".stfs/tree/l"})["tensors"].size(), 1u);
}

TEST_F(GpuDequantize, ReportsInvalidRequestsInOneLine) {
  const std::string source = model();
  const Mounted plain({source});
  const Mounted values({source}, {"-o", "dequantize=bf16"});
  const auto refuses = [&](const std::string& type, const std::string& name,
                           const std::string& part) {
    expect_one_line(gpu(words("load", {"--dequantize", type, name})), 2, part);
  };
  refuses("bf16", source + "::layers.0.w_scale_inv", "not in the checkpoint");
  refuses("bf16", plain / "layers.0.w_scale_inv", "other tensors are computed from it");
  refuses("bf16", plain / ".stfs/slice/layers.0.w/0", "a part of the stored tensor");
  refuses("f16", values.path(), "mounted with -o dequantize=bf16");
  refuses("f16", values / "layers.0.w", "mounted with -o dequantize=bf16");
  refuses("f64", source, "f64");
  write_file(file("model") / "config.json", R"({"quantization_config": {"quant_method": "eetq"}})");
  expect_one_line(gpu(words("load", {"--dequantize", "bf16", source})), 1, "");
}

TEST_F(GpuDequantize, RewrittenScaleIsAnotherTensor) {
  const std::string source = model();
  const Mounted before({source}, {"-o", "dequantize=f32"});
  load({before / "layers.0.w"});
  const std::string old = got({before / "layers.0.w"});

  write_scales(77);

  expect_one_line(gpu(words("load", {before / "layers.0.w"})), 3, "changed since it was mounted");
  EXPECT_EQ(load({"--dequantize", "f32", source + "::layers.0.w"})["copied_bytes"], 10 * 6 * 4);
  const Mounted after({source}, {"-o", "dequantize=f32"});
  const std::string now = got({after / "layers.0.w"});
  EXPECT_TRUE(now == read_file(after / "layers.0.w"));
  EXPECT_FALSE(now == old);
}

TEST_F(GpuDequantize, RewrittenConfigIsAnotherTensor) {
  const std::string source = model();
  load({"--dequantize", "f32", source + "::layers.0.w"});

  write_file(file("model") / "config.json",
             R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [4, 5]}})");
  const Mounted mount({source}, {"-o", "dequantize=f32"});
  EXPECT_EQ(load({mount / "layers.0.w"})["copied_bytes"], 10 * 6 * 4);

  EXPECT_TRUE(got({mount / "layers.0.w"}) == read_file(mount / "layers.0.w"));
}

TEST_F(GpuDequantize, SourceRewrittenInMidLoadPublishesNothing) {
  MidLoad load = mid_load("F8_E4M3", {"--dequantize", "bf16"});
  const UniqueFd source(::open(large().c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_EQ(::pwrite(source.get(), "x", 1, 200'000), 1);
  load.signal_copier(SIGCONT);

  expect_one_line(load.client->wait(), 3, "changed");
  EXPECT_EQ(resident(), Arguments{});
}

}  // namespace
}  // namespace stfs::gpu::test
