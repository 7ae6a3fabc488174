// The contents of the directory .stfs.
#include "tests/support/checkpoint_reader.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/mounted.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

using nlohmann::json;

const std::vector<std::string> kFields = {"path",  "name",   "dtype", "shape",
                                          "bytes", "source", "offset"};

class DotStfs : public MountTest {
 protected:
  // Reads every regular file below .stfs; compares its length with stat's size.
  static void expect_exact_sizes(const std::filesystem::path& root) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
      if (!entry.is_regular_file()) continue;
      const std::string path = entry.path().lexically_relative(root);
      if (path.starts_with("stats/") || path.starts_with("sha256/") || path.starts_with("hist/") ||
          path == "counters.json" || path == "report.html")
        continue;
      EXPECT_EQ(entry.file_size(), read_file(entry.path()).size()) << path;
    }
  }
};

TEST_F(DotStfs, IsReachableAndNotListed) {
  const Mounted mount({test_data("single/voices.safetensors")});

  EXPECT_EQ(names_in(mount.path()), (std::vector<std::string>{"mask", "tokens"}));
  EXPECT_TRUE(std::filesystem::is_directory(mount / ".stfs"));
  EXPECT_TRUE(std::filesystem::is_regular_file(mount / ".stfs/info.json"));
}

TEST_F(DotStfs, ViewsVisibleListsIt) {
  const Mounted mount({test_data("single/voices.safetensors")}, {"-o", "views=visible"});

  EXPECT_EQ(names_in(mount.path()), (std::vector<std::string>{".stfs", "mask", "tokens"}));
  EXPECT_TRUE(std::filesystem::is_regular_file(mount / ".stfs/info.json"));
}

TEST_F(DotStfs, ViewsVisibleListsItBesideDirectoriesAndInAnEmptyRoot) {
  const TempDir dir;
  write_safetensors(dir / "nested.safetensors",
                    {random_tensor("a/b", "U8", {1}), random_tensor("a/c", "U8", {1}),
                     random_tensor("d/e/f", "U8", {1})});
  write_safetensors(dir / "none.safetensors", {});

  const Mounted nested({dir / "nested.safetensors"}, {"-o", "views=visible"});
  const Mounted none({dir / "none.safetensors"}, {"-o", "views=visible"});

  EXPECT_EQ(names_in(nested.path()), (std::vector<std::string>{".stfs", "a", "d"}));
  EXPECT_EQ(names_in(nested / "a"), (std::vector<std::string>{"b", "c"}));
  EXPECT_EQ(names_in(none.path()), std::vector<std::string>{".stfs"});
}

TEST_F(DotStfs, ViewsHiddenIsTheDefault) {
  const Mounted mount({test_data("single/voices.safetensors")}, {"-o", "views=hidden"});

  EXPECT_EQ(names_in(mount.path()), (std::vector<std::string>{"mask", "tokens"}));
  EXPECT_TRUE(std::filesystem::is_regular_file(mount / ".stfs/info.json"));
}

TEST_F(DotStfs, ViewsOffRemovesIt) {
  const Mounted mount({test_data("single/voices.safetensors")}, {"-o", "views=off"});

  EXPECT_EQ(names_in(mount.path()), (std::vector<std::string>{"mask", "tokens"}));
  EXPECT_FALSE(std::filesystem::exists(mount / ".stfs"));
  EXPECT_FALSE(std::filesystem::exists(mount / ".stfs/info.json"));
}

TEST_F(DotStfs, ListsItsCatalogueAndDirectories) {
  const Mounted mount({test_data("single/voices.safetensors")});

  const std::vector<std::string> found = names_in(mount / ".stfs");

  for (const char* name :
       {"info.json", "tensors.json", "tensors.tsv", "header", "metadata", "json"})
    EXPECT_EQ(std::count(found.begin(), found.end(), name), 1) << name;
  EXPECT_EQ(std::set<std::string>(found.begin(), found.end()).size(), found.size());
}

TEST_F(DotStfs, FilesAreReadOnlyAndOfExactSize) {
  const Mounted mount({test_data("sharded")});

  expect_exact_sizes(mount / ".stfs");
  struct stat64 status = {};
  ASSERT_EQ(::stat64((mount / ".stfs/info.json").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode, S_IFREG | 0444u);
  ASSERT_EQ(::stat64((mount / ".stfs").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode, S_IFDIR | 0555u);
}

TEST_F(DotStfs, InfoJsonDescribesTheCheckpoint) {
  const Mounted mount({test_data("single/dtypes.safetensors")});

  const json info = json::parse(read_file(mount / ".stfs/info.json"));

  EXPECT_EQ(info.at("tensors"), 36);
  EXPECT_EQ(info.at("bytes"), 4305);
  EXPECT_EQ(info.at("parameters"), 12 * (3 + 15 + 105));
  EXPECT_EQ(info.at("bytes_per_dtype").at("I64"), 984);
  EXPECT_EQ(info.at("bytes_per_dtype").at("BF16"), 246);
  EXPECT_EQ(info.at("metadata"), (json{{"test", "metadata"}, {"version", "2.2"}}));
  EXPECT_EQ(info.at("missing"), json::array());
  ASSERT_EQ(info.at("sources").size(), 1u);
  const json& source = info.at("sources").at(0);
  EXPECT_EQ(source.at("path"),
            std::filesystem::canonical(test_data("single/dtypes.safetensors")).string());
  EXPECT_EQ(source.at("size"), 6889);
  EXPECT_TRUE(source.contains("mtime"));
}

TEST_F(DotStfs, InfoJsonListsEveryShardAsASource) {
  const Mounted mount({test_data("sharded")});

  const json info = json::parse(read_file(mount / ".stfs/info.json"));

  EXPECT_EQ(info.at("sources").size(), 6u);
  EXPECT_EQ(info.at("tensors"), 36);
}

TEST_F(DotStfs, TensorsJsonHasEveryTensorInTheOrderOfTheBytes) {
  const Mounted mount({test_data("sharded")});

  const json tensors = json::parse(read_file(mount / ".stfs/tensors.json"));

  ASSERT_EQ(tensors.size(), 36u);
  std::pair<std::string, std::uint64_t> previous;
  for (const json& tensor : tensors) {
    const std::string path = tensor.at("path");
    EXPECT_EQ(tensor.size(), kFields.size());
    for (const std::string& field : kFields) EXPECT_TRUE(tensor.contains(field)) << field;
    EXPECT_EQ(xattr(mount / path, "user.stfs.name"), tensor.at("name"));
    EXPECT_EQ(xattr(mount / path, "user.stfs.dtype"), tensor.at("dtype"));
    EXPECT_EQ(xattr(mount / path, "user.stfs.shape"), tensor.at("shape").dump());
    EXPECT_EQ(xattr(mount / path, "user.stfs.source"), tensor.at("source"));
    EXPECT_EQ(xattr(mount / path, "user.stfs.offset"), tensor.at("offset").dump());
    EXPECT_EQ(xattr(mount / path, "user.stfs.length"), tensor.at("bytes").dump());
    const std::pair<std::string, std::uint64_t> location = {tensor.at("source"),
                                                            tensor.at("offset")};
    EXPECT_LT(previous, location);
    previous = location;
  }
}

TEST_F(DotStfs, TensorsJsonKeepsTheFieldsInTheDocumentedOrder) {
  const Mounted mount({test_data("single/voices.safetensors")});

  const auto tensors = nlohmann::ordered_json::parse(read_file(mount / ".stfs/tensors.json"));

  std::vector<std::string> keys;
  for (const auto& [key, value] : tensors.at(0).items()) keys.push_back(key);
  EXPECT_EQ(keys, kFields);
  EXPECT_EQ(tensors.at(0).at("name"), "tokens");
  EXPECT_EQ(tensors.at(1).at("name"), "mask");
}

TEST_F(DotStfs, TensorsTsvHasAHeaderLineAndALineATensor) {
  const Mounted mount({test_data("single/voices.safetensors")});
  const std::string source = std::filesystem::canonical(test_data("single/voices.safetensors"));
  const auto entries = entries_of(source);

  const std::string table = read_file(mount / ".stfs/tensors.tsv");

  EXPECT_EQ(table,
            "path\tname\tdtype\tshape\tbytes\tsource\toffset\n"
            "tokens\ttokens\tI64\t[1,982,33]\t259248\t" +
                source + "\t" + std::to_string(entries.at("tokens").offset) +
                "\nmask\tmask\tU8\t[1,982,33]\t32406\t" + source + "\t" +
                std::to_string(entries.at("mask").offset) + "\n");
}

TEST_F(DotStfs, TensorsTsvStaysATableWhateverTheNamesHold) {
  const TempDir dir;
  write_safetensors(dir / "m.safetensors",
                    {random_tensor("tab\there", "U8", {1}), random_tensor("line\nend", "U8", {1}),
                     random_tensor("esc\x1b[31m", "U8", {1})});
  const Mounted mount({dir / "m.safetensors"});

  std::istringstream table(read_file(mount / ".stfs/tensors.tsv"));

  int lines = 0;
  for (std::string line; std::getline(table, line); ++lines) {
    EXPECT_EQ(std::count(line.begin(), line.end(), '\t'), 6) << line;
    EXPECT_EQ(line.find('\x1b'), std::string::npos);
  }
  EXPECT_EQ(lines, 4);
}

TEST_F(DotStfs, HeaderHoldsEachSourcesHeaderByteForByte) {
  const Mounted mount({test_data("sharded")});

  const std::vector<std::string> headers = names_in(mount / ".stfs/header");

  ASSERT_EQ(headers.size(), 6u);
  for (const std::string& name : headers) {
    ASSERT_TRUE(name.ends_with(".json")) << name;
    const std::string shard = name.substr(0, name.size() - 5);
    EXPECT_EQ(read_file(mount / (".stfs/header/" + name)),
              header_text(test_data("sharded/" + shard)));
  }
}

TEST_F(DotStfs, MetadataHasAFileForEachEntry) {
  const TempDir dir;
  write_safetensors(dir / "m.safetensors", {random_tensor("w", "U8", {1})},
                    Metadata{{"format", "pt"}, {"a/b", "sl\nash"}, {"empty", ""}, {"größe", "ü"}});
  const Mounted mount({dir / "m.safetensors"});

  EXPECT_EQ(read_file(mount / ".stfs/metadata/format"), "pt");
  EXPECT_EQ(read_file(mount / ".stfs/metadata/empty"), "");
  EXPECT_EQ(read_file(mount / ".stfs/metadata/größe"), "ü");
  EXPECT_EQ(names_in(mount / ".stfs/metadata").size(), 4u);
}

TEST_F(DotStfs, MetadataIsEmptyWithoutMetadata) {
  const Mounted mount({test_data("single/voices.safetensors")});

  EXPECT_TRUE(names_in(mount / ".stfs/metadata").empty());
}

TEST_F(DotStfs, JsonOfATensorIsItsObjectInTheCatalogue) {
  const TempDir dir;
  write_safetensors(dir / "m.safetensors",
                    {random_tensor("a/b", "BF16", {2, 3}), random_tensor("100%", "F32", {}),
                     random_tensor(std::string(500, 'x'), "U8", {1})});
  const Mounted mount({dir / "m.safetensors"});

  const json tensors = json::parse(read_file(mount / ".stfs/tensors.json"));

  ASSERT_EQ(tensors.size(), 3u);
  for (const json& tensor : tensors) {
    const std::string path = tensor.at("path");
    EXPECT_EQ(json::parse(read_file(mount / (".stfs/json/" + path + ".json"))), tensor);
  }
  EXPECT_EQ(names_in(mount / ".stfs/json/a"), std::vector<std::string>{"b.json"});
}

TEST_F(DotStfs, ATensorDirectoryThatEndsInJsonDoesNotHideATensor) {
  const TempDir dir;
  write_safetensors(dir / "m.safetensors",
                    {random_tensor("a", "U8", {1}), random_tensor("a.json/b", "U8", {1}),
                     random_tensor("c.json", "U8", {1})});
  const Mounted mount({dir / "m.safetensors"});

  EXPECT_EQ(json::parse(read_file(mount / ".stfs/json/a.json")).at("name"), "a");
  EXPECT_EQ(json::parse(read_file(mount / ".stfs/json/c.json.json")).at("name"), "c.json");
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(mount / ".stfs/json"))
    if (entry.is_regular_file()) names.insert(json::parse(read_file(entry.path())).at("name"));
  EXPECT_EQ(names, (std::set<std::string>{"a", "a.json/b", "c.json"}));
}

TEST_F(DotStfs, InfoJsonOfFilesWithDifferentMetadataIsValid) {
  const TempDir dir;
  write_safetensors(dir / "a.safetensors", {random_tensor("a", "U8", {1})},
                    Metadata{{"format", "pt"}, {"part", "1"}});
  write_safetensors(dir / "b.safetensors", {random_tensor("b", "U8", {1})},
                    Metadata{{"format", "pt"}, {"part", "2"}});
  const Mounted mount({dir / "a.safetensors", dir / "b.safetensors"});

  const json info = json::parse(read_file(mount / ".stfs/info.json"));

  EXPECT_EQ(info.at("metadata").at("format"), "pt");
  EXPECT_EQ(read_file(mount / ".stfs/metadata/format"), "pt");
}

TEST_F(DotStfs, NothingElseIsFoundInIt) {
  const Mounted mount({test_data("single/voices.safetensors")});

  for (const char* path : {"nothing", "json/tokens", "json/tokens.JSON", "json/nothing.json",
                           "header/nothing.json", "metadata/nothing", "tensors.json/x"})
    EXPECT_FALSE(std::filesystem::exists((mount / ".stfs") / path)) << path;
}

}  // namespace
}  // namespace stfs::test
