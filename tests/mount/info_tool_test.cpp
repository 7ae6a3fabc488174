// stfs-info reads a checkpoint without a mount. Only `where` needs a mount.
#include "tests/mount/info_tool.h"

#include "tests/support/checkpoint_reader.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/mounted.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

using nlohmann::json;

std::vector<std::string> names_of(const json& tensors) {
  std::vector<std::string> names;
  for (const json& tensor : tensors) names.push_back(tensor.at("name"));
  return names;
}

TEST(InfoList, HasNoColoursAndNoShortenedNamesInPipe) {
  const TempDir dir;
  const std::string name(3000, 'n');
  write_safetensors(dir / "m.safetensors", {random_tensor(name, "U8", {1})});

  const Outcome result = run({STFS_INFO_BINARY, "list", dir / "m.safetensors"},
                             {.environment = {"COLUMNS=40", "TERM=xterm-256color"}});

  EXPECT_NE(result.out.find(name), std::string::npos);
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos);
}

// In a pipe, like `stats` and `diff`: fields separated by tabs, and one line of headings, which
// --no-header omits.
TEST(InfoList, PrintsHeadingsAndTabsInPipe) {
  const TempDir dir;
  const std::string file = dir / "m.safetensors";
  write_safetensors(file, {random_tensor("a b", "U8", {2, 3}), random_tensor("c", "F32", {})});

  EXPECT_EQ(info({"list", file}).out,
            "name\tdtype\tshape\tbytes\na b\tU8\t[2,3]\t6\nc\tF32\t[]\t4\n");
  EXPECT_EQ(info({"list", "--no-header", "--sort=size", "--top=1", file}).out,
            "a b\tU8\t[2,3]\t6\n");
  EXPECT_TRUE(info({"check", file}).out.ends_with(file + "\tok\t2 tensors\n"));
  EXPECT_EQ(info({file}).out, info({"info", file}).out) << "a path in place of a verb";
  EXPECT_EQ(info({file, "--json"}).out, info({"info", "--json", file}).out);
  expect_one_line(info({dir / "absent.safetensors"}), 3, "No such file");
}

TEST(InfoList, EscapesControlCharactersInNames) {
  const TempDir dir;
  write_safetensors(dir / "m.safetensors", {random_tensor("esc\x1b[31m", "U8", {1}),
                                            random_tensor("line\nend", "U8", {1})});

  const Outcome result = info({"list", dir / "m.safetensors"});
  const Outcome as_json = info({"list", "--json", dir / "m.safetensors"});

  EXPECT_EQ(result.out.find('\x1b'), std::string::npos);
  EXPECT_LE(lines_of(result.out).size(), 3u) << result.out;
  EXPECT_EQ(as_json.out.find('\x1b'), std::string::npos);
  EXPECT_EQ(names_of(json::parse(as_json.out)).size(), 2u);
}

TEST(InfoList, JsonHasObjectsOfTensorsJson) {
  const json tensors = json::parse(info({"list", "--json", test_data("sharded")}).out);

  ASSERT_EQ(tensors.size(), 36u);
  const auto entries = entries_of(test_data("sharded/model-00002-of-00006.safetensors"));
  for (const json& tensor : tensors) {
    if (tensor.at("name") != "float32_357") continue;
    EXPECT_EQ(tensor.at("path"), "float32_357");
    EXPECT_EQ(tensor.at("dtype"), "F32");
    EXPECT_EQ(tensor.at("shape"), (json{3, 5, 7}));
    EXPECT_EQ(tensor.at("bytes"), 420);
    EXPECT_EQ(tensor.at("offset"), entries.at("float32_357").offset);
    EXPECT_TRUE(std::filesystem::equivalent(tensor.at("source").get<std::string>(),
                                            test_data("sharded/model-00002-of-00006.safetensors")));
  }
}

TEST(InfoList, SortsByNameSizeOrOffset) {
  const std::string source = test_data("single/dtypes.safetensors");
  const auto sorted_by = [&](const char* key) {
    return json::parse(info({"list", "--json", "--sort", key, source}).out);
  };

  const std::vector<std::string> by_name = names_of(sorted_by("name"));
  const json by_size = sorted_by("size");
  const json by_offset = sorted_by("offset");

  EXPECT_EQ(by_name.size(), 36u);
  EXPECT_LT(std::ranges::find(by_name, "int8_357"), std::ranges::find(by_name, "int16_3"));
  EXPECT_TRUE(std::ranges::is_sorted(
      by_size, [](const json& a, const json& b) { return a.at("bytes") > b.at("bytes"); }));
  EXPECT_TRUE(std::ranges::is_sorted(
      by_offset, [](const json& a, const json& b) { return a.at("offset") < b.at("offset"); }));
}

TEST(InfoList, MissingShardIsExit3UnlessAllowed) {
  const TempDir dir;
  write_safetensors(dir / "one.safetensors", {random_tensor("a", "U8", {10})});
  write_index(dir / "model.safetensors.index.json",
              {{"a", "one.safetensors"}, {"b", "two.safetensors"}});

  const Outcome refused = info({"list", dir.path()});
  const Outcome allowed = info({"list", "--json", "--allow-missing", dir.path()});

  expect_one_line(refused, 3);
  EXPECT_EQ(allowed.status, 0) << allowed.err;
  EXPECT_EQ(names_of(json::parse(allowed.out)), std::vector<std::string>{"a"});
}

TEST(InfoShow, ShowsFieldsOfTensor) {
  const Outcome result = info({"show", test_data("sharded"), "bfloat16_35"});
  const json as_json =
      json::parse(info({"show", "--json", test_data("sharded"), "bfloat16_35"}).out);

  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* word :
       {"bfloat16_35", "BF16", "[3,5]", "30", "model-00005-of-00006.safetensors"})
    EXPECT_NE(result.out.find(word), std::string::npos) << word << " in " << result.out;
  EXPECT_EQ(as_json.at("name"), "bfloat16_35");
  EXPECT_EQ(as_json.at("dtype"), "BF16");
  EXPECT_EQ(as_json.at("bytes"), 30);
}

TEST(InfoCat, ConvertsSliceThatBeginsInsideByte) {
  TempDir dir;
  write_safetensors(dir / "m.safetensors", {{"w", "F4", {4}, "\x21\x43"}});

  const Outcome cat = info({"cat", dir / "m.safetensors", "w", "--slice", "1:3", "--as", "f32"});
  const Outcome raw = info({"cat", dir / "m.safetensors", "w", "--slice", "1:3"});

  EXPECT_EQ(cat.out, std::string("\0\0\x80\x3f\0\0\xc0\x3f", 8)) << cat.err;
  EXPECT_EQ(raw.status, 2) << raw.err;
}

TEST(InfoCat, ConvertsTensorOf65Dimensions) {
  TempDir dir;
  write_safetensors(dir / "m.safetensors", {{"w", "BF16", Shape(65, 1), "\x80\x3f"}});

  const Outcome cat = info({"cat", dir / "m.safetensors", "w", "--as", "f32"});

  EXPECT_EQ(cat.out, std::string("\0\0\x80\x3f", 4)) << cat.err;
}

TEST(InfoCat, WritesBytesOfTensor) {
  for (const auto& [name, entry] : entries_of(test_data("single/dtypes.safetensors"))) {
    const Outcome sharded = info({"cat", test_data("sharded"), name});
    ASSERT_EQ(sharded.status, 0) << sharded.err;
    EXPECT_EQ(sharded.out, entry.bytes()) << name;
  }
}

TEST(InfoCat, WritesLargeTensorToFileAndPipe) {
  const TempDir dir;
  const Tensor tensor = random_tensor("w", "U8", {9'000'001});
  write_safetensors(dir / "m.safetensors", {random_tensor("before", "U8", {3}), tensor});

  const Outcome pipe = sh(R"("$1" cat "$2" w | cat > "$3"; "$1" cat "$2" w > "$4")",
                          {STFS_INFO_BINARY, dir / "m.safetensors", dir / "piped", dir / "direct"});
  const Outcome closed =
      sh(R"("$1" cat "$2" w | head -c 10 | wc -c)", {STFS_INFO_BINARY, dir / "m.safetensors"});

  EXPECT_EQ(pipe.status, 0) << pipe.err;
  EXPECT_TRUE(read_file(dir / "piped") == tensor.bytes);
  EXPECT_TRUE(read_file(dir / "direct") == tensor.bytes);
  EXPECT_EQ(closed.out, "10\n");
}

TEST(InfoOutput, FullDeviceIsErrorOfListAndCat) {
  for (const char* words :
       {R"("$1" cat "$2" tokens > /dev/full)", R"("$1" list "$2" > /dev/full)"}) {
    const Outcome result = sh(words, {STFS_INFO_BINARY, test_data("single/voices.safetensors")});

    EXPECT_NE(result.status, 0) << words;
    EXPECT_NE(result.err, "") << words;
  }
}

TEST(InfoCheck, ReturnsExit0IfAllAreGoodAnd3IfOneIsUnreadable) {
  const TempDir dir;
  write_file(dir / "bad.safetensors", "x");
  const std::string good = test_data("single/dtypes.safetensors");

  EXPECT_EQ(info({"check", good}).status, 0);
  EXPECT_EQ(info({"check", dir / "absent", good}).status, 3);
  const Outcome absent = info({"check", dir / "absent", good});
  const std::vector<std::string> lines = lines_of(absent.out);
  ASSERT_EQ(lines.size(), 2u) << absent.out << absent.err;
  EXPECT_TRUE(lines[0].starts_with((dir / "absent").string() + "\terror\t")) << lines[0];
  EXPECT_EQ(lines[1], good + "\tok\t36 tensors");
}

TEST(InfoCheck, RejectsFifoWithoutHanging) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0644), 0);

  const Outcome result = run({STFS_INFO_BINARY, "check", dir / "fifo"});

  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.status, 3);
}

TEST(InfoCheck, EscapesNamesToKeepOneLine) {
  const TempDir dir;
  const std::string evil = dir / "a\tb\n\x1b[2J.safetensors";
  write_file(
      evil,
      safetensors_bytes(
          "{\"w\\u001b\\n\\t\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[1,5]}}", "abcde"));

  const Outcome result = info({"check", evil});

  EXPECT_EQ(result.status, 1);
  EXPECT_EQ(lines_of(result.out).size(), 1u) << result.out;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\t'), 3) << result.out;
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos);
}

TEST(InfoUsage, ReturnsDocumentedExitStatuses) {
  const TempDir dir;
  write_file(dir / "bad.safetensors", "x");

  expect_one_line(info({}), 2);
  expect_one_line(info({"frobnicate"}), 2);
  expect_one_line(info({"list"}), 2);
  expect_one_line(info({"list", "--sort", "colour", test_data("sharded")}), 2);
  expect_one_line(info({"show", test_data("sharded")}), 2);
  expect_one_line(info({"list", dir / "absent"}), 3);
  expect_one_line(info({"list", dir / "bad.safetensors"}), 1);
  EXPECT_EQ(info({"--help"}).status, 0);
  EXPECT_TRUE(info({"--version"}).out.starts_with("stfs-info " STFS_VERSION "\nbuilt with "));
  EXPECT_EQ(info({"list", "--help"}).status, 0);
}

// The network needs about thirty libraries, and loading them takes longer than the command.
TEST(InfoUsage, LocalSourceLoadsNoNetworkLibrary) {
  const Outcome loaded =
      run({"env", "LD_DEBUG=files", STFS_INFO_BINARY, "list", "tests/data/sharded"},
          {.directory = STFS_SOURCE_DIR});
  ASSERT_EQ(loaded.status, 0) << loaded.err;
  ASSERT_NE(loaded.err.find("libcrypto"), std::string::npos) << "the loader reports no library";
  for (const char* const library : {"libcurl", "libssl", "libhwy"}) {
    EXPECT_EQ(loaded.err.find(library), std::string::npos) << library;
  }
}

class InfoWhere : public MountTest {};

TEST_F(InfoWhere, JsonEqualsAttributes) {
  const TempDir dir;
  write_safetensors(dir / "m.safetensors", {random_tensor("layer/w 1", "BF16", {2, 3}),
                                            random_tensor("scalar", "F64", {})});
  const Mounted mount({dir / "m.safetensors"});

  for (const char* path : {"layer/w 1", "scalar"}) {
    const Outcome result = info({"where", "--json", mount / path});
    ASSERT_EQ(result.status, 0) << result.err;
    json where = json::parse(result.out);
    if (where.is_array()) where = where.at(0);
    EXPECT_EQ(where.at("source"), *xattr(mount / path, "user.stfs.source"));
    EXPECT_EQ(where.at("offset").dump(), *xattr(mount / path, "user.stfs.offset"));
    EXPECT_EQ(where.at("length").dump(), *xattr(mount / path, "user.stfs.length"));
    EXPECT_EQ(where.at("dtype"), *xattr(mount / path, "user.stfs.dtype"));
    EXPECT_EQ(where.at("shape").dump(), *xattr(mount / path, "user.stfs.shape"));
  }
}

// Any user may set attributes with these names on their own files.
TEST(InfoWhereForeignFile, AttributesThatAreNotNumbersKeepJsonValid) {
  const TempDir dir;
  const std::string file = dir / "file";
  write_file(file, "1234");
  for (const std::string& shape :
       {std::string("x"), std::string(1000, '['), std::string("[1,[2]]")}) {
    for (const auto& [name, value] : {std::pair{"source", file},
                                      {"offset", std::string("a")},
                                      {"length", std::string("4")},
                                      {"dtype", std::string("U8")},
                                      {"shape", shape}}) {
      const std::string attribute = std::string("user.stfs.") + name;
      if (::setxattr(file.c_str(), attribute.c_str(), value.data(), value.size(), 0) != 0) {
        GTEST_SKIP() << "no extended attributes in " << dir.path();
      }
    }
    const Outcome where = info({"where", "--json", file});
    ASSERT_EQ(where.status, 0) << where.err;
    EXPECT_EQ(json::parse(where.out).at("shape"), json(shape)) << where.out;
  }
}

TEST_F(InfoWhere, TextNamesSourceOffsetLengthDtypeAndShape) {
  const Mounted mount({test_data("sharded")});

  const Outcome result = info({"where", mount / "bfloat16_35"});

  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* attribute : {"source", "offset", "length", "dtype", "shape"}) {
    const auto value =
        xattr(mount / "bfloat16_35", (std::string("user.stfs.") + attribute).c_str());
    ASSERT_TRUE(value);
    EXPECT_NE(result.out.find(*value), std::string::npos) << attribute << " in " << result.out;
  }
}

TEST_F(InfoWhere, RejectsPathThatIsNotATensor) {
  const Mounted mount({test_data("sharded")});

  for (const std::string& path :
       {mount.path().string(), (mount / "absent").string(), (mount / ".stfs/info.json").string(),
        std::string("/etc/passwd")}) {
    const Outcome result = info({"where", path});
    EXPECT_NE(result.status, 0) << path;
    expect_one_line(result, result.status);
  }
}

// The attributes of such a file name the tensor, but the tensor's bytes in the source differ from
// the file. In one case their number is equal by chance.
TEST_F(InfoWhere, RejectsFileWithTensorInAnotherForm) {
  const TempDir dir;
  write_safetensors(dir / "m.safetensors", {random_tensor("w", "BF16", {4, 2})});
  const Mounted mount({dir / "m.safetensors"});

  for (const char* path : {".stfs/f32/w", ".stfs/npy/w.npy", ".stfs/slice/w/1:3",
                           ".stfs/f32-slice/w/1:3", ".stfs/safetensors/w.safetensors"}) {
    const Outcome result = info({"where", mount / path});
    EXPECT_EQ(result.out, "") << path;
    EXPECT_NE(result.status, 0) << path;
    expect_one_line(result, result.status);
  }
  for (const char* path : {"w", ".stfs/tree/w"}) {
    EXPECT_EQ(info({"where", mount / path}).status, 0) << path;
  }
}

TEST(InfoList, LongNameDoesNotPadOthers) {
  const TempDir dir;
  write_safetensors(dir / "m.safetensors", {random_tensor(std::string(100'000, 'n'), "U8", {1}),
                                            random_tensor("short", "U8", {1})});

  const Outcome result = run({STFS_INFO_BINARY, "list", dir / "m.safetensors"});

  EXPECT_LT(result.out.size(), 110'000u);
}

TEST(InfoList, AcceptsGlobInBrackets) {
  const TempDir dir;
  write_safetensors(dir / "m.safetensors",
                    {random_tensor("a", "U8", {1}), random_tensor("z", "U8", {1})});

  const Outcome result = run({STFS_INFO_BINARY, "list", dir / "m.safetensors", "[abc]"});

  EXPECT_NE(result.out.find("\na\t"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("\nz\t"), std::string::npos) << result.out;
}

}  // namespace
}  // namespace stfs::test
