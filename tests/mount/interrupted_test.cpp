// stfs-info leaves no file and no progress bar if its user interrupts it or its disk is full.
#include "tests/mount/info_tool.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/failing_calls.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/mounted.h"
#include "tests/support/pseudo_terminal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace stfs::test {
namespace {

using Words = std::vector<std::string>;

constexpr int kCtrlC = 0;  // not a signal: Ctrl-C is typed on the terminal
constexpr int kEndings[] = {kCtrlC, SIGHUP, SIGINT, SIGTERM};

// A source that stalls at its last bytes until the disk is released.
class Interrupted : public MountTest {
 protected:
  Interrupted() {
    write_safetensors(dir_ / "m.safetensors",
                      {random_tensor("a", "U8", {100'000}), random_tensor("b", "U8", {9'000'000})});
    std::filesystem::create_directory(dir_ / "to");
  }

  std::string written() const { return dir_ / "to/new.safetensors"; }
  Words left() const { return names_in(dir_ / "to"); }
  void stall(const FaultyDisk& disk) const {
    const std::size_t end = std::filesystem::file_size(dir_ / "m.safetensors");
    disk.fail_or_stall("stall", "m.safetensors", end - 4096, end);
  }

  // Runs a command until it stalls and has shown its bar and at least `lines` lines, and ends it.
  // Returns the screen.
  Words end(const Words& words, int ending, std::vector<std::string> environment = {},
            std::ptrdiff_t lines = 0) const {
    const FaultyDisk disk(dir_.path());
    stall(disk);
    Words command = words;
    command.insert(command.begin() + 2, disk / "m.safetensors");
    if (ending == kCtrlC) command = controlled(command);
    Process process(command, {.environment = std::move(environment), .terminal_columns = 200});
    EXPECT_TRUE(disk.stalls(1));
    EXPECT_TRUE(eventually([&] {
      const std::string out = process.out();
      return !progress_texts(out).empty() && std::ranges::count(out, '\n') >= lines;
    }));

    if (ending == kCtrlC) {
      process.type("\x03");
    } else {
      process.signal(ending);
    }
    const Outcome result = process.wait();

    EXPECT_EQ(result.status, 128 + (ending == kCtrlC ? SIGINT : ending)) << result.out;
    return screen(result.out, 200);
  }

  TempDir dir_;
};

TEST_F(Interrupted, HashAndStatsKeepLinesAndRemoveBar) {
  for (const auto& [verb, lines] : {std::pair("hash", 1U), std::pair("stats", 2U)}) {
    for (const int ending : kEndings) {
      const Words rows = end({STFS_INFO_BINARY, verb, "-j", "1"}, ending, {}, lines);

      ASSERT_EQ(rows.size(), lines) << ::testing::PrintToString(rows);
      EXPECT_NE((rows.back() + " ").find(" a "), std::string::npos) << rows.back();
    }
  }
}

TEST_F(Interrupted, ExtractLeavesNoFileAndNoBar) {
  write_file(written(), "before");
  for (const int ending : kEndings) {
    EXPECT_EQ(end({STFS_INFO_BINARY, "extract", "*", "--force", "-o", written()}, ending), Words());
    EXPECT_EQ(left(), Words{"new.safetensors"}) << ending;
    EXPECT_EQ(read_file(written()), "before");
  }
}

TEST_F(Interrupted, ExtractLeavesNoFileWithoutTmpfile) {
  skip_where_calls_cannot_fail();
  if (IsSkipped()) return;
  for (const int ending : kEndings) {
    EXPECT_EQ(end({STFS_INFO_BINARY, "extract", "*", "-o", written()}, ending,
                  failing("tmpfile", {"STFS_FAIL_ON=1"})),
              Words());
    EXPECT_EQ(left(), Words()) << ending;
  }
}

TEST_F(Interrupted, ExtractContinuesIfCallerIgnoresSignal) {
  skip_where_calls_cannot_fail();
  if (IsSkipped()) return;
  for (const auto& environment : {Words(), failing("tmpfile", {"STFS_FAIL_ON=1"})}) {
    const FaultyDisk disk(dir_.path());
    stall(disk);
    Process process(
        {STFS_INFO_BINARY, "extract", disk / "m.safetensors", "*", "-o", written()},
        {.environment = environment, .ignored_signals = {SIGINT, SIGHUP}, .terminal_columns = 80});
    ASSERT_TRUE(disk.stalls(1));

    process.signal(SIGINT);
    process.signal(SIGHUP);
    disk.tell("release");

    EXPECT_EQ(process.wait().status, 0);
    EXPECT_EQ(left(), Words{"new.safetensors"});
    std::filesystem::remove(written());
  }
}

TEST_F(Interrupted, ExtractLeavesNoFileWhenKilled) {
  const FaultyDisk disk(dir_.path());
  stall(disk);
  Process process({STFS_INFO_BINARY, "extract", disk / "m.safetensors", "*", "-o", written()});
  ASSERT_TRUE(disk.stalls(1));

  process.signal(SIGKILL);

  EXPECT_EQ(process.wait().status, 128 + SIGKILL);
  EXPECT_EQ(left(), Words());
}

TEST_F(Interrupted, ChangedSourceIsReportedInWords) {
  for (const Words& words : {Words{"hash"}, {"stats"}, {"extract", "*", "-o", written()}}) {
    const FaultyDisk disk(dir_.path());
    stall(disk);
    Words command = words;
    command.insert(command.begin(), STFS_INFO_BINARY);
    command.insert(command.begin() + 2, disk / "m.safetensors");
    Process process(command);
    ASSERT_TRUE(disk.stalls(1));

    const std::string before = read_file(dir_ / "m.safetensors");
    write_file(dir_ / "m.safetensors", before + "more");
    disk.tell("release");
    const Outcome result = process.wait();
    write_file(dir_ / "m.safetensors", before);

    EXPECT_EQ(result.status, 3);
    EXPECT_TRUE(result.err.ends_with(
        "changed while it was open: open it again when no program writes to it\n"))
        << result.err;
    EXPECT_EQ(left(), Words());
  }
}

// A source of many tensors, of which the last cannot be read.
class FailingSource : public MountTest {
 protected:
  FailingSource() {
    std::vector<Tensor> tensors;
    for (unsigned i = 0; i < 3000; ++i) {
      tensors.push_back(random_tensor("t" + std::to_string(i), "U8", {1}));
    }
    tensors.push_back(random_tensor("z", "U8", {100'000}));
    write_safetensors(dir_ / "m.safetensors", tensors);
  }

  Outcome output_of(const std::string& command) const {
    const std::size_t end = std::filesystem::file_size(dir_ / "m.safetensors");
    const FaultyDisk disk(dir_.path());
    disk.fail_or_stall("fail", "m.safetensors", end - 4096, end);
    return sh(command, {STFS_INFO_BINARY, disk / "m.safetensors"});
  }

  TempDir dir_;
};

TEST_F(FailingSource, HashAndStatsPrintAllLinesBeforeFailure) {
  for (const char* command : {"\"$1\" hash -j 1 \"$2\"", "\"$1\" stats -j 1 \"$2\" | tail -n +2"}) {
    const Outcome result = output_of(command);

    EXPECT_EQ(std::ranges::count(result.out, '\n'), 3000) << command;
    EXPECT_NE(result.err.find("Input/output error"), std::string::npos) << result.err;
  }
}

TEST_F(FailingSource, FullDiskIsReportedFirst) {
  expect_one_line(output_of(R"("$1" hash -j 1 "$2" > /dev/full)"), 3,
                  "standard output: No space left on device");
}

class FullDisk : public ::testing::Test {
 protected:
  FullDisk() {
    write_safetensors(source_, {random_tensor("w", "U8", {4'000'000})});
    std::filesystem::create_directory(dir_ / "to");
  }

  TempDir dir_;
  std::string source_ = dir_ / "m.safetensors";
};

TEST_F(FullDisk, ExtractLeavesNoFile) {
  skip_where_calls_cannot_fail();
  if (IsSkipped()) return;
  if (::geteuid() != 0) GTEST_SKIP() << "a small file system needs root";
  for (const auto& environment : {Words(), failing("tmpfile", {"STFS_FAIL_ON=1"})}) {
    const Outcome result = run({"unshare", "-m", "bash", "-c", R"(
      mount -t tmpfs -o size=1m none "$3" || exit 77
      "$1" extract "$2" '*' -o "$3/new"; echo "status $?"; ls -A "$3"; umount "$3")",
                                "bash", STFS_INFO_BINARY, source_, dir_ / "to"},
                               {.environment = environment});

    if (result.status == 77 || result.err.starts_with("unshare:")) GTEST_SKIP() << result.err;
    EXPECT_EQ(result.out, "status 3\n");
    EXPECT_NE(result.err.find("/new: No space left on device"), std::string::npos) << result.err;
  }
}

TEST_F(FullDisk, FileSizeLimitIsError) {
  const Outcome result = sh(R"(ulimit -f 10; "$1" extract "$2" '*' -o "$3/new" || echo "status $?"
      ls -A "$3")",
                            {STFS_INFO_BINARY, source_, dir_ / "to"});

  EXPECT_EQ(result.out, "status 3\n");
  EXPECT_NE(result.err.find("/new: File too large"), std::string::npos) << result.err;
}

TEST_F(FullDisk, WriteToStandardOutputIsError) {
  for (const char* words : {"cat M w", "extract M w -o -", "hash M", "stats M", "stats --json M"}) {
    const std::string command =
        std::string(words).replace(std::string(words).find('M'), 1, "\"$2\"");
    const Outcome result = sh("\"$1\" " + command + " > /dev/full", {STFS_INFO_BINARY, source_});

    expect_one_line(result, 3, "standard output: No space left on device");
  }
}

}  // namespace
}  // namespace stfs::test
