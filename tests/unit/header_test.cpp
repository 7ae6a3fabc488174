// Tests the rules of the format with literal bytes. The reference reader gives the same results,
// except for duplicate keys.
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/format/safetensors.h"
#include "core/source/local_file.h"
#include "tests/support/checkpoint_writer.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs::test {
namespace {

using namespace std::string_literals;

// The result of loading a header: "ok 2", or the name and message of the error.
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
  std::string json;
  std::uint64_t data_length;
  const char* expected;
  const char* message = "";  // a part of the error's message
};

constexpr const char* kJsonError = "InvalidHeaderDeserialization";

// Returns a header with a tensor "a" of two bytes, with more fields after the usual three.
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

std::string unchanged(const std::string& text) { return text; }

void expect(const std::vector<Case>& cases) {
  for (const auto& [text, data_length, expected, message] : cases) {
    const Verdict verdict = verdict_of([&text = text, length = data_length] {
      return parse_safetensors(text, length, "m.safetensors");
    });
    SCOPED_TRACE(text.substr(0, 400));
    EXPECT_EQ(verdict.word, expected) << verdict.message;
    EXPECT_NE(verdict.message.find(message), std::string::npos) << verdict.message;
    EXPECT_EQ(verdict.message.find('\n'), std::string::npos) << "the message has several lines";
    EXPECT_TRUE(verdict.message.empty() || verdict.message.starts_with("m.safetensors: "));
  }
}

// Checks the result for each text after `in` has put it into a header.
void expect(const char* verdict, std::string (*in)(const std::string&),
            const std::vector<std::string>& texts, std::uint64_t data_length = 2) {
  std::vector<Case> cases;
  for (const std::string& text : texts) cases.push_back({in(text), data_length, verdict});
  expect(cases);
}

TEST(HeaderJson, AllowsOnlySpaceAroundObject) {
  expect("ok 1", unchanged,
         {kPlain, kPlain + " \n\t\r ", " \n\t\r" + kPlain,
          "\n{ \"a\" :\t{ \"dtype\" : \"U8\" ,\"shape\" : [ 2 ] , \"data_offsets\" : [ 0 , 2 ] } "
          "\r} "});
  expect(kJsonError, unchanged,
         {kPlain + "\f", kPlain + "\v", "\f" + kPlain, kPlain + "\u00a0", kPlain + "\u2028",
          kPlain + "\0"s, kPlain + "\0\0\0\0"s, "\0"s + kPlain, kPlain + "  \0"s,
          kPlain + "\xEF\xBB\xBF", " \xEF\xBB\xBF" + kPlain, kPlain + "x", kPlain + "{}",
          kPlain + "}", kPlain + ",", kPlain + "//x"});
  expect({{"\xEF\xBB\xBF" + kPlain, 2, kJsonError, "byte-order mark"},
          {"\xEF\xBB\xBF", 0, kJsonError},
          {"{/**/}", 0, kJsonError}});
}

TEST(HeaderJson, TopLevelMustBeObjectOfTensors) {
  expect(kJsonError, unchanged,
         {"", " ", "[]", "null", "1", "\"a\"", "true", "{", "}", R"({"a":"U8"})", R"({"a":true})",
          R"({"a":[]})"},
         0);
  expect(
      kJsonError, unchanged,
      {"[" + kPlain + "]", R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},})",
       R"({,"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
       R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],}})",
       R"({"a" {"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
       R"({'a':{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
       R"({a:{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
       R"({1:{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
       R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})",
       R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]} "b":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})"});
  expect({{R"({"a":1})", 0, kJsonError, "tensor \"a\": a number"},
          {R"({"a":null})", 0, kJsonError, "tensor \"a\": null"},
          {R"({"a":{}})", 0, kJsonError, "field dtype is missing"},
          {"{}", 0, "ok 0"},
          {"{}", 1, "MetadataIncompleteBuffer"}});
}

TEST(HeaderJson, DTypeMustBeKnownNameOrObjectWithIt) {
  expect("ok 1", with_dtype, {R"({"U8":null})", R"("\u00558")", R"({"\u00558":null})"});
  expect(kJsonError, with_dtype,
         {R"({"U8":{}})", R"({"U8":[]})", R"({"U8":0})", R"({"U8":""})", R"({"U8":false})",
          R"({"U8":null,"I8":null})", R"({"U8":null,"U8":null})", "{}", R"(["U8"])", "4", "null",
          "true", R"("u8")", R"("U8 ")", R"("")", R"("C128")"});
  expect({{with_dtype(R"({"XX":null})"), 2, kJsonError, "unknown dtype \"XX\""},
          {with_dtype(R"("F8_E4M3FN")"), 2, kJsonError, "tensor \"a\": unknown dtype"}});
}

TEST(HeaderJson, ShapeMustBeArrayOfUnsignedIntegers) {
  expect("TensorInvalidInfo", with_shape, {"[]", "[0]"});
  expect("ok 1", with_shape, {"[ 2 ]", "[1,2]"});
  expect(kJsonError, with_shape,
         {"[-0]",    "[-2]",  "[2.0]", "[2e0]",      "[20e-1]",  "[02]",
          "[+2]",    "[0x2]", "[2.]",  "[.2]",       R"(["2"])", "[null]",
          "[true]",  "[[2]]", "[{}]",  "[2,]",       "[,2]",     "[18446744073709551616]",
          "[1e400]", "2",     "null",  R"({"0":2})", R"("2")"});
  expect("ValidationOverflow", with_shape, {"[18446744073709551615]"});
  expect({{one("U8", "[]", "[0,1]"), 1, "ok 1"},
          {one("U8", "[3,0,5]", "[0,0]"), 0, "ok 1"},
          {one("U8", "[-0]", "[0,0]"), 0, kJsonError}});
}

TEST(HeaderJson, OffsetsMustBeTwoIntegersMatchingShape) {
  expect(kJsonError, with_offsets,
         {"[-0,2]", "[0.0,2]", "[0,2e0]", R"([0,"2"])", "[]", "[0,2,null]", "[0,2,[]]",
          R"({"0":0,"1":2})", "null", "2", "[[0,2]]", "[0,null]", "[-1,2]",
          "[0,18446744073709551616]"});
  expect("TensorInvalidInfo", with_offsets, {"[0,18446744073709551615]"});
  expect("InvalidOffset", with_offsets, {"[18446744073709551615,0]"});
  expect({{with_offsets("[0]"), 2, kJsonError, "two"},
          {with_offsets("[0,2,3]"), 2, kJsonError, "two"},
          {with_offsets("[2,0]"), 2, "InvalidOffset", "tensor \"a\": data_offsets [2,0]"},
          {with_offsets("[0,1]"), 2, "TensorInvalidInfo", "hold 1 bytes, dtype and shape need 2"},
          {with_offsets("[0,3]"), 3, "TensorInvalidInfo"},
          {with_offsets("[1,3]"), 3, "InvalidOffset"}});
}

TEST(HeaderJson, AllowsFieldsInAnyOrderOrInArray) {
  expect("ok 1", unchanged,
         {R"({"a":["U8",[2],[0,2]]})", R"({"a":[{"U8":null},[2],[0,2]]})",
          R"({"a":{"data_offsets":[0,2],"shape":[2],"dtype":"U8"}})",
          R"({"a":{"\u0064type":"U8","shape":[2],"data_offsets":[0,2]}})"});
  expect(
      kJsonError, unchanged,
      {R"({"a":["U8"]})", R"({"a":["U8",[2]]})", R"({"a":["U8",[2],[0,2],null]})",
       R"({"a":["U8",[2],[0,2],{}]})", R"({"a":[[0,2],[2],"U8"]})", R"({"a":[["U8",[2],[0,2]]]})"});
  expect("ok 1", with, {R"(,"x":1,"":0,"0":0,"dtype ":0,"Dtype":"I8","__metadata__":1)"});
  expect(kJsonError, with, {",1:2"});
  expect({{R"({"a":{"shape":[2],"data_offsets":[0,2]}})", 2, kJsonError, "field dtype is missing"},
          {R"({"a":{"dtype":"U8","data_offsets":[0,2]}})", 2, kJsonError, "field shape is missing"},
          {R"({"a":{"dtype":"U8","shape":[2]}})", 2, kJsonError, "field data_offsets is missing"}});
}

TEST(HeaderJson, RejectsDuplicateKeys) {
  expect("DuplicateTensor", unchanged,
         {two(tensor("a", "U8", "[2]", "[0,2]"), tensor("a", "U8", "[2]", "[0,2]")),
          two(tensor("a", "U8", "[2]", "[0,2]"), tensor("\\u0061", "U8", "[0]", "[2,2]")),
          two(tensor("", "U8", "[2]", "[0,2]"), tensor("", "U8", "[0]", "[2,2]"))});
  expect(kJsonError, with, {R"(,"dtype":null)"});
  expect("ok 1", ignored, {R"({"k":{"k":1},"l":[{"k":1},{"k":2}]})"});
  expect(
      "ok 2", unchanged,
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"x":1},"b":{"dtype":"U8","shape":[0],"data_offsets":[2,2],"x":1}})"});
  expect(kJsonError, with_metadata, {R"({"k":"v","l":"x","k":"v"})"});
  expect({{two(tensor("a", "U8", "[2]", "[0,2]"), tensor("a", "U8", "[0]", "[2,2]")), 2,
           "DuplicateTensor", "tensor \"a\": the name occurs twice"},
          {with(R"(,"dtype":"U8")"), 2, kJsonError, "duplicate key \"dtype\""},
          {with(R"(,"\u0064type":"U8")"), 2, kJsonError, "duplicate key"},
          {with(R"(,"shape":[2])"), 2, kJsonError, "duplicate key"},
          {with(R"(,"data_offsets":[0,2])"), 2, kJsonError, "duplicate key"},
          {with(R"(,"x":1,"x":2)"), 2, kJsonError, "duplicate key \"x\""},
          {ignored(R"({"k":1,"k":2})"), 2, kJsonError, "duplicate key \"k\""},
          {ignored(R"([1,{"a":[{"k":1,"l":2,"k":3}]}])"), 2, kJsonError, "duplicate key"},
          {R"({"__metadata__":{},"__metadata__":{}})", 0, kJsonError, "duplicate key"},
          {with_metadata(R"({"k":"v","k":"w"})"), 2, kJsonError, "duplicate key \"k\""},
          {"{" + tensor("a", "U8", "[1]", "[0,1]") + "," + tensor("b", "U8", "[1]", "[1,2]") + "," +
               tensor("a", "U8", "[1]", "[2,3]") + "}",
           3, "DuplicateTensor"},
          {R"({"__metadata__":null,"__metadata__":null})", 0, kJsonError},
          {R"({"__metadata__":{},"\u005f_metadata__":{}})", 0, kJsonError}});
}

TEST(HeaderJson, MetadataMustBeNullOrObjectOfStrings) {
  expect("ok 1", with_metadata,
         {"{}", "null", R"({"k":"v","":""})", R"({"k":"\u0000"})",
          R"({"dtype":"U8","shape":"x","data_offsets":"y"})"});
  expect(
      "ok 0", unchanged,
      {R"({"__metadata__":{}})", R"({"__metadata__":null})", R"({"\u005f_metadata__":{"k":"v"}})"},
      0);
  expect("ok 1", unchanged,
         {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"__metadata__":{"k":"v"}})"});
  expect(kJsonError, with_metadata,
         {R"({"k":null})", R"({"k":{}})", R"({"k":["v"]})", R"({"k":true})", "[]", R"([["k","v"]])",
          R"("x")", "1", "true", R"({"k":"\ud800"})",
          R"({"dtype":"U8","shape":[2],"data_offsets":[0,2]})"});
  expect({{with_metadata(R"({"k":1})"), 2, kJsonError, "__metadata__: "},
          {R"({"\u005f_metadata__":{"k":1}})", 0, kJsonError},
          {R"({"__Metadata__":{"k":"v"}})", 0, kJsonError}});
}

TEST(HeaderJson, UnknownFieldsMustBeValidJson) {
  expect("ok 1", ignored,
         {"1e308", "1.7976931348623157e308", "0e99999999999999", "1e-99999999999", "-0", "-0.0",
          "1E+5", "123456789012345678901234567890", std::string(308, '9'),
          R"("\/\b\f\n\r\t\"\\\u0000\ud83d\ude00")", "\"\x7f\"", "\"\uffff\""});
  expect(kJsonError, ignored,
         {"1e999",
          "-1e999",
          R"({"dtype":1e999})",
          "10e308",
          std::string(309, '9'),
          "1e",
          "1.",
          "01",
          "-",
          "+1",
          "NaN",
          "Infinity",
          "True",
          "tru",
          "1 2",
          "[1,]",
          R"({"a":1,})",
          R"("\ud800")",
          R"("\udc00")",
          R"("\ud800\u0041")",
          R"("\ud83d\ud83d")",
          R"("\ude00\ud83d")",
          R"({"\ud800":1})",
          R"("\x41")",
          R"("\U0041")",
          R"("\u00")",
          "\"\n\"",
          "\"\t\"",
          "\"\0\""s,
          "\"\x1f\""});
  expect(kJsonError, unchanged,
         {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"x":"abc)"});
}

TEST(HeaderJson, AcceptsAnyStringAsName) {
  expect("ok 1", named,
         {"", "..", "/a", "a//b", "\\/", "\\u0000", std::string(100'000, 'n'), "\u00e9", "\ufeff",
          "\\ud83d\\ude00", "\x7f"});
  expect(kJsonError, named, {"\0"s, "\n", "\x1f", "\\ud800", "\\udfff", "\\q"});
  expect("ok 2", unchanged,
         {two(tensor("a", "U8", "[1]", "[0,1]"), tensor("a/b", "U8", "[1]", "[1,2]"))});
}

TEST(HeaderJson, RejectsNonUtf8BeforeOtherErrors) {
  expect("ok 1", named, {"\xf4\x8f\xbf\xbf"});
  expect("InvalidHeader", named,
         {"\xc0\x80", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"});
  expect("InvalidHeader", unchanged,
         {kPlain + "\xff", kPlain + "\xe2\x82", "\xff" + kPlain, "xx" + kPlain + "\xff",
          "{\"a\":1}\xff", with(R"(,"x":1,"x":1)") + "\xff",
          ignored(nested("[", 200, "", "]")) + "\xff", kPlain + "\0\xff"s,
          "\xEF\xBB\xBF" + kPlain + "\xff"});
  expect("InvalidHeader", ignored, {"\"\xff\""});
  expect({{named("\xff"), 2, "InvalidHeader", "not valid UTF-8"},
          {"\xff\xfe{\0}\0"s, 0, "InvalidHeader"}});
}

// The top object is level 1, and the tensor's object is level 2.
TEST(HeaderJson, LimitsNestingTo127Levels) {
  expect("ok 1", ignored,
         {nested("[", 125, "", "]"), nested(R"({"k":)", 125, "1", "}"),
          "[" + nested("[],", 1000, "[]", "") + "]"});
  expect(
      {{ignored(nested("[", 126, "", "]")), 2, kJsonError, "nested deeper than 127"},
       {ignored(nested(R"({"k":)", 126, "1", "}")), 2, kJsonError, "nested deeper than 127"},
       {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"x":)" + std::string(100'000, '['),
        2, kJsonError, "nested deeper than 127"}});
}

TEST(HeaderJson, TensorsMustFillDataWithoutGapsOrOverlaps) {
  expect("InvalidOffset", unchanged,
         {two(tensor("a", "U8", "[2]", "[0,2]"), tensor("b", "U8", "[2]", "[0,2]"))});
  expect("ok 3", unchanged,
         {"{" + tensor("a", "U8", "[0]", "[0,0]") + "," + tensor("b", "U8", "[0]", "[0,0]") + "," +
          tensor("c", "U8", "[2]", "[0,2]") + "}"});
  expect("ok 2", unchanged,
         {"{" + tensor("c", "U8", "[2]", "[0,2]") + "," + tensor("a", "U8", "[0]", "[0,0]") + "}"});
  expect(
      {{two(tensor("a", "U8", "[2]", "[0,2]"), tensor("b", "U8", "[2]", "[3,5]")), 5,
        "InvalidOffset", "tensor \"b\": data_offsets [3,5] leave a gap after tensor \"a\""},
       {two(tensor("a", "U8", "[2]", "[0,2]"), tensor("b", "U8", "[2]", "[1,3]")), 3,
        "InvalidOffset", "tensor \"b\": data_offsets [1,3] overlap tensor \"a\""},
       {one("U8", "[2]", "[1,3]"), 3, "InvalidOffset", "leave a gap after the start of the data"},
       {two(tensor("a", "U8", "[2]", "[0,2]"), tensor("b", "U8", "[0]", "[2,1]")), 2,
        "InvalidOffset", "end before they begin"},
       {two(tensor("a", "U8", "[3]", "[0,2]"), tensor("b", "U8", "[1]", "[9,10]")), 2,
        "TensorInvalidInfo", "tensor \"a\""},
       {two(tensor("a", "U8", "[2]", "[1,3]"), tensor("b", "U8", "[1]", "[3,10]")), 10,
        "InvalidOffset", "tensor \"a\""},
       {two(tensor("a", "U8", "[2]", "[0,2]"), tensor("b", "U8", "[2]", "[2,4]")), 4, "ok 2"},
       {two(tensor("b", "U8", "[2]", "[2,4]"), tensor("a", "U8", "[2]", "[0,2]")), 4, "ok 2"},
       {one("U8", "[2]", "[0,2]"), 3, "MetadataIncompleteBuffer"},
       {one("U8", "[2]", "[0,2]"), 1, "MetadataIncompleteBuffer"},
       {one("U8", "[3]", "[0,2]"), 1, "TensorInvalidInfo"},
       {"{" + tensor("a", "U8", "[2]", "[0,2]") + "," + tensor("m", "U8", "[0]", "[2,2]") + "," +
            tensor("b", "U8", "[2]", "[2,4]") + "," + tensor("e", "I64", "[0,5]", "[4,4]") + "}",
        4, "ok 4"},
       {two(tensor("a", "U8", "[4]", "[0,4]"), tensor("m", "U8", "[0]", "[2,2]")), 4,
        "InvalidOffset"},
       {two(tensor("a", "U8", "[4]", "[0,4]"), tensor("m", "U8", "[0]", "[5,5]")), 4,
        "InvalidOffset"}});
}

TEST(HeaderJson, SizeInBitsMustFit64BitsAndWholeBytes) {
  expect("ok 1", unchanged,
         {one("U8", "[0,18446744073709551615,18446744073709551615]", "[0,0]"),
          one("U8", "[9223372036854775808,0,4]", "[0,0]"),
          one("F64", "[18446744073709551615,0]", "[0,0]"), one("F4", "[0]", "[0,0]")},
         0);
  expect("ValidationOverflow", unchanged, {one("F4", "[4611686018427387905]", "[0,2]")});
  expect("InvalidOffset", unchanged, {one("F4", "[3]", "[1,2]")});
  expect("ok 1", unchanged, {one("F4", "[4]", "[0,2]")});
  expect("MisalignedSlice", unchanged, {one("F4", "[3]", "[0,2]"), one("F6_E3M2", "[2]", "[0,2]")});
  expect(
      {{one("U8", "[18446744073709551615,4,0]", "[0,0]"), 0, "ValidationOverflow", "tensor \"a\""},
       {one("U8", "[2305843009213693952]", "[0,3]"), 3, "ValidationOverflow", "bits overflow"},
       {one("F4", "[3]", "[0,7]"), 7, "MisalignedSlice", "12 bits"},
       {one("U8", "[2305843009213693951]", "[0,2305843009213693951]"), 2305843009213693951U,
        "ok 1"},
       {one("U8", "[18446744073709551615,2]", "[1,3]"), 3, "InvalidOffset"},
       {one("U8", "[18446744073709551615,2]", "[0,3]"), 3, "ValidationOverflow"},
       {one("F4", "[]", "[0,1]"), 1, "MisalignedSlice"},
       {one("F4", "[1]", "[0,0]"), 0, "MisalignedSlice"},
       {one("F6_E2M3", "[4]", "[0,3]"), 3, "ok 1"},
       {one("F6_E3M2", "[8]", "[0,6]"), 6, "ok 1"},
       {two(tensor("a", "U8", "[2305843009213693951]", "[0,2305843009213693951]"),
            tensor("b", "U8", "[1]", "[2305843009213693951,2305843009213693952]")),
        0, "MetadataIncompleteBuffer"}});
}

TEST(HeaderFile, HeaderLengthMustFitFile) {
  const TempDir dir;
  const std::pair<std::string, std::string> kCases[] = {
      {"", "HeaderTooSmall"},
      {"\1", "HeaderTooSmall"},
      {"\2\0\0\0\0\0\0"s, "HeaderTooSmall"},
      {"\xff\xff\xff\xff\xff\xff\xff", "HeaderTooSmall"},
      {"\0\0\0\0\0\0\0\0"s, kJsonError},
      {"\0\0\0\0\0\0\0\0{}"s, kJsonError},
      {"\2\0\0\0\0\0\0\0{}"s, "ok 0"},
      {"\2\0\0\0\0\0\0\0{}x"s, "MetadataIncompleteBuffer"},
      {"\3\0\0\0\0\0\0\0{}"s, "InvalidHeaderLength"},
      {"\5\0\0\0\0\0\0\0\xff"s, "InvalidHeaderLength"},
      {"\x00\xe1\xf5\x05\0\0\0\0{}"s, "InvalidHeaderLength"},
      {"\x01\xe1\xf5\x05\0\0\0\0{}"s, "HeaderTooLarge"},
      {"\0\0\0\0\0\0\0\x80{}"s, "HeaderTooLarge"},
      {"\xff\xff\xff\xff\xff\xff\xff\xff{}"s, "HeaderTooLarge"},
      {"\xf8\xff\xff\xff\xff\xff\xff\xff{}"s, "HeaderTooLarge"},
      {"\0\0\0\0\0\0\0\2{}"s, "HeaderTooLarge"},
  };
  for (const auto& [bytes, expected] : kCases) {
    write_file(dir / "m.safetensors", bytes);
    const LocalFile file((dir / "m.safetensors").string());
    const Verdict verdict = verdict_of([&] { return read_safetensors(file, "m.safetensors"); });
    EXPECT_EQ(verdict.word, expected) << hex(bytes) << ": " << verdict.message;
  }
}

TEST(HeaderFile, LimitsHeaderTo100MillionBytes) {
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

TEST(Header, ListsTensorsByOffsetThenHeaderOrder) {
  const Header header = parse(
      "{" + tensor("z", "U8", "[1]", "[1,2]") + "," + tensor("y", "U8", "[0]", "[1,1]") + "," +
          tensor("x", "U8", "[0]", "[1,1]") + "," + tensor("w", "U8", "[1]", "[0,1]") + "}",
      2);

  std::vector<std::string> names;
  for (const TensorRecord& record : header.tensors) names.emplace_back(header.name(record));
  EXPECT_EQ(names, (std::vector<std::string>{"w", "y", "x", "z"}));
}

TEST(Header, OffsetsCountFromStartOfFile) {
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

TEST(Header, SortsTensorsBytewiseByName) {
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
