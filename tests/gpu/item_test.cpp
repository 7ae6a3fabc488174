// Items: valid requests, and keys that are equal for equal bytes.
#include "tools/gpu/protocol/item.h"

#include "core/base/error.h"
#include "core/layer/quantised/layout_text.h"
#include "core/source/local_file.h"
#include "tests/support/checkpoint_writer.h"
#include "tools/gpu/device/narrowing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace stfs::gpu::test {

using namespace stfs::test;

namespace {

constexpr std::uint64_t kMost = ~std::uint64_t{0};

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

Item with(const std::function<void(ItemRequest&)>& change) {
  ItemRequest changed = request();
  change(changed);
  return Item(changed);
}

std::string refusal(const std::function<void(ItemRequest&)>& change) {
  try {
    with(change);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    return error.what();
  }
  return "";
}

TEST(GpuItem, KnowsItsSizeTypeAndShape) {
  const Item item = with([](ItemRequest& r) {
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

TEST(GpuItem, KeysDifferInEachThingThatMakesOtherBytes) {
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
      // Parts of a key do not run into each other.
      [](ItemRequest& r) { r.version = "v+1", r.offset = 2; },
      [](ItemRequest& r) { r.version = "v", r.offset = 12; }};

  std::set<std::string> keys{key};
  for (const auto& change : changes) {
    const std::string other = with(change).key();
    EXPECT_TRUE(keys.insert(other).second) << other;
  }
}

TEST(GpuItem, KeysAreEqualForTheSameBytesHoweverTheyAreNamed) {
  const std::string key = Item(request()).key();
  const std::string part = with([](ItemRequest& r) { r.slice = "1:3"; }).key();

  EXPECT_EQ(with([](ItemRequest& r) { r.path = "/hard/link"; }).key(), key);
  EXPECT_EQ(with([](ItemRequest& r) { r.tensor = "other"; }).key(), key);
  EXPECT_EQ(with([](ItemRequest& r) { r.as = DType::kF32; }).key(), key);
  for (const char* whole : {"...", ":", ":,:", "0:4", "-4:", "0:100,::1"}) {
    EXPECT_EQ(with([&](ItemRequest& r) { r.slice = whole; }).key(), key) << whole;
  }
  for (const char* same : {"1:3,:", "-3:-1", "1:3:1", "1:3,...", "+1:03"}) {
    EXPECT_EQ(with([&](ItemRequest& r) { r.slice = same; }).key(), part) << same;
  }
}

TEST(GpuItem, RefusesWhatLiesOutsideItsFile) {
  EXPECT_NE(refusal([](ItemRequest& r) { r.offset = 1000 - 95; }), "");
  EXPECT_EQ(refusal([](ItemRequest& r) { r.offset = 1000 - 96; }), "");
  EXPECT_NE(refusal([](ItemRequest& r) { r.offset = kMost; }), "");
  EXPECT_NE(refusal([](ItemRequest& r) { r.offset = kMost - 95; }), "");
  EXPECT_NE(refusal([](ItemRequest& r) { r.source_size = 0; }), "");
}

TEST(GpuItem, RefusesShapesWhoseSizeOverflows) {
  const auto shaped = [](std::vector<std::uint64_t> shape, DType dtype = DType::kF32) {
    return refusal([&](ItemRequest& r) {
      r.shape = shape;
      r.dtype = dtype;
      r.source_size = kMost;
      r.offset = 0;
    });
  };

  EXPECT_NE(shaped({kMost}), "");
  EXPECT_NE(shaped({kMost, kMost}), "");
  EXPECT_NE(shaped({std::uint64_t{1} << 32, std::uint64_t{1} << 32}), "");
  EXPECT_NE(shaped({std::uint64_t{1} << 61}, DType::kU8), "") << "2^64 bits";
  EXPECT_EQ(shaped({(std::uint64_t{1} << 61) - 1}, DType::kU8), "");
  EXPECT_EQ(shaped({0, kMost, kMost}), "");
  EXPECT_EQ(shaped({kMost, kMost, 0}), "");
  EXPECT_NE(shaped({3}, DType::kF4), "") << "12 bits are no whole bytes";
}

TEST(GpuItem, RefusesMoreThan64DimensionsAndSaysSo) {
  for (const std::size_t rank : {65, 1'000'000}) {
    const std::string text = refusal([&](ItemRequest& r) { r.shape.assign(rank, 1); });
    EXPECT_NE(text.find("more than 64 dimensions"), std::string::npos) << text;
  }
  EXPECT_EQ(refusal([](ItemRequest& r) { r.shape.assign(64, 1); }), "");
}

TEST(GpuItem, RefusesSlicesThatAreNone) {
  for (const char* slice : {"4", "-5", ":,:,:", "a", "::0", "0 ", "::-1", ",", "..,"}) {
    const std::string text = refusal([&](ItemRequest& r) { r.slice = slice; });
    EXPECT_NE(text.find("shape is ["), std::string::npos) << text;
  }
  const std::string halves = refusal([](ItemRequest& r) {
    r.dtype = DType::kF4;
    r.shape = {2, 3};
    r.slice = "0";
  });
  EXPECT_NE(halves, "") << "ends in the middle of a byte";
}

TEST(GpuItem, OfABlockTypeTakesAnyPartOfItsValuesAndOnlyWholeBlocksOfItsBytes) {
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
  const auto of_blocks = [&](ItemRequest& r) {
    r.version = file.token();
    r.source_size = file.size();
    r.offset = 0;
    r.dtype = DType::kQ8_0;
    r.shape = {64};
    r.slice = "3:40";
  };
  const std::string refused = refusal(of_blocks);
  EXPECT_TRUE(
      refused.ends_with(": slice \"3:40\": begins or ends inside a block of 32 elements "
                        "(--as f32 takes any part)"))
      << refused;
  for (const DType as : {DType::kF32, DType::kBF16}) {
    const Item item = with([&](ItemRequest& r) {
      of_blocks(r);
      r.as = as;
    });
    EXPECT_TRUE(item.cuts_blocks());
    EXPECT_EQ(item.shape(), (std::vector<std::uint64_t>{37}));
    EXPECT_EQ(item.raw_bytes(), 37U * 4);
    ASSERT_EQ(item.bytes(), as == DType::kF32 ? 37U * 4 : 37U * 2);
    std::vector<std::byte> bytes(item.bytes());
    ASSERT_EQ(item.content({{&file}}).copy(0, bytes), 0);
    for (std::size_t i = 0; i < 37; ++i) {
      float value = 0;  // each is exact in 16 bits
      if (as == DType::kF32) {
        std::memcpy(&value, &bytes[4 * i], 4);
      } else {
        std::memcpy(reinterpret_cast<std::byte*>(&value) + 2, &bytes[2 * i], 2);
      }
      EXPECT_EQ(value, values[3 + i]) << i;
    }
  }
}

TEST(GpuItem, RefusesConversionsThatThereAreNone) {
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

TEST(GpuItem, RefusesOneLineOfEscapedText) {
  const std::string text = refusal([](ItemRequest& r) {
    r.tensor = "evil\x1b[31m\nname";
    r.offset = kMost;
  });

  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST(GpuItem, AConvertedSizeMayNotOverflow) {
  const Item item = with([](ItemRequest& r) {
    r.dtype = DType::kF4;
    r.shape = {(std::uint64_t{1} << 62) - 2};
    r.source_size = kMost;
    r.offset = 0;
    r.as = DType::kF16;
  });

  EXPECT_EQ(item.bytes(), 2 * ((std::uint64_t{1} << 62) - 2));
}

TEST(GpuItem, AnEmptyTensorIsAnItemOfNoBytes) {
  const Item item = with([](ItemRequest& r) { r.shape = {0, 5}; });

  EXPECT_EQ(item.bytes(), 0u);
  EXPECT_EQ(item.elements(), 0u);
  EXPECT_EQ(item.shape(), (std::vector<std::uint64_t>{0, 5}));
}

TEST(GpuItem, ItsLabelIsThatOfThePersonWhoAskedAndStaysWhenTheSourceChanges) {
  const auto label = [](const char* version) {
    return with([&](ItemRequest& r) {
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

TEST(GpuItem, ItsRecipesAreTheBytesOfTheSlice) {
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
  ASSERT_EQ(item.raw({{&file}}).size(), raw.size());
  ASSERT_EQ(item.raw({{&file}}).copy(0, raw), 0);
  const Content content = item.content({{&file}}, &tally);
  ASSERT_EQ(content.size(), converted.size());
  ASSERT_EQ(content.copy(0, converted), 0);

  EXPECT_EQ(std::memcmp(raw.data(), bytes.data() + 6 * 4, 4), 0);
  EXPECT_EQ(std::memcmp(raw.data() + 4, bytes.data() + 9 * 4, 4), 0);
  EXPECT_EQ(std::memcmp(converted.data(), bytes.data() + 6 * 4 + 2, 2), 0) << "6.0 is exact";
  EXPECT_EQ(std::memcmp(converted.data() + 2, bytes.data() + 9 * 4 + 2, 2), 0);
}

// A matrix of 2 by 4 bytes, each block of 2 columns with a scale of its own.
Computation computation() {
  Computation computed{.scheme = "FP8 with scales"};
  QuantizedLayout& layout = computed.layout;
  layout.rows = 2;
  layout.columns = 4;
  layout.weight = {.codes = Codes::kTyped, .type = DType::kF8E4M3, .pitch = 4};
  layout.block_columns = 2;
  layout.grid_rows = 2;
  layout.grid_columns = 2;
  layout.scale = {.codes = Codes::kTyped, .type = DType::kF32, .pitch = 8};
  computed.others = {{"/w/scales", "s1", 16}};
  computed.inputs = {{Role::kWeight, 0, 0, 8}, {Role::kScale, 1, 0, 16}};
  return computed;
}

Item computed_with(const std::function<void(Computation&)>& change, DType type = DType::kF32) {
  Computation computed = computation();
  change(computed);
  return Item({.path = "/w/codes",
               .tensor = "w",
               .version = "v1",
               .source_size = 8,
               .dtype = type,
               .shape = {2, 4},
               .computed = std::make_shared<const Computation>(std::move(computed))});
}

const auto kUnchanged = [](Computation&) {};

TEST(GpuItem, TheKeyOfAComputedTensorIsAllThatItsValuesDependOn) {
  std::vector<std::string> keys{computed_with(kUnchanged).key(),
                                computed_with(kUnchanged, DType::kF16).key()};
  const std::vector<std::function<void(Computation&)>> changes{
      [](Computation& c) { c.scheme = "another"; },
      [](Computation& c) { c.layout.nested_offset = 1; },
      [](Computation& c) { c.layout.weight.type = DType::kF8E5M2; },
      [](Computation& c) { c.layout.scale.pitch = 16; },
      [](Computation& c) { c.layout.is_divided_by_127 = true; },
      [](Computation& c) { c.others[0].version = "s2"; },
      [](Computation& c) { c.inputs[1].length = 8; },
      [](Computation& c) {
        c.inputs[1] = {Role::kScale, 0, 0, 8};
      },
      [](Computation& c) { c.inputs[1].role = Role::kBias; }};
  for (const auto& change : changes) keys.push_back(computed_with(change).key());

  EXPECT_EQ(std::set(keys.begin(), keys.end()).size(), keys.size());
  EXPECT_EQ(computed_with([](Computation& c) { c.others[0].path = "/hard/link"; }).key(), keys[0]);
}

TEST(GpuItem, TheLabelOfAComputedTensorSaysTypeAndScheme) {
  EXPECT_EQ(computed_with(kUnchanged, DType::kBF16).label(),
            "/w/codes::w dequantized to BF16 (FP8 with scales)");
}

TEST(GpuItem, InputsOutsideOfTheirFilesAndTwiceAreRefused) {
  const std::vector<std::function<void(Computation&)>> wrong{
      [](Computation& c) { c.inputs[0].offset = 1; },
      [](Computation& c) { c.inputs[0].length = kMost; },
      [](Computation& c) { c.inputs[1].offset = kMost; },
      [](Computation& c) { c.inputs[1].source = 2; },
      [](Computation& c) { c.inputs[1].role = Role::kWeight; }};
  for (const auto& change : wrong) EXPECT_THROW(computed_with(change), Error);
  EXPECT_THROW(computed_with(kUnchanged, DType::kF64), Error);
}

class ComputedItem : public ::testing::Test {
 protected:
  ComputedItem() {
    write_file(dir_ / "codes", std::string(8, '\x38'));  // 1.0
    const std::vector<float> scales{1, 2, 3, 4};
    write_file(dir_ / "scales", {reinterpret_cast<const char*>(scales.data()), 16});
    codes_.emplace((dir_ / "codes").string());
    scales_.emplace((dir_ / "scales").string());
  }
  std::vector<float> values(const Item& item) {
    TileCache tiles;
    std::vector<float> values(static_cast<std::size_t>(item.elements()));
    const Content content = item.content({{&*codes_, &*scales_}, &tiles});
    EXPECT_EQ(content.copy(0, std::as_writable_bytes(std::span(values))), 0);
    return values;
  }

  TempDir dir_;
  std::optional<LocalFile> codes_, scales_;
};

TEST_F(ComputedItem, ItsRecipeComputesTheValues) {
  EXPECT_EQ(values(computed_with(kUnchanged)), (std::vector<float>{1, 1, 2, 2, 3, 3, 4, 4}));
}

TEST_F(ComputedItem, WhatDoesNotFitItsInputsIsRefusedAndNothingIsRead) {
  const std::vector<std::function<void(Computation&)>> wrong{
      [](Computation& c) { c.layout.columns = 5; },
      [](Computation& c) { c.layout.rows = kMost; },
      [](Computation& c) { c.layout.block_columns = 0; },
      [](Computation& c) { c.layout.block_columns = 1; },
      [](Computation& c) { c.layout.grid_rows = 0; },
      [](Computation& c) { c.layout.weight.type = DType::kU8; },
      [](Computation& c) { c.layout.weight.codes = Codes::kFields; },
      [](Computation& c) { c.layout.weight.codes = Codes::kWords; },
      [](Computation& c) { c.layout.scale.type = DType::kI32; },
      [](Computation& c) { c.layout.weight.matrix = 3; },
      [](Computation& c) { c.layout.matrices = 2; },
      [](Computation& c) { c.inputs[1].role = Role::kLevels; },
      [](Computation& c) { c.inputs[1].role = Role::kMap; },
      [](Computation& c) { c.inputs[1].role = Role::kIndex; },
      [](Computation& c) { c.inputs[1].length = 8; },
      [](Computation& c) { c.inputs.erase(c.inputs.begin()); },
      [](Computation& c) { c.inputs.pop_back(); }};
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    const Item item = computed_with(wrong[i]);
    TileCache tiles;
    EXPECT_THROW(static_cast<void>(item.content({{&*codes_, &*scales_}, &tiles})), Error) << i;
  }
}

// Reads outside of a buffer are found under AddressSanitizer.
TEST_F(ComputedItem, AnyLayoutIsRefusedOrReadsItsInputsAlone) {
  const std::vector<std::string> pool{
      "0",  "1",  "2",   "3",   "4",  "5", "7",  "8",   "9",   "10",      "11",         "12",
      "16", "32", "256", "512", "-4", "-", "U8", "F16", "F32", "F8_E4M3", "4294967296", "MXFP4"};
  std::vector<std::string> good;
  std::istringstream stream(layout_text(computation().layout));
  for (std::string word; stream >> word;) good.push_back(word);
  RandomBytes random(7);
  const auto below = [&](std::size_t most) {
    return static_cast<std::size_t>(random.next() % most);
  };
  int computed = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::string> words = good;
    for (std::size_t changes = below(4); changes > 0; --changes) {
      words[below(words.size())] = pool[below(pool.size())];
    }
    std::string text;
    for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
    const std::optional<QuantizedLayout> layout = parse_layout(text);
    std::uint64_t elements = 0;
    if (!layout || __builtin_mul_overflow(layout->rows, layout->columns, &elements) ||
        __builtin_mul_overflow(elements, layout->matrices, &elements)) {
      continue;
    }
    Computation changed = computation();
    changed.layout = *layout;
    if (below(4) == 0) changed.inputs[1].role = static_cast<Role>(1 + below(kRoles - 1));
    if (below(4) == 0) changed.inputs[below(2)].length = below(9);
    try {
      const Item item({.path = "/w/codes",
                       .tensor = "w",
                       .version = "v1",
                       .source_size = 8,
                       .dtype = DType::kF32,
                       .shape = {elements},
                       .computed = std::make_shared<const Computation>(std::move(changed))});
      TileCache tiles;
      const Content content = item.content({{&*codes_, &*scales_}, &tiles});
      std::vector<std::byte> bytes(std::min<std::uint64_t>(content.size(), 4096));
      static_cast<void>(content.copy(0, bytes));
      ++computed;
    } catch (const Error&) {
    }
  }
  EXPECT_GT(computed, 1000);
}

}  // namespace
}  // namespace stfs::gpu::test
