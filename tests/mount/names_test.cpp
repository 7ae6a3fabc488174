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
  // Mounts tensors of these names. Checks for each {name, path} that the path has that tensor's
  // bytes and true name, and that a walk finds exactly these paths.
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

TEST_F(Names, ASlashMakesADirectory) {
  expect_paths({{"a/b/c", "a/b/c"}, {"a/d", "a/d"}, {"e.f.g", "e.f.g"}});
}

TEST_F(Names, PercentAndControlCharactersAreEncoded) {
  expect_paths({{"100%", "100%25"},
                {"%2F", "%252F"},
                {"tab\there", "tab%09here"},
                {"line\nend", "line%0Aend"},
                {"nul\0nul"s, "nul%00nul"},
                {"del\x7f", "del%7F"},
                {"esc\x1b[31m", "esc%1B[31m"},
                {"\x1f", "%1F"}});
}

TEST_F(Names, ASubsetTakesNamesWithANul) {
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

TEST_F(Names, DotComponentsAreEncodedAndOtherDotsAreNot) {
  expect_paths({{".", "%2E"},
                {"..", "%2E%2E"},
                {"x/..", "x/%2E%2E"},
                {"x/./y", "x/%2E/y"},
                {"...", "..."},
                {".hidden", ".hidden"},
                {"x/.hidden", "x/.hidden"}});
}

TEST_F(Names, ANameCannotClimbOutOfTheMount) {
  expect_paths(
      {{"../../etc/passwd", "%2E%2E/%2E%2E/etc/passwd"}, {"/etc/shadow", "%2Fetc/shadow"}});
}

TEST_F(Names, AFirstComponentDotStfsIsEncodedAndALaterOneIsNot) {
  expect_paths(
      {{".stfs/info.json", "%2Estfs/info.json"}, {"x/.stfs", "x/.stfs"}, {".stfsx", ".stfsx"}});
}

TEST_F(Names, ATensorCalledDotStfsIsEncoded) { expect_paths({{".stfs", "%2Estfs"}}); }

TEST_F(Names, SlashesAtTheEndsAndAfterASlashAreEncoded) {
  expect_paths({{"/lead", "%2Flead"},
                {"trail/", "trail%2F"},
                {"dou//ble", "dou/%2Fble"},
                {"/", "%2F"},
                {"//", "%2F%2F"}});
}

TEST_F(Names, ASlashAfterATensorIsEncoded) {
  expect_paths({{"a", "a"}, {"a/b", "a%2Fb"}, {"a/c/d", "a%2Fc/d"}, {"ab/c", "ab/c"}});
}

TEST_F(Names, ASlashAfterATensorIsEncodedAtEachDepth) {
  expect_paths({{"a", "a"}, {"a/b", "a%2Fb"}, {"a/b/c", "a%2Fb%2Fc"}});
}

TEST_F(Names, TheEmptyNameIsAPercentSign) { expect_paths({{"", "%"}, {"%", "%25"}}); }

TEST_F(Names, UnicodeAndShellCharactersStandAsTheyAre) {
  expect_paths({{"größe", "größe"},
                {"重み", "重み"},
                {"😀", "😀"},
                {"two words", "two words"},
                {"-rf *", "-rf *"},
                {"q'u\"o`t$e\\", "q'u\"o`t$e\\"},
                {"c1\xc2\x85", "c1\xc2\x85"}});
}

TEST_F(Names, NamesThatEncodeAlikeStayApart) {
  expect_paths({{"x%2Fy", "x%252Fy"}, {"x", "x"}, {"x/y", "x%2Fy"}});
}

TEST_F(Names, AComponentOf240BytesStandsWhole) {
  const std::string name(240, 'n');
  expect_paths({{name, name}});
}

TEST_F(Names, ALongComponentIsCutAndEndsInItsDigest) {
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

TEST_F(Names, ALongComponentIsCutAtTheEndOfACharacter) {
  const TempDir dir;
  std::string name = "x";
  while (name.size() < 300) name += "é";  // two bytes each, one ends at byte 223
  const std::string shifted = "y" + name;
  write_safetensors(dir / "m.safetensors",
                    {random_tensor(name, "U8", {1}), random_tensor(shifted, "U8", {1})});
  const Mounted mount({dir / "m.safetensors"});

  const std::vector<std::string> listed = names_in(mount.path());

  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[0].substr(0, 224), name.substr(0, 223) + "~");
  EXPECT_EQ(listed[1].substr(0, 223), shifted.substr(0, 222) + "~");
}

TEST_F(Names, LongNamesThatDifferOnlyAtTheEndStayApart) {
  const TempDir dir;
  const std::string start(9999, 'x');
  const Tensor first = random_tensor(start + "1", "U8", {32}, 1);
  const Tensor second = random_tensor(start + "2", "U8", {32}, 2);
  write_safetensors(dir / "m.safetensors", {first, second});
  const Mounted mount({dir / "m.safetensors"});

  const std::vector<std::string> listed = names_in(mount.path());

  ASSERT_EQ(listed.size(), 2u);
  for (const std::string& path : listed) {
    const auto name = xattr(mount / path, "user.stfs.name");
    ASSERT_TRUE(name);
    EXPECT_EQ(read_file(mount / path), *name == first.name ? first.bytes : second.bytes);
  }
}

TEST_F(Names, ANameThatNoAttributeCanHoldIsInTheCatalogue) {
  const TempDir dir;
  const std::string name(100'000, 'x');  // an attribute holds 65536 bytes
  const Tensor tensor = random_tensor(name, "U8", {32});
  write_safetensors(dir / "m.safetensors", {tensor});
  const Mounted mount({dir / "m.safetensors"});

  const std::vector<std::string> listed = names_in(mount.path());

  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(read_file(mount / listed[0]), tensor.bytes);
  EXPECT_EQ(xattr(mount / listed[0], "user.stfs.name"), std::nullopt);
  EXPECT_EQ(errno, E2BIG);
  EXPECT_EQ(xattr(mount / listed[0], "user.stfs.dtype"), "U8");
  EXPECT_NE(read_file(mount / (".stfs/json/" + listed[0] + ".json")).find(name), std::string::npos);
}

TEST_F(Names, AVeryDeepNameIsReachable) {
  std::string name = "d";
  for (int i = 0; i < 500; ++i) name += "/d";
  expect_paths({{name, name}});
}

}  // namespace
}  // namespace stfs::test
