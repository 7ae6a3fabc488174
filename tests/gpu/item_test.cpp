// Items: valid requests, and keys that are equal for equal bytes.
#include "tools/gpu/protocol/item.h"

#include "core/base/error.h"
#include "core/base/sha256.h"
#include "core/source/local_file.h"
#include "tests/support/checkpoint_writer.h"
#include "tools/gpu/device/narrowing.h"
#include "tools/gpu/protocol/open_item.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace stfs::gpu::test {

using namespace stfs::test;

namespace {

constexpr std::uint64_t kMax = ~std::uint64_t{0};

ItemRequest request() {
  return {.path = "/w/m.safetensors",
          .tensor = "w",
          .version = "v1",
          .source_size = 1000,
          .offset = 100,
          .dtype = DType::kF32,
          .shape = {4, 6},
          .slice = "",
          .as = std::nullopt};
}

Item changed_item(const std::function<void(ItemRequest&)>& change) {
  ItemRequest changed = request();
  change(changed);
  return Item(changed);
}

std::string refusal(const std::function<void(ItemRequest&)>& change) {
  try {
    changed_item(change);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    return error.what();
  }
  return "";
}

TEST(GpuItem, ReturnsItsSizeTypeAndShape) {
  const Item item = changed_item([](ItemRequest& r) {
    r.slice = "1:3,::2";
    r.as = DType::kF16;
  });

  EXPECT_EQ(item.shape(), (std::vector<std::uint64_t>{2, 3}));
  EXPECT_EQ(item.elements(), 6u);
  EXPECT_EQ(item.raw_bytes(), 24u);
  EXPECT_EQ(item.bytes(), 12u);
  EXPECT_EQ(item.dtype(), DType::kF16);
  EXPECT_TRUE(item.converts());
}

TEST(GpuItem, DifferentBytesHaveDifferentKeys) {
  const std::string key = Item(request()).key();
  const std::vector<std::function<void(ItemRequest&)>> changes{
      [](ItemRequest& r) { r.version = "v2"; }, [](ItemRequest& r) { r.offset += 4; },
      [](ItemRequest& r) { r.dtype = DType::kI32; },
      [](ItemRequest& r) {
        r.shape = {6, 4};
      },
      [](ItemRequest& r) { r.slice = "0:2"; }, [](ItemRequest& r) { r.slice = ":,0:2"; },
      [](ItemRequest& r) { r.slice = "0"; }, [](ItemRequest& r) { r.slice = "0:1"; },
      [](ItemRequest& r) { r.as = DType::kF16; }, [](ItemRequest& r) { r.as = DType::kBF16; },
      // Adjacent fields of a key are kept apart.
      [](ItemRequest& r) { r.version = "v+1", r.offset = 2; },
      [](ItemRequest& r) { r.version = "v", r.offset = 12; }};

  std::set<std::string> keys{key};
  for (const auto& change : changes) {
    const std::string other = changed_item(change).key();
    EXPECT_TRUE(keys.insert(other).second) << other;
  }
}

TEST(GpuItem, SameBytesHaveSameKey) {
  const std::string key = Item(request()).key();
  const std::string part = changed_item([](ItemRequest& r) { r.slice = "1:3"; }).key();

  EXPECT_EQ(changed_item([](ItemRequest& r) { r.path = "/hard/link"; }).key(), key);
  EXPECT_EQ(changed_item([](ItemRequest& r) { r.tensor = "other"; }).key(), key);
  EXPECT_EQ(changed_item([](ItemRequest& r) { r.as = DType::kF32; }).key(), key);
  for (const char* whole : {"...", ":", ":,:", "0:4", "-4:", "0:100,::1"}) {
    EXPECT_EQ(changed_item([&](ItemRequest& r) { r.slice = whole; }).key(), key) << whole;
  }
  for (const char* same : {"1:3,:", "-3:-1", "1:3:1", "1:3,...", "+1:03"}) {
    EXPECT_EQ(changed_item([&](ItemRequest& r) { r.slice = same; }).key(), part) << same;
  }
}

TEST(GpuItem, RejectsRangesOutsideItsFile) {
  EXPECT_NE(refusal([](ItemRequest& r) { r.offset = 1000 - 95; }), "");
  EXPECT_EQ(refusal([](ItemRequest& r) { r.offset = 1000 - 96; }), "");
  EXPECT_NE(refusal([](ItemRequest& r) { r.offset = kMax; }), "");
  EXPECT_NE(refusal([](ItemRequest& r) { r.offset = kMax - 95; }), "");
  EXPECT_NE(refusal([](ItemRequest& r) { r.source_size = 0; }), "");
}

TEST(GpuItem, RejectsShapesWithOverflowingSize) {
  const auto shaped = [](std::vector<std::uint64_t> shape, DType dtype = DType::kF32) {
    return refusal([&](ItemRequest& r) {
      r.shape = shape;
      r.dtype = dtype;
      r.source_size = kMax;
      r.offset = 0;
    });
  };

  EXPECT_NE(shaped({kMax}), "");
  EXPECT_NE(shaped({kMax, kMax}), "");
  EXPECT_NE(shaped({std::uint64_t{1} << 32, std::uint64_t{1} << 32}), "");
  EXPECT_NE(shaped({std::uint64_t{1} << 61}, DType::kU8), "") << "2^64 bits overflow";
  EXPECT_EQ(shaped({(std::uint64_t{1} << 61) - 1}, DType::kU8), "");
  EXPECT_EQ(shaped({0, kMax, kMax}), "");
  EXPECT_EQ(shaped({kMax, kMax, 0}), "");
  EXPECT_NE(shaped({3}, DType::kF4), "") << "12 bits are not whole bytes";
}

TEST(GpuItem, RejectsMoreThan64Dimensions) {
  for (const std::size_t rank : {65U, 1'000'000U}) {
    const std::string text = refusal([&](ItemRequest& r) { r.shape.assign(rank, 1); });
    EXPECT_NE(text.find("more than 64 dimensions"), std::string::npos) << text;
  }
  EXPECT_EQ(refusal([](ItemRequest& r) { r.shape.assign(64, 1); }), "");
}

TEST(GpuItem, RejectsInvalidSlices) {
  for (const char* slice : {"4", "-5", ":,:,:", "a", "::0", "0 ", "::-1", ",", "..,"}) {
    const std::string text = refusal([&](ItemRequest& r) { r.slice = slice; });
    EXPECT_NE(text.find("shape is ["), std::string::npos) << text;
  }
  const std::string halves = refusal([](ItemRequest& r) {
    r.dtype = DType::kF4;
    r.shape = {2, 3};
    r.slice = "0";
  });
  EXPECT_NE(halves, "") << "the slice ends inside a byte";
}

TEST(GpuItem, SlicesConvertedBlocksAnywhereAndStoredBlocksAtBoundaries) {
  const TempDir dir;
  std::string blocks;
  std::vector<float> values;
  for (int block = 0; block < 2; ++block) {
    blocks += std::string("\0\x38", 2);  // 0.5
    for (int i = 0; i < 32; ++i) {
      blocks += static_cast<char>(i - block);
      values.push_back(0.5F * static_cast<float>(i - block));
    }
  }
  write_file(dir / "m", blocks);
  const LocalFile file((dir / "m").string());
  const auto use_blocks = [&](ItemRequest& r) {
    r.version = file.token();
    r.source_size = file.size();
    r.offset = 0;
    r.dtype = DType::kQ8_0;
    r.shape = {64};
    r.slice = "3:40";
  };
  const std::string refused = refusal(use_blocks);
  EXPECT_TRUE(
      refused.ends_with(": slice \"3:40\": begins or ends inside a block of 32 elements (with f32, "
                        "any part is possible)"))
      << refused;
  for (const DType as : {DType::kF32, DType::kBF16}) {
    const Item item = changed_item([&](ItemRequest& r) {
      use_blocks(r);
      r.as = as;
    });
    EXPECT_TRUE(item.cuts_blocks());
    EXPECT_EQ(item.shape(), (std::vector<std::uint64_t>{37}));
    EXPECT_EQ(item.raw_bytes(), 37U * 4);
    ASSERT_EQ(item.bytes(), as == DType::kF32 ? 37U * 4 : 37U * 2);
    std::vector<std::byte> bytes(item.bytes());
    ASSERT_EQ(item.content({&file}).copy(0, bytes), 0);
    for (std::size_t i = 0; i < 37; ++i) {
      float value = 0;  // each value is exact in 16 bits
      if (as == DType::kF32) {
        std::memcpy(&value, &bytes[4 * i], 4);
      } else {
        std::memcpy(reinterpret_cast<std::byte*>(&value) + 2, &bytes[2 * i], 2);
      }
      EXPECT_EQ(value, values[3 + i]) << i;
    }
  }
}

TEST(GpuItem, RejectsUnsupportedConversions) {
  for (const DType from : {DType::kBool, DType::kU8, DType::kI64, DType::kC64}) {
    EXPECT_NE(refusal([&](ItemRequest& r) {
                r.dtype = from;
                r.shape = {2};
                r.as = DType::kF16;
              }),
              "")
        << dtype_name(from);
  }
  for (const DType to : {DType::kF64, DType::kI8, DType::kF8E4M3, DType::kC64}) {
    EXPECT_NE(refusal([&](ItemRequest& r) { r.as = to; }), "") << dtype_name(to);
  }
}

TEST(GpuItem, ErrorEscapesControlCharacters) {
  const std::string text = refusal([](ItemRequest& r) {
    r.tensor = "evil\x1b[31m\nname";
    r.offset = kMax;
  });

  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST(GpuItem, ConvertedSizeDoesNotOverflow) {
  const Item item = changed_item([](ItemRequest& r) {
    r.dtype = DType::kF4;
    r.shape = {(std::uint64_t{1} << 62) - 2};
    r.source_size = kMax;
    r.offset = 0;
    r.as = DType::kF16;
  });

  EXPECT_EQ(item.bytes(), 2 * ((std::uint64_t{1} << 62) - 2));
}

TEST(GpuItem, EmptyTensorHasNoBytes) {
  const Item item = changed_item([](ItemRequest& r) { r.shape = {0, 5}; });

  EXPECT_EQ(item.bytes(), 0u);
  EXPECT_EQ(item.elements(), 0u);
  EXPECT_EQ(item.shape(), (std::vector<std::uint64_t>{0, 5}));
}

TEST(GpuItem, LabelNamesRequestAndNotVersion) {
  const auto label = [](const char* version) {
    return changed_item([&](ItemRequest& r) {
             r.version = version;
             r.slice = "0:2";
             r.as = DType::kF16;
           })
        .label();
  };

  EXPECT_EQ(Item(request()).label(), "/w/m.safetensors::w");
  EXPECT_EQ(label("v1"), "/w/m.safetensors::w[0:2,:] as F16");
  EXPECT_EQ(label("v1"), label("v2"));
}

TEST(GpuItem, RawAndConvertedContentEqualSlice) {
  const TempDir dir;
  std::string bytes;
  for (int i = 0; i < 24; ++i) {
    const auto value = static_cast<float>(i);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  write_file(dir / "m", "0123" + bytes);
  const LocalFile file((dir / "m").string());
  ItemRequest asked = request();
  asked.version = file.token();
  asked.source_size = file.size();
  asked.offset = 4;
  asked.slice = "1,::3";
  asked.as = DType::kBF16;
  const Item item(asked);

  std::vector<std::byte> raw(item.raw_bytes());
  std::vector<std::byte> converted(item.bytes());
  ConversionTally tally;
  ASSERT_EQ(item.raw({&file}).size(), raw.size());
  ASSERT_EQ(item.raw({&file}).copy(0, raw), 0);
  const Content content = item.content({&file}, &tally);
  ASSERT_EQ(content.size(), converted.size());
  ASSERT_EQ(content.copy(0, converted), 0);

  EXPECT_EQ(std::memcmp(raw.data(), bytes.data() + 6 * 4, 4), 0);
  EXPECT_EQ(std::memcmp(raw.data() + 4, bytes.data() + 9 * 4, 4), 0);
  EXPECT_EQ(std::memcmp(converted.data(), bytes.data() + 6 * 4 + 2, 2), 0) << "6.0 is exact";
  EXPECT_EQ(std::memcmp(converted.data() + 2, bytes.data() + 9 * 4 + 2, 2), 0);
}

Item computed_with(const std::function<void(ItemRequest&)>& change) {
  ItemRequest request{.path = "/w/codes",
                      .tensor = "w",
                      .version = "v1",
                      .source_size = 8,
                      .dtype = DType::kF32,
                      .shape = {2, 4}};
  request.computed = {.checkpoint = std::make_shared<const std::string>("{}"),
                      .identity = std::string(kSha256Digits, 'a'),
                      .scheme = "FP8 with scales"};
  change(request);
  return Item(std::move(request));
}

TEST(GpuItem, ComputedTensorIsKeyedByIdentityAndNotByPath) {
  const std::string key = computed_with([](ItemRequest&) {}).key();
  const std::vector<std::function<void(ItemRequest&)>> others{
      [](ItemRequest& r) { r.computed->identity[0] = 'b'; },
      [](ItemRequest& r) { r.dtype = DType::kF16; }, [](ItemRequest& r) { r.shape = {8}; },
      [](ItemRequest& r) { r.slice = "0"; }, [](ItemRequest& r) { r.as = DType::kBF16; }};
  std::set<std::string> keys{key};
  for (const auto& change : others) keys.insert(computed_with(change).key());
  EXPECT_EQ(keys.size(), others.size() + 1);

  EXPECT_EQ(computed_with([](ItemRequest& r) {
              r.path = "/hard/link";
              r.computed->checkpoint = std::make_shared<const std::string>("{...}");
            }).key(),
            key);
}

TEST(GpuItem, LabelForComputedTensorHasTypeAndScheme) {
  EXPECT_EQ(computed_with([](ItemRequest& r) { r.dtype = DType::kBF16; }).label(),
            "/w/codes::w computed as BF16 (FP8 with scales)");
}

}  // namespace
}  // namespace stfs::gpu::test
