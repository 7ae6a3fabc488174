// Computed tensors of quantised checkpoints: what a read needs, any range of it, and changed
// inputs. Their values are tested in tests/dequantize.
#include "core/checkpoint/dequantize.h"

#include "core/base/error.h"
#include "core/checkpoint/checkpoint.h"
#include "core/recipe/dequantize.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/unit/late_source.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

namespace fs = std::filesystem;

std::string packed_floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

// Opens late sources, and keeps a pointer to each by the last component of its name.
class ManyLateSources : public Sources {
 public:
  std::unique_ptr<const Source> open(const std::string& name) override {
    auto source = std::make_unique<LateSource>(name);
    opened[fs::path(name).filename().string()] = source.get();
    return source;
  }
  std::map<std::string, LateSource*> opened;
};

class DequantizeTest : public ::testing::Test {
 protected:
  // Codes of 1.0 (0x38) in E4M3, [4,256], with a scale for each [2,128] in another file.
  void write_fp8() const {
    write_safetensors(dir_ / "a.safetensors",
                      {{"w.weight", "F8_E4M3", {4, 256}, std::string(1024, '\x38')},
                       {"w.bias", "BF16", {1}, "xy"}});
    write_safetensors(dir_ / "b.safetensors",
                      {{"w.weight_scale_inv", "F32", {2, 2}, packed_floats({1, 2, 3, 4})}});
    write_index(dir_ / "model.safetensors.index.json",
                {{"w.weight", "a.safetensors"},
                 {"w.bias", "a.safetensors"},
                 {"w.weight_scale_inv", "b.safetensors"}},
                1042);
    write_file(dir_ / "config.json",
               R"({"quantization_config":{"quant_method":"fp8","weight_block_size":[2,128]}})");
  }

  std::unique_ptr<const Checkpoint> load(DType type, Sources* sources = nullptr) const {
    const std::string path = dir_.path().string();
    return std::make_unique<const Checkpoint>(std::span(&path, 1),
                                              LoadOptions{.dequantize = type, .sources = sources});
  }

  static std::vector<float> floats_of(const Content& content) {
    std::vector<float> values(content.size() / sizeof(float));
    EXPECT_EQ(content.copy(0, std::as_writable_bytes(std::span(values))), 0);
    return values;
  }

  TempDir dir_;
};

TEST_F(DequantizeTest, AComputedTensorStandsInPlaceOfItsInputs) {
  write_fp8();
  const auto checkpoint = load(DType::kF32);
  ASSERT_EQ(checkpoint->tensor_count(), 2U);
  const stfs::Tensor tensor = checkpoint->tensor(0);
  EXPECT_EQ(tensor.name, "w.weight");
  EXPECT_EQ(tensor.path, "w.weight");
  EXPECT_EQ(tensor.dtype, DType::kF32);
  EXPECT_EQ(tensor.length, 4096U);
  EXPECT_FALSE(tensor.locator);
  ASSERT_NE(tensor.computed, nullptr);
  ASSERT_EQ(tensor.computed->inputs().size(), 2U);
  EXPECT_EQ(tensor.computed->inputs()[1].name, "w.weight_scale_inv");
  EXPECT_EQ(checkpoint->name(1), "w.bias");
  EXPECT_TRUE(checkpoint->tensor(1).locator);
  EXPECT_EQ(checkpoint->find("w.weight_scale_inv"), std::nullopt);
  EXPECT_EQ(checkpoint->single_file(), nullptr);
  const std::vector<float> values = floats_of(tensor.content());
  EXPECT_EQ(values[0], 1);
  EXPECT_EQ(values[255], 2);
  EXPECT_EQ(values[2 * 256], 3);
  EXPECT_EQ(values[3 * 256 + 128], 4);
}

TEST_F(DequantizeTest, AReadNeedsTheBytesOfItsElementsAlone) {
  write_fp8();
  ManyLateSources sources;
  const auto checkpoint = load(DType::kBF16, &sources);
  for (const auto& [name, source] : sources.opened) {
    if (name.ends_with(".safetensors")) source->take_bytes_away();
  }
  const Content content = checkpoint->tensor(0).content();
  const std::vector<Extent> missing = content.missing(2 * 256 + 3, 4);  // elements 257 to 259
  ASSERT_EQ(missing.size(), 2U);
  EXPECT_EQ(missing[0].source, sources.opened["a.safetensors"]);
  EXPECT_EQ(missing[0].length, 3U);
  EXPECT_EQ(missing[1].source, sources.opened["b.safetensors"]);
  EXPECT_EQ(missing[1].length, 2 * sizeof(float));  // a row of scales is read whole
  std::byte one{};
  EXPECT_EQ(content.copy(0, std::span(&one, 1)), EAGAIN);
}

TEST_F(DequantizeTest, AChangedScaleIsStale) {
  write_fp8();
  const auto checkpoint = load(DType::kBF16);
  const Content content = checkpoint->tensor(0).content();
  write_file(dir_ / "b.safetensors", "other");
  std::byte one{};
  EXPECT_EQ(content.copy(0, std::span(&one, 1)), ESTALE);
  EXPECT_EQ(checkpoint->tensor(0).verify(), ESTALE);
  EXPECT_EQ(checkpoint->tensor(1).verify(), 0);
}

TEST_F(DequantizeTest, AWeightWhoseScaleIsInAMissingShardIsNotShown) {
  write_fp8();
  fs::remove(dir_ / "b.safetensors");
  const std::string path = dir_.path().string();
  const Checkpoint checkpoint(std::span(&path, 1),
                              {.allow_missing = true, .dequantize = DType::kBF16});
  ASSERT_EQ(checkpoint.tensor_count(), 1U);
  EXPECT_EQ(checkpoint.name(0), "w.bias");
  ASSERT_EQ(checkpoint.missing().size(), 1U);
}

// GPTQ: 1,500 columns and 40 rows of the result, so that tiles are cut at both edges.
TEST_F(DequantizeTest, AnyRangeOfATransposedTensorIsThatOfTheWhole) {
  constexpr std::uint64_t kIn = 2560;
  constexpr std::uint64_t kOut = 72;
  write_safetensors(dir_ / "model.safetensors",
                    {random_tensor("w.qweight", "I32", {kIn / 8, kOut}, 1),
                     random_tensor("w.qzeros", "I32", {kIn / 128, kOut / 8}, 2),
                     {"w.scales", "F16", {kIn / 128, kOut}, [] {
                        std::string halves;
                        for (std::uint64_t i = 0; i < kIn / 128 * kOut; ++i) {
                          halves += static_cast<char>(i % 251);
                          halves += '\x3c';
                        }
                        return halves;
                      }()}});
  write_file(dir_ / "config.json",
             R"({"quantization_config":{"quant_method":"gptq","bits":4,"group_size":128}})");
  const auto checkpoint = load(DType::kBF16);
  const Content content = checkpoint->tensor(0).content();
  std::vector<std::byte> whole(content.size());
  ASSERT_EQ(whole.size(), kIn * kOut * 2);
  ASSERT_EQ(content.copy(0, whole), 0);
  RandomBytes random(7);
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t offset = random.next() % whole.size();
    const auto length = static_cast<std::size_t>(random.next() % (whole.size() - offset));
    std::vector<std::byte> part(length);
    ASSERT_EQ(load(DType::kBF16)->tensor(0).content().copy(offset, part), 0);
    ASSERT_EQ(std::memcmp(part.data(), whole.data() + offset, length), 0)
        << offset << " " << length;
  }
}

TEST_F(DequantizeTest, ALayoutWhoseSizeOverflowsFitsNothing) {
  QuantizedLayout layout;
  layout.rows = std::uint64_t{1} << 40;
  layout.columns = std::uint64_t{1} << 40;
  EXPECT_EQ(misfit(layout, {}), Role::kWeight);
}

TEST(TileCacheTest, KeepsTheTilesThatWereReadLast) {
  constexpr std::size_t kTile = TileCache::kMost / 4;
  TileCache cache;
  for (std::uint64_t i = 0; i < 5; ++i) {
    const auto tile = cache.get({0, i, 0}, kTile);
    tile->is_ready = true;
  }
  EXPECT_FALSE(cache.has({0, 0, 0}));
  EXPECT_TRUE(cache.has({0, 1, 0}));
  EXPECT_TRUE(cache.has({0, 4, 0}));
}

}  // namespace
}  // namespace stfs::test
