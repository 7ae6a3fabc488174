// GGUF files in a mount: the corpus file with one tensor of each type, written files, and a real
// model.
#include "tests/gguf/gguf_file.h"
#include "tests/support/checkpoint_reader.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/daemon_figures.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/mounted.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

class GgufMount : public MountTest {};

std::filesystem::path all_types() {
  return test_data("../corpus/accepted/gguf-all-types.gguf").lexically_normal();
}

int errno_of_stat(const std::filesystem::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? 0 : errno;
}

TEST_F(GgufMount, ShowsQuantisedTensorsAndTheirValues) {
  const Mounted mount({all_types()});
  const auto rows = nlohmann::json::parse(read_file(mount / ".stfs/tensors.json"));
  ASSERT_EQ(rows.size(), 35U);
  for (const auto& row : rows) {
    const std::string name = row.at("name");
    const std::string dtype = row.at("dtype");
    const std::uint64_t elements = row.at("shape").at(0);
    SCOPED_TRACE(dtype);
    const std::string raw = read_file(mount / name);
    EXPECT_EQ(raw.size(), row.at("bytes"));
    EXPECT_EQ(xattr(mount / name, "user.stfs.dtype"), dtype);
    EXPECT_EQ(read_file(mount / ".stfs/slice" / name / ":"), raw);
    EXPECT_EQ(read_file(mount / ".stfs/tree" / name), raw);
    EXPECT_EQ(errno_of_stat(mount / ".stfs/stats" / (name + ".json")), 0);
    if (elements == 1) continue;  // not a whole block
    const std::string values = read_file(mount / ".stfs/f32" / name);
    EXPECT_EQ(values.size(), elements * sizeof(float));
    EXPECT_TRUE(read_file(mount / ".stfs/npy-f32" / (name + ".npy")).ends_with(values));
    EXPECT_EQ(read_file(mount / ".stfs/f32-slice" / name / "3:10"), values.substr(12, 28));
    EXPECT_EQ(errno_of_stat(mount / ".stfs/slice" / name / "0:16"), EINVAL);
    EXPECT_EQ(errno_of_stat(mount / ".stfs/npy" / (name + ".npy")), ENOENT);
    EXPECT_EQ(entries_of(mount / ".stfs/safetensors" / (name + ".safetensors")).at(name).bytes(),
              values);
  }
}

// Mounts of GGUF files that the test writes.
class GgufFiles : public MountTest {
 protected:
  std::string write(const std::string& name, const GgufFile& file) const {
    write_file(dir_ / name, file.bytes());
    return dir_ / name;
  }
  // Writes two files with tensors of several types, a shape in the metadata, and keys of all kinds.
  std::vector<std::string> write_two() const {
    GgufFile a, b;
    a.key("general.name", "two");
    a.key("z.words", ValueType::kArray,
          gguf_array(ValueType::kString, 2, gguf_string("ein") + gguf_string("zwei")));
    a.key(
        "comfy.gguf.orig_shape.blk.0.conv", ValueType::kArray,
        gguf_array(ValueType::kI32, 5, little(2) + little(1) + little(4) + little(2) + little(4)));
    a.key("a.count", ValueType::kU32, little<std::uint32_t>(5));
    a.tensor("blk.0.conv", {32, 2}, kQ8, RandomBytes(1).bytes(68));
    a.tensor("blk.0.norm", {3}, kF32, "abcdefghijkl");
    b.key("b.only", ValueType::kBool, "\1");
    b.key("a.count", ValueType::kU32, little<std::uint32_t>(5));
    b.tensor("blk.1.q", {256, 1, 3}, kQ4K, RandomBytes(2).bytes(432));
    b.tensor("blk.1.ints", {5}, kI8, "hello");
    return {write("a.gguf", a), write("b.gguf", b)};
  }
  // Returns a block of Q8_0 with the scale 0.5 and the integers from -16 to 15.
  static std::string block() {
    std::string block = little<std::uint16_t>(0x3800);
    for (int i = 0; i < 32; ++i) block += static_cast<char>(i - 16);
    return block;
  }

  static constexpr std::uint32_t kF32 = 0, kQ8 = 8, kQ4K = 12, kI8 = 24;
  TempDir dir_;
};

int errno_to_open(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  ::close(fd);
  return 0;
}

TEST_F(GgufFiles, MergedFileOfSingleSourceEqualsSource) {
  GgufFile file;
  file.version = 2;
  file.tensor("w", {1}, kF32, "wwww");
  write_file(dir_ / "m.gguf", file.bytes() + "bytes after the data");
  const Mounted mount({dir_ / "m.gguf"});

  EXPECT_EQ(read_file(mount / ".stfs/merged.gguf"), read_file(dir_ / "m.gguf"));
  EXPECT_EQ(read_file(mount / ".stfs/subset/*.gguf").substr(4, 1), "\3");
}

TEST_F(GgufFiles, SourceReplacedByRenameIsErrorThatNamesMergedFile) {
  const std::vector<std::string> sources = write_two();
  const Mounted mount({sources[1]});
  std::filesystem::rename(sources[0], sources[1]);

  const Outcome list = run({STFS_INFO_BINARY, "list", mount.path()});

  EXPECT_EQ(list.status, 3);
  const std::string merged = mount / ".stfs/merged.gguf";
  EXPECT_NE(list.err.find("has changed since it was mounted: name " + merged), std::string::npos)
      << list.err;
  EXPECT_EQ(run({STFS_INFO_BINARY, "check", merged}).status, 0);
}

TEST_F(GgufFiles, MergedFileOfTwoSourcesHasSameTensorsAndMetadata) {
  const Mounted mount({write_two()});
  const std::filesystem::path merged = mount / ".stfs/merged.gguf";
  const std::string bytes = read_file(merged);
  EXPECT_EQ(std::filesystem::file_size(merged), bytes.size());

  const Mounted again({merged});

  const Outcome diff = run({"diff", "-r", mount.path(), again.path()});
  EXPECT_EQ(diff.status, 0) << diff.out << diff.err;
  for (const char* name : {"blk.0.conv", "blk.0.norm", "blk.1.q", "blk.1.ints"}) {
    for (const char* attribute : {"user.stfs.shape", "user.stfs.dtype"}) {
      EXPECT_EQ(xattr(mount / name, attribute), xattr(again / name, attribute)) << name;
    }
  }
  EXPECT_EQ(xattr(again / "blk.0.conv", "user.stfs.shape"), "[2,1,4,2,4]");
  EXPECT_EQ(run({"diff", "-r", mount / ".stfs/metadata", again / ".stfs/metadata"}).status, 0);
  std::size_t before = 0;
  for (const char* key : {"general.name", "z.words", "comfy.", "a.count", "b.only"}) {
    EXPECT_GT(bytes.find(key), before) << key;
    before = bytes.find(key);
  }
  EXPECT_EQ(read_file(again / ".stfs/merged.gguf"), bytes);
}

TEST_F(GgufFiles, MergedAndSubsetFilesNeedGgufSources) {
  write_safetensors(dir_ / "s.safetensors",
                    {random_tensor("s", "F32", {3}), random_tensor("u", "U8", {3})});
  const Mounted mixed({write_two()[0], dir_ / "s.safetensors"});
  const Mounted plain({dir_ / "s.safetensors"});

  EXPECT_EQ(errno_to_open(mixed / ".stfs/merged.gguf"), ENOENT);
  EXPECT_EQ(errno_to_open(mixed / ".stfs/subset/*.gguf"), EOPNOTSUPP);
  EXPECT_EQ(errno_to_open(mixed / ".stfs/subset/s.gguf"), 0);
  EXPECT_EQ(errno_to_open(mixed / ".stfs/subset/nothing.gguf"), ENOENT);
  EXPECT_EQ(errno_to_open(mixed / ".stfs/subset/blk*.gguf"), 0);
  EXPECT_EQ(errno_to_open(mixed / ".stfs/subset/*.safetensors"), 0);
  EXPECT_EQ(errno_to_open(plain / ".stfs/merged.gguf"), ENOENT);
  EXPECT_EQ(errno_to_open(plain / ".stfs/subset/*.gguf"), ENOENT);
  for (const Mounted* mount : {&mixed, &plain}) {
    const std::vector<std::string> names = names_in(*mount / ".stfs");
    EXPECT_EQ(std::ranges::count(names, "merged.gguf"), 0);
    EXPECT_EQ(std::ranges::count(names, "subset"), 1);
  }
}

TEST_F(GgufFiles, SubsetContainsTensorsThatMatchGlob) {
  const Mounted mount({write_two()});
  const std::vector<std::string> names = names_in(mount / ".stfs");
  EXPECT_EQ(std::ranges::count(names, "merged.gguf"), 1);
  EXPECT_EQ(std::ranges::count(names, "subset"), 1);

  const Mounted subset({mount / ".stfs/subset/blk.[01].[cq]*.gguf"});

  EXPECT_EQ(names_in(subset.path()), (std::vector<std::string>{"blk.0.conv", "blk.1.q"}));
  for (const char* name : {"blk.0.conv", "blk.1.q"}) {
    EXPECT_EQ(read_file(subset / name), read_file(mount / name));
  }
  EXPECT_EQ(names_in(subset / ".stfs/metadata"), names_in(mount / ".stfs/metadata"));
}

TEST_F(GgufFiles, InvalidUtf8NameHasNoSafetensorsFile) {
  GgufFile file;
  file.tensor("\xFFname", {1}, kF32, "1234");
  file.tensor("fine", {1}, kF32, "5678");
  const std::string path = write("m.gguf", file);
  const Mounted mount({path});

  EXPECT_EQ(errno_to_open(mount / ".stfs/safetensors/\xFFname.safetensors"), ENOENT);
  EXPECT_EQ(errno_to_open(mount / ".stfs/merged.safetensors"), EOPNOTSUPP);
  EXPECT_EQ(errno_to_open(mount / ".stfs/subset/*.safetensors"), EOPNOTSUPP);
  EXPECT_EQ(errno_to_open(mount / ".stfs/subset/fine.safetensors"), 0);
  EXPECT_EQ(errno_to_open(mount / ".stfs/merged.gguf"), 0);
  const Outcome extract =
      run({STFS_INFO_BINARY, "extract", path, "*", "-o", dir_ / "x.safetensors"});
  EXPECT_EQ(extract.status, 2);
  EXPECT_EQ(extract.err, "stfs-info: " + path +
                             ": tensor \"\\xffname\": its name is not UTF-8, which safetensors "
                             "requires: leave the tensor out, or write a .gguf file\n");
}

TEST_F(GgufFiles, ExtractNotesSizeWhenBlocksBecomeF32) {
  GgufFile file;
  file.tensor("a", {32}, kQ8, block());
  file.tensor("b", {1}, kF32, "1234");
  const std::string path = write("m.gguf", file);
  const std::string out = dir_ / "x.safetensors";

  EXPECT_EQ(run({STFS_INFO_BINARY, "extract", path, "*", "-o", out}).err,
            "stfs-info: note: " + out +
                ": 1 tensor of block types written as F32: 128 B in place of 34 B (a name that "
                "ends in .gguf keeps the blocks)\n");
  EXPECT_EQ(run({STFS_INFO_BINARY, "extract", path, "*", "-o", dir_ / "x.gguf"}).err, "");
  EXPECT_EQ(run({STFS_INFO_BINARY, "extract", path, "b", "-o", dir_ / "b.safetensors"}).err, "");
}

TEST_F(GgufFiles, OverflowingDimensionsHaveNoSafetensorsFile) {
  GgufFile file;
  file.tensor("empty", {0, 1LL << 62, 1LL << 62}, kI8, "");
  file.tensor("first", {1LL << 62, 1LL << 62, 0}, kI8, "");
  const std::string path = write("m.gguf", file);
  const Mounted mount({path});

  EXPECT_EQ(errno_to_open(mount / ".stfs/safetensors/empty.safetensors"), ENOENT);
  EXPECT_EQ(errno_to_open(mount / ".stfs/safetensors/first.safetensors"), 0);
  EXPECT_EQ(errno_to_open(mount / ".stfs/merged.safetensors"), EOPNOTSUPP);
  EXPECT_EQ(errno_to_open(mount / ".stfs/merged.gguf"), 0);
  const Outcome extract =
      run({STFS_INFO_BINARY, "extract", path, "*", "-o", dir_ / "x.safetensors"});
  EXPECT_EQ(extract.status, 2);
  EXPECT_EQ(extract.err,
            "stfs-info: " + path +
                ": tensor \"empty\": its dimensions overflow 64 bits, which "
                "safetensors does not allow: leave the tensor out, or write a .gguf file\n");
}

TEST_F(GgufFiles, ManyStringsUseNoDaemonMemory) {
  std::string words;
  for (int i = 0; i < 100'000; ++i) words += gguf_string(std::string(300, 'a'));
  GgufFile a, b;
  for (GgufFile* file : {&a, &b}) {
    file->key("tokenizer.ggml.tokens", ValueType::kArray,
              gguf_array(ValueType::kString, 100'000, words));
    file->tensor(file == &a ? "a" : "b", {1}, kF32, "1234");
  }
  const Mounted mount({write("a.gguf", a), write("b.gguf", b)});

  const std::string merged = read_file(mount / ".stfs/merged.gguf");

  EXPECT_NE(merged.find(words), std::string::npos);
  EXPECT_EQ(read_file(mount / ".stfs/subset/[ab].gguf"), merged);
#ifndef STFS_SANITIZED
  EXPECT_LT(DaemonFigures(mount.daemon()).resident, words.size() / 2);
#endif
}

TEST_F(GgufFiles, RewrittenSourceIsESTALE) {
  const std::vector<std::string> sources = write_two();
  const Mounted mount(sources, {"-o", "page_cache=direct"});
  const std::string merged = mount / ".stfs/merged.gguf";
  const int fd = ::open(merged.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  std::string bytes(16, '\0');
  ASSERT_EQ(::pread(fd, bytes.data(), bytes.size(), 0), 16);

  std::filesystem::resize_file(sources[1], 100);

  std::string out(std::filesystem::file_size(merged), '\0');
  EXPECT_LT(::pread(fd, out.data(), out.size(), 0), 0);
  EXPECT_EQ(errno, ESTALE);
  ::close(fd);
  for (const char* path :
       {".stfs/merged.gguf", ".stfs/subset/blk*.gguf", ".stfs/merged.safetensors"}) {
    EXPECT_EQ(errno_to_open(mount / path), ESTALE) << path;
  }
}

TEST_F(GgufFiles, ExtractChoosesFormatBySuffix) {
  const std::string source = write_two()[0];
  const Outcome gguf = run({STFS_INFO_BINARY, "extract", source, "*", "-o", dir_ / "x.gguf"});
  const Outcome values =
      run({STFS_INFO_BINARY, "extract", source, "*conv", "-o", dir_ / "x.safetensors"});

  EXPECT_EQ(gguf.status, 0) << gguf.err;
  EXPECT_EQ(read_file(dir_ / "x.gguf"), read_file(source));
  EXPECT_EQ(values.status, 0) << values.err;
  EXPECT_EQ(entries_of(dir_ / "x.safetensors").at("blk.0.conv").dtype, "F32");
  const Outcome refused =
      run({STFS_INFO_BINARY, "extract", dir_ / "x.safetensors", "*", "-o", dir_ / "y.gguf"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_EQ(refused.err, "stfs-info: " + (dir_ / "x.safetensors").string() +
                             ": tensor \"blk.0.conv\": not from a GGUF file: write a .safetensors "
                             "file\n");
  EXPECT_FALSE(std::filesystem::exists(dir_ / "y.gguf"));
}

TEST_F(GgufFiles, ExtractFromMountKeepsStoredDimensions) {
  const Mounted mount({write_two()[0]});
  const Outcome extract = run({STFS_INFO_BINARY, "extract", mount / ".stfs/tree/blk/0/conv", "*",
                               "-o", dir_ / "conv.gguf"});

  EXPECT_EQ(extract.status, 0) << extract.err;
  const std::string bytes = read_file(dir_ / "conv.gguf");
  EXPECT_NE(bytes.find(gguf_string("blk.0.conv") + little<std::uint32_t>(2) +
                       little<std::uint64_t>(32) + little<std::uint64_t>(2)),
            std::string::npos);
  const Mounted again({dir_ / "conv.gguf"});
  EXPECT_EQ(xattr(again / "blk.0.conv", "user.stfs.shape"), "[2,1,4,2,4]");
}

TEST_F(GgufFiles, DiffComparesValuesOfTwoFormats) {
  GgufFile file;
  file.tensor("bytes", {4}, kI8, "wxyz");
  file.tensor("equal", {32}, kQ8, block());
  file.tensor("ints", {1}, 26, "\1\0\0\0");
  file.tensor("other", {32, 2}, kQ8, block() + block());
  file.tensor("shape", {32}, kQ8, block());
  const std::string gguf = write("a.gguf", file);
  std::string values;
  for (int i = 0; i < 32; ++i) values += little(0.5F * static_cast<float>(i - 16));
  std::string changed = values + values;
  changed.replace(4 * 5, 4, little(-5.25F));        // was -5.5
  changed.replace(4 * (32 + 3), 4, little(0.25F));  // was -6.5
  write_safetensors(dir_ / "b.safetensors", {{"bytes", "I8", {4}, "wxyZ"},
                                             {"equal", "F32", {32}, values},
                                             {"ints", "U8", {1}, "\1"},
                                             {"other", "F32", {2, 32}, changed},
                                             {"shape", "F32", {1, 32}, values}});
  const std::string safetensors = dir_ / "b.safetensors";

  const Outcome text = run({STFS_INFO_BINARY, "diff", "--no-header", gguf, safetensors});
  const Outcome as_json = run({STFS_INFO_BINARY, "diff", "--json", safetensors, gguf});

  EXPECT_EQ(text.status, 1);
  EXPECT_EQ(text.out,
            "bytes\tbytes\t-\t-\t3\t-\t-\n"
            "dtype\tints\tI32\tU8\t-\t-\t-\n"
            "dtype\tother\tQ8_0\tF32\t-\t6.75\t[1,3]\n"
            "shape\tshape\t[32]\t[1,32]\t-\t-\t-\n");
  EXPECT_EQ(as_json.status, 1);
  const auto rows = nlohmann::json::parse(as_json.out);
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[2], nlohmann::json::parse(R"({"change":"dtype","name":"other","a":"F32",
            "b":"Q8_0","largest_difference":6.75,"at":[1,3]})"));
}

TEST_F(GgufFiles, DiffComparesDoublesAndEqualTypesOfTwoFormats) {
  const double nearly = 1 + 0x1p-40;
  GgufFile file;
  file.tensor("double", {2}, 28, little(1.0) + little(nearly));
  file.tensor("equal", {1}, kF32, little(1.0F));
  file.tensor("float", {2}, kF32, little(0.5F) + little(2.0F));
  file.tensor("same", {1}, 28, little(1.0));
  file.tensor("zero", {1}, kF32, little(0.0F));
  const std::string gguf = write("a.gguf", file);
  const std::string safetensors = dir_ / "b.safetensors";
  write_safetensors(safetensors, {{"double", "F32", {2}, little(1.0F) + little(1.0F)},
                                  {"equal", "F32", {1}, little(1.0F)},
                                  {"float", "F32", {2}, little(0.5F) + little(2.25F)},
                                  {"same", "F32", {1}, little(1.0F)},
                                  {"zero", "F32", {1}, little(-0.0F)}});

  const Outcome text = run({STFS_INFO_BINARY, "diff", "--no-header", gguf, safetensors});

  EXPECT_EQ(text.status, 1);
  EXPECT_EQ(text.out,
            "dtype\tdouble\tF64\tF32\t-\t9.094947017729282e-13\t[1]\n"
            "bytes\tfloat\t-\t-\t6\t0.25\t[1]\n");
}

TEST_F(GgufFiles, DiffWithOwnMergedFileIsExit0) {
  const Mounted mount({write_two()});
  for (const char* path : {".stfs/merged.gguf", ".stfs/merged.safetensors"}) {
    const Outcome diff = run({STFS_INFO_BINARY, "diff", mount.path(), mount / path});
    EXPECT_EQ(diff.status, 0) << diff.out << diff.err;
    EXPECT_EQ(diff.out, "");
  }
}

TEST_F(GgufFiles, DiffReportsLargestDifferenceBetweenTwoTypes) {
  GgufFile a, b;
  a.tensor("same", {32}, kQ8, block());
  a.tensor("w", {32}, kQ8, block());
  std::string values;
  for (int i = 0; i < 32; ++i) values += little(0.5F * static_cast<float>(i - 16));
  b.tensor("same", {32}, kF32, values);
  values.replace(0, 4, little(std::numeric_limits<float>::quiet_NaN()));
  b.tensor("w", {32}, kF32, values);

  const std::string in_a = write("a.gguf", a);
  const std::string in_b = write("b.gguf", b);

  EXPECT_EQ(run({STFS_INFO_BINARY, "diff", "--no-header", in_a, in_b}).out,
            "dtype\tsame\tQ8_0\tF32\t-\t0\t-\ndtype\tw\tQ8_0\tF32\t-\tinf\t[0]\n");
  const auto rows =
      nlohmann::json::parse(run({STFS_INFO_BINARY, "diff", "--json", in_a, in_b}).out);
  EXPECT_EQ(rows[0].at("largest_difference"), 0);
  EXPECT_FALSE(rows[0].contains("at"));
  EXPECT_TRUE(rows[1].at("largest_difference").is_null());
}

TEST_F(GgufMount, ShowsHeaderAndMetadata) {
  const std::filesystem::path file = test_data("gguf/llama-2-tiny-random.gguf");
  const std::string bytes = read_file(file);
  const Mounted mount({file});

  const std::string header = read_file(mount / ".stfs/header/llama-2-tiny-random.gguf.gguf");
  EXPECT_EQ(header, bytes.substr(0, header.size()));
  EXPECT_GT(header.size(), 700'000U);
  EXPECT_EQ(read_file(mount / ".stfs/metadata/general.architecture"), "llama");
  EXPECT_EQ(read_file(mount / ".stfs/metadata/llama.context_length"), "4096");
  EXPECT_EQ(read_file(mount / "blk.0.attn_k.weight").size(), 128U);
  EXPECT_EQ(read_file(mount / ".stfs/tree/blk/0/attn_k/weight"),
            read_file(mount / "blk.0.attn_k.weight"));
}

}  // namespace
}  // namespace stfs::test
