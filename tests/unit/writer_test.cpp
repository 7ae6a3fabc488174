// Compares new files byte by byte, and reads them back with the header parser.
#include "core/write/writer.h"

#include "core/format/safetensors.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/unit/most.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

std::string all(const Content& content) {
  std::string out(content.size(), '\0');
  EXPECT_EQ(content.copy(0, std::as_writable_bytes(std::span(out))), 0);
  return out;
}

std::uint64_t json_length(const std::string& file) {
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  return length;
}

class Loaded {
 public:
  explicit Loaded(const std::vector<std::vector<Tensor>>& files,
                  const std::vector<std::optional<Metadata>>& metadata = {}) {
    std::vector<std::string> paths;
    for (std::size_t i = 0; i < files.size(); ++i) {
      paths.push_back((dir_ / ("s" + std::to_string(i) + ".safetensors")).string());
      write_safetensors(paths.back(), files[i], i < metadata.size() ? metadata[i] : std::nullopt);
    }
    checkpoint_ = std::make_unique<const Checkpoint>(paths);
    files_ = std::make_unique<const SafetensorsFiles>(*checkpoint_);
  }
  const Checkpoint& operator*() const { return *checkpoint_; }
  const SafetensorsFiles& files() const { return *files_; }
  std::vector<std::uint32_t> everything() const {
    std::vector<std::uint32_t> numbers(checkpoint_->tensor_count());
    std::iota(numbers.begin(), numbers.end(), 0U);
    return numbers;
  }
  std::string merged() const {
    const std::optional<Content> content = files_->make(everything());
    EXPECT_TRUE(content);
    EXPECT_EQ(files_->size(everything()), content ? std::optional(content->size()) : std::nullopt);
    return content ? all(*content) : "";
  }

 private:
  TempDir dir_;
  std::unique_ptr<const Checkpoint> checkpoint_;
  std::unique_ptr<const SafetensorsFiles> files_;
};

// Returns the tensors of a file by name, and checks the rules of the format.
std::map<std::string, Tensor> tensors_of(const std::string& file) {
  const std::uint64_t length = json_length(file);
  const std::string_view header_text = std::string_view(file).substr(8, length);
  std::map<std::string, Tensor> out;
  try {
    const Header header = parse_safetensors(header_text, file.size() - 8 - length, "merged");
    for (const TensorRecord& record : header.tensors) {
      const std::string name(header.name(record));
      const auto shape = header.shape(record);
      out[name] = {name, std::string(dtype_name(record.dtype)), Shape(shape.begin(), shape.end()),
                   file.substr(record.offset, record.length)};
    }
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
  }
  return out;
}

std::vector<Tensor> one_of_each_type() {
  std::vector<Tensor> tensors;
  for (int i = 0; i < kDTypeCount; ++i) {
    if (type_info(static_cast<DType>(i)).kind == TypeKind::kQuantized) continue;
    const std::string dtype(dtype_name(static_cast<DType>(i)));
    tensors.push_back(random_tensor("t" + dtype, dtype, {3, 4}, static_cast<std::uint64_t>(i)));
  }
  tensors.push_back(random_tensor("scalar", "F32", {}));
  tensors.push_back(random_tensor("empty", "F64", {0, 5}));
  tensors.push_back(random_tensor("", "U8", {5}));
  tensors.push_back(random_tensor("quote\" back\\ line\n \u00e9 /a.b", "U8", {1}));
  return tensors;
}

void expect_same(const std::map<std::string, Tensor>& found, const std::vector<Tensor>& expected) {
  EXPECT_EQ(found.size(), expected.size());
  for (const Tensor& tensor : expected) {
    const auto entry = found.find(tensor.name);
    ASSERT_NE(entry, found.end()) << tensor.name;
    EXPECT_EQ(entry->second.dtype, tensor.dtype) << tensor.name;
    EXPECT_EQ(entry->second.shape, tensor.shape) << tensor.name;
    EXPECT_TRUE(entry->second.bytes == tensor.bytes) << tensor.name;
  }
}

std::vector<stfs::Metadata::Entry> entries_of(const stfs::Metadata& metadata) {
  std::vector<stfs::Metadata::Entry> entries;
  for (std::size_t i = 0; i < metadata.size(); ++i) entries.push_back(metadata[i]);
  return entries;
}

TEST(Writer, WritesAllTensors) {
  const Loaded checkpoint({one_of_each_type()});

  expect_same(tensors_of(checkpoint.merged()), one_of_each_type());
}

TEST(Writer, MergesSeveralFiles) {
  std::vector<Tensor> first = one_of_each_type();
  std::vector<Tensor> second(first.begin() + 11, first.end());
  first.resize(11);
  const Loaded checkpoint({first, second});

  expect_same(tensors_of(checkpoint.merged()), one_of_each_type());
}

TEST(Writer, WritesOnlyRequestedTensors) {
  const Loaded checkpoint({one_of_each_type()});
  const auto two = {*(*checkpoint).find("tF32"), *(*checkpoint).find("empty")};

  const auto found = tensors_of(all(*checkpoint.files().make(two)));

  EXPECT_EQ(found.size(), 2U);
  EXPECT_TRUE(found.contains("tF32"));
  EXPECT_TRUE(found.contains("empty"));
}

TEST(Writer, WritesValidFileWithoutTensors) {
  const Loaded checkpoint(std::vector<std::vector<Tensor>>(1));

  const std::string file = checkpoint.merged();

  EXPECT_EQ(tensors_of(file).size(), 0U);
  EXPECT_EQ(file.size(), 4096U);
}

TEST(Writer, StartsDataAtPageBoundary) {
  for (std::uint64_t count = 0; count < 200; ++count) {  // headers of many lengths
    std::vector<Tensor> tensors{{std::string(count * 41 + 1, 'n'), "U8", {1}, "x"}};
    const Loaded checkpoint({tensors});

    const std::string file = checkpoint.merged();

    EXPECT_EQ((8 + json_length(file)) % 4096, 0U);
    EXPECT_EQ(file.size(), 8 + json_length(file) + 1);
    EXPECT_EQ(file[8], '{');
    EXPECT_EQ(file[7 + json_length(file)] == ' ' || file[7 + json_length(file)] == '}', true);
  }
}

TEST(Writer, AlignsTensorsByWritingLargerElementsFirst) {
  std::vector<Tensor> tensors;  // odd sizes, smallest elements first
  for (const char* dtype : {"F4", "F6_E2M3", "U8", "BOOL", "F8_E4M3", "BF16", "F16", "I16", "F32",
                            "U32", "F64", "I64", "C64"}) {
    const bool is_sub_byte = dtype == std::string("F4") || dtype == std::string("F6_E2M3");
    tensors.push_back(random_tensor(dtype, dtype, is_sub_byte ? Shape{4, 3} : Shape{3}));
  }
  const Loaded checkpoint({tensors});
  const std::string file = checkpoint.merged();
  const Header header = parse_safetensors(std::string_view(file).substr(8, json_length(file)),
                                          file.size() - 8 - json_length(file), "merged");

  unsigned previous = 64;
  std::vector<std::string> names;
  for (const TensorRecord& record : header.tensors) {
    const unsigned bits = type_info(record.dtype).bits();
    EXPECT_LE(bits, previous);
    previous = bits;
    EXPECT_EQ(record.offset % std::max(1U, bits / 8), 0U) << header.name(record);
    names.emplace_back(header.name(record));
  }
  EXPECT_EQ(names, (std::vector<std::string>{"F64", "I64", "C64", "F32", "U32", "BF16", "F16",
                                             "I16", "U8", "BOOL", "F8_E4M3", "F6_E2M3", "F4"}))
      << "tensors with equal sizes must keep their order";
}

TEST(Writer, WritesSameBytesEachTime) {
  const Loaded checkpoint({one_of_each_type()}, {Metadata{{"b", "2"}, {"a", "1"}}});
  const std::string first = checkpoint.merged();

  EXPECT_TRUE(checkpoint.merged() == first);
}

TEST(Writer, ReproducesItsOwnFile) {
  const Loaded checkpoint({one_of_each_type()}, {Metadata{{"b", "2"}, {"a", "1"}}});
  const std::string first = checkpoint.merged();
  const TempDir dir;
  write_file(dir / "merged.safetensors", first);
  const std::vector<std::string> path{(dir / "merged.safetensors").string()};
  const Checkpoint again(path);
  std::vector<std::uint32_t> numbers(again.tensor_count());
  std::iota(numbers.begin(), numbers.end(), 0U);

  EXPECT_TRUE(all(*SafetensorsFiles(again).make(numbers)) == first);
}

TEST(Writer, WritesMetadataSortedByKey) {
  const Loaded checkpoint({{random_tensor("w", "U8", {1})}},
                          {Metadata{{"format", "pt"}, {"a\"b", "line\n"}, {"", ""}}});

  const std::string file = checkpoint.merged();
  const std::string_view header_text = std::string_view(file).substr(8, json_length(file));

  EXPECT_TRUE(
      header_text.starts_with(R"({"__metadata__":{"":"","a\"b":"line\n","format":"pt"},"w":)"))
      << header_text.substr(0, 100);
  const Header header = parse_safetensors(header_text, 1, "merged");
  EXPECT_EQ(entries_of(header.metadata), (*checkpoint).metadata());
}

TEST(Writer, MergesMetadataWithoutConflictingKeys) {
  const Loaded checkpoint({{random_tensor("a", "U8", {1})}, {random_tensor("b", "U8", {1})}},
                          {Metadata{{"format", "pt"}, {"part", "1"}, {"only", "a"}},
                           Metadata{{"format", "pt"}, {"part", "2"}}});

  const std::string file = checkpoint.merged();
  const Header header =
      parse_safetensors(std::string_view(file).substr(8, json_length(file)), 2, "m");

  EXPECT_EQ(entries_of(header.metadata),
            (std::vector<stfs::Metadata::Entry>{{"format", "pt"}, {"only", "a"}}));
  EXPECT_EQ((*checkpoint).metadata_conflicts(), std::vector<std::string>{"part"});
}

TEST(Writer, WritesNoMetadataIfSourceHasNoMetadata) {
  const Loaded checkpoint({{random_tensor("w", "U8", {1})}});

  EXPECT_EQ(checkpoint.merged().find("__metadata__"), std::string::npos);
}

TEST(Writer, ReadsAnyByteRange) {
  std::vector<Tensor> tensors;
  for (int i = 0; i < 300; ++i) {
    tensors.push_back(random_tensor("tensor." + std::to_string(i), "BF16", {7}));
  }
  const Loaded checkpoint({tensors});
  const std::optional<Content> content = checkpoint.files().make(checkpoint.everything());
  const std::string whole = all(*content);
  RandomBytes random(3);

  for (int round = 0; round < 500; ++round) {
    const std::uint64_t offset = random.next() % whole.size();
    const std::uint64_t length = random.next() % 5000;
    Reading reading;
    ASSERT_EQ(content->read(offset, length, reading), 0);
    std::string part;
    for (const iovec& piece : reading.pieces) {
      part.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
    }
    ASSERT_TRUE(part == whole.substr(offset, length)) << length << " at " << offset;
  }
  Reading reading;
  EXPECT_EQ(content->read(whole.size(), kMost, reading), 0);
  EXPECT_TRUE(reading.pieces.empty());
}

// Two files are below the limit but exceed it together. Their tensors have names of a megabyte.
TEST(Writer, RejectsHeaderAboveFormatLimit) {
#ifdef STFS_SANITIZED
  GTEST_SKIP()
      << "headers of 100 MB take half a minute; the build without sanitizers runs this test";
#endif
  std::vector<std::vector<Tensor>> files(2);
  for (std::size_t file = 0; file < 2; ++file) {
    for (std::size_t i = 0; i < 50; ++i) {
      std::string name(1'000'000, static_cast<char>('a' + file));
      name += std::to_string(i);
      files[file].push_back({std::move(name), "U8", {1}, "x"});
    }
  }
  const Loaded checkpoint(files);
  files.clear();
  std::vector<std::uint32_t> numbers = checkpoint.everything();

  EXPECT_FALSE(checkpoint.files().make(numbers));
  EXPECT_FALSE(checkpoint.files().size(numbers));
  numbers.pop_back();
  const std::optional<Content> fits = checkpoint.files().make(numbers);
  ASSERT_TRUE(fits) << "99 names of a megabyte must fit";
  EXPECT_LE(fits->size(), 100'000'000U + 8 + 99);
}

}  // namespace
}  // namespace stfs::test
