// Split GGUF files: the keys of a part, and the names of the other parts.
#include "core/base/error.h"
#include "core/format/gguf_split.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace stfs::test {
namespace {

Header header_with(
    const std::vector<std::pair<std::string, std::pair<ValueType, std::string>>>& keys) {
  Header header;
  for (const auto& [key, value] : keys) {
    MetadataValue typed;
    typed.type = value.first;
    header.metadata.add(key, value.second, typed);
  }
  header.metadata.sort();
  return header;
}

Header part(int number, int count, int tensors) {
  return header_with({{"split.no", {ValueType::kU16, std::to_string(number)}},
                      {"split.count", {ValueType::kU16, std::to_string(count)}},
                      {"split.tensors.count", {ValueType::kI32, std::to_string(tensors)}}});
}

template <class Act>
std::string refusal(const Act& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kGgufSplit);
    return error.what();
  }
  return "accepted";
}

TEST(GgufSplit, ReadsThreeKeysOfPart) {
  const auto split = gguf_split(part(1, 3, 17), "m");

  ASSERT_TRUE(split);
  EXPECT_EQ(split->number, 1U);
  EXPECT_EQ(split->count, 3U);
  EXPECT_EQ(split->tensors, 17U);
}

TEST(GgufSplit, WholeFileHasNoSplit) {
  EXPECT_FALSE(gguf_split(Header(), "m"));
  EXPECT_FALSE(gguf_split(part(0, 1, 17), "m"));
  EXPECT_FALSE(gguf_split(part(0, 0, 17), "m"));
  EXPECT_FALSE(gguf_split(header_with({{"general.split_count", {ValueType::kU16, "3"}}}), "m"));
}

TEST(GgufSplit, RejectsMissingAndInvalidKeys) {
  const auto refused = [](const Header& header) {
    return refusal([&] { gguf_split(header, "m"); });
  };
  EXPECT_EQ(refused(header_with({{"split.count", {ValueType::kU16, "3"}}})),
            "m: key \"split.no\": missing in a part of a split file (GgufSplit)");
  EXPECT_EQ(refused(header_with({{"split.count", {ValueType::kU32, "3"}}})),
            "m: key \"split.count\": must be a 16-bit unsigned integer (GgufSplit)");
  EXPECT_EQ(refused(part(3, 3, 17)), "m: key \"split.no\": 3 of 3 parts (GgufSplit)");
  EXPECT_EQ(refused(part(0, 3, -1)), "m: key \"split.tensors.count\": -1 (GgufSplit)");
}

TEST(GgufSplit, NamesPartsAfterFirst) {
  EXPECT_EQ(gguf_parts("m-00001-of-00003.gguf", {.number = 0, .count = 3}, "p"),
            (std::vector<std::string>{"m-00001-of-00003.gguf", "m-00002-of-00003.gguf",
                                      "m-00003-of-00003.gguf"}));
  EXPECT_EQ(gguf_parts("-00001-of-65535.gguf", {.number = 0, .count = 65535}, "p").back(),
            "-65535-of-65535.gguf");
}

TEST(GgufSplit, RequiresFirstPartWithItsName) {
  const auto refused = [](const char* name, std::uint32_t number) {
    return refusal([&] { gguf_parts(name, {.number = number, .count = 3}, "/d/x"); });
  };
  EXPECT_EQ(refused("m-00002-of-00003.gguf", 1),
            "/d/x: part 2 of 3: name \"m-00001-of-00003.gguf\", from which stfs finds the other "
            "parts (GgufSplit)");
  EXPECT_EQ(
      refused("m.gguf", 2),
      "/d/x: part 3 of 3: name the first part, from which stfs finds the other parts (GgufSplit)");
  for (const char* name : {"m.gguf", "m-00001-of-00004.gguf", "m-00001-of-00003.gguf.bak"}) {
    EXPECT_NE(refused(name, 0).find("its name must end in -00001-of-00003.gguf"),
              std::string::npos);
  }
}

TEST(GgufSplit, ParsesNameOfPart) {
  const auto part = gguf_part_name("a-b-00002-of-00003.gguf");
  ASSERT_TRUE(part);
  EXPECT_EQ(part->prefix, "a-b");
  EXPECT_EQ(part->number, 1U);
  EXPECT_EQ(part->count, 3U);
  EXPECT_EQ(part->of(0), "a-b-00001-of-00003.gguf");
  for (const char* name :
       {"", "m.gguf", "m-00000-of-00003.gguf", "m-00004-of-00003.gguf", "m-0001-of-00003.gguf",
        "m-00001-of-0000x.gguf", "m-00001-of-00003.GGUF", "m-+0001-of-00003.gguf"}) {
    EXPECT_FALSE(gguf_part_name(name)) << name;
  }
}

TEST(GgufSplit, RejectsPartsFromDifferentFiles) {
  const GgufSplit first{.number = 0, .count = 3, .tensors = 17};
  check_gguf_part(part(2, 3, 17), 2, first, "p");
  check_gguf_tensors(17, first, "m");
  EXPECT_EQ(refusal([&] { check_gguf_part(part(1, 3, 17), 2, first, "p"); }),
            "p: key \"split.no\": 1 in the file of part 3: the parts are mixed up (GgufSplit)");
  EXPECT_EQ(refusal([&] { check_gguf_part(part(2, 4, 17), 2, first, "p"); }),
            "p: key \"split.count\": 4, the first part says 3: the parts belong to two files "
            "(GgufSplit)");
  EXPECT_EQ(refusal([&] { check_gguf_part(Header(), 2, first, "p"); }),
            "p: key \"split.no\": missing in a part of a split file (GgufSplit)");
  EXPECT_EQ(refusal([&] { check_gguf_tensors(16, first, "m"); }),
            "m: the parts have 16 tensors, split.tensors.count is 17 (GgufSplit)");
}

}  // namespace
}  // namespace stfs::test
