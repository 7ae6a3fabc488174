// stfs-info cache on a cache that the test fills.
#include "core/base/sha256.h"
#include "core/remote/cache/cache.h"
#include "tests/mount/info_tool.h"
#include "tests/support/failing_calls.h"
#include "tests/support/files.h"
#include "tests/support/process.h"
#include "tests/support/pseudo_terminal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace stfs::info_cache_test {
namespace {

namespace fs = std::filesystem;
using test::Outcome;
constexpr std::uint64_t kBlock = CacheEntry::kBlock;

class InfoCache : public testing::Test {
 protected:
  std::vector<std::byte> bytes_of(std::uint64_t size) const {
    std::vector<std::byte> bytes(size);
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 255);
    return bytes;
  }

  // Adds an entry with its first `blocks` blocks. The entry is in use while the result lives.
  std::unique_ptr<CacheEntry> add(const std::string& name, std::uint64_t size, std::uint64_t blocks,
                                  const std::string& sha256 = "") {
    RemoteVersion version;
    version.name = name;
    version.size = size;
    version.token = "t";
    version.sha256 = sha256;
    auto entry = Cache({.directory = directory}).open(version);
    const std::vector<std::byte> bytes = bytes_of(size);
    for (std::uint64_t i = 0; i < blocks; ++i) {
      const ByteRange range = entry->range_of(i);
      const auto block = std::span(bytes).subspan(range.offset, range.length);
      EXPECT_EQ(entry->reserve(range), 0);
      EXPECT_EQ(entry->write(i, block), 0);
    }
    return entry;
  }
  std::string digest_of(std::uint64_t size) const {
    const std::vector<std::byte> bytes = bytes_of(size);
    return sha256_hex({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }

  Outcome cache(std::vector<std::string> words, const test::RunOptions& options = {}) const {
    words.insert(words.begin(), {STFS_INFO_BINARY, "cache"});
    words.insert(words.end(), {"--cache-dir", directory});
    return test::run(words, options);
  }
  nlohmann::json list() const { return nlohmann::json::parse(cache({"list", "--json"}).out); }
  fs::path data_of(const std::string& name) const {
    const auto found = nlohmann::json::parse(cache({"list", "--json", name}).out);
    return fs::path(directory) / "v1/entries" / found[0]["id"].get<std::string>() / "data";
  }
  static void flip(const fs::path& file, off_t offset) {
    const UniqueFd fd(::open(file.c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(::pwrite(fd.get(), "\xee\x01\xdd", 3, offset), 3);
  }

  test::TempDir temporary;
  std::string directory = temporary / "cache";
};

TEST_F(InfoCache, ListsEntriesWithCachedShare) {
  const auto user = add("hf://org/model@c0ffee/a.safetensors", 3 * kBlock, 3);
  add("https://host/\x1b[2J.gguf", 4 * kBlock, 1);
  const nlohmann::json entries = list();
  ASSERT_EQ(entries.size(), 2U);
  const auto& half = entries[entries[0]["size"] == 4 * kBlock ? 0 : 1];
  EXPECT_EQ(half["name"], "https://host/\x1b[2J.gguf");
  EXPECT_EQ(half["blocks"], 4);
  EXPECT_EQ(half["blocks_there"], 1);
  EXPECT_EQ(half["in_use"], false);
  EXPECT_GE(half["bytes_on_disk"], kBlock);
  const std::string id = half["id"];
  EXPECT_EQ(id.size(), 64U);

  const Outcome table = cache({"list"});
  EXPECT_EQ(table.status, 0);
  EXPECT_EQ(table.err, "");
  const std::vector<std::string> lines = test::lines_of(table.out);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_TRUE(lines[0].starts_with("ID            NAME")) << lines[0];
  EXPECT_EQ(table.out.find('\x1b'), std::string::npos);
  const std::string& line = lines[lines[1].find("gguf") != std::string::npos ? 1 : 2];
  EXPECT_TRUE(line.starts_with(id.substr(0, 12) + "  https://host/\\x1b[2J.gguf ")) << line;
  EXPECT_NE(line.find(" 1.0 MiB "), std::string::npos) << line;
  EXPECT_NE(line.find("  25%  "), std::string::npos) << line;
  EXPECT_TRUE(line.ends_with("Z  no")) << line;

  for (const std::string& word : {std::string("hf://org/model"),
                                  std::string("hf://org/model@c0ffee"), std::string("hf://org/")}) {
    const Outcome one = cache({"list", word});
    EXPECT_EQ(test::lines_of(one.out).size(), 2U) << word << one.err;
    EXPECT_TRUE(test::lines_of(one.out)[1].ends_with("Z  yes")) << one.out;
  }
  EXPECT_EQ(test::lines_of(cache({"list", id.substr(0, 12)}).out).size(), 2U);
  test::expect_one_line(cache({"list", "hf://org/mod"}), 2, "no entry of the cache is");
}

TEST_F(InfoCache, ListFitsTerminal) {
  add("hf://org/a-model-with-a-long-name@0123456789abcdef0123456789abcdef01234567/"
      "model-00001-of-00002.safetensors",
      kBlock, 1);
  add("hf://org/a-model-with-a-long-name@0123456789abcdef0123456789abcdef01234567/"
      "model-00002-of-00002.safetensors",
      kBlock, 0);
  for (const unsigned columns : {40U, 80U, 200U}) {
    const Outcome table =
        cache({"list"}, {.environment = {"LANG=C.UTF-8"}, .terminal_columns = columns});
    const std::vector<std::string> lines = test::screen(table.out, columns);
    std::string all;
    for (const std::string& line : lines) all += line + "\n";
    EXPECT_NE(all.find(columns == 40 ? "00002.safetensors" : "00002-of"), std::string::npos) << all;
    EXPECT_TRUE(lines.back().starts_with("2 entries, ")) << all;
    EXPECT_NE(all.find("HERE"), std::string::npos) << all;
  }
}

TEST_F(InfoCache, MissingDirectoryIsEmptyUnlessNamed) {
  test::expect_one_line(cache({"list"}), 3, "No such file or directory");
  EXPECT_FALSE(fs::exists(directory));
  const Outcome by_default =
      test::run({STFS_INFO_BINARY, "cache", "list"}, {.environment = {"STFS_CACHE=" + directory}});
  EXPECT_EQ(by_default.status, 0) << by_default.err;
  EXPECT_EQ(by_default.out, "");
  EXPECT_FALSE(fs::exists(directory));
}

TEST_F(InfoCache, RejectsDirectoryWritableByOthers) {
  fs::create_directory(directory);
  ASSERT_EQ(::chmod(directory.c_str(), 0777), 0);
  test::expect_one_line(cache({"list"}), 3, "chmod go-w");
}

TEST_F(InfoCache, WrongUsageIsOneLine) {
  test::expect_one_line(cache({}), 2, "expected");
  test::expect_one_line(cache({"empty"}), 2, "expected one of list, prune, verify");
  test::expect_one_line(cache({"list", "--to", "1G"}), 2, "--to");
  test::expect_one_line(cache({"prune", "--to", "much"}), 2, "a number of bytes");
  test::expect_one_line(cache({"verify", "--all"}), 2, "--all");
  test::expect_one_line(cache({"prune", "--all", "--to", "1G"}), 2, "give only one of the two");
}

TEST_F(InfoCache, PrunesOnlyUnusedEntries) {
  const auto user = add("https://host/used", 2 * kBlock, 2);
  add("https://host/a", kBlock, 1);
  add("https://host/b", 2 * kBlock, 2);
  const Outcome named = cache({"prune", "https://host/a"});
  EXPECT_EQ(named.status, 0) << named.err;
  EXPECT_EQ(list().size(), 2U);
  EXPECT_TRUE(cache({"prune", "--to", "1G"}).out.starts_with("0 B freed, "));
  EXPECT_EQ(list().size(), 2U);
  test::expect_one_line(cache({"prune"}), 2,
                        "cache prune: nothing was removed: --all would remove 1 entry, ");
  EXPECT_EQ(list().size(), 2U);
  const Outcome all = cache({"prune", "--all", "--json"});
  const auto figures = nlohmann::json::parse(all.out);
  EXPECT_GE(figures["freed"], 2 * kBlock);
  EXPECT_GE(figures["left"], 2 * kBlock);
  EXPECT_EQ(figures["left"], figures["in_use"]);
  const Outcome again = cache({"prune", "--to", "0"});
  EXPECT_TRUE(again.out.starts_with("0 B freed, 5")) << again.out;
  EXPECT_NE(again.out.find(" in use\n"), std::string::npos) << again.out;
}

TEST_F(InfoCache, VerifyFindsAndDropsDamagedBlocks) {
  add("https://host/good", 2 * kBlock + 5, 2);
  EXPECT_EQ(cache({"verify"}).out, "https://host/good\tok\t2 of 3 blocks\n");
  add("https://host/bad", 3 * kBlock, 3);
  flip(data_of("https://host/bad"), kBlock + 77);
  const Outcome found = cache({"verify"});
  EXPECT_EQ(found.status, 1);
  std::vector<std::string> lines = test::lines_of(found.out);
  std::ranges::sort(lines);
  EXPECT_EQ(lines,
            (std::vector<std::string>{
                "https://host/bad\terror\t1 of 3 blocks damaged: the next read fetches them again",
                "https://host/good\tok\t2 of 3 blocks"}));
  EXPECT_EQ(found.err, "");
  const Outcome again = cache({"verify", "https://host/bad", "-j", "1"});
  EXPECT_EQ(again.status, 0);
  EXPECT_EQ(again.out, "https://host/bad\tok\t2 of 3 blocks\n");
}

TEST_F(InfoCache, VerifyComparesPublishedDigest) {
  constexpr std::uint64_t kSize = 5 * kBlock + 3;
  add("hf://org/good@1/x", kSize, 6, digest_of(kSize));
  EXPECT_EQ(cache({"verify"}).out, "hf://org/good@1/x\tok\t6 blocks, the published SHA-256\n");
  add("hf://org/part@1/x", kSize, 5, digest_of(kSize - 1));
  EXPECT_EQ(cache({"verify", "hf://org/part"}).out, "hf://org/part@1/x\tok\t5 of 6 blocks\n");
  auto user = add("hf://org/bad@1/x", kSize, 6, digest_of(kSize - 1));
  const Outcome found = cache({"verify", "hf://org/bad", "--json"});
  EXPECT_EQ(found.status, 1);
  const auto finding = nlohmann::json::parse(found.out)[0];
  EXPECT_EQ(finding["ok"], false);
  EXPECT_EQ(finding["sha256_matches"], false);
  EXPECT_EQ(finding["good"], 6);
  for (std::uint64_t i = 0; i < 6; ++i) EXPECT_FALSE(user->is_there(i));
  user.reset();
  add("hf://org/bad@1/x", kSize, 6, digest_of(kSize - 1));
  EXPECT_EQ(cache({"verify", "hf://org/bad"}).status, 1);
  EXPECT_EQ(list().size(), 2U) << "the entry was unused, so it was removed";
}

TEST_F(InfoCache, VerifyNeedsNoThreads) {
  test::skip_where_calls_cannot_fail();
  if (IsSkipped()) return;
  add("hf://org/good@1/x", 5 * kBlock, 5, digest_of(5 * kBlock));
  const Outcome found =
      cache({"verify"}, {.environment = test::failing("pthread_create", {"STFS_FAIL_ON=1"})});
  EXPECT_EQ(found.status, 0) << found.err;
  EXPECT_EQ(found.out, "hf://org/good@1/x\tok\t5 blocks, the published SHA-256\n");
}

TEST_F(InfoCache, VerifyLeavesOnlyResultOnTerminal) {
  add("https://host/good", 40 * kBlock, 40);
  const Outcome found = cache({"verify"}, {.terminal_columns = 80});
  EXPECT_EQ(found.status, 0);
  const std::vector<std::string> rows = test::screen(found.out, 80);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_TRUE(rows[0].starts_with("https://host/good")) << rows[0];
}

TEST_F(InfoCache, WorksWithoutHomeAndTerm) {
  add("https://host/good", kBlock, 1);
  const Outcome listed =
      test::run({"env", "-i", STFS_INFO_BINARY, "cache", "verify", "--cache-dir", directory});
  EXPECT_EQ(listed.status, 0) << listed.err;
  EXPECT_EQ(listed.out, "https://host/good\tok\t1 of 1 blocks\n");
}

}  // namespace
}  // namespace stfs::info_cache_test
