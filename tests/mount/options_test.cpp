// Mount options given by `-o` and by mount(8), and their effect in /proc/self/mountinfo.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/mounted.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

class Options : public MountTest {
 protected:
  static std::string source() { return test_data("single/voices.safetensors"); }

  static MountEntry entry_of(const Mounted& mount) {
    const std::vector<MountEntry> entries = mounts_at(mount.path());
    EXPECT_EQ(entries.size(), 1u);
    return entries.empty() ? MountEntry{} : entries[0];
  }

  // Returns true if a comma-separated list contains the option.
  static bool has(const std::string& options, const std::string& option) {
    return ("," + options + ",").find("," + option + ",") != std::string::npos;
  }

  // Makes a mountpoint for a test that does not use Mounted. The destructor unmounts it.
  std::string make_mountpoint() const {
    std::filesystem::create_directory(dir_ / "mnt");
    return dir_ / "mnt";
  }
  ~Options() override { unmount_all(dir_ / "mnt"); }

  static struct stat64 stat_of(const std::filesystem::path& path) {
    struct stat64 status = {};
    EXPECT_EQ(::lstat64(path.c_str(), &status), 0) << path;
    return status;
  }

  TempDir dir_;
};

TEST_F(Options, MountIsAlwaysReadOnlyNosuidNodev) {
  for (const char* option : {"ro", "rw", "suid,dev", "rw,suid,dev,exec"}) {
    const Mounted mount({source()}, {"-o", option});
    const MountEntry entry = entry_of(mount);
    EXPECT_TRUE(has(entry.options, "ro")) << option << ": " << entry.options;
    EXPECT_TRUE(has(entry.options, "nosuid")) << option << ": " << entry.options;
    EXPECT_TRUE(has(entry.options, "nodev")) << option << ": " << entry.options;
  }
}

TEST_F(Options, TypeIsFuseStfsAndNameIsSource) {
  const Mounted mount({source()});

  const MountEntry entry = entry_of(mount);

  EXPECT_EQ(entry.type, "fuse.stfs");
  EXPECT_TRUE(std::filesystem::equivalent(entry.source, source())) << entry.source;
}

TEST_F(Options, FsnameReplacesName) {
  const Mounted mount({source()}, {"-o", "fsname=llama"});

  EXPECT_EQ(entry_of(mount).source, "llama");
}

TEST_F(Options, AcceptsOptionsThatMountPassesOn) {
  const Mounted mount(
      {source()},
      {"-o", "rw,noexec,noatime,relatime,nofail,auto,users,defaults,nodiratime,x-gvfs-show"});

  EXPECT_EQ(names_in(mount.path()).size(), 2u);
  EXPECT_TRUE(has(entry_of(mount).options, "noexec"));
}

TEST_F(Options, AcceptsOptionsRepeatedlyAndAfterOperands) {
  TempDir dir;
  std::filesystem::create_directory(dir / "mnt");

  const Outcome result = run({STFS_BINARY, source(), dir / "mnt", "-o", "views=visible",
                              "-ofsname=x", "-o", "page_cache=direct,umask=077"});
  const auto entries = mounts_at(dir / "mnt");
  const std::size_t names = result.status == 0 ? names_in(dir / "mnt").size() : 0;
  unmount_all(dir / "mnt");

  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(names, 3u);
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].source, "x");
}

TEST_F(Options, UidGidAndUmaskSetOwnerAndMode) {
  write_safetensors(dir_ / "m.safetensors", {random_tensor("d/w", "U8", {1})});
  const Mounted mount({dir_ / "m.safetensors"}, {"-o", "uid=1234,gid=2345,umask=077"});

  for (const char* path : {"d/w", ".stfs/info.json"}) {
    const struct stat64 file = stat_of(mount / path);
    EXPECT_EQ(file.st_uid, 1234u);
    EXPECT_EQ(file.st_gid, 2345u);
    EXPECT_EQ(file.st_mode, S_IFREG | 0400u) << path;
  }
  for (const char* path : {"", "d", ".stfs"}) {
    const struct stat64 directory = stat_of(mount / path);
    EXPECT_EQ(directory.st_uid, 1234u);
    EXPECT_EQ(directory.st_mode, S_IFDIR | 0500u) << path;
  }
}

TEST_F(Options, UmaskOfCallerHasNoEffect) {
  const Outcome result =
      sh(R"(umask 0777; "$1" "$2" "$3"; stat -c %a "$3" "$3/mask"; "$1" -u "$3")",
         {STFS_BINARY, source(), make_mountpoint()});

  EXPECT_EQ(result.out, "555\n444\n") << result.err;
}

TEST_F(Options, MaxReadIsKept) {
  const Mounted mount({source()}, {"-o", "max_read=65536"});

  EXPECT_TRUE(has(entry_of(mount).super_options, "max_read=65536"))
      << entry_of(mount).super_options;
  EXPECT_EQ(read_file(mount / "tokens").size(), 259248u);
}

TEST_F(Options, OtherUsersReadOnlyWithAllowOther) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  if (run({"which", "setpriv"}).status != 0) GTEST_SKIP() << "no setpriv";
  const auto read_as_other_user = [&](const std::vector<std::string>& options) {
    const Mounted mount({source()}, options);
    std::filesystem::permissions(mount.path().parent_path(), std::filesystem::perms(0755));
    return run(
        {"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "cat", mount / "mask"});
  };

  const Outcome refused = read_as_other_user({});
  const Outcome others = read_as_other_user({"-o", "allow_other,default_permissions"});
  const Outcome masked = read_as_other_user({"-o", "allow_other,umask=007"});

  EXPECT_NE(refused.status, 0);
  EXPECT_EQ(others.out.size(), 32406u) << others.err;
  EXPECT_NE(masked.status, 0) << "the kernel must enforce the permissions";
}

// mount(8) from the command line or from fstab. mount(8) passes no PATH to its helper, so stfs must
// be in a system directory; a mount namespace puts it there.
class MountCommand : public Options {
 protected:
  void SetUp() override {
    Options::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (::geteuid() != 0) GTEST_SKIP() << "mount(8) needs root";
    if (::access("/sbin/mount.fuse3", X_OK) != 0) GTEST_SKIP() << "no mount.fuse3";
    if (run({"unshare", "-m", "mount", "-t", "tmpfs", "none", "/usr/local/bin"}).status != 0)
      GTEST_SKIP() << "no mount namespaces";
  }

  // Runs a script with $1, the source, $2, the mountpoint, and $3, the path of an unused file.
  Outcome in_namespace(const std::string& script, const std::string& source_path) const {
    return run({"unshare", "-m", "/bin/bash", "-c",
                "mount -t tmpfs none /usr/local/bin && ln -s '" STFS_BINARY
                "' /usr/local/bin/stfs || exit 99\n"
                "trap 'umount -l \"$2\" 2>/dev/null' EXIT\n" +
                    script,
                "sh", source_path, make_mountpoint(), dir_ / "file"});
  }
};

TEST_F(MountCommand, PassesOptionsOfStfs) {
  const Outcome result = in_namespace(R"sh(
    mount -t fuse.stfs "$1" "$2" -o allow_other,views=off,umask=077,_netdev,nofail &&
      stat -c %a "$2/mask" && test ! -e "$2/.stfs" && grep " $2 " /proc/self/mountinfo |
      grep -o allow_other)sh",
                                      source());

  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, "400\nallow_other\n");
}

TEST_F(MountCommand, PrintsErrorOfStfs) {
  const Outcome result =
      in_namespace(R"(mount -t fuse.stfs "$1" "$2" -o ro)", dir_ / "gone.safetensors");

  EXPECT_NE(result.status, 0);
  EXPECT_NE(result.err.find("stfs: "), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("gone.safetensors"), std::string::npos) << result.err;
}

TEST_F(MountCommand, MountsByFstabLine) {
  const Outcome result = in_namespace(R"sh(
    echo "$1 $2 fuse.stfs ro,noauto,user,allow_other,nofail,_netdev,x-systemd.automount 0 0" > "$3"
    mount --fstab "$3" "$2" && ls "$2" && umount "$2" && ls "$2")sh",
                                      source());

  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, "mask\ntokens\n");
}

}  // namespace
}  // namespace stfs::test
