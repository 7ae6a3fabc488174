// Tests the rules of an index file with literal texts.
#include "core/format/index.h"

#include "core/base/error.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace stfs::test {
namespace {

using namespace std::string_literals;

TEST(Index, SortsNamesAndShards) {
  const Index index = parse_index(
      R"({"metadata":{"total_size":12},"weight_map":{"b":"2.st","a":"1.st","c":"2.st"}})", "i");

  std::vector<std::pair<std::string, std::string>> entries;
  for (const Index::Entry& entry : index.entries) {
    entries.emplace_back(index.name(entry), index.shards[entry.shard]);
  }
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(entries, (Pairs{{"a", "1.st"}, {"b", "2.st"}, {"c", "2.st"}}));
  EXPECT_EQ(index.shards, (std::vector<std::string>{"1.st", "2.st"}));
  EXPECT_EQ(index.total_size, 12U);
}

TEST(Index, AcceptsTotalSizeInFloatNotation) {
  EXPECT_EQ(parse_index(R"({"metadata":{"total_size":1.5e3},"weight_map":{}})", "i").total_size,
            1500U);
}

TEST(Index, IgnoresInvalidTotalSize) {
  for (const char* total : {"-1", "\"12\"", "null", "1e300", "[12]", "{}", "-0.5"}) {
    const std::string text =
        R"({"metadata":{"total_size":)" + std::string(total) + R"(},"weight_map":{}})";
    EXPECT_EQ(parse_index(text, "i").total_size, std::nullopt) << total;
  }
}

TEST(Index, ReadsTotalSizeOnlyFromMetadata) {
  const Index index = parse_index(
      R"({"total_size":1,"x":{"total_size":2},"metadata":{"y":{"total_size":3},"z":[4,{"total_size":5}]},"weight_map":{"total_size":"s"}})",
      "i");

  EXPECT_EQ(index.total_size, std::nullopt);
  EXPECT_EQ(index.entries.size(), 1U);
}

TEST(Index, IgnoresOtherKeysAtAnyDepth) {
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "[";
  for (int i = 0; i < 100'000; ++i) deep += "]";
  const std::string text = R"({"a":{"weight_map":{"no":1}},"b":[{"weight_map":{"no":2}},[[null]]],)"
                           R"("weight_map":{"a":"s"},"c":null,"d":[1,"x",{}],"e":)" +
                           deep + "}";

  const Index index = parse_index(text, "i");

  EXPECT_EQ(index.entries.size(), 1U);
}

TEST(Index, RejectsMoreThan65536Shards) {
  const auto index_of = [](int shards) {
    std::string text = R"({"weight_map":{"a":"0")";
    for (int i = 1; i < shards; ++i) {
      text += ",\"" + std::to_string(i) + "\":\"" + std::to_string(i) + "\"";
    }
    return text + "}}";
  };
  EXPECT_EQ(parse_index(index_of(65'536), "i").shards.size(), 65'536U);
  try {
    parse_index(index_of(65'537), "i");
    FAIL() << "accepted";
  } catch (const Error& refusal) {
    EXPECT_NE(std::string(refusal.what()).find("more than 65536 shards"), std::string::npos);
  }
}

TEST(Index, AcceptsAnyTensorName) {
  const Index index =
      parse_index(R"({"weight_map":{"":"s","..":"s","a\u0000":"s","weight_map":"s"}})", "i");

  EXPECT_EQ(index.entries.size(), 4U);
}

TEST(Index, AcceptsShardInSubdirectory) {
  const Index index =
      parse_index(R"({"weight_map":{"a":"x/y/z.st","b":"./s..st","c":"..."}})", "i");

  EXPECT_EQ(index.shards, (std::vector<std::string>{"...", "s..st", "x/y/z.st"}));
}

std::string map(const std::string& entries) { return R"({"weight_map":{)" + entries + "}}"; }

TEST(Index, ReportsPlaceAndBrokenRule) {
  const std::vector<std::pair<const char*, std::vector<std::string>>> kRows{
      {"not valid JSON",
       {"", R"({"weight_map":{"a":"s")", map(R"("a":"s")") + "x", map("\"\xff\":\"s\""),
        map(R"("\ud800":"s")")}},
      {"not an object", {"[]", "1", "null", "\"weight_map\""}},
      {"NUL", {map(R"("a":"s")") + "\0"s}},
      {"weight_map is missing", {R"({"metadata":{}})", R"({"x":{"weight_map":{}}})"}},
      {"weight_map is not an object",
       {R"({"weight_map":null})", R"({"weight_map":[]})", R"({"weight_map":"s"})"}},
      {"weight_map occurs twice", {R"({"weight_map":{},"weight_map":{}})"}},
      {"tensor \"a\": the shard must be a string",
       {map(R"("a":1)"), map(R"("a":null)"), map(R"("a":1.5)"), map(R"("a":true)"),
        map(R"("a":["s"])"), map(R"("a":{"b":"s"})")}},
      {"tensor \"a\": the name occurs twice",
       {map(R"("a":"s","b":"s","a":"t")"), map(R"("a":"s","\u0061":"s")")}},
      {"not a file name", {map(R"("a":"")"), map(R"("a":"s\u0000")")}},
      {"absolute", {map(R"("a":"/etc/passwd")")}},
      {"leaves the index's directory",
       {map(R"("a":"..")"), map(R"("a":"../s")"), map(R"("a":"x/../s")"), map(R"("a":"x/..")")}},
  };
  for (const auto& [rule, texts] : kRows) {
    for (const std::string& text : texts) {
      SCOPED_TRACE(text);
      try {
        parse_index(text, "m.index.json");
        ADD_FAILURE() << "the index was accepted";
      } catch (const Error& error) {
        const std::string message = error.what();
        EXPECT_EQ(error.code(), ErrorCode::kInvalidIndex);
        EXPECT_TRUE(message.starts_with("m.index.json: ")) << message;
        EXPECT_NE(message.find(rule), std::string::npos) << message;
        EXPECT_EQ(message.find('\n'), std::string::npos);
      }
    }
  }
}

}  // namespace
}  // namespace stfs::test
