// Large directories are listed completely and without duplicates in every way of reading them.
#include "tests/support/checkpoint_reader.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/long_tests.h"
#include "tests/support/mounted.h"

#include <dirent.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

using Directory = std::unique_ptr<DIR, int (*)(DIR*)>;

Directory open_directory(const std::filesystem::path& path) {
  return {::opendir(path.c_str()), ::closedir};
}

// A checkpoint of 20,000 tensors, or of 760,000 if STFS_LONG=1 is set; its header then has the
// maximum size of the format. The tests share the checkpoint, but each makes its own mount.
class Listing : public MountTest {
 protected:
  void SetUp() override {
    MountTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (names_.empty()) make_checkpoint();
    mount_ = std::make_unique<Mounted>(std::vector<std::string>{checkpoint()});
  }

  static std::filesystem::path checkpoint() {
    static const TempDir dir;
    return dir / "model.safetensors";
  }

  // Compares two listings without printing a million names.
  void expect_complete(const std::vector<std::string>& listed) const {
    EXPECT_EQ(listed.size(), names_.size());
    EXPECT_EQ(std::adjacent_find(listed.begin(), listed.end()), listed.end())
        << "a name is listed twice";
    EXPECT_TRUE(listed == names_);
  }

  static inline std::vector<std::string> names_;  // sorted
  std::unique_ptr<Mounted> mount_;

 private:
  static void make_checkpoint() {
    const Outcome result = run({STFS_MAKE_CHECKPOINT, checkpoint().parent_path(), "--preset",
                                "wide", "--tensors", long_tests() ? "760000" : "20000"});
    ASSERT_EQ(result.status, 0) << result.err;
    for (const auto& [name, entry] : entries_of(checkpoint())) names_.push_back(name);
  }
};

TEST_F(Listing, CompleteAndEqualFromKernelCache) {
  expect_complete(names_in(mount_->path()));
  expect_complete(names_in(mount_->path()));
}

TEST_F(Listing, LsListsAllFilesWithSizes) {
  const Outcome ls =
      sh(R"(ls -lU "$1" | tail -n +2 | awk '{ print $5 }' | sort | uniq -c)", {mount_->path()});

  EXPECT_EQ(ls.status, 0) << ls.err;
  EXPECT_EQ(std::strtoull(ls.out.c_str(), nullptr, 10), names_.size()) << ls.out.substr(0, 200);
  EXPECT_EQ(std::count(ls.out.begin(), ls.out.end(), '\n'), 1) << ls.out.substr(0, 200);
}

TEST_F(Listing, CompleteForEightConcurrentReaders) {
  std::vector<std::vector<std::string>> listed(8);
  std::vector<std::thread> readers;

  for (auto& names : listed) readers.emplace_back([&] { names = names_in(mount_->path()); });
  for (std::thread& reader : readers) reader.join();

  for (const auto& names : listed) expect_complete(names);
}

TEST_F(Listing, CompleteForReadersThatShareDescriptor) {
  const Directory directory = open_directory(mount_->path());
  ASSERT_NE(directory, nullptr);
  std::atomic<std::size_t> entries = 0;
  std::vector<std::thread> readers;

  // The readers share the position, so exactly one reader gets each entry.
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&, fd = ::dirfd(directory.get())] {
      alignas(dirent64) char buffer[8192];
      for (ssize_t size; (size = ::getdents64(fd, buffer, sizeof buffer)) > 0;) {
        for (ssize_t at = 0; at < size; ++entries)
          at += reinterpret_cast<const dirent64*>(buffer + at)->d_reclen;
      }
    });
  }
  for (std::thread& reader : readers) reader.join();

  EXPECT_EQ(entries, names_.size() + 2);
}

TEST_F(Listing, RewinddirRestartsFromAnyPosition) {
  const Directory directory = open_directory(mount_->path());
  ASSERT_NE(directory, nullptr);
  RandomBytes random(5);

  for (int round = 0; round < 4; ++round) {
    ::rewinddir(directory.get());
    for (std::uint64_t left = random.next() % names_.size(); left > 0; --left)
      ASSERT_NE(::readdir(directory.get()), nullptr);
    ::rewinddir(directory.get());
    std::vector<std::string> listed;
    while (const dirent* entry = ::readdir(directory.get()))
      if (entry->d_name[0] != '.') listed.emplace_back(entry->d_name);
    std::ranges::sort(listed);
    expect_complete(listed);
  }
}

TEST_F(Listing, SeekdirReturnsToEntryOfTelldir) {
  const Directory directory = open_directory(mount_->path());
  ASSERT_NE(directory, nullptr);
  std::vector<std::pair<long, std::string>> entries;  // the position before an entry, and its name
  for (;;) {
    const long position = ::telldir(directory.get());
    const dirent* entry = ::readdir(directory.get());
    if (entry == nullptr) break;
    entries.emplace_back(position, entry->d_name);
  }
  ASSERT_EQ(entries.size(), names_.size() + 2);
  RandomBytes random(6);

  for (int i = 0; i < 2000; ++i) {
    const auto& [position, name] = entries[random.next() % entries.size()];
    ::seekdir(directory.get(), position);
    const dirent* entry = ::readdir(directory.get());
    ASSERT_NE(entry, nullptr) << position;
    ASSERT_EQ(entry->d_name, name) << position;
  }
}

TEST_F(Listing, SeekdirIntoUncachedListingContinuesAtPosition) {
  std::vector<std::pair<long, std::string>> entries;
  {
    const Directory directory = open_directory(mount_->path());
    for (;;) {
      const long position = ::telldir(directory.get());
      const dirent* entry = ::readdir(directory.get());
      if (entry == nullptr) break;
      entries.emplace_back(position, entry->d_name);
    }
  }
  const Mounted fresh({checkpoint()});

  const Directory directory = open_directory(fresh.path());
  const auto& [position, name] = entries[entries.size() / 2];
  ::seekdir(directory.get(), position);
  std::size_t left = 0;
  std::string first;
  while (const dirent* entry = ::readdir(directory.get()))
    if (left++ == 0) first = entry->d_name;

  EXPECT_EQ(first, name);
  EXPECT_EQ(left, entries.size() - entries.size() / 2);
}

TEST_F(Listing, FindsEveryTensorByName) {
  RandomBytes random(8);
  const auto entries = entries_of(checkpoint());

  for (std::uint64_t i = 0; i < long_or(30'000, 3000); ++i) {
    const std::string& name = names_[random.next() % names_.size()];
    ASSERT_EQ(read_file(*mount_ / name), entries.at(name).bytes()) << name;
  }
}

TEST_F(Listing, CatalogueListsEveryTensor) {
  const Outcome lines = run({"wc", "-l", *mount_ / ".stfs/tensors.tsv"});

  EXPECT_EQ(std::strtoull(lines.out.c_str(), nullptr, 10), names_.size() + 1);
  EXPECT_EQ(names_in(*mount_ / ".stfs/json").size(), names_.size());
}

TEST_F(Listing, DaemonUsesLessThanFourTimesHeaderSize) {
#ifdef STFS_SANITIZED
  GTEST_SKIP() << "a sanitizer adds its own memory";
#endif
  expect_complete(names_in(mount_->path()));

  const std::string status = read_file("/proc/" + std::to_string(mount_->daemon()) + "/status");

  const std::size_t line = status.find("VmRSS:");
  ASSERT_NE(line, std::string::npos);
  const std::uint64_t resident = std::strtoull(status.c_str() + line + 6, nullptr, 10) << 10;
  const std::uint64_t program = 16 << 20;  // the binary, its libraries and its threads' stacks
  EXPECT_LT(resident, program + 4 * header_text(checkpoint()).size());
}

}  // namespace
}  // namespace stfs::test
