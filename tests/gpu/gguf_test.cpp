// Tensors of GGUF files in device memory: their stored blocks, or their values.
#include "tests/gguf/gguf_file.h"
#include "tests/gpu/tool.h"
#include "tests/support/checkpoint_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

namespace stfs::gpu::test {

using namespace stfs::test;

namespace {

class GpuGguf : public GpuToolTest {
 protected:
  // Writes a file with a 4 by 512 matrix in Q6_K, one in Q8_0, and a vector in F16.
  std::string source() const {
    GgufFile gguf;
    gguf.key("general.architecture", "llama");
    for (const DType dtype : {DType::kQ6_K, DType::kQ8_0}) {
      gguf.tensor(dtype_name(dtype), {512, 4}, type_info(dtype).gguf,
                  RandomBytes(7).bytes(*type_info(dtype).bytes_of(2048)));
    }
    gguf.tensor("F16", {16}, type_info(DType::kF16).gguf, RandomBytes(8).bytes(32));
    write_file(file("m.gguf"), gguf.bytes());
    return file("m.gguf");
  }

  Outcome load(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"load", "--device", device(), "--verify"});
    Outcome outcome = gpu(arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome;
  }
  std::string got(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"get", "--device", device()});
    std::string bytes;
    for (const json& row : gpu_json(arguments)) bytes += bytes_of(row);
    return bytes;
  }
};

TEST_F(GpuGguf, LoadsStoredBlocksUnchanged) {
  const std::string path = source();
  const Mounted mount({path});

  EXPECT_EQ(load({path}).err, "");

  for (const char* name : {"Q6_K", "Q8_0", "F16"}) {
    EXPECT_TRUE(got({path + "::" + name}) == read_file(mount / name)) << name;
  }
  EXPECT_EQ(gpu_json({"get", "--device", device(), path + "::Q6_K"})[0]["dtype"], "Q6_K");
}

TEST_F(GpuGguf, ConvertedBlocksEqualMountedValues) {
  const std::string path = source();
  const Mounted mount({path});

  load({"--as", "f32", "--tile", "4096", path});

  for (const char* name : {"Q6_K", "Q8_0", "F16"}) {
    EXPECT_TRUE(got({"--as", "f32", path + "::" + name}) ==
                read_file(mount / (std::string(".stfs/f32/") + name)))
        << name;
  }
  load({"--as", "bf16", path});
  load({"--as", "f16", path});
  EXPECT_EQ(got({"--as", "bf16", path + "::Q6_K"}).size(), 2048U * 2);
  EXPECT_EQ(got({"--as", "f16", path + "::Q8_0"}).size(), 2048U * 2);
}

TEST_F(GpuGguf, LoadsTensorsInSplitFileByMountedPath) {
  // The names of blobs, as in the Hub's cache, do not contain the number of the part.
  std::filesystem::create_directories(file("blobs"));
  for (int i = 0; i < 2; ++i) {
    GgufFile part;
    part.key("split.no", ValueType::kU16, little(static_cast<std::uint16_t>(i)));
    part.key("split.count", ValueType::kU16, little<std::uint16_t>(2));
    part.key("split.tensors.count", ValueType::kI32, little<std::int32_t>(2));
    if (i == 0) {
      part.key("comfy.gguf.orig_shape.t1", ValueType::kArray,
               gguf_array(ValueType::kI32, 5,
                          little(2) + little(2) + little(2) + little(2) + little(2)));
    }
    const std::string number = std::to_string(i);
    part.tensor("t" + number, {32}, 0, RandomBytes(static_cast<unsigned>(i)).bytes(128));
    write_file(file("blobs/" + number), part.bytes());
    std::filesystem::create_symlink(file("blobs/" + number),
                                    file("m-0000" + std::to_string(i + 1) + "-of-00002.gguf"));
  }
  const Mounted mount({file("m-00001-of-00002.gguf")});

  for (const char* path : {"t0", "t1", ".stfs/f32/t1", ".stfs/tree/t1"}) load({mount / path});
  load({mount / ".stfs/slice/t1/1,...,0"});

  EXPECT_TRUE(got({mount / "t1"}) == read_file(mount / "t1"));
  EXPECT_EQ(gpu_json({"get", "--device", device(), mount / "t1"})[0]["shape"],
            json::parse("[2,2,2,2,2]"));
}

TEST_F(GpuGguf, ReportsConversionOnHost) {
  const Outcome outcome = load({"--as", "f16", source() + "::*"});

  const bool is_host = device() == "cpu";
  EXPECT_EQ(outcome.err.find("converted on the host, which is slower: ") == std::string::npos,
            is_host)
      << outcome.err;
}

TEST_F(GpuGguf, RefusesShardsThatCutStoredBlocks) {
  const std::string path = source();
  const Mounted mount({path});

  load({"--shard", "1/2@1", path + "::Q6_K"});
  EXPECT_TRUE(got({"--shard", "1/2@1", path + "::Q6_K"}) ==
              read_file(mount / ".stfs/slice/Q6_K/:,256:"));
  load({"--shard", "3/4@0", "--as", "f32", path + "::Q6_K"});
  EXPECT_TRUE(got({"--shard", "3/4@0", "--as", "f32", path + "::Q6_K"}) ==
              read_file(mount / ".stfs/f32-slice/Q6_K/3:"));
  load({"--shard", "3/4@1", path + "::Q8_0"});
  // Values may be cut anywhere.
  const std::filesystem::path part = mount / ".stfs/f32-slice/Q6_K/1:,3:300:7";
  load({part});
  EXPECT_TRUE(got({part}) == read_file(part));
  load({"--shard", "3/4@1", "--as", "f32", path + "::Q6_K"});
  EXPECT_TRUE(got({"--shard", "3/4@1", "--as", "f32", path + "::Q6_K"}) ==
              read_file(mount / ".stfs/f32-slice/Q6_K/:,384:"));
  for (const std::string& name : {path + "::Q6_K", path}) {
    expect_one_line(gpu({"load", "--device", device(), "--shard", "3/4@1", name}), 2,
                    "Q6_K lies in blocks of 256 elements");
  }
}

}  // namespace
}  // namespace stfs::gpu::test
