// The mounted file system without a mount.
#include "fs/filesystem.h"

#include "core/catalogue.h"
#include "tests/support/checkpoint_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
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
    filesystem_ = std::make_unique<FileSystem>(
        *checkpoint_, options, [this](const std::string& line) { log.push_back(line); });
  }

  FileSystem* operator->() const { return filesystem_.get(); }
  const Checkpoint& checkpoint() const { return *checkpoint_; }
  const std::string& source(std::size_t number = 0) const { return paths_[number]; }

  // What stands at a path from the root: "", ".stfs/info.json".
  std::optional<Attributes> at(const std::string& path) const {
    std::optional<Attributes> found = filesystem_->attributes(kRoot);
    std::istringstream components(path);
    for (std::string component; found && std::getline(components, component, '/');) {
      const std::uint64_t directory = found->inode;
      if (look_up(directory, component, *found) != 0) found = std::nullopt;
    }
    return found;
  }
  // An errno, or 0.
  int look_up(std::uint64_t directory, std::string_view name, Attributes& found) const {
    return filesystem_->lookup(directory, name, found);
  }
  int look_up(std::uint64_t directory, std::string_view name) const {
    Attributes found{};
    return look_up(directory, name, found);
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
  std::unique_ptr<FileSystem> filesystem_;
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
      for (const std::uint64_t number : {0ULL, 1ULL, 2ULL, 1ULL << 16, 0x7fffffffULL, 0x80000000ULL,
                                         0xffffffffULL, 1ULL << 32, (1ULL << 55) - 1}) {
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

// Looking up and listing.

TEST(FileSystem, FindsNothingWhereNothingIs) {
  const Mounted mounted(many());

  for (const char* path : {"nothing", "w/x", "layers/0", ".stfs/nothing", ".stfs/json/w",
                           ".stfs/header/x", ".stfs/info.json/x"}) {
    EXPECT_FALSE(mounted.at(path)) << path;
  }
  EXPECT_EQ(mounted.look_up(kRoot, ""), ENOENT);
  EXPECT_EQ(mounted.look_up(kRoot, "a.json/b"), ENOENT);
  EXPECT_EQ(mounted.look_up(mounted.inode("w"), "w"), ENOENT);
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

  EXPECT_EQ(
      mounted.names(".stfs"),
      (std::vector<std::string>{"info.json", "tensors.json", "tensors.tsv", "merged.safetensors",
                                "header", "metadata", "json", "npy", "f32", "npy-f32", "slice",
                                "npy-slice", "tree", "safetensors", "subset", "stats", "sha256"}));
}

TEST(FileSystem, GivesEveryFileTheSizeOfItsContent) {
  const Mounted mounted(many(), {}, Metadata{{"format", "pt"}, {"empty", ""}});

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

TEST(FileSystem, ReadsAnyPartOfEveryFile) {
  const Mounted mounted(many(), {}, Metadata{{"format", "pt"}});

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

// Views.

// One tensor of every type, 8 elements each.
std::vector<Tensor> every_type() {
  std::vector<Tensor> tensors;
  for (int i = 0; i < kDTypeCount; ++i) {
    const std::string dtype(dtype_name(static_cast<DType>(i)));
    tensors.push_back(random_tensor(dtype, dtype, {2, 4}, static_cast<std::uint64_t>(i + 1)));
  }
  return tensors;
}

const std::set<std::string> kSubByte{"F4", "F6_E2M3", "F6_E3M2"};
const std::set<std::string> kFloating{"F4",      "F6_E2M3", "F6_E3M2",     "F8_E5M2",
                                      "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ",
                                      "F16",     "BF16",    "F32",         "F64"};

std::set<std::string> names_with(const std::string& suffix,
                                 const std::function<bool(const std::string&)>& is_shown) {
  std::set<std::string> names;
  for (const Tensor& tensor : every_type()) {
    if (is_shown(tensor.name)) names.insert(tensor.name + suffix);
  }
  return names;
}

TEST(Views, ShowTheTypesThatTheyCanShow) {
  const Mounted mounted(every_type());
  const auto listed = [&](const std::string& view) {
    const std::vector<std::string> names = mounted.names(".stfs/" + view);
    return std::set<std::string>(names.begin(), names.end());
  };
  const auto any = [](const std::string&) { return true; };
  const auto is_floating = [](const std::string& name) { return kFloating.contains(name); };
  const auto fits_numpy = [](const std::string& name) { return !kSubByte.contains(name); };

  EXPECT_EQ(listed("json"), names_with(".json", any));
  EXPECT_EQ(listed("npy"), names_with(".npy", fits_numpy));
  EXPECT_EQ(listed("f32"), names_with("", is_floating));
  EXPECT_EQ(listed("npy-f32"), names_with(".npy", is_floating));
  EXPECT_EQ(listed("slice"), names_with("", any));
  EXPECT_EQ(listed("npy-slice"), names_with("", fits_numpy));
  EXPECT_EQ(listed("tree"), names_with("", any));
  EXPECT_EQ(listed("safetensors"), names_with(".safetensors", any));
  EXPECT_EQ(listed("stats"), names_with(".json", any));
  EXPECT_EQ(listed("sha256"), names_with("", any));
  EXPECT_TRUE(listed("subset").empty());
}

TEST(Views, FindNothingOfATypeThatTheyDoNotShow) {
  const Mounted mounted(every_type());

  for (const std::string& name : kSubByte) {
    EXPECT_FALSE(mounted.at(".stfs/npy/" + name + ".npy"));
    EXPECT_FALSE(mounted.at(".stfs/npy-slice/" + name));
    EXPECT_TRUE(mounted.at(".stfs/npy-f32/" + name + ".npy"));
  }
  for (const char* name : {"BOOL", "U8", "I64", "C64"}) {
    EXPECT_FALSE(mounted.at(".stfs/f32/"s + name)) << name;
    EXPECT_FALSE(mounted.at(".stfs/npy-f32/"s + name + ".npy")) << name;
  }
}

TEST(Views, OfNumpyLeaveOutATensorOfMoreDimensionsThanNumpyHas) {
  const Mounted mounted(
      {random_tensor("64", "F32", Shape(64, 1)), random_tensor("65", "F32", Shape(65, 1))});

  EXPECT_EQ(mounted.names(".stfs/npy"), std::vector<std::string>{"64.npy"});
  EXPECT_EQ(mounted.names(".stfs/npy-f32"), std::vector<std::string>{"64.npy"});
  EXPECT_EQ(mounted.names(".stfs/npy-slice"), std::vector<std::string>{"64"});
  EXPECT_EQ(mounted.names(".stfs/f32"), (std::vector<std::string>{"64", "65"}));
  EXPECT_FALSE(mounted.at(".stfs/npy/65.npy"));
}

TEST(Views, HoldTheBytesOfTheTensorBehindTheHeaderOfNumpy) {
  const Mounted mounted(every_type());

  for (const Tensor& tensor : every_type()) {
    if (kSubByte.contains(tensor.name)) continue;
    const std::string file = mounted.text(".stfs/npy/" + tensor.name + ".npy");
    ASSERT_EQ(file.size() % 64, tensor.bytes.size() % 64);
    EXPECT_EQ(file.substr(file.size() - tensor.bytes.size()), tensor.bytes);
    EXPECT_TRUE(file.starts_with("\x93NUMPY\x01\x00"s));
    EXPECT_NE(file.find("'shape': (2, 4)"), std::string::npos);
  }
}

TEST(Views, HoldTheValuesAsFloat32) {
  const Mounted mounted({{"w", "BF16", {2}, "\x80\x3f\x00\xc0"s}, {"f", "F32", {1}, "abcd"}});
  const std::string floats = "\x00\x00\x80\x3f\x00\x00\x00\xc0"s;

  EXPECT_EQ(mounted.text(".stfs/f32/w"), floats);
  EXPECT_EQ(mounted.at(".stfs/f32/w")->size, 8U);
  EXPECT_EQ(mounted.text(".stfs/f32/f"), "abcd");
  const std::string npy = mounted.text(".stfs/npy-f32/w.npy");
  EXPECT_EQ(npy.substr(npy.size() - 8), floats);
  EXPECT_NE(npy.find("'<f4'"), std::string::npos);
}

TEST(Views, WriteTheirSuffixInADirectorysNameAsAnEscape) {
  for (const auto& [view, suffix] :
       std::map<std::string, std::string>{{"json", "json"},
                                          {"npy", "npy"},
                                          {"npy-f32", "npy"},
                                          {"safetensors", "safetensors"},
                                          {"stats", "json"}}) {
    const Mounted mounted({random_tensor("a", "F32", {1}),
                           random_tensor("a." + suffix + "/b", "F32", {1}),
                           random_tensor("c." + suffix, "F32", {1})});
    const std::string root = ".stfs/" + view;

    EXPECT_EQ(mounted.names(root), (std::vector<std::string>{"a." + suffix, "a%2E" + suffix,
                                                             "c." + suffix + "." + suffix}))
        << view;
    EXPECT_TRUE(S_ISREG(mounted.at(root + "/a." + suffix)->mode));
    EXPECT_TRUE(mounted.at(root + "/a%2E" + suffix + "/b." + suffix));
    EXPECT_FALSE(mounted.at(root + "/c." + suffix)) << "only with its suffix";
    EXPECT_FALSE(mounted.at(root + "/a"));
  }
}

TEST(Views, WithoutASuffixKeepTheNamesOfTheRoot) {
  const Mounted mounted({random_tensor("a", "F32", {1}), random_tensor("a.npy/b", "F32", {1})});

  for (const std::string view : {"f32", "slice", "npy-slice", "sha256"}) {
    EXPECT_EQ(mounted.names(".stfs/" + view), (std::vector<std::string>{"a", "a.npy"})) << view;
    EXPECT_TRUE(mounted.at(".stfs/" + view + "/a.npy/b"));
  }
}

TEST(Views, OfNamesAsLongAsCanBeHaveNamesThatALinuxFileMayHave) {
  const Mounted mounted({random_tensor(std::string(240, 'n'), "F32", {1}),
                         random_tensor(std::string(400, 'm'), "F32", {1}),
                         random_tensor(std::string(228, 'd') + ".safetensors/x", "F32", {1})});

  mounted.walk_all([](const std::string& path, const Attributes&) {
    EXPECT_LE(path.size() - (path.rfind('/') + 1), 255U) << path;
  });
}

// Slices.

TEST(Slices, AreCutOutOfATensor) {
  const Mounted mounted({{"w", "U8", {3, 4}, "abcdefghijkl"}});

  EXPECT_EQ(mounted.text(".stfs/slice/w/1"), "efgh");
  EXPECT_EQ(mounted.text(".stfs/slice/w/:,1"), "bfj");
  EXPECT_EQ(mounted.text(".stfs/slice/w/::2,1::2"), "bdjl");
  EXPECT_EQ(mounted.text(".stfs/slice/w/-1,-1"), "l");
  EXPECT_EQ(mounted.text(".stfs/slice/w/...,0"), "aei");
  EXPECT_EQ(mounted.text(".stfs/slice/w/..."), "abcdefghijkl");
  EXPECT_EQ(mounted.text(".stfs/slice/w/2:1"), "");
  EXPECT_EQ(mounted.at(".stfs/slice/w/:,1")->size, 3U);
  EXPECT_EQ(mounted.at(".stfs/slice/w/:,1")->mode, static_cast<mode_t>(S_IFREG | 0444));
  EXPECT_EQ(mounted.at(".stfs/slice/w/:,1")->mtime.tv_sec, 1'000'000'001);
  const std::string npy = mounted.text(".stfs/npy-slice/w/:,1:3.npy");
  EXPECT_EQ(npy.substr(npy.size() - 6), "bcfgjk");
  EXPECT_NE(npy.find("'shape': (3, 2)"), std::string::npos);
  const std::string scalar = mounted.text(".stfs/npy-slice/w/0,0.npy");
  EXPECT_NE(scalar.find("'shape': ()"), std::string::npos);
}

TEST(Slices, AnswerABadExpressionWithItsErrno) {
  const Mounted mounted({{"w", "U8", {3, 4}, "abcdefghijkl"}, {"f", "F4", {2, 2}, "xy"}});
  const std::uint64_t w = mounted.inode(".stfs/slice/w");
  const std::uint64_t npy = mounted.inode(".stfs/npy-slice/w");

  for (const char* bad : {"x", "0,0,0", "::-1", "0 ", "", "1:2:3:4"}) {
    EXPECT_EQ(mounted.look_up(w, bad), EINVAL) << bad;
    EXPECT_EQ(mounted.look_up(npy, bad + ".npy"s), EINVAL) << bad;
  }
  for (const char* outside : {"3", "-4", "0,4"}) {
    EXPECT_EQ(mounted.look_up(w, outside), ERANGE) << outside;
    EXPECT_EQ(mounted.look_up(npy, outside + ".npy"s), ERANGE) << outside;
  }
  EXPECT_EQ(mounted.look_up(npy, "0"), ENOENT);
  EXPECT_EQ(mounted.look_up(mounted.inode(".stfs/slice/f"), "0,0"), EINVAL);
  EXPECT_EQ(mounted.look_up(mounted.inode(".stfs/slice/f"), "0"), 0);
  EXPECT_EQ(mounted->looked_up_names(), 1U) << "what was refused is not kept";
}

TEST(Slices, AreInDirectoriesThatListNothingAndKnowTheirParent) {
  const Mounted mounted({random_tensor("a/b", "F32", {2}), random_tensor("c", "F32", {2})});

  for (const std::string view : {".stfs/slice", ".stfs/npy-slice"}) {
    for (const auto& [path, parent] :
         std::map<std::string, std::string>{{"/a/b", "/a"}, {"/c", ""}}) {
      const std::uint64_t directory = mounted.inode(view + path);
      const std::vector<Listed> listed = mounted.list(directory);
      ASSERT_EQ(listed.size(), 2U) << view << path;
      EXPECT_EQ(listed[1].attributes.inode, mounted.inode(view + parent)) << view << path;
      EXPECT_EQ(mounted->open(directory), EISDIR);
    }
  }
}

TEST(Slices, AreForgottenAsOftenAsTheyWereLookedUp) {
  const Mounted mounted({random_tensor("w", "U8", {10})});
  const std::uint64_t w = mounted.inode(".stfs/slice/w");
  Attributes found{};
  ASSERT_EQ(mounted.look_up(w, "3:5", found), 0);
  ASSERT_EQ(mounted.look_up(w, "3:5"), 0);
  EXPECT_EQ(mounted->looked_up_names(), 1U);

  mounted->forget(found.inode, 1);
  EXPECT_TRUE(mounted->attributes(found.inode));
  mounted->forget(found.inode, 1);

  EXPECT_EQ(mounted->looked_up_names(), 0U);
  EXPECT_FALSE(mounted->attributes(found.inode));
  EXPECT_EQ(mounted->open(found.inode), ENOENT);
  std::string bytes;
  EXPECT_EQ(mounted.read(found.inode, 0, 1, bytes), ENOENT);
}

TEST(Slices, ThatAreForgottenLeaveNothingBehind) {
  const Mounted mounted({random_tensor("w", "U8", {1000, 1000})});
  const std::uint64_t w = mounted.inode(".stfs/slice/w");

  for (int i = 0; i < 100'000; ++i) {
    Attributes found{};
    ASSERT_EQ(mounted.look_up(w, std::to_string(i % 1000) + "," + std::to_string(i / 1000), found),
              0);
    mounted->forget(found.inode, 1);
  }

  EXPECT_EQ(mounted->looked_up_names(), 0U);
}

TEST(FileSystem, TakesForgettingWhatIsNotLookedUpCalmly) {
  const Mounted mounted(many());

  mounted.walk_all([&](const std::string&, const Attributes& attributes) {
    mounted->forget(attributes.inode, 1);
    EXPECT_TRUE(mounted->attributes(attributes.inode));
  });
  for (int view = 0; view < 256; ++view) {
    mounted->forget((static_cast<std::uint64_t>(view) << 56 | 1ULL << 55) + 1, 1);
  }
}

// What another reader of the format makes of a file: name to bytes.
std::map<std::string, std::string> tensors_in(const std::string& file) {
  std::map<std::string, std::string> out;
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  const json header = json::parse(file.substr(8, length));
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    const std::uint64_t begin = value["data_offsets"][0];
    const std::uint64_t end = value["data_offsets"][1];
    out[name] = file.substr(8 + length + begin, end - begin);
  }
  return out;
}

TEST(Subsets, HoldTheTensorsWhoseNamesMatch) {
  const Mounted mounted({{"layers/0/q", "U8", {1}, "1"},
                         {"layers/1/q", "U8", {1}, "2"},
                         {"layers/0/k", "U8", {1}, "3"},
                         {"head", "U8", {1}, "4"},
                         {"", "U8", {1}, "5"},
                         {"50%", "U8", {1}, "6"}});
  const auto names = [&](const std::string& glob) {
    std::set<std::string> out;
    const std::string file = mounted.text(".stfs/subset/" + glob + ".safetensors");
    for (const auto& [name, bytes] : tensors_in(file)) out.insert(name);
    return out;
  };

  EXPECT_EQ(names("layers%2F*%2Fq"), (std::set<std::string>{"layers/0/q", "layers/1/q"}));
  EXPECT_EQ(names("layers%2F0%2F?"), (std::set<std::string>{"layers/0/q", "layers/0/k"}));
  EXPECT_EQ(names("*[qd]"), (std::set<std::string>{"layers/0/q", "layers/1/q", "head"}));
  EXPECT_EQ(names("*").size(), 6U);
  EXPECT_EQ(names("head"), std::set<std::string>{"head"});
  EXPECT_EQ(names("%"), std::set<std::string>{""});
  EXPECT_EQ(names("50%25"), std::set<std::string>{"50%"});
  EXPECT_FALSE(mounted.at(".stfs/subset/nothing*.safetensors"));
  EXPECT_FALSE(mounted.at(".stfs/subset/*"));
  EXPECT_FALSE(mounted.at(".stfs/subset/%zz.safetensors"));
  EXPECT_TRUE(mounted.names(".stfs/subset").empty());
}

TEST(Subsets, AreForgotten) {
  const Mounted mounted(many());
  Attributes found{};
  ASSERT_EQ(mounted.look_up(mounted.inode(".stfs/subset"), "*.safetensors", found), 0);
  EXPECT_EQ(found.size, mounted.text(".stfs/merged.safetensors").size());
  std::string bytes;
  EXPECT_EQ(mounted.read(found.inode, 0, kMost, bytes), 0);
  EXPECT_EQ(bytes, mounted.text(".stfs/merged.safetensors"));

  mounted->forget(found.inode, 1);

  EXPECT_EQ(mounted->looked_up_names(), 0U);
  EXPECT_EQ(mounted->open(found.inode), ENOENT);
}

TEST(Views, HoldEachTensorAloneAsAFileOfTheFormat) {
  const Mounted mounted(many(), {}, Metadata{{"format", "pt"}});

  for (const Tensor& tensor : many()) {
    const auto number = mounted.checkpoint().find(tensor.name);
    const std::string path(mounted.checkpoint().tensor(*number).path);
    const auto found = tensors_in(mounted.text(".stfs/safetensors/" + path + ".safetensors"));
    EXPECT_EQ(found, (std::map<std::string, std::string>{{tensor.name, tensor.bytes}}));
  }
}

TEST(Views, HoldAllTensorsOfAllSourcesInOneFile) {
  const Mounted mounted({many(), {{"second", "F64", {1}, "12345678"}}}, {}, Metadata{{"k", "v"}});

  const auto found = tensors_in(mounted.text(".stfs/merged.safetensors"));

  EXPECT_EQ(found.size(), many().size() + 1);
  for (const Tensor& tensor : many()) EXPECT_EQ(found.at(tensor.name), tensor.bytes);
  EXPECT_EQ(found.at("second"), "12345678");
}

TEST(Views, GiveTheRootsFilesAgainInATreeOfDots) {
  const Mounted mounted({{"model.layers.0.w", "U8", {1}, "1"},
                         {"model.layers.1.w", "U8", {1}, "2"},
                         {"model.norm", "U8", {1}, "3"},
                         {"plain", "U8", {1}, "4"}});

  EXPECT_EQ(mounted.names(".stfs/tree"), (std::vector<std::string>{"model", "plain"}));
  EXPECT_EQ(mounted.names(".stfs/tree/model"), (std::vector<std::string>{"layers", "norm"}));
  EXPECT_EQ(mounted.text(".stfs/tree/model/layers/1/w"), "2");
  EXPECT_EQ(mounted.xattr(".stfs/tree/model/layers/1/w", "user.stfs.name"), "model.layers.1.w");
  std::string names;
  EXPECT_EQ(mounted->list_xattr(mounted.inode(".stfs/tree/plain"), names), 0);
  EXPECT_TRUE(names.starts_with("user.stfs.name"));
  EXPECT_EQ(mounted.list(mounted.inode(".stfs/tree/model/layers"))[1].attributes.inode,
            mounted.inode(".stfs/tree/model"));
}

// Computed files.

struct Computation {
  int error = -1;
  std::string bytes;
};

Computation computed(const Mounted& mounted, std::uint64_t inode, std::uint64_t offset = 0,
                     std::uint64_t length = kMost) {
  std::promise<Computation> promise;
  mounted->read_computed(mounted->ticket(), inode, offset, length,
                         [&](int error, std::string_view bytes) {
                           promise.set_value({error, std::string(bytes)});
                         });
  return promise.get_future().get();
}

TEST(ComputedFiles, HoldTheStatisticsAndTheDigest) {
  const Mounted mounted({{"a/b", "U8", {3}, "abc"}});

  const json stats = json::parse(computed(mounted, mounted.inode(".stfs/stats/a/b.json")).bytes);
  const Computation digest = computed(mounted, mounted.inode(".stfs/sha256/a/b"));

  EXPECT_EQ(stats["count"], 3);
  EXPECT_EQ(stats["min"], 97);
  EXPECT_EQ(stats["mean"], 98);
  EXPECT_EQ(digest.error, 0);
  EXPECT_EQ(digest.bytes,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a/b\n");
  EXPECT_EQ(mounted.at(".stfs/sha256/a/b")->size, 0U);
  EXPECT_TRUE(mounted->is_computed(mounted.inode(".stfs/sha256/a/b")));
  EXPECT_FALSE(mounted->is_computed(mounted.inode("a/b")));
}

TEST(ComputedFiles, GiveAnyPart) {
  const Mounted mounted({{"w", "U8", {3}, "abc"}});
  const std::uint64_t inode = mounted.inode(".stfs/stats/w.json");
  const std::string whole = computed(mounted, inode).bytes;

  EXPECT_TRUE(whole.ends_with("}\n"));
  for (std::uint64_t offset = 0; offset <= whole.size() + 1; ++offset) {
    const std::string part = offset < whole.size() ? whole.substr(offset, 5) : "";
    EXPECT_EQ(computed(mounted, inode, offset, 5).bytes, part);
  }
  EXPECT_EQ(computed(mounted, inode, kMost, kMost).bytes, "");
}

TEST(ComputedFiles, OfAChangedSourceAreStaleAndHaveNoBytesAndAreLoggedOnce) {
  Mounted mounted({{"w", "U8", {3}, "abc"}});
  fs::resize_file(mounted.source(), 10);

  for (const char* path : {".stfs/stats/w.json", ".stfs/sha256/w"}) {
    EXPECT_EQ(mounted->open(mounted.inode(path)), ESTALE) << path;
    const Computation answer = computed(mounted, mounted.inode(path));
    EXPECT_EQ(answer.error, ESTALE) << path;
    EXPECT_EQ(answer.bytes, "") << path;
  }
  EXPECT_EQ(mounted.log.size(), 1U);
}

TEST(ComputedFiles, EndWithEintrWhenComputingIsStopped) {
  const Mounted mounted({{"w", "U8", {3}, "abc"}});
  mounted->stop_computing();

  EXPECT_EQ(computed(mounted, mounted.inode(".stfs/sha256/w")).error, EINTR);
}

// A source that changes, seen through every view.

class StaleViews : public ::testing::TestWithParam<const char*> {};

TEST_P(StaleViews, FailToOpenAndToRead) {
  Mounted mounted({{"w", "BF16", {8, 8}, RandomBytes(1).bytes(128)}});
  const std::uint64_t inode = mounted.inode(".stfs/"s + GetParam());
  ASSERT_EQ(mounted->open(inode), 0);
  fs::resize_file(mounted.source(), 10);
  std::string bytes;

  EXPECT_EQ(mounted->open(inode), ESTALE);
  EXPECT_EQ(mounted.read(inode, 0, kMost, bytes), ESTALE);
  EXPECT_EQ(mounted.log.size(), 1U);
}

TEST_P(StaleViews, FailToReadAndLogThatOnce) {
  Mounted mounted({{"w", "BF16", {8, 8}, RandomBytes(1).bytes(128)}});
  const std::uint64_t inode = mounted.inode(".stfs/"s + GetParam());
  fs::resize_file(mounted.source(), 10);
  std::string bytes;

  EXPECT_EQ(mounted.read(inode, 0, kMost, bytes), ESTALE);
  EXPECT_EQ(mounted.read(inode, 0, kMost, bytes), ESTALE);
  EXPECT_EQ(mounted.log.size(), 1U);
}

INSTANTIATE_TEST_SUITE_P(Views, StaleViews,
                         ::testing::Values("npy/w.npy", "f32/w", "npy-f32/w.npy", "slice/w/2:4",
                                           "slice/w/:,2:4", "npy-slice/w/2:4.npy",
                                           "npy-slice/w/:,2:4.npy", "tree/w",
                                           "safetensors/w.safetensors", "merged.safetensors",
                                           "subset/*.safetensors", "header/s0.safetensors.json"),
                         [](const auto& parameter) {
                           std::string name;
                           for (const char c : std::string(parameter.param)) {
                             name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace stfs::test
