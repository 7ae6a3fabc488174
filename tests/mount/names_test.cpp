// Tensor names as paths. The expected paths are written by hand, from the rules of
// docs/SEMANTICS.md.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/mounted.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace stfs::test {
namespace {

using std::string_literals::operator""s;

class Names : public MountTest {
 protected:
  // Mounts tensors with these names. Expects that each path has the bytes and the name of its
  // tensor, and that a walk finds exactly these paths. Each case is {name, path}.
  static void expect_paths(const std::vector<std::pair<std::string, std::string>>& cases) {
    const TempDir dir;
    std::vector<Tensor> tensors;
    std::set<std::string> expected;
    for (const auto& [name, path] : cases) {
      tensors.push_back(random_tensor(name, "U8", {32}, tensors.size() + 1));
      expected.insert(path);
    }
    write_safetensors(dir / "m.safetensors", tensors);
    const Mounted mount({dir / "m.safetensors"});
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const std::string& path = cases[i].second;
      EXPECT_EQ(xattr(mount / path, "user.stfs.name"), cases[i].first) << path;
      if (std::filesystem::is_regular_file(mount / path)) {
        EXPECT_EQ(read_file(mount / path), tensors[i].bytes) << path;
      }
    }
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(mount.path()))
      if (!entry.is_directory()) {
        EXPECT_TRUE(found.insert(entry.path().lexically_relative(mount.path())).second);
      }
    EXPECT_EQ(found, expected);
  }
};

TEST_F(Names, MapToDocumentedPaths) {
  std::string deep = "d";
  for (int i = 0; i < 500; ++i) deep += "/d";
  expect_paths({{"a/b/c", "a/b/c"},
                {"a/d", "a/d"},
                {"100%", "100%25"},
                {"tab\there", "tab%09here"},
                {"line\nend", "line%0Aend"},
                {"nul\0nul"s, "nul%00nul"},
                {".", "%2E"},
                {"x/./y", "x/%2E/y"},
                {"x/.hidden", "x/.hidden"},
                {"../../etc/passwd", "%2E%2E/%2E%2E/etc/passwd"},
                {".stfs/info.json", "%2Estfs/info.json"},
                {"/lead", "%2Flead"},
                {"trail/", "trail%2F"},
                {"dou//ble", "dou/%2Fble"},
                {"t", "t"},
                {"t/u/v", "t%2Fu/v"},
                {"", "%"},
                {"größe", "größe"},
                {"重み", "重み"},
                {"-rf *", "-rf *"},
                {"q'u\"o`t$e\\", "q'u\"o`t$e\\"},
                {deep, deep}});
}

TEST_F(Names, SubsetMatchesNamesWithNul) {
  const TempDir dir;
  write_safetensors(dir / "m.safetensors",
                    {random_tensor("nul\0nul"s, "U8", {4}), random_tensor("other", "U8", {4})});
  const Mounted mount({dir / "m.safetensors"});
  for (const char* const glob : {"nul*", "nul?nul"}) {
    const std::string file =
        read_file(mount / ".stfs/subset" / (std::string(glob) + ".safetensors"));
    EXPECT_NE(file.find(R"("nul\u0000nul")"), std::string::npos) << glob;
    EXPECT_EQ(file.find("other"), std::string::npos) << glob;
  }
}

TEST_F(Names, LongComponentIsShortenedAndEndsWithDigest) {
  for (const std::size_t length : {241u, 10000u}) {
    const TempDir dir;
    const std::string name(length, 'x');
    const Tensor tensor = random_tensor(name, "U8", {32});
    write_safetensors(dir / "m.safetensors", {tensor});
    write_file(dir / "name", name);
    const Mounted mount({dir / "m.safetensors"});

    const std::vector<std::string> listed = names_in(mount.path());

    const std::string digest = run({"sha256sum", dir / "name"}).out.substr(0, 16);
    ASSERT_EQ(listed.size(), 1u);
    EXPECT_EQ(listed[0], std::string(223, 'x') + "~" + digest);
    EXPECT_EQ(read_file(mount / listed[0]), tensor.bytes);
    EXPECT_EQ(xattr(mount / listed[0], "user.stfs.name"), name);
  }
}

}  // namespace
}  // namespace stfs::test
