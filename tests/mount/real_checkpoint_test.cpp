// The published checkpoints in tests/data, read by standard tools.
#include "tests/support/checkpoint_reader.h"
#include "tests/support/mounted.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <map>
#include <string>

namespace stfs::test {
namespace {

class RealCheckpoint : public MountTest {};

std::map<std::string, TensorEntry> merged_entries() {
  return entries_of(test_data("single/dtypes.safetensors"));
}

TEST_F(RealCheckpoint, LsListsTensorsOfAllShardsWithExactSizes) {
  const Mounted mount({test_data("sharded")});

  const Outcome ls = sh(R"(ls -l "$1" | awk 'NR > 1 { print $9, $5 }')", {mount.path()});

  std::string expected;
  for (const auto& [name, entry] : merged_entries())
    expected += name + " " + std::to_string(entry.length) + "\n";
  EXPECT_EQ(ls.status, 0) << ls.err;
  EXPECT_EQ(ls.out, expected);
  EXPECT_EQ(merged_entries().size(), 36u);
}

TEST_F(RealCheckpoint, ShardedAndSingleMountsAreEqual) {
  const Mounted sharded({test_data("sharded")});
  const Mounted single({test_data("single/dtypes.safetensors")});

  const Outcome diff = run({"diff", "-r", sharded.path(), single.path()});

  EXPECT_EQ(diff.status, 0) << diff.out << diff.err;
}

TEST_F(RealCheckpoint, GetfattrShowsAttributes) {
  const Mounted mount({test_data("sharded")});
  const TensorEntry entry =
      entries_of(test_data("sharded/model-00005-of-00006.safetensors")).at("bfloat16_35");

  const Outcome getfattr = run({"getfattr", "--absolute-names", "-d", mount / "bfloat16_35"});

  const std::string expected = "# file: " + (mount / "bfloat16_35").string() +
                               "\nuser.stfs.dtype=\"BF16\""
                               "\nuser.stfs.length=\"30\""
                               "\nuser.stfs.name=\"bfloat16_35\""
                               "\nuser.stfs.offset=\"" +
                               std::to_string(entry.offset) +
                               "\""
                               "\nuser.stfs.shape=\"[3,5]\""
                               "\nuser.stfs.source=\"" +
                               std::filesystem::canonical(entry.source).string() +
                               "\""
                               "\nuser.stfs.version=\"" +
                               xattr(mount / "bfloat16_35", "user.stfs.version").value_or("") +
                               "\"\n\n";
  EXPECT_EQ(getfattr.out, expected) << getfattr.err;
}

TEST_F(RealCheckpoint, SourceAndOffsetAttributesLocateBytes) {
  const Mounted mount({test_data("sharded")});

  const Outcome check = sh(R"sh(
    cd "$1"
    for f in *; do
      get() { getfattr --only-values -n "user.stfs.$1" -- "$f"; }
      tail -c +$(($(get offset) + 1)) "$(get source)" | head -c "$(get length)" | cmp - "$f"
    done 2>&1)sh",
                           {mount.path()}, {.environment = {"LC_ALL=C"}});

  EXPECT_EQ(check.out, "");
}

TEST_F(RealCheckpoint, TarContainsEachTensorOnceAndRestoresBytes) {
  const Mounted mount({test_data("single/dtypes.safetensors")});
  const TempDir out;

  const Outcome tar = sh(R"(tar -C "$1" -cf - . | tee "$2/a.tar" | tar -tf - | sort
                        mkdir "$2/x"; tar -C "$2/x" -xf "$2/a.tar"; diff -r "$1" "$2/x")",
                         {mount.path(), out.path()}, {.environment = {"LC_ALL=C"}});

  std::string expected = "./\n";
  for (const auto& [name, entry] : merged_entries()) expected += "./" + name + "\n";
  EXPECT_EQ(tar.status, 0) << tar.err;
  EXPECT_EQ(tar.out, expected);
}

}  // namespace
}  // namespace stfs::test
