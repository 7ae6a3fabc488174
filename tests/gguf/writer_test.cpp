// New GGUF files, compared byte by byte, and read by the readers of stfs and ggml.
#include "core/write/writer.h"

#include "core/base/error.h"
#include "core/format/gguf.h"
#include "core/format/gguf_split.h"
#include "core/source/local_file.h"
#include "core/write/gguf_writer.h"
#include "tests/gguf/ggml.h"
#include "tests/gguf/gguf_file.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::test {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kF32Type = 0;
constexpr std::uint32_t kQ8Type = 8;

std::string text_of(const Content& content) {
  std::string out(content.size(), '\0');
  EXPECT_EQ(content.copy(0, std::as_writable_bytes(std::span(out))), 0);
  return out;
}

// Opens GGUF files as one checkpoint.
class Sources {
 public:
  explicit Sources(const std::vector<std::string>& files) {
    for (const std::string& bytes : files) {
      paths_.push_back((dir_ / ("s" + std::to_string(paths_.size()) + ".gguf")).string());
      write_file(paths_.back(), bytes);
    }
    load();
  }
  void add(const std::string& path) {
    paths_.push_back(path);
    load();
  }
  const Checkpoint& operator*() const { return *checkpoint_; }
  const Checkpoint* operator->() const { return checkpoint_.get(); }
  fs::path operator/(std::string_view name) const { return dir_ / name; }

  std::string file_of(const std::string& glob) const {
    const GgufFiles files(*checkpoint_);
    const auto tensors = checkpoint_->match(std::span(&glob, 1));
    Content content;
    std::uint64_t size = 0;
    EXPECT_EQ(files.make(tensors, content), 0);
    EXPECT_EQ(files.size(tensors, size), 0);
    EXPECT_EQ(size, content.size());
    return text_of(content);
  }
  std::string merged() const { return file_of("*"); }

 private:
  void load() { checkpoint_ = std::make_unique<const Checkpoint>(paths_); }

  TempDir dir_;
  std::vector<std::string> paths_;
  std::unique_ptr<const Checkpoint> checkpoint_;
};

std::string strings(const std::vector<std::string>& texts) {
  std::string elements;
  for (const std::string& text : texts) elements += gguf_string(text);
  return gguf_array(ValueType::kString, texts.size(), elements);
}

TEST(GgufWriter, MergedFileHasAllKeysAndTensorsInOrder) {
  GgufFile a, b, expected;
  a.key("z", "first");
  a.key("words", ValueType::kArray, strings({"one", "", "three"}));
  a.key("same", ValueType::kU32, little<std::uint32_t>(5));
  a.tensor("a", {3, 2}, kF32Type, std::string(24, 'a'));
  a.tensor("empty", {0, 2}, kF32Type, "");
  b.key("a", ValueType::kBool, "\1");
  b.key("same", ValueType::kU32, little<std::uint32_t>(5));
  b.key("words", ValueType::kArray, strings({"one", "", "three"}));
  b.tensor("q", {64, 1}, kQ8Type, std::string(68, 'q'));
  expected.key("z", "first");
  expected.key("words", ValueType::kArray, strings({"one", "", "three"}));
  expected.key("same", ValueType::kU32, little<std::uint32_t>(5));
  expected.key("a", ValueType::kBool, "\1");
  expected.tensor("a", {3, 2}, kF32Type, std::string(24, 'a'));
  expected.tensor("empty", {0, 2}, kF32Type, "");
  expected.tensor("q", {64, 1}, kQ8Type, std::string(68, 'q'));

  const Sources sources({a.bytes(), b.bytes()});

  EXPECT_EQ(sources.merged(), expected.bytes());
  EXPECT_TRUE(sources->metadata_conflicts().empty());
}

TEST(GgufWriter, MergedFileHasNoSplitKeys) {
  // With a count of 1 each part can be read without the others.
  const auto part = [](GgufFile& file, int number) {
    file.key(kSplitNumber, ValueType::kU16, little(static_cast<std::uint16_t>(number)));
    file.key(kSplitCount, ValueType::kU16, little<std::uint16_t>(1));
    file.key(kSplitTensors, ValueType::kI32, little(2));
  };
  GgufFile first, second, third, expected;
  first.key("general.name", "in parts");
  part(first, 0);
  first.key("last", "one");
  part(second, 1);
  second.tensor("a", {1}, kF32Type, "aaaa");
  part(third, 2);
  third.tensor("b", {1}, kF32Type, "bbbb");
  expected.key("general.name", "in parts");
  expected.key("last", "one");
  expected.tensor("a", {1}, kF32Type, "aaaa");
  expected.tensor("b", {1}, kF32Type, "bbbb");

  EXPECT_EQ(Sources({first.bytes(), second.bytes(), third.bytes()}).merged(), expected.bytes());
}

TEST(GgufWriter, OmitsAndNamesConflictingKeys) {
  GgufFile a, b;
  a.key("array", ValueType::kArray, strings({"same", "length"}));
  b.key("array", ValueType::kArray, strings({"same", "LENGTH"}));
  a.key("long", ValueType::kArray, strings({std::string(300'000, 'x') + "a"}));
  b.key("long", ValueType::kArray, strings({std::string(300'000, 'x') + "b"}));
  a.key("number", ValueType::kU32, little<std::uint32_t>(5));
  b.key("number", ValueType::kI32, little<std::int32_t>(5));
  a.key("text", "a");
  b.key("text", "b");
  a.key("kept", ValueType::kArray, strings({std::string(300'000, 'x')}));
  b.key("kept", ValueType::kArray, strings({std::string(300'000, 'x')}));
  GgufFile expected;
  expected.key("kept", ValueType::kArray, strings({std::string(300'000, 'x')}));

  const Sources sources({a.bytes(), b.bytes()});

  EXPECT_EQ(sources.merged(), expected.bytes());
  EXPECT_EQ(sources->metadata_conflicts(),
            (std::vector<std::string>{"array", "long", "number", "text"}));
}

TEST(GgufWriter, UsesLargestAlignmentAmongSources) {
  const auto aligned = [](std::uint32_t alignment, const std::string& name) {
    GgufFile file;
    file.key("before", name);
    file.alignment = alignment;
    file.key(kGgufAlignmentKey, ValueType::kU32, little(alignment));
    file.tensor(name, {1}, kF32Type, "1234");
    return file.bytes();
  };
  GgufFile plain, expected, small;
  plain.tensor("c", {1}, kF32Type, "1234");
  expected.alignment = 8192;
  expected.key(kGgufAlignmentKey, ValueType::kU32, little<std::uint32_t>(8192));
  for (const char* name : {"a", "b", "c"}) expected.tensor(name, {1}, kF32Type, "1234");
  small.alignment = 8;
  small.key("before", "a");
  small.key(kGgufAlignmentKey, ValueType::kU32, little<std::uint32_t>(8));
  for (const char* name : {"c", "a"}) small.tensor(name, {1}, kF32Type, "1234");

  EXPECT_EQ(Sources({aligned(16, "a"), aligned(8192, "b"), plain.bytes()}).merged(),
            expected.bytes());
  EXPECT_EQ(Sources({plain.bytes(), aligned(8, "a")}).merged(), small.bytes());
}

// ggml compares keys as C strings, so it would find the text before a NUL.
TEST(GgufWriter, OmitsSecondKeyThatEqualsKnownKeyUpToNul) {
  const std::string alignment = std::string(kGgufAlignmentKey) + '\0';
  GgufFile a, b, expected;
  a.alignment = 64;
  a.key(alignment, ValueType::kU32, little<std::uint32_t>(64));
  a.key(kGgufAlignmentKey, ValueType::kU32, little<std::uint32_t>(8));
  a.key(std::string(kSplitCount) + '\0', ValueType::kU16, little<std::uint16_t>(1));
  a.tensor("a", {1}, kF32Type, "1234");
  b.alignment = 16;
  b.key(kGgufAlignmentKey, ValueType::kU32, little<std::uint32_t>(16));
  b.tensor("b", {1}, kF32Type, "1234");
  expected.alignment = 64;
  expected.key(alignment, ValueType::kU32, little<std::uint32_t>(64));
  for (const char* name : {"a", "b"}) expected.tensor(name, {1}, kF32Type, "1234");
  EXPECT_EQ(Sources({a.bytes(), b.bytes()}).merged(), expected.bytes());
}

TEST(GgufWriter, KeepsStoredDimensionsAndOriginalShape) {
  const auto original = [](const std::vector<std::int32_t>& dims) {
    std::string elements;
    for (const std::int32_t dim : dims) elements += little(dim);
    return gguf_array(ValueType::kI32, dims.size(), elements);
  };
  GgufFile file, other, expected;
  file.key("comfy.gguf.orig_shape.w", ValueType::kArray, original({2, 1, 2, 1, 2}));
  file.tensor("v", {4}, kF32Type, std::string(16, 'v'));
  file.tensor("w", {2, 4}, kF32Type, std::string(32, 'w'));
  other.key("comfy.gguf.orig_shape.v", ValueType::kArray, original({2, 2}));
  other.key("comfy.gguf.orig_shape.nowhere", ValueType::kArray, original({2, 2}));
  other.tensor("x", {1}, kF32Type, "xxxx");
  expected.key("comfy.gguf.orig_shape.w", ValueType::kArray, original({2, 1, 2, 1, 2}));
  expected.key("comfy.gguf.orig_shape.nowhere", ValueType::kArray, original({2, 2}));
  expected.tensor("v", {4}, kF32Type, std::string(16, 'v'));
  expected.tensor("w", {2, 4}, kF32Type, std::string(32, 'w'));
  expected.tensor("x", {1}, kF32Type, "xxxx");

  const Sources sources({file.bytes(), other.bytes()});
  const std::string merged = sources.merged();

  EXPECT_EQ(merged, expected.bytes());
  const Sources again({merged});
  for (const char* name : {"v", "w", "x"}) {
    EXPECT_TRUE(std::ranges::equal(again->tensor(*again->find(name)).shape,
                                   sources->tensor(*sources->find(name)).shape))
        << name;
  }
  EXPECT_EQ(again->tensor(*again->find("w")).shape.size(), 5U);
}

TEST(GgufWriter, SubsetHasItsTensorsAndAllKeys) {
  GgufFile file, expected;
  file.version = 2;
  file.key("k", "v");
  expected.key("k", "v");
  for (int i = 0; i < 200; ++i) {
    const std::string name = "t" + std::to_string(i);
    file.tensor(name, {1 + i % 3}, kF32Type,
                std::string(static_cast<std::size_t>(4 + 4 * (i % 3)), 'x'));
    if (i % 10 == 7)
      expected.tensor(name, {1 + i % 3}, kF32Type,
                      std::string(static_cast<std::size_t>(4 + 4 * (i % 3)), 'x'));
  }

  EXPECT_EQ(Sources({file.bytes()}).file_of("*7"), expected.bytes());
}

TEST(GgufWriter, FileWithoutTensorsEndsAfterLastKey) {
  GgufFile a, b, expected;
  a.key("a", "1");
  b.key("b", "22");
  expected.key("a", "1");
  expected.key("b", "22");

  EXPECT_EQ(Sources({a.bytes(), b.bytes()}).merged(), expected.bytes());
}

TEST(GgufWriter, AcceptsOnlyTypesThatGgufHas) {
  GgufFile file;
  file.tensor("a", {1}, kF32Type, "aaaa");
  Sources sources({file.bytes()});
  write_safetensors(sources / "b.safetensors",
                    {{"b", "U8", {4}, "bbbb"}, {"c", "F32", {1}, "cccc"}},
                    test::Metadata{{"k", "v"}});
  sources.add((sources / "b.safetensors").string());
  const GgufFiles files(*sources);
  Content content;
  std::uint64_t size = 0;

  EXPECT_EQ(files.make(sources->match({}), content), ENOTSUP);
  EXPECT_EQ(files.size(sources->match({}), size), ENOTSUP);
  EXPECT_FALSE(files.can_hold(*sources->find("b")));
  EXPECT_TRUE(files.can_hold(*sources->find("c")));
  EXPECT_EQ(sources.file_of("a"), file.bytes());
}

TEST(GgufWriter, LargeAlignmentNeedsNoMemoryForPadding) {
  GgufFile plain, wide;
  for (int i = 0; i < 5; ++i) plain.tensor("t" + std::to_string(i), {1}, kF32Type, "1234");
  wide.key(kGgufAlignmentKey, ValueType::kU32, little(std::uint32_t{1} << 31));
  const Sources sources({plain.bytes(), wide.bytes()});
  const GgufFiles files(*sources);
  // Each tensor takes two gibibytes.
  Content content;
  ASSERT_EQ(files.make(sources->match({}), content), 0);
  EXPECT_EQ(content.size(), std::uint64_t{6} << 31);
  std::string zeros(100'000, 'x');
  ASSERT_EQ(content.copy(content.size() - zeros.size(), std::as_writable_bytes(std::span(zeros))),
            0);
  EXPECT_EQ(zeros, std::string(100'000, '\0'));
}

TEST(GgufWriter, ReadAtAnyOffsetGivesSameBytes) {
  GgufFile a, b;
  a.key("words", ValueType::kArray, strings(std::vector<std::string>(1000, "word")));
  for (int i = 0; i < 500; ++i) {
    (i % 2 == 0 ? a : b)
        .tensor("tensor." + std::to_string(i), {1 + i % 5}, kF32Type,
                std::string(static_cast<std::size_t>(4 + 4 * (i % 5)), static_cast<char>(i)));
  }
  b.key("k", "v");
  const Sources sources({a.bytes(), b.bytes()});
  const GgufFiles files(*sources);
  Content content;
  ASSERT_EQ(files.make(sources->match({}), content), 0);
  const std::string whole = text_of(content);
  std::mt19937_64 random(1);
  for (int i = 0; i < 500; ++i) {
    const std::uint64_t offset = random() % (whole.size() + 10);
    const std::uint64_t length = 1 + random() % (i % 2 == 0 ? 100 : whole.size());
    Reading reading;
    ASSERT_EQ(content.read(offset, length, reading), 0);
    std::string bytes;
    for (const iovec& piece : reading.pieces) {
      bytes.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
    }
    ASSERT_EQ(bytes, offset < whole.size() ? whole.substr(offset, length) : "") << offset;
  }
}

// In a safetensors file quantised tensors become F32.
TEST(GgufAsSafetensors, HasBlockValuesAndUtf8Metadata) {
  GgufFile file;
  file.key("name", "größe");
  file.key("layers", ValueType::kU32, little<std::uint32_t>(7));
  file.key("words", ValueType::kArray, strings({"left", "out"}));
  file.key("broken", "\xFF");
  file.key("\xFE", "broken");
  std::string block = little<std::uint16_t>(0x3800);  // 0.5
  std::string values;
  for (int i = 0; i < 32; ++i) {
    block += static_cast<char>(i - 16);
    values += little(0.5F * static_cast<float>(i - 16));
  }
  file.tensor("ints", {3}, 24, "abc");
  file.tensor("blocks", {32, 1}, kQ8Type, block);
  file.tensor("wide", {1}, 28, "12345678");
  const Sources sources({file.bytes()});
  const SafetensorsFiles files(*sources);
  const std::optional<Content> content = files.make(sources->match({}));
  ASSERT_TRUE(content);
  EXPECT_EQ(files.size(sources->match({})), content->size());
  write_file(sources / "m.safetensors", text_of(*content));

  const std::vector<std::string> paths{(sources / "m.safetensors").string()};
  const Checkpoint again(paths);

  const auto tensor = [&](const char* name) { return again.tensor(*again.find(name)); };
  EXPECT_EQ(text_of(tensor("blocks").content()), values);
  EXPECT_EQ(tensor("blocks").dtype, DType::kF32);
  EXPECT_TRUE(std::ranges::equal(tensor("blocks").shape, std::vector<std::uint64_t>{1, 32}));
  EXPECT_EQ(text_of(tensor("ints").content()), "abc");
  EXPECT_EQ(tensor("ints").dtype, DType::kI8);
  EXPECT_EQ(text_of(tensor("wide").content()), "12345678");
  EXPECT_EQ(tensor("wide").dtype, DType::kF64);
  EXPECT_EQ(again.metadata(),
            (std::vector<stfs::Metadata::Entry>{{"layers", "7"}, {"name", "größe"}}));
}

// Readers of the format treat `__metadata__` as metadata.
TEST(GgufAsSafetensors, OmitsTensorNamedMetadata) {
  GgufFile file;
  file.key("__metadata__", "x");
  file.tensor("__metadata__", {4}, 24, "abcd");
  file.tensor("b", {4}, 24, "efgh");
  const Sources sources({file.bytes()});

  EXPECT_FALSE(fits_safetensors(sources->tensor(*sources->find("__metadata__"))));
  EXPECT_TRUE(fits_safetensors(sources->tensor(*sources->find("b"))));
}

class GgufWriterAgainstGgml : public GgmlTest {
 protected:
  // Returns what ggml reads from a file: the keys in order, and all properties of each tensor.
  std::string read(const fs::path& path) const {
    void* context = nullptr;
    void* const file = ggml_->gguf_init_from_file(path.c_str(), {false, &context});
    if (file == nullptr) return "refused";
    std::string text;
    for (std::int64_t i = 0; i < ggml_->gguf_get_n_kv(file); ++i) {
      text += std::string(ggml_->gguf_get_key(file, i)) + "\n";
    }
    for (std::int64_t i = 0; i < ggml_->gguf_get_n_tensors(file); ++i) {
      const std::string name = ggml_->gguf_get_tensor_name(file, i);
      const void* const tensor = ggml_->get_tensor(context, name.c_str());
      text += name + " " + std::to_string(ggml_->gguf_get_tensor_type(file, i)) + " " +
              std::to_string(ggml_->n_dims(tensor)) + " " +
              std::to_string(ggml_->nelements(tensor)) + " " +
              std::to_string(ggml_->nrows(tensor)) + " ";
      text.append(static_cast<const char*>(ggml_->get_data(tensor)), ggml_->nbytes(tensor));
      text += "\n";
    }
    ggml_->gguf_free(file);
    ggml_->free(context);
    return text;
  }
  // Reads a file with ggml, and returns the header that ggml then writes for it.
  std::string header_from_ggml(const fs::path& path) const {
    void* const file = ggml_->gguf_init_from_file(path.c_str(), {true, nullptr});
    if (file == nullptr) return "refused";
    const fs::path again = path.string() + ".again";
    EXPECT_TRUE(ggml_->gguf_write_to_file(file, again.c_str(), true));
    ggml_->gguf_free(file);
    return read_file(again);
  }
  void expect_readable(const fs::path& path, const std::string& bytes) const {
    write_file(path, bytes);
    EXPECT_TRUE(bytes.starts_with(header_from_ggml(path)));
  }
};

// Adds tensors of all types with number % modulus == remainder.
void fill(GgufFile& file, int modulus, int remainder) {
  std::mt19937_64 random(7);
  for (int type = 0; type < 43; ++type) {
    const auto dtype = dtype_from_gguf(static_cast<std::uint32_t>(type));
    if (!dtype) continue;
    std::string bytes(*type_info(*dtype).bytes_of(256 * 5 * 2), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (type % modulus != remainder) continue;
    file.tensor("type." + std::to_string(type), {256, 5, 2}, static_cast<std::uint32_t>(type),
                bytes);
  }
}

// Adds keys with all types of values.
void add_keys(GgufFile& file) {
  file.key("z.text", "text");
  file.key("z.words", ValueType::kArray, strings({"a", "", "ccc"}));
  file.key("z.array", ValueType::kArray, gguf_array(ValueType::kF32, 3, std::string(12, 'f')));
  constexpr std::size_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  for (int type = 0; type < 13; ++type) {
    if (kSizes[type] == 0) continue;
    file.key("a." + std::to_string(type), static_cast<ValueType>(type),
             std::string(kSizes[type], '\1'));
  }
}

TEST_F(GgufWriterAgainstGgml, GgmlReadsMergedPartsLikeWholeFile) {
  GgufFile whole, parts[3];
  add_keys(whole);
  add_keys(parts[0]);
  for (int i = 0; i < 3; ++i) {
    parts[i].key(kSplitNumber, ValueType::kU16, little(static_cast<std::uint16_t>(i)));
    parts[i].key(kSplitCount, ValueType::kU16, little<std::uint16_t>(1));
    parts[i].key(kSplitTensors, ValueType::kI32, little(36));
    if (i > 0) fill(parts[i], 2, i - 1);  // the first part has no tensors
  }
  fill(whole, 2, 0);
  fill(whole, 2, 1);
  const Sources sources({parts[0].bytes(), parts[1].bytes(), parts[2].bytes()});
  const std::string merged = sources.merged();

  expect_readable(sources / "merged.gguf", merged);
  write_file(sources / "whole.gguf", whole.bytes());

  EXPECT_EQ(read(sources / "merged.gguf"), read(sources / "whole.gguf"));
  EXPECT_EQ(merged, whole.bytes());
}

TEST_F(GgufWriterAgainstGgml, GgmlReadsSubsets) {
  GgufFile file;
  add_keys(file);
  file.alignment = 64;
  file.key(kGgufAlignmentKey, ValueType::kU32, little<std::uint32_t>(64));
  fill(file, 1, 0);
  const Sources sources({file.bytes()});
  for (const char* glob : {"*", "type.1?", "type.8"}) {
    expect_readable(sources / "subset.gguf", sources.file_of(glob));
  }
}

TEST_F(GgufWriterAgainstGgml, GgmlReadsRewrittenCorpusFiles) {
  const fs::path corpus = fs::path(STFS_SOURCE_DIR) / "tests/corpus/accepted";
  int count = 0;
  for (const auto& entry : fs::directory_iterator(corpus)) {
    if (entry.path().extension() != ".gguf") continue;
    SCOPED_TRACE(entry.path().string());
    const Sources sources({read_file(entry.path())});
    const std::string bytes = sources.merged();
    write_file(sources / "m.gguf", bytes);
    // ggml reads names of at most 63 bytes.
    const bool has_long_name = entry.path().stem() == "gguf-name-127-bytes";
    EXPECT_EQ(header_from_ggml(sources / "m.gguf") == "refused", has_long_name);
    EXPECT_EQ(Sources({bytes}).merged(), bytes);
    ++count;
  }
  EXPECT_GT(count, 15);
}

}  // namespace
}  // namespace stfs::test
