// The mounted file system without a mount.
#include "fs/filesystem.h"

#include "core/catalogue.h"
#include "tests/support/checkpoint_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using namespace std::string_literals;

constexpr std::uint64_t kRoot = 1;
constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();

struct Listed {
  std::string name;
  Attributes attributes;
  std::uint64_t next;
};

// A checkpoint on disk and the file system over it.
class Mounted {
 public:
  Mounted(const std::vector<Tensor>& tensors, const FileSystemOptions& options = {},
          const std::optional<Metadata>& metadata = std::nullopt)
      : Mounted(std::vector<std::vector<Tensor>>(1, tensors), options, metadata) {}

  Mounted(const std::vector<std::vector<Tensor>>& files, const FileSystemOptions& options,
          const std::optional<Metadata>& metadata) {
    std::vector<std::string> sources;
    for (const std::vector<Tensor>& tensors : files) {
      paths_.push_back((dir_ / ("s" + std::to_string(paths_.size()) + ".safetensors")).string());
      write_safetensors(paths_.back(), tensors, metadata);
      const auto seconds = 1'000'000'000 + static_cast<std::time_t>(paths_.size());
      const timespec times[2]{{seconds, 7}, {seconds, 7}};
      ::utimensat(AT_FDCWD, paths_.back().c_str(), times, 0);
    }
    checkpoint_ = std::make_unique<const Checkpoint>(paths_);
    filesystem_ = std::make_unique<const FileSystem>(
        *checkpoint_, options, [this](const std::string& line) { log.push_back(line); });
  }

  const FileSystem* operator->() const { return filesystem_.get(); }
  const Checkpoint& checkpoint() const { return *checkpoint_; }
  const std::string& source(std::size_t number = 0) const { return paths_[number]; }

  // What stands at a path from the root: "", ".stfs/info.json".
  std::optional<Attributes> at(const std::string& path) const {
    std::optional<Attributes> found = filesystem_->attributes(kRoot);
    std::istringstream components(path);
    for (std::string component; found && std::getline(components, component, '/');) {
      found = filesystem_->lookup(found->inode, component);
    }
    return found;
  }
  std::uint64_t inode(const std::string& path) const {
    const auto found = at(path);
    EXPECT_TRUE(found) << path;
    return found ? found->inode : 0;
  }

  std::vector<Listed> list(std::uint64_t directory, std::uint64_t offset = 0) const {
    std::vector<Listed> out;
    EXPECT_EQ(
        filesystem_->list(directory, offset,
                          [&](const char* name, const Attributes& attributes, std::uint64_t next) {
                            out.push_back({name, attributes, next});
                            return true;
                          }),
        0);
    return out;
  }
  std::vector<std::string> names(const std::string& path) const {
    std::vector<std::string> out;
    for (const Listed& entry : list(inode(path))) out.push_back(entry.name);
    EXPECT_GE(out.size(), 2U);
    return {out.begin() + 2, out.end()};
  }

  // An errno, or 0 and the bytes.
  int read(std::uint64_t inode, std::uint64_t offset, std::uint64_t length,
           std::string& out) const {
    int sent = 0;
    const int error = filesystem_->read(inode, offset, length, [&](std::span<const iovec> pieces) {
      ++sent;
      for (const iovec& piece : pieces)
        out.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
    });
    EXPECT_EQ(sent, error == 0 ? 1 : 0) << "send is called once, and never with an error";
    return error;
  }
  std::string text(const std::string& path) const {
    std::string out;
    EXPECT_EQ(read(inode(path), 0, kMost, out), 0) << path;
    return out;
  }
  std::string xattr(const std::string& path, const std::string& name) const {
    std::string value;
    EXPECT_EQ(filesystem_->get_xattr(inode(path), name, value), 0) << path << " " << name;
    return value;
  }

  // Calls visit(path, attributes) for every entry below a directory.
  using Visit = std::function<void(const std::string&, const Attributes&)>;
  void walk(const std::string& path, const Visit& visit) const {
    for (const Listed& entry : list(inode(path))) {
      if (entry.name == "." || entry.name == "..") continue;
      const std::string below = path.empty() ? entry.name : path + "/" + entry.name;
      visit(below, entry.attributes);
      if (S_ISDIR(entry.attributes.mode)) walk(below, visit);
    }
  }
  // Everything there is, listed or not.
  void walk_all(const Visit& visit) const {
    walk("", visit);
    if (const auto control = at(".stfs")) {
      visit(".stfs", *control);
      walk(".stfs", visit);
    }
  }

  std::vector<std::string> log;

 private:
  TempDir dir_;
  std::vector<std::string> paths_;
  std::unique_ptr<const Checkpoint> checkpoint_;
  std::unique_ptr<const FileSystem> filesystem_;
};

// Names of every kind.
std::vector<Tensor> many() {
  return {{"w", "F32", {2, 1}, "12345678"}, {"layers/0/q", "BF16", {2}, "abcd"},
          {"layers/1/q", "U8", {}, "x"},    {"layers", "U8", {1}, "y"},
          {"empty", "F16", {0, 3}, ""},     {"", "U8", {1}, "z"},
          {"\t\u00e9", "U8", {1}, "t"},     {"a", "U8", {1}, "1"},
          {"a.json/b", "U8", {2}, "23"},    {"%", "I64", {1}, "01234567"}};
}

const std::vector<std::string> kXattrNames{"user.stfs.name",   "user.stfs.dtype",
                                           "user.stfs.shape",  "user.stfs.source",
                                           "user.stfs.offset", "user.stfs.length"};

// Attributes.

TEST(FileSystem, ListsExactlyTheTensorsInTheRoot) {
  const Mounted mounted(many());

  EXPECT_EQ(mounted.names(""),
            (std::vector<std::string>{"%", "%09\u00e9", "%25", "a", "a.json", "empty", "layers",
                                      "layers%2F0", "layers%2F1", "w"}));
}

TEST(FileSystem, ServesTheBytesOfEachTensor) {
  const Mounted mounted(many());

  for (const Tensor& tensor : many()) {
    const auto number = mounted.checkpoint().find(tensor.name);
    ASSERT_TRUE(number);
    EXPECT_EQ(mounted.text(std::string(mounted.checkpoint().tensor(*number).path)), tensor.bytes);
  }
}

TEST(FileSystem, GivesATensorModeSizeTimeAndOwner) {
  const Mounted mounted({random_tensor("w", "U8", {1025}), random_tensor("x", "U8", {1024})},
                        {.uid = 12, .gid = 34});

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

TEST(FileSystem, GivesTheRootInodeOneAndADirectorysMode) {
  const Mounted mounted(many());

  const auto root = mounted->attributes(kRoot);

  ASSERT_TRUE(root);
  EXPECT_EQ(root->inode, kRoot);
  EXPECT_EQ(root->mode, static_cast<mode_t>(S_IFDIR | 0555));
}

TEST(FileSystem, TakesTheUmaskFromEveryMode) {
  const Mounted mounted(many(), {.umask = 0077});

  mounted.walk_all([](const std::string& path, const Attributes& attributes) {
    EXPECT_EQ(attributes.mode & 07777U, S_ISDIR(attributes.mode) ? 0500U : 0400U) << path;
  });
  EXPECT_EQ(mounted->attributes(kRoot)->mode & 07777U, 0500U);
}

TEST(FileSystem, GivesDirectoriesTheTimeOfTheNewestSource) {
  const Mounted mounted({{{"a", "U8", {1}, "x"}}, {{"b", "U8", {1}, "x"}}}, {}, std::nullopt);

  EXPECT_EQ(mounted->attributes(kRoot)->mtime.tv_sec, 1'000'000'002);
  EXPECT_EQ(mounted.at("a")->mtime.tv_sec, 1'000'000'001);
  EXPECT_EQ(mounted.at(".stfs/info.json")->mtime.tv_sec, 1'000'000'002);
  EXPECT_EQ(mounted.at(".stfs/header/s0.safetensors.json")->mtime.tv_sec, 1'000'000'001);
}

TEST(FileSystem, CountsBytesAndFilesOfTheTensors) {
  const Mounted mounted(many());

  EXPECT_EQ(mounted->statistics().files, 10U);
  EXPECT_EQ(mounted->statistics().bytes, 8U + 4 + 1 + 1 + 0 + 1 + 1 + 1 + 2 + 8);
}

// Inode numbers.

TEST(Inode, SaysTheNodeAndTheNodeSaysTheInode) {
  for (int view = 0; view < kViewCount; ++view) {
    for (const bool is_directory : {false, true}) {
      for (const std::uint32_t number :
           {0U, 1U, 2U, 1U << 16, 0x7fffffffU, 0x80000000U, 0xffffffffU}) {
        const Node node{static_cast<View>(view), is_directory, number};
        EXPECT_EQ(node_of(inode_of(node)), node);
      }
    }
  }
  EXPECT_EQ(inode_of(kRootNode), kRoot);
}

TEST(FileSystem, GivesEveryFileAnInodeOfItsOwnAndTheSameEveryTime) {
  const Mounted mounted(many(), {}, Metadata{{"format", "pt"}});
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

TEST(FileSystem, GivesTheSameInodesInAnotherMount) {
  const Mounted first(many());
  const Mounted second(many());

  first.walk_all([&](const std::string& path, const Attributes& attributes) {
    EXPECT_EQ(second.at(path)->inode, attributes.inode) << path;
  });
}

TEST(FileSystem, AnswersAnyInodeWithAnAnswerOrAnErrno) {
  for (const ControlDirectory control : {ControlDirectory::kHidden, ControlDirectory::kOff}) {
    const Mounted mounted(many(), {.control = control}, Metadata{{"format", "pt"}});
    RandomBytes random(9);
    for (int round = 0; round < 100'000; ++round) {
      // Mostly near numbers that exist.
      std::uint64_t inode = random.next() >> (random.next() % 64);
      if (round < 8) inode = std::uint64_t{0} - static_cast<std::uint64_t>(round);
      const std::uint64_t offset = random.next() >> (random.next() % 64);
      const auto attributes = mounted->attributes(inode);
      const bool is_directory = attributes && S_ISDIR(attributes->mode);
      std::string bytes;

      const int listed = mounted->list(
          inode, offset, [](const char*, const Attributes&, std::uint64_t) { return true; });
      const int opened = mounted->open(inode);
      const int read = mounted.read(inode, offset, 100, bytes);
      const int xattr = mounted->get_xattr(inode, "user.stfs.name", bytes);
      const int xattrs = mounted->list_xattr(inode, bytes);
      const auto child = mounted->lookup(inode, "w");

      EXPECT_EQ(listed, is_directory ? 0 : ENOTDIR) << inode;
      EXPECT_EQ(opened, !attributes ? ENOENT : is_directory ? EISDIR : 0) << inode;
      EXPECT_EQ(read, opened) << inode;
      EXPECT_EQ(xattrs, attributes ? 0 : ENOENT) << inode;
      EXPECT_TRUE(attributes ? xattr == 0 || xattr == ENODATA : xattr == ENOENT) << inode;
      EXPECT_FALSE(child && !is_directory) << inode;
    }
  }
}

// Looking up and listing.

TEST(FileSystem, FindsNothingWhereNothingIs) {
  const Mounted mounted(many());

  for (const char* path : {"nothing", "w/x", "layers/0", ".stfs/nothing", ".stfs/json/w",
                           ".stfs/header/x", ".stfs/info.json/x"}) {
    EXPECT_FALSE(mounted.at(path)) << path;
  }
  EXPECT_FALSE(mounted->lookup(kRoot, ""));
  EXPECT_FALSE(mounted->lookup(kRoot, "a.json/b"));
  EXPECT_FALSE(mounted->lookup(mounted.inode("w"), "w"));
}

TEST(FileSystem, BeginsEveryListingWithItselfAndItsParent) {
  const Mounted mounted({random_tensor("a/b/c", "U8", {1})});
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

TEST(FileSystem, ResumesAListingAtEveryOffset) {
  const Mounted mounted(many(), {.control = ControlDirectory::kVisible},
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

TEST(FileSystem, StopsAListingAtAnyEntryAndOffersItAgain) {
  const Mounted mounted(many());
  const std::vector<Listed> all = mounted.list(kRoot);

  for (std::size_t taken = 0; taken < all.size(); ++taken) {
    std::size_t calls = 0;
    std::uint64_t offset = 0;
    mounted->list(kRoot, 0, [&](const char*, const Attributes&, std::uint64_t next) {
      if (calls++ == taken) return false;
      offset = next;
      return true;
    });
    EXPECT_EQ(mounted.list(kRoot, offset).front().name, all[taken].name);
  }
}

TEST(FileSystem, FindsEverythingThatItLists) {
  const Mounted mounted(many(), {}, Metadata{{"a/b", "1"}, {"", "2"}, {"..", "3"}});

  mounted.walk_all([&](const std::string& path, const Attributes& attributes) {
    const auto found = mounted.at(path);
    ASSERT_TRUE(found) << path;
    EXPECT_EQ(found->inode, attributes.inode) << path;
  });
}

// .stfs

TEST(FileSystem, HidesTheControlDirectoryFromTheListingOnly) {
  const Mounted mounted(many());

  const std::vector<std::string> names = mounted.names("");
  EXPECT_EQ(std::ranges::count(names, ".stfs"), 0);
  EXPECT_TRUE(mounted.at(".stfs"));
}

TEST(FileSystem, ListsTheControlDirectoryOnceWhenVisible) {
  for (const std::vector<Tensor>& tensors : {many(), std::vector<Tensor>{}}) {
    const Mounted mounted(tensors, {.control = ControlDirectory::kVisible});

    const std::vector<std::string> names = mounted.names("");
    EXPECT_EQ(std::ranges::count(names, ".stfs"), 1);
    EXPECT_EQ(names.size(), tensors.size() + 1);
  }
}

TEST(FileSystem, HasNoControlDirectoryWhenOff) {
  const Mounted hidden(many());
  const Mounted off(many(), {.control = ControlDirectory::kOff});

  EXPECT_FALSE(off.at(".stfs"));
  for (const char* path : {".stfs", ".stfs/info.json", ".stfs/json", ".stfs/json/w.json"}) {
    EXPECT_FALSE(off->attributes(hidden.inode(path))) << path;
  }
}

TEST(FileSystem, DoesNotMistakeATensorForTheControlDirectory) {
  const Mounted mounted({{".stfs", "U8", {1}, "x"}, {".stfs/info.json", "U8", {1}, "y"}},
                        {.control = ControlDirectory::kVisible});

  EXPECT_EQ(mounted.names(""), (std::vector<std::string>{"%2Estfs", ".stfs%2Finfo.json", ".stfs"}));
  EXPECT_EQ(mounted.text("%2Estfs"), "x");
}

TEST(FileSystem, HasTheControlDirectorysFiles) {
  const Mounted mounted(many());

  EXPECT_EQ(mounted.names(".stfs"),
            (std::vector<std::string>{"info.json", "tensors.json", "tensors.tsv", "header",
                                      "metadata", "json"}));
}

TEST(FileSystem, GivesEveryFileTheSizeOfItsContent) {
  const Mounted mounted(many(), {}, Metadata{{"format", "pt"}, {"empty", ""}});

  mounted.walk_all([&](const std::string& path, const Attributes& attributes) {
    if (!S_ISREG(attributes.mode)) return;
    EXPECT_EQ(mounted.text(path).size(), attributes.size) << path;
    std::string byte;
    EXPECT_EQ(mounted.read(attributes.inode, attributes.size, 1, byte), 0);
    EXPECT_EQ(byte, "") << path;
  });
}

TEST(FileSystem, ReadsAnyPartOfEveryFile) {
  const Mounted mounted(many(), {}, Metadata{{"format", "pt"}});

  mounted.walk_all([&](const std::string& path, const Attributes& attributes) {
    if (!S_ISREG(attributes.mode)) return;
    const std::string whole = mounted.text(path);
    for (std::uint64_t offset = 0; offset < whole.size(); offset += 7) {
      std::string part;
      EXPECT_EQ(mounted.read(attributes.inode, offset, 13, part), 0);
      EXPECT_EQ(part, whole.substr(offset, 13)) << path << " at " << offset;
    }
  });
}

TEST(FileSystem, DescribesEachTensorInItsJson) {
  const Mounted mounted(many());

  const json object = json::parse(mounted.text(".stfs/json/w.json"));

  EXPECT_EQ(object["name"], "w");
  EXPECT_EQ(object["path"], "w");
  EXPECT_EQ(object["dtype"], "F32");
  EXPECT_EQ(object["shape"], (json{2, 1}));
  EXPECT_EQ(object["bytes"], 8);
  EXPECT_EQ(object["source"], fs::canonical(mounted.source()).string());
  EXPECT_EQ(read_file(mounted.source()).substr(object["offset"], 8), "12345678");
}

TEST(FileSystem, KeepsADirectoryApartFromAFileWithASuffix) {
  const Mounted mounted(many());

  EXPECT_EQ(json::parse(mounted.text(".stfs/json/a.json"))["name"], "a");
  EXPECT_EQ(json::parse(mounted.text(".stfs/json/a%2Ejson/b.json"))["name"], "a.json/b");
  const std::vector<std::string> names = mounted.names(".stfs/json");
  EXPECT_EQ(std::ranges::count(names, "a.json"), 1);
  EXPECT_EQ(std::ranges::count(names, "a%2Ejson"), 1);
}

TEST(FileSystem, WritesTheSuffixOfADirectoryInEveryMirrorTheSameWay) {
  const Mounted mounted({{"x.json/y.json/z", "U8", {1}, "1"}, {"q.json", "U8", {1}, "2"}});

  EXPECT_TRUE(mounted.at(".stfs/json/x%2Ejson/y%2Ejson/z.json"));
  EXPECT_TRUE(mounted.at(".stfs/json/q.json.json"));
  EXPECT_FALSE(mounted.at(".stfs/json/x.json"));
  EXPECT_FALSE(mounted.at(".stfs/json/q.json"));
  EXPECT_TRUE(mounted.at("x.json/y.json/z"));
  EXPECT_FALSE(mounted.at("x%2Ejson"));
}

TEST(FileSystem, ListsAllTensorsInTensorsJson) {
  const Mounted mounted({many(), {{"second", "U8", {1}, "2"}}}, {}, std::nullopt);

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
    EXPECT_EQ(tensors[i]["source"], tensor.source->file.path());
    EXPECT_EQ(tensors[i]["offset"], tensor.offset);
  }
}

TEST(FileSystem, ListsNoTensorsInTensorsJsonOfAnEmptyCheckpoint) {
  const Mounted mounted(std::vector<Tensor>{});

  EXPECT_EQ(json::parse(mounted.text(".stfs/tensors.json")), json::array());
  EXPECT_EQ(mounted.text(".stfs/tensors.tsv"), "path\tname\tdtype\tshape\tbytes\tsource\toffset\n");
}

TEST(FileSystem, ListsATensorALineInTensorsTsv) {
  const Mounted mounted(many());

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
             << tensor.source->file.path() << '\t' << tensor.offset;
    EXPECT_EQ(line, expected.str());
  }
  EXPECT_FALSE(std::getline(lines, line));
}

TEST(FileSystem, ReadsAnyPartOfALongTable) {
  std::vector<Tensor> tensors;
  for (int i = 0; i < 500; ++i) tensors.push_back({"t" + std::to_string(i), "U8", {1}, "x"});
  const Mounted mounted(tensors);
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

TEST(FileSystem, SumsUpTheCheckpointInInfoJson) {
  const Mounted mounted(
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

TEST(FileSystem, ServesTheHeaderByteForByte) {
  const Mounted mounted(many());
  const std::string file = read_file(mounted.source());

  const std::string header = mounted.text(".stfs/header/s0.safetensors.json");

  EXPECT_EQ(header, file.substr(8, header.size()));
  EXPECT_EQ(header, header_json(many()));
  EXPECT_EQ(mounted.names(".stfs/header"), std::vector<std::string>{"s0.safetensors.json"});
}

TEST(FileSystem, ServesEachEntryOfTheMetadata) {
  const Mounted mounted(
      {random_tensor("w", "U8", {1})}, {},
      Metadata{{"format", "pt"}, {"a/b", "\n"}, {"", "empty key"}, {"..", "dots"}});

  EXPECT_EQ(mounted.names(".stfs/metadata"),
            (std::vector<std::string>{"%", "%2E%2E", "a%2Fb", "format"}));
  EXPECT_EQ(mounted.text(".stfs/metadata/format"), "pt");
  EXPECT_EQ(mounted.text(".stfs/metadata/a%2Fb"), "\n");
  EXPECT_EQ(mounted.text(".stfs/metadata/%"), "empty key");
}

// Extended attributes.

TEST(FileSystem, GivesATensorItsExtendedAttributes) {
  const Mounted mounted(many());

  EXPECT_EQ(mounted.xattr("layers%2F0/q", "user.stfs.name"), "layers/0/q");
  EXPECT_EQ(mounted.xattr("layers%2F0/q", "user.stfs.dtype"), "BF16");
  EXPECT_EQ(mounted.xattr("empty", "user.stfs.shape"), "[0,3]");
  EXPECT_EQ(mounted.xattr("layers%2F1/q", "user.stfs.shape"), "[]");
  EXPECT_EQ(mounted.xattr("%", "user.stfs.name"), "");
}

TEST(FileSystem, LocatesTheBytesOfEachTensorByItsExtendedAttributes) {
  const Mounted mounted(many());

  mounted.walk("", [&](const std::string& path, const Attributes& attributes) {
    if (!S_ISREG(attributes.mode)) return;
    const std::string source = read_file(mounted.xattr(path, "user.stfs.source"));
    const std::uint64_t offset = std::stoull(mounted.xattr(path, "user.stfs.offset"));
    const std::uint64_t length = std::stoull(mounted.xattr(path, "user.stfs.length"));
    EXPECT_EQ(source.substr(offset, length), mounted.text(path)) << path;
    EXPECT_EQ(length, attributes.size);
  });
}

TEST(FileSystem, ListsTheNamesOfExtendedAttributesOfTensorsOnly) {
  const Mounted mounted(many());
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

TEST(FileSystem, AnswersOtherExtendedAttributesWithAnErrno) {
  const Mounted mounted(many());
  std::string value;

  EXPECT_EQ(mounted->get_xattr(mounted.inode("w"), "user.stfs.nothing", value), ENODATA);
  EXPECT_EQ(mounted->get_xattr(mounted.inode("w"), "user.other", value), ENODATA);
  EXPECT_EQ(mounted->get_xattr(kRoot, "user.stfs.name", value), ENODATA);
  EXPECT_EQ(mounted->get_xattr(mounted.inode("w"), "security.selinux", value), EOPNOTSUPP);
  EXPECT_EQ(mounted->get_xattr(mounted.inode("w"), "system.posix_acl_access", value), EOPNOTSUPP);
  EXPECT_EQ(mounted->get_xattr(mounted.inode("w"), "", value), EOPNOTSUPP);
  EXPECT_EQ(mounted->get_xattr(kMost, "user.stfs.name", value), ENOENT);
}

TEST(FileSystem, AnswersAnExtendedAttributeOverTheKernelsLimitWithAnErrno) {
  const Mounted mounted({random_tensor(std::string(65536, 'n'), "U8", {1}),
                         random_tensor(std::string(65537, 'm'), "U8", {1})});
  std::string value;

  EXPECT_EQ(mounted->get_xattr(mounted.list(kRoot)[3].attributes.inode, "user.stfs.name", value),
            0);
  EXPECT_EQ(mounted->get_xattr(mounted.list(kRoot)[2].attributes.inode, "user.stfs.name", value),
            E2BIG);
}

// A source that changes.

TEST(FileSystem, FailsOpensAndReadsOfASourceThatChangedAndLogsOnce) {
  Mounted mounted({{{"a", "U8", {4}, "1234"}}, {{"b", "U8", {4}, "5678"}}}, {}, std::nullopt);
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

TEST(FileSystem, LogsAChangeThatAReadFinds) {
  Mounted mounted({random_tensor("a", "U8", {4})});
  ASSERT_EQ(mounted->open(mounted.inode("a")), 0);
  write_file(mounted.source(), read_file(mounted.source()));
  std::string bytes;

  EXPECT_EQ(mounted.read(mounted.inode("a"), 0, 4, bytes), ESTALE);

  EXPECT_EQ(mounted.log.size(), 1U);
}

TEST(FileSystem, GoesOnWithTheOtherSourcesAndWithWhatNeedsNone) {
  Mounted mounted({{{"a", "U8", {4}, "1234"}}, {{"b", "U8", {4}, "5678"}}}, {},
                  Metadata{{"k", "v"}});
  fs::resize_file(mounted.source(0), 10);
  ASSERT_EQ(mounted->open(mounted.inode("a")), ESTALE);

  EXPECT_EQ(mounted->open(mounted.inode("b")), 0);
  EXPECT_EQ(mounted.text("b"), "5678");
  EXPECT_EQ(mounted.text(".stfs/metadata/k"), "v");
  EXPECT_EQ(json::parse(mounted.text(".stfs/tensors.json")).size(), 2U);
  EXPECT_EQ(mounted.at("a")->size, 4U) << "the size is that of the version that was mounted";
}

TEST(FileSystem, FailsTheHeaderOfASourceThatChanged) {
  Mounted mounted({random_tensor("a", "U8", {4})});
  fs::resize_file(mounted.source(), 10);
  std::string bytes;

  EXPECT_EQ(mounted.read(mounted.inode(".stfs/header/s0.safetensors.json"), 0, 4, bytes), ESTALE);
}

TEST(FileSystem, GoesOnWithTheOldBytesOfASourceThatWasReplaced) {
  Mounted mounted({{"a", "U8", {4}, "1234"}});
  write_file(mounted.source() + ".new", "other");
  fs::rename(mounted.source() + ".new", mounted.source());

  EXPECT_EQ(mounted.text("a"), "1234");
  EXPECT_TRUE(mounted.log.empty());
}

TEST(FileSystem, CutsAReadAtTheEndOfTheFile) {
  const Mounted mounted({{"a", "U8", {4}, "1234"}, {"b", "U8", {4}, "5678"}});
  std::string bytes;

  EXPECT_EQ(mounted.read(mounted.inode("a"), 2, kMost, bytes), 0);
  EXPECT_EQ(bytes, "34");
  EXPECT_EQ(mounted.read(mounted.inode("a"), kMost, kMost, bytes), 0);
  EXPECT_EQ(bytes, "34");
}

}  // namespace
}  // namespace stfs::test
