// Tests of FileSystem without a mount.
#include "fs/mount/filesystem.h"

#include "core/checkpoint/catalogue.h"
#include "tests/unit/allocated.h"
#include "tests/unit/served_checkpoint.h"

#include <nlohmann/json.hpp>

#include <cctype>
#include <cerrno>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Tests of attributes.

TEST(FileSystem, RootListsExactlyTensors) {
  const ServedCheckpoint mounted(many());

  EXPECT_EQ(mounted.names(""),
            (std::vector<std::string>{"%", "%09\u00e9", "%25", "a", "a.json", "empty", "layers",
                                      "layers%2F0", "layers%2F1", "w"}));
}

TEST(FileSystem, ServesBytesOfEachTensor) {
  const ServedCheckpoint mounted(many());

  for (const Tensor& tensor : many()) {
    const auto number = mounted.checkpoint().find(tensor.name);
    ASSERT_TRUE(number);
    EXPECT_EQ(mounted.text(std::string(mounted.checkpoint().tensor(*number).path)), tensor.bytes);
  }
}

TEST(FileSystem, TensorFilesHaveModeSizeTimeAndOwner) {
  const ServedCheckpoint mounted(
      {random_tensor("w", "U8", {1025}), random_tensor("x", "U8", {1024})}, {.uid = 12, .gid = 34});

  const auto file = mounted.at("w");

  ASSERT_TRUE(file);
  EXPECT_EQ(file->mode, static_cast<mode_t>(S_IFREG | 0444));
  EXPECT_EQ(file->size, 1025U);
  EXPECT_EQ(file->blocks, 3U);
  EXPECT_EQ(mounted.at("x")->blocks, 2U);
  EXPECT_EQ(file->links, 1U);
  EXPECT_EQ(file->uid, 12U);
  EXPECT_EQ(file->gid, 34U);
  EXPECT_EQ(file->mtime.tv_sec, 1'000'000'001);
  EXPECT_EQ(file->mtime.tv_nsec, 7);
}

TEST(FileSystem, AppliesUmaskToAllModes) {
  const ServedCheckpoint mounted(many(), {.umask = 0077});

  mounted.walk_all([](const std::string& path, const Attributes& attributes) {
    EXPECT_EQ(attributes.mode & 07777U, S_ISDIR(attributes.mode) ? 0500U : 0400U) << path;
  });
  EXPECT_EQ(mounted->attributes(kRoot)->mode & 07777U, 0500U);
}

TEST(FileSystem, DirectoriesHaveTimeOfNewestSource) {
  const ServedCheckpoint mounted({{{"a", "U8", {1}, "x"}}, {{"b", "U8", {1}, "x"}}}, {},
                                 std::nullopt);

  EXPECT_EQ(mounted->attributes(kRoot)->mtime.tv_sec, 1'000'000'002);
  EXPECT_EQ(mounted.at("a")->mtime.tv_sec, 1'000'000'001);
  EXPECT_EQ(mounted.at(".stfs/info.json")->mtime.tv_sec, 1'000'000'002);
  EXPECT_EQ(mounted.at(".stfs/header/s0.safetensors.json")->mtime.tv_sec, 1'000'000'001);
}

TEST(FileSystem, CountsBytesAndFiles) {
  const ServedCheckpoint mounted(many());

  EXPECT_EQ(mounted->statistics().files, 10U);
  EXPECT_EQ(mounted->statistics().bytes, 8U + 4 + 1 + 1 + 0 + 1 + 1 + 1 + 2 + 8);
}

// Tests of inode numbers.

TEST(Inode, RoundTripsThroughNode) {
  for (int view = 0; view < 256; ++view) {
    for (const bool is_directory : {false, true}) {
      for (const std::uint64_t number : {0ULL, 1ULL, 2ULL, 1ULL << 16, 0x7fffffffULL, 0x80000000ULL,
                                         0xffffffffULL, 1ULL << 32, (1ULL << 55) - 1}) {
        const Node node{static_cast<View>(view), is_directory, number};
        EXPECT_EQ(node_of(inode_of(node)), node);
      }
    }
  }
  EXPECT_EQ(inode_of(kRootNode), kRoot);
}

TEST(FileSystem, InodesAreUniqueAndStable) {
  const ServedCheckpoint mounted(many(), {}, Metadata{{"format", "pt"}});
  std::set<std::uint64_t> seen{kRoot};

  mounted.walk_all([&](const std::string& path, const Attributes& attributes) {
    EXPECT_TRUE(seen.insert(attributes.inode).second) << path;
    EXPECT_EQ(mounted.at(path)->inode, attributes.inode);
    const auto again = mounted->attributes(attributes.inode);
    ASSERT_TRUE(again);
    EXPECT_EQ(again->inode, attributes.inode);
    EXPECT_EQ(again->mode, attributes.mode);
    EXPECT_EQ(again->size, attributes.size);
  });
}

TEST(FileSystem, HandlesAnyInodeNumber) {
  for (const ControlDirectory control : {ControlDirectory::kHidden, ControlDirectory::kOff}) {
    const ServedCheckpoint mounted(many(), {.control = control}, Metadata{{"format", "pt"}});
    RandomBytes random(9);
    for (int round = 0; round < 100'000; ++round) {
      // Most numbers are near existing inodes.
      std::uint64_t inode = random.next() >> (random.next() % 64);
      if (round < 8) inode = std::uint64_t{0} - static_cast<std::uint64_t>(round);
      const std::uint64_t offset = random.next() >> (random.next() % 64);
      const auto attributes = mounted->attributes(inode);
      const bool is_directory = attributes && S_ISDIR(attributes->mode);
      std::string bytes;

      const int listed =
          mounted->list(inode, offset, [](const FileSystem::Entry&) { return true; });
      const int opened = mounted->open(inode);
      const int read = mounted.read(inode, offset, 100, bytes);
      const int xattr = mounted->get_xattr(inode, "user.stfs.name", bytes);
      const int xattrs = mounted->list_xattr(inode, bytes);
      const int child = mounted.look_up(inode, "w");

      EXPECT_EQ(listed, is_directory ? 0 : ENOTDIR) << inode;
      EXPECT_EQ(opened, !attributes ? ENOENT : is_directory ? EISDIR : 0) << inode;
      EXPECT_EQ(read, opened) << inode;
      EXPECT_EQ(xattrs, attributes ? 0 : ENOENT) << inode;
      EXPECT_TRUE(attributes ? xattr == 0 || xattr == ENODATA : xattr == ENOENT) << inode;
      EXPECT_TRUE(child == ENOENT || (child == 0 && is_directory)) << inode;
    }
  }
}

// Tests of looking up and listing.

TEST(FileSystem, DoesNotFindMissingPaths) {
  const ServedCheckpoint mounted(many());

  for (const char* path : {"nothing", "w/x", "layers/0", ".stfs/nothing", ".stfs/json/w",
                           ".stfs/header/x", ".stfs/info.json/x"}) {
    EXPECT_FALSE(mounted.at(path)) << path;
  }
  EXPECT_EQ(mounted.look_up(kRoot, ""), ENOENT);
  EXPECT_EQ(mounted.look_up(kRoot, "a.json/b"), ENOENT);
  EXPECT_EQ(mounted.look_up(mounted.inode("w"), "w"), ENOENT);
}

TEST(FileSystem, ListingsBeginWithSelfAndParent) {
  const ServedCheckpoint mounted({random_tensor("a/b/c", "U8", {1})});
  const std::map<std::string, std::string> parents{{"", ""},
                                                   {"a", ""},
                                                   {"a/b", "a"},
                                                   {".stfs", ""},
                                                   {".stfs/header", ".stfs"},
                                                   {".stfs/metadata", ".stfs"},
                                                   {".stfs/json", ".stfs"},
                                                   {".stfs/json/a", ".stfs/json"},
                                                   {".stfs/json/a/b", ".stfs/json/a"}};

  for (const auto& [path, parent] : parents) {
    const std::vector<Listed> listed = mounted.list(mounted.inode(path));
    ASSERT_GE(listed.size(), 2U);
    EXPECT_EQ(listed[0].name, ".");
    EXPECT_EQ(listed[0].attributes.inode, mounted.inode(path)) << path;
    EXPECT_EQ(listed[1].name, "..");
    EXPECT_EQ(listed[1].attributes.inode, mounted.inode(parent)) << path;
  }
}

TEST(FileSystem, ResumesListingAtAnyOffset) {
  const ServedCheckpoint mounted(many(), {.control = ControlDirectory::kVisible},
                                 Metadata{{"a", "1"}, {"b", "2"}});

  for (const char* path : {"", "a.json", ".stfs", ".stfs/header", ".stfs/metadata", ".stfs/json"}) {
    const std::uint64_t inode = mounted.inode(path);
    const std::vector<Listed> all = mounted.list(inode);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::vector<Listed> rest = mounted.list(inode, all[i].next);
      ASSERT_EQ(rest.size(), all.size() - i - 1) << path;
      for (std::size_t j = 0; j < rest.size(); ++j) EXPECT_EQ(rest[j].name, all[i + 1 + j].name);
    }
    EXPECT_TRUE(mounted.list(inode, kMost).empty());
  }
}

TEST(FileSystem, StoppedListingResumesAtSameEntry) {
  const ServedCheckpoint mounted(many());
  const std::vector<Listed> all = mounted.list(kRoot);

  for (std::size_t taken = 0; taken < all.size(); ++taken) {
    std::size_t calls = 0;
    std::uint64_t offset = 0;
    mounted->list(kRoot, 0, [&](const FileSystem::Entry& entry) {
      if (calls++ == taken) return false;
      offset = entry.next_offset;
      return true;
    });
    EXPECT_EQ(mounted.list(kRoot, offset).front().name, all[taken].name);
  }
}

TEST(FileSystem, FindsAllListedPaths) {
  const ServedCheckpoint mounted(many(), {}, Metadata{{"a/b", "1"}, {"", "2"}, {"..", "3"}});

  mounted.walk_all([&](const std::string& path, const Attributes& attributes) {
    const auto found = mounted.at(path);
    ASSERT_TRUE(found) << path;
    EXPECT_EQ(found->inode, attributes.inode) << path;
  });
}

// Tests of .stfs.

TEST(FileSystem, ListsControlDirectoryOnceIfVisible) {
  for (const std::vector<Tensor>& tensors : {many(), std::vector<Tensor>{}}) {
    const ServedCheckpoint mounted(tensors, {.control = ControlDirectory::kVisible});

    const std::vector<std::string> names = mounted.names("");
    EXPECT_EQ(std::ranges::count(names, ".stfs"), 1);
    EXPECT_EQ(names.size(), tensors.size() + 1);
  }
}

TEST(FileSystem, HasNoControlDirectoryIfOff) {
  const ServedCheckpoint hidden(many());
  const ServedCheckpoint off(many(), {.control = ControlDirectory::kOff});

  EXPECT_FALSE(off.at(".stfs"));
  for (const char* path : {".stfs", ".stfs/info.json", ".stfs/json", ".stfs/json/w.json"}) {
    EXPECT_FALSE(off->attributes(hidden.inode(path))) << path;
  }
}

TEST(FileSystem, DistinguishesTensorFromControlDirectory) {
  const ServedCheckpoint mounted({{".stfs", "U8", {1}, "x"}, {".stfs/info.json", "U8", {1}, "y"}},
                                 {.control = ControlDirectory::kVisible});

  EXPECT_EQ(mounted.names(""), (std::vector<std::string>{"%2Estfs", ".stfs%2Finfo.json", ".stfs"}));
  EXPECT_EQ(mounted.text("%2Estfs"), "x");
}

TEST(FileSystem, ControlDirectoryListsAllViews) {
  const ServedCheckpoint mounted(many());
  std::vector<std::string> rows;
  for (const ViewSpec& view : all_views()) {
    const bool exists = view.exists == nullptr || view.exists(mounted.checkpoint());
    if (exists && !view.name.empty()) rows.emplace_back(view.name);
  }

  EXPECT_EQ(mounted.names(".stfs"), rows);
}

TEST(FileSystem, SizesMatchContents) {
  const ServedCheckpoint mounted(many(), {}, Metadata{{"format", "pt"}, {"empty", ""}});

  mounted.walk_all([&](const std::string& path, const Attributes& attributes) {
    if (!S_ISREG(attributes.mode)) return;
    if (mounted->is_computed(attributes.inode)) {
      EXPECT_EQ(attributes.size, 0U) << path;
      return;
    }
    EXPECT_EQ(mounted.text(path).size(), attributes.size) << path;
    std::string byte;
    EXPECT_EQ(mounted.read(attributes.inode, attributes.size, 1, byte), 0);
    EXPECT_EQ(byte, "") << path;
  });
}

TEST(FileSystem, ReadsAnyByteRangeOfAllFiles) {
  const ServedCheckpoint mounted(many(), {}, Metadata{{"format", "pt"}});

  mounted.walk_all([&](const std::string& path, const Attributes& attributes) {
    if (!S_ISREG(attributes.mode) || mounted->is_computed(attributes.inode)) return;
    const std::string whole = mounted.text(path);
    for (std::uint64_t offset = 0; offset < whole.size(); offset += 7) {
      std::string part;
      EXPECT_EQ(mounted.read(attributes.inode, offset, 13, part), 0);
      EXPECT_EQ(part, whole.substr(offset, 13)) << path << " at " << offset;
    }
  });
}

TEST(FileSystem, DescribesTensorInJson) {
  const ServedCheckpoint mounted(many());

  const json object = json::parse(mounted.text(".stfs/json/w.json"));

  EXPECT_EQ(object["name"], "w");
  EXPECT_EQ(object["path"], "w");
  EXPECT_EQ(object["dtype"], "F32");
  EXPECT_EQ(object["shape"], (json{2, 1}));
  EXPECT_EQ(object["bytes"], 8);
  EXPECT_EQ(object["source"], fs::canonical(mounted.source()).string());
  EXPECT_EQ(read_file(mounted.source()).substr(object["offset"], 8), "12345678");
}

TEST(FileSystem, DistinguishesDirectoryFromFileWithSuffix) {
  const ServedCheckpoint mounted(many());

  EXPECT_EQ(json::parse(mounted.text(".stfs/json/a.json"))["name"], "a");
  EXPECT_EQ(json::parse(mounted.text(".stfs/json/a%2Ejson/b.json"))["name"], "a.json/b");
  const std::vector<std::string> names = mounted.names(".stfs/json");
  EXPECT_EQ(std::ranges::count(names, "a.json"), 1);
  EXPECT_EQ(std::ranges::count(names, "a%2Ejson"), 1);
}

TEST(FileSystem, EscapesSuffixInNestedDirectories) {
  const ServedCheckpoint mounted({{"x.json/y.json/z", "U8", {1}, "1"}, {"q.json", "U8", {1}, "2"}});

  EXPECT_TRUE(mounted.at(".stfs/json/x%2Ejson/y%2Ejson/z.json"));
  EXPECT_TRUE(mounted.at(".stfs/json/q.json.json"));
  EXPECT_FALSE(mounted.at(".stfs/json/x.json"));
  EXPECT_FALSE(mounted.at(".stfs/json/q.json"));
  EXPECT_TRUE(mounted.at("x.json/y.json/z"));
  EXPECT_FALSE(mounted.at("x%2Ejson"));
}

TEST(FileSystem, ListsAllTensorsInTensorsJson) {
  const ServedCheckpoint mounted({many(), {{"second", "U8", {1}, "2"}}}, {}, std::nullopt);

  const json tensors = json::parse(mounted.text(".stfs/tensors.json"));

  ASSERT_EQ(tensors.size(), mounted.checkpoint().tensor_count());
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    const stfs::Tensor tensor = mounted.checkpoint().tensor(i);
    EXPECT_EQ(tensors[i].size(), 7U);
    EXPECT_EQ(tensors[i]["path"], tensor.path);
    EXPECT_EQ(tensors[i]["name"], tensor.name);
    EXPECT_EQ(tensors[i]["dtype"], dtype_name(tensor.dtype));
    EXPECT_EQ(tensors[i]["shape"], json(std::vector(tensor.shape.begin(), tensor.shape.end())));
    EXPECT_EQ(tensors[i]["bytes"], tensor.length);
    EXPECT_EQ(tensors[i]["source"], tensor.locator->source->path());
    EXPECT_EQ(tensors[i]["offset"], tensor.locator->offset);
  }
}

TEST(FileSystem, TensorTablesAreEmptyWithoutTensors) {
  const ServedCheckpoint mounted(std::vector<Tensor>{});

  EXPECT_EQ(json::parse(mounted.text(".stfs/tensors.json")), json::array());
  EXPECT_EQ(mounted.text(".stfs/tensors.tsv"), "path\tname\tdtype\tshape\tbytes\tsource\toffset\n");
}

TEST(FileSystem, TensorsTsvHasOneLinePerTensor) {
  const ServedCheckpoint mounted(many());

  std::istringstream lines(mounted.text(".stfs/tensors.tsv"));
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(line, "path\tname\tdtype\tshape\tbytes\tsource\toffset");
  for (std::uint32_t i = 0; i < mounted.checkpoint().tensor_count(); ++i) {
    ASSERT_TRUE(std::getline(lines, line));
    const stfs::Tensor tensor = mounted.checkpoint().tensor(i);
    const std::string name = tensor.name == "\t\u00e9" ? "\\t\u00e9" : std::string(tensor.name);
    std::ostringstream expected;
    expected << tensor.path << '\t' << name << '\t' << dtype_name(tensor.dtype) << '\t'
             << shape_json(tensor.shape) << '\t' << tensor.length << '\t'
             << tensor.locator->source->path() << '\t' << tensor.locator->offset;
    EXPECT_EQ(line, expected.str());
  }
  EXPECT_FALSE(std::getline(lines, line));
}

TEST(FileSystem, ReadsAnyByteRangeOfLongTables) {
  std::vector<Tensor> tensors;
  for (int i = 0; i < 500; ++i) tensors.push_back({"t" + std::to_string(i), "U8", {1}, "x"});
  const ServedCheckpoint mounted(tensors);
  RandomBytes random(3);

  for (const char* path : {".stfs/tensors.json", ".stfs/tensors.tsv"}) {
    const std::string whole = mounted.text(path);
    for (int round = 0; round < 300; ++round) {
      const std::uint64_t offset = random.next() % whole.size();
      const std::uint64_t length = random.next() % 5000;
      std::string part;
      ASSERT_EQ(mounted.read(mounted.inode(path), offset, length, part), 0);
      ASSERT_EQ(part, whole.substr(offset, length)) << path << " at " << offset;
    }
  }
}

TEST(FileSystem, SummarisesCheckpointInInfoJson) {
  const ServedCheckpoint mounted(
      {{{"a", "F16", {2, 3}, "012345678901"}}, {{"b", "U8", {2}, "xy"}, {"c", "F16", {}, "zz"}}},
      {}, Metadata{{"format", "pt"}});

  const json info = json::parse(mounted.text(".stfs/info.json"));

  EXPECT_EQ(info["tensors"], 3);
  EXPECT_EQ(info["bytes"], 16);
  EXPECT_EQ(info["parameters"], 9);
  EXPECT_EQ(info["bytes_per_dtype"], (json{{"F16", 14}, {"U8", 2}}));
  EXPECT_EQ(info["metadata"], (json{{"format", "pt"}}));
  EXPECT_EQ(info["missing"], json::array());
  ASSERT_EQ(info["sources"].size(), 2U);
  EXPECT_EQ(info["sources"][1]["label"], "s1.safetensors");
  EXPECT_EQ(info["sources"][1]["path"], fs::canonical(mounted.source(1)).string());
  EXPECT_EQ(info["sources"][1]["size"], fs::file_size(mounted.source(1)));
  EXPECT_EQ(info["sources"][1]["tensors"], 2);
  EXPECT_EQ(info["sources"][0]["mtime"], "2001-09-09T01:46:41.000000007Z");
}

TEST(FileSystem, ServesHeaderByteForByte) {
  const ServedCheckpoint mounted(many());
  const std::string file = read_file(mounted.source());

  const std::string header = mounted.text(".stfs/header/s0.safetensors.json");

  EXPECT_EQ(header, file.substr(8, header.size()));
  EXPECT_EQ(header, header_json(many()));
  EXPECT_EQ(mounted.names(".stfs/header"), std::vector<std::string>{"s0.safetensors.json"});
}

TEST(FileSystem, ServesEachMetadataEntry) {
  const ServedCheckpoint mounted(
      {random_tensor("w", "U8", {1})}, {},
      Metadata{{"format", "pt"}, {"a/b", "\n"}, {"", "empty key"}, {"..", "dots"}});

  EXPECT_EQ(mounted.names(".stfs/metadata"),
            (std::vector<std::string>{"%", "%2E%2E", "a%2Fb", "format"}));
  EXPECT_EQ(mounted.text(".stfs/metadata/format"), "pt");
  EXPECT_EQ(mounted.text(".stfs/metadata/a%2Fb"), "\n");
  EXPECT_EQ(mounted.text(".stfs/metadata/%"), "empty key");
}

// Tests of extended attributes.

TEST(FileSystem, TensorFilesHaveExtendedAttributes) {
  const ServedCheckpoint mounted(many());

  EXPECT_EQ(mounted.xattr("layers%2F0/q", "user.stfs.name"), "layers/0/q");
  EXPECT_EQ(mounted.xattr("layers%2F0/q", "user.stfs.dtype"), "BF16");
  EXPECT_EQ(mounted.xattr("empty", "user.stfs.shape"), "[0,3]");
  EXPECT_EQ(mounted.xattr("layers%2F1/q", "user.stfs.shape"), "[]");
  EXPECT_EQ(mounted.xattr("%", "user.stfs.name"), "");
}

TEST(FileSystem, ExtendedAttributesLocateTensorBytes) {
  const ServedCheckpoint mounted(many());

  mounted.walk("", [&](const std::string& path, const Attributes& attributes) {
    if (!S_ISREG(attributes.mode)) return;
    const std::string source = read_file(mounted.xattr(path, "user.stfs.source"));
    const std::uint64_t offset = std::stoull(mounted.xattr(path, "user.stfs.offset"));
    const std::uint64_t length = std::stoull(mounted.xattr(path, "user.stfs.length"));
    EXPECT_EQ(source.substr(offset, length), mounted.text(path)) << path;
    EXPECT_EQ(length, attributes.size);
  });
}

TEST(FileSystem, OnlyTensorFilesListExtendedAttributes) {
  const ServedCheckpoint mounted(many());
  std::string expected;
  for (const std::string& name : kXattrNames) expected += name + '\0';
  std::string names;

  EXPECT_EQ(mounted->list_xattr(mounted.inode("w"), names), 0);
  EXPECT_EQ(names, expected);
  for (const char* path : {"", "a.json", ".stfs", ".stfs/info.json", ".stfs/json/w.json"}) {
    EXPECT_EQ(mounted->list_xattr(mounted.inode(path), names), 0);
    EXPECT_EQ(names, "") << path;
  }
}

TEST(FileSystem, OnlyRootHasMountAttribute) {
  int made = 0;
  const ServedCheckpoint mounted(many(), {.content = [&] { return ++made, std::string("{}"); }});
  const ServedCheckpoint too_long(many(), {.content = [] { return std::string(65537, ' '); }});
  std::string names;
  std::string value;

  EXPECT_EQ(mounted->list_xattr(kRoot, names), 0);
  EXPECT_EQ(names, std::string("user.stfs.mount") + '\0');
  EXPECT_EQ(mounted->list_xattr(kRoot, names), 0);
  EXPECT_EQ(made, 1);
  EXPECT_EQ(mounted.xattr("", "user.stfs.mount"), "{}");
  EXPECT_EQ(mounted->get_xattr(mounted.inode("w"), "user.stfs.mount", value), ENODATA);
  EXPECT_EQ(too_long->get_xattr(kRoot, "user.stfs.mount", value), E2BIG);
  EXPECT_EQ(too_long->list_xattr(kRoot, names), 0);
  EXPECT_EQ(names, "");
}

TEST(FileSystem, OtherExtendedAttributesGiveErrno) {
  const ServedCheckpoint mounted(many());
  std::string value;

  EXPECT_EQ(mounted->get_xattr(mounted.inode("w"), "user.stfs.nothing", value), ENODATA);
  EXPECT_EQ(mounted->get_xattr(mounted.inode("w"), "user.other", value), ENODATA);
  EXPECT_EQ(mounted->get_xattr(kRoot, "user.stfs.name", value), ENODATA);
  EXPECT_EQ(mounted->get_xattr(mounted.inode("w"), "security.selinux", value), EOPNOTSUPP);
  EXPECT_EQ(mounted->get_xattr(mounted.inode("w"), "system.posix_acl_access", value), EOPNOTSUPP);
  EXPECT_EQ(mounted->get_xattr(mounted.inode("w"), "", value), EOPNOTSUPP);
  EXPECT_EQ(mounted->get_xattr(kMost, "user.stfs.name", value), ENOENT);
}

TEST(FileSystem, TooLongExtendedAttributeGivesE2BIG) {
  const ServedCheckpoint mounted({random_tensor(std::string(65536, 'n'), "U8", {1}),
                                  random_tensor(std::string(65537, 'm'), "U8", {1})});
  std::string value;

  EXPECT_EQ(mounted->get_xattr(mounted.list(kRoot)[3].attributes.inode, "user.stfs.name", value),
            0);
  EXPECT_EQ(mounted->get_xattr(mounted.list(kRoot)[2].attributes.inode, "user.stfs.name", value),
            E2BIG);
}

// Tests of changed sources.

// The format limits headers to 100 MB. Each source is below the limit, but both together exceed it.
TEST(FileSystem, SafetensorsFileAboveFormatLimitGivesEFBIG) {
#ifdef STFS_SANITIZED
  GTEST_SKIP()
      << "headers of 100 MB take half a minute; the build without sanitizers runs this test";
#endif
  const TempDir dir;
  std::vector<std::string> paths;
  for (const char c : {'a', 'b'}) {
    const std::string header = "{\"" + std::string(51'000'000, c) +
                               R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
    paths.push_back((dir / std::string(1, c)).string() + ".safetensors");
    write_file(paths.back(), safetensors_bytes(header, "x"));
  }
  const Checkpoint checkpoint(paths);
  FileSystem filesystem(checkpoint, {}, [](const std::string&) {});
  Attributes control{};
  Attributes subset{};
  ASSERT_EQ(filesystem.lookup(kRoot, ".stfs", control), 0);
  ASSERT_EQ(filesystem.lookup(control.inode, "subset", subset), 0);

  for (const bool is_merged : {true, false}) {
    SCOPED_TRACE(is_merged ? "merged" : "subset");
    Attributes found{};
    ASSERT_EQ(filesystem.lookup(is_merged ? control.inode : subset.inode,
                                is_merged ? "merged.safetensors" : "*.safetensors", found),
              0)
        << "the file must exist";
    EXPECT_EQ(found.size, 0U);
    EXPECT_EQ(filesystem.open(found.inode, nullptr), EFBIG);
    int answer = -1;
    filesystem.read(
        {found.inode, 0, 100}, [](FileSystem::Ticket) {},
        [&](int error, const Reply&) { answer = error; });
    EXPECT_EQ(answer, EFBIG);
  }
}

TEST(FileSystem, ChangedSourceGivesESTALEAndIsLoggedOnce) {
  ServedCheckpoint mounted({{{"a", "U8", {4}, "1234"}}, {{"b", "U8", {4}, "5678"}}}, {},
                           std::nullopt);
  fs::resize_file(mounted.source(0), 10);
  const std::uint64_t inode = mounted.inode("a");
  std::string bytes;

  EXPECT_EQ(mounted->open(inode), ESTALE);
  EXPECT_EQ(mounted->open(inode), ESTALE);
  EXPECT_EQ(mounted.read(inode, 0, 4, bytes), ESTALE);

  ASSERT_EQ(mounted.log.size(), 1U);
  EXPECT_TRUE(mounted.log[0].starts_with(fs::canonical(mounted.source(0)).string() + ": "));
  EXPECT_EQ(mounted.log[0].find('\n'), std::string::npos);
}

TEST(FileSystem, LogsChangeFoundByRead) {
  ServedCheckpoint mounted({random_tensor("a", "U8", {4})});
  ASSERT_EQ(mounted->open(mounted.inode("a")), 0);
  write_file(mounted.source(), read_file(mounted.source()));
  std::string bytes;

  EXPECT_EQ(mounted.read(mounted.inode("a"), 0, 4, bytes), ESTALE);

  EXPECT_EQ(mounted.log.size(), 1U);
}

TEST(FileSystem, ServesOtherSourcesAfterOneHasChanged) {
  ServedCheckpoint mounted({{{"a", "U8", {4}, "1234"}}, {{"b", "U8", {4}, "5678"}}}, {},
                           Metadata{{"k", "v"}});
  fs::resize_file(mounted.source(0), 10);
  ASSERT_EQ(mounted->open(mounted.inode("a")), ESTALE);

  EXPECT_EQ(mounted->open(mounted.inode("b")), 0);
  EXPECT_EQ(mounted.text("b"), "5678");
  EXPECT_EQ(mounted.text(".stfs/metadata/k"), "v");
  EXPECT_EQ(json::parse(mounted.text(".stfs/tensors.json")).size(), 2U);
  EXPECT_EQ(mounted.at("a")->size, 4U) << "the size must be that at the time of the mount";
}

TEST(FileSystem, HeaderOfChangedSourceGivesESTALE) {
  ServedCheckpoint mounted({random_tensor("a", "U8", {4})});
  fs::resize_file(mounted.source(), 10);
  std::string bytes;

  EXPECT_EQ(mounted.read(mounted.inode(".stfs/header/s0.safetensors.json"), 0, 4, bytes), ESTALE);
}

TEST(FileSystem, ServesOldBytesOfReplacedSource) {
  ServedCheckpoint mounted({{"a", "U8", {4}, "1234"}});
  write_file(mounted.source() + ".new", "other");
  fs::rename(mounted.source() + ".new", mounted.source());

  EXPECT_EQ(mounted.text("a"), "1234");
  EXPECT_TRUE(mounted.log.empty());
}

#ifndef STFS_SANITIZED  // sanitizers have their own allocator
TEST(FileSystem, AllocatesOnlyBufferToReadTensor) {
  constexpr std::uint64_t kBytes = 65536;
  const ServedCheckpoint served({{"w", "U8", {kBytes}, std::string(kBytes, 'x')}});
  const std::uint64_t inode = served.inode("w");
  std::uint64_t sent = 0;
  const std::uint64_t before = allocated_bytes();

  served->read(
      {inode, 0, kBytes}, [](FileSystem::Ticket) {},
      [&](int, const Reply& reply) { sent = reply.pieces()[0].iov_len; });

  EXPECT_LE(allocated_bytes() - before, kBytes) << "more than one buffer";
  EXPECT_EQ(sent, kBytes);
}
#endif

std::string counters_of(const FileSystem::ReadRequest& request, FileSystem& filesystem,
                        int& error) {
  std::string text;
  filesystem.read(
      request, [](FileSystem::Ticket) {},
      [&](int result, const Reply& reply) {
        error = result;
        text = bytes_of(reply);
      });
  return text;
}

TEST(FileSystem, EachOpenTakesSnapshotOfCounters) {
  Counters counters;
  counters.nanoseconds_waited = 1'500'000'000;
  for (const char* server : {"http://a:80", "hf://", "http://a:80"}) counters.add_timeout(server);
  FileSystemOptions options;
  options.counters = &counters;
  const ServedCheckpoint served({{"w", "U8", {4}, "1234"}}, options);
  const std::uint64_t inode = served.inode(".stfs/counters.json");
  std::string bytes;
  ASSERT_EQ(served.read(served.inode("w"), 0, 4, bytes), 0);
  FileSystem& filesystem = *served.operator->();
  std::uint64_t handle = 0;
  ASSERT_EQ(filesystem.open(inode, &handle), 0);
  ASSERT_NE(handle, 0U);
  int error = -1;

  const std::string first = counters_of({inode, 0, 4096, handle}, filesystem, error);

  EXPECT_EQ(error, 0);
  EXPECT_EQ(first,
            "{\n  \"reads\": 1,\n  \"bytes_returned\": 4,\n  \"requests\": 0,\n"
            "  \"bytes_fetched\": 0,\n  \"retries\": 0,\n  \"cache_hits\": 0,\n"
            "  \"cache_corrupt\": 0,\n  \"waits\": 0,\n  \"timeouts\": 3,\n"
            "  \"timeouts_by_server\": {\"http://a:80\": 2, \"hf://\": 1},\n"
            "  \"seconds_waited\": 1.500\n}\n");
  EXPECT_EQ(counters_of({inode, 2, 7, handle}, filesystem, error), first.substr(2, 7));
  EXPECT_EQ(counters_of({inode, 4096, 7, handle}, filesystem, error), "");
  EXPECT_EQ(served.at(".stfs/counters.json")->size, 0U);
  filesystem.release(inode, handle);
  counters_of({inode, 0, 4096, handle}, filesystem, error);
  EXPECT_EQ(error, EIO) << "the snapshot was kept after release()";
}

TEST(Counters, NameFirstServersAndCutLongNames) {
  Counters counters;
  for (int i = 0; i < 20; ++i) counters.add_timeout(std::string(200, 'x') + std::to_string(i));
  EXPECT_EQ(counters.timeouts, 20U);
  EXPECT_EQ(counters.servers[0].timeouts, 20U) << "the names are equal after they are cut";
  for (int i = 0; i < 20; ++i) counters.add_timeout("http://" + std::to_string(i));
  EXPECT_EQ(counters.timeouts, 40U);
  EXPECT_STREQ(counters.servers.back().name, "http://14");
  EXPECT_EQ(counters.servers.back().timeouts, 1U);
}

TEST(FileSystem, SnapshotOfOtherWorkerGivesEIO) {
  const ServedCheckpoint served({{"w", "U8", {4}, "1234"}});
  const std::uint64_t inode = served.inode(".stfs/counters.json");
  int error = -1;

  counters_of({inode, 0, 4096, (1ULL << 32) + 1}, *served.operator->(), error);

  EXPECT_EQ(error, EIO);
}

TEST(FileSystem, CutsReadAtEndOfFile) {
  const ServedCheckpoint mounted({{"a", "U8", {4}, "1234"}, {"b", "U8", {4}, "5678"}});
  std::string bytes;

  EXPECT_EQ(mounted.read(mounted.inode("a"), 2, kMost, bytes), 0);
  EXPECT_EQ(bytes, "34");
  EXPECT_EQ(mounted.read(mounted.inode("a"), kMost, kMost, bytes), 0);
  EXPECT_EQ(bytes, "34");
}

TEST(FileSystem, ToleratesForgetWithoutLookup) {
  const ServedCheckpoint mounted(many());

  mounted.walk_all([&](const std::string&, const Attributes& attributes) {
    mounted->forget(attributes.inode, 1);
    EXPECT_TRUE(mounted->attributes(attributes.inode));
  });
  for (int view = 0; view < 256; ++view) {
    mounted->forget((static_cast<std::uint64_t>(view) << 56 | 1ULL << 55) + 1, 1);
  }
}

}  // namespace
}  // namespace stfs::test
