// The GGUF reader. tests/corpus has accepted and refused files for each rule.
#include "core/base/error.h"
#include "core/checkpoint/metadata.h"
#include "core/format/format.h"
#include "core/format/gguf.h"
#include "core/source/local_file.h"
#include "tests/gguf/gguf_file.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace stfs::test {
namespace {

using Shape = std::vector<std::uint64_t>;

// Reads a file, and keeps its header.
class Gguf : public ::testing::Test {
 protected:
  const Header& read(const std::string& bytes) {
    write_file(dir_ / "m.gguf", bytes);
    source_ = std::make_unique<const LocalFile>((dir_ / "m.gguf").string());
    header_ = read_gguf(*source_, "m.gguf");
    return header_;
  }
  ErrorCode refused(const std::string& bytes) {
    try {
      read(bytes);
    } catch (const Error& error) {
      return error.code();
    }
    ADD_FAILURE() << "accepted";
    return ErrorCode::kUsage;
  }
  Shape shape(std::size_t i) const {
    const auto dims = header_.shape(header_.tensors[i]);
    return {dims.begin(), dims.end()};
  }
  MetadataValue value(std::string_view key) const {
    return header_.metadata.value(header_.metadata.find(key).value());
  }
  std::string_view text(std::string_view key) const {
    return header_.metadata[header_.metadata.find(key).value()].second;
  }
  // Returns the JSON of a value.
  std::string json(std::string_view key) const {
    const MetadataItem item{
        .key = key, .text = text(key), .value = value(key), .source = source_.get()};
    std::string json;
    if (item.value.type == ValueType::kArray) {
      Content content;
      EXPECT_EQ(make_text(item, content), 0);
      json.resize(content.size());
      EXPECT_EQ(content.copy(0, std::as_writable_bytes(std::span(json))), 0);
    } else {
      TextWriter out(json);
      write_value_json(item, out);
    }
    return json;
  }

  TempDir dir_;
  std::unique_ptr<const LocalFile> source_;
  Header header_;
};

TEST_F(Gguf, DistinguishesRemovedTypeFromUnknownType) {
  const auto message = [&](std::uint32_t type) -> std::string {
    GgufFile file;
    file.tensor("w", {32}, type, std::string(64, 'q'));
    try {
      read(file.bytes());
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(
      message(4).find("type 4, Q4_2, was removed from ggml: download or convert the model again"),
      std::string::npos);
  EXPECT_NE(message(38).find("type 38, IQ4_NL_8_8, was removed"), std::string::npos);
  EXPECT_NE(message(99).find("type 99 is unknown: a newer stfs may support it"), std::string::npos);
}

TEST_F(Gguf, WarnsAboutNameLongerThan63Bytes) {
  GgufFile file;
  file.tensor(std::string(63, 'a'), {2}, 0, std::string(8, 'x'));
  EXPECT_TRUE(read(file.bytes()).warnings.empty());
  file.tensor(std::string(127, 'b'), {2}, 0, std::string(8, 'x'));
  const std::vector<std::string> warnings = read(file.bytes()).warnings;
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("m.gguf: 1 tensor has a name of 64 to 127 bytes"), std::string::npos)
      << warnings[0];
  file.tensor(std::string(128, 'c'), {2}, 0, std::string(8, 'x'));
  EXPECT_EQ(refused(file.bytes()), ErrorCode::kGgufName);
}

TEST_F(Gguf, IsRecognisedByMagicNumberUnderAnyName) {
  write_file(dir_ / "sha256-0123", GgufFile().bytes());

  const LocalFile source((dir_ / "sha256-0123").string());

  EXPECT_EQ(format_of(source).name, kGgufName);
  EXPECT_EQ(format_of(source).raw_suffix, ".gguf");
}

TEST_F(Gguf, RejectsWrongMagicNumber) {
  EXPECT_EQ(refused("gguf" + GgufFile().bytes().substr(4)), ErrorCode::kGgufMagic);
}

TEST_F(Gguf, ReturnsRowMajorShapesAndFileOffsets) {
  GgufFile file;
  file.tensor("w", {2, 3, 1, 4}, 0, std::string(96, 'w'));
  file.tensor("q", {256, 2}, 12, std::string(288, 'q'));
  const std::string bytes = file.bytes();

  const Header& header = read(bytes);

  ASSERT_EQ(header.tensors.size(), 2U);
  EXPECT_EQ(shape(0), (Shape{4, 1, 3, 2}));
  EXPECT_EQ(shape(1), (Shape{2, 256}));
  EXPECT_EQ(header.tensors[1].dtype, DType::kQ4_K);
  EXPECT_EQ(header.raw.offset, 0U);
  EXPECT_EQ(header.raw.length, file.header().size());
  EXPECT_EQ(bytes.substr(header.tensors[0].offset, header.tensors[0].length), std::string(96, 'w'));
  EXPECT_EQ(bytes.substr(header.tensors[1].offset, header.tensors[1].length),
            std::string(288, 'q'));
  EXPECT_EQ(header.by_name, (std::vector<std::uint32_t>{1, 0}));
}

TEST_F(Gguf, HeaderWithoutTensorsEndsAfterLastKey) {
  GgufFile file;
  file.key("k", "v");

  EXPECT_EQ(read(file.bytes() + "more").raw.length, file.bytes().size());
}

TEST_F(Gguf, CutsNameAtFirstNul) {
  GgufFile file;
  file.tensor(std::string_view("a\0b", 3), {1}, 0, "1234");

  EXPECT_EQ(read(file.bytes()).name(header_.tensors[0]), "a");
}

TEST_F(Gguf, KeepsTypeAndTextForEachValue) {
  GgufFile file;
  file.key("u8", ValueType::kU8, little<std::uint8_t>(255));
  file.key("i8", ValueType::kI8, little<std::int8_t>(-128));
  file.key("u16", ValueType::kU16, little<std::uint16_t>(65535));
  file.key("i16", ValueType::kI16, little<std::int16_t>(-2));
  file.key("u32", ValueType::kU32, little<std::uint32_t>(4294967295));
  file.key("i32", ValueType::kI32, little<std::int32_t>(-3));
  file.key("f32", ValueType::kF32, little(1e-5F));
  file.key("yes", ValueType::kBool, little<std::uint8_t>(2));
  file.key("no", ValueType::kBool, little<std::uint8_t>(0));
  file.key("u64", ValueType::kU64, little(std::numeric_limits<std::uint64_t>::max()));
  file.key("i64", ValueType::kI64, little(std::numeric_limits<std::int64_t>::min()));
  file.key("f64", ValueType::kF64, little(0.1));
  file.key("nan", ValueType::kF32, little(std::nanf("")));
  file.key("text", "line\n\"two\"");

  read(file.bytes());

  const std::vector<std::tuple<std::string, ValueType, std::string>> expected{
      {"u8", ValueType::kU8, "255"},
      {"i8", ValueType::kI8, "-128"},
      {"u16", ValueType::kU16, "65535"},
      {"i16", ValueType::kI16, "-2"},
      {"u32", ValueType::kU32, "4294967295"},
      {"i32", ValueType::kI32, "-3"},
      {"f32", ValueType::kF32, "1e-05"},
      {"yes", ValueType::kBool, "true"},
      {"no", ValueType::kBool, "false"},
      {"u64", ValueType::kU64, "18446744073709551615"},
      {"i64", ValueType::kI64, "-9223372036854775808"},
      {"f64", ValueType::kF64, "0.1"},
  };
  for (const auto& [key, type, shown] : expected) {
    EXPECT_EQ(value(key).type, type) << key;
    EXPECT_TRUE(value(key).has_text) << key;
    EXPECT_EQ(text(key), shown);
    EXPECT_EQ(json(key), shown);
  }
  EXPECT_EQ(text("text"), "line\n\"two\"");
  EXPECT_EQ(json("text"), R"("line\n\"two\"")");
  EXPECT_EQ(text("nan"), "nan");
  EXPECT_EQ(json("nan"), "null");
}

TEST_F(Gguf, ArrayJsonIsReadFromFileOnDemand) {
  GgufFile file;
  file.key(
      "numbers", ValueType::kArray,
      gguf_array(ValueType::kI16, 3,
                 little<std::int16_t>(-1) + little<std::int16_t>(0) + little<std::int16_t>(7)));
  file.key("words", ValueType::kArray,
           gguf_array(ValueType::kString, 3,
                      gguf_string("a\"b") + gguf_string("") + gguf_string("\xFF")));
  file.key("flags", ValueType::kArray, gguf_array(ValueType::kBool, 2, std::string("\0\2", 2)));
  file.key("empty", ValueType::kArray, gguf_array(ValueType::kF64, 0, ""));

  read(file.bytes());

  EXPECT_EQ(value("words").type, ValueType::kArray);
  EXPECT_EQ(value("words").element, ValueType::kString);
  EXPECT_EQ(value("words").count, 3U);
  EXPECT_FALSE(value("words").has_text);
  EXPECT_EQ(text("words"), "");
  EXPECT_EQ(json("numbers"), "[-1,0,7]");
  EXPECT_EQ(json("words"), "[\"a\\\"b\",\"\",\"\xEF\xBF\xBD\"]");
  EXPECT_EQ(json("flags"), "[false,true]");
  EXPECT_EQ(json("empty"), "[]");
}

TEST_F(Gguf, MalformedArrayGivesEIO) {
  const std::string header = little<std::uint32_t>(8) + little<std::uint64_t>(1);
  for (const std::string& elements :
       {little<std::uint64_t>(3) + "ab", little<std::uint64_t>(2) + "a", std::string("\1\0", 2)}) {
    write_file(dir_ / "array", header + elements);
    const LocalFile source((dir_ / "array").string());
    MetadataValue value;
    value.type = ValueType::kArray;
    value.element = ValueType::kString;
    value.encoded = {0, source.size()};
    EXPECT_EQ(ArrayText(source, value).prepare(), EIO) << elements.size();
  }
}

TEST_F(Gguf, KeepsNoTextForLargeString) {
  GgufFile file;
  file.key("large", std::string(17 << 20, 'x'));
  file.key("small", "text");
  file.tensor("w", {1}, 0, "1234");

  read(file.bytes());

  EXPECT_FALSE(value("large").has_text);
  EXPECT_EQ(value("large").encoded.length, 8U + (17 << 20));
  EXPECT_EQ(text("small"), "text");
  EXPECT_EQ(header_.tensors.size(), 1U);
}

// The header has several pieces, and strings cross their ends.
TEST_F(Gguf, ReadsLargeHeaderInPieces) {
  GgufFile file;
  std::string words;
  for (int i = 0; i < 100'000; ++i) words += gguf_string("word " + std::to_string(i));
  file.key("words", ValueType::kArray, gguf_array(ValueType::kString, 100'000, words));
  file.key("numbers", ValueType::kArray,
           gguf_array(ValueType::kU8, 3 << 20, std::string(3 << 20, '\1')));
  for (int i = 0; i < 20'000; ++i) file.key("key." + std::to_string(i), std::to_string(i));
  for (int i = 0; i < 30'000; ++i) file.tensor("blk." + std::to_string(i), {1}, 0, "1234");

  const Header& header = read(file.bytes());

  EXPECT_EQ(header.raw.length, file.header().size());
  EXPECT_EQ(text("key.12345"), "12345");
  EXPECT_EQ(value("numbers").count, 3U << 20);
  EXPECT_EQ(nlohmann::json::parse(json("words")).at(99'999), "word 99999");
  EXPECT_EQ(header.name(header.tensors[29'999]), "blk.29999");
}

TEST_F(Gguf, UsesOriginalShapeWithSameElementCount) {
  constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();
  const struct {
    std::string name;
    std::vector<std::int32_t> original;
    std::vector<std::int64_t> stored;  // the fastest dimension first
    Shape expected;
  } kRows[] = {
      {"five", {2, 1, 2, 1, 2}, {4, 2}, {2, 1, 2, 1, 2}},
      {"other", {3, 3}, {4, 2}, {2, 4}},
      {"negative", {-2, -4}, {4, 2}, {2, 4}},
      {"negative without elements", {-1, 0}, {0}, {0}},
      {"negative at the end", {0, 3, -1}, {0}, {0}},
      {"large without elements", {kMax, kMax, kMax, 0}, {0}, {kMax, kMax, kMax, 0}},
  };
  GgufFile file;
  for (const auto& row : kRows) {
    std::string elements;
    for (const std::int32_t dim : row.original) elements += little(dim);
    file.key("comfy.gguf.orig_shape." + row.name, ValueType::kArray,
             gguf_array(ValueType::kI32, row.original.size(), elements));
    file.tensor(row.name, row.stored, 0, std::string(row.stored.size() == 2 ? 32 : 0, 'x'));
  }
  file.key("comfy.gguf.orig_shape.no tensor", ValueType::kArray,
           gguf_array(ValueType::kI32, 1, little<std::int32_t>(1)));

  read(file.bytes());

  for (std::size_t i = 0; i < std::size(kRows); ++i) EXPECT_EQ(shape(i), kRows[i].expected) << i;
}

// ggml stores a complete key, but compares keys as C strings.
TEST_F(Gguf, UsesFirstKeyThatEqualsAlignmentUpToNul) {
  const std::string with_nul = std::string(kGgufAlignmentKey) + '\0' + "x";
  const auto aligned = [](GgufFile& file, std::string_view key, std::uint32_t alignment) {
    file.key(key, ValueType::kU32, little(alignment));
  };
  GgufFile only, first, second, broken;
  aligned(only, with_nul, 64);
  aligned(first, with_nul, 64);
  first.key(kGgufAlignmentKey, "no number");
  aligned(second, kGgufAlignmentKey, 64);
  second.key(with_nul, "no number");
  for (GgufFile* file : {&only, &first, &second}) {
    file->alignment = 64;
    for (const char* name : {"a", "b"}) file->tensor(name, {1}, 0, "1234");
    read(file->bytes());
    EXPECT_EQ(header_.tensors[1].offset, header_.tensors[0].offset + 64);
    EXPECT_EQ(header_.metadata[header_.metadata.size() - 1].first, with_nul)
        << "the complete key is kept";
  }
  aligned(broken, with_nul, 48);
  EXPECT_EQ(refused(broken.bytes()), ErrorCode::kGgufAlignment);
}

TEST_F(Gguf, RejectsTooManyKeys) {
  GgufFile many;
  many.key("k", ValueType::kU8, "1");
  std::string bytes = many.bytes();
  bytes.replace(16, 8, little<std::uint64_t>((4 << 20) + 1));
  write_file(dir_ / "m.gguf", bytes);
  std::filesystem::resize_file(dir_ / "m.gguf", 1 << 26);  // large enough for this many keys
  EXPECT_EQ(refused(read_file(dir_ / "m.gguf")), ErrorCode::kGgufCount);

  GgufFile large;
  for (int i = 0; i < 1025; ++i) {
    large.key(std::to_string(i) + std::string(65'530, 'x'), ValueType::kU8, "1");
  }
  EXPECT_EQ(refused(large.bytes()), ErrorCode::kGgufCount);
}

TEST_F(Gguf, TensorWithZeroDimensionHasNoBytes) {
  GgufFile file;
  file.tensor("w", {0, std::int64_t{1} << 62, 4}, 0, "");
  file.tensor("v", {1}, 0, "1234");

  read(file.bytes());

  EXPECT_EQ(header_.tensors[0].length, 0U);
  EXPECT_EQ(header_.tensors[1].offset, header_.raw.length);
}

// A sparse file of 64 GiB. Its zeros are read as tensors, and the second breaks a rule.
TEST_F(Gguf, StopsAtFirstBrokenRule) {
  write_file(dir_ / "m.gguf", "GGUF" + little<std::uint32_t>(3) +
                                  little<std::uint64_t>(2'000'000'000) + little<std::uint64_t>(0));
  std::filesystem::resize_file(dir_ / "m.gguf", std::uint64_t{64} << 30);
  const LocalFile source((dir_ / "m.gguf").string());

  EXPECT_THROW(read_gguf(source, "m.gguf"), Error);
}

TEST_F(Gguf, ReadsRealModel) {
  const std::filesystem::path data = std::filesystem::path(STFS_SOURCE_DIR) / "tests/data/gguf";
  read(read_file(data / "llama-2-tiny-random.gguf"));

  ASSERT_EQ(header_.tensors.size(), 12U);
  EXPECT_EQ(text("general.architecture"), "llama");
  EXPECT_EQ(value("tokenizer.ggml.tokens").count, 32'000U);
  EXPECT_EQ(nlohmann::json::parse(json("tokenizer.ggml.tokens")).size(), 32'000U);
  EXPECT_EQ(nlohmann::json::parse(json("tokenizer.ggml.scores")).size(), 32'000U);
}

}  // namespace
}  // namespace stfs::test
