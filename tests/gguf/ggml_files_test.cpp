// Files that ggml writes, and its verdict on generated and broken files beside ours.
#include "core/base/error.h"
#include "core/format/gguf.h"
#include "core/source/local_file.h"
#include "tests/gguf/ggml.h"
#include "tests/gguf/gguf_file.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

class GgmlFiles : public GgmlTest {
 protected:
  struct Verdict {
    bool is_accepted;
    std::string text;  // ours: the error; ggml's: the tensors
    std::optional<ErrorCode> code;
  };

  std::string path() const { return (dir_ / "m.gguf").string(); }

  Verdict ours() const {
    try {
      const LocalFile source(path());
      const Header header = read_gguf(source, "m");
      return {true, tensors(header), {}};
    } catch (const Error& error) {
      return {false, error.what(), error.code()};
    }
  }
  Verdict theirs() const {
    void* const file = ggml_->gguf_init_from_file(path().c_str(), {true, nullptr});
    if (file == nullptr) return {false, "", {}};
    std::string text;
    for (std::int64_t i = 0; i < ggml_->gguf_get_n_tensors(file); ++i) {
      text += row(ggml_->gguf_get_tensor_name(file, i),
                  static_cast<unsigned>(ggml_->gguf_get_tensor_type(file, i)),
                  ggml_->gguf_get_data_offset(file) + ggml_->gguf_get_tensor_offset(file, i),
                  ggml_->gguf_get_tensor_size(file, i));
    }
    ggml_->gguf_free(file);
    return {true, text, {}};
  }

  static std::string row(std::string_view name, unsigned type, std::uint64_t offset,
                         std::uint64_t length) {
    return std::string(name) + " " + std::to_string(type) + " " + std::to_string(offset) + " " +
           std::to_string(length) + "\n";
  }
  static std::string tensors(const Header& header) {
    std::string text;
    for (const TensorRecord& tensor : header.tensors) {
      text += row(header.name(tensor), type_info(tensor.dtype).gguf, tensor.offset, tensor.length);
    }
    return text;
  }

  // The verdicts agree, or their disagreement is one that is promised. Returns whether the file is
  // accepted by us.
  bool compare(const std::string& bytes) {
    write_file(path(), bytes);
    const Verdict us = ours();
    const Verdict them = theirs();
    if (us.is_accepted && them.is_accepted) {
      EXPECT_EQ(us.text, them.text);
    } else if (us.is_accepted != them.is_accepted) {
      // ggml's reader does not look at the file's size; llama.cpp's loader does.
      // It takes keys of any length, and a size that wraps to zero.
      const bool is_promised =
          us.code == ErrorCode::kGgufData ||
          (us.code == ErrorCode::kGgufKey && us.text.find("over 65535") != std::string::npos) ||
          (us.code == ErrorCode::kGgufShape && us.text.find("overflows") != std::string::npos);
      EXPECT_TRUE(is_promised && them.is_accepted)
          << "ggml " << (them.is_accepted ? "accepts" : "refuses") << ", we say: " << us.text;
    }
    return us.is_accepted;
  }

  TempDir dir_;
};

TEST_F(GgmlFiles, WrittenByItAreRead) {
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
  EXPECT_EQ(ours().text, theirs().text);
}

TEST_F(GgmlFiles, OfTheCorpusHaveTheSameVerdict) {
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

  // A file that is mostly well-formed.
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

  // Changes some bytes to values that matter, or cuts the file.
  std::string broken(std::string bytes) {
    for (std::uint64_t i = 1 + below(3); i-- > 0;) {
      const std::size_t at = below(bytes.size());
      switch (below(6)) {
        case 0:
          bytes[at] = static_cast<char>(below(256));
          break;
        case 1:
          bytes[at] = static_cast<char>(static_cast<unsigned char>(bytes[at]) ^ 1U << below(8));
          break;
        case 2:
          bytes[at] = 0;
          break;
        case 3:
          bytes[at] = static_cast<char>(0xFF);
          break;
        case 4:
          bytes.resize(at + 1);
          break;
        default:
          bytes.insert(at, 1, '\0');
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

TEST_F(GgmlFiles, ThatAreGeneratedHaveTheSameVerdict) {
  int accepted = 0;
  for (std::uint64_t seed = 0; seed < 1500 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Generator generator(seed);
    const std::string file = generator.file();
    accepted += compare(file) ? 1 : 0;
    compare(generator.broken(file));
  }
  EXPECT_GT(accepted, 300);
}

// Sizes near the limits of 32, 63 and 64 bits in every field of a tensor.
TEST_F(GgmlFiles, WithLargeNumbersHaveTheSameVerdict) {
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
}

}  // namespace
}  // namespace stfs::test
