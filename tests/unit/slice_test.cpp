// Compares slices with a model that visits every index.
#include "core/recipe/slice.h"

#include "core/source/leases.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/unit/most.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

using Dims = std::vector<std::uint64_t>;

int error_of(std::string_view expression, const Dims& shape, DType dtype = DType::kU8) {
  Slice slice;
  return parse_slice(expression, dtype, shape, slice);
}

Slice parsed(std::string_view expression, const Dims& shape, DType dtype = DType::kU8) {
  Slice slice;
  EXPECT_EQ(parse_slice(expression, dtype, shape, slice), 0) << expression;
  return slice;
}

// Tests of the syntax.

TEST(SliceSyntax, AcceptsNumpyExpressions) {
  for (const char* expression :
       {"0",    "-1",   "+1",   "02",      ":",        "::",      "1:",      ":1",
        "1:2",  "::2",  "1::2", ":1:2",    "0:1:2",    "-2:",     ":-1",     "...",
        "0,1",  "0,:",  ":,0",  "...,0",   "0,...",    "0,...,1", "0,1,...", "0,",
        ":,:,", "...,", "1:0",  "100:200", "-100:100", "::100"}) {
    EXPECT_EQ(error_of(expression, {3, 4}), 0) << expression;
  }
}

TEST(SliceSyntax, RejectsInvalidExpressions) {
  for (const char* expression :
       {"",     ",",     ",0",   "0,,",  "0,,1", " ",    "0 ",    " 0",      "0, 1", "a",    "0x1",
        "1.0",  "1e3",   "-",    "+",    "--1",  "+-1",  "1-",    "1:2:3:4", ":::",  "1:a",  "a:1",
        "::0",  "::-1",  "::-0", "::+0", "..",   "....", ".",     "...,...", "...:", ":...", "None",
        "True", "0:1:x", "[0]",  "0;1",  "(0)",  "0:-",  "0:1:-", "0\n",     "\t0",  "0,:,", "١"}) {
    const Dims shape = std::string_view(expression) == "0,:," ? Dims{3} : Dims{3, 4};
    EXPECT_EQ(error_of(expression, shape), EINVAL) << expression;
  }
  EXPECT_EQ(error_of(std::string_view("0\0", 2), {3}), EINVAL);
}

TEST(SliceSyntax, RejectsMoreIndicesThanDimensions) {
  EXPECT_EQ(error_of("0", {}), EINVAL);
  EXPECT_EQ(error_of(":", {}), EINVAL);
  EXPECT_EQ(error_of("...", {}), 0);
  EXPECT_EQ(error_of("0,0", {3}), EINVAL);
  EXPECT_EQ(error_of("0,...,0", {3}), EINVAL);
  EXPECT_EQ(error_of("0,...", {3}), 0);
}

TEST(SliceSyntax, IntegerOutOfRangeGivesERANGE) {
  EXPECT_EQ(error_of("3", {3}), ERANGE);
  EXPECT_EQ(error_of("-4", {3}), ERANGE);
  EXPECT_EQ(error_of("0", {0}), ERANGE);
  EXPECT_EQ(error_of("-1", {0}), ERANGE);
  EXPECT_EQ(error_of(":,4", {3, 4}), ERANGE);
  EXPECT_EQ(error_of("3,0:0", {3, 4}), ERANGE);
  EXPECT_EQ(error_of("0:0,4", {3, 4}), ERANGE);
  EXPECT_EQ(error_of("3:,:", {3, 4}), 0) << "slices clamp";
}

TEST(SliceSyntax, AcceptsArbitrarilyLargeNumbers) {
  const std::string huge(300, '9');
  EXPECT_EQ(error_of(huge, {3}), ERANGE);
  EXPECT_EQ(error_of("-" + huge, {3}), ERANGE);
  EXPECT_EQ(error_of("18446744073709551616", {3}), ERANGE) << "2^64 is not 0";
  EXPECT_EQ(error_of("-18446744073709551616", {3}), ERANGE);
  EXPECT_EQ(parsed("-" + huge + ":" + huge, {3}).size(), 3U);
  EXPECT_EQ(parsed(huge + ":", {3}).size(), 0U);
  EXPECT_EQ(parsed(":-" + huge, {3}).size(), 0U);
  EXPECT_EQ(parsed("1::" + huge, {3}).size(), 1U);
  EXPECT_EQ(parsed("0:18446744073709551617:18446744073709551616", {3}).size(), 1U);
  EXPECT_EQ(parsed("-9223372036854775809:", {3}).size(), 3U);
}

TEST(SliceSyntax, DoesNotOverflowOnLargestTensors) {
  const std::uint64_t most = ~std::uint64_t{0} / 8;
  Slice slice = parsed("-1", {most});
  EXPECT_EQ(slice.begin, most - 1);
  EXPECT_EQ(slice.run, 1U);
  slice = parsed("1::" + std::to_string(most - 2), {most});
  EXPECT_EQ(slice.shape, Dims{2});
  EXPECT_EQ(slice.begin, 1U);
  ASSERT_EQ(slice.loops.size(), 1U);
  EXPECT_EQ(slice.loops[0].stride, most - 2);
  slice = parsed("::1", {most});
  EXPECT_EQ(slice.size(), most);
  EXPECT_TRUE(slice.loops.empty());
  // If one dimension has size 0, the others may have any size.
  EXPECT_EQ(parsed("...", {kMost, kMost, 0}).size(), 0U);
  EXPECT_EQ(parsed("-1,::2", {kMost, kMost, 0}).shape, (Dims{1ULL << 63, 0}));
}

// The model: a loop that follows NumPy's rules in each dimension.

struct Expression {
  std::string text;
  // The selected indices of each dimension, and the resulting shape.
  std::vector<std::vector<std::uint64_t>> indices;
  Dims shape;
  bool is_out_of_range = false;
};

std::string signed_number(RandomBytes& random, std::uint64_t size) {
  const auto value = static_cast<std::int64_t>(random.next() % (2 * size + 5)) -
                     static_cast<std::int64_t>(size) - 2;
  if (random.next() % 50 == 0) return value < 0 ? "-99999999999999999999" : "99999999999999999999";
  if (value > 0 && random.next() % 10 == 0) return "+" + std::to_string(value);
  return std::to_string(value);
}

// Returns the number for the loop. Very large numbers are clamped to a value of the same effect.
std::int64_t value_of(const std::string& text) {
  if (text.size() > 18) return text[0] == '-' ? -1'000'000'000 : 1'000'000'000;
  return std::stoll(text);
}

Expression random_expression(RandomBytes& random, const Dims& shape) {
  Expression out;
  const std::size_t rank = shape.size();
  // The number of dimensions that an ellipsis or the end of the expression replaces.
  std::size_t implied = rank == 0 ? 0 : random.next() % 3 == 0 ? random.next() % (rank + 1) : 0;
  const std::size_t named = rank - implied;
  const bool has_ellipsis = named == 0 || random.next() % 4 == 0;
  const std::size_t ellipsis_at = has_ellipsis ? random.next() % (named + 1) : named;
  std::vector<std::string> items;
  std::size_t dimension = 0;
  for (std::size_t item = 0; item <= named; ++item) {
    if (item == ellipsis_at) {
      if (has_ellipsis) items.push_back("...");
      for (std::size_t i = 0; i < implied; ++i, ++dimension) {
        out.shape.push_back(shape[dimension]);
        auto& all = out.indices.emplace_back();
        for (std::uint64_t j = 0; j < shape[dimension]; ++j) all.push_back(j);
      }
    }
    if (item == named) break;
    const auto size = static_cast<std::int64_t>(shape[dimension]);
    auto& taken = out.indices.emplace_back();
    if (random.next() % 3 == 0) {
      // Most indices are in range, because the first index out of range ends the parse.
      std::string text = signed_number(random, shape[dimension]);
      if (size > 0 && random.next() % 20 != 0) {
        text = std::to_string(static_cast<std::int64_t>(random.next() % (2 * shape[dimension])) -
                              size);
      }
      items.push_back(text);
      std::int64_t index = value_of(text);
      if (index < 0) index += size;
      if (index < 0 || index >= size) {
        out.is_out_of_range = true;
      } else {
        taken.push_back(static_cast<std::uint64_t>(index));
      }
    } else {
      std::optional<std::int64_t> start, stop, step;
      std::string text;
      const auto bound = [&](std::optional<std::int64_t>& to) {
        if (random.next() % 3 == 0) return;
        const std::string number = signed_number(random, shape[dimension]);
        text += number;
        to = value_of(number);
      };
      bound(start);
      text += ":";
      bound(stop);
      if (random.next() % 2 == 0) {
        text += ":";
        if (random.next() % 4 != 0) {
          step = static_cast<std::int64_t>(random.next() % (shape[dimension] + 2)) + 1;
          text += std::to_string(*step);
        }
      }
      items.push_back(text);
      // Computes Python's slice.indices() for a positive step.
      const auto resolved = [&](std::optional<std::int64_t> value, std::int64_t otherwise) {
        if (!value) return otherwise;
        if (*value < 0) return std::max<std::int64_t>(*value + size, 0);
        return std::min(*value, size);
      };
      const std::int64_t last = resolved(stop, size);
      for (std::int64_t i = resolved(start, 0); i < last; i += step.value_or(1)) {
        taken.push_back(static_cast<std::uint64_t>(i));
      }
      out.shape.push_back(taken.size());
    }
    ++dimension;
  }
  for (std::size_t i = 0; i < items.size(); ++i) out.text += (i == 0 ? "" : ",") + items[i];
  if (random.next() % 10 == 0) out.text += ",";
  return out;
}

// Returns the numbers of the selected elements, in order.
std::vector<std::uint64_t> elements_of(const Expression& expression, const Dims& shape) {
  std::vector<std::uint64_t> elements{0};
  for (std::size_t d = 0; d < shape.size(); ++d) {
    std::vector<std::uint64_t> next;
    for (const std::uint64_t element : elements) {
      for (const std::uint64_t index : expression.indices[d]) {
        next.push_back(element * shape[d] + index);
      }
    }
    elements = std::move(next);
  }
  return elements;
}

// Returns the maximal runs of consecutive elements.
std::vector<std::pair<std::uint64_t, std::uint64_t>> runs_of(
    const std::vector<std::uint64_t>& elements) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> runs;
  for (const std::uint64_t element : elements) {
    if (!runs.empty() && runs.back().second == element) {
      ++runs.back().second;
    } else {
      runs.emplace_back(element, element + 1);
    }
  }
  return runs;
}

std::uint64_t product(const Dims& shape) {
  std::uint64_t out = 1;
  for (const std::uint64_t dim : shape) out *= dim;
  return out;
}

// Returns a tensor's bytes: the source from `offset` to its end.
Content whole(const Source& source, std::uint64_t offset) {
  Content content;
  content.extent(source, offset, source.size() - offset);
  return content;
}

class RandomSlices : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kOffset = 13;

  RandomSlices() {
    bytes_ = RandomBytes(1).bytes(600'000);
    write_file(dir_ / "source", bytes_);
    source_ = std::make_unique<LocalFile>((dir_ / "source").string());
  }

  static Dims random_shape(RandomBytes& random, unsigned bits) {
    while (true) {
      Dims shape(random.next() % 6);
      for (std::uint64_t& dim : shape) dim = random.next() % 8;
      if (!shape.empty() && random.next() % 8 == 0) {
        shape.resize(std::min<std::size_t>(shape.size(), 3));
        shape[random.next() % shape.size()] = random.next() % 700;
      }
      if (product(shape) * bits % 8 == 0 && product(shape) * bits < 8 * 500'000) return shape;
    }
  }

  std::string all(const Content& content) {
    Reading reading;
    EXPECT_EQ(content.read(0, kMost, reading), 0);
    std::string out;
    for (const iovec& piece : reading.pieces) {
      out.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
    }
    return out;
  }

  void check(DType dtype, int rounds, std::uint64_t seed) {
    RandomBytes random(seed);
    const unsigned bits = type_info(dtype).bits();
    int good = 0;
    for (int round = 0; round < rounds && !HasFatalFailure(); ++round) {
      const Dims shape = random_shape(random, bits);
      check_one(dtype, bits, shape, random_expression(random, shape), random, good);
    }
    EXPECT_GT(good, rounds / 20);
  }

  void check_one(DType dtype, unsigned bits, const Dims& shape, const Expression& expression,
                 RandomBytes& random, int& good) {
    const auto where = [&] {
      std::string text = expression.text + " of";
      for (const std::uint64_t dim : shape) text += " " + std::to_string(dim);
      return text + " " + std::string(dtype_name(dtype));
    };
    Slice slice;
    const int error = parse_slice(expression.text, dtype, shape, slice);
    if (expression.is_out_of_range) {
      ASSERT_EQ(error, ERANGE) << where();
      return;
    }
    const std::vector<std::uint64_t> elements = elements_of(expression, shape);
    const auto runs = runs_of(elements);
    const bool is_whole_bytes = std::ranges::all_of(runs, [&](const auto& run) {
      return run.first * bits % 8 == 0 && run.second * bits % 8 == 0;
    });
    ASSERT_EQ(error, is_whole_bytes ? 0 : EINVAL) << where();
    if (error != 0) return;
    ++good;
    ASSERT_EQ(slice.shape, expression.shape) << where();

    std::string model;
    for (const auto& [first, last] : runs) {
      model += bytes_.substr(kOffset + first * bits / 8, (last - first) * bits / 8);
    }
    const Content content = slice_content(slice, whole(*source_, kOffset));
    ASSERT_EQ(slice.size(), model.size()) << where();
    ASSERT_EQ(content.size(), model.size()) << where();
    ASSERT_TRUE(all(content) == model) << where();
    for (int i = 0; i < 8 && !model.empty(); ++i) {
      const std::uint64_t offset = random.next() % model.size();
      const std::uint64_t length = random.next() % (model.size() - offset) + 1;
      std::string part(length, '\0');
      ASSERT_EQ(content.copy(offset, std::as_writable_bytes(std::span(part))), 0);
      ASSERT_TRUE(part == model.substr(offset, length))
          << where() << ": " << length << " at " << offset;
    }
    if (runs.size() <= 1) {
      EXPECT_TRUE(slice.loops.empty()) << where() << " is one run";
    }
    // Loops with adjacent runs are joined, so each pass must leave a gap before the next.
    for (const Slice::Loop& loop : slice.loops) {
      ASSERT_GE(loop.count, 2U) << where();
      ASSERT_GT(loop.stride, slice.run) << where();
    }
  }

  TempDir dir_;
  std::string bytes_;
  std::unique_ptr<LocalFile> source_;
};

TEST_F(RandomSlices, MatchModelForAllElementWidths) {
  for (const DType dtype : {DType::kU8, DType::kBF16, DType::kF32, DType::kC64, DType::kF4,
                            DType::kF6E2M3, DType::kF6E3M2}) {
    check(dtype, 3000, static_cast<std::uint64_t>(dtype) + 1);
  }
}

// Slices a type with large blocks and shared scales. The tests use rows of two blocks.
int block_slice(std::string_view expression, const Dims& shape, Slice& slice) {
  static constexpr TypeInfo kScaled{
      .name = "SCALED", .block_elements = 256, .block_bytes = 144, .kind = TypeKind::kQuantized};
  std::vector<Range> ranges;
  if (const int error = parse_ranges(expression, shape, ranges)) return error;
  return slice_of(ranges, kScaled, shape, slice);
}

TEST(Slice, BlockTypesAllowOnlyWholeBlocks) {
  const Dims shape{6, 4, 512};
  Slice slice;
  for (const char* expression : {"...", "2", "1:3,2", "0,0,256:", "3,3,:256", ":,::2,256:512",
                                 "...,0:0", "::2", "5,1:2,-256:"}) {
    EXPECT_EQ(block_slice(expression, shape, slice), 0) << expression;
  }
  for (const char* expression : {"0,0,0", "...,1:", "...,:128", "...,128:384", "...,::2",
                                 "0,0,255:511", "...,:255", "...,::256"}) {
    EXPECT_EQ(block_slice(expression, shape, slice), EINVAL) << expression;
  }
  ASSERT_EQ(block_slice("1:5:2,2,256:", shape, slice), 0);
  EXPECT_EQ(slice.shape, (Dims{2, 256}));
  EXPECT_EQ(slice.begin, (4 + 2) * 2U * 144 + 144);
  EXPECT_EQ(slice.run, 144U);
  ASSERT_EQ(slice.loops.size(), 1U);
  EXPECT_EQ(slice.loops[0].count, 2U);
  EXPECT_EQ(slice.loops[0].stride, 2 * 4 * 2 * 144U);
  ASSERT_EQ(block_slice("2:4", shape, slice), 0);
  EXPECT_EQ(slice.begin, 2 * 4 * 2 * 144U);
  EXPECT_EQ(slice.run, 2 * 4 * 2 * 144U);
  EXPECT_TRUE(slice.loops.empty());
}

// Tests of joining runs.

TEST(Slice, ContiguousBytesAreOneRun) {
  for (const char* expression : {"...", ":", "2:5", "2:5,:,:", "3", "3,1:3", "3,2,1:4", "3,2,1",
                                 "-1", "::9", "5:,0:4,...", "2:3,1:3", "2:3,1:2,::9"}) {
    const Slice slice = parsed(expression, {6, 4, 5}, DType::kF32);
    EXPECT_TRUE(slice.loops.empty()) << expression;
    EXPECT_EQ(slice.run, slice.size());
  }
  const Slice rows = parsed("2:5", {6, 4, 5}, DType::kF32);
  EXPECT_EQ(rows.begin, 2U * 4 * 5 * 4);
  EXPECT_EQ(rows.run, 3U * 4 * 5 * 4);
}

TEST(Slice, JoinsDimensionsWithEqualStridesIntoOneLoop) {
  const Slice column = parsed(":,:,0", {6, 4, 5}, DType::kU8);
  ASSERT_EQ(column.loops.size(), 1U);
  EXPECT_EQ(column.loops[0].count, 24U);
  EXPECT_EQ(column.loops[0].stride, 5U);
  EXPECT_EQ(column.run, 1U);

  const Slice two = parsed("::2,:,1:3", {6, 4, 5}, DType::kU8);
  ASSERT_EQ(two.loops.size(), 2U);
  EXPECT_EQ(two.run, 2U);
  EXPECT_EQ(two.begin, 1U);
}

TEST(Slice, SingleRunIsSentFromMapping) {
  const TempDir dir;
  write_file(dir / "source", std::string(200, 'x'));
  const LocalFile source((dir / "source").string());

  const Content content = slice_content(parsed("1:3", {10, 10}), whole(source, 7));
  const Leases leases({&source});
  if (!source.can_pin({0, 1})) GTEST_SKIP() << "no leases on this file system";
  Reading reading;
  ASSERT_EQ(content.read(0, kMost, reading), 0);

  ASSERT_EQ(reading.pieces.size(), 1U);
  EXPECT_TRUE(reading.buffers.empty());
  EXPECT_EQ(reading.pieces[0].iov_base, source.bytes().data() + 17);
}

// Returns the number of bytes that this process has read, which the kernel counts.

std::uint64_t bytes_read() {
  std::ifstream io("/proc/self/io");
  std::string word;
  std::uint64_t value = 0;
  while (io >> word >> value) {
    if (word == "rchar:") return value;
  }
  return 0;
}

// A sparse file with a few bytes.
class SparseSource {
 public:
  explicit SparseSource(std::uint64_t size) : path_((dir_ / "sparse").string()) {
    write_file(path_, "");
    std::filesystem::resize_file(path_, size);
  }
  void put(std::uint64_t offset, std::string_view bytes) {
    const UniqueFd fd(::open(path_.c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_EQ(::pwrite(fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset)),
              static_cast<ssize_t>(bytes.size()));
  }
  std::string path() const { return path_; }

 private:
  TempDir dir_;
  std::string path_;
};

TEST(Slice, ReadsOnlyNeededBytesOfDistantRuns) {
  constexpr std::uint64_t kRow = 64ULL << 20;  // 128 rows of 64 MiB, 8 GiB of holes
  SparseSource file(128 * kRow);
  for (std::uint64_t row = 0; row < 128; ++row) {
    file.put(row * kRow + 1000, std::string(10, static_cast<char>('0' + row % 10)));
  }
  const LocalFile source(file.path());
  const Content content = slice_content(parsed(":,1000:1010", {128, kRow}), whole(source, 0));
  std::string out(content.size(), '\0');

  const std::uint64_t before = bytes_read();
  ASSERT_EQ(content.copy(0, std::as_writable_bytes(std::span(out))), 0);
  const std::uint64_t read = bytes_read() - before;

  for (std::uint64_t row = 0; row < 128; ++row) {
    EXPECT_EQ(out.substr(row * 10, 10), std::string(10, static_cast<char>('0' + row % 10)));
  }
  if (before == 0) GTEST_SKIP() << "this kernel does not count read bytes (/proc/self/io)";
  EXPECT_LT(read, 1280U + 4096) << "only 1280 of 8 GiB are needed";
}

TEST(Slice, ReadsOnlyRequestedWindowOfNearRuns) {
  constexpr std::uint64_t kRows = 1 << 20;
  SparseSource file(kRows * 1024);  // 1 GiB
  file.put(500'000 * 1024 + 3, "!");
  const LocalFile source(file.path());
  const Content content = slice_content(parsed(":,3", {kRows, 1024}), whole(source, 0));
  ASSERT_EQ(content.size(), kRows);
  std::string out(16, '\0');

  const std::uint64_t before = bytes_read();
  ASSERT_EQ(content.copy(499'996, std::as_writable_bytes(std::span(out))), 0);
  const std::uint64_t read = bytes_read() - before;

  EXPECT_EQ(out, std::string("\0\0\0\0!\0\0\0\0\0\0\0\0\0\0\0", 16));
  if (before == 0) GTEST_SKIP() << "this kernel does not count read bytes (/proc/self/io)";
  EXPECT_LT(read, 16 * 1024 + 4096U);
}

std::uint64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t pages = 0;
  std::uint64_t resident = 0;
  statm >> pages >> resident;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

TEST(Slice, MillionsOfRunsUseLittleMemory) {
  constexpr std::uint64_t kRuns = 20'000'000;
  SparseSource file(kRuns * 2);
  file.put(2 * 15'000'000, "!");
  const LocalFile source(file.path());
  const std::uint64_t before = resident_bytes();

  const Content content = slice_content(parsed("::2", {kRuns * 2}), whole(source, 0));
  std::string out(1, '\0');
  ASSERT_EQ(content.copy(15'000'000, std::as_writable_bytes(std::span(out))), 0);
  std::string block(1 << 20, 'x');
  ASSERT_EQ(content.copy(1 << 20, std::as_writable_bytes(std::span(block))), 0);

  EXPECT_EQ(content.size(), kRuns);
  EXPECT_EQ(out, "!");
  EXPECT_EQ(block, std::string(1 << 20, '\0'));
  EXPECT_LT(resident_bytes(), before + (8 << 20));
}

// Tests of changed sources.

TEST(Slice, TruncatedSourceGivesESTALE) {
  const TempDir dir;
  const std::string path = (dir / "source").string();
  write_file(path, std::string(1000, 'x'));
  const LocalFile source(path);
  const Content content = slice_content(parsed(":,::2", {10, 100}), whole(source, 0));
  std::filesystem::resize_file(path, 10);
  std::vector<std::byte> out(content.size());

  EXPECT_EQ(content.copy(0, out), ESTALE);
  EXPECT_TRUE(source.has_changed()) << "otherwise the change is never logged";
}

TEST(Slice, RewrittenSourceGivesESTALE) {
  const TempDir dir;
  const std::string path = (dir / "source").string();
  write_file(path, std::string(1000, 'x'));
  const timespec times[2]{{1'000'000'000, 5}, {1'000'000'000, 5}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  const LocalFile source(path);
  const Content content = slice_content(parsed(":,::2", {10, 100}), whole(source, 0));
  write_file(path, std::string(1000, 'y'));
  std::vector<std::byte> out(content.size());

  EXPECT_EQ(content.copy(0, out), ESTALE);
  EXPECT_EQ(content.verify(), ESTALE) << "otherwise an open would succeed";
}

// Tests of the canonical expression.

std::string canonical(std::string_view expression, const Dims& shape) {
  std::vector<Range> ranges;
  EXPECT_EQ(parse_ranges(expression, shape, ranges), 0) << expression;
  return canonical_expression(ranges, shape);
}

// Returns the selected indices of each dimension, with a mark if the dimension is dropped.
std::vector<std::vector<std::uint64_t>> taken(std::string_view expression, const Dims& shape) {
  std::vector<Range> ranges;
  EXPECT_EQ(parse_ranges(expression, shape, ranges), 0) << expression;
  std::vector<std::vector<std::uint64_t>> indices;
  for (const Range& range : ranges) {
    std::vector<std::uint64_t>& all = indices.emplace_back();
    if (!range.keeps_dimension) all.push_back(kMost);
    for (std::uint64_t i = 0; i < range.count; ++i) all.push_back(range.start + i * range.step);
  }
  return indices;
}

TEST(CanonicalSlice, IsEqualExactlyIfElementsAreEqual) {
  for (const Dims& shape : {Dims{1}, Dims{2}, Dims{5}, Dims{0}, Dims{4, 1}, Dims{0, 3}}) {
    std::vector<std::string> items{"..."};
    for (const char* item : {"0", "-1", ":", "1:", ":1", "0:0", "3:2", "::2", "::3", "1::2", "0:1",
                             "0:3:2", "0:4:2", "-2:", ":100", "-100:100:1", "0:5:4", "0:2:7"}) {
      items.emplace_back(item);
      if (shape.size() == 2) items.push_back(":," + std::string(item));
      if (shape.size() == 2) items.push_back(std::string(item) + ",:");
    }
    std::erase_if(items, [&](const std::string& item) { return error_of(item, shape) != 0; });
    for (const std::string& a : items) {
      for (const std::string& b : items) {
        EXPECT_EQ(canonical(a, shape) == canonical(b, shape), taken(a, shape) == taken(b, shape))
            << a << " and " << b << " of " << shape.size() << " dimensions";
      }
      if (canonical(a, shape).empty()) continue;
      EXPECT_EQ(taken(canonical(a, shape), shape), taken(a, shape)) << "as an expression: " << a;
      EXPECT_EQ(canonical(canonical(a, shape), shape), canonical(a, shape)) << a;
    }
  }
}

TEST(CanonicalSlice, IsEmptyForWholeTensor) {
  EXPECT_EQ(canonical("...", {}), "");
  EXPECT_EQ(canonical(":,0:9,::1", {4, 9, 1}), "");
  EXPECT_EQ(canonical("0", {1}), "0") << "a dimension is dropped";
  EXPECT_EQ(canonical("-1,-3:,::2", {4, 9, 5}), "3,6:9,0:5:2");
}

}  // namespace
}  // namespace stfs::test
