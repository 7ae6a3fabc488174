// Reads files that ggml has written. Compares whether ggml and stfs accept generated and broken
// files.
#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/format/gguf.h"
#include "core/source/local_file.h"
#include "tests/gguf/ggml.h"
#include "tests/gguf/gguf_file.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::test {
namespace {

// Returns the size of a value in bytes, or 0 for strings and arrays.
std::size_t size_of(int type) {
  constexpr std::size_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kSizes[type];
}

// Returns values as one text, so that two readers can be compared. Every bool except 0 becomes 1.
// Strings end at their first NUL (until_nul()), because ggml's interface returns C strings.
std::string scalars(int type, std::size_t count, const void* values) {
  std::string text(static_cast<const char*>(values), count * size_of(type));
  if (type != static_cast<int>(ValueType::kBool)) return text;
  for (char& c : text) c = c == 0 ? '0' : '1';
  return text;
}
std::string until_nul(std::string_view text) {
  return std::string(text.substr(0, text.find('\0'))) + "|";
}

class GgmlFiles : public GgmlTest {
 protected:
  struct Verdict {
    bool is_accepted;
    std::string text;  // the contents; for a file that stfs refuses, the error
    std::optional<ErrorCode> code;
  };

  // The file is in memory, because the tests write tens of thousands of files.
  ~GgmlFiles() override { ::unlink(path_.c_str()); }
  const std::string& path() const { return path_; }
  void write(const std::string& bytes) const {
    ASSERT_EQ(::ftruncate(file_.get(), 0), 0);
    ASSERT_EQ(::pwrite(file_.get(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
  }

  Verdict ours(const std::string& bytes) const {
    try {
      const LocalFile source(path());
      const Header header = read_gguf(source, "m");
      return {true, contents(header, bytes), {}};
    } catch (const Error& error) {
      return {false, error.what(), error.code()};
    }
  }
  Verdict theirs() const {
    void* const file = ggml_->gguf_init_from_file(path().c_str(), {true, nullptr});
    if (file == nullptr) return {false, "", {}};
    std::string text = "data at " + std::to_string(ggml_->gguf_get_data_offset(file)) + "\n";
    for (std::int64_t i = 0; i < ggml_->gguf_get_n_tensors(file); ++i) {
      const std::int64_t* const ne = ggml_->gguf_get_tensor_ne(file, i);
      text += row(ggml_->gguf_get_tensor_name(file, i),
                  static_cast<unsigned>(ggml_->gguf_get_tensor_type(file, i)),
                  ggml_->gguf_get_data_offset(file) + ggml_->gguf_get_tensor_offset(file, i),
                  ggml_->gguf_get_tensor_size(file, i), {ne, ne + 4});
    }
    std::map<std::string, std::string> metadata;
    for (std::int64_t i = 0; i < ggml_->gguf_get_n_kv(file); ++i) {
      metadata[ggml_->gguf_get_key(file, i)] += value(file, i);
    }
    ggml_->gguf_free(file);
    return {true, text + as_text(metadata), {}};
  }

  static std::string row(std::string_view name, unsigned type, std::uint64_t offset,
                         std::uint64_t length, const std::vector<std::int64_t>& dims) {
    std::string text(name);
    for (const std::uint64_t number : {std::uint64_t{type}, offset, length}) {
      text += " " + std::to_string(number);
    }
    for (const std::int64_t dim : dims) text += " x " + std::to_string(dim);
    return text + "\n";
  }
  static std::string as_text(const std::map<std::string, std::string>& metadata) {
    std::string text;
    for (const auto& [key, value] : metadata) text += key + ": " + value + "\n";
    return text;
  }
  std::string value(void* file, std::int64_t i) const {
    const int type = ggml_->gguf_get_kv_type(file, i);
    const std::string number = std::to_string(type) + " ";
    if (type == kString) return number + until_nul(ggml_->gguf_get_val_str(file, i));
    if (type != kArray) return number + scalars(type, 1, ggml_->gguf_get_val_data(file, i));
    const int element = ggml_->gguf_get_arr_type(file, i);
    const std::size_t count = ggml_->gguf_get_arr_n(file, i);
    std::string text = number + std::to_string(element) + " " + std::to_string(count) + " ";
    if (element != kString) {
      return count == 0 ? text : text + scalars(element, count, ggml_->gguf_get_arr_data(file, i));
    }
    for (std::size_t k = 0; k < count; ++k) {
      text += until_nul(ggml_->gguf_get_arr_str(file, i, k));
    }
    return text;
  }

  static std::string contents(const Header& header, const std::string& bytes) {
    std::string text = "data at " + std::to_string(header.raw.length) + "\n";
    for (const TensorRecord& tensor : header.tensors) {
      const auto shape = header.shape(tensor);
      std::vector<std::int64_t> dims(shape.rbegin(), shape.rend());
      dims.resize(4, 1);
      text += row(header.name(tensor), type_info(tensor.dtype).gguf, tensor.offset, tensor.length,
                  dims);
    }
    std::map<std::uint64_t, std::size_t>
        by_offset;  // keys that differ only after a NUL are merged below
    for (std::size_t i = 0; i < header.metadata.size(); ++i) {
      by_offset[header.metadata.value(i).encoded.offset] = i;
    }
    std::map<std::string, std::string> metadata;
    for (const auto& [offset, i] : by_offset) {
      const std::string_view key = header.metadata[i].first;
      metadata[std::string(key.substr(0, key.find('\0')))] +=
          value(header.metadata.value(i), bytes);
    }
    return text + as_text(metadata);
  }
  static std::string value(const MetadataValue& value, const std::string& file) {
    std::string_view rest(file);
    rest = rest.substr(value.encoded.offset, value.encoded.length);
    const auto string = [&rest] {
      std::uint64_t length = 0;
      std::memcpy(&length, rest.data(), sizeof length);
      const std::string_view text = rest.substr(sizeof length, length);
      rest.remove_prefix(sizeof length + length);
      return until_nul(text);
    };
    const std::string number = std::to_string(static_cast<int>(value.type)) + " ";
    if (value.type == ValueType::kString) return number + string();
    if (value.type != ValueType::kArray) {
      return number + scalars(static_cast<int>(value.type), 1, rest.data());
    }
    rest.remove_prefix(12);
    const int element = static_cast<int>(value.element);
    std::string text = number + std::to_string(element) + " " + std::to_string(value.count) + " ";
    if (value.element != ValueType::kString) {
      return text + scalars(element, value.count, rest.data());
    }
    for (std::uint64_t i = 0; i < value.count; ++i) text += string();
    return text;
  }

  // Returns the name of a documented difference between the readers, or "" for any other.
  static std::string known_difference(const Verdict& us, const Verdict& them) {
    // The build of ggml in stable-diffusion.cpp also reads them.
    const std::string long_name(64, 'n');
    if (us.is_accepted && us.text.find(long_name) != std::string::npos)
      return "a name of 64 to 127 bytes";
    if (us.is_accepted || !them.is_accepted) return "";
    const auto mentions = [&us](const char* words) {
      return us.text.find(words) != std::string::npos;
    };
    // ggml's reader does not check the size of the file; llama.cpp's loader does.
    if (us.code == ErrorCode::kGgufData) return "data that end too early";
    if (us.code == ErrorCode::kGgufKey && mentions("over 65535")) return "a key of any length";
    if (us.code == ErrorCode::kGgufShape && mentions("overflows"))
      return "a size that wraps to zero";
    return "";
  }

  // Checks that the verdicts agree, except for documented differences. Returns true if stfs accepts
  // the file.
  bool compare(const std::string& bytes) {
    write(bytes);
    const Verdict us = ours(bytes);
    const Verdict them = theirs();
    ++(us.is_accepted ? accepted_ : refused_);
    // Only stfs knows this key. It gives a tensor more than four dimensions.
    if (us.text.find("comfy.gguf.orig_shape.") != std::string::npos) {
      EXPECT_TRUE(us.is_accepted && them.is_accepted);
    } else if (us.is_accepted && them.is_accepted) {
      EXPECT_EQ(us.text, them.text);
    } else if (us.is_accepted != them.is_accepted) {
      const std::string name = known_difference(us, them);
      ++differences_[name];
      EXPECT_NE(name, "") << "ggml " << (them.is_accepted ? "accepts" : "refuses")
                          << ", stfs: " << us.text;
    }
    return us.is_accepted;
  }

  static constexpr int kString = static_cast<int>(ValueType::kString);
  static constexpr int kArray = static_cast<int>(ValueType::kArray);

  std::string path_ = "/dev/shm/stfs-ggml-files-XXXXXX";
  UniqueFd file_{::mkstemp(path_.data())};
  int accepted_ = 0;
  int refused_ = 0;
  std::map<std::string, int> differences_;
};

TEST_F(GgmlFiles, FileWrittenByGgmlIsRead) {
  void* const context = ggml_->init({16 << 20, nullptr, false});
  void* const file = ggml_->gguf_init_empty();
  ggml_->gguf_set_val_str(file, "general.name", "written by ggml");
  ggml_->gguf_set_val_u32(file, "answer", 42);
  std::vector<const char*> words{"one", "two", ""};
  ggml_->gguf_set_arr_str(file, "words", words.data(), words.size());
  std::map<std::string, std::string> expected;
  for (int type = 0; type < 43; ++type) {
    const auto dtype = dtype_from_gguf(static_cast<std::uint32_t>(type));
    if (!dtype) continue;
    const std::int64_t dims[] = {512, 3, 1, 2};
    void* const tensor = ggml_->new_tensor(context, type, 4, dims);
    const std::string name = "tensor." + std::to_string(type);
    ggml_->set_name(tensor, name.c_str());
    std::memset(ggml_->get_data(tensor), type + 1, ggml_->nbytes(tensor));
    ggml_->gguf_add_tensor(file, tensor);
    expected[name] = std::string(ggml_->nbytes(tensor), static_cast<char>(type + 1));
  }
  ASSERT_TRUE(ggml_->gguf_write_to_file(file, path().c_str(), false));
  ggml_->gguf_free(file);
  ggml_->free(context);

  const std::string bytes = read_file(path());
  const LocalFile source(path());
  const Header header = read_gguf(source, "m");

  EXPECT_EQ(header.tensors.size(), expected.size());
  for (const TensorRecord& tensor : header.tensors) {
    const std::string name(header.name(tensor));
    EXPECT_EQ(bytes.substr(tensor.offset, tensor.length), expected[name]) << name;
    const auto shape = header.shape(tensor);
    EXPECT_EQ(std::vector<std::uint64_t>(shape.begin(), shape.end()),
              (std::vector<std::uint64_t>{2, 1, 3, 512}));
  }
  EXPECT_EQ(header.metadata[header.metadata.find("answer").value()].second, "42");
  EXPECT_EQ(ours(bytes).text, theirs().text);
}

TEST_F(GgmlFiles, CorpusFilesHaveSameVerdict) {
  const std::filesystem::path corpus = std::filesystem::path(STFS_SOURCE_DIR) / "tests/corpus";
  for (const char* directory : {"accepted", "refused"}) {
    for (const auto& entry : std::filesystem::directory_iterator(corpus / directory)) {
      if (entry.path().extension() != ".gguf") continue;
      SCOPED_TRACE(entry.path().string());
      compare(read_file(entry.path()));
    }
  }
}

class Generator {
 public:
  explicit Generator(std::uint64_t seed) : random_(seed) {}

  std::uint64_t below(std::uint64_t count) { return random_() % count; }

  // Returns a file that is mostly well-formed.
  std::string file() {
    GgufFile file;
    file.version = below(8) == 0 ? 2 : 3;
    if (below(4) == 0) {
      file.alignment = std::uint64_t{1} << below(9);
      file.key("general.alignment", ValueType::kU32,
               little(static_cast<std::uint32_t>(file.alignment)));
    }
    for (std::uint64_t i = below(5); i-- > 0;) add_key(file, "k" + std::to_string(below(12)));
    for (std::uint64_t i = below(5); i-- > 0;) add_tensor(file, "t" + std::to_string(below(30)));
    return file.bytes();
  }

  // Changes some bytes to critical values, or truncates the file.
  std::string broken(std::string bytes) {
    for (std::uint64_t i = 1 + below(3); i-- > 0;) {
      const std::size_t at = below(bytes.size());
      switch (below(6)) {
        case 0: bytes[at] = static_cast<char>(below(256)); break;
        case 1:
          bytes[at] = static_cast<char>(static_cast<unsigned char>(bytes[at]) ^ 1U << below(8));
          break;
        case 2: bytes[at] = 0; break;
        case 3: bytes[at] = static_cast<char>(0xFF); break;
        case 4: bytes.resize(at + 1); break;
        default: bytes.insert(at, 1, '\0');
      }
    }
    return bytes;
  }

 private:
  void add_key(GgufFile& file, const std::string& name) {
    const auto type = static_cast<ValueType>(below(13));
    if (type == ValueType::kString) return file.key(name, "value");
    if (type != ValueType::kArray) return file.key(name, type, value(type));
    const auto element = static_cast<ValueType>(below(13));
    const std::uint64_t count = below(4);
    std::string elements;
    for (std::uint64_t i = 0; i < count; ++i) {
      elements += element == ValueType::kString ? gguf_string("text") : value(element);
    }
    file.key(name, type, gguf_array(element, count, elements));
  }
  std::string value(ValueType type) {
    constexpr std::size_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};
    return std::string(kSizes[static_cast<std::size_t>(type)], '\1');
  }
  void add_tensor(GgufFile& file, const std::string& name) {
    const auto type = static_cast<std::uint32_t>(below(44));
    const auto dtype = dtype_from_gguf(type);
    const TypeInfo info = dtype ? type_info(*dtype) : TypeInfo{};
    std::vector<std::int64_t> dims(below(5));
    std::int64_t elements = 1;
    for (std::int64_t& dim : dims) {
      dim = static_cast<std::int64_t>(below(16) == 0 ? 0 : 1 + below(3));
      if (&dim == dims.data()) dim *= info.block_elements;
      elements *= dim;
    }
    const auto bytes = info.bytes_of(static_cast<std::uint64_t>(elements));
    file.tensor(name, dims, type, std::string(bytes.value_or(8), 'x'));
  }

  std::mt19937_64 random_;
};

TEST_F(GgmlFiles, GeneratedFilesHaveSameVerdict) {
  int accepted = 0;
  for (std::uint64_t seed = 0; seed < 1500 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Generator generator(seed);
    const std::string file = generator.file();
    accepted += compare(file) ? 1 : 0;
    for (int i = 0; i < 4; ++i) compare(generator.broken(file));
  }
  EXPECT_GT(accepted, 300);
}

// The position and the size of a number in a file, in bytes.
struct Field {
  std::size_t at;
  std::size_t bytes;
};

// Finds every number in a well-formed file, and the bytes of every string.
class Fields {
 public:
  explicit Fields(const std::string& file) : file_(file) {
    add(4);
    add(4);
    const std::uint64_t tensors = add(8);
    const std::uint64_t keys = add(8);
    for (std::uint64_t i = 0; i < keys; ++i) {
      string();
      value(static_cast<int>(add(4)));
    }
    for (std::uint64_t i = 0; i < tensors; ++i) {
      string();
      for (std::uint64_t rank = add(4); rank-- > 0;) add(8);
      add(4);
      add(8);
    }
  }
  const std::vector<Field>& all() const { return fields_; }

 private:
  std::uint64_t add(std::size_t bytes) {
    fields_.push_back({at_, bytes});
    std::uint64_t number = 0;
    std::memcpy(&number, &file_[at_], std::min(bytes, sizeof number));
    at_ += bytes;
    return number;
  }
  void string() {
    const std::uint64_t length = add(8);
    if (length > 0) add(length);
  }
  void value(int type) {
    if (type == static_cast<int>(ValueType::kString)) return string();
    if (type != static_cast<int>(ValueType::kArray)) {
      add(size_of(type));
      return;
    }
    const int element = static_cast<int>(add(4));
    for (std::uint64_t i = add(8); i-- > 0;) value(element);
  }

  const std::string& file_;
  std::size_t at_ = 0;
  std::vector<Field> fields_;
};

// Returns a file with a key and an array of each type, and tensors with several types and ranks.
std::string file_of_everything() {
  GgufFile file;
  file.key("general.alignment", ValueType::kU32, little<std::uint32_t>(32));
  for (int type = 0; type < 13; ++type) {
    const auto number = static_cast<ValueType>(type);
    const std::string name = std::to_string(type);
    if (number == ValueType::kArray) continue;
    const std::string one =
        number == ValueType::kString ? gguf_string("text") : std::string(size_of(type), '\1');
    file.key("k" + name, number, one);
    file.key("a" + name, ValueType::kArray, gguf_array(number, 2, one + one));
  }
  file.key("split.count", ValueType::kU16, little<std::uint16_t>(1));
  file.tensor("f32", {3, 2}, 0, std::string(24, 'x'));
  file.tensor("q8_0", {64, 1, 2}, 8, std::string(136, 'x'));
  file.tensor("none", {0, 5}, 1, "");
  file.tensor("scalar", {}, 28, std::string(8, 'x'));
  file.tensor("q4_k", {256, 2, 1, 1}, 12, std::string(288, 'x'));
  file.tensor("mxfp4", {32}, 39, std::string(17, 'x'));
  return file.bytes();
}

// Sets each field to each value that a reader may treat wrongly. Also removes it, doubles it, and
// ends the file in it.
TEST_F(GgmlFiles, FilesWithChangedFieldHaveSameVerdict) {
  const std::string whole = file_of_everything();
  ASSERT_TRUE(compare(whole));
  const Fields fields(whole);
  int mutations = 0;
  const auto check = [&](const std::string& bytes, const Field& field, const std::string& what) {
    SCOPED_TRACE("field at " + std::to_string(field.at) + " of " + std::to_string(field.bytes) +
                 " bytes: " + what);
    compare(bytes);
    ++mutations;
    return !HasFailure();
  };
  std::set<std::uint64_t> values;
  for (const unsigned bit :
       {0U, 1U, 2U, 3U, 4U, 5U, 7U, 8U, 15U, 16U, 30U, 31U, 32U, 33U, 60U, 61U, 62U, 63U}) {
    const std::uint64_t power = std::uint64_t{1} << bit;
    values.insert({power - 1, power, power + 1, ~power, ~power + 1});
  }
  for (std::uint64_t type = 0; type < 48; ++type) values.insert(type);
  for (const std::uint64_t size : {whole.size(), whole.size() - 24, whole.size() / 24}) {
    values.insert({size - 1, size, size + 1});
  }
  for (const Field& field : fields.all()) {
    for (const std::uint64_t value : values) {
      std::string bytes = whole;
      std::memcpy(&bytes[field.at], &value, std::min(field.bytes, sizeof value));
      if (!check(bytes, field, "is " + std::to_string(value))) return;
    }
    std::string cut = whole;
    cut.erase(field.at, field.bytes);
    std::string doubled = whole;
    doubled.insert(field.at, whole, field.at, field.bytes);
    if (!check(cut, field, "missing") || !check(doubled, field, "twice")) return;
    for (const std::size_t end : {field.at, field.at + 1, field.at + field.bytes - 1}) {
      if (!check(whole.substr(0, end), field, "the file ends at " + std::to_string(end))) return;
    }
  }

  EXPECT_GT(differences_["data that end too early"], 0);
  EXPECT_GT(mutations, 15'000);
  EXPECT_GT(accepted_, 1000);
  EXPECT_GT(refused_, 5000);
}

// Sizes near the limits of 32, 63 and 64 bits in every field of a tensor.
TEST_F(GgmlFiles, FilesWithLargeDimensionsHaveSameVerdict) {
  constexpr std::int64_t kLarge[] = {0,
                                     1,
                                     32,
                                     256,
                                     std::int64_t{1} << 31,
                                     std::int64_t{1} << 32,
                                     std::int64_t{1} << 60,
                                     std::int64_t{1} << 62,
                                     std::numeric_limits<std::int64_t>::max(),
                                     -1};
  for (const std::uint32_t type : {0U, 2U, 28U}) {
    for (const std::int64_t first : kLarge) {
      for (const std::int64_t second : kLarge) {
        for (const std::int64_t third : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1} << 62}) {
          SCOPED_TRACE(std::to_string(type) + ": " + std::to_string(first) + " " +
                       std::to_string(second) + " " + std::to_string(third));
          GgufFile file;
          file.tensor("w", {first, second, third}, type, std::string(64, 'x'));
          compare(file.bytes());
          if (HasFailure()) return;
        }
      }
    }
  }
  EXPECT_GT(differences_["a size that wraps to zero"], 0);
}

// ggml stores the complete key, but finds it by the text before its first NUL.
TEST_F(GgmlFiles, FilesWithNulInAlignmentKeyHaveSameVerdict) {
  const std::string key = "general.alignment";
  for (const auto& [first, second] : {std::pair{key + '\0', key}, {key, key + '\0'}}) {
    for (const std::uint32_t alignment : {64U, 48U}) {
      for (const bool has_second : {false, true}) {
        GgufFile file;
        file.key(first, ValueType::kU32, little(alignment));
        if (has_second) file.key(second, ValueType::kU32, little<std::uint32_t>(8));
        file.alignment = alignment;
        for (const char* name : {"a", "b"}) file.tensor(name, {1}, 0, "1234");
        EXPECT_EQ(compare(file.bytes()), alignment == 64);
      }
    }
  }
}

// A key of 65,536 bytes, one more than the format allows.
TEST_F(GgmlFiles, OnlyStfsRefusesLongKey) {
  GgufFile file;
  file.key(std::string(65'535, 'k'), "value");
  EXPECT_TRUE(compare(file.bytes()));
  file.key(std::string(65'536, 'k'), "value");
  EXPECT_FALSE(compare(file.bytes()));
  EXPECT_EQ(differences_["a key of any length"], 1);
}

}  // namespace
}  // namespace stfs::test
