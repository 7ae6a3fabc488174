// The published checkpoints of tests/data, read by the usual tools.
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

TEST_F(RealCheckpoint, LsListsTheTensorsOfAllShardsWithExactSizes) {
  const Mounted mount({test_data("sharded")});

  const Outcome ls = sh(R"(ls -l "$1" | awk 'NR > 1 { print $9, $5 }')", {mount.path()});

  std::string expected;
  for (const auto& [name, entry] : merged_entries())
    expected += name + " " + std::to_string(entry.length) + "\n";
  EXPECT_EQ(ls.status, 0) << ls.err;
  EXPECT_EQ(ls.out, expected);
  EXPECT_EQ(merged_entries().size(), 36u);
}

TEST_F(RealCheckpoint, AShardedTensorEqualsTheSameTensorInOneFile) {
  const Mounted mount({test_data("sharded")});

  for (const auto& [name, entry] : merged_entries())
    EXPECT_EQ(read_file(mount / name), entry.bytes()) << name;
}

TEST_F(RealCheckpoint, CmpFindsTwoMountsOfTheSameTensorsEqual) {
  const Mounted sharded({test_data("sharded")});
  const Mounted single({test_data("single/dtypes.safetensors")});

  const Outcome diff = run({"diff", "-r", sharded.path(), single.path()});

  EXPECT_EQ(diff.status, 0) << diff.out << diff.err;
}

TEST_F(RealCheckpoint, GetfattrShowsTheAttributes) {
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

TEST_F(RealCheckpoint, TheLocatorLeadsToTheBytesOfTheFile) {
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

TEST_F(RealCheckpoint, DdOfEightBytesAtAnOffsetAgreesWithTheSource) {
  const Mounted mount({test_data("sharded")});

  const Outcome dd =
      run({"dd", "if=" + (mount / "float32_357").string(), "bs=1", "skip=100", "count=8"});

  EXPECT_EQ(dd.status, 0) << dd.err;
  EXPECT_EQ(dd.out, merged_entries().at("float32_357").bytes().substr(100, 8));
}

TEST_F(RealCheckpoint, DdWithDirectIoAgreesWithTheSource) {
  const Mounted mount({test_data("sharded")});

  const Outcome dd =
      run({"dd", "if=" + (mount / "float32_357").string(), "iflag=direct", "bs=512"});

  EXPECT_EQ(dd.status, 0) << dd.err;
  EXPECT_EQ(dd.out, merged_entries().at("float32_357").bytes());
}

TEST_F(RealCheckpoint, NumpyMemmapAgreesWithTheSource) {
  const Outcome has_numpy = run({"/usr/bin/python3", "-c", "import numpy"});
  if (has_numpy.status != 0) GTEST_SKIP() << "no NumPy in /usr/bin/python3";
  const Mounted mount({test_data("sharded")});

  const Outcome python = run({"/usr/bin/python3", "-c", R"(
import sys, numpy
a = numpy.memmap(sys.argv[1], dtype='<f4', mode='r', shape=(3, 5, 7))
sys.stdout.buffer.write(a.tobytes())
)",
                              mount / "float32_357"});

  EXPECT_EQ(python.status, 0) << python.err;
  EXPECT_EQ(python.out, merged_entries().at("float32_357").bytes());
}

TEST_F(RealCheckpoint, PerlUnpacksATensor) {
  const Mounted mount({test_data("single/voices.safetensors")});

  const Outcome perl = run({"perl", "-e", R"(
open my $f, '<:raw', $ARGV[0] or die $!; local $/; my @v = unpack('q<*', <$f>);
print scalar(@v), "\n";)",
                            mount / "tokens"});

  EXPECT_EQ(perl.out, std::to_string(982 * 33) + "\n") << perl.err;
}

TEST_F(RealCheckpoint, CpCopiesTheBytesWithAndWithoutReflink) {
  const Mounted mount({test_data("single/voices.safetensors")});
  const TempDir out;

  const Outcome cp =
      sh(R"(cp -r "$1/." "$2/plain"; cp -r --reflink=auto --preserve=all "$1/." "$2/all")",
         {mount.path(), out.path()});

  EXPECT_EQ(cp.status, 0) << cp.err;
  for (const auto& [name, entry] : entries_of(test_data("single/voices.safetensors"))) {
    EXPECT_EQ(read_file(out / ("plain/" + name)), entry.bytes());
    EXPECT_EQ(read_file(out / ("all/" + name)), entry.bytes());
  }
}

TEST_F(RealCheckpoint, TarHoldsEachTensorOnceAndGivesTheBytesBack) {
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

TEST_F(RealCheckpoint, SendfileAgreesWithTheSource) {
  const Mounted mount({test_data("single/voices.safetensors")});

  const Outcome python = run({"/usr/bin/python3", "-c", R"(
import os, sys
with open(sys.argv[1], 'rb') as f:
    at = 0
    while True:
        n = os.sendfile(1, f.fileno(), at, 1 << 20)
        if n == 0: break
        at += n
)",
                              mount / "tokens"});

  EXPECT_EQ(python.status, 0) << python.err;
  EXPECT_EQ(python.out, entries_of(test_data("single/voices.safetensors")).at("tokens").bytes());
}

TEST_F(RealCheckpoint, Sha256sumAgreesWithTheSource) {
  const Mounted mount({test_data("single/voices.safetensors")});
  const TensorEntry entry = entries_of(test_data("single/voices.safetensors")).at("mask");

  const Outcome sums = sh(
      R"(sha256sum < "$1"; tail -c +$(($3 + 1)) "$2" | head -c $4 | sha256sum)",
      {mount / "mask", entry.source, std::to_string(entry.offset), std::to_string(entry.length)});

  const std::size_t half = sums.out.size() / 2;
  EXPECT_EQ(sums.out.size(), 136u) << sums.err;
  EXPECT_EQ(sums.out.substr(0, half), sums.out.substr(half));
}

TEST_F(RealCheckpoint, FindAndDuSeeTheTensorsAndNothingElse) {
  const Mounted mount({test_data("single/dtypes.safetensors")});

  const Outcome find =
      sh(R"(find "$1" -type f | wc -l; find "$1" ! -type f | wc -l)", {mount.path()});
  const Outcome du =
      sh(R"(du -s --apparent-size -B1 "$1"/* | awk '{ s += $1 } END { print s }')", {mount.path()});

  EXPECT_EQ(find.out, "36\n1\n");
  EXPECT_EQ(du.out, "4305\n");
}

}  // namespace
}  // namespace stfs::test
