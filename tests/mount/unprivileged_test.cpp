// Users without privileges: fusermount3(1) and its configuration file, user namespaces, lines of
// fstab(5) with "user", and an environment without everything that a login provides. The tests run
// in mount namespaces, so that the files of the machine stay unchanged.
#include "tests/support/mounted.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>

namespace stfs::test {
namespace {

class Unprivileged : public MountTest {
 protected:
  Unprivileged() {
    std::filesystem::permissions(dir_.path(), std::filesystem::perms(0755));
    std::filesystem::copy_file(test_data("single/voices.safetensors"), dir_ / "m.safetensors");
    std::filesystem::create_directory(dir_ / "mnt");
  }
  void SetUp() override {
    MountTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (::geteuid() != 0) GTEST_SKIP() << "needs root to become other users";
    if (run({"which", "setpriv"}).status != 0) GTEST_SKIP() << "no setpriv";
    if (run({"unshare", "-m", "true"}).status != 0) GTEST_SKIP() << "no mount namespaces";
    struct stat64 helper = {};
    if (::stat64("/usr/bin/fusermount3", &helper) != 0 || (helper.st_mode & S_ISUID) == 0)
      GTEST_SKIP() << "no setuid fusermount3";
    const Outcome nothing = in_namespace("true");
    if (nothing.status == 99) GTEST_SKIP() << "cannot run on this machine: " << nothing.out;
  }

  // Runs a script as root. Its working directory contains `stfs`, `stfs-info`, `stfs-gpu`,
  // `m.safetensors` and `mnt`, which belongs to user 1000. `as UID command...` runs a command as
  // another user, and `fuse_conf TEXT` replaces /etc/fuse.conf. A script that cannot run on this
  // machine exits with 99, and prints the reason if it knows it.
  Outcome in_namespace(const std::string& script) const {
    return run({"unshare", "-m", "/bin/bash", "-c", R"sh(
exec 2>&1
for program in "${@:2}"; do
  touch "$1/${program##*/}" && mount --bind "$program" "$1/${program##*/}" || exit 99
done
PATH=$1:$PATH
cd "$1"
chown 1000 mnt
rm -f fuse; mknod fuse c 10 229 && chmod 666 fuse && mount --bind fuse /dev/fuse || exit 99
getent passwd 1000 >/dev/null || {  # fusermount3 needs a user name
  { cat /etc/passwd; echo 'user:x:1000:1000::/:/bin/sh'; } >passwd && mount --bind passwd /etc/passwd
} || exit 99
as() { local uid=$1; shift; setpriv --reuid="$uid" --regid="$uid" --clear-groups "$@"; }
as 1000 bash -c ': <>/dev/fuse' 2>/dev/null || {
  echo "no device can be opened in $1: TMPDIR must be on a file system without nodev"; exit 99
}
fuse_conf() {
  echo "$1" >fuse.conf && chmod "${2-644}" fuse.conf
  [[ -e /etc/fuse.conf ]] && mount --bind fuse.conf /etc/fuse.conf || exit 99
}
lists() { if as "$1" ls mnt >/dev/null 2>&1; then echo "$1 lists"; else echo "$1 does not"; fi; }
trap 'umount -l mnt 2>/dev/null' EXIT
)sh" + script,
                "bash", dir_.path(), STFS_BINARY, STFS_INFO_BINARY, STFS_GPU_BINARY});
  }
  // Runs a script with in_namespace(), and expects `output` without the path of the directory.
  void expect_output(const std::string& script, const std::string& output) const {
    const Outcome result = in_namespace(script);
    if (result.status == 99) GTEST_SKIP() << "cannot run on this machine: " << result.out;
    std::string out = result.out;
    const std::string place = std::filesystem::canonical(dir_.path()).string() + "/";
    for (std::size_t at = 0; (at = out.find(place)) != std::string::npos;) {
      out.erase(at, place.size());
    }
    EXPECT_EQ(out, output) << script;
  }

  TempDir dir_;
};

TEST_F(Unprivileged, AllowOtherIsRejectedWithLineToAdd) {
  const std::string refused =
      "stfs: mnt: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf "
      "(as "
      "root, add the line user_allow_other to it; all users must be able to read it)\n4\n";
  for (const char* const file : {"'#user_allow_other'", "'user_allow_other' 600"}) {
    for (const char* const options : {"allow_other", "allow_root", "supervise,allow_other"}) {
      expect_output(std::string("fuse_conf ") + file + "; as 1000 stfs -o " + options +
                        " m.safetensors mnt; echo $?",
                    refused);
    }
  }
}

TEST_F(Unprivileged, AllowOtherWorksWithLineInFuseConf) {
  for (const char* const options : {"allow_other", "supervise,allow_other"}) {
    expect_output(std::string("fuse_conf user_allow_other; as 1000 stfs -o ") + options +
                      R"sh( m.safetensors mnt
                      lists 0; lists 1000; lists 1001; as 1000 stfs -u mnt; echo $?)sh",
                  "0 lists\n1000 lists\n1001 lists\n0\n");
  }
}

TEST_F(Unprivileged, AllowRootExcludesOtherUsers) {
  expect_output(R"sh(fuse_conf user_allow_other; as 1000 stfs -o allow_root m.safetensors mnt
                     lists 1000; lists 0; lists 1001
                     as 1001 cat mnt/mask >/dev/null 2>&1 || echo "1001 reads nothing")sh",
                "1000 lists\n0 lists\n1001 does not\n1001 reads nothing\n");
}

TEST_F(Unprivileged, OtherUserCannotUnmount) {
  expect_output(R"sh(as 1000 stfs m.safetensors mnt; as 1001 stfs -u mnt 2>/dev/null; echo $?
                     lists 1000; as 1000 stfs -u mnt; echo $?)sh",
                "4\n1000 lists\n0\n");
}

TEST_F(Unprivileged, MissingSetuidFusermountIsReported) {
  const std::string refused =
      "stfs: mnt: mount failed: Operation not permitted (a container needs --cap-add SYS_ADMIN, "
      "and "
      "a user needs fusermount3 with its setuid bit)\n4\n";
  expect_output("as 1000 setpriv --no-new-privs stfs m.safetensors mnt; echo $?", refused);
  expect_output(R"sh(cp /usr/bin/fusermount3 . && mount --bind fusermount3 /usr/bin/fusermount3
                     as 1000 stfs m.safetensors mnt; echo $?)sh",
                refused);
}

// With access to /dev/fuse, any user may mount in a user namespace without fusermount3.
class UserNamespace : public Unprivileged {
 protected:
  void SetUp() override {
    Unprivileged::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (in_namespace("as 1000 unshare -Urm true").status != 0)
      GTEST_SKIP() << "no user namespaces for users";
  }
};

TEST_F(UserNamespace, MountsWithDeviceAndWithoutFusermount) {
  for (const char* const options : {"ro", "supervise", "allow_other"}) {
    expect_output(std::string(R"sh(mount --bind /dev/null /usr/bin/fusermount3
        as 1000 unshare -Urm bash -c 'stfs -o )sh") +
                      options + R"sh( m.safetensors mnt; ls mnt
            cmp mnt/.stfs/merged.safetensors m.safetensors; stfs -u mnt; echo $?')sh",
                  "mask\ntokens\n0\n");
  }
}

TEST_F(UserNamespace, CanHandOver) {
  // Copies the example, because the user may not have access to the source tree.
  std::filesystem::copy_file(STFS_SOURCE_DIR "/docs/examples/hand_over.py", dir_ / "hand_over.py");
  std::filesystem::permissions(dir_ / "hand_over.py", std::filesystem::perms(0644));
  expect_output(R"sh(as 1000 unshare -Urm bash -c '
      python3 -B hand_over.py mnt -- stfs m.safetensors @FD@
      ls mnt; umount mnt; echo $?')sh",
                "mask\ntokens\n0\n");
}

TEST_F(UserNamespace, ReportsMissingRightToMount) {
  const Outcome result =
      in_namespace("as 1000 unshare -U --map-user=1000 stfs m.safetensors mnt; echo $?");
  EXPECT_NE(result.out.find("mount failed: Operation not permitted"), std::string::npos)
      << result.out;
  EXPECT_TRUE(result.out.ends_with("\n4\n")) << result.out;
}

TEST_F(UserNamespace, CannotUnmountMountMadeOutside) {
  expect_output(R"sh(as 1000 stfs m.safetensors mnt
      as 1000 unshare -Urm stfs -u mnt; echo $?; lists 1000)sh",
                "stfs: mnt: made in another mount namespace: unmount it there\n4\n1000 lists\n");
}

// mount(8) is setuid root, reads /etc/fstab, and runs its helper as the user.
class UsersFstab : public Unprivileged {
 protected:
  void expect_with_line(const std::string& options, const std::string& script,
                        const std::string& output) const {
    expect_output(
        R"sh([[ -u /bin/mount && -u /bin/umount && -e /etc/fstab && -x /sbin/mount.fuse3 ]] || exit 99
        mount -t tmpfs none /usr/local/bin && cp stfs /usr/local/bin/ || exit 99
        echo "$PWD/m.safetensors $PWD/mnt fuse.stfs )sh" +
            options + R"sh( 0 0" >fstab; mount --bind fstab /etc/fstab
        )sh" +
            script,
        output);
  }
};

TEST_F(UsersFstab, UserMountsAndUnmounts) {
  for (const char* const options :
       {"noauto,user", "ro,noauto,users,nofail,_netdev,supervise", "noauto,owner"}) {
    expect_with_line(options, R"sh(as 1000 mount "$PWD/mnt"; echo $?; lists 1000; lists 1001
        as 1000 umount "$PWD/mnt"; echo $?; ls mnt)sh",
                     "0\n1000 lists\n1001 does not\n0\n");
  }
}

TEST_F(UsersFstab, FuseConfDecidesAllowOther) {
  expect_with_line("noauto,user,allow_other", R"sh(fuse_conf '#'
      as 1000 mount "$PWD/mnt" |& grep -o 'add the line user_allow_other'; echo ${PIPESTATUS[0]}
      fuse_conf user_allow_other; as 1000 mount "$PWD/mnt"; echo $?; lists 1001)sh",
                   "add the line user_allow_other\n4\n0\n1001 lists\n");
}

TEST_F(UsersFstab, RejectsDirectoryOfOtherUser) {
  expect_with_line("noauto,user", R"sh(chown 0 mnt
      as 1000 mount "$PWD/mnt" |& grep -o 'choose a directory that you may write to')sh",
                   "choose a directory that you may write to\n");
}

// The environment has no /tmp, /run, /dev/shm and home, no user name, and only variables for a
// locale that is not installed.
TEST_F(Unprivileged, WorksWithoutLoginEnvironment) {
#ifdef STFS_SANITIZED
  GTEST_SKIP() << "a sanitizer needs its variables";
#endif
  const std::string begin =
      R"sh(mount --rbind "$1" /mnt && PATH=/mnt:/usr/bin:/bin && cd /mnt || exit 99
      for place in /tmp /var/tmp /run /dev/shm /home /root; do
        [[ ! -d $place ]] || mount -t tmpfs -o ro,mode=755 none $place || exit 99
      done
      chown 1000123 mnt; mkdir -pm 777 out
      bare() { as 1000123 env -i LANG=xx_YY LC_ALL=zz_ZZ.UTF-8 PATH=/usr/bin:/bin "$@"; }
  )sh";
  expect_output(begin + R"sh(
      bare /mnt/stfs m.safetensors mnt; echo $?)sh",
                "stfs: /mnt/mnt: could not determine username (fusermount3 mounts only for users "
                "in /etc/passwd: mount as root, or in a user namespace)\n4\n");
  expect_output(begin + R"sh(
      bare unshare -Urm true || exit 99
      for options in ro supervise; do
        bare unshare -Urm sh -c "/mnt/stfs -o $options m.safetensors mnt; echo \$?; ls mnt
            cmp mnt/.stfs/merged.safetensors m.safetensors; wc -l <mnt/.stfs/sha256/mask
            /mnt/stfs -u mnt; echo \$?"
      done)sh",
                "0\nmask\ntokens\n1\n0\n0\nmask\ntokens\n1\n0\n");
  expect_output(begin + R"sh(
      for verb in 'info m.safetensors' 'list m.safetensors' 'stats m.safetensors' 'hash m.safetensors' \
                  'check m.safetensors' 'diff m.safetensors m.safetensors' 'show m.safetensors mask' \
                  'extract m.safetensors mask -o out/x.safetensors'; do
        bare /mnt/stfs-info $verb >out/said 2>&1 || { echo "$verb: $?"; cat out/said; }
      done
      bare /mnt/stfs-info cache list; echo $?)sh",
                "stfs-info: the cache: this user has no home directory: name a directory in "
                "STFS_CACHE\n3\n");
  expect_output(begin + R"sh(
      for verb in devices doctor 'run --device cpu m.safetensors -- true'; do
        bare /mnt/stfs-gpu $verb >out/said 2>&1 || { echo "$verb: $?"; cat out/said; }
      done
      bare /mnt/stfs-gpu ls; echo $?)sh",
                "stfs-gpu: /tmp/stfs-gpu-1000123: Read-only file system: set XDG_RUNTIME_DIR or "
                "STFS_GPU_SOCKET\n5\n");
}

}  // namespace
}  // namespace stfs::test
