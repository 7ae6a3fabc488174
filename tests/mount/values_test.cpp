// The verbs of stfs-info that read values: cat's options, stats, hash, diff, extract. They need no
// mount, but some tests compare the output with a mount.
#include "tests/mount/info_tool.h"
#include "tests/support/checkpoint_reader.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/mounted.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

using namespace std::string_literals;
using nlohmann::json;

std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields;
  std::istringstream in(line);
  for (std::string field; std::getline(in, field, '\t');) fields.push_back(field);
  return fields;
}

class Values : public ::testing::Test {
 protected:
  // Writes DIR/NAME.safetensors and returns its path.
  std::string write(const std::string& name, const std::vector<Tensor>& tensors,
                    const std::optional<Metadata>& metadata = std::nullopt) {
    const std::filesystem::path path = dir_ / (name + ".safetensors");
    write_safetensors(path, tensors, metadata);
    return path;
  }
  TempDir dir_;
};

// cat

class InfoCatOptions : public Values {};

TEST_F(InfoCatOptions, SliceWritesPart) {
  const std::string file = write("m", {{"w", "U8", {3, 4}, "abcdefghijkl"}});

  EXPECT_EQ(info({"cat", file, "w", "--slice", "1"}).out, "efgh");
  EXPECT_EQ(info({"cat", file, "w", "--slice", ":,1"}).out, "bfj");
  EXPECT_EQ(info({"cat", file, "w", "--slice=-1,::2"}).out, "ik");
  EXPECT_EQ(info({"cat", "--slice", "...,0", file, "w"}).out, "aei");
  EXPECT_EQ(info({"cat", file, "w", "--slice", "1:1"}).out, "");
  EXPECT_EQ(info({"cat", file, "w", "--slice", "1:1"}).status, 0);
}

TEST_F(InfoCatOptions, BadSliceIsExit2AndOneLine) {
  const std::string file = write("m", {random_tensor("w", "U8", {3, 4})});

  for (const char* bad : {"x", "0,0,0", "::-1", "3", "0,4", "1:2:3:4"}) {
    expect_one_line(info({"cat", file, "w", "--slice="s + bad}), 2, "shape is [3,4]");
  }
  EXPECT_EQ(info({"cat", file, "w", "--slice="}).status, 2);
}

TEST_F(InfoCatOptions, AsF32Converts) {
  const std::string file =
      write("m", {{"w", "BF16", {2, 1}, "\x80\x3f\x00\xc0"s}, random_tensor("i", "I32", {2})});

  EXPECT_EQ(info({"cat", file, "w", "--as", "f32"}).out, "\x00\x00\x80\x3f\x00\x00\x00\xc0"s);
  EXPECT_EQ(info({"cat", file, "w", "--as", "f32", "--slice", "1"}).out, "\x00\x00\x00\xc0"s);
  expect_one_line(info({"cat", file, "i", "--as", "f32"}), 2, "I32");
  expect_one_line(info({"cat", file, "w", "--as", "f64"}), 2);
}

TEST_F(InfoCatOptions, NpyEqualsFileOfMount) {
  if (const std::string why = mount_unavailable(); !why.empty()) GTEST_SKIP() << why;
  const std::string file =
      write("m", {random_tensor("w", "BF16", {5, 7}), random_tensor("s", "F64", {})});
  const Mounted mount({file});
  const auto expect_same = [&](std::vector<std::string> arguments, const std::string& path) {
    arguments.insert(arguments.begin(), {"cat", file});
    const Outcome result = info(arguments);
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_TRUE(result.out == read_file(mount / (".stfs/" + path))) << path;
  };

  expect_same({"w", "--npy"}, "npy/w.npy");
  expect_same({"s", "--npy"}, "npy/s.npy");
  expect_same({"w", "--npy", "--as", "f32"}, "npy-f32/w.npy");
  expect_same({"w", "--as", "f32"}, "f32/w");
  expect_same({"w", "--slice", ":,2:5"}, "slice/w/:,2:5");
  expect_same({"w", "--slice", "::2,-1", "--npy"}, "npy-slice/w/::2,-1.npy");
}

TEST_F(InfoCatOptions, NpyCombinesSliceAndAsF32) {
  if (run({"/usr/bin/python3", "-c", "import numpy"}).status != 0) GTEST_SKIP() << "no NumPy";
  const std::string file = write("m", {{"w", "F16", {2, 2}, "\x00\x3c\x00\x40\x00\x44\x00\x48"s}});

  const Outcome result = sh(R"("$1" cat "$2" w --slice :,1 --as f32 --npy > "$3"
      /usr/bin/python3 -c 'import numpy, sys
a = numpy.load(sys.argv[1]); print(a.dtype.str, a.shape, a.tolist())' "$3")",
                            {STFS_INFO_BINARY, file, dir_ / "out.npy"});

  EXPECT_EQ(result.out, "<f4 (2,) [2.0, 8.0]\n") << result.err;
}

TEST_F(InfoCatOptions, NpyWithTypeUnknownToNumpyIsExit2) {
  const std::string file = write("m", {random_tensor("w", "F4", {4})});

  expect_one_line(info({"cat", file, "w", "--npy"}), 2, "F4");
  EXPECT_EQ(info({"cat", file, "w", "--npy", "--as", "f32"}).out.size(), 128U + 16);
}

// stats

class InfoStats : public Values {
 protected:
  static constexpr const char* kStatsHeading =
      "name\tcount\tmin\tmax\tmean\tstd\tzeros\tnan\tinf\tnan_at\tinf_at\tlargest_at\n";
};

TEST_F(InfoStats, PrintsOneLinePerTensor) {
  const std::string file = write("m", {{"w", "U8", {4}, "\x00\x01\x02\x05"s},
                                       random_tensor("c", "C64", {2}),
                                       {"tab\there", "U8", {1}, "\x07"}});

  const Outcome result = info({"stats", file});

  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const std::vector<std::string> lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[0],
            "name\tcount\tmin\tmax\tmean\tstd\tzeros\tnan\tinf\tnan_at\tinf_at\tlargest_at");
  for (const std::string& line : lines) EXPECT_EQ(fields_of(line).size(), 12U) << line;
  EXPECT_TRUE(std::ranges::count(lines, "w\t4\t0\t5\t2\t1.87083\t1\t0\t0\t[]\t[]\t[3]") == 1)
      << result.out;
}

TEST_F(InfoStats, JsonHasFieldsOfStatsFiles) {
  const std::string file = write("m", {{"w", "U8", {2}, "\x00\x04"s}, {"v", "U8", {0}, ""}});

  const json stats = json::parse(info({"stats", "--json", file, "w"}).out);

  EXPECT_EQ(stats, json::parse(R"([{"name":"w","count":2,"min":0,"max":4,"mean":2,"std":2,
                                    "zeros":1,"nan":0,"inf":0,
                                    "nan_at":[],"inf_at":[],"largest_at":[1]}])"));
  EXPECT_EQ(json::parse(info({"stats", "--json", file}).out).size(), 2U);
}

TEST_F(InfoStats, SameOutputForAnyNumberOfJobs) {
  const Outcome one = info({"stats", "-j", "1", test_data("sharded")});
  const Outcome many = info({"stats", "-j", "16", test_data("sharded")});

  EXPECT_EQ(one.status, 0) << one.err;
  EXPECT_EQ(lines_of(one.out).size(), 37U);
  EXPECT_EQ(one.out, many.out);
}

TEST_F(InfoStats, SortAndTopListTensorsWithLargestValues) {
  const std::string file = write("m", {{"b10", "U8", {2}, "\x00\x04"s},
                                       {"b9", "U8", {2}, "\x01\x03"s},
                                       {"a", "U8", {2}, "\x09\x09"s},
                                       random_tensor("c", "C64", {3}),
                                       {"e", "U8", {0}, ""},
                                       {"nan", "BF16", {2}, "\xc0\x7f\x00\x00"s},
                                       {"low", "I8", {2}, "\x80\x00"s}});
  const auto names = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"stats", "--json", file});
    std::string out;
    for (const json& row : json::parse(info(options).out))
      out += row["name"].get<std::string>() + " ";
    return out;
  };

  EXPECT_EQ(names({"--sort", "name"}), "a b9 b10 c e low nan ");
  EXPECT_EQ(names({"--sort", "std", "--top", "3"}), "low b10 b9 ");
  EXPECT_EQ(names({"--sort", "min", "--top", "2"}), "low b10 ");
  EXPECT_EQ(names({"--sort", "max", "--top", "1"}), "a ");
  EXPECT_EQ(names({"--sort", "mean", "--top", "1"}), "a ");
  EXPECT_EQ(names({"--sort", "nan", "--top", "1"}), "nan ");
  EXPECT_EQ(names({"--sort", "count", "--top", "1"}), "c ");
  EXPECT_EQ(names({"--sort", "std"}).substr(0, 12), "low b10 b9 a");
  EXPECT_TRUE(names({"--sort", "std"}).ends_with("c e "))
      << "tensors without the value must be last";
  EXPECT_EQ(names({"--sort", "std", "--top", "9", "--nonfinite"}), "nan ");
  EXPECT_EQ(info({"stats", "--sort", "max", "--top", "1", "--no-header", file}).out,
            "a\t2\t9\t9\t9\t0\t0\t0\t0\t[]\t[]\t[0]\n");
  expect_one_line(info({"stats", "--sort", "offset", file}), 2);
  expect_one_line(info({"stats", "--top", "0", file}), 2);
}

TEST_F(InfoStats, NonfiniteListsTensorsWithNanOrInfinityAndIsExit1) {
  const std::string bad = write("bad", {{"fine", "BF16", {2}, "\x80\x3f\x00\x00"s},
                                        {"nan", "BF16", {2}, "\xc0\x7f\x00\x00"s},
                                        {"inf", "BF16", {2}, "\x80\xff\x00\x00"s},
                                        {"i", "I32", {1}, "\xff\xff\xff\xff"}});
  const Outcome found = info({"stats", "--nonfinite", bad});
  const Outcome as_json = info({"stats", "--nonfinite", "--json", bad});
  const Outcome none = info({"stats", "--nonfinite", bad, "fine", "i"});
  const Outcome none_json = info({"stats", "--nonfinite", "--json", bad, "fine"});

  EXPECT_EQ(found.status, 1) << found.err;
  EXPECT_EQ(found.out, std::string(kStatsHeading) +
                           "nan\t2\t0\t0\t0\t0\t1\t1\t0\t[[0]]\t[]\t[1]\n" +
                           "inf\t2\t0\t0\t0\t0\t1\t0\t1\t[]\t[[0]]\t[1]\n");
  EXPECT_EQ(as_json.status, 1);
  EXPECT_EQ(json::parse(as_json.out).size(), 2U);
  EXPECT_EQ(none.status, 0) << none.err;
  EXPECT_EQ(none.out, kStatsHeading);
  EXPECT_EQ(none_json.status, 0);
  EXPECT_EQ(json::parse(none_json.out), json::array());
}

TEST_F(InfoStats, NonfiniteWithoutValuesIsExit2) {
  expect_one_line(info({"stats", "--nonfinite", write("none", {})}), 2, "no values");
  expect_one_line(info({"stats", "--nonfinite", write("e", {{"e", "F32", {0}, ""}})}), 2,
                  "no values");
}

// hash

class InfoHash : public Values {};

TEST_F(InfoHash, EqualsSha256sumOfMount) {
  if (const std::string why = mount_unavailable(); !why.empty()) GTEST_SKIP() << why;
  const std::string file =
      write("m", {random_tensor("a/b", "U8", {9}), random_tensor("back\\slash", "U8", {3}),
                  random_tensor("line\nend", "U8", {3}), random_tensor("", "U8", {1})});
  const Mounted mount({file});

  const Outcome check = sh(R"("$1" hash "$2" > "$4/sums"; cd "$3"; sha256sum -c "$4/sums")",
                           {STFS_INFO_BINARY, file, mount.path(), dir_.path()});

  EXPECT_EQ(check.status, 0) << check.out << check.err;
  EXPECT_EQ(lines_of(check.out).size(), 4U);
}

TEST_F(InfoHash, JsonHasNamePathAndDigest) {
  const std::string file = write("m", {{"50%", "U8", {3}, "abc"}});

  EXPECT_EQ(json::parse(info({"hash", "--json", file}).out), json::parse(
                                                                 R"([{"name":"50%","path":"50%25",
               "sha256":"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}])"));
}

TEST_F(InfoHash, StopsImmediatelyWhenInterrupted) {
  HeaderBuilder header;
  header.add("big", "U8", {64ULL << 30}, 64ULL << 30);
  const std::filesystem::path path = dir_ / "big.safetensors";
  write_file(path, safetensors_bytes(header.finish(), ""));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) + (64ULL << 30));
  // The signal is ignored, as in the background of a shell, because it may arrive before the
  // program starts. The program itself has the default action.
  const auto before = ::signal(SIGINT, SIG_IGN);
  Process hash({STFS_INFO_BINARY, "hash", path});

  hash.signal(SIGINT);

  EXPECT_EQ(hash.wait().status, 130);
  ::signal(SIGINT, before);
}

// diff

class InfoDiff : public Values {
 protected:
  static constexpr const char* kDiffHeading = "change\tname\ta\tb\tfirst_byte\tlargest\tat\n";
};

TEST_F(InfoDiff, EqualTensorsAreExit0AndSilent) {
  const Outcome same = info({"diff", test_data("sharded"), test_data("single/dtypes.safetensors")});
  const Outcome itself = info({"diff", test_data("sharded"), test_data("sharded")});

  for (const Outcome& result : {same, itself}) {
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(result.err, "");
  }
}

TEST_F(InfoDiff, NamesEachDifferenceAndIsExit1) {
  const std::string a = write("a", {{"same", "U8", {2}, "xy"},
                                    {"gone", "U8", {1}, "y"},
                                    {"dtype", "U8", {2}, "xy"},
                                    {"shape", "U8", {2, 1}, "xy"},
                                    {"bytes", "U8", {4}, "wxyz"}});
  const std::string b = write("b", {{"bytes", "U8", {4}, "wxyZ"},
                                    {"shape", "U8", {1, 2}, "xy"},
                                    {"dtype", "I8", {2}, "xy"},
                                    {"new", "U8", {1}, "x"},
                                    {"same", "U8", {2}, "xy"}});

  const Outcome result = info({"diff", a, b});
  const Outcome as_json = info({"diff", "--json", a, b});

  EXPECT_EQ(result.status, 1);
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.out, std::string(kDiffHeading) +
                            "bytes\tbytes\t-\t-\t3\t-\t-\ndtype\tdtype\tU8\tI8\t-\t-\t-\n"
                            "removed\tgone\t-\t-\t-\t-\t-\nadded\tnew\t-\t-\t-\t-\t-\n"
                            "shape\tshape\t[2,1]\t[1,2]\t-\t-\t-\n");
  EXPECT_EQ(as_json.status, 1);
  EXPECT_EQ(json::parse(as_json.out),
            json::parse(R"([{"change":"bytes","name":"bytes","first_difference":3},
                            {"change":"dtype","name":"dtype","a":"U8","b":"I8"},
                            {"change":"removed","name":"gone"},
                            {"change":"added","name":"new"},
                            {"change":"shape","name":"shape","a":[2,1],"b":[1,2]}])"));
}

// "model.one" and "model.two" have the same bytes, so their order decides which new name belongs to
// which. "other" has the bytes of "model.b" in another shape.
TEST_F(InfoDiff, ReportsEqualBytesUnderOtherNameAsRenamed) {
  const std::string a = write("a", {{"model.a", "U8", {2}, "aa"},
                                    {"model.b", "U8", {2}, "bb"},
                                    {"model.one", "U8", {2}, "11"},
                                    {"model.two", "U8", {2}, "11"},
                                    {"both", "U8", {1}, "x"},
                                    {"empty", "U8", {0}, ""}});
  const std::string b = write("b", {{"a", "U8", {2}, "aa"},
                                    {"b", "U8", {2}, "bB"},
                                    {"one", "U8", {2}, "11"},
                                    {"two", "U8", {2}, "11"},
                                    {"other", "U8", {2, 1}, "bb"},
                                    {"both", "U8", {1}, "x"}});
  const Outcome result = info({"diff", "--no-header", a, b});
  const json rows = json::parse(info({"diff", "--json", a, b}).out);
  const std::string edits = dir_ / "names";
  write_file(edits, "rename s/^model\\.//\n");

  EXPECT_EQ(result.status, 1);
  const std::vector<std::string> lines = lines_of(result.out);
  EXPECT_EQ(std::ranges::count_if(
                lines, [](const std::string& line) { return line.starts_with("renamed\t"); }),
            3)
      << result.out;
  EXPECT_EQ(std::ranges::count(lines, "renamed\tmodel.a\tmodel.a\ta\t-\t-\t-"), 1) << result.out;
  EXPECT_EQ(std::ranges::count(lines, "renamed\tmodel.two\tmodel.two\ttwo\t-\t-\t-"), 1);
  EXPECT_EQ(
      std::ranges::count_if(
          rows,
          [](const json& row) {
            return row == json{{"change", "renamed"}, {"name", "model.one"}, {"new_name", "one"}};
          }),
      1);
  // With the names of one side edited, only real differences remain.
  EXPECT_EQ(info({"diff", "--no-header", "--old-edit", edits, a, b}).out,
            "bytes\tb\t-\t-\t1\t-\t-\nremoved\tempty\t-\t-\t-\t-\t-\n"
            "added\tother\t-\t-\t-\t-\t-\n");
  // The same bytes in the same file need not be read.
  EXPECT_EQ(lines_of(info({"diff", "--no-header", "--old-edit", edits, a, a}).out).size(), 4U);
}

TEST_F(InfoDiff, SortsLargestDifferenceFirst) {
  const auto floats = [](std::vector<float> values) {
    std::string bytes(values.size() * sizeof(float), '\0');
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::string a = write("a", {{"far", "F32", {2}, floats({1, 1})},
                                    {"nan", "F32", {2}, floats({1, 1})},
                                    {"near", "F32", {2}, floats({100, 1})},
                                    {"gone", "F32", {1}, floats({7})}});
  const std::string b = write("b", {{"far", "F32", {2}, floats({1, 3})},
                                    {"nan", "F32", {2}, floats({nan, 1})},
                                    {"near", "F32", {2}, floats({103, 1})}});
  const auto names = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"diff", "--json", "--values", a, b});
    std::string out;
    for (const json& row : json::parse(info(options).out)) {
      out += row["name"].get<std::string>() + " ";
    }
    return out;
  };
  EXPECT_EQ(names({"--sort", "distance"}), "nan far near gone ");
  EXPECT_EQ(names({"--sort", "largest"}), "nan near far gone ");
  EXPECT_EQ(names({"--sort", "equal", "--top", "1"}), "far ");
  EXPECT_EQ(names({"--sort", "name"}), "far gone nan near ");
  // A NaN on one side does not give the distance 0.
  const std::string text = info({"diff", "--values", a, b}).out;
  EXPECT_NE(text.find("\nbytes\tnan\t-\t-\t2\tinf\t[0]\t-\t0.5\t1\n"), std::string::npos) << text;
  EXPECT_TRUE(
      text.starts_with("change\tname\ta\tb\tfirst_byte\tlargest\tat\tdistance\tequal\tunlike\n"))
      << text;
  expect_one_line(info({"diff", "--sort", "largest", a, b}), 2, "--sort=largest: needs --values");
}

TEST_F(InfoDiff, FindsDifferenceInLastByteOfLargeTensor) {
  Tensor w = random_tensor("w", "U8", {3'000'001});
  const std::string a = write("a", {w});
  w.bytes.back() = static_cast<char>(w.bytes.back() ^ 1);
  const std::string b = write("b", {w});

  const Outcome result = info({"diff", a, b});

  EXPECT_EQ(result.status, 1);
  EXPECT_EQ(result.out, std::string(kDiffHeading) + "bytes\tw\t-\t-\t3000000\t-\t-\n");
}

TEST_F(InfoDiff, EmptyTensorsAndCheckpointsAreExit0) {
  const std::string a = write("a", {random_tensor("e", "U8", {0})});
  const std::string b = write("b", {random_tensor("e", "U8", {0})});
  const std::string none = write("none", {});

  EXPECT_EQ(info({"diff", a, b}).status, 0);
  EXPECT_EQ(info({"diff", none, none}).status, 0);
  EXPECT_EQ(info({"diff", "--no-header", a, none}).out, "removed\te\t-\t-\t-\t-\t-\n");
}

TEST_F(InfoDiff, UnreadableSourceIsExit3AndNot1) {
  expect_one_line(info({"diff", test_data("sharded"), dir_ / "nothing"}), 3);
  expect_one_line(info({"diff", test_data("sharded")}), 2);
}

// extract

class InfoExtract : public Values {};

TEST_F(InfoExtract, WritesTensorsThatMatch) {
  const std::string out = dir_ / "out.safetensors";

  const Outcome result =
      info({"extract", test_data("sharded"), "float32*", "bfloat16_35", "-o", out});

  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(info({"check", out}).status, 0);
  const auto all = entries_of(test_data("single/dtypes.safetensors"));
  const auto found = entries_of(out);
  EXPECT_EQ(found.size(), 4U);
  for (const auto& [name, entry] : found) {
    EXPECT_TRUE(name == "bfloat16_35" || name.starts_with("float32")) << name;
    EXPECT_EQ(entry.bytes(), all.at(name).bytes()) << name;
    EXPECT_EQ(entry.shape, all.at(name).shape);
  }
  EXPECT_EQ(names_in(dir_.path()), std::vector<std::string>{"out.safetensors"})
      << "a temporary file remains";
}

TEST_F(InfoExtract, OutputForAllTensorsEqualsMergedFile) {
  if (const std::string why = mount_unavailable(); !why.empty()) GTEST_SKIP() << why;
  const Mounted mount({test_data("sharded")});
  const std::string out = dir_ / "out.safetensors";

  const Outcome result = info({"extract", test_data("sharded"), "*", "--output", out});

  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_TRUE(read_file(out) == read_file(mount / ".stfs/merged.safetensors"));
  EXPECT_EQ(info({"diff", test_data("sharded"), out}).status, 0);
}

TEST_F(InfoExtract, AppliesUmaskToFile) {
  const std::string out = dir_ / "out.safetensors";

  sh(R"(umask 027; "$1" extract "$2" '*' -o "$3")", {STFS_INFO_BINARY, test_data("sharded"), out});

  struct stat64 status = {};
  ASSERT_EQ(::stat64(out.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0640U);
}

TEST_F(InfoExtract, ReplacesFileOnlyWithForceAndOnSuccess) {
  const std::string out = dir_ / "out.safetensors";
  write_file(out, "before");

  expect_one_line(info({"extract", test_data("sharded"), "nothing*", "-o", out}), 2);
  EXPECT_EQ(read_file(out), "before");
  expect_one_line(info({"extract", test_data("sharded"), "*", "-o", out}), 2,
                  "already exists: --force replaces it");
  EXPECT_EQ(read_file(out), "before");
  EXPECT_EQ(info({"extract", "--force", test_data("sharded"), "*", "-o", out}).status, 0);

  EXPECT_EQ(entries_of(out).size(), 36U);
  EXPECT_EQ(names_in(dir_.path()), std::vector<std::string>{"out.safetensors"});
}

// The file itself, links to it, the files that a mount shows, and every file that is read beside
// it.
TEST_F(InfoExtract, NeverReplacesItsSource) {
  if (const std::string why = mount_unavailable(); !why.empty()) GTEST_SKIP() << why;
  const std::string file =
      write("m", {random_tensor("a", "U8", {5}), random_tensor("b", "U8", {5})});
  const std::string model = dir_ / "model";
  std::filesystem::copy(test_data("sharded"), model, std::filesystem::copy_options::recursive);
  std::filesystem::create_symlink("m.safetensors", dir_ / "link");
  std::filesystem::create_hard_link(file, dir_ / "hard");
  std::filesystem::create_symlink(".", dir_ / "here");
  const std::string index = model + "/model.safetensors.index.json";
  const Mounted mount({file});
  const Mounted sharded({model});
  std::vector<std::vector<std::string>> all;
  const std::vector<std::string> names{file, dir_ / "link", dir_ / "hard",
                                       dir_ / "here/m.safetensors"};
  std::vector<std::string> sources{mount.path(), mount / "a", mount / ".stfs/tree",
                                   mount / ".stfs/merged.safetensors"};
  sources.insert(sources.end(), names.begin(), names.end());
  for (const std::string& source : sources) {
    for (const std::string& out : names) all.push_back({source, out});
  }
  const Mounted indexed({index});
  const std::vector<std::string> whole{model,
                                       index,
                                       sharded.path(),
                                       sharded / ".stfs/merged.safetensors",
                                       indexed / ".stfs/merged.safetensors",
                                       sharded / ".stfs/subset/*.safetensors"};
  for (const std::string& source : whole) {
    for (const auto& entry : std::filesystem::directory_iterator(model)) {
      const bool is_of_mount = source.find(".stfs") != std::string::npos;
      const bool is_read = entry.path() == index && !is_of_mount;
      if (is_read || entry.path().extension() == ".safetensors") {
        all.push_back({source, entry.path()});
      }
    }
  }
  EXPECT_GT(all.size(), 30U);
  for (const auto& words : all) {
    const std::string before = read_file(words[1]);
    for (const char* const force : {"--allow-missing", "--force"}) {
      expect_one_line(info({"extract", force, words[0], "*", "-o", words[1]}), 2,
                      words[1] + ": a file of the source: choose another name");
    }
    EXPECT_EQ(read_file(words[1]), before) << words[0] << " " << words[1];
  }
  EXPECT_TRUE(std::filesystem::is_symlink(dir_ / "link"));
  for (const char* const verb : {"cat", "extract"}) {
    const Outcome result =
        sh(R"("$1" "$2" "$3" b $4 >>"$3")",
           {STFS_INFO_BINARY, verb, file, verb == std::string("cat") ? "" : "-o-"});
    expect_one_line(result, 2, "standard output: a file of the source: choose another name");
  }
}

// overlayfs shows the files of its layers with its own device number.
TEST_F(InfoExtract, NeverReplacesItsSourceThroughOverlay) {
  if (::geteuid() != 0) GTEST_SKIP() << "an overlay needs root";
  for (const char* const layer : {"lower", "upper", "work", "both"}) {
    std::filesystem::create_directory(dir_ / layer);
  }
  write("lower/below", {random_tensor("a", "U8", {5})});
  write("upper/above", {random_tensor("a", "U8", {5})});
  write("other", {random_tensor("a", "U8", {5})});

  const Outcome result = run({"unshare", "-m", "bash", "-c", R"(
    cd "$2"; mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work none both || exit 77
    for names in {lower,both}/below:{lower,both}/below {upper,both}/above:{upper,both}/above; do
      echo "${names#*:} $("$1" extract --force "${names%:*}.safetensors" '*' -o "${names#*:}.safetensors" 2>&1) $?"
    done
    cmp lower/below.safetensors both/below.safetensors
    "$1" extract --force lower/below.safetensors '*' -o both/other.safetensors; echo "other $?")",
                              "bash", STFS_INFO_BINARY, dir_.path()});

  if (result.status == 77 || result.err.starts_with("unshare:")) GTEST_SKIP() << result.err;
  std::string expected;
  for (const char* const name : {"below", "above"}) {
    const char* const layer = name == std::string("below") ? "lower" : "upper";
    for (int i = 0; i < 2; ++i) {
      for (const char* const where : {layer, "both"}) {
        const std::string output = std::string(where) + "/" + name;
        expected += output + " stfs-info: " + output +
                    ".safetensors: a file of the source: choose another name 2\n";
      }
    }
  }
  EXPECT_EQ(result.out, expected + "other 0\n") << result.err;
}

// The shell opens the source for writing, so the output of the verb would overwrite it.
TEST(InfoOutput, NoVerbPrintsIntoItsSource) {
  const TempDir dir;
  const std::string file = dir / "m.safetensors";
  write_safetensors(file, {random_tensor("a", "U8", {5})});
  write_safetensors(dir / "z.safetensors", {random_tensor("a", "U8", {5})});
  std::filesystem::create_directory(dir / "other");
  write_safetensors(dir / "other/m.safetensors", {random_tensor("a", "U8", {5})});
  const std::string model = dir / "model";
  std::filesystem::copy(test_data("sharded"), model, std::filesystem::copy_options::recursive);
  write_file(model + "/config.json", "{}");
  std::vector<std::pair<std::string, std::string>> all;  // a verb with its operands, an output
  const std::string other = dir / "other/m.safetensors";
  for (const char* const verb : {"info", "list", "show", "check", "hash", "stats"}) {
    const std::string operand = verb == std::string("show") ? " *" : "";
    all.emplace_back(std::string(verb) + " " + file + operand, file);
    for (const auto& entry : std::filesystem::directory_iterator(model)) {
      const std::string name = entry.path();
      const bool is_source = name.ends_with(".safetensors") || name.ends_with(".index.json");
      if (is_source) all.emplace_back(std::string(verb) + " " + model + operand, name);
    }
  }
  all.emplace_back("diff " + other + " " + file, file);
  all.emplace_back("diff " + file + " " + other, file);
  all.emplace_back("check " + other + " " + file, file);
  all.emplace_back("check " + other + " " + dir.path().string(), file);
  for (const auto& entry : std::filesystem::directory_iterator(model)) {
    const std::string name = entry.path();
    if (!name.ends_with(".safetensors")) continue;
    all.emplace_back("check " + other + " " + model + "/model.safetensors.index.json", name);
  }
  const std::string page = " -o " + (dir / "page.html").string();
  std::filesystem::copy(model, dir / "next", std::filesystem::copy_options::recursive);
  all.emplace_back("report " + file + page, file);
  all.emplace_back("report " + model + page, model + "/config.json");
  all.emplace_back("report " + model + " " + (dir / "next").string() + page,
                   model + "/config.json");
  for (const auto& [words, output] : all) {
    const std::string before = read_file(output);
    const Outcome result = sh(R"(set -f; "$1" $2 1<>"$3")", {STFS_INFO_BINARY, words, output});
    expect_one_line(result, 2, "standard output: a file of the source: choose another name");
    EXPECT_EQ(read_file(output), before) << words << " " << output;
  }
  EXPECT_EQ(sh(R"("$1" list "$2" >"$3" && grep -q a "$3")",
               {STFS_INFO_BINARY, file, dir / "m.safetensors.txt"})
                .status,
            0);
  EXPECT_EQ(sh(R"(cd "$2" && "$1" check . >report && grep -q ok report)", {STFS_INFO_BINARY, model})
                .status,
            0)
      << "another file in the directory is not a source";
}

TEST_F(InfoExtract, WritesToPipeAndDeviceInPlace) {
  const std::string file = write("m", {random_tensor("w", "U8", {5})});
  ASSERT_EQ(info({"extract", file, "*", "-o", dir_ / "out"}).status, 0);
  ASSERT_EQ(::mkfifo((dir_ / "pipe").c_str(), 0600), 0);

  const Outcome result =
      sh(R"(cmp "$1/out" "$1/pipe" & "$2" extract "$1/m.safetensors" '*' -o "$1/pipe" && wait $!)",
         {dir_.path(), STFS_INFO_BINARY});

  EXPECT_EQ(result.status, 0) << result.out << result.err;
  EXPECT_TRUE(std::filesystem::is_fifo(dir_ / "pipe"));
  EXPECT_EQ(info({"extract", file, "*", "-o", "/dev/null"}).status, 0);
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST_F(InfoExtract, LeavesNoFileOnFullDisk) {
  if (::geteuid() != 0) GTEST_SKIP() << "a small file system needs root";
  const std::string file = write("m", {random_tensor("w", "U8", {4'000'000})});

  const Outcome result = run({"unshare", "-m", "bash", "-c", R"(
    mkdir -p "$3"; mount -t tmpfs -o size=1m none "$3" || exit 77
    "$1" extract "$2" '*' -o "$3/out.safetensors"; echo "status $?"; ls -A "$3"; umount "$3")",
                              "bash", STFS_INFO_BINARY, file, dir_ / "full"});

  if (result.status == 77 || result.err.starts_with("unshare:")) GTEST_SKIP() << result.err;
  EXPECT_EQ(result.out, "status 3\n") << result.err;
}

TEST_F(InfoExtract, DashWritesToStandardOutput) {
  const std::string file =
      write("m", {random_tensor("a", "U8", {5}), random_tensor("b", "F32", {5})});
  ASSERT_EQ(info({"extract", file, "*", "-o", dir_ / "out"}).status, 0);

  for (const char* name : {"-", "/dev/stdout"}) {
    const Outcome result = sh(R"(cd "$1"; "$2" extract m.safetensors '*' -o "$3" | cmp - out)",
                              {dir_.path(), STFS_INFO_BINARY, name});

    EXPECT_EQ(result.status, 0) << result.out << result.err;
  }
  EXPECT_TRUE(std::filesystem::is_symlink("/dev/stdout"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "-"));

  sh(R"(cd "$1"; "$2" extract m.safetensors '*' -o ./-)", {dir_.path(), STFS_INFO_BINARY});
  EXPECT_TRUE(std::filesystem::exists(dir_ / "-"));
}

TEST_F(InfoExtract, WrongUsageIsExit2AndUnwritablePathIsExit3) {
  expect_one_line(info({"extract", test_data("sharded"), "*"}), 2);
  expect_one_line(info({"extract", test_data("sharded"), "-o", dir_ / "x"}), 2);
  expect_one_line(info({"extract", test_data("sharded"), "*", "-o", dir_ / "no/such/directory/x"}),
                  3);
}

}  // namespace
}  // namespace stfs::test
