// A small checkpoint, and the tree that each release showed for it (tests/golden). Later releases
// must show the same tree.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/mounted.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::test {
namespace {

class Golden : public MountTest {};

// Names that are only looked up, because no directory lists them. Only append to this list, because
// the file of a release contains the names that existed then.
const std::vector<std::string> kLookedUp{
    ".stfs/slice/types.F32/1:3,:",    ".stfs/slice/types.F32/-1",
    ".stfs/slice/types.BF16/::2,1:",  ".stfs/slice/types.F4/0:2",
    ".stfs/slice/scalar/...",         ".stfs/npy-slice/types.F16/:,0.npy",
    ".stfs/npy-slice/a/b/2:4.npy",    ".stfs/subset/types.F8_*.safetensors",
    ".stfs/subset/a%2F*.safetensors",
};

// Writes two shards and their index, with the same bytes and mtimes in every run.
void write_checkpoint(const std::filesystem::path& directory) {
  std::vector<std::vector<Tensor>> shards(2);
  std::uint64_t seed = 0;
  for (const char* dtype :
       {"BOOL",    "U8",          "I8",          "U16",     "I16",     "U32",    "I32", "U64",
        "I64",     "F16",         "BF16",        "F32",     "F64",     "C64",    "F4",  "F8_E4M3",
        "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0", "F6_E2M3", "F6_E3M2"}) {
    ++seed;
    shards[seed % 2].push_back(random_tensor(std::string("types.") + dtype, dtype, {4, 2}, seed));
  }
  shards[0].push_back(random_tensor("empty", "F32", {0, 3}, ++seed));
  shards[0].push_back(random_tensor("scalar", "F32", {}, ++seed));
  shards[0].push_back(random_tensor("a/b", "I16", {5}, ++seed));
  shards[0].push_back(random_tensor("a/b/c", "U8", {3}, ++seed));
  shards[1].push_back(random_tensor("a/tree.of.dots", "BF16", {2, 3, 4}, ++seed));
  shards[1].push_back(random_tensor("a.npy/b.json", "U8", {7}, ++seed));
  shards[1].push_back(random_tensor("50%\n/../.stfs/", "U8", {1}, ++seed));
  shards[1].push_back(random_tensor(std::string(300, 'n'), "I8", {2}, ++seed));

  std::map<std::string, std::string> files;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string file = "model-0000" + std::to_string(i + 1) + "-of-00002.safetensors";
    write_safetensors(directory / file, shards[i],
                      Metadata{{"format", "pt"}, {"a/key", "größe"}, {"shard", std::to_string(i)}});
    for (const Tensor& tensor : shards[i]) files[tensor.name] = file;
  }
  write_index(directory / "model.safetensors.index.json", files);
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    constexpr timespec kTime{1'700'000'000, 123'456'789};
    const timespec times[2] = {kTime, kTime};
    checked(::utimensat(AT_FDCWD, entry.path().c_str(), times, 0), "utimensat");
  }
}

// Replaces `directory` in `text` by "@". Returns true if the text contained it.
bool replace_directory(std::string_view directory, std::string& text) {
  bool found = false;
  for (std::size_t at = text.find(directory); at != std::string::npos;
       at = text.find(directory, at)) {
    text.replace(at, directory.size(), "@");
    found = true;
  }
  return found;
}

using Tree = std::map<std::string, std::string>;  // path and "KIND\tSIZE\tSHA-256"

// Files of which only the name is compared, because a later release may change their text.
const std::set<std::string> kNoBytesPromised{".stfs/counters.json", ".stfs/report.html"};

// Returns everything below `root`, without the sizes of texts that contain the path of the
// checkpoint's directory.
Tree tree_of(const std::filesystem::path& root, std::string_view directory) {
  std::vector<std::string> paths = kLookedUp;
  for (const auto& start : {root, root / ".stfs"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(start))
      paths.push_back(entry.path().lexically_relative(root));
  }
  Tree tree;
  const TempDir texts;
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    if (std::filesystem::is_directory(root / path)) {
      tree[path] = "directory\t-\t-";
      continue;
    }
    if (kNoBytesPromised.contains(path)) {
      tree[path] = "file\t-\t-";
      continue;
    }
    std::string text = read_file(root / path);
    const bool has_directory = replace_directory(directory, text);
    const std::uintmax_t size = std::filesystem::file_size(root / path);
    tree[path] = "file\t" + (has_directory ? "-" : std::to_string(size)) + "\t";
    write_file(texts / std::to_string(files.size()), text);
    files.push_back(path);
  }
  std::istringstream digests(
      sh(R"(cd "$1" && sha256sum $(seq 0 "$2"))", {texts.path(), std::to_string(files.size() - 1)})
          .out);
  std::size_t number = 0;
  for (std::string digest; digests >> digest >> number;) tree[files.at(number)] += digest;
  return tree;
}

TEST_F(Golden, ShowsEveryFileOfEarlierReleases) {
  const TempDir dir;
  write_checkpoint(dir.path());
  const Mounted mount({dir / "model.safetensors.index.json"});
  const std::filesystem::path golden = test_data("../golden");

  const Tree shown = tree_of(mount.path(), std::filesystem::canonical(dir.path()).string());

  if (std::getenv("STFS_WRITE_GOLDEN") != nullptr) {
    std::string text;
    for (const auto& [path, rest] : shown) text += path + '\t' + rest + '\n';
    write_file(golden / STFS_VERSION ".tsv", text);
  }
  ASSERT_FALSE(names_in(golden).empty());
  for (const std::string& release : names_in(golden)) {
    std::istringstream lines(read_file(golden / release));
    for (std::string line; std::getline(lines, line);) {
      const std::string path = line.substr(0, line.find('\t'));
      const auto found = shown.find(path);
      EXPECT_EQ(found == shown.end() ? path : path + '\t' + found->second, line) << release;
    }
  }
}

}  // namespace
}  // namespace stfs::test
