// The rules of the format, as literal bytes. The reference reader gives the same verdicts, except
// for duplicate keys.
#include "core/base/error.h"
#include "core/format/safetensors.h"
#include "core/source/local_file.h"
#include "tests/support/checkpoint_writer.h"

#include <gtest/gtest.h>

#include <limits>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::test {
namespace {

using namespace std::string_literals;

// How a header loads: "ok 2", or the name and message of the error.
struct Verdict {
  std::string word;
  std::string message;
};

template <class Load>
Verdict verdict_of(const Load& load) {
  try {
    const Header header = load();
    return {"ok " + std::to_string(header.tensors.size()), ""};
  } catch (const Error& error) {
    return {std::string(error_name(error.code())), error.what()};
  }
}

struct Case {
  const char* name;
  std::string json;
  std::uint64_t data_length;
  const char* expected;
  const char* message = "";  // a part of it
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

constexpr const char* kJsonError = "InvalidHeaderDeserialization";

// One tensor "a" of two bytes, with more fields after the usual three.
std::string with(const std::string& fields) {
  return R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2])" + fields + "}}";
}
std::string ignored(const std::string& value) { return with(",\"x\":" + value); }
const std::string kPlain = with("");

std::string with_dtype(const std::string& dtype) {
  return R"({"a":{"dtype":)" + dtype + R"(,"shape":[2],"data_offsets":[0,2]}})";
}
std::string with_shape(const std::string& shape) {
  return R"({"a":{"dtype":"U8","shape":)" + shape + R"(,"data_offsets":[0,2]}})";
}
std::string with_offsets(const std::string& offsets) {
  return R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)" + offsets + "}}";
}
std::string with_metadata(const std::string& metadata) {
  return R"({"__metadata__":)" + metadata +
         R"(,"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
}
std::string named(const std::string& key) {
  return "{\"" + key + R"(":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
}
std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
         offsets + "}";
}
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{" + tensor("a", dtype, shape, offsets) + "}";
}
std::string two(const std::string& first, const std::string& second) {
  return "{" + first + "," + second + "}";
}
std::string nested(const std::string& open, std::size_t depth, const std::string& inner,
                   const std::string& close) {
  std::string out;
  for (std::size_t i = 0; i < depth; ++i) out += open;
  out += inner;
  for (std::size_t i = 0; i < depth; ++i) out += close;
  return out;
}

class HeaderJson : public ::testing::TestWithParam<Case> {};

TEST_P(HeaderJson, HasTheVerdictOfTheReference) {
  const Case& c = GetParam();

  const Verdict verdict =
      verdict_of([&] { return parse_safetensors(c.json, c.data_length, "m.safetensors"); });

  EXPECT_EQ(verdict.word, c.expected) << verdict.message;
  EXPECT_NE(verdict.message.find(c.message), std::string::npos) << verdict.message;
  EXPECT_EQ(verdict.message.find('\n'), std::string::npos) << "a message is one line";
  if (!verdict.message.empty()) {
    EXPECT_TRUE(verdict.message.starts_with("m.safetensors: ")) << verdict.message;
  }
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

#define STFS_CASES(group, ...)                                                                     \
  INSTANTIATE_TEST_SUITE_P(group, HeaderJson, ::testing::ValuesIn(std::vector<Case>{__VA_ARGS__}), \
                           case_name)

STFS_CASES(
    WhiteSpace, {"None", kPlain, 2, "ok 1"}, {"Behind", kPlain + " \n\t\r ", 2, "ok 1"},
    {"Before", " \n\t\r" + kPlain, 2, "ok 1"},
    {"Everywhere",
     "\n{ \"a\" :\t{ \"dtype\" : \"U8\" ,\"shape\" : [ 2 ] , \"data_offsets\" : [ 0 , 2 ] } \r} ",
     2, "ok 1"},
    {"FormFeedBehind", kPlain + "\f", 2, kJsonError},
    {"VerticalTabBehind", kPlain + "\v", 2, kJsonError},
    {"FormFeedBefore", "\f" + kPlain, 2, kJsonError},
    {"NoBreakSpaceBehind", kPlain + "\u00a0", 2, kJsonError},
    {"LineSeparatorBehind", kPlain + "\u2028", 2, kJsonError},
    {"NulBehind", kPlain + "\0"s, 2, kJsonError},
    {"NulsBehind", kPlain + "\0\0\0\0"s, 2, kJsonError},
    {"NulBefore", "\0"s + kPlain, 2, kJsonError},
    {"NulAfterSpaceBehind", kPlain + "  \0"s, 2, kJsonError},
    {"ByteOrderMarkBefore", "\xEF\xBB\xBF" + kPlain, 2, kJsonError, "byte-order mark"},
    {"ByteOrderMarkBehind", kPlain + "\xEF\xBB\xBF", 2, kJsonError},
    {"ByteOrderMarkAfterSpace", " \xEF\xBB\xBF" + kPlain, 2, kJsonError},
    {"ByteOrderMarkAlone", "\xEF\xBB\xBF", 0, kJsonError},
    {"TextBehind", kPlain + "x", 2, kJsonError}, {"ObjectBehind", kPlain + "{}", 2, kJsonError},
    {"BraceBehind", kPlain + "}", 2, kJsonError}, {"CommaBehind", kPlain + ",", 2, kJsonError},
    {"CommentBehind", kPlain + "//x", 2, kJsonError}, {"CommentInside", "{/**/}", 0, kJsonError});

STFS_CASES(
    Top, {"Empty", "", 0, kJsonError}, {"OnlySpace", " ", 0, kJsonError},
    {"EmptyObject", "{}", 0, "ok 0"}, {"EmptyObjectWithData", "{}", 1, "MetadataIncompleteBuffer"},
    {"EmptyArray", "[]", 0, kJsonError}, {"Array", "[" + kPlain + "]", 2, kJsonError},
    {"Null", "null", 0, kJsonError}, {"Number", "1", 0, kJsonError},
    {"String", "\"a\"", 0, kJsonError}, {"True", "true", 0, kJsonError},
    {"OnlyOpening", "{", 0, kJsonError}, {"OnlyClosing", "}", 0, kJsonError},
    {"TensorIsANumber", R"({"a":1})", 0, kJsonError, "tensor \"a\": a number"},
    {"TensorIsNull", R"({"a":null})", 0, kJsonError, "tensor \"a\": null"},
    {"TensorIsAString", R"({"a":"U8"})", 0, kJsonError},
    {"TensorIsABoolean", R"({"a":true})", 0, kJsonError},
    {"TensorIsAnEmptyObject", R"({"a":{}})", 0, kJsonError, "field dtype is missing"},
    {"TensorIsAnEmptyArray", R"({"a":[]})", 0, kJsonError},
    {"CommaAtTheEnd", R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},})", 2, kJsonError},
    {"CommaAtTheStart", R"({,"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2, kJsonError},
    {"CommaAtTheEndOfATensor", R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],}})", 2,
     kJsonError},
    {"NoColon", R"({"a" {"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2, kJsonError},
    {"SingleQuotes", R"({'a':{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2, kJsonError},
    {"BareKey", R"({a:{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2, kJsonError},
    {"NumberAsKey", R"({1:{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2, kJsonError},
    {"NotClosed", R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})", 2, kJsonError},
    {"NoCommaBetweenTensors",
     R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]} "b":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
     2, kJsonError});

STFS_CASES(DType, {"Object", with_dtype(R"({"U8":null})"), 2, "ok 1"},
           {"EscapedLetters", with_dtype(R"("\u00558")"), 2, "ok 1"},
           {"ObjectWithEscapedLetters", with_dtype(R"({"\u00558":null})"), 2, "ok 1"},
           {"ObjectOfObject", with_dtype(R"({"U8":{}})"), 2, kJsonError},
           {"ObjectOfArray", with_dtype(R"({"U8":[]})"), 2, kJsonError},
           {"ObjectOfNumber", with_dtype(R"({"U8":0})"), 2, kJsonError},
           {"ObjectOfString", with_dtype(R"({"U8":""})"), 2, kJsonError},
           {"ObjectOfFalse", with_dtype(R"({"U8":false})"), 2, kJsonError},
           {"ObjectOfTwo", with_dtype(R"({"U8":null,"I8":null})"), 2, kJsonError},
           {"ObjectOfTheSameTwice", with_dtype(R"({"U8":null,"U8":null})"), 2, kJsonError},
           {"ObjectOfUnknown", with_dtype(R"({"XX":null})"), 2, kJsonError, "unknown dtype \"XX\""},
           {"EmptyObject", with_dtype("{}"), 2, kJsonError},
           {"Array", with_dtype(R"(["U8"])"), 2, kJsonError},
           {"Number", with_dtype("4"), 2, kJsonError}, {"Null", with_dtype("null"), 2, kJsonError},
           {"True", with_dtype("true"), 2, kJsonError},
           {"LowerCase", with_dtype(R"("u8")"), 2, kJsonError},
           {"SpaceBehind", with_dtype(R"("U8 ")"), 2, kJsonError},
           {"Empty", with_dtype(R"("")"), 2, kJsonError},
           {"Unknown", with_dtype(R"("F8_E4M3FN")"), 2, kJsonError, "tensor \"a\": unknown dtype"},
           {"NoneOfTheFormat", with_dtype(R"("C128")"), 2, kJsonError});

STFS_CASES(Shape, {"RankZero", one("U8", "[]", "[0,1]"), 1, "ok 1"},
           {"RankZeroOfTwoBytes", with_shape("[]"), 2, "TensorInvalidInfo"},
           {"Space", with_shape("[ 2 ]"), 2, "ok 1"},
           {"TwoDimensions", with_shape("[1,2]"), 2, "ok 1"},
           {"ZeroDimension", one("U8", "[3,0,5]", "[0,0]"), 0, "ok 1"},
           {"Zero", with_shape("[0]"), 2, "TensorInvalidInfo"},
           {"NegativeZero", with_shape("[-0]"), 2, kJsonError},
           {"NegativeZeroForZero", one("U8", "[-0]", "[0,0]"), 0, kJsonError},
           {"Negative", with_shape("[-2]"), 2, kJsonError},
           {"Fraction", with_shape("[2.0]"), 2, kJsonError},
           {"Exponent", with_shape("[2e0]"), 2, kJsonError},
           {"NegativeExponent", with_shape("[20e-1]"), 2, kJsonError},
           {"LeadingZero", with_shape("[02]"), 2, kJsonError},
           {"Plus", with_shape("[+2]"), 2, kJsonError},
           {"Hexadecimal", with_shape("[0x2]"), 2, kJsonError},
           {"PointBehind", with_shape("[2.]"), 2, kJsonError},
           {"PointBefore", with_shape("[.2]"), 2, kJsonError},
           {"String", with_shape(R"(["2"])"), 2, kJsonError},
           {"NullInside", with_shape("[null]"), 2, kJsonError},
           {"TrueInside", with_shape("[true]"), 2, kJsonError},
           {"ArrayInside", with_shape("[[2]]"), 2, kJsonError},
           {"ObjectInside", with_shape("[{}]"), 2, kJsonError},
           {"CommaBehind", with_shape("[2,]"), 2, kJsonError},
           {"CommaBefore", with_shape("[,2]"), 2, kJsonError},
           {"TwoToThe64", with_shape("[18446744073709551616]"), 2, kJsonError},
           {"TwoToThe64LessOne", with_shape("[18446744073709551615]"), 2, "ValidationOverflow"},
           {"OutOfRange", with_shape("[1e400]"), 2, kJsonError},
           {"NotAnArray", with_shape("2"), 2, kJsonError},
           {"Null", with_shape("null"), 2, kJsonError},
           {"Object", with_shape(R"({"0":2})"), 2, kJsonError},
           {"StringForArray", with_shape(R"("2")"), 2, kJsonError});

STFS_CASES(
    Offsets, {"NegativeZero", with_offsets("[-0,2]"), 2, kJsonError},
    {"Fraction", with_offsets("[0.0,2]"), 2, kJsonError},
    {"Exponent", with_offsets("[0,2e0]"), 2, kJsonError},
    {"String", with_offsets(R"([0,"2"])"), 2, kJsonError},
    {"One", with_offsets("[0]"), 2, kJsonError, "two"}, {"None", with_offsets("[]"), 2, kJsonError},
    {"Three", with_offsets("[0,2,3]"), 2, kJsonError, "two"},
    {"TwoAndNull", with_offsets("[0,2,null]"), 2, kJsonError},
    {"TwoAndAnArray", with_offsets("[0,2,[]]"), 2, kJsonError},
    {"Object", with_offsets(R"({"0":0,"1":2})"), 2, kJsonError},
    {"Null", with_offsets("null"), 2, kJsonError}, {"Number", with_offsets("2"), 2, kJsonError},
    {"Nested", with_offsets("[[0,2]]"), 2, kJsonError},
    {"NullInside", with_offsets("[0,null]"), 2, kJsonError},
    {"Negative", with_offsets("[-1,2]"), 2, kJsonError},
    {"TwoToThe64", with_offsets("[0,18446744073709551616]"), 2, kJsonError},
    {"TwoToThe64LessOne", with_offsets("[0,18446744073709551615]"), 2, "TensorInvalidInfo"},
    {"Backwards", with_offsets("[2,0]"), 2, "InvalidOffset", "tensor \"a\": data_offsets [2,0]"},
    {"TooFew", with_offsets("[0,1]"), 2, "TensorInvalidInfo",
     "hold 1 bytes, dtype and shape need 2"},
    {"TooMany", with_offsets("[0,3]"), 3, "TensorInvalidInfo"},
    {"NotFromZero", with_offsets("[1,3]"), 3, "InvalidOffset"},
    {"FromTheEndOfTheNumbers", with_offsets("[18446744073709551615,0]"), 2, "InvalidOffset"});

STFS_CASES(Fields, {"AsArray", R"({"a":["U8",[2],[0,2]]})", 2, "ok 1"},
           {"AsArrayWithDTypeObject", R"({"a":[{"U8":null},[2],[0,2]]})", 2, "ok 1"},
           {"AsArrayOfOne", R"({"a":["U8"]})", 2, kJsonError},
           {"AsArrayOfTwo", R"({"a":["U8",[2]]})", 2, kJsonError},
           {"AsArrayOfFour", R"({"a":["U8",[2],[0,2],null]})", 2, kJsonError},
           {"AsArrayOfFourWithObject", R"({"a":["U8",[2],[0,2],{}]})", 2, kJsonError},
           {"AsArrayInAnotherOrder", R"({"a":[[0,2],[2],"U8"]})", 2, kJsonError},
           {"AsArrayInArray", R"({"a":[["U8",[2],[0,2]]]})", 2, kJsonError},
           {"InAnotherOrder", R"({"a":{"data_offsets":[0,2],"shape":[2],"dtype":"U8"}})", 2,
            "ok 1"},
           {"NoDType", R"({"a":{"shape":[2],"data_offsets":[0,2]}})", 2, kJsonError,
            "field dtype is missing"},
           {"NoShape", R"({"a":{"dtype":"U8","data_offsets":[0,2]}})", 2, kJsonError,
            "field shape is missing"},
           {"NoOffsets", R"({"a":{"dtype":"U8","shape":[2]}})", 2, kJsonError,
            "field data_offsets is missing"},
           {"EscapedKey", R"({"a":{"\u0064type":"U8","shape":[2],"data_offsets":[0,2]}})", 2,
            "ok 1"},
           {"UnknownOnes", with(R"(,"x":1,"":0,"0":0,"dtype ":0,"Dtype":"I8","__metadata__":1)"), 2,
            "ok 1"},
           {"NumberAsKey", with(",1:2"), 2, kJsonError});

STFS_CASES(
    Duplicates,
    {"Tensor", two(tensor("a", "U8", "[2]", "[0,2]"), tensor("a", "U8", "[0]", "[2,2]")), 2,
     "DuplicateTensor", "tensor \"a\": the name occurs twice"},
    {"TensorTheSame", two(tensor("a", "U8", "[2]", "[0,2]"), tensor("a", "U8", "[2]", "[0,2]")), 2,
     "DuplicateTensor"},
    {"TensorByEscape",
     two(tensor("a", "U8", "[2]", "[0,2]"), tensor("\\u0061", "U8", "[0]", "[2,2]")), 2,
     "DuplicateTensor"},
    {"TensorAmongOthers",
     "{" + tensor("a", "U8", "[1]", "[0,1]") + "," + tensor("b", "U8", "[1]", "[1,2]") + "," +
         tensor("a", "U8", "[1]", "[2,3]") + "}",
     3, "DuplicateTensor"},
    {"EmptyName", two(tensor("", "U8", "[2]", "[0,2]"), tensor("", "U8", "[0]", "[2,2]")), 2,
     "DuplicateTensor"},
    {"DType", with(R"(,"dtype":"U8")"), 2, kJsonError, "duplicate key \"dtype\""},
    {"DTypeByEscape", with(R"(,"\u0064type":"U8")"), 2, kJsonError, "duplicate key"},
    {"DTypeBadTheSecondTime", with(R"(,"dtype":null)"), 2, kJsonError},
    {"Shape", with(R"(,"shape":[2])"), 2, kJsonError, "duplicate key"},
    {"Offsets", with(R"(,"data_offsets":[0,2])"), 2, kJsonError, "duplicate key"},
    {"UnknownField", with(R"(,"x":1,"x":2)"), 2, kJsonError, "duplicate key \"x\""},
    {"InAnIgnoredObject", ignored(R"({"k":1,"k":2})"), 2, kJsonError, "duplicate key \"k\""},
    {"DeepInAnIgnoredValue", ignored(R"([1,{"a":[{"k":1,"l":2,"k":3}]}])"), 2, kJsonError,
     "duplicate key"},
    {"SameKeyInDifferentObjects", ignored(R"({"k":{"k":1},"l":[{"k":1},{"k":2}]})"), 2, "ok 1"},
    {"SameUnknownFieldInTwoTensors",
     R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"x":1},"b":{"dtype":"U8","shape":[0],"data_offsets":[2,2],"x":1}})",
     2, "ok 2"},
    {"Metadata", R"({"__metadata__":{},"__metadata__":{}})", 0, kJsonError, "duplicate key"},
    {"MetadataNull", R"({"__metadata__":null,"__metadata__":null})", 0, kJsonError},
    {"MetadataByEscape", R"({"__metadata__":{},"\u005f_metadata__":{}})", 0, kJsonError},
    {"MetadataKey", with_metadata(R"({"k":"v","k":"w"})"), 2, kJsonError, "duplicate key \"k\""},
    {"MetadataKeyWithTheSameValue", with_metadata(R"({"k":"v","l":"x","k":"v"})"), 2, kJsonError});

STFS_CASES(
    Metadata, {"Empty", with_metadata("{}"), 2, "ok 1"}, {"Null", with_metadata("null"), 2, "ok 1"},
    {"Strings", with_metadata(R"({"k":"v","":""})"), 2, "ok 1"},
    {"EscapedNul", with_metadata(R"({"k":"\u0000"})"), 2, "ok 1"},
    {"NamesOfFields", with_metadata(R"({"dtype":"U8","shape":"x","data_offsets":"y"})"), 2, "ok 1"},
    {"Alone", R"({"__metadata__":{}})", 0, "ok 0"},
    {"NullAlone", R"({"__metadata__":null})", 0, "ok 0"},
    {"Last", R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"__metadata__":{"k":"v"}})", 2,
     "ok 1"},
    {"KeyByEscape", R"({"\u005f_metadata__":{"k":"v"}})", 0, "ok 0"},
    {"KeyByEscapeAndNoString", R"({"\u005f_metadata__":{"k":1}})", 0, kJsonError},
    {"OtherCaseIsATensor", R"({"__Metadata__":{"k":"v"}})", 0, kJsonError},
    {"ValueIsANumber", with_metadata(R"({"k":1})"), 2, kJsonError, "__metadata__: "},
    {"ValueIsNull", with_metadata(R"({"k":null})"), 2, kJsonError},
    {"ValueIsAnObject", with_metadata(R"({"k":{}})"), 2, kJsonError},
    {"ValueIsAnArray", with_metadata(R"({"k":["v"]})"), 2, kJsonError},
    {"ValueIsTrue", with_metadata(R"({"k":true})"), 2, kJsonError},
    {"Array", with_metadata("[]"), 2, kJsonError},
    {"ArrayOfPairs", with_metadata(R"([["k","v"]])"), 2, kJsonError},
    {"String", with_metadata(R"("x")"), 2, kJsonError},
    {"Number", with_metadata("1"), 2, kJsonError}, {"True", with_metadata("true"), 2, kJsonError},
    {"LoneSurrogate", with_metadata(R"({"k":"\ud800"})"), 2, kJsonError},
    {"IsATensor", with_metadata(R"({"dtype":"U8","shape":[2],"data_offsets":[0,2]})"), 2,
     kJsonError});

STFS_CASES(
    Ignored, {"Huge", ignored("1e308"), 2, "ok 1"}, {"TooHuge", ignored("1e999"), 2, kJsonError},
    {"TooHugeNegative", ignored("-1e999"), 2, kJsonError},
    {"TooHugeInside", ignored(R"({"dtype":1e999})"), 2, kJsonError},
    {"LargestDouble", ignored("1.7976931348623157e308"), 2, "ok 1"},
    {"TenTimesTheLargestPower", ignored("10e308"), 2, kJsonError},
    {"ZeroWithAHugeExponent", ignored("0e99999999999999"), 2, "ok 1"},
    {"Tiny", ignored("1e-99999999999"), 2, "ok 1"}, {"NegativeZero", ignored("-0"), 2, "ok 1"},
    {"NegativeZeroFraction", ignored("-0.0"), 2, "ok 1"}, {"Exponent", ignored("1E+5"), 2, "ok 1"},
    {"LongInteger", ignored("123456789012345678901234567890"), 2, "ok 1"},
    {"Integer309Nines", ignored(std::string(309, '9')), 2, kJsonError},
    {"Integer308Nines", ignored(std::string(308, '9')), 2, "ok 1"},
    {"NoExponentDigits", ignored("1e"), 2, kJsonError},
    {"NoFractionDigits", ignored("1."), 2, kJsonError},
    {"LeadingZero", ignored("01"), 2, kJsonError}, {"OnlyMinus", ignored("-"), 2, kJsonError},
    {"Plus", ignored("+1"), 2, kJsonError}, {"NotANumber", ignored("NaN"), 2, kJsonError},
    {"Infinity", ignored("Infinity"), 2, kJsonError},
    {"PythonTrue", ignored("True"), 2, kJsonError}, {"CutWord", ignored("tru"), 2, kJsonError},
    {"TwoValues", ignored("1 2"), 2, kJsonError}, {"CommaInArray", ignored("[1,]"), 2, kJsonError},
    {"CommaInObject", ignored(R"({"a":1,})"), 2, kJsonError},
    {"AllEscapes", ignored(R"("\/\b\f\n\r\t\"\\\u0000\ud83d\ude00")"), 2, "ok 1"},
    {"LeadingSurrogate", ignored(R"("\ud800")"), 2, kJsonError},
    {"TrailingSurrogate", ignored(R"("\udc00")"), 2, kJsonError},
    {"LeadingSurrogateAndLetter", ignored(R"("\ud800\u0041")"), 2, kJsonError},
    {"TwoLeadingSurrogates", ignored(R"("\ud83d\ud83d")"), 2, kJsonError},
    {"SurrogatesSwapped", ignored(R"("\ude00\ud83d")"), 2, kJsonError},
    {"SurrogateInKey", ignored(R"({"\ud800":1})"), 2, kJsonError},
    {"UnknownEscape", ignored(R"("\x41")"), 2, kJsonError},
    {"UpperCaseU", ignored(R"("\U0041")"), 2, kJsonError},
    {"ShortEscape", ignored(R"("\u00")"), 2, kJsonError},
    {"LineEndInString", ignored("\"\n\""), 2, kJsonError},
    {"TabInString", ignored("\"\t\""), 2, kJsonError},
    {"NulInString", ignored("\"\0\""s), 2, kJsonError},
    {"UnitSeparatorInString", ignored("\"\x1f\""), 2, kJsonError},
    {"DeleteInString", ignored("\"\x7f\""), 2, "ok 1"},
    {"NoncharacterInString", ignored("\"\uffff\""), 2, "ok 1"},
    {"OpenString", R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"x":"abc)", 2,
     kJsonError});

STFS_CASES(Names, {"Empty", named(""), 2, "ok 1"}, {"DotDot", named(".."), 2, "ok 1"},
           {"SlashFirst", named("/a"), 2, "ok 1"}, {"SlashTwice", named("a//b"), 2, "ok 1"},
           {"SlashByEscape", named("\\/"), 2, "ok 1"}, {"NulByEscape", named("\\u0000"), 2, "ok 1"},
           {"Long", named(std::string(100'000, 'n')), 2, "ok 1"},
           {"NotAscii", named("\u00e9"), 2, "ok 1"}, {"ByteOrderMark", named("\ufeff"), 2, "ok 1"},
           {"PairOfSurrogates", named("\\ud83d\\ude00"), 2, "ok 1"},
           {"Delete", named("\x7f"), 2, "ok 1"}, {"NulByte", named("\0"s), 2, kJsonError},
           {"LineEnd", named("\n"), 2, kJsonError}, {"Control", named("\x1f"), 2, kJsonError},
           {"LeadingSurrogate", named("\\ud800"), 2, kJsonError},
           {"TrailingSurrogate", named("\\udfff"), 2, kJsonError},
           {"UnknownEscape", named("\\q"), 2, kJsonError},
           {"OneIsTheDirectoryOfTheOther",
            two(tensor("a", "U8", "[1]", "[0,1]"), tensor("a/b", "U8", "[1]", "[1,2]")), 2,
            "ok 2"});

STFS_CASES(Utf8, {"LastCodePoint", named("\xf4\x8f\xbf\xbf"), 2, "ok 1"},
           {"StrayByte", named("\xff"), 2, "InvalidHeader", "not valid UTF-8"},
           {"Overlong", named("\xc0\x80"), 2, "InvalidHeader"},
           {"OverlongOfThree", named("\xe0\x80\xaf"), 2, "InvalidHeader"},
           {"Surrogate", named("\xed\xa0\x80"), 2, "InvalidHeader"},
           {"OverTheLastCodePoint", named("\xf4\x90\x80\x80"), 2, "InvalidHeader"},
           {"CutCharacter", named("\xe2\x82"), 2, "InvalidHeader"},
           {"BehindTheObject", kPlain + "\xff", 2, "InvalidHeader"},
           {"CutCharacterAtTheEnd", kPlain + "\xe2\x82", 2, "InvalidHeader"},
           {"BeforeTheObject", "\xff" + kPlain, 2, "InvalidHeader"},
           {"InAnIgnoredString", ignored("\"\xff\""), 2, "InvalidHeader"},
           {"WinsOverBrokenJson", "xx" + kPlain + "\xff", 2, "InvalidHeader"},
           {"WinsOverAWrongType", "{\"a\":1}\xff", 2, "InvalidHeader"},
           {"WinsOverADuplicate", with(R"(,"x":1,"x":1)") + "\xff", 2, "InvalidHeader"},
           {"WinsOverNesting", ignored(nested("[", 200, "", "]")) + "\xff", 2, "InvalidHeader"},
           {"WinsOverANul", kPlain + "\0\xff"s, 2, "InvalidHeader"},
           {"WinsOverAByteOrderMark", "\xEF\xBB\xBF" + kPlain + "\xff", 2, "InvalidHeader"},
           {"Utf16", "\xff\xfe{\0}\0"s, 0, "InvalidHeader"});

// The object at the top is level 1, the tensor's level 2.
STFS_CASES(
    Nesting, {"Arrays127", ignored(nested("[", 125, "", "]")), 2, "ok 1"},
    {"Arrays128", ignored(nested("[", 126, "", "]")), 2, kJsonError, "nested deeper than 127"},
    {"Objects127", ignored(nested(R"({"k":)", 125, "1", "}")), 2, "ok 1"},
    {"Objects128", ignored(nested(R"({"k":)", 126, "1", "}")), 2, kJsonError,
     "nested deeper than 127"},
    {"ManyOpen",
     R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"x":)" + std::string(100'000, '['), 2,
     kJsonError, "nested deeper than 127"},
    {"ManySideBySide", ignored("[" + nested("[],", 1000, "[]", "") + "]"), 2, "ok 1"});

STFS_CASES(
    Layout,
    {"TwoInARow", two(tensor("a", "U8", "[2]", "[0,2]"), tensor("b", "U8", "[2]", "[2,4]")), 4,
     "ok 2"},
    {"TwoInReverse", two(tensor("b", "U8", "[2]", "[2,4]"), tensor("a", "U8", "[2]", "[0,2]")), 4,
     "ok 2"},
    {"Gap", two(tensor("a", "U8", "[2]", "[0,2]"), tensor("b", "U8", "[2]", "[3,5]")), 5,
     "InvalidOffset", "tensor \"b\": data_offsets [3,5] leave a gap after tensor \"a\""},
    {"Overlap", two(tensor("a", "U8", "[2]", "[0,2]"), tensor("b", "U8", "[2]", "[1,3]")), 3,
     "InvalidOffset", "tensor \"b\": data_offsets [1,3] overlap tensor \"a\""},
    {"SameRange", two(tensor("a", "U8", "[2]", "[0,2]"), tensor("b", "U8", "[2]", "[0,2]")), 2,
     "InvalidOffset"},
    {"NotFromZero", one("U8", "[2]", "[1,3]"), 3, "InvalidOffset",
     "leave a gap after the start of the data"},
    {"EndBeforeBegin", two(tensor("a", "U8", "[2]", "[0,2]"), tensor("b", "U8", "[0]", "[2,1]")), 2,
     "InvalidOffset", "end before they begin"},
    {"WrongSizeBeforeAGap",
     two(tensor("a", "U8", "[3]", "[0,2]"), tensor("b", "U8", "[1]", "[9,10]")), 2,
     "TensorInvalidInfo", "tensor \"a\""},
    {"GapBeforeAWrongSize",
     two(tensor("a", "U8", "[2]", "[1,3]"), tensor("b", "U8", "[1]", "[3,10]")), 10,
     "InvalidOffset", "tensor \"a\""},
    {"BytesBehind", one("U8", "[2]", "[0,2]"), 3, "MetadataIncompleteBuffer"},
    {"BytesMissing", one("U8", "[2]", "[0,2]"), 1, "MetadataIncompleteBuffer"},
    {"WrongSizeWinsOverMissingBytes", one("U8", "[3]", "[0,2]"), 1, "TensorInvalidInfo"},
    {"EmptyOnesAtTheSameOffset",
     "{" + tensor("a", "U8", "[0]", "[0,0]") + "," + tensor("b", "U8", "[0]", "[0,0]") + "," +
         tensor("c", "U8", "[2]", "[0,2]") + "}",
     2, "ok 3"},
    {"EmptyOneBehindTheOneThatBeginsThere",
     "{" + tensor("c", "U8", "[2]", "[0,2]") + "," + tensor("a", "U8", "[0]", "[0,0]") + "}", 2,
     "ok 2"},
    {"EmptyOnesInTheMiddleAndAtTheEnd",
     "{" + tensor("a", "U8", "[2]", "[0,2]") + "," + tensor("m", "U8", "[0]", "[2,2]") + "," +
         tensor("b", "U8", "[2]", "[2,4]") + "," + tensor("e", "I64", "[0,5]", "[4,4]") + "}",
     4, "ok 4"},
    {"EmptyOneInsideAnother",
     two(tensor("a", "U8", "[4]", "[0,4]"), tensor("m", "U8", "[0]", "[2,2]")), 4, "InvalidOffset"},
    {"EmptyOneBehindTheEnd",
     two(tensor("a", "U8", "[4]", "[0,4]"), tensor("m", "U8", "[0]", "[5,5]")), 4,
     "InvalidOffset"});

STFS_CASES(
    Size,
    {"ZeroLast", one("U8", "[18446744073709551615,4,0]", "[0,0]"), 0, "ValidationOverflow",
     "tensor \"a\""},
    {"ZeroFirst", one("U8", "[0,18446744073709551615,18446744073709551615]", "[0,0]"), 0, "ok 1"},
    {"ZeroInTheMiddle", one("U8", "[9223372036854775808,0,4]", "[0,0]"), 0, "ok 1"},
    {"ZeroAfterOneHugeDimension", one("F64", "[18446744073709551615,0]", "[0,0]"), 0, "ok 1"},
    {"Bits", one("U8", "[2305843009213693952]", "[0,3]"), 3, "ValidationOverflow", "bits overflow"},
    {"BitsJustFit", one("U8", "[2305843009213693951]", "[0,2305843009213693951]"),
     2305843009213693951U, "ok 1"},
    {"OffsetsBeforeOverflow", one("U8", "[18446744073709551615,2]", "[1,3]"), 3, "InvalidOffset"},
    {"OverflowBeforeSize", one("U8", "[18446744073709551615,2]", "[0,3]"), 3, "ValidationOverflow"},
    {"OverflowBeforeMisaligned", one("F4", "[4611686018427387905]", "[0,2]"), 2,
     "ValidationOverflow"},
    {"MisalignedBeforeSize", one("F4", "[3]", "[0,7]"), 7, "MisalignedSlice", "12 bits"},
    {"OffsetsBeforeMisaligned", one("F4", "[3]", "[1,2]"), 2, "InvalidOffset"},
    {"F4Even", one("F4", "[4]", "[0,2]"), 2, "ok 1"},
    {"F4Odd", one("F4", "[3]", "[0,2]"), 2, "MisalignedSlice"},
    {"F4RankZero", one("F4", "[]", "[0,1]"), 1, "MisalignedSlice"},
    {"F4OneInNoBytes", one("F4", "[1]", "[0,0]"), 0, "MisalignedSlice"},
    {"F4None", one("F4", "[0]", "[0,0]"), 0, "ok 1"},
    {"F6Four", one("F6_E2M3", "[4]", "[0,3]"), 3, "ok 1"},
    {"F6Eight", one("F6_E3M2", "[8]", "[0,6]"), 6, "ok 1"},
    {"F6Two", one("F6_E3M2", "[2]", "[0,2]"), 2, "MisalignedSlice"},
    {"SumTo64Bits",
     two(tensor("a", "U8", "[2305843009213693951]", "[0,2305843009213693951]"),
         tensor("b", "U8", "[1]", "[2305843009213693951,2305843009213693952]")),
     0, "MetadataIncompleteBuffer"});

struct FileCase {
  const char* name;
  std::string bytes;
  const char* expected;
};
std::ostream& operator<<(std::ostream& out, const FileCase& c) { return out << c.name; }

std::string file_case_name(const ::testing::TestParamInfo<FileCase>& info) {
  return info.param.name;
}

class HeaderFile : public ::testing::TestWithParam<FileCase> {};

TEST_P(HeaderFile, HasTheVerdictOfTheReference) {
  const TempDir dir;
  write_file(dir / "m.safetensors", GetParam().bytes);
  const LocalFile file((dir / "m.safetensors").string());

  const Verdict verdict = verdict_of([&] { return read_safetensors(file, "m.safetensors"); });

  EXPECT_EQ(verdict.word, GetParam().expected) << verdict.message;
}

INSTANTIATE_TEST_SUITE_P(
    Length, HeaderFile,
    ::testing::ValuesIn(std::vector<FileCase>{
        {"Empty", "", "HeaderTooSmall"},
        {"OneByte", "\1", "HeaderTooSmall"},
        {"SevenBytes", "\2\0\0\0\0\0\0"s, "HeaderTooSmall"},
        {"SevenBytesOf255", "\xff\xff\xff\xff\xff\xff\xff", "HeaderTooSmall"},
        {"LengthZero", "\0\0\0\0\0\0\0\0"s, kJsonError},
        {"LengthZeroAndData", "\0\0\0\0\0\0\0\0{}"s, kJsonError},
        {"EmptyObject", "\2\0\0\0\0\0\0\0{}"s, "ok 0"},
        {"DataBehindEmptyObject", "\2\0\0\0\0\0\0\0{}x"s, "MetadataIncompleteBuffer"},
        {"PastTheEnd", "\3\0\0\0\0\0\0\0{}"s, "InvalidHeaderLength"},
        {"PastTheEndWinsOverUtf8", "\5\0\0\0\0\0\0\0\xff"s, "InvalidHeaderLength"},
        {"HundredMillion", "\x00\xe1\xf5\x05\0\0\0\0{}"s, "InvalidHeaderLength"},
        {"HundredMillionAndOne", "\x01\xe1\xf5\x05\0\0\0\0{}"s, "HeaderTooLarge"},
        {"TwoToThe63", "\0\0\0\0\0\0\0\x80{}"s, "HeaderTooLarge"},
        {"AllOnes", "\xff\xff\xff\xff\xff\xff\xff\xff{}"s, "HeaderTooLarge"},
        {"WrapsRound", "\xf8\xff\xff\xff\xff\xff\xff\xff{}"s, "HeaderTooLarge"},
        {"BigEndian", "\0\0\0\0\0\0\0\2{}"s, "HeaderTooLarge"}}),
    file_case_name);

TEST(HeaderFileOfTheLargestLength, IsReadAndOneByteMoreIsNot) {
  const TempDir dir;
  const auto sparse = [&](std::string_view name, std::string_view prefix, std::uint64_t length) {
    write_file(dir / name, prefix);
    std::filesystem::resize_file(dir / name, 8 + length);
    const LocalFile file((dir / name).string());
    return verdict_of([&] { return read_safetensors(file, "m"); }).word;
  };

  EXPECT_EQ(sparse("largest", "\x00\xe1\xf5\x05\0\0\0\0{}"s, 100'000'000), kJsonError);  // NULs
  EXPECT_EQ(sparse("larger", "\x01\xe1\xf5\x05\0\0\0\0{}"s, 100'000'001), "HeaderTooLarge");
}

Header parse(const std::string& text, std::uint64_t data_length) {
  return parse_safetensors(text, data_length, "m.safetensors");
}

TEST(Header, ListsTensorsInTheOrderOfTheirBytesAndTiesAsTheyStand) {
  const Header header = parse(
      "{" + tensor("z", "U8", "[1]", "[1,2]") + "," + tensor("y", "U8", "[0]", "[1,1]") + "," +
          tensor("x", "U8", "[0]", "[1,1]") + "," + tensor("w", "U8", "[1]", "[0,1]") + "}",
      2);

  std::vector<std::string> names;
  for (const TensorRecord& record : header.tensors) names.emplace_back(header.name(record));
  EXPECT_EQ(names, (std::vector<std::string>{"w", "y", "x", "z"}));
}

TEST(Header, GivesOffsetsFromTheStartOfTheFile) {
  const std::string text =
      "{" + tensor("a", "U8", "[3]", "[0,3]") + "," + tensor("b", "F16", "[2,1]", "[3,7]") + "}";

  const Header header = parse(text, 7);

  EXPECT_EQ(header.raw.length, text.size());
  EXPECT_EQ(header.tensors[1].offset, 8 + text.size() + 3);
  EXPECT_EQ(header.tensors[1].length, 4U);
  EXPECT_EQ(header.tensors[1].dtype, DType::kF16);
  EXPECT_EQ(
      std::vector(header.shape(header.tensors[1]).begin(), header.shape(header.tensors[1]).end()),
      (std::vector<std::uint64_t>{2, 1}));
}

TEST(Header, NumbersTensorsInTheBytewiseOrderOfTheirNames) {
  const Header header = parse(
      "{" + tensor("b", "U8", "[1]", "[0,1]") + "," + tensor("\u00e9", "U8", "[1]", "[1,2]") + "," +
          tensor("B", "U8", "[1]", "[2,3]") + "," + tensor("", "U8", "[1]", "[3,4]") + "}",
      4);

  EXPECT_EQ(header.by_name, (std::vector<std::uint32_t>{3, 2, 0, 1}));
}

TEST(Header, KeepsMetadataSortedByKey) {
  const Header header = parse(R"({"__metadata__":{"b":"2","a":"1","\u0000":"\n"}})", 0);

  using Pairs = std::vector<std::pair<std::string, std::string>>;
  Pairs found;
  for (std::size_t i = 0; i < header.metadata.size(); ++i) found.emplace_back(header.metadata[i]);
  EXPECT_EQ(found, (Pairs{{"\0"s, "\n"}, {"a", "1"}, {"b", "2"}}));
}

TEST(Header, DecodesEscapesInNames) {
  const Header header = parse(named(R"(\u0000\/\ud83d\ude00\u00e9)"), 2);

  EXPECT_EQ(header.name(header.tensors[0]), "\0/\xf0\x9f\x98\x80\xc3\xa9"s);
}

TEST(Header, EscapesNamesInMessages) {
  const Verdict verdict = verdict_of([] { return parse(R"({"\u001b[2J\"":1})", 0); });

  EXPECT_EQ(verdict.message.find('\x1b'), std::string::npos);
  EXPECT_NE(verdict.message.find(R"(tensor "\x1b[2J\"")"), std::string::npos) << verdict.message;
}

TEST(Header, ShortensLongNamesInMessages) {
  const Verdict verdict =
      verdict_of([] { return parse("{\"" + std::string(100'000, 'n') + "\":1}", 0); });

  EXPECT_LT(verdict.message.size(), 500U);
}

}  // namespace
}  // namespace stfs::test
