#include "core/base/text.h"

#include "core/base/error.h"
#include "core/base/without_queries.h"
#include "tests/support/checkpoint_writer.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

using namespace std::string_literals;

TEST(Printable, KeepsPrintableText) {
  EXPECT_EQ(printable("a \u00e9 \U0001f600 \"~"), "a \u00e9 \U0001f600 \"~");
}

TEST(Printable, EscapesControlCharacters) {
  EXPECT_EQ(printable("\0\x1b[2J\n\r\t\x7f"s), "\\x00\\x1b[2J\\n\\r\\t\\x7f");
  EXPECT_EQ(printable("\u0085\u009b"), "\\x85\\x9b") << "C1";
}

TEST(Printable, DoublesBackslash) { EXPECT_EQ(printable("a\\n"), "a\\\\n"); }

TEST(Printable, EscapesNonUtf8Bytes) {
  EXPECT_EQ(printable("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(printable("\xc0\x80"), "\\xc0\\x80");
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");
}

TEST(Printable, EscapesReorderingAndHidingMarks) {
  EXPECT_EQ(printable("a\u202eb\u200b\u2066\ufeff\u2028"), "a\\u202eb\\u200b\\u2066\\ufeff\\u2028");
}

TEST(PrintableJson, EscapesControlCharactersAsJson) {
  EXPECT_EQ(printable_json("{\"a\u009b2J\": \"\x7f\u202e\ufeff\"}\n"),
            "{\"a\\u009b2J\": \"\\u007f\\u202e\\ufeff\"}\n");
  EXPECT_EQ(printable_json("[\"\u00e9 \\\\ \U0001f600\",\n 1]"),
            "[\"\u00e9 \\\\ \U0001f600\",\n 1]");
}

// See https://www.w3.org/TR/xml/#charsets, which discourages C1 and DEL. A single surrogate would
// be written as bytes that are not UTF-8.
TEST(Printable, EscapesCharactersInvalidInXml) {
  EXPECT_EQ(printable("a\xEF\xBF\xBE\xEF\xBF\xBFz"), "a\\ufffe\\uffffz");
  EXPECT_EQ(printable("\xEF\xBF\xBD"), "\xEF\xBF\xBD");
  EXPECT_EQ(printable("\xED\xA0\x80"), "\\xed\\xa0\\x80");
  EXPECT_EQ(printable_json("\"\xEF\xBF\xBF\""), "\"\\uffff\"");
  for (char c = 0; c < 0x20; ++c) EXPECT_TRUE(printable(std::string(1, c)).starts_with('\\'));
}

TEST(Printable, EscapesAllTerminalControlBytes) {
  RandomBytes random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string text(random.next() % 20, '\0');
    for (char& c : text) c = static_cast<char>(random.next());

    const std::string shown = printable(text);

    EXPECT_TRUE(is_utf8(shown));
    for (const char c : shown) {
      const auto byte = static_cast<unsigned char>(c);
      ASSERT_TRUE(byte >= 0x20 && byte != 0x7f);
    }
  }
}

TEST(WithoutQueries, RemovesPossibleSecretsFromUrls) {
  struct Case {
    const char *typed, *shown;
  };
  for (const Case& c : {
           Case{"https://h/m?X-Amz-Signature=S", "https://h/m"},
           Case{"HTTPS://h/m?a b c#d", "HTTPS://h/m"},
           Case{"--timeout=https://u:p@h:1/m#S", "--timeout=https://h:1/m"},
           Case{"add http://h/m?S::v as q", "add http://h/m as q"},
           Case{"lora=https://h/m,edit=htps://u:p@h/e?S", "lora=https://h/m,edit=htps://h/e"},
           Case{"lora=https://h/m?S,edit=https://h/e", "lora=https://h/m"},
           Case{"s3://AK:S@b/k?v", "s3://b/k?v"},
           Case{"hf://org/name@v1/f", "hf://org/name@v1/f"},
           Case{"h/m?X-Amz-Date=1&X-Amz-Signature=S", "h/m"},
           Case{"h/m?token=S&u=https://h/", "h/m"},
           Case{"https:/h/m?Sig=S", "https:/h/m"},
           Case{"is it a file? no: a=b://c", "is it a file? no: a=b://c"},
           Case{"a?b", "a?b"},
           Case{"", ""},
       }) {
    EXPECT_EQ(without_queries(c.typed), c.shown);
  }
  const std::string url = "https://h/" + std::string(300, 'm') + "?" + std::string(300, 'S');
  EXPECT_EQ(in_quotes(url).find('S'), std::string::npos);
  EXPECT_STREQ(Error(ErrorCode::kUsage, "https://h/m?S", "not https://u:p@h/?S").what(),
               "https://h/m: not https://h/");
  std::string many;
  for (int i = 0; i < 100'000; ++i) many += "a://";
  EXPECT_LT(without_queries(many).size(), 1000U);
}

TEST(InQuotes, EscapesQuotes) { EXPECT_EQ(in_quotes("a\"b\\"), "\"a\\\"b\\\\\""); }

TEST(InQuotes, CutsMiddleOutOfLongText) {
  EXPECT_EQ(in_quotes(std::string(200, 'a')), "\"" + std::string(200, 'a') + "\"");
  EXPECT_EQ(in_quotes(std::string(100, 'a') + std::string(101, 'b')),
            "\"" + std::string(96, 'a') + "..." + std::string(96, 'b') + "\"");
}

TEST(InQuotes, CutsLongTextBetweenCharacters) {
  std::string text = "x";
  for (int i = 0; i < 200; ++i) text += "\u00e9";
  EXPECT_EQ(in_quotes(text).find("\\x"), std::string::npos);
}

TEST(JsonString, RoundTripsThroughJsonParser) {
  const std::string text = "\"\\/\b\f\n\r\t\0\x1f\x7f\u00e9\U0001f600"s;
  EXPECT_EQ(nlohmann::json::parse(json_string(text)).get<std::string>(), text);
}

// Returns every byte, by itself and between other bytes, and valid and broken UTF-8.
std::vector<std::string> strange_texts() {
  std::vector<std::string> texts{"",
                                 "\u00e9\u20ac\U0001f600",
                                 "\xc3",
                                 "\xe2\x82",
                                 "\xed\xa0\x80",
                                 "\xf4\x90\x80\x80",
                                 "\x80\x80 a",
                                 "\u202e\u200b\ufeff\u0085"};
  for (int byte = 0; byte < 256; ++byte) {
    texts.emplace_back(1, static_cast<char>(byte));
    texts.push_back("a" + texts.back() + "\u00e9");
  }
  return texts;
}

TEST(TextWriter, CountsBytesWithoutWriting) {
  for (const std::string& text : strange_texts()) {
    std::string written;
    TextWriter writer(written);
    TextWriter counter;

    for (TextWriter* out : {&writer, &counter}) {
      out->add(text).number(0).json(text).number(~std::uint64_t{0}).printable(text);
      out->add("\"").json_inside(text).add("\"");
    }

    EXPECT_EQ(written, text + "0" + json_string(text) + "18446744073709551615" + printable(text) +
                           json_string(text));
    EXPECT_EQ(writer.size(), written.size());
    EXPECT_EQ(counter.size(), written.size()) << written;
  }
}

TEST(JsonString, ReplacesNonUtf8Bytes) { EXPECT_EQ(json_string("a\xff"), "\"a\ufffd\""); }

TEST(IsUtf8, AcceptsWellFormedText) {
  for (const char* text :
       {"", "a", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
        "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(is_utf8(text)) << printable(text);
  }
  EXPECT_TRUE(is_utf8("\0"s));
}

TEST(IsUtf8, RejectsMalformedText) {
  for (const char* text : {"\x80",
                           "\xbf",
                           "\xc0\x80",
                           "\xc1\xbf",
                           "\xc2",
                           "\xc2z",
                           "\xe0\x80\x80",
                           "\xe0\x9f\xbf",
                           "\xe2\x82",
                           "\xed\xa0\x80",
                           "\xed\xbf\xbf",
                           "\xf0\x80\x80\x80",
                           "\xf0\x8f\xbf\xbf",
                           "\xf4\x90\x80\x80",
                           "\xf5\x80\x80\x80",
                           "\xf8\x88\x80\x80\x80",
                           "\xfe",
                           "\xff",
                           "a\xff",
                           "\xf0\x9f\x98"}) {
    EXPECT_FALSE(is_utf8(text)) << printable(text);
  }
}

TEST(Utf8Floor, ReturnsLastCharacterBoundary) {
  const std::string text = "a\u00e9\U0001f600b";  // 1, 2, 4, 1 bytes
  const std::size_t expected[] = {0, 1, 1, 3, 3, 3, 3, 7, 8, 8};
  for (std::size_t n = 0; n < std::size(expected); ++n)
    EXPECT_EQ(utf8_floor(text, n), expected[n]) << n;
}

TEST(Utf8Floor, CutsAtMost3BytesFromNonUtf8Text) {
  const std::string text = "a" + std::string(100, '\x93');

  EXPECT_EQ(utf8_floor(text, 50), 50u);
  EXPECT_EQ(utf8_floor(text, 4), 4u);
  EXPECT_EQ(utf8_floor(text, 3), 0u);
  EXPECT_EQ(utf8_floor(std::string(100, '\x93'), 2), 2u);
}

TEST(HumanBytes, UsesUnitsOf1024) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.0 KiB");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(5ULL << 30), "5.0 GiB");
  EXPECT_EQ(human_bytes(std::numeric_limits<std::uint64_t>::max()), "16.0 EiB");
}

TEST(HumanBytes, DoesNotRoundUpTo1024Units) { EXPECT_EQ(human_bytes((1ULL << 20) - 1), "1.0 MiB"); }

TEST(Rfc3339, WritesUtcWithNanoseconds) {
  EXPECT_EQ(rfc3339(0, 0), "1970-01-01T00:00:00.000000000Z");
  EXPECT_EQ(rfc3339(1769846400, 5), "2026-01-31T08:00:00.000000005Z");
  EXPECT_EQ(rfc3339(951782399, 999999999), "2000-02-28T23:59:59.999999999Z");
  EXPECT_EQ(rfc3339(-1, 0), "1969-12-31T23:59:59.000000000Z");
}

// A source may have any mtime that its file system can store.
TEST(Rfc3339, WritesYearWithFourDigits) {
  EXPECT_EQ(rfc3339(-40000000000, 0), "0702-06-15T00:53:20.000000000Z");
}

TEST(Rfc3339, WritesSecondsIfYearIsOutside0To9999) {
  EXPECT_EQ(rfc3339(253402300799, 0), "9999-12-31T23:59:59.000000000Z");
  EXPECT_EQ(rfc3339(253402300800, 7), "@253402300800");
  EXPECT_EQ(rfc3339(-62167219200, 0), "0000-01-01T00:00:00.000000000Z");
  EXPECT_EQ(rfc3339(-62167219201, 0), "@-62167219201");
  EXPECT_EQ(rfc3339(std::numeric_limits<std::int64_t>::max(), 0), "@9223372036854775807");
}

TEST(NaturalOrder, ComparesDigitsAsNumbers) {
  const std::vector<std::string_view> sorted{"",    "7",     "a",       "a1",   "a02", "a2",
                                             "a10", "a10.b", "a10.b10", "a10b", "b1"};
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    EXPECT_TRUE(natural_order(sorted[i - 1], sorted[i]) < 0) << sorted[i - 1] << " " << sorted[i];
  }
  EXPECT_TRUE(natural_order("a02", "a2b") < 0);
  EXPECT_TRUE(natural_order("18446744073709551615x", "18446744073709551616x") < 0);
  EXPECT_TRUE(natural_order("x", "x") == 0);
}

// The reference: computes the full table of Wagner and Fischer.
std::size_t slow_edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> table(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        table[i][j] = i + j;
      } else {
        table[i][j] = std::min({table[i - 1][j] + 1, table[i][j - 1] + 1,
                                table[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      }
    }
  }
  return table[a.size()][b.size()];
}

TEST(EditDistance, MatchesFullTableUpToMaximum) {
  std::mt19937 random(7);
  const auto text = [&] {
    std::string word;
    while (random() % 9 != 0) word += static_cast<char>('a' + random() % 3);
    return word;
  };
  for (int i = 0; i < 5000; ++i) {
    const std::string a = text();
    const std::string b = i % 2 == 0 ? text() : text() + a + text();
    for (std::size_t most = 0; most < 5; ++most) {
      EXPECT_EQ(edit_distance(a, b, most), std::min(slow_edit_distance(a, b), most + 1))
          << a << " " << b << " " << most;
    }
  }
}

TEST(NaturalOrder, KeysCompareLikeTexts) {
  RandomBytes random(1);
  const std::string_view characters = "0019a.~ ";
  const auto text = [&] {
    std::string made;
    for (std::uint64_t length = random.next() % 14; made.size() < length;) {
      made += characters[random.next() % characters.size()];
    }
    return made;
  };
  for (int i = 0; i < 100'000; ++i) {
    const std::string a = text(), b = text();
    std::string key_a, key_b;
    append_natural_key(key_a, a);
    append_natural_key(key_b, b);
    const auto order = natural_order(a, b);
    EXPECT_TRUE(key_a == key_b || (key_a <=> key_b) == order) << a << " and " << b;
    EXPECT_TRUE(key_a != key_b || a == b || (a + b).find('0') != std::string::npos)
        << a << " and " << b;
  }
}

}  // namespace
}  // namespace stfs::test
