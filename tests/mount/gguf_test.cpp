// GGUF files in a mount: the corpus file with a tensor of each type, and a real model.
#include "tests/support/mounted.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

class GgufMount : public MountTest {};

std::filesystem::path all_types() {
  return test_data("../corpus/accepted/gguf-all-types.gguf").lexically_normal();
}

int errno_of_stat(const std::filesystem::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? 0 : errno;
}

TEST_F(GgufMount, ShowsQuantisedTensorsAndTheirValues) {
  const Mounted mount({all_types()});
  const auto rows = nlohmann::json::parse(read_file(mount / ".stfs/tensors.json"));
  ASSERT_EQ(rows.size(), 35U);
  for (const auto& row : rows) {
    const std::string name = row.at("name");
    const std::string dtype = row.at("dtype");
    const std::uint64_t elements = row.at("shape").at(0);
    SCOPED_TRACE(dtype);
    const std::string raw = read_file(mount / name);
    EXPECT_EQ(raw.size(), row.at("bytes"));
    EXPECT_EQ(xattr(mount / name, "user.stfs.dtype"), dtype);
    EXPECT_EQ(read_file(mount / ".stfs/slice" / name / ":"), raw);
    EXPECT_EQ(read_file(mount / ".stfs/tree" / name), raw);
    EXPECT_EQ(errno_of_stat(mount / ".stfs/stats" / (name + ".json")), 0);
    if (elements == 1) continue;  // not a block
    const std::string values = read_file(mount / ".stfs/f32" / name);
    EXPECT_EQ(values.size(), elements * sizeof(float));
    EXPECT_TRUE(read_file(mount / ".stfs/npy-f32" / (name + ".npy")).ends_with(values));
    EXPECT_EQ(read_file(mount / ".stfs/f32-slice" / name / "3:10"), values.substr(12, 28));
    EXPECT_EQ(errno_of_stat(mount / ".stfs/slice" / name / "0:16"), EINVAL);
    EXPECT_EQ(errno_of_stat(mount / ".stfs/npy" / (name + ".npy")), ENOENT);
    EXPECT_EQ(errno_of_stat(mount / ".stfs/safetensors" / (name + ".safetensors")), ENOENT);
  }
}

TEST_F(GgufMount, MultipliesTheIntegersOfABlockByItsScale) {
  std::string file = "GGUF";
  const auto add = [&file](auto value) {
    file.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  add(std::uint32_t{3});
  add(std::uint64_t{1});  // tensors
  add(std::uint64_t{0});  // keys
  add(std::uint64_t{1});
  file += "w";
  add(std::uint32_t{1});
  add(std::uint64_t{32});
  add(std::uint32_t{8});  // Q8_0
  add(std::uint64_t{0});
  file.resize(64);
  add(std::uint16_t{0x3800});  // 0.5
  std::string expected;
  for (int i = 0; i < 32; ++i) {
    add(static_cast<std::int8_t>(5 * i - 80));
    const float value = 0.5F * static_cast<float>(5 * i - 80);
    expected.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  const TempDir dir;
  write_file(dir / "sha256-0123", file);
  const Mounted mount({dir / "sha256-0123"});

  EXPECT_EQ(read_file(mount / ".stfs/f32/w"), expected);
}

TEST_F(GgufMount, RefusesASafetensorsFileOfQuantisedTensors) {
  const Mounted mount({all_types()});

  EXPECT_LT(::open((mount / ".stfs/merged.safetensors").c_str(), O_RDONLY | O_CLOEXEC), 0);
  EXPECT_EQ(errno, EFBIG);
  EXPECT_EQ(errno_of_stat(mount / ".stfs/subset/*.safetensors"), EOPNOTSUPP);
  EXPECT_EQ(errno_of_stat(mount / ".stfs/subset/t0.safetensors"), 0);
  const TempDir dir;
  const Outcome extract =
      run({STFS_INFO_BINARY, "extract", all_types(), "t12", "-o", dir / "x.safetensors"});
  EXPECT_EQ(extract.status, 2);
  EXPECT_NE(extract.err.find("tensor \"t12\": safetensors has no type Q4_K"), std::string::npos)
      << extract.err;
}

TEST_F(GgufMount, ShowsTheHeaderAndTheMetadata) {
  const std::filesystem::path file = test_data("gguf/llama-2-tiny-random.gguf");
  const std::string bytes = read_file(file);
  const Mounted mount({file});

  const std::string header = read_file(mount / ".stfs/header/llama-2-tiny-random.gguf.gguf");
  EXPECT_EQ(header, bytes.substr(0, header.size()));
  EXPECT_GT(header.size(), 700'000U);
  EXPECT_EQ(read_file(mount / ".stfs/metadata/general.architecture"), "llama");
  EXPECT_EQ(read_file(mount / ".stfs/metadata/llama.context_length"), "4096");
  EXPECT_EQ(read_file(mount / "blk.0.attn_k.weight").size(), 128U);
  EXPECT_EQ(read_file(mount / ".stfs/tree/blk/0/attn_k/weight"),
            read_file(mount / "blk.0.attn_k.weight"));
}

}  // namespace
}  // namespace stfs::test
