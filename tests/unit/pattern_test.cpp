#include "core/base/pattern.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace stfs::test {
namespace {

std::optional<bool> matches(std::string_view expression, std::string_view name) {
  const auto pattern = NamePattern::parse(expression);
  std::uint64_t work = 0;
  return pattern ? pattern->matches(name, work) : std::nullopt;
}

// Each row agrees with re.match() of Python 3.11.
TEST(NamePattern, MatchesLikePythonReMatch) {
  struct Row {
    const char* expression;
    const char* name;
    bool is_match;
  };
  constexpr Row kRows[] = {
      {"model", "model.layers.0", true},
      {"layers", "model.layers.0", false},
      {".*layers", "model.layers.0", true},
      {R"(.*mlp\..*_proj$)", "model.layers.0.mlp.up_proj", true},
      {R"(.*mlp\..*_proj$)", "model.layers.0.mlp.up_proj.lora", false},
      {R"(.*self_attn\.(q|k|v)_proj$)", "a.self_attn.k_proj", true},
      {R"(.*self_attn\.(q|k|v)_proj$)", "a.self_attn.o_proj", false},
      {R"(.*\.(?!gate$)\w+$)", "a.mlp.gate", false},
      {R"(.*\.(?!gate$)\w+$)", "a.mlp.gate_proj", true},
      {R"(^(?=.*experts)model)", "model.mlp.experts.3", true},
      {R"(^(?=.*experts)model)", "model.mlp.shared", false},
      {R"((?!.*gate)(?=.*mlp).*)", "model.mlp.up_proj", true},
      {R"((?!.*gate)(?=.*mlp).*)", "model.mlp.gate", false},
      {R"(m(?!(a|[)b])$).)", "mb", false},
      {R"(m(?!(a|[)b])$).)", "mbb", true},
      {R"(.*\b(?=b)\w+)", "a.b", true},
      {R"(a{,2}b)", "aab", true},
      {R"([{,2}]+$)", "{,2}", true},
      {R"(model\.layers\.([0-9]|1[0-5])\.)", "model.layers.15.mlp", true},
      {R"(model\.layers\.([0-9]|1[0-5])\.)", "model.layers.16.mlp", false},
      {R"(a{2,3}b)", "aab", true},
      {R"(a{2,3}b)", "aaaab", false},
      {R"((ab){2}$)", "abab", true},
      {R"((a*)*b)", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac", false},
      {R"(x??y+?z)", "yyz", true},
      {R"([^.]+\.[]a-c-]$)", "mlp.]", true},
      {R"([^.]+\.[]a-c-]$)", "mlp.d", false},
      {R"((?P<n>\d+)\b)", "12.a", true},
      {R"((?P<n>\d+)\b)", "12a", false},
      {R"(\Aab\Z)", "ab", true},
      {R"(a|b|cd|)", "cd", true},
      {"", "anything", true},
  };
  for (const Row& row : kRows) {
    EXPECT_EQ(matches(row.expression, row.name), row.is_match) << row.expression << " " << row.name;
  }
}

TEST(NamePattern, RejectsUnsupportedConstructs) {
  for (const char* const expression :
       {"(",           ")",      "a)",      "[",        "[b-a]",    "*a",        "a**",
        "a++",         "(?i)a",  "(?<=a)b", R"((a)\1)", R"(\)",     "a{3,2}",    "a{99999}",
        R"(\p)",       "(?=a)*", "(?#c)",   "(?=a",     "(?=a)b|c", "(b(?!c))d", "(?!a)b(?!c)d",
        "[[:digit:]]", "a{01}",  "a{5,05}", "\xC3\xA9?"}) {
    EXPECT_FALSE(NamePattern::parse(expression)) << expression;
  }
  EXPECT_FALSE(NamePattern::parse(std::string(5000, 'a')));
  EXPECT_FALSE(NamePattern::parse("((((a{50}){50}){50}){50}){50}"));
}

TEST(NamePattern, AcceptsManyAlternatives) {
  std::string layers = "0";
  for (int i = 1; i < 200; ++i) layers += "|" + std::to_string(i);
  const std::string expression = "layers\\.(" + layers + ")\\.w$";
  EXPECT_EQ(matches(expression, "layers.199.w"), true);
  EXPECT_EQ(matches(expression, "layers.7.w"), true);
  EXPECT_EQ(matches(expression, "layers.200.w"), false);
}

TEST(NamePattern, MatchesOnlyPrintableAscii) {
  EXPECT_EQ(matches(R"(\w+$)", "caf\xC3\xA9"), std::nullopt);
  EXPECT_EQ(matches("a$", "a\n"), std::nullopt);
  EXPECT_EQ(matches("[^\xC3\xA9]", "e"), std::nullopt);
}

TEST(NamePattern, MatchesInBoundedWork) {
  const std::string name(2000, 'a');
  EXPECT_EQ(matches("(a|a|(a*)*)*$b", name), false);
  EXPECT_EQ(matches(".*(?=.*b)a", name.substr(0, 300)), false);
  EXPECT_EQ(matches(".*.*.*.*.*.*.*.*b", std::string(1 << 20, 'a')), std::nullopt);
  EXPECT_EQ(matches("(?:.?){1000}b(?!c)", name), std::nullopt);
}

TEST(NamePattern, CountsWork) {
  std::uint64_t work = 0;
  const auto pattern = NamePattern::parse("(?:.?){1000}b$");
  ASSERT_TRUE(pattern);
  EXPECT_EQ(pattern->matches(std::string(160, 'a'), work), false);
  const std::uint64_t first = work;
  EXPECT_GT(first, 500U);
  EXPECT_EQ(pattern->matches(std::string(160, 'a'), work), false);
  EXPECT_EQ(work, 2 * first);
}

}  // namespace
}  // namespace stfs::test
