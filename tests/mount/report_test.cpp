// The report of a checkpoint: stfs-info report, and report.html in a mount, read like a file
// manager and a shell read it.
#include "tests/mount/info_tool.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/files.h"
#include "tests/support/mounted.h"
#include "tests/support/process.h"
#include "tests/support/pseudo_terminal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

namespace fs = std::filesystem;
using std::string_literals::operator""s;

std::string floats(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::vector<Tensor> some_tensors() {
  std::vector<Tensor> tensors{random_tensor("lm_head.weight", "U8", {40, 30}, 3)};
  for (int layer = 0; layer < 12; ++layer) {
    tensors.push_back(random_tensor("layers." + std::to_string(layer) + ".w", "U8", {64, 64},
                                    10U + static_cast<unsigned>(layer)));
  }
  tensors.push_back({"nan.weight", "BF16", {3}, "\xc0\x7f\x00\x00\x80\x3f"s});
  tensors.push_back({"zero.weight", "F32", {5}, floats({0, 0, 0, 0, 0})});
  tensors.push_back(random_tensor("embed.weight", "U8", {40, 30}, 3));
  return tensors;
}

// Expects the findings of some_tensors() in the page. The compared texts contain no quotes, because
// the page may escape them.
void expect_findings(const std::string& page) {
  for (const char* part : {"</html>", "NaN in 1 tensor: ", "(1 of 3 values, at [0])",
                           "only zeros in 1 tensor: ", "2 tensors with equal bytes"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
}

class ReportFile : public MountTest {
 protected:
  void SetUp() override {
    MountTest::SetUp();
    write_safetensors(source(), some_tensors());
  }
  std::string source() const { return (dir_ / "m.safetensors").string(); }
  TempDir dir_;
};

class InfoReport : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::vector<Tensor>& tensors) {
    const std::string path = (dir_ / (name + ".safetensors")).string();
    write_safetensors(path, tensors);
    return path;
  }
  TempDir dir_;
};

TEST_F(InfoReport, WritesPageToFileOrPipe) {
  const std::string file = write("m", some_tensors());
  const std::string page = dir_ / "report.html";

  const Outcome named = info({"report", file, "-o", page});
  const Outcome piped = info({"report", "--jobs", "1", file, "-o", "-"});

  EXPECT_EQ(named.status, 0) << named.err;
  EXPECT_EQ(named.out + named.err, "") << "output without a terminal";
  EXPECT_EQ(piped.status, 0) << piped.err;
  EXPECT_EQ(read_file(page), piped.out);
  expect_findings(piped.out);
}

TEST_F(InfoReport, AcceptsSeveralSourcesAndAgainst) {
  const std::string a = write("a", {{"x", "F32", {2}, floats({1, 2})}});
  const std::string b = write("b", {{"y", "F32", {2}, floats({3, 4})}});
  const std::string base =
      write("base", {{"x", "F32", {2}, floats({1, 3})}, {"gone", "F32", {1}, floats({3})}});

  const Outcome both = info({"report", a, b, "--against", base, "-o", "-"});

  EXPECT_EQ(both.status, 0) << both.err;
  EXPECT_NE(both.out.find("gone"), std::string::npos);
  EXPECT_NE(both.out, info({"report", a, b, "-o", "-"}).out);
}

TEST_F(InfoReport, SourcesWithSharedNamesAreShownAsRun) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const int step : {1, 2, 10}) {
    const fs::path directory = dir_ / ("step-" + std::to_string(step));
    fs::create_directory(directory);
    write_safetensors(directory / "model.safetensors",
                      {{"w", "F32", {2}, floats({1, step == 10 ? nan : 2})}});
  }
  const Outcome run = sh(R"("$1" report "$2"/step-*/ -o "$2/run.html" && cat "$2/run.html")",
                         {STFS_INFO_BINARY, dir_.path().string()});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_NE(run.out.find("step-10 is the first that is broken"), std::string::npos);
  EXPECT_NE(run.out.find("<h1>step-1 to step-10</h1>"), std::string::npos)
      << "the numbers in their names determine the order";
  const std::string one = dir_ / "step-1", two = dir_ / "step-2";
  expect_one_line(info({"report", one, two, "--against", one, "-o", "-"}), 2, "--against");
  expect_one_line(info({"report", one, two, dir_ / "none", "-o", "-"}), 3, "none");
}

TEST_F(InfoReport, RunNamesVersionThatLacksTensor) {
  const std::string all =
      write("step-1", {{"w", "F32", {2}, floats({1, 2})}, {"v", "U8", {1}, "a"}});
  const std::string few = write("step-2", {{"v", "U8", {1}, "a"}});

  const Outcome run = info({"report", all, few, "-o", "-"});

  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_NE(run.out.find("<tr class=\"broken\"><td>w<td><b>missing in step-2</b>"),
            std::string::npos);
  EXPECT_NE(run.out.find("<td>v<td><td>"), std::string::npos);
}

TEST_F(InfoReport, UnreadableSourceIsOneLineAndNoFile) {
  const std::string page = dir_ / "none.html";
  expect_one_line(info({"report", dir_ / "none.safetensors", "-o", page}), 3, "none.safetensors");
  EXPECT_FALSE(fs::exists(page));
  const std::string file = write("m", some_tensors());
  expect_one_line(info({"report", file, "-o", dir_ / "no/such/r.html"}), 3, "no/such/");
  expect_one_line(info({"report", file}), 2, "-o");
  expect_one_line(info({"report", file, "--against", dir_ / "gone", "-o", page}), 3, "gone");
  EXPECT_FALSE(fs::exists(page));
}

TEST_F(InfoReport, NeverReplacesItsSource) {
  if (is_remote()) GTEST_SKIP() << "a URL is not a file that could be replaced";
  const std::string a = write("a", some_tensors());
  const std::string b = write("b", some_tensors());
  const std::string model = dir_ / "model";
  fs::copy(test_data("sharded"), model, fs::copy_options::recursive);
  write_file(model + "/config.json", "{}");
  const std::string next = dir_ / "next";
  fs::copy(model, next, fs::copy_options::recursive);
  fs::create_symlink(a, dir_ / "link");
  std::vector<std::vector<std::string>> all{
      {a, "-o", a}, {a, "-o", dir_ / "link"}, {b, "-o", b}, {a, "--against", b, "-o", b}};
  for (const auto& entry : fs::directory_iterator(model)) {
    const std::string name = entry.path().string();
    const bool is_source = name.ends_with(".safetensors") || name.ends_with(".index.json") ||
                           name.ends_with("/config.json");
    if (!is_source) continue;
    all.push_back({model, "-o", name});
    all.push_back({model, next, "-o", name});
  }
  EXPECT_GT(all.size(), 10U);
  for (std::vector<std::string>& words : all) {
    const std::string output = words.back();
    const std::string before = read_file(output);
    words.insert(words.begin(), "report");
    expect_one_line(info(words), 2, "a file of the source: choose another name");
    words.emplace_back("--force");
    expect_one_line(info(words), 2, "a file of the source: choose another name");
    EXPECT_EQ(read_file(output), before) << output;
  }
}

TEST_F(InfoReport, ReplacesFileOnlyWithForce) {
  const std::string file = write("m", some_tensors());
  const std::string page = dir_ / "report.html";
  write_file(page, "before");

  expect_one_line(info({"report", file, "-o", page}), 2, "already exists: --force replaces it");
  EXPECT_EQ(read_file(page), "before");
  EXPECT_EQ(info({"report", "--force", file, "-o", page}).status, 0);
  expect_findings(read_file(page));
}

TEST_F(InfoReport, UnreadableOtherCheckpointIsExit3) {
  if (is_remote()) GTEST_SKIP() << "the disk that fails is local";
  const std::string a = write("a", {random_tensor("x", "U8", {100'000}, 1)});
  const TempDir there;
  write_safetensors(there / "b.safetensors", {random_tensor("x", "U8", {100'000}, 2)});
  const FaultyDisk disk(there.path());
  disk.fail_or_stall("fail", "b.safetensors", 50'000, 60'000);

  const Outcome result =
      info({"report", a, "--against", disk / "b.safetensors", "-o", dir_ / "r.html"});

  expect_one_line(result, 3, "1 of 1 tensor cannot be read: the report says why");
  EXPECT_NE(read_file(dir_ / "r.html").find("1 tensor of the other checkpoint cannot be read"),
            std::string::npos);
}

TEST_F(InfoReport, PrintsFindingsOnTerminal) {
  const std::string file = write("m", some_tensors());
  for (const char* locale : {"C", "C.UTF-8"}) {
    for (const unsigned columns : {40U, 80U, 200U}) {
      const Outcome result =
          run({STFS_INFO_BINARY, "report", "--force", file, "-o", dir_ / "r.html"},
              {.environment = {"LC_ALL="s + locale, "TERM="}, .terminal_columns = columns});
      EXPECT_EQ(result.status, 0) << result.out;
      EXPECT_NE(result.out.find("broken: NaN in 1 tensor"), std::string::npos) << result.out;
    }
  }
  const Outcome refused =
      run({STFS_INFO_BINARY, "report", file, "-o", "-"}, {.terminal_columns = 80});
  EXPECT_EQ(refused.status, 2);
}

TEST_F(InfoReport, AcceptsDequantize) {
  const std::string file = write("m", some_tensors());
  EXPECT_EQ(info({"report", "--dequantize", "bf16", file, "-o", "-"}).status, 0);
}

// diff --values

TEST_F(InfoReport, DiffValuesPrintsDistanceOfTensors) {
  const std::string a = write("a", {{"i", "I32", {2}, "\1\0\0\0\5\0\0\0"s},
                                    {"same", "F32", {1}, floats({1})},
                                    {"w", "F32", {2, 2}, floats({3, 1, 7, 7})},
                                    {"z", "F32", {2}, floats({1, 0})}});
  const std::string b = write("b", {{"i", "I32", {2}, "\1\0\0\0\2\0\0\0"s},
                                    {"same", "F32", {1}, floats({1})},
                                    {"w", "F32", {2, 2}, floats({3, 4, 0, 0})},
                                    {"z", "F32", {2}, floats({0, 0})}});

  const Outcome text = info({"diff", "--no-header", "--values", a, b});
  const Outcome as_json = info({"diff", "--values", "--json", a, b});

  EXPECT_EQ(text.status, 1) << text.err;
  const std::vector<std::string> lines = lines_of(text.out);
  ASSERT_EQ(lines.size(), 3U) << text.out;
  EXPECT_EQ(lines[0], "bytes\ti\t-\t-\t4\t3\t[1]\t0.5883484054145521\t0.5\t0");
  EXPECT_TRUE(lines[1].starts_with("bytes\tw\t")) << lines[1];
  EXPECT_TRUE(lines[2].ends_with("\t1\t[0]\t1\t0.5\t0")) << lines[2];
  const nlohmann::json rows = nlohmann::json::parse(as_json.out);
  EXPECT_EQ(rows[1].at("largest_difference"), 7);
  EXPECT_EQ(rows[1].at("at"), nlohmann::json::parse("[1,0]"));
  EXPECT_EQ(rows[1].at("equal_share"), 0.25);
  EXPECT_NEAR(rows[1].at("relative_distance").get<double>(), std::sqrt(107.0 / 108), 1e-12);
  EXPECT_EQ(rows[2].at("relative_distance"), 1);
  const nlohmann::json back = nlohmann::json::parse(info({"diff", "--values", "--json", b, a}).out);
  EXPECT_TRUE(back[2].at("relative_distance").is_null());
  EXPECT_EQ(info({"diff", "--values", a, a}).out, "");
}

TEST_F(InfoReport, DiffValuesHandlesNanInfinityAndTwoTypes) {
  const std::string a = write(
      "a", {{"n", "BF16", {2}, "\xc0\x7f\x80\x3f"s}, {"t", "BF16", {2}, "\x80\x3f\x00\x40"s}});
  const std::string b =
      write("b", {{"n", "BF16", {2}, "\x00\x40\x80\x3f"s}, {"t", "F32", {2}, floats({1, 2})}});
  const std::vector<std::string> lines = lines_of(info({"diff", "--values", a, b}).out);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[1], "bytes\tn\t-\t-\t0\tinf\t[0]\t-\t0.5\t1");
  EXPECT_EQ(lines[2], "dtype\tt\tBF16\tF32\t-\t0\t-\t0\t1\t0");
}

// report.html

TEST_F(ReportFile, HasSizeAfterReadAndEqualsOutputOfCommand) {
  const Mounted mount({source()});
  const std::string path = mount / ".stfs/report.html";
  EXPECT_EQ(fs::file_size(path), 0U);

  const std::string page = read_file(path);
  EXPECT_EQ(fs::file_size(path), page.size()) << "a browser relies on the size";
  const Outcome tools = sh(
      R"(ls -l "$1/.stfs/report.html" | wc -l
         tar -C "$1/.stfs" -c report.html | tar -xO | cmp - "$1/.stfs/report.html" && echo packed
         cp "$1/.stfs/report.html" "$2/copy.html" && cat "$1/.stfs/report.html" | cmp - "$2/copy.html" && echo same)",
      {mount.path().string(), dir_.path().string()});

  expect_findings(page);
  EXPECT_EQ(tools.out, "1\npacked\nsame\n") << tools.err;
  EXPECT_EQ(read_file(dir_ / "copy.html"), page);
  if (!is_remote()) {
    EXPECT_EQ(info({"report", source(), "-o", "-"}).out, page);
  }
}

TEST_F(ReportFile, ConcurrentReadersGetSameText) {
  const Mounted mount({source()});
  std::vector<std::string> pages(6);
  {
    std::vector<std::jthread> readers;
    for (std::string& page : pages) {
      readers.emplace_back([&page, path = mount / ".stfs/report.html"] { page = read_file(path); });
    }
  }
  for (const std::string& page : pages) EXPECT_EQ(page, pages.front());
  expect_findings(pages.front());
}

TEST_F(ReportFile, SurvivesDeathOfWorker) {
  ForegroundMount mount({source()}, {"-o", "supervise"});
  const std::string path = mount.path() / ".stfs/report.html";
  const int fd = checked(::open(path.c_str(), O_RDONLY | O_CLOEXEC), "open");
  std::string first(100, '\0');
  ASSERT_EQ(::pread(fd, first.data(), first.size(), 0), 100);
  for (const pid_t pid : processes_with(mount.path().string())) {
    if (pid == mount.process().pid()) continue;
    ASSERT_EQ(::kill(pid, SIGKILL), 0);
  }
  std::string again(100, '\0');
  EXPECT_EQ(::pread(fd, again.data(), again.size(), 0), 100);
  EXPECT_EQ(again, first);
  ::close(fd);
  expect_findings(read_file(path));
}

TEST_F(ReportFile, SourceChangedDuringScanIsESTALE) {
  const fs::path read_once = dir_ / "y.safetensors";  // no tensor in it is read twice
  write_safetensors(read_once, {random_tensor("y", "U8", {100}, 1)});
  write_safetensors(dir_ / "z.safetensors", {random_tensor("z", "U8", {100'000}, 2)});
  const FaultyDisk disk(dir_.path());
  const Mounted mount({disk / "y.safetensors", disk / "z.safetensors"});
  disk.fail_or_stall("stall", "z.safetensors", 90'000, 91'000);
  const std::string path = mount / ".stfs/report.html";
  int error = 0;
  {
    const std::jthread reader([&] {
      std::string page;
      error = read_range(path, 0, 100, page);
    });
    EXPECT_TRUE(disk.stalls(1));
    const std::string before = read_file(read_once);
    write_file(read_once, before + "more");
    disk.tell("release");
  }
  EXPECT_EQ(error, ESTALE);
}

TEST_F(ReportFile, ChangedSourceIsESTALE) {
  const Mounted mount({source()});
  const std::string path = mount / ".stfs/report.html";
  expect_findings(read_file(path));
  fs::resize_file(source(), fs::file_size(source()) - 1);
  EXPECT_LT(::open(path.c_str(), O_RDONLY | O_CLOEXEC), 0);
  EXPECT_EQ(errno, ESTALE);
}

}  // namespace
}  // namespace stfs::test
