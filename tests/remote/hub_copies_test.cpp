// Models of the Hub of which the Hub's own cache has files: whole, cut and damaged ones.
#include "core/base/sha256.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/files.h"
#include "tests/support/mounted.h"
#include "tests/support/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <regex>
#include <span>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

namespace fs = std::filesystem;

class HubCopies : public MountTest {
 protected:
  void SetUp() override {
    MountTest::SetUp();
    if (!fs::exists("/usr/bin/python3")) GTEST_SKIP() << "no Python";
    ::umask(S_IWGRP | S_IWOTH);
    publish();
  }

  // A model, and a copy of its file in the Hub's own cache.
  void publish() {
    tensors_ = {random_tensor("a", "U8", {16}, 1), random_tensor("w", "U8", {1 << 20}, 2)};
    const fs::path model = dir_ / "models/org/name";
    fs::create_directories(model);
    write_safetensors(model / "model.safetensors", tensors_);
    write_file(model / "config.json", "{}");
    server_ = std::make_unique<Process>(std::vector<std::string>{
        "/usr/bin/python3", STFS_HUB_SERVER, "--log", log(), (dir_ / "models").string()});
    ASSERT_TRUE(eventually([&] { return server_->out().find('\n') != std::string::npos; }));
    hub_ = nlohmann::json::parse(server_->out()).at("hub");

    const std::string object = read_file(model / "model.safetensors");
    Sha256 sum;
    sum.add(std::as_bytes(std::span(object)));
    const Outcome shown = info({"show", "hf://org/name", "a"}, "asking");
    std::smatch commit;
    ASSERT_TRUE(std::regex_search(shown.out, commit, std::regex("@([0-9a-f]{40})/"))) << shown.err;
    const fs::path own = dir_ / "own/models--org--name";
    const fs::path snapshot = own / "snapshots" / commit[1].str();
    fs::create_directories(own / "blobs");
    fs::create_directories(own / "refs");
    fs::create_directories(snapshot);
    blob_ = own / "blobs" / sum.hex();
    write_file(blob_, object);
    write_file(own / "refs/main", commit[1].str());
    fs::create_symlink(blob_, snapshot / "model.safetensors");
    write_file(snapshot / "config.json", "{}");
    write_file(log(), "");
  }
  // Changes the last byte of the last tensor, in the copy and in the expected bytes.
  void damage_copy() {
    char& byte = tensors_[1].bytes.back();
    byte = static_cast<char>(byte ^ 1);
    std::fstream file(blob_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end).put(byte);
  }

  std::string log() const { return (dir_ / "log").string(); }
  // Returns the ranges that were requested from the second host, which serves large files.
  std::vector<std::string> asked_bytes() const {
    std::vector<std::string> ranges;
    std::ifstream lines(log());
    for (std::string line; std::getline(lines, line);) {
      const auto request = nlohmann::json::parse(line);
      if (request.at("server") == "cdn") ranges.push_back(request.at("range").get<std::string>());
    }
    return ranges;
  }
  RunOptions environment(const std::string& cache) const {
    return {
        .environment = {"HF_ENDPOINT=" + hub_, "HOME=" + dir_.path().string(),
                        "HF_HUB_CACHE=" + (cache == "asking" ? "/none" : (dir_ / "own").string()),
                        "STFS_CACHE=" + (dir_ / cache).string()}};
  }
  Outcome info(std::vector<std::string> words, const std::string& cache = "cache") const {
    words.insert(words.begin(), STFS_INFO_BINARY);
    return run(words, environment(cache));
  }
  std::unique_ptr<ForegroundMount> mount(const std::string& options = "ro",
                                         const std::string& cache = "cache") const {
    return std::make_unique<ForegroundMount>(std::vector<std::string>{"hf://org/name"},
                                             std::vector<std::string>{"-o", options},
                                             environment(cache));
  }
  void expect_right(ForegroundMount& mounted) const {
    for (const Tensor& tensor : tensors_) {
      EXPECT_TRUE(read_file(mounted / tensor.name) == tensor.bytes) << tensor.name;
    }
  }

  TempDir dir_;
  std::vector<Tensor> tensors_;
  std::unique_ptr<Process> server_;
  std::string hub_;
  fs::path blob_;
};

TEST_F(HubCopies, ServeReadsWithHubNameAndVersionWithoutFetching) {
  for (const char* const options : {"ro", "supervise", "prefetch=all"}) {
    const auto mounted = mount(options);
    expect_right(*mounted);
    EXPECT_TRUE(xattr(*mounted / "w", "user.stfs.source")->starts_with("hf://org/name@"));
    EXPECT_EQ(xattr(*mounted / "w", "user.stfs.version"), "hf-" + blob_.filename().string());
    EXPECT_EQ(mounted->process().err().find("warning"), std::string::npos);
  }
  const Outcome check = info({"check", "hf://org/name"});
  EXPECT_EQ(check.status, 0) << check.out;
  EXPECT_EQ(asked_bytes(), std::vector<std::string>{});
}

// The next worker knows what the lease of the last one has judged.
TEST_F(HubCopies, TouchBeforeWorkerDiesIsNotAChange) {
  const auto mounted = mount("supervise,page_cache=direct");
  expect_right(*mounted);
  ASSERT_EQ(run({"touch", "-a", blob_}).status, 0);
  expect_right(*mounted);
  pid_t worker = 0;
  ASSERT_TRUE(eventually([&] {
    for (const pid_t pid : processes_with(mounted->path())) {
      if (pid != mounted->process().pid()) worker = pid;
    }
    return worker > 0;
  }));
  ::kill(worker, SIGKILL);
  expect_right(*mounted);
}

// The Hub's own client compares no digest either.
TEST_F(HubCopies, DamagedCopyIsServedAndFoundByCheckAndByPrefetchAll) {
  damage_copy();
  expect_right(*mount());
  const std::string found = " as its server says: remove " + fs::canonical(blob_).string();
  const Outcome check = info({"check", "hf://org/name"});
  EXPECT_EQ(check.status, 3);
  EXPECT_NE(check.out.find(found), std::string::npos) << check.out;
  for (const char* const options : {"prefetch=all", "prefetch=all,supervise"}) {
    const auto mounted = mount(options);
    EXPECT_TRUE(eventually([&] {
      return mounted->process().err().find(found) != std::string::npos;
    })) << mounted->process().err();
    errno = 0;
    EXPECT_LT(::open((*mounted / "w").c_str(), O_RDONLY | O_CLOEXEC), 0) << options;
    EXPECT_EQ(errno, ESTALE) << options;
  }
}

TEST_F(HubCopies, CopyOfOtherSizeIsIgnored) {
  fs::resize_file(blob_, 4000);
  for (const char* const options : {"ro", "supervise"}) {
    const auto mounted = mount(options);
    expect_right(*mounted);
    EXPECT_NE(mounted->process().err().find("has 4000 bytes, not "), std::string::npos);
  }
  EXPECT_NE(asked_bytes(), std::vector<std::string>{});
  expect_right(*mount("offline"));
  const Outcome offline = info({"cat", "--offline", "hf://org/name", "w"}, "empty");
  EXPECT_EQ(offline.status, 1) << "a file that ends early: " << offline.err;
}

TEST_F(HubCopies, CopyWritableByOthersIsIgnored) {
  fs::permissions(blob_, fs::perms::others_write, fs::perm_options::add);
  const auto mounted = mount();
  expect_right(*mounted);
  EXPECT_NE(mounted->process().err().find("is not used: other users may write to it"),
            std::string::npos);
  const Outcome offline = info({"cat", "--offline", "hf://org/name", "w"}, "empty");
  EXPECT_EQ(offline.status, 3) << offline.out.size();
  EXPECT_NE(offline.err.find("other users may write to it"), std::string::npos) << offline.err;
}

TEST_F(HubCopies, OfflineSnapshotHasHubVersion) {
  for (const char* const options : {"offline", "offline,supervise"}) {
    const auto mounted = mount(options, "empty");
    expect_right(*mounted);
    EXPECT_TRUE(xattr(*mounted / "w", "user.stfs.source")->starts_with("hf://org/name@"));
    EXPECT_EQ(xattr(*mounted / "w", "user.stfs.version"), "hf-" + blob_.filename().string());
  }
  EXPECT_EQ(read_file(log()), "");
}

TEST_F(HubCopies, OutputDoesNotReplaceCopyThatItIsMadeOf) {
  const std::string before = read_file(blob_);
  const fs::path link = dir_ / "link.safetensors";
  fs::create_symlink(blob_, link);
  for (const fs::path& output : {blob_, link}) {
    const Outcome result = info({"extract", "--force", "hf://org/name", "a", "-o", output});
    EXPECT_EQ(result.status, 2) << result.err;
    EXPECT_NE(result.err.find(": a file of the source: choose another name"), std::string::npos);
  }
  EXPECT_TRUE(read_file(blob_) == before);
  EXPECT_TRUE(fs::is_symlink(link));
}

TEST_F(HubCopies, RejectsMountpointAboveCopy) {
  const fs::path blobs = fs::canonical(blob_.parent_path());
  const Outcome result =
      run({STFS_BINARY, "-f", "-o", "nonempty", "hf://org/name", blobs}, environment("cache"));
  EXPECT_EQ(result.status, 4) << result.err;
  EXPECT_NE(result.err.find("the source " + (blobs / blob_.filename()).string() + " lies in it"),
            std::string::npos)
      << result.err;
}

TEST_F(HubCopies, TruncatedCopyGivesESTALE) {
  const auto mounted = mount("page_cache=direct");
  expect_right(*mounted);
  fs::resize_file(blob_, 300'000);
  errno = 0;
  EXPECT_LT(::open((*mounted / "w").c_str(), O_RDONLY | O_CLOEXEC), 0);
  EXPECT_EQ(errno, ESTALE);
}

// The version token of a copy is that of the Hub's file, so it does not show the change.
TEST_F(HubCopies, MountOfChangedCopyIsNotOpenedAsSource) {
  for (const bool is_replaced : {false, true}) {
    const auto mounted = mount();
    ASSERT_EQ(info({"cat", *mounted / "", "w"}).status, 0);
    if (is_replaced) {
      fs::copy_file(blob_, dir_ / "other");
      fs::rename(dir_ / "other", blob_);
    }
    damage_copy();
    const Outcome result = info({"cat", *mounted / "", "w"});
    EXPECT_EQ(result.status, 3) << result.err;
    EXPECT_EQ(result.out, "");
  }
}

TEST_F(HubCopies, CommandThatReadsViewDoesNotOverwriteCopy) {
  const auto mounted = mount();
  const std::string before = read_file(blob_);
  const std::string merged = *mounted / ".stfs/merged.safetensors";
  EXPECT_EQ(info({"extract", "--force", merged, "a", "-o", blob_}).status, 2);
  const Outcome printed =
      run({"bash", "-c", R"("$1" hash "$2" >>"$3")", "bash", STFS_INFO_BINARY, merged, blob_},
          environment("cache"));
  EXPECT_EQ(printed.status, 2) << printed.err;
  EXPECT_EQ(read_file(blob_), before);
}

// A command that read them would leave a cache that is broken for others.
TEST_F(HubCopies, CommandDoesNotOverwriteCopyOrCacheThatItReads) {
  const fs::path snapshot = *fs::directory_iterator(dir_ / "own/models--org--name/snapshots");
  const std::string source = "hf://org/name";
  ASSERT_EQ(info({"hash", source}, "fetched").status, 0);
  std::vector<std::string> outputs{snapshot / "model.safetensors", snapshot / "config.json", blob_};
  const auto expect_refused = [&](const std::string& output, const std::string& cache) {
    const std::string before = read_file(output);
    const Outcome result =
        info({"extract", "--force", "--dequantize=bf16", source, "*", "-o", output}, cache);
    EXPECT_EQ(result.status, 2) << output << result.err;
    EXPECT_NE(result.err.find("a file of the source: choose another name"), std::string::npos)
        << output << result.err;
    EXPECT_EQ(read_file(output), before) << output;
    const Outcome printed =
        run({"bash", "-c", R"("$1" extract --dequantize=bf16 "$2" '*' -o - 1<>"$3")", "bash",
             STFS_INFO_BINARY, source, output},
            environment(cache));
    EXPECT_EQ(printed.status, 2) << output << printed.err;
    EXPECT_EQ(read_file(output), before) << output;
  };
  for (const std::string& output : outputs) expect_refused(output, "cache");
  outputs.clear();
  for (const auto& entry : fs::recursive_directory_iterator(dir_ / "asking/v1")) {
    if (entry.is_regular_file() && entry.path().filename() != "map")
      outputs.push_back(entry.path());
  }
  EXPECT_GT(outputs.size(), 2U);
  for (const std::string& output : outputs) expect_refused(output, "asking");
}

}  // namespace
}  // namespace stfs::test
