// A mount, and a tensor or directory in it, as the SOURCE of every command.
#include "tests/mount/info_tool.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/mounted.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

using Path = std::filesystem::path;

constexpr const char* kAttribute = "user.stfs.mount";

class MountAsSource : public MountTest {
 protected:
  MountAsSource() : source_(dir_ / "m.safetensors") {
    write_safetensors(
        source_,
        {random_tensor("model.norm", "F32", {8}, 1), random_tensor("layers/0/q", "BF16", {4, 4}, 2),
         random_tensor("layers/0/k", "BF16", {4, 4}, 3), random_tensor("layers/01", "U8", {5}, 4),
         random_tensor("layers", "U8", {6}, 5), random_tensor("a/b.c/d", "U8", {7}, 6),
         random_tensor("50%\n", "U8", {8}, 7)});
  }

  // Returns what `list --json` prints for a source.
  static nlohmann::json tensors(const std::string& source, std::vector<std::string> options = {}) {
    options.insert(options.begin(), {"list", "--json", source});
    const Outcome list = info(options);
    EXPECT_EQ(list.status, 0) << list.err;
    return list.status == 0 ? nlohmann::json::parse(list.out) : nlohmann::json();
  }
  static std::vector<std::string> names(const std::string& source) {
    std::vector<std::string> names;
    for (const auto& tensor : tensors(source)) names.push_back(tensor["name"]);
    std::ranges::sort(names);
    return names;
  }
  static void mount_at(const Path& mountpoint, std::vector<std::string> arguments) {
    std::filesystem::create_directories(mountpoint);
    arguments.insert(arguments.begin(), STFS_BINARY);
    arguments.push_back(mountpoint);
    const Outcome mounted = run(arguments);
    ASSERT_EQ(mounted.status, 0) << mounted.err;
  }

  TempDir dir_;
  Path source_;
};

using Strings = std::vector<std::string>;

TEST_F(MountAsSource, ReadsModelDirectoryAsFiles) {
  write_file(dir_ / "config.json", "{}");
  const Mounted mount({source_});
  const std::string model = mount / ".stfs/model/";

  EXPECT_EQ(read_file(model + "model.safetensors"), read_file(source_));
  EXPECT_EQ(read_file(model + "config.json"), "{}");
  EXPECT_EQ(names(model), names(source_));
  EXPECT_EQ(tensors(model + "model.safetensors")[0]["source"], model + "model.safetensors");
  mount_at(dir_ / "second", {model});
  EXPECT_EQ(read_file(dir_ / "second/.stfs/model/config.json"), "{}");
  EXPECT_EQ(run({STFS_BINARY, "-u", dir_ / "second"}).status, 0);
  mount_at(dir_ / "second", {mount.path()});
  EXPECT_EQ(read_file(dir_ / "second/.stfs/model/model.safetensors"), read_file(source_));
  EXPECT_EQ(run({STFS_BINARY, "-u", dir_ / "second"}).status, 0);
}

TEST_F(MountAsSource, RootAttributeNamesSourcesWithAndWithoutViews) {
  const Mounted mount({source_});
  const Mounted bare({source_}, {"-o", "views=off"});

  const auto said = xattr(mount.path(), kAttribute);

  ASSERT_TRUE(said);
  EXPECT_EQ(xattr(bare.path(), kAttribute), said);
  const auto content = nlohmann::json::parse(*said);
  EXPECT_EQ(content["sources"], Strings{source_});
  EXPECT_EQ(content["allow_missing"], false);
  char listed[1000];
  const ssize_t length = ::listxattr(mount.path().c_str(), listed, sizeof listed);
  EXPECT_EQ(std::string(listed, static_cast<std::size_t>(std::max<ssize_t>(length, 0))),
            std::string(kAttribute) + '\0');
  EXPECT_FALSE(xattr(mount / "model.norm", kAttribute));
  EXPECT_FALSE(xattr(mount / ".stfs", kAttribute));
}

TEST_F(MountAsSource, SelectsAllTensorsForEveryVerb) {
  const Mounted mount({source_}, {"-o", "views=off"});
  const std::string root = mount.path();

  EXPECT_EQ(tensors(root), tensors(source_));
  EXPECT_EQ(info({"show", root, "layers"}).out, info({"show", source_, "layers"}).out);
  EXPECT_EQ(info({"hash", root}).out, info({"hash", source_}).out);
  EXPECT_EQ(info({"stats", root, "model.norm"}).out, info({"stats", source_, "model.norm"}).out);
  EXPECT_EQ(info({"cat", root, "layers"}).out, read_file(mount / "layers"));
  EXPECT_EQ(info({"check", root}).out, root + "\tok\t7 tensors\n");
  EXPECT_EQ(info({"diff", root, source_}).status, 0);
  ASSERT_EQ(info({"extract", root, "layers*", "-o", dir_ / "part"}).status, 0);
  EXPECT_EQ(names(dir_ / "part"), (Strings{"layers", "layers/0/k", "layers/0/q", "layers/01"}));
}

TEST_F(MountAsSource, WorksWithDeviceTool) {
  const Mounted mount({source_}, {"-o", "views=off"});

  for (const char* name : {"layers/0/*", "layers/0/q"}) {
    const Outcome plan = run(
        {STFS_GPU_BINARY, "plan", mount.path().string() + "::" + name, "--device", "cpu", "--json"},
        {.environment = {"XDG_RUNTIME_DIR=" + dir_.path().string()}});
    EXPECT_EQ(plan.status, 0) << plan.err;
    EXPECT_NE(plan.out.find(source_.string()), std::string::npos) << plan.out;
  }
}

TEST_F(MountAsSource, AcceptsEveryPathToMount) {
  const Mounted mount({source_});
  const Path link = dir_ / "link";
  std::filesystem::create_directory_symlink(mount.path(), link);
  const auto expected = tensors(source_);

  for (const Path& path :
       std::vector<Path>{mount / "", mount / ".", mount / "layers%2F0/..", link, link / ""}) {
    EXPECT_EQ(tensors(path), expected) << path;
  }
  for (const char* path : {".", "./", "layers%2F0/.."}) {
    const Outcome list =
        run({STFS_INFO_BINARY, "list", "--json", path}, {.directory = mount.path()});
    ASSERT_EQ(list.status, 0) << list.err;
    EXPECT_EQ(nlohmann::json::parse(list.out), expected) << path;
  }
  const Outcome beside =
      run({STFS_INFO_BINARY, "list", "link/layers%2F0"}, {.directory = dir_.path()});
  EXPECT_EQ(beside.status, 0) << beside.err;
}

TEST_F(MountAsSource, TensorFileSelectsThatTensor) {
  const Mounted mount({source_});

  EXPECT_EQ(names(mount / "layers"), Strings{"layers"});
  EXPECT_EQ(names(mount / "50%25%0A"), Strings{"50%\n"});
  EXPECT_EQ(names(mount / "layers%2F0/q"), Strings{"layers/0/q"});
  EXPECT_EQ(names(mount / ".stfs/tree/layers%2F0/q"), Strings{"layers/0/q"});
  EXPECT_EQ(names(mount / ".stfs/f32/model.norm"), Strings{"model.norm"});
  EXPECT_EQ(info({"cat", mount / "layers%2F0/q", "layers/0/q"}).out,
            read_file(mount / "layers%2F0/q"));
}

TEST_F(MountAsSource, DirectorySelectsTensorsInside) {
  const Mounted mount({source_});

  EXPECT_EQ(names(mount / "layers%2F0"), (Strings{"layers/0/k", "layers/0/q"}));
  EXPECT_EQ(names(mount / "a"), Strings{"a/b.c/d"});
  EXPECT_EQ(names(mount / "a/b.c"), Strings{"a/b.c/d"});
  EXPECT_EQ(names(mount / ".stfs/tree"), names(source_));
  EXPECT_EQ(names(mount / ".stfs/tree/model"), Strings{"model.norm"});
  EXPECT_EQ(names(mount / ".stfs/tree/a/b"), Strings{"a/b.c/d"});
}

TEST_F(MountAsSource, ReadsCheckpointInMountAsFile) {
  const Mounted mount({source_});

  EXPECT_EQ(names(mount / ".stfs/merged.safetensors"), names(source_));
  EXPECT_EQ(names(mount / ".stfs/safetensors/layers.safetensors"), Strings{"layers"});
  EXPECT_EQ(names(mount / ".stfs/safetensors/a/b.c"), Strings{"a/b.c/d"});
  EXPECT_EQ(names(mount / ".stfs/subset/layers%2F0*.safetensors"),
            (Strings{"layers/0/k", "layers/0/q", "layers/01"}));
  EXPECT_EQ(tensors(mount / ".stfs/merged.safetensors")[0]["source"],
            (mount / ".stfs/merged.safetensors").string());
}

TEST_F(MountAsSource, ViewDirectoryIsErrorThatNamesMount) {
  const Mounted mount({source_});

  for (const char* path : {".stfs", ".stfs/npy", ".stfs/f32/layers%2F0", ".stfs/slice/layers"}) {
    expect_one_line(info({"list", mount / path}), 2, "name the mount, " + mount.path().string());
  }
}

TEST_F(MountAsSource, TensorInAnotherFormIsErrorThatNamesTensor) {
  const Mounted mount({source_});
  for (const char* path :
       {".stfs/slice/model.norm/0:2", ".stfs/f32-slice/layers%2F0/q/0:2", ".stfs/f32/layers%2F0/q",
        ".stfs/npy-f32/layers%2F0/q.npy", ".stfs/npy-slice/model.norm/0:2.npy"}) {
    expect_one_line(info({"hash", mount / path}), 2, "name its file outside of");
  }
}

TEST_F(MountAsSource, KeepsSourcesAndMissingShardsOfMount) {
  const Path model = dir_ / "model";
  std::filesystem::create_directory(model);
  write_safetensors(model / "one.safetensors", {random_tensor("one", "U8", {10}, 1)});
  write_index(model / "model.safetensors.index.json",
              {{"one", "one.safetensors"}, {"two", "two.safetensors"}});
  const Mounted mount({source_, model}, {"-o", "allow_missing"});
  const Mounted again({mount.path()});

  EXPECT_EQ(names(mount.path()).size(), 8u);
  EXPECT_EQ(names(mount / "one"), Strings{"one"});
  EXPECT_EQ(info({"diff", mount.path(), again.path()}).status, 0);
  const auto missing = nlohmann::json::parse(read_file(again / ".stfs/info.json"))["missing"];
  ASSERT_EQ(missing.size(), 1u);
  EXPECT_EQ(missing[0]["name"], "two");
}

TEST_F(MountAsSource, MountOfMountOpensThatMount) {
  const Path first = dir_ / "first";
  mount_at(first, {source_});
  const Mounted root({first});
  const Mounted part({first / "layers%2F0", first / ".stfs/tree/a"});
  // The path of "layers/0/q" needs no escape, because this mount has no tensor "layers".
  const Mounted tensor({part / "layers/0/q"});
  const Mounted third({tensor.path()});

  EXPECT_EQ(nlohmann::json::parse(*xattr(part.path(), kAttribute))["sources"],
            (Strings{first / "layers%2F0", first / ".stfs/tree/a"}));
  EXPECT_EQ(tensors(root.path()), tensors(source_));
  EXPECT_EQ(names(part.path()), (Strings{"a/b.c/d", "layers/0/k", "layers/0/q"}));
  EXPECT_EQ(names(tensor.path()), Strings{"layers/0/q"});

  EXPECT_EQ(run({STFS_BINARY, "-u", first}).status, 0);

  EXPECT_EQ(read_file(tensor / "layers/0/q").size(), 32u);
  expect_one_line(info({"list", root.path()}), 3, "its source cannot be loaded: " + first.string());
  const std::string said = info({"list", third.path()}).err;
  EXPECT_EQ(said.find("cannot be loaded"), said.rfind("cannot be loaded")) << said;
  EXPECT_NE(said.find("name " + third.path().string()), std::string::npos) << said;
  EXPECT_EQ(names(root / ".stfs/merged.safetensors"), names(source_));
}

TEST_F(MountAsSource, RejectsMountThatContainsItself) {
  if (::geteuid() != 0) GTEST_SKIP() << "a bind mount needs root";
  const Path first = dir_ / "first";
  mount_at(first, {source_});
  const Mounted second({first});
  EXPECT_EQ(run({STFS_BINARY, "-u", first}).status, 0);
  if (run({"mount", "--bind", second.path(), first}).status != 0) GTEST_SKIP() << "no bind mounts";

  const Outcome list = info({"list", second.path()});

  EXPECT_EQ(run({"umount", first}).status, 0);
  expect_one_line(list, 2, "mounts of mounts are nested too deeply");
}

// Each turn adds one mount and one layer, so the count of both is odd or even.
TEST_F(MountAsSource, RejectsEditThatReadsItsOwnMount) {
  write_safetensors(dir_ / "base.safetensors", {random_tensor("w", "F32", {8}, 9)});
  const Path link = dir_ / "link";
  std::filesystem::create_symlink(source_, link);
  const std::string line = "replace w " + link.string() + "::model.norm";
  write_file(dir_ / "edits", line + "\n");
  const Mounted mount({dir_ / "base.safetensors"}, {"-o", "edit=" + (dir_ / "edits").string()});
  std::filesystem::remove(link);
  std::filesystem::create_symlink(mount.path(), link);

  const char* const rule = "mounts of mounts are nested too deeply";
  expect_one_line(info({"list", mount.path()}), 3, rule);
  expect_one_line(info({"list", dir_ / "base.safetensors", "-e", line}), 1, rule);
  const Path next = dir_ / "next";
  std::filesystem::create_directory(next);
  const Outcome refused = run({STFS_BINARY, mount.path(), next});
  EXPECT_EQ(refused.status, 3);
  EXPECT_NE(refused.err.find(rule), std::string::npos) << refused.err;
}

TEST_F(MountAsSource, RejectsMountpointAboveSourceMount) {
  const Path top = dir_ / "top", first = top / "first", link = dir_ / "link";
  mount_at(first, {source_});
  std::filesystem::create_symlink(first / "a", link);
  write_safetensors(dir_ / "other.safetensors", {random_tensor("w", "F32", {8}, 9)});
  write_file(dir_ / "edits", "replace w " + first.string() + "::model.norm\n");
  const Path second = dir_ / "second";
  mount_at(second, {first / "layers%2F0"});
  const std::string edit = "edit=" + (dir_ / "edits").string();
  const std::vector<std::vector<std::string>> commands{
      {first / "a", first / "a"},
      {first / "a/b.c", first / "a"},
      {link, first / "a"},
      {first, top},
      {second, top},
      {"-o", edit, dir_ / "other.safetensors", top}};
  for (const std::vector<std::string>& words : commands) {
    std::vector<std::string> command = words;
    command.insert(command.begin(), STFS_BINARY);
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.status, 4) << words[0] << " " << words[1];
    EXPECT_NE(outcome.err.find("would be hidden: choose another directory"), std::string::npos)
        << words[0] << " " << words[1] << " " << outcome.err;
    if (outcome.status == 0) {
      EXPECT_EQ(run({STFS_BINARY, "-u", words.back()}).status, 0);
    }
  }
  EXPECT_EQ(names(first), names(source_));

  // A source around the mountpoint stays where it is.
  mount_at(first / "a", {first});
  EXPECT_EQ(names(first / "a"), names(source_));
  EXPECT_EQ(run({STFS_BINARY, "-u", first / "a"}).status, 0);
  EXPECT_EQ(run({STFS_BINARY, "-u", second}).status, 0);
  EXPECT_EQ(run({STFS_BINARY, "-u", first}).status, 0);
}

TEST_F(MountAsSource, MergedFileOfMountedDirectoryHasOnlyItsTensors) {
  const Mounted mount({source_});
  const Mounted part({mount / "layers%2F0"});

  EXPECT_EQ(names(part / ".stfs/merged.safetensors"), (Strings{"layers/0/k", "layers/0/q"}));
}

TEST_F(MountAsSource, MountOfMergedFileReadsThatFile) {
  const Mounted mount({source_});
  const Mounted second({mount / ".stfs/merged.safetensors"});

  EXPECT_EQ(names(second.path()), names(source_));
  EXPECT_EQ(tensors(second.path())[0]["source"], (mount / ".stfs/merged.safetensors").string());
}

TEST_F(MountAsSource, SourceReplacedByRenameIsErrorThatNamesMergedFile) {
  const Mounted mount({source_});
  const Mounted bare({source_}, {"-o", "views=off"});
  const Mounted watched({source_}, {"-o", "supervise"});
  write_safetensors(dir_ / "new", {random_tensor("other", "U8", {1})});
  std::filesystem::rename(dir_ / "new", source_);

  const std::string merged = mount / ".stfs/merged.safetensors";
  expect_one_line(info({"list", mount.path()}), 3,
                  source_.string() + " has changed since it was mounted: name " + merged);
  expect_one_line(info({"list", mount / "layers"}), 3, "has changed since it was mounted");
  expect_one_line(info({"list", bare.path()}), 3, "unmount it and mount it again");
  EXPECT_EQ(names(merged).size(), 7u);
}

TEST_F(MountAsSource, RestartedWorkerKeepsAttribute) {
  const Mounted mount({source_}, {"-o", "supervise"});
  const auto before = xattr(mount.path(), kAttribute);

  const std::vector<pid_t> processes = processes_with(mount.path());
  if (processes.size() < 2) GTEST_SKIP() << "not supervised";
  ::kill(*std::ranges::max_element(processes), SIGKILL);

  EXPECT_EQ(xattr(mount.path(), kAttribute), before);
  EXPECT_EQ(tensors(mount.path()), tensors(source_));
}

TEST_F(MountAsSource, RewrittenSourceIsErrorThatSaysToMountAgain) {
  const Mounted mount({source_});
  write_safetensors(source_, {random_tensor("other", "U8", {1})});

  expect_one_line(info({"list", mount.path()}), 3,
                  "has changed since it was mounted: unmount it and mount it again");
}

TEST_F(MountAsSource, RemovedSourceIsErrorThatNamesIt) {
  const Mounted mount({source_});
  std::filesystem::remove(source_);

  const Outcome list = info({"list", mount.path()});

  expect_one_line(list, 3, mount.path().string() + ": its source cannot be loaded: ");
  EXPECT_NE(list.err.find(source_.string() + ": No such file"), std::string::npos) << list.err;
  EXPECT_NE(list.err.find("merged.safetensors"), std::string::npos) << list.err;
}

TEST_F(MountAsSource, MountOfOtherUserSuggestsAllowOther) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  if (run({"which", "setpriv"}).status != 0) GTEST_SKIP() << "no setpriv";
  const Mounted mount({source_});
  std::filesystem::permissions(mount.path().parent_path(), std::filesystem::perms(0755));
  const auto as_other_user = [&](const std::string& source) {
    return run({"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", STFS_INFO_BINARY,
                "list", source});
  };
  if (as_other_user("/nowhere").status != 3) GTEST_SKIP() << "user 65534 cannot run the program";

  expect_one_line(as_other_user(mount.path()), 3, "allow_other");
  expect_one_line(as_other_user(mount / "layers"), 3, "allow_other");
}

TEST_F(MountAsSource, AllowOtherIsNotSuggestedIfAlreadySet) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  if (run({"which", "setpriv"}).status != 0) GTEST_SKIP() << "no setpriv";
  const Mounted mount({source_}, {"-o", "allow_other,umask=077"});
  std::filesystem::permissions(mount.path().parent_path(), std::filesystem::perms(0755));
  const auto as_other_user = [&](const std::string& source) {
    return run({"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", STFS_INFO_BINARY,
                "list", source});
  };
  if (as_other_user("/nowhere").status != 3) GTEST_SKIP() << "user 65534 cannot run the program";

  const Outcome refused = as_other_user(mount / "layers");

  expect_one_line(refused, 3, "Permission denied: this user may not enter");
  EXPECT_EQ(refused.err.find("allow_other"), std::string::npos) << refused.err;
}

TEST_F(MountAsSource, UnreadableSourceOfOtherUserNamesMergedFile) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  if (run({"which", "setpriv"}).status != 0) GTEST_SKIP() << "no setpriv";
  const Mounted mount({source_}, {"-o", "allow_other"});
  std::filesystem::permissions(mount.path().parent_path(), std::filesystem::perms(0755));
  const auto as_other_user = [&](const std::string& source) {
    return run({"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", STFS_INFO_BINARY,
                "list", source});
  };
  if (as_other_user("/nowhere").status != 3) GTEST_SKIP() << "user 65534 cannot run the program";

  const std::string merged = mount / ".stfs/merged.safetensors";
  expect_one_line(as_other_user(mount.path()), 3,
                  "may not enter one of its directories; name " + merged);
  EXPECT_EQ(as_other_user(merged).status, 0);
}

TEST_F(MountAsSource, ReportsDeadMount) {
  Mounted mount({source_});
  EXPECT_EQ(names(mount / "layers"),
            Strings{"layers"});  // so that the kernel caches the attributes
  mount.kill_daemon();

  expect_one_line(info({"list", mount.path()}), 3, "the process that served this mount has ended");
  expect_one_line(info({"list", mount / "layers"}), 3, "has ended");
  // A relative path with one `/` could be the name of a model.
  const auto from_above = [&](std::vector<std::string> command) {
    command.insert(command.begin(), {"env", "-C", mount.path().parent_path()});
    command.push_back(mount.path().filename() / "a");
    return run(command);
  };
  expect_one_line(from_above({STFS_INFO_BINARY, "list"}), 3, "has ended");
  const Outcome load = from_above({STFS_GPU_BINARY, "load", "--device", "cpu"});
  EXPECT_EQ(load.status, 3);
  EXPECT_NE(load.err.find("has ended"), std::string::npos) << load.err;
}

TEST_F(MountAsSource, AcceptsStrangePaths) {
  for (const char* name : {"with space", "line\nend", "back\\slash\"", "\xff\xfe", "%41"}) {
    const Path directory = dir_ / name;
    std::filesystem::create_directory(directory);
    std::filesystem::copy_file(source_, directory / name);
    const Path mountpoint = directory / "mnt";
    mount_at(mountpoint, {directory / name});
    EXPECT_EQ(names(mountpoint), names(source_)) << name;
    EXPECT_EQ(names(mountpoint / "layers%2F0").size(), 2u) << name;
    EXPECT_EQ(run({STFS_BINARY, "-u", mountpoint}).status, 0);
  }
}

TEST_F(MountAsSource, FileWithShortenedNameSelectsItsTensor) {
  const std::string first = std::string(300, 'x') + "1";
  const std::string second = std::string(300, 'x') + "2";
  write_safetensors(source_, {random_tensor(first, "U8", {1}), random_tensor(second, "U8", {2}),
                              random_tensor(first + "/" + second, "U8", {3})});
  const Mounted mount({source_});

  for (const std::string& name : names_in(mount.path())) {
    if (std::filesystem::is_directory(mount / name)) continue;
    EXPECT_EQ(names(mount / name), Strings{*xattr(mount / name, "user.stfs.name")});
  }
}

TEST_F(MountAsSource, EmptyCheckpointHasNoTensors) {
  write_safetensors(source_, {});
  const Mounted mount({source_});

  EXPECT_EQ(names(mount.path()), Strings{});
  EXPECT_EQ(names(mount / ".stfs/tree"), Strings{});
}

TEST_F(MountAsSource, CopyOfMountIsNotAMount) {
  const Mounted mount({source_});
  if (sh(R"(touch "$1" && setfattr -n user.x -v 1 "$1")", {dir_ / "probe"}).status != 0) {
    GTEST_SKIP() << "this file system has no extended attributes";
  }
  ASSERT_EQ(sh(R"(cp -r --preserve=all "$1" "$2")", {mount.path(), dir_ / "copy"}).status, 0);
  ASSERT_EQ(xattr(dir_ / "copy", kAttribute), xattr(mount.path(), kAttribute));

  expect_one_line(info({"list", dir_ / "copy"}), 3, "no .safetensors file");
  EXPECT_EQ(info({"list", dir_ / "copy/layers"}).status, 1);
}

TEST_F(MountAsSource, ReadsOtherFuseFileSystemAsFiles) {
  const TempDir disk_dir;
  std::filesystem::copy_file(source_, disk_dir / "m.safetensors");
  const FaultyDisk disk(disk_dir.path());

  EXPECT_EQ(names(disk / "m.safetensors"), names(source_));
}

// A server of 0.1.0 that still runs after an upgrade.
TEST_F(MountAsSource, MountOfOlderReleaseIsErrorThatSaysToMountAgain) {
  const Path older = dir_ / "older";
  std::filesystem::create_directories(older / ".stfs");
  write_file(older / ".stfs/tensors.json", "[]");
  write_file(older / "w", "abcd");
  std::filesystem::copy_file(source_, older / ".stfs/merged.safetensors");
  const FaultyDisk mount(older);

  for (const char* path : {"", "w"}) {
    expect_one_line(
        info({"list", mount / path}), 3,
        "an older stfs serves this mount, and does not describe what it mounted: mount it again");
  }
  EXPECT_EQ(names(mount / ".stfs/merged.safetensors"), names(source_));
}

TEST_F(MountAsSource, BindMountEqualsMount) {
  if (::geteuid() != 0) GTEST_SKIP() << "a bind mount needs root";
  const Mounted mount({source_});
  const Path bound = dir_ / "bound";
  std::filesystem::create_directory(bound);
  if (run({"mount", "--bind", mount.path(), bound}).status != 0) GTEST_SKIP() << "no bind mounts";

  EXPECT_EQ(names(bound), names(source_));
  EXPECT_EQ(names(bound / "layers%2F0").size(), 2u);
  EXPECT_EQ(run({"umount", bound}).status, 0);
}

TEST_F(MountAsSource, CoveredMountIsNotMistakenForItsCover) {
  if (::geteuid() != 0) GTEST_SKIP() << "a bind mount needs root";
  write_safetensors(dir_ / "other", {random_tensor("z", "U8", {1})});
  const Mounted mount({source_});
  const Mounted other({dir_ / "other"});
  const std::string cover =
      "mount --bind '" + other.path().string() + "' '" + mount.path().string() + "' || exit 77; ";

  const Outcome list =
      run({"sh", "-c",
           "cd '" + mount.path().string() + "'; " + cover + STFS_INFO_BINARY +
               " list .; status=$?; umount '" + mount.path().string() + "'; exit $status"});

  if (list.status == 77) GTEST_SKIP() << "no bind mounts";
  expect_one_line(list, 3, "another file system is mounted over it");
}

TEST_F(MountAsSource, ExcludesOtherMountOnItsDirectory) {
  const Mounted mount({source_});
  write_safetensors(dir_ / "other", {random_tensor("z", "U8", {1})});
  ASSERT_EQ(run({STFS_BINARY, dir_ / "other", mount / "a"}).status, 0);

  EXPECT_EQ(names(mount / "a"), Strings{"z"});
  EXPECT_EQ(names(mount.path()), names(source_));
  EXPECT_EQ(run({STFS_BINARY, "-u", mount / "a"}).status, 0);
}

TEST_F(MountAsSource, WorksWithMoreSourcesThanFitAttribute) {
  write_file(dir_ / "edits", "# " + std::string(70'000, 'x') + "\nrename s/norm/other/\n");
  const Mounted mount({source_}, {"-o", "edit=" + (dir_ / "edits").string()});

  EXPECT_EQ(std::filesystem::file_size(mount / "model.other"), 32u);
  EXPECT_FALSE(xattr(mount.path(), kAttribute));
  for (const char* path : {"", "model.other"}) {
    expect_one_line(info({"list", mount / path}), 3, "more than 64 KiB");
  }
  EXPECT_EQ(names(mount / ".stfs/merged.safetensors").size(), 7u);
}

TEST_F(MountAsSource, PartsOfTwoMountsDifferInVersionFromOtherParts) {
  write_safetensors(dir_ / "two.safetensors",
                    {random_tensor("x/w", "F32", {8}, 1), random_tensor("y/w", "F32", {8}, 2)});
  write_file(dir_ / "f16", "cast * F16\n");
  write_file(dir_ / "bf16", "cast * BF16\n");
  const Mounted first({dir_ / "two.safetensors"}, {"-o", "edit=" + (dir_ / "f16").string()});
  const Mounted second({dir_ / "two.safetensors"}, {"-o", "edit=" + (dir_ / "bf16").string()});
  const Mounted one({first / "x", second / "y"});
  const Mounted other({first / "y", second / "x"});
  const auto version = [](const Mounted& mount) {
    return nlohmann::json::parse(xattr(mount.path(), kAttribute).value())["version"];
  };

  EXPECT_NE(read_file(one / "x/w"), read_file(other / "x/w"));
  EXPECT_NE(version(one), version(other));
  EXPECT_EQ(tensors(one.path()).size(), 2U);

  // The same holds for a layer on one of two mounts and a layer on both.
  write_safetensors(dir_ / "third.safetensors", {random_tensor("z/w", "F32", {8}, 3)});
  write_file(dir_ / "twice", "cast * BF16\ncast * F16\n");
  const std::string twice = "edit=" + (dir_ / "twice").string();
  const Mounted third({dir_ / "third.safetensors"}, {"-o", twice});
  const Mounted apart({first.path(), third.path()});
  const Mounted together({first.path(), dir_ / "third.safetensors"}, {"-o", twice});
  EXPECT_NE(read_file(apart / "x/w"), read_file(together / "x/w"));
  EXPECT_NE(version(apart), version(together));
}

}  // namespace
}  // namespace stfs::test
