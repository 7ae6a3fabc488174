#include "fs/fuse/mount_table.h"

#include <gtest/gtest.h>

#include <string>

namespace stfs::test {
namespace {

constexpr const char* kMountinfo =
    R"(22 28 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:14 - proc proc rw
28 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
40 28 0:35 / /mnt/w ro,nosuid,nodev,relatime shared:20 master:3 - fuse.stfs /data/m.safetensors ro,user_id=0
41 28 0:36 / /mnt/no\040fields ro - fuse.stfs a\040b\134c ro
42 28 0:37 / /mnt/tab\011end\012back\134slash ro - fuse.stfs source ro
43 28 0:38 / /mnt/stacked rw - tmpfs tmpfs rw
44 43 0:39 / /mnt/stacked ro - fuse.stfs top ro
45 28 0:40 / /mnt/dash ro shared:2 - fuse.stfs - ro
46 28 0:41 /sub /mnt/bind ro - ext4 /dev/vda1 rw
)";

TEST(FindMount, FindsTypeAndSource) {
  const auto mount = find_mount(kMountinfo, "/mnt/w");
  ASSERT_TRUE(mount);
  EXPECT_EQ(mount->type, "fuse.stfs");
  EXPECT_EQ(mount->source, "/data/m.safetensors");
}

TEST(FindMount, ReadsLineWithoutOptionalFields) {
  EXPECT_TRUE(find_mount(kMountinfo, "/mnt/no fields"));
  EXPECT_TRUE(find_mount(kMountinfo, "/mnt/bind"));
}

TEST(FindMount, ReadsOctalEscapes) {
  EXPECT_TRUE(find_mount(kMountinfo, "/mnt/tab\tend\nback\\slash"));
  EXPECT_EQ(find_mount(kMountinfo, "/mnt/no fields")->source, "a b\\c");
}

TEST(FindMount, FindsTopmostStackedMount) {
  EXPECT_EQ(find_mount(kMountinfo, "/mnt/stacked")->type, "fuse.stfs");
}

TEST(FindMount, MatchesOnlyWholePath) {
  for (const char* path : {"/mnt", "/mnt/w/x", "/mnt/", "", "/mnt/w/", "mnt/w"}) {
    EXPECT_FALSE(find_mount(kMountinfo, path)) << path;
  }
  EXPECT_EQ(find_mount(kMountinfo, "/")->type, "ext4");
}

TEST(FindMount, AcceptsDashAsSource) {
  EXPECT_EQ(find_mount(kMountinfo, "/mnt/dash")->source, "-");
}

TEST(FindMount, SkipsIncompleteLines) {
  const std::string text = "1 2 3:4 / /mnt/w ro\n1 2 3:4 / /mnt/w ro - fuse.stfs\n\ngarbage\n - \n";
  EXPECT_FALSE(find_mount(text, "/mnt/w"));
  EXPECT_FALSE(find_mount("", "/mnt/w"));
}

TEST(FindMount, ReadsLastLineWithoutNewline) {
  EXPECT_TRUE(find_mount("1 2 3:4 / /mnt/w ro - fuse.stfs s ro", "/mnt/w"));
}

TEST(MountedAt, FindsProc) {
  const auto mount = mounted_at("/proc");
  if (!mount) GTEST_SKIP() << "/proc is not a mount here";
  EXPECT_EQ(mount->type, "proc");
}

}  // namespace
}  // namespace stfs::test
