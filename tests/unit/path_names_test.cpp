// Tests of tensor name <-> path with examples, and of properties that hold for any set of names.
#include "core/base/text.h"
#include "core/checkpoint/names.h"
#include "core/checkpoint/tree.h"
#include "tests/support/checkpoint_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs::test {
namespace {

using namespace std::string_literals;

std::string encode(std::string_view name, const std::vector<std::size_t>& prefixes = {}) {
  return encode_path(name, prefixes).path;
}

// The digest in a cut component, from `printf '%s' COMPONENT | sha256sum | head -c 16`.
constexpr std::string_view kDigestOf241As = "ec6e326ef29fe322";

TEST(PathNames, EncodeOnlyInvalidPathParts) {
  const struct {
    const char* rule;
    std::vector<std::pair<std::string, std::string>> names;  // pairs of name and path
  } kRows[] = {
      {"an ordinary name stays",
       {{"model.layers.0/q_proj.weight", "model.layers.0/q_proj.weight"},
        {"\u00e9 a~b\\*?\"<>|:", "\u00e9 a~b\\*?\"<>|:"},
        {"\x80\xff", "\x80\xff"}}},
      {"percent signs and control characters",
       {{"50%/%2F", "50%25/%252F"}, {"a\0b\n\x1f\x7f"s, "a%00b%0A%1F%7F"}}},
      {"only the dots of . and ..",
       {{".", "%2E"},
        {"..", "%2E%2E"},
        {"a/../b/./c", "a/%2E%2E/b/%2E/c"},
        {"...", "..."},
        {"..a/.b", "..a/.b"}}},
      {"the dot of a first .stfs",
       {{".stfs", "%2Estfs"},
        {".stfs/info.json", "%2Estfs/info.json"},
        {"a/.stfs", "a/.stfs"},
        {".stfs2", ".stfs2"}}},
      {"slashes that separate nothing",
       {{"/", "%2F"},
        {"//", "%2F%2F"},
        {"/a", "%2Fa"},
        {"a/", "a%2F"},
        {"a//b", "a/%2Fb"},
        {"a///b", "a/%2F%2Fb"},
        {"/etc/passwd", "%2Fetc/passwd"}}},
      {"the empty name", {{"", "%"}}},
  };
  for (const auto& [rule, names] : kRows) {
    for (const auto& [name, path] : names) EXPECT_EQ(encode(name), path) << rule;
  }
}

TEST(PathNames, EncodeSlashAfterTensorPrefix) {
  EXPECT_EQ(encode("a/b", {1}), "a%2Fb");
  EXPECT_EQ(encode("a/b/c", {1}), "a%2Fb/c");
  EXPECT_EQ(encode("a/b/c", {3}), "a/b%2Fc");
  EXPECT_EQ(encode("a/b/c", {1, 3}), "a%2Fb%2Fc");
  EXPECT_EQ(encode("ab/c", {0, 1}), "ab/c");
}

TEST(PathNames, KeepComponentOf240BytesAndCut241) {
  const std::string longest(240, 'a');
  EXPECT_EQ(encode(longest), longest);
  EXPECT_EQ(encode(longest + "a"), std::string(223, 'a') + "~" + std::string(kDigestOf241As));
  EXPECT_EQ(encode("b/" + longest + "a/c"),
            "b/" + std::string(223, 'a') + "~" + std::string(kDigestOf241As) + "/c");
}

TEST(PathNames, ReportCutComponent) {
  EXPECT_FALSE(encode_path(std::string(240, 'a')).cut);
  EXPECT_TRUE(encode_path(std::string(241, 'a')).cut);
  EXPECT_TRUE(encode_path("x/" + std::string(241, 'a')).cut);
}

TEST(PathNames, CutBetweenCharacters) {
  std::string name(222, 'a');
  for (int i = 0; i < 20; ++i) name += "\u00e9";
  const std::string path = encode(name);
  EXPECT_EQ(path.substr(0, 223), std::string(222, 'a') + "~");
  EXPECT_EQ(path.size(), 222U + 17);
}

// A cut component must be recognizable, because otherwise another name could have the same path.
TEST(PathNames, CutNonUtf8NameAtSameLength) {
  const std::string path = encode("a" + std::string(300, '\x93'));

  EXPECT_EQ(path.size(), kMaxComponent);
  EXPECT_EQ(path.find('~'), kMaxComponent - 17);
}

TEST(PathNames, NeverCutInsideEscape) {
  for (std::size_t before = 218; before <= 224; ++before) {
    const std::string name = std::string(before, 'a') + "%" + std::string(40, 'b');
    const std::string path = encode(name);
    const std::string kept = path.substr(0, path.size() - 17);
    EXPECT_TRUE(kept == std::string(before, 'a') || kept.find("%25") == before ||
                kept == std::string(223, 'a'))
        << path;
    EXPECT_EQ(kept.find('%') == std::string::npos || kept.size() - kept.find('%') >= 3, true)
        << path;
  }
}

TEST(PathNames, CutNameResemblingCutName) {
  const std::string cut = encode(std::string(241, 'a'));
  const std::string twice = encode(cut);
  EXPECT_NE(twice, cut);
  EXPECT_EQ(twice.size(), 240U);
  EXPECT_NE(encode("x~0123456789abcdef"), "x~0123456789abcdef");
  EXPECT_EQ(encode("x~0123456789ABCDEF"), "x~0123456789ABCDEF") << "the digits are lower-case";
  EXPECT_EQ(encode("x~0123456789abcde"), "x~0123456789abcde");
}

TEST(PathNames, NameResemblingCutNameIsNotPlain) {
  EXPECT_FALSE(is_plain_name("x~0123456789abcdef"));
  EXPECT_TRUE(is_plain_name("x~0123456789ABCDEF"));
  EXPECT_TRUE(is_plain_name("x~0123456789abcde"));
}

TEST(PathNames, EncodeKeyAsOneComponent) {
  EXPECT_EQ(encode_component("a/b"), "a%2Fb");
  EXPECT_EQ(encode_component(""), "%");
  EXPECT_EQ(encode_component(".."), "%2E%2E");
  EXPECT_EQ(encode_component(".stfs"), ".stfs");
  EXPECT_EQ(encode_component("\n"), "%0A");
  EXPECT_EQ(encode_component(std::string(300, 'k')).size(), 240U);
}

TEST(PathNames, RejectNonCanonicalEscapes) {
  for (const char* path : {"%2", "a%", "%zz", "%2f", "%41", "%80", "%C3", "%0a"}) {
    EXPECT_EQ(decode_path(path), std::nullopt) << path;
  }
}

// Makes random sets of names with many similar names. They are the same in every run.
class Names {
 public:
  explicit Names(std::uint64_t seed) : random_(seed) {}

  std::string name() {
    static const std::vector<std::string> kParts{"/",    "/",    ".", "..",    "%",   "\0"s,
                                                 "\x1f", "\x7f", "~", "a",     "a",   "\u00e9",
                                                 "%2F",  "%2E",  "b", ".stfs", "a/b", "%"};
    static const std::vector<std::string> kLong{std::string(241, 'a'),
                                                std::string(240, 'a'),
                                                std::string(223, 'a') + "~ec6e326ef29fe322",
                                                std::string(222, 'a') + "\u00e9\u00e9\u00e9",
                                                std::string(100, '%'),
                                                std::string(80, '\n'),
                                                "x~0123456789abcdef",
                                                std::string(230, '/')};
    std::string out;
    for (std::uint64_t i = random_.next() % 6; i > 0; --i) {
      out += random_.next() % 24 == 0 ? pick(kLong) : pick(kParts);
    }
    return out;
  }

  std::vector<std::string> set(std::size_t most) {
    std::set<std::string> names;
    for (std::size_t i = random_.next() % (most + 1); i > 0; --i) names.insert(name());
    return {names.begin(), names.end()};
  }

 private:
  const std::string& pick(const std::vector<std::string>& from) {
    return from[random_.next() % from.size()];
  }
  RandomBytes random_;
};

std::vector<std::string> components_of(const std::string& path) {
  std::vector<std::string> out(1);
  for (const char c : path) {
    if (c == '/') {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

bool looks_cut(std::string_view component) {
  return component.size() >= 17 && component[component.size() - 17] == '~' &&
         component.find_first_not_of("0123456789abcdef", component.size() - 16) ==
             std::string_view::npos;
}

// Checks the rules for a single path, which do not depend on other names.
void expect_wellformed(const std::string& name, const std::string& path) {
  const bool is_empty = path == "%";
  EXPECT_EQ(is_empty, name.empty());
  const std::vector<std::string> components = components_of(path);
  EXPECT_NE(components.front(), ".stfs");
  for (const std::string& component : components) {
    EXPECT_FALSE(component.empty()) << printable(path);
    EXPECT_NE(component, ".");
    EXPECT_NE(component, "..");
    EXPECT_LE(component.size(), 240U) << printable(path);
    EXPECT_TRUE(!is_utf8(name) || is_utf8(component)) << printable(path);
    for (std::size_t i = 0; i < component.size() && !is_empty; ++i) {
      const auto byte = static_cast<unsigned char>(component[i]);
      EXPECT_TRUE(byte >= 0x20 && byte != 0x7f) << printable(path);
      if (byte == '%') {
        EXPECT_LE(i + 3, component.size()) << "an escape was cut: " << printable(path);
        EXPECT_EQ(component.substr(i + 1, 2).find_first_not_of("0123456789ABCDEF"),
                  std::string::npos)
            << printable(path);
      }
    }
  }
}

// Returns the paths that PathTree gives to a set of sorted, different names.
std::vector<std::string> paths_of(const std::vector<std::string>& names) {
  std::vector<std::uint32_t> by_name(names.size());
  std::iota(by_name.begin(), by_name.end(), 0U);
  const PathTree tree([&](std::uint32_t i) { return std::string_view(names[i]); }, by_name);
  std::vector<std::string> paths;
  for (const std::uint32_t i : by_name) paths.emplace_back(tree.path(i));
  return paths;
}

// Checks that no two tensors share a path, that no file is a directory, and that each path is
// decoded to its name.
void expect_good_paths(const std::vector<std::string>& names) {
  const std::vector<std::string> paths = paths_of(names);
  const std::set<std::string> files(paths.begin(), paths.end());
  EXPECT_EQ(files.size(), names.size()) << "two tensors share a path";
  for (std::size_t i = 0; i < names.size(); ++i) {
    SCOPED_TRACE(printable(names[i]).substr(0, 300));
    expect_wellformed(names[i], paths[i]);
    for (std::size_t slash = paths[i].find('/'); slash != std::string::npos;
         slash = paths[i].find('/', slash + 1)) {
      EXPECT_FALSE(files.contains(paths[i].substr(0, slash))) << "a file is a directory";
    }
    if (std::ranges::none_of(components_of(paths[i]), looks_cut)) {
      EXPECT_EQ(decode_path(paths[i]), names[i]);
    }
  }
}

TEST(PathNames, RandomSetsAreDistinctWellFormedAndDecodable) {
  Names names(1);
  for (int round = 0; round < 3000 && !::testing::Test::HasFailure(); ++round) {
    expect_good_paths(names.set(12));
  }
}

TEST(PathNames, LargeRandomSetIsDistinctWellFormedAndDecodable) {
  Names names(2);
  expect_good_paths(names.set(20'000));
}

TEST(PathNames, AllShortNamesAreDistinctWellFormedAndDecodable) {
  // All names of up to four characters, most of which have a meaning in paths.
  const std::string alphabet = "/.%\0\x1f\x7f~a2F"s;
  std::vector<std::string> names{""};
  for (std::size_t begin = 0, length = 0; length < 4; ++length) {
    const std::size_t end = names.size();
    for (; begin < end; ++begin) {
      for (const char c : alphabet) names.push_back(names[begin] + c);
    }
  }
  std::ranges::sort(names);
  expect_good_paths(names);
}

TEST(PathNames, SmallSetsAreDistinctWellFormedAndDecodable) {
  // Tests all pairs and triples, because the path of a name depends on the other names.
  const std::vector<std::string> names{"",     "%",      "%2F",  "/",     "//",
                                       "/a",   "a",      "a%2F", "a%2Fb", "a/",
                                       "a//b", "a/%2Fb", "a/b",  "a/b/",  "a/b/c"};
  for (std::size_t i = 0; i < names.size(); ++i) {
    for (std::size_t j = i + 1; j < names.size(); ++j) {
      for (std::size_t k = j; k < names.size() && !::testing::Test::HasFailure(); ++k) {
        std::set<std::string> chosen{names[i], names[j], names[k]};
        expect_good_paths({chosen.begin(), chosen.end()});
      }
    }
  }
}

TEST(PathNames, DoNotDependOnTensorOrder) {
  Names source(3);
  for (int round = 0; round < 300; ++round) {
    const std::vector<std::string> names = source.set(12);
    const std::vector<std::string> paths = paths_of(names);
    // The same names with reversed numbers.
    std::vector<std::uint32_t> by_name(names.size());
    for (std::uint32_t i = 0; i < names.size(); ++i) {
      by_name[i] = static_cast<std::uint32_t>(names.size()) - 1 - i;
    }
    const PathTree tree(
        [&](std::uint32_t i) { return std::string_view(names[names.size() - 1 - i]); }, by_name);
    for (std::uint32_t i = 0; i < names.size(); ++i) EXPECT_EQ(tree.path(by_name[i]), paths[i]);
  }
}

TEST(PathNames, AcceptNonUtf8Bytes) {
  const std::string long_name(300, '\x80');
  expect_good_paths({"\x80", "\xff/\xfe", long_name});
}

TEST(PathNames, TreeViewTurnsDotsIntoDirectories) {
  const auto dots = [](std::string_view name, const std::vector<std::size_t>& prefixes = {}) {
    return encode_path(name, prefixes, PathStyle::kDots).path;
  };
  EXPECT_EQ(dots("a.b/c"), "a/b/c");
  EXPECT_EQ(dots("a.b", {1}), "a.b");
  EXPECT_EQ(dots("a/b", {1}), "a%2Fb");
  EXPECT_EQ(dots("a./b"), "a/%2Fb");
  EXPECT_EQ(dots("a/.b"), "a/.b");
  EXPECT_EQ(dots(".stfs.x"), "%2Estfs/x");
  EXPECT_EQ(dots("100%.\n"), "100%25/%0A");
  EXPECT_EQ(dots(std::string(300, 'a') + ".b").size(), kMaxComponent + 2);
}

TEST(PathNames, EscapedDotsAreDecodable) {
  const std::string escaped = encode_path("a.b/c..d/.", {}, PathStyle::kDotsEscaped).path;
  EXPECT_EQ(escaped, "a%2Eb/c%2E%2Ed/%2E");
  EXPECT_EQ(decode_path(escaped), "a.b/c..d/.");
}

}  // namespace
}  // namespace stfs::test
