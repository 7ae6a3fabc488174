// Hostile names. Each is listed, its file has the tensor's bytes and true name, and it can be
// copied to an ordinary file system.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/long_tests.h"
#include "tests/support/mounted.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

class HostileNames : public MountTest {
 protected:
  // Returns the paths and bytes of the regular files below a directory.
  static std::map<std::string, std::string> files_below(const std::filesystem::path& root) {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
      if (entry.is_directory()) continue;
      const std::string path = entry.path().lexically_relative(root);
      EXPECT_TRUE(files.emplace(path, read_file(entry.path())).second) << path << " twice";
    }
    return files;
  }
};

// Returns names that are each difficult for a file system.
std::vector<std::string> names() {
  std::vector<std::string> names = {"",
                                    ".",
                                    "..",
                                    "...",
                                    "/",
                                    "//",
                                    "../..",
                                    "a/../b",
                                    "a/./b",
                                    "/etc/passwd",
                                    "~",
                                    "-rf",
                                    "*",
                                    "a",
                                    "a/b",
                                    "a/b/c",
                                    "a%2Fb",
                                    "A",
                                    "A/B",
                                    "ä",
                                    "a\u0308",
                                    "\u00e4/x",
                                    "K",
                                    "\u212a",
                                    "ß",
                                    "ẞ",
                                    "con",
                                    "CON",
                                    "nul.txt",
                                    "a:b",
                                    "a|b",
                                    "a<b>",
                                    "\"",
                                    "'",
                                    "`id`",
                                    "$(id)",
                                    "\\",
                                    "a\\b",
                                    "x ",
                                    " x",
                                    "x.",
                                    ".stfs",
                                    ".stfs/x",
                                    "x/.stfs",
                                    "%",
                                    "%%",
                                    "%00",
                                    "\u202etxt.exe",
                                    "\u200b",
                                    "\ufeff",
                                    "\U0001f600",
                                    "w.json",
                                    "w",
                                    "w.json/x",
                                    "w.npy",
                                    "w.npy/x",
                                    "model.layers.0.weight",
                                    "model/layers/0/weight",
                                    "a\nb",
                                    "a\tb",
                                    "\x1b[2J\x1b]0;owned\a",
                                    std::string("\0", 1),
                                    std::string("a\0b", 3),
                                    std::string(255, 'l'),
                                    std::string(100'000, 'l'),
                                    std::string(99'999, 'l') + "m",
                                    std::string(239, 'u') + "é"};
  for (char c = 1; c < 0x20; ++c) names.push_back(std::string("control") + c);
  names.push_back("control\x7f");
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
  return names;
}

TEST_F(HostileNames, CanBeListedReadAndCopied) {
  const TempDir dir;
  std::map<std::string, Tensor> tensors;
  std::vector<Tensor> written;
  for (const std::string& name : names()) {
    written.push_back(random_tensor(name, "U8", {64}, written.size() + 1));
    tensors[name] = written.back();
  }
  write_safetensors(dir / "m.safetensors", written);
  const Mounted mount({dir / "m.safetensors"});

  const auto files = files_below(mount.path());

  EXPECT_EQ(files.size(), tensors.size());
  std::set<std::string> found;
  for (const auto& [path, bytes] : files) {
    const auto name = xattr(mount / path, "user.stfs.name");
    if (!name) {  // over 64 KiB, the limit of an attribute
      EXPECT_EQ(errno, E2BIG) << path;
      continue;
    }
    ASSERT_TRUE(tensors.contains(*name)) << path;
    EXPECT_EQ(bytes, tensors.at(*name).bytes) << path;
    found.insert(*name);
  }
  EXPECT_EQ(found.size(), tensors.size() - 2);
  const Outcome copied = run({"cp", "-r", mount.path(), dir / "copy"});
  EXPECT_EQ(copied.status, 0) << copied.err;
  EXPECT_EQ(files_below(dir / "copy"), files);
  // Every view lists all names.
  const Outcome all =
      sh(R"(find "$1/.stfs/" -type f -print0 | xargs -0 stat -c %s | wc -l)", {mount.path()});
  EXPECT_EQ(all.err, "");
  EXPECT_GE(std::stoul(all.out), 6 * tensors.size());
}

TEST_F(HostileNames, ManyAliasesOfOneRangeAreListed) {
  const std::uint64_t count = long_or(1'000'000, 50'000);
  const TempDir dir;
  HeaderBuilder header;
  for (std::uint64_t i = 0; i < count; ++i) header.add("alias" + std::to_string(i), "U8", {0}, 0);
  header.add("w", "U8", {1}, 1);
  write_file(dir / "m.safetensors", safetensors_bytes(header.finish(), "x"));
  const Mounted mount({dir / "m.safetensors"});

  const std::vector<std::string> listed = names_in(mount.path());

  EXPECT_EQ(listed.size(), count + 1);
  EXPECT_EQ(std::ranges::adjacent_find(listed), listed.end());
  EXPECT_EQ(read_file(mount / ("alias" + std::to_string(count - 1))), "");
  EXPECT_EQ(read_file(mount / "w"), "x");
}

}  // namespace
}  // namespace stfs::test
