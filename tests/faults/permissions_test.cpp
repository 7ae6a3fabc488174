// The options decide which users may read: other users, set-uid programs, and users other than root
// that mount. All tests run in mount namespaces in which all users may open /dev/fuse.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/mounted.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::test {
namespace {

class Permissions : public MountTest {
 protected:
  Permissions() {
    std::filesystem::permissions(dir_.path(), std::filesystem::perms(0755));
    write_safetensors(dir_ / "m.safetensors", {random_tensor("w", "U8", {100})});
    std::filesystem::copy_file(STFS_BINARY, dir_ / "stfs");
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
  }

  // Runs a script as root. In the script, `as UID command...` runs a command as another user,
  // `$stfs`, `$source` and `$mnt` are the paths of this test, and user_allow_other is set.
  Outcome in_namespace(const std::string& script) const {
    return run({"unshare", "-m", "/bin/bash", "-c", R"sh(
cd "$1"
rm -f fuse; mknod fuse c 10 229 && chmod 666 fuse && mount --bind fuse /dev/fuse || exit 99
echo user_allow_other >fuse.conf
[[ -e /etc/fuse.conf ]] && mount --bind fuse.conf /etc/fuse.conf
as() { local uid=$1; shift; setpriv --reuid="$uid" --regid="$uid" --clear-groups "$@"; }
stfs=$1/stfs source=$1/m.safetensors mnt=$1/mnt
trap 'umount -l "$mnt" 2>/dev/null' EXIT
may_read() { if as "$1" cat "$mnt/w" >/dev/null 2>&1; then echo "$1 reads"; else echo "$1 does not"; fi; }
)sh" + script,
                "sh", dir_.path()});
  }

  TempDir dir_;
};

TEST_F(Permissions, RootMountFollowsOptions) {
  struct Case {
    const char* options;
    const char* expected;
  };
  for (const auto& [options, expected] : {
           Case{"ro", "0 reads\n1000 does not\n1001 does not\n"},
           Case{"allow_other", "0 reads\n1000 reads\n1001 reads\n"},
           Case{"allow_other,umask=077,uid=1000", "0 reads\n1000 reads\n1001 does not\n"},
           Case{"allow_other,umask=027,gid=1001", "0 reads\n1000 does not\n1001 reads\n"},
           Case{"allow_other,umask=0777", "0 does not\n1000 does not\n1001 does not\n"},
           Case{"uid=1000,gid=1000", "0 reads\n1000 does not\n1001 does not\n"},
           Case{"allow_root", "0 reads\n1000 does not\n1001 does not\n"},
       }) {
    const Outcome result =
        in_namespace(std::string("\"$stfs\" -o ") + options +
                     R"sh( "$source" "$mnt"; may_read 0; may_read 1000; may_read 1001)sh");
    // Root reads regardless of modes, because it has CAP_DAC_OVERRIDE.
    std::string wanted = expected;
    if (wanted.starts_with("0 does not")) wanted.replace(0, 10, "0 reads");
    EXPECT_EQ(result.out, wanted) << options << ": " << result.err;
  }
}

TEST_F(Permissions, OnlyMountingUserReadsWithoutAllowOther) {
  const std::string script = R"sh(chown 1000 "$mnt"; as 1000 "$stfs" $options "$source" "$mnt"
      may_read 0; may_read 1000; may_read 1001
      stat -c '%u %g %a' "$mnt/w" 2>/dev/null || as 1000 stat -c '%u %g %a' "$mnt/w"
      as 1001 "$stfs" -u "$mnt" 2>/dev/null && echo "1001 unmounted it"
      as 1000 "$stfs" -u "$mnt" && echo unmounted)sh";

  const Outcome by_default = in_namespace("options=\n" + script);
  const Outcome others = in_namespace("options='-o allow_other'\n" + script);

  EXPECT_EQ(by_default.out, "0 does not\n1000 reads\n1001 does not\n1000 1000 444\nunmounted\n")
      << by_default.err;
  EXPECT_EQ(others.out, "0 reads\n1000 reads\n1001 reads\n1000 1000 444\nunmounted\n")
      << others.err;
}

TEST_F(Permissions, EveryWayOfMountingIsNosuidNodevReadOnly) {
  const std::string look = R"sh(grep " $mnt " /proc/self/mountinfo | cut -d' ' -f6)sh";
  const std::string ways[] = {
      R"sh("$stfs" -o suid,dev,rw "$source" "$mnt"; )sh" + look,
      R"sh(chown 1000 "$mnt"; as 1000 "$stfs" -o suid,dev,rw "$source" "$mnt"; )sh" + look,
      R"sh("$stfs" -f -o dev,suid "$source" "$mnt" & pid=$!
           while kill -0 $pid && ! mountpoint -q "$mnt"; do :; done; )sh" +
          look + "; kill $pid; wait $pid",
      R"sh(mount -t tmpfs none /usr/local/bin && cp "$stfs" /usr/local/bin/stfs
           mount -t fuse.stfs "$source" "$mnt" -o suid,dev,rw; )sh" +
          look,
      R"sh(mount -t tmpfs none /usr/local/bin && cp "$stfs" /usr/local/bin/stfs
           mount.fuse3 "stfs#$source" "$mnt" -o suid,dev,rw; )sh" +
          look,
  };

  for (const std::string& way : ways) {
    const Outcome result = in_namespace(way);
    EXPECT_TRUE(result.out.starts_with("ro,nosuid,nodev")) << way << result.out << result.err;
  }
}

TEST_F(Permissions, SourceUnreadableByMountingUserIsRejected) {
  const Outcome result = in_namespace(R"sh(chown 1000 "$mnt"; chmod 600 "$source"
      as 1000 "$stfs" "$source" "$mnt"; echo $?; mountpoint -q "$mnt" && echo mounted
      chmod 644 "$source"; mkdir private; mv "$source" private/; chmod 700 private
      as 1000 "$stfs" "$1/private/m.safetensors" "$mnt"; echo $?
      as 1000 "$stfs" "$1/private" "$mnt"; echo $?)sh");

  EXPECT_EQ(result.out, "3\n3\n3\n") << result.err;
  EXPECT_NE(result.err.find("Permission denied"), std::string::npos) << result.err;
}

// Returns the capabilities that the systemd unit keeps, in the form of setpriv(1), such as
// "-all,+sys_admin".
std::string bounding_set_of_unit() {
  const std::string unit = read_file(test_data("../../systemd/stfs@.service.in"));
  const std::string key = "\nCapabilityBoundingSet=";
  const std::size_t begin = unit.find(key) + key.size();
  std::istringstream words(unit.substr(begin, unit.find('\n', begin) - begin));
  std::string set = "-all";
  for (std::string word; words >> word;) {
    std::ranges::transform(word, word.begin(), [](unsigned char c) { return std::tolower(c); });
    set += ",+" + word.substr(std::string_view("cap_").size());
  }
  return set;
}

TEST_F(Permissions, SystemdUnitCanLeaseSourceOfOtherUser) {
  const auto leases_held = [this](const std::string& prefix) {
    return in_namespace(R"sh(chown 1000 "$source"; inode=$(stat -c %i "$source"); )sh" + prefix +
                        R"sh( "$stfs" -o page_cache=direct "$source" "$mnt"
        for i in $(seq 50); do  # stfs releases the lease about a second after a read
          cat "$mnt/w" >/dev/null && grep -c "LEASE .*:$inode " /proc/locks && break
        done | tail -n 1)sh");
  };
  if (leases_held("").out != "1\n") GTEST_SKIP() << "no leases on this file system";

  const Outcome held = leases_held("setpriv --bounding-set=" + bounding_set_of_unit());

  EXPECT_EQ(held.out, "1\n") << bounding_set_of_unit() << held.err;
}

// A set-uid program runs stfs for another user. The effective user counts, and no option permits
// the caller more than fusermount3 permits the effective user.
TEST_F(Permissions, SetUidCallerDoesNotExposeSourceToRealUser) {
  const Outcome result = in_namespace(R"sh(
      chown 1000 "$mnt" stfs; chmod 4755 stfs; chown 1000 "$source"; chmod 600 "$source"
      as 1001 "$stfs" "$source" "$mnt"; echo $?
      mountpoint -q "$mnt" && { may_read 1000; may_read 1001; })sh");

  // Either stfs refuses, or the file owner has the mount and no other user reads it.
  EXPECT_EQ(result.out.find("1001 reads"), std::string::npos) << result.out << result.err;
}

}  // namespace
}  // namespace stfs::test
