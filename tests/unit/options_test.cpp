#include "fs/fuse/options.h"

#include "core/base/error.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

using Strings = std::vector<std::string>;

Options parse(const Strings& arguments) {
  std::vector<const char*> argv{"stfs"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  return parse_options(static_cast<int>(argv.size()), argv.data());
}

Options parse_with(const std::string& options) {
  return parse({"m.safetensors", "/mnt", "-o", options});
}

// Returns the message of the error.
std::string refused(const Strings& arguments) {
  try {
    parse(arguments);
  } catch (const Error& error) {
    EXPECT_EQ(exit_status(error.code()), 2) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  ADD_FAILURE() << "the command line was accepted";
  return "";
}
std::string refused_option(const std::string& option) {
  return refused({"m", "/mnt", "-o", option});
}

TEST(Options, TakeLastPathAsMountpoint) {
  const Options options = parse({"a", "b", "c", "/mnt"});
  EXPECT_EQ(options.sources, (Strings{"a", "b", "c"}));
  EXPECT_EQ(options.mountpoint, "/mnt");
  EXPECT_EQ(options.command, Options::Command::kMount);
}

TEST(Options, HaveDefaults) {
  const Options options = parse({"a", "/mnt"});
  EXPECT_FALSE(options.foreground);
  EXPECT_FALSE(options.direct);
  EXPECT_FALSE(options.allow_missing);
  EXPECT_EQ(options.control, ControlDirectory::kHidden);
  EXPECT_EQ(options.threads, 0U);
  EXPECT_EQ(options.umask, 0U);
  EXPECT_FALSE(options.uid || options.gid);
  EXPECT_TRUE(options.mount_options.empty());
}

TEST(Options, AcceptFlagsInAnyPosition) {
  EXPECT_TRUE(parse({"-f", "a", "/mnt"}).foreground);
  EXPECT_TRUE(parse({"a", "/mnt", "--foreground"}).foreground);
  EXPECT_EQ(parse({"a", "-o", "ro", "/mnt"}).mountpoint, "/mnt");
  EXPECT_EQ(parse({"-oviews=off", "a", "/mnt"}).control, ControlDirectory::kOff);
}

TEST(Options, AcceptPathsWithDashAfterDoubleDash) {
  const Options options = parse({"--", "-a", "-b"});
  EXPECT_EQ(options.sources, Strings{"-a"});
  EXPECT_EQ(options.mountpoint, "-b");
}

TEST(Options, ParseUnmount) {
  const Options options = parse({"-u", "/mnt"});
  EXPECT_EQ(options.command, Options::Command::kUnmount);
  EXPECT_EQ(options.mountpoint, "/mnt");
  EXPECT_FALSE(options.lazy);
  EXPECT_TRUE(parse({"-u", "-z", "/mnt"}).lazy);
  EXPECT_TRUE(parse({"-uz", "/mnt"}).lazy);
  refused({"-u"});
  refused({"-u", "a", "b"});
  refused({"-z", "a", "b"});
}

TEST(Options, ParseHelpAndVersion) {
  EXPECT_EQ(parse({"--help"}).command, Options::Command::kHelp);
  EXPECT_EQ(parse({"-h"}).command, Options::Command::kHelp);
  EXPECT_EQ(parse({"--version"}).command, Options::Command::kVersion);
  EXPECT_EQ(parse({"-V"}).command, Options::Command::kVersion);
}

TEST(Options, RequireSourceAndMountpoint) {
  refused({});
  refused({"a"});
  refused({"-f"});
}

TEST(Options, RejectMixOfMountAndUnmount) {
  EXPECT_NE(refused({"-u", "-f", "a"}).find("-f is for mounting"), std::string::npos);
  EXPECT_NE(refused({"-z", "a", "b"}).find("-z is for -u"), std::string::npos);
  EXPECT_NE(refused({"a"}).find("MOUNTPOINT is expected: stfs a MOUNTPOINT"), std::string::npos);
}

TEST(Options, RejectUnknownFlags) {
  refused({"--nothing", "a", "/mnt"});
  refused({"-x", "a", "/mnt"});
  refused({"a", "/mnt", "-o"});
}

TEST(Options, ParseViews) {
  EXPECT_EQ(parse_with("views=hidden").control, ControlDirectory::kHidden);
  EXPECT_EQ(parse_with("views=visible").control, ControlDirectory::kVisible);
  EXPECT_EQ(parse_with("views=off").control, ControlDirectory::kOff);
  EXPECT_NE(refused_option("views=on").find("-o views=on: expected one of hidden, visible, off"),
            std::string::npos);
  refused_option("views");
}

TEST(Options, ParsePageCache) {
  EXPECT_TRUE(parse_with("page_cache=direct").direct);
  EXPECT_FALSE(parse_with("page_cache=kernel").direct);
  refused_option("page_cache=none");
}

TEST(Options, AcceptNamesOfRelease020) {
  EXPECT_TRUE(parse_with("cache=direct").direct);
  EXPECT_EQ(parse_with("memory=1M").remote.memory, 1U << 20);
}

// stfs expands ~, because no shell expands it after an equals sign.
TEST(Options, ExpandTildeInCacheDir) {
  const char* const home = std::getenv("HOME");
  ASSERT_NE(home, nullptr);
  EXPECT_EQ(parse_with("cache_dir=~/a").remote.cache_dir, home + std::string("/a"));
  EXPECT_EQ(parse_with("cache_dir=/a/~/b").remote.cache_dir, "/a/~/b");
  EXPECT_EQ(parse_with("cache_dir=~b").remote.cache_dir, "~b");
}

TEST(Options, ParseAllowMissing) { EXPECT_TRUE(parse_with("allow_missing").allow_missing); }

TEST(Options, ParseThreads) {
  EXPECT_EQ(parse_with("threads=1").threads, 1U);
  EXPECT_EQ(parse_with("threads=1024").threads, 1024U);
  for (const char* option : {"threads=0", "threads=1025", "threads=", "threads", "threads=-1",
                             "threads=2x", "threads=99999999999999999999", "threads= 2"}) {
    refused_option(option);
  }
}

TEST(Options, ParseOwnerAndUmask) {
  const Options options = parse_with("uid=1234,gid=4321,umask=027");
  EXPECT_EQ(options.uid, 1234U);
  EXPECT_EQ(options.gid, 4321U);
  EXPECT_EQ(options.umask, 027U);
  EXPECT_EQ(parse_with("uid=root,gid=root").uid, 0U);
  EXPECT_EQ(parse_with("uid=root,gid=root").gid, 0U);
  EXPECT_NE(refused_option("uid=nosuchuser").find("-o uid=nosuchuser: no such user"),
            std::string::npos);
  EXPECT_NE(refused_option("gid=no such group").find("no such group"), std::string::npos);
  EXPECT_NE(refused_option("uid=4294967295").find("a number from 0 to 4294967294"),
            std::string::npos);
  for (const char* option : {"uid=-1", "uid=4294967295", "uid=", "gid=no such group", "umask=8",
                             "umask=1000", "umask="}) {
    refused_option(option);
  }
}

TEST(Options, PassMaxReadToKernel) {
  const Options options = parse_with("max_read=65536");
  EXPECT_EQ(options.max_read, 65536U);
  EXPECT_EQ(options.mount_options, Strings{"max_read=65536"});
  refused_option("max_read=1");
}

TEST(Options, ParseFsname) { EXPECT_EQ(parse_with("fsname=a=b").fsname, "a=b"); }

TEST(Options, SplitAtUnescapedCommas) {
  EXPECT_EQ(parse_with("fsname=a\\,b,views=off").fsname, "a,b");
  EXPECT_EQ(parse_with("fsname=a\\\\,views=off").fsname, "a\\");
  EXPECT_EQ(parse_with("fsname=a\\\\,views=off").control, ControlDirectory::kOff);
  EXPECT_EQ(parse_with("fsname=a\\").fsname, "a\\");
  EXPECT_EQ(parse_with(",,views=off,,").control, ControlDirectory::kOff);
}

TEST(Options, ApplySeveralListsInOrder) {
  const Options options = parse({"a", "/mnt", "-o", "threads=2,views=off", "-o", "threads=3"});
  EXPECT_EQ(options.threads, 3U);
  EXPECT_EQ(options.control, ControlDirectory::kOff);
}

TEST(Options, IgnoreOptionsForMountProgram) {
  const Options options = parse_with(
      "ro,rw,suid,nosuid,dev,nodev,default_permissions,auto,noauto,user,nouser,users,defaults,_"
      "netdev,"
      "nofail,nonempty,relatime,x-systemd.automount,X-mount.mkdir,comment=hello,subtype=stfs");
  EXPECT_TRUE(options.mount_options.empty());
}

TEST(Options, PassFuseOptionsToLibfuse) {
  EXPECT_EQ(parse_with("allow_other,blksize=512,noexec,context=a\\,b,user=me").mount_options,
            (Strings{"allow_other", "blksize=512", "noexec", "context=a,b"}));
  for (const char* option :
       {"allow_root", "auto_unmount", "blkdev", "debug", "exec", "async", "sync", "dirsync",
        "noatime", "nostrictatime", "symfollow", "nosymfollow", "io_uring"}) {
    EXPECT_EQ(parse_with(option).mount_options, Strings{option});
  }
}

TEST(Options, RejectUnknownOptionWithSuggestion) {
  EXPECT_EQ(refused_option("nosuch"), "-o nosuch: unknown option: stfs --help lists the options");
  EXPECT_EQ(refused_option("allow_mising"),
            "-o allow_mising: unknown option (did you mean allow_missing?): stfs --help lists the "
            "options");
  EXPECT_NE(refused_option("alow_other").find("allow_other?"), std::string::npos);
  EXPECT_NE(refused_option("view=off").find("views?"), std::string::npos);
  refused_option("max_background=5");  // libfuse does not accept it either
  refused_option("blksize=many");
  EXPECT_EQ(refused_option("blksize"), "-o blksize: a value is expected: blksize=N");
  EXPECT_EQ(refused_option("fsname="), "-o fsname=: a value is expected: fsname=NAME");
  EXPECT_EQ(refused_option("noexec=1"), "-o noexec=1: a value is not expected: noexec");
  EXPECT_EQ(refused_option("supervise=1"), "-o supervise=1: a value is not expected: supervise");
}

TEST(Options, IgnoreOnlyOptionNamedComment) {
  EXPECT_TRUE(parse_with("comment=a,comment").mount_options.empty());
  EXPECT_NE(refused_option("commentary").find("unknown option"), std::string::npos);
}

TEST(Options, RejectEmptySourceOrMountpoint) {
  EXPECT_EQ(refused({"", "/mnt"}),
            "SOURCE \"\": expected a name, but this one is empty (try stfs --help)");
  refused({"m", "", "/mnt"});
}

TEST(Options, AcceptDashesForUnderscores) {
  const Options options =
      parse_with("allow-missing,allow-other,max-read=65536,default-permissions");
  EXPECT_TRUE(options.allow_missing);
  EXPECT_EQ(options.mount_options, (Strings{"allow_other", "max_read=65536"}));
}

TEST(Options, DoNotPassSuperviseToLibfuse) {
  EXPECT_FALSE(parse_with("ro").supervise);
  EXPECT_TRUE(parse_with("supervise").supervise);
  EXPECT_TRUE(parse_with("supervise").mount_options.empty());
}

TEST(Options, RejectRemount) {
  EXPECT_NE(refused_option("remount").find("unmount it"), std::string::npos);
}

TEST(Options, EscapeControlCharactersInMessages) {
  EXPECT_EQ(refused_option("views=\x1b[2J").find('\x1b'), std::string::npos);
  EXPECT_EQ(refused({"--\x1b[2J", "a", "b"}).find('\x1b'), std::string::npos);
}

TEST(HelpText, NamesEachOption) {
  const std::string help = help_text(mount_command());
  for (const char* option : {"views=", "cache=", "allow_missing", "threads=", "uid=", "gid=",
                             "umask=", "supervise", "-f", "-u", "-z", "--help", "--version"}) {
    EXPECT_NE(help.find(option), std::string::npos) << option;
  }
}

}  // namespace
}  // namespace stfs::test
