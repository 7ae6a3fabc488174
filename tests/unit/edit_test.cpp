// Tests of edits: splitting lines, substitutions, casts, and the effect of each command.
#include "core/base/error.h"
#include "core/base/pattern.h"
#include "core/checkpoint/checkpoint.h"
#include "core/format/narrow.h"
#include "core/layer/edit/cast.h"
#include "core/layer/edit/edit_layer.h"
#include "core/layer/edit/edit_lines.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

using namespace std::string_literals;

std::vector<EditLine> edit_lines(const std::string& argument) {
  std::vector<EditLine> lines;
  for_each_edit_line(argument, [&](const EditLine& line) { lines.push_back(line); });
  return lines;
}

TEST(EditLines, BlanksSeparateQuotesGroupAndBackslashIsLiteral) {
  const auto lines = edit_lines(
      "/d/f.edit\n"
      "# comment\n"
      "\n"
      " keep 'a b' \"c # d\" e#f g\\ h # comment\r\n"
      "metadata k ''\n"
      "drop x'y'z");
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0].words, (std::vector<std::string>{"keep", "a b", "c # d", "e#f", "g\\", "h"}));
  EXPECT_EQ(lines[0].number, 3U);
  EXPECT_EQ(lines[0].directory, "/d");
  EXPECT_EQ(lines[1].words, (std::vector<std::string>{"metadata", "k", ""}));
  EXPECT_EQ(lines[2].words, (std::vector<std::string>{"drop", "xyz"}));
  EXPECT_THROW(edit_lines("/f\nkeep 'a"), Error);
}

TEST(EditLines, PublicFormOmitsSecretsOfUrls) {
  EXPECT_EQ(public_edits("/f\nadd https://me:pw@h/x.npy?sig=1\nadd 'https://h/k?x=1::n' as m\nadd "
                         "s3://b/k?x::n\nkeep ?*\n"),
            "/f\nadd https://h/x.npy\nadd 'https://h/k::n' as m\nadd s3://b/k?x::n\nkeep ?*\n");
}

TEST(Substitutions, FollowSed) {
  const auto applied = [](const char* text, const char* name) {
    return Substitution(text).apply(name).value_or("(none)");
  };
  EXPECT_EQ(applied("s/a/b/", "banana"), "bbnana");
  EXPECT_EQ(applied("s/a/b/g", "banana"), "bbnbnb");
  EXPECT_EQ(applied("s/x/b/", "banana"), "(none)");
  EXPECT_EQ(applied("s/(a)(n)/\\2\\1/g", "banana"), "bnanaa");
  EXPECT_EQ(applied("s/an/[&]/", "banana"), "b[an]ana");
  EXPECT_EQ(applied("s/an/[\\0\\&\\\\]/", "banana"), "b[an&\\]ana");
  EXPECT_EQ(applied("s|a/n|x|", "ba/na"), "bxa");
  EXPECT_EQ(applied("s/a\\/n/x/", "ba/na"), "bxa");
  EXPECT_EQ(applied("s/^model\\.//", "model.model.x"), "model.x");
  EXPECT_EQ(applied("s/^m/x/g", "mm"), "xm");
  EXPECT_EQ(applied("s/$/.x/", "a"), "a.x");
  EXPECT_EQ(applied("s/x*/-/g", "abc"), "-a-b-c-");
  EXPECT_EQ(applied("s/b*/-/g", "abc"), "-a-c-");
  EXPECT_EQ(applied("s/(x)?a/<\\1>/", "a"), "<>");
  for (const char* const text : {"", "s", "s/a", "s/a/b", "s/a/b/x", "s/(/b/", "s/a/\\1/",
                                 "s/a/\\x/", "sabac", "y/a/b/", "s//b/", "s/(?=a)/b/", "s/a/b\\"}) {
    EXPECT_THROW(Substitution{text}, std::invalid_argument) << text;
  }
}

TEST(Substitutions, TakeLinearTimeAndBoundedMemory) {
  const std::string as(2000, 'a');
  EXPECT_EQ(Substitution("s/(a*)*(a*)*(a*)*b/x/").apply(as), std::nullopt);
  EXPECT_THROW(Substitution("s/((((a{100}){100}){100}){100})/x/"), std::invalid_argument);
  EXPECT_THROW(Substitution("s/a/" + std::string(2000, '&') + "&/g").apply(as),
               std::invalid_argument);
}

TEST(Substitutions, AcceptAnyPunctuationAndAnyByte) {
  for (const char c : "/|,;:!@%^~#-_=+."s) {
    if (c == '\0') continue;
    const std::string d(1, c);
    EXPECT_EQ(Substitution("s" + d + "b" + d + "x" + d + "g").apply("bab"), "xax") << c;
    EXPECT_EQ(Substitution("s" + d + "a" + d + "[\\" + d + "]" + d).apply("bab"), "b[" + d + "]b")
        << c;
  }
  EXPECT_EQ(Substitution("s/x*/-/g").apply("\xC3\xA9"), "-\xC3\xA9-");
  EXPECT_EQ(Substitution("s/\\B/_/g").apply("a\xC3\xA9 a"), "a\xC3\xA9_ a");
  EXPECT_EQ(Substitution("s/\\x00/_/").apply("a\0b"s), "a_b");
  EXPECT_EQ(Substitution("s/\xC3\xA9/e/").apply("caf\xC3\xA9"), "cafe");
}

// Compares casts of many numbers with the nearest value of the type.
class Casts : public ::testing::Test {
 protected:
  static std::vector<float> all_values(DType type) {
    std::vector<float> values(256);
    std::vector<std::byte> codes(256);
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i);
    type_info(type).to_f32(codes.data(), codes.size(), values.data());
    return values;
  }

  template <class T>
  std::string cast_all(const std::vector<T>& values, DType from, DType to) const {
    write_file(dir_ / "raw",
               {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
    Sources sources;
    const auto source = sources.open((dir_ / "raw").string());
    Content raw;
    raw.extent(*source, 0, source->size());
    Content content;
    content.production(cast(std::move(raw), from, to, values.size()));
    std::string out(content.size(), '\0');
    EXPECT_EQ(content.copy(0, std::as_writable_bytes(std::span(out))), 0);
    return out;
  }

  TempDir dir_;
};

TEST_F(Casts, To8BitTypesRoundToNearestEven) {
  for (const DType type :
       {DType::kF8E4M3, DType::kF8E5M2, DType::kF8E4M3Fnuz, DType::kF8E5M2Fnuz}) {
    const std::vector<float> codes = all_values(type);
    std::map<float, unsigned> by_value;  // finite values, and only the positive zero
    for (unsigned i = 0; i < codes.size(); ++i) {
      if (std::isfinite(codes[i])) by_value.try_emplace(codes[i], i);
    }
    std::vector<float> values;
    for (auto at = by_value.begin(); std::next(at) != by_value.end(); ++at) {
      const float a = at->first, b = std::next(at)->first;
      const float middle = a + (b - a) / 2;
      for (const float x : {a, middle, std::nextafter(middle, a), std::nextafter(middle, b)}) {
        values.push_back(x);
      }
    }
    const std::string out = cast_all(values, DType::kF32, type);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto above = by_value.lower_bound(values[i]);
      const auto below = above->first == values[i] ? above : std::prev(above);
      const float up = above->first - values[i], down = values[i] - below->first;
      const unsigned nearest = up < down                  ? above->second
                               : down < up                ? below->second
                               : (above->second & 1) == 0 ? above->second
                                                          : below->second;
      const auto code = static_cast<unsigned char>(out[i]);
      EXPECT_EQ(codes[code], codes[nearest]) << dtype_name(type) << " of " << values[i];
    }
  }
}

TEST_F(Casts, OverflowAndNanMatchMlDtypes) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> values{464, 480, -kInfinity, kNan, -0.0F, 61440, 57344, -1e30F};
  const auto codes_of = [&](DType type) {
    std::vector<int> codes;
    for (const char c : cast_all(values, DType::kF32, type)) {
      codes.push_back(static_cast<unsigned char>(c));
    }
    return codes;
  };
  EXPECT_EQ(codes_of(DType::kF8E4M3),
            (std::vector<int>{0x7E, 0x7F, 0xFF, 0x7F, 0x80, 0x7F, 0x7F, 0xFF}));
  EXPECT_EQ(codes_of(DType::kF8E5M2),
            (std::vector<int>{0x5F, 0x60, 0xFC, 0x7E, 0x80, 0x7C, 0x7B, 0xFC}));
  EXPECT_EQ(codes_of(DType::kF8E4M3Fnuz),
            (std::vector<int>{0x80, 0x80, 0x80, 0x80, 0x00, 0x80, 0x80, 0x80}));
  EXPECT_EQ(codes_of(DType::kF8E5M2Fnuz),
            (std::vector<int>{0x63, 0x64, 0x80, 0x80, 0x00, 0x80, 0x7F, 0x80}));
}

TEST_F(Casts, FromF64RoundOnlyOnce) {
  // Rounding to binary32 first would give a tie, which would round down to even.
  const double above = 1 + std::ldexp(1, -8) + std::ldexp(1, -40);
  const std::string bf16 = cast_all(std::vector<double>{above}, DType::kF64, DType::kBF16);
  EXPECT_EQ(bf16, "\x81\x3F");
  const std::string f32 = cast_all(std::vector<double>{0.1}, DType::kF64, DType::kF32);
  float back = 0;
  std::memcpy(&back, f32.data(), sizeof back);
  EXPECT_EQ(back, 0.1F);
  const std::string f64 = cast_all(std::vector<float>{0.1F}, DType::kF32, DType::kF64);
  double wide = 0;
  std::memcpy(&wide, f64.data(), sizeof wide);
  EXPECT_EQ(wide, static_cast<double>(0.1F));
}

class EditTest : public ::testing::Test {
 protected:
  EditTest() {
    write_safetensors(dir_ / "base.safetensors",
                      {{"model.a.weight", "F32", {2, 2}, "aaaabbbbccccdddd"},
                       {"model.b.weight", "F32", {4}, "eeeeffffgggghhhh"},
                       {"steps", "I64", {}, "12345678"},
                       {"lm_head.weight", "BF16", {2, 1}, "ijkl"}},
                      {{{"format", "pt"}, {"title", "old"}}});
    write_safetensors(dir_ / "other.safetensors",
                      {{"x.1", "F32", {4}, std::string(16, '1')},
                       {"x.2", "I8", {3}, "222"},
                       {"y", "F32", {2, 2}, std::string(16, 'y')}},
                      {{{"secret", "of the other"}}});
    write_file(dir_ / "a.npy",
               "\x93NUMPY\1\0\x76\0{'descr': '<i2', 'fortran_order': False, 'shape': (3,), }"s +
                   std::string(0x76 - 58, ' ') + "\n" + "112233");
  }

  std::unique_ptr<const Checkpoint> load(const std::string& edits) const {
    Layers layers;
    choose(layers, kEditOption, edit_argument((dir_ / "e.edit").string(), edits));
    const std::string path = dir_ / "base.safetensors";
    return std::make_unique<const Checkpoint>(std::span(&path, 1), LoadOptions{.layers = layers});
  }
  static std::string bytes_of(const Checkpoint& checkpoint, std::uint32_t number) {
    const Content content = checkpoint.tensor(number).content();
    std::string bytes(content.size(), '\0');
    EXPECT_EQ(content.copy(0, std::as_writable_bytes(std::span(bytes))), 0);
    return bytes;
  }
  // Returns "NAME DTYPE SHAPE BYTES" of each tensor, sorted by name.
  std::vector<std::string> shown(const std::string& edits) const {
    const auto checkpoint = load(edits);
    std::vector<std::string> lines;
    for (const std::uint32_t i : checkpoint->list().by_name()) {
      const stfs::Tensor tensor = checkpoint->tensor(i);
      lines.push_back(std::string(tensor.name) + " " + std::string(dtype_name(tensor.dtype)) + " " +
                      shape_json(tensor.shape) + " " + bytes_of(*checkpoint, i));
    }
    return lines;
  }
  std::string refusal(const std::string& edits) const {
    try {
      load(edits);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kEdit) << error.what();
      return error.what();
    }
    return "";
  }

  TempDir dir_;
};

const std::string a_line = "model.a.weight F32 [2,2] aaaabbbbccccdddd";
const std::string b_line = "model.b.weight F32 [4] eeeeffffgggghhhh";
const std::string head_line = "lm_head.weight BF16 [2,1] ijkl";
const std::string steps_line = "steps I64 [] 12345678";
using Lines = std::vector<std::string>;

TEST_F(EditTest, CommandsShowExpectedTensors) {
  EXPECT_EQ(shown("rename s/model.//"),
            (Lines{"a.weight F32 [2,2] aaaabbbbccccdddd", "b.weight F32 [4] eeeeffffgggghhhh",
                   head_line, steps_line}));
  EXPECT_EQ(shown("keep *.weight\ndrop model.*"), Lines{head_line});
  EXPECT_EQ(shown("keep steps\ncopy s/steps/t/"), (Lines{steps_line, "t I64 [] 12345678"}));
  EXPECT_EQ(shown("keep model.a* \nslice model.a.weight 1,:"),
            Lines{"model.a.weight F32 [2] ccccdddd"});
  EXPECT_EQ(shown("keep model.a* \nslice model.a.weight :,1"),
            Lines{"model.a.weight F32 [2] bbbbdddd"});
  EXPECT_EQ(shown("keep model.b* \nreshape model.b.weight [2,2]"),
            Lines{"model.b.weight F32 [2,2] eeeeffffgggghhhh"});
  EXPECT_EQ(shown("keep *b.weight\nreplace model.b.weight other.safetensors::x.1"),
            Lines{"model.b.weight F32 [4] 1111111111111111"});
  EXPECT_EQ(shown("keep model.a* \nslice model.a.weight 1,:\nrename s/a.weight/c.weight/\n"
                  "slice model.c.weight 0:1"),
            shown("keep model.a* \nslice model.a.weight 1,:\nslice model.a.weight 0:1\n"
                  "rename s/a.weight/c.weight/"))
      << "a line must find the names that earlier lines made";
  EXPECT_EQ(shown("keep *b.weight\nreplace model.b.weight other.safetensors::y --reshape"),
            Lines{"model.b.weight F32 [4] yyyyyyyyyyyyyyyy"});
  EXPECT_EQ(shown("keep steps\nadd other.safetensors::x.*"),
            (Lines{steps_line, "x.1 F32 [4] 1111111111111111", "x.2 I8 [3] 222"}));
  EXPECT_EQ(shown("keep steps\nadd other.safetensors::x.2 as 'a new name'"),
            (Lines{"a new name I8 [3] 222", steps_line}));
  EXPECT_EQ(shown("keep steps\nadd a.npy"), (Lines{"a I16 [3] 112233", steps_line}));
}

TEST_F(EditTest, LinesApplyInOrderAndRenamesWithinLineAtOnce) {
  EXPECT_EQ(
      shown("keep model.*\nrename s/model.([ab])/model.x\\1/\nrename s/xa/b/\nrename s/xb/a/"),
      (Lines{"model.a.weight F32 [4] eeeeffffgggghhhh",
             "model.b.weight F32 [2,2] aaaabbbbccccdddd"}));
  EXPECT_EQ(shown("keep model.*\nrename s/a.weight/c.weight/\nadd other.safetensors::y as "
                  "model.a.weight\ndrop *.c.*\ncast *.a.* f64\nslice model.a.weight 0,0\n"
                  "drop *.b.*")
                .front()
                .substr(0, 22),
            "model.a.weight F64 [] ");
}

TEST_F(EditTest, UneditedAndRenamedTensorsStayStored) {
  const auto checkpoint = load("rename s/steps/count/");
  const auto plain = [&](const char* name) {
    return checkpoint->locator(checkpoint->find(name).value());
  };
  EXPECT_TRUE(plain("lm_head.weight"));
  EXPECT_TRUE(plain("count"));
  EXPECT_EQ(checkpoint->tensor(checkpoint->find("count").value()).computed, nullptr);
}

TEST_F(EditTest, SetsAndRemovesMetadata) {
  const auto entries = [&](const std::string& edits) {
    std::string text;
    const auto checkpoint = load(edits);
    for (const auto& [key, value] : checkpoint->metadata()) {
      text.append(key).append("=").append(value).append(";");
    }
    return text;
  };
  EXPECT_EQ(entries("metadata title 'a new one'"), "format=pt;title=a new one;");
  EXPECT_EQ(entries("metadata a b\nunset title"), "a=b;format=pt;");
  EXPECT_EQ(entries("metadata a b\nunset a\nadd other.safetensors::y"), "format=pt;title=old;");
}

TEST_F(EditTest, RejectsInvalidOrUselessLineWithItsNumber) {
  const std::map<std::string, const char*> rules{
      {"frob x", "not a command"},
      {"keep 'a", "a quote is not closed"},
      {"rename s/(/b/", "not a valid RE2 expression"},
      {"rename s/a/\\1/", "no group 1"},
      {"rename s/a/b/i", "only \"g\" may follow"},
      {"copy s/steps/&&/ 2", "expected copy s/REGEX/NEW/"},
      {"rename s/steps/" + std::string(Substitution::kMaxName, 'x') + "&/", "more than"},
      {"cast m* f8_e8m0", "expected BF16"},
      {"rename", "expected rename s/REGEX/NEW/"},
      {"rename s/a/b/ s/c/d/", "expected rename"},
      {"rename s/zzz/b/", "changes no name"},
      {"rename s/.*/same/", "two tensors would be \"same\""},
      {"keep *", "keeps all"},
      {"keep x*", "matches no name"},
      {"drop model.* x*", "matches no name"},
      {"copy s/zzz/b/", "matches no name"},
      {"copy s/steps/steps/", "two tensors"},
      {"replace nothing other.safetensors::y", "there is no tensor"},
      {"replace steps other.safetensors::y", "its replacement has [2,2]"},
      {"replace model.b.weight other.safetensors::x.2 --reshape", "different numbers of elements"},
      {"replace model.b.weight other.safetensors::x.1 reshape", "only --reshape"},
      {"replace model.b.weight other.safetensors::x*", "names 2 tensors"},
      {"replace steps other.safetensors", "SOURCE::NAME"},
      {"add other.safetensors::z", "has no tensor \"z\""},
      {"add absent.safetensors::z", "absent.safetensors"},
      {"add other.safetensors::y to z", "add FROM [as NAME]"},
      {"add other.safetensors::x* as z", "gives only one name"},
      {"add base.safetensors::steps", "two tensors"},
      {"cast steps bf16", "is I64"},
      {"cast lm_head.weight bf16", "already"},
      {"cast lm_head.weight int4", "expected BF16"},
      {"reshape model.a.weight [3]", "4 elements, but the new shape has 3"},
      {"reshape model.a.weight 4", "a shape such as"},
      {"reshape model.a.weight [4,]", "a shape such as"},
      {"reshape model.a.weight [2,2]", "already"},
      {"slice model.a.weight 5", "index out of bounds"},
      {"slice model.a.weight :", "the whole tensor"},
      {"unset nothing", "there is no key"},
      {"metadata a", "expected metadata KEY VALUE"},
  };
  for (const auto& [edits, rule] : rules) {
    const std::string text = refusal("# first\n" + edits);
    EXPECT_NE(text.find("line 2: "), std::string::npos) << edits << ": " << text;
    EXPECT_NE(text.find(rule), std::string::npos) << edits << ": " << text;
  }
}

TEST_F(EditTest, LimitsGrowthByRepeatedDoubling) {
  std::string doubled, longer;
  for (char i = 'a'; i <= 'z'; ++i) {
    doubled += "copy s/$/" + std::string(1, i) + "/\n";
    longer += "rename s/.+/&&/\n";
  }
  EXPECT_NE(refusal(doubled).find("line 19: there would be more than 1048576 tensors"),
            std::string::npos);
  EXPECT_NE(refusal(longer).find("more than 1048576 bytes"), std::string::npos);
}

TEST_F(EditTest, AcceptsMillionLines) {
  std::string lines;
  for (int i = 0; i < 1'000'000; ++i) lines += "#\n";
  EXPECT_EQ(shown(lines + "keep steps"), Lines{steps_line});
  for (int i = 0; i < 1'000'000; ++i) lines += "x\n";
  EXPECT_NE(refusal(lines).find("line 1000001: \"x\": not a command"), std::string::npos);
}

TEST_F(EditTest, NumbersCommandLineEditsTogether) {
  Layers layers;
  choose_edit_line(layers, dir_.path(), "drop steps");
  choose_edit_line(layers, dir_.path(), "drop nope");
  const std::string path = dir_ / "base.safetensors";
  try {
    const Checkpoint checkpoint(std::span(&path, 1), {.layers = layers});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "-e: line 2: \"nope\" matches no name (Edit)");
  }
  write_file(dir_ / "b.edit", "\xEF\xBB\xBFkeep steps\r\n");
  layers.clear();
  choose(layers, kEditOption, (dir_ / "b.edit").string());
  EXPECT_EQ(Checkpoint(std::span(&path, 1), {.layers = layers}).tensor_count(), 1U);
  write_file(dir_ / "b.edit", "keep steps\0"s);
  EXPECT_THROW(Checkpoint(std::span(&path, 1), {.layers = layers}), Error);
  EXPECT_EQ(refusal("add b.npy").find("(Edit) (Edit)"), std::string::npos);
}

TEST_F(EditTest, ComputedTensorsNameTheirStoredInputs) {
  const auto checkpoint = load(
      "copy s/^model.b/c/\ncast c.weight bf16\nadd other.safetensors::y as z\n"
      "rename s/model.a/n/\ncast n.weight f16\ncast z f16");
  for (const auto& [name, stored] :
       {std::pair("c.weight", "model.b.weight"), std::pair("n.weight", "model.a.weight"),
        std::pair("z", "y")}) {
    const stfs::Tensor tensor = checkpoint->tensor(checkpoint->find(name).value());
    ASSERT_NE(tensor.computed, nullptr) << name;
    EXPECT_EQ(tensor.computed->inputs().front().name, stored);
  }
}

TEST_F(EditTest, AcceptsAnyCharacterInNames) {
  write_safetensors(dir_ / "base.safetensors",
                    {{"a\0b"s, "U8", {1}, "1"}, {"c \"d\"'", "U8", {1}, "2"}});
  EXPECT_EQ(shown("rename s/\\x00/_/\ndrop 'c \"d\"'\"'\""), Lines{"a_b U8 [1] 1"});
}

TEST_F(EditTest, AcceptsDirectoryAsTensorSource) {
  std::filesystem::create_directory(dir_ / "d");
  std::filesystem::copy(dir_ / "other.safetensors", dir_ / "d" / "model.safetensors");
  EXPECT_EQ(shown("keep steps\nadd d::y"), (Lines{steps_line, "y F32 [2,2] yyyyyyyyyyyyyyyy"}));
  EXPECT_EQ(shown("keep steps\nadd " + (dir_ / "d").string() + "::x.2"),
            (Lines{steps_line, "x.2 I8 [3] 222"}));
}

TEST_F(EditTest, RejectsInvalidNumPyFiles) {
  const std::string good = read_file(dir_ / "a.npy");
  const auto rule = [&](const std::string& bytes) {
    write_file(dir_ / "b.npy", bytes);
    return refusal("add b.npy");
  };
  EXPECT_EQ(rule(good), "");
  for (std::size_t size = 0; size < good.size(); ++size) EXPECT_NE(rule(good.substr(0, size)), "");
  EXPECT_NE(rule(good + "x"), "");
  const auto with = [&](const std::string& part, const std::string& by) {
    std::string bytes = good;
    bytes.replace(bytes.find(part), part.size(), by);
    return rule(bytes);
  };
  EXPECT_NE(with("<i2", ">i2").find("type"), std::string::npos);
  EXPECT_NE(with("'<i2'", "[('a"), "");
  EXPECT_NE(with("(3,)", "(4,)"), "");
  EXPECT_NE(with("(3,)", "(3x)"), "");
  EXPECT_EQ(with("False", "True "), "");  // both orders are equal with one dimension
  EXPECT_NE(with("shape", "shapf"), "");
}

TEST_F(EditTest, ReadsEditFileOnce) {
  write_file(dir_ / "e.edit", "keep steps");
  Layers layers;
  choose(layers, kEditOption, (dir_ / "e.edit").string());
  const std::string path = dir_ / "base.safetensors";
  const Checkpoint checkpoint(std::span(&path, 1), {.layers = layers});
  EXPECT_EQ(checkpoint.tensor_count(), 1U);
  write_file(dir_ / "e.edit", "keep model.*");
  const Checkpoint again(std::span(&path, 1), {.layers = checkpoint.layers()});
  EXPECT_EQ(again.tensor_count(), 1U);
}

}  // namespace
}  // namespace stfs::test
