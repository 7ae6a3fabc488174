// libstfs as other programs use it: the shared library and its header.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/files.h"
#include "tests/support/http_server.h"
#include "tools/library/include/stfs.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

struct Close {
  void operator()(stfs_checkpoint* checkpoint) const { stfs_close(checkpoint); }
};
using Handle = std::unique_ptr<stfs_checkpoint, Close>;

Handle open_with(const std::vector<std::string>& sources,
                 const std::vector<std::string>& options = {},
                 const stfs_open_extra* extra = nullptr) {
  std::vector<const char*> names, words;
  for (const std::string& source : sources) names.push_back(source.c_str());
  for (const std::string& option : options) words.push_back(option.c_str());
  stfs_checkpoint* checkpoint = nullptr;
  stfs_open(names.data(), names.size(), words.data(), words.size(), extra, &checkpoint);
  return Handle(checkpoint);
}

std::vector<stfs_tensor> table_of(const Handle& handle) {
  stfs_table table{};
  table.size = sizeof table;
  EXPECT_EQ(stfs_tensors(handle.get(), &table), STFS_OK) << stfs_last_error();
  std::vector<stfs_tensor> tensors(table.count);
  for (std::size_t i = 0; i < table.count; ++i) {
    std::memcpy(&tensors[i], static_cast<const char*>(table.first) + i * table.stride,
                sizeof tensors[i]);
  }
  return tensors;
}

std::size_t index_of(const Handle& handle, std::string_view name) {
  std::size_t number = 0;
  EXPECT_EQ(stfs_find(handle.get(), name.data(), name.size(), &number), STFS_OK)
      << stfs_last_error();
  return number;
}

struct Outcome {
  int status;
  std::string bytes;
};
Outcome read_part(const Handle& handle, std::string_view name, const char* slice = nullptr,
                  const char* as = nullptr) {
  const stfs_part part{sizeof part, index_of(handle, name), slice, as};
  stfs_part_info measure{};
  measure.size = sizeof measure;
  if (const int status = stfs_get_part_info(handle.get(), &part, &measure)) return {status, {}};
  std::string bytes(measure.bytes, '\0');
  const int status = stfs_read(handle.get(), &part, 0, bytes.data(), bytes.size());
  return {status, bytes};
}

class LibStfs : public testing::Test {
 protected:
  // Writes two tensors of random bytes. "a" has the shape U8 [3], so that "b" F32 [4,6] is not
  // aligned.
  void SetUp() override {
    tensors_ = {random_tensor("a", "U8", {3}), random_tensor("b", "F32", {4, 6}, 2)};
    write_safetensors(path(), tensors_, Metadata{{"format", "pt"}});
  }
  std::string path() const { return (directory_.path() / "model.safetensors").string(); }
  const std::string& a() const { return tensors_[0].bytes; }
  const std::string& b() const { return tensors_[1].bytes; }
  std::string file_bytes() const { return read_file(path()); }

  TempDir directory_;
  std::vector<Tensor> tensors_;
};

TEST_F(LibStfs, ReturnsAllTensorsInOneCall) {
  const Handle handle = open_with({path()});
  ASSERT_TRUE(handle) << stfs_last_error();
  const std::vector<stfs_tensor> table = table_of(handle);
  ASSERT_EQ(table.size(), 2U);
  EXPECT_EQ(std::string_view(table[0].name, table[0].name_bytes), "a");
  EXPECT_STREQ(table[1].dtype, "F32");
  EXPECT_EQ(std::vector(table[1].shape, table[1].shape + table[1].rank), (Shape{4, 6}));
  EXPECT_EQ(table[1].elements, 24U);
  EXPECT_EQ(table[1].bytes, 96U);
  EXPECT_EQ(table[1].source, path());
  EXPECT_EQ(file_bytes().substr(table[1].offset, 96), b());
  EXPECT_EQ(table[1].source_bytes, file_bytes().size());
}

TEST_F(LibStfs, ReadsWrittenBytesAndSlices) {
  const Handle handle = open_with({path()});
  EXPECT_EQ(read_part(handle, "a").bytes, a());
  EXPECT_EQ(read_part(handle, "b").bytes, b());
  EXPECT_EQ(read_part(handle, "b", "1").bytes, b().substr(24, 24));
  EXPECT_EQ(read_part(handle, "b", "1:3,0:6", "f32").bytes, b().substr(24, 48));
  const stfs_part part{sizeof part, index_of(handle, "b"), nullptr, nullptr};
  char four[4];
  ASSERT_EQ(stfs_read(handle.get(), &part, 92, four, 4), STFS_OK);
  EXPECT_EQ(std::string_view(four, 4), b().substr(92));
}

TEST_F(LibStfs, ReportsStatusAndMessageOfErrors) {
  const Handle handle = open_with({path()});
  char buffer[8];
  const stfs_part part{sizeof part, index_of(handle, "b"), nullptr, nullptr};
  const auto refused = [](int status, int expected, const std::string& words) {
    EXPECT_EQ(status, expected) << words;
    EXPECT_NE(std::string(stfs_last_error()).find(words), std::string::npos) << stfs_last_error();
  };
  std::size_t number = 0;
  refused(stfs_find(handle.get(), "aa", 2, &number), STFS_USAGE, "did you mean \"a\"");
  refused(read_part(handle, "b", "9").status, STFS_USAGE, "index out of bounds");
  refused(read_part(handle, "b", "::-1").status, STFS_USAGE, "positive steps");
  refused(read_part(handle, "b", nullptr, "f16").status, STFS_USAGE, "expected \"f32\"");
  refused(read_part(handle, "a", nullptr, "f32").status, STFS_USAGE, "not a floating-point type");
  refused(stfs_read(handle.get(), &part, 90, buffer, 8), STFS_USAGE, "reach past its end");
  refused(stfs_read(handle.get(), nullptr, 0, buffer, 8), STFS_USAGE, "the part");
  const stfs_part beyond{sizeof beyond, 2, nullptr, nullptr};
  refused(stfs_read(handle.get(), &beyond, 0, buffer, 8), STFS_USAGE, "there are only 2");
  refused(stfs_tensors(nullptr, nullptr), STFS_USAGE, "NULL");
  stfs_table unsized{};
  refused(stfs_tensors(handle.get(), &unsized), STFS_USAGE, "its size is not set");

  EXPECT_FALSE(open_with({}));
  EXPECT_FALSE(open_with({path() + ".none"}));
  EXPECT_EQ(stfs_last_errno(), ENOENT);
  std::ofstream(directory_.path() / "broken.safetensors") << "not a checkpoint";
  EXPECT_FALSE(open_with({(directory_.path() / "broken.safetensors").string()}));
  refused(STFS_INVALID, STFS_INVALID, "broken.safetensors: ");
}

TEST_F(LibStfs, RejectsUnknownOptionsAndBadValues) {
  for (const auto& [option, words] :
       {std::pair{"colour=red",
                  "unknown; the options are delta, dequantize, lora, edit, edits, version, "
                  "allow_missing"},
        std::pair{"dequantize=q4", "expected one of bf16, f16, f32"},
        std::pair{"timeout", "a value is expected: timeout=SECONDS"},
        std::pair{"timeout=0", "a number from 1 to 3600"},
        std::pair{"offline=yes", "a value is not expected"}, std::pair{"", "unknown"}}) {
    EXPECT_FALSE(open_with({path()}, {option}));
    EXPECT_NE(std::string(stfs_last_error()).find(words), std::string::npos) << stfs_last_error();
  }
  EXPECT_TRUE(open_with({path()}, {"offline", "timeout=5", "allow_missing", "dequantize=f32"}));
}

TEST_F(LibStfs, AcceptsOptionWithDashesAndCacheInHome) {
  ::setenv("HOME", directory_.path().c_str(), 1);
  const Handle handle = open_with({path()}, {"allow-missing", "cache_dir=~/none"});
  ASSERT_TRUE(handle) << stfs_last_error();
  EXPECT_STREQ(stfs_option(handle.get(), 0), "allow_missing");
  EXPECT_EQ(stfs_option(handle.get(), 1), "cache_dir=" + directory_.path().string() + "/none");
}

TEST_F(LibStfs, AcceptsStructsOfOlderAndNewerVersions) {
  const Handle handle = open_with({path()});
  struct {
    stfs_part known;
    std::uint64_t newer;
  } part{{sizeof part, 1, "0", nullptr}, 0};
  char row[24];
  EXPECT_EQ(stfs_read(handle.get(), &part.known, 0, row, sizeof row), STFS_OK) << stfs_last_error();
  part.newer = 1;
  EXPECT_EQ(stfs_read(handle.get(), &part.known, 0, row, sizeof row), STFS_USAGE);
  const stfs_part older{offsetof(stfs_part, as), 1, "0", "rubbish"};
  EXPECT_EQ(stfs_read(handle.get(), &older, 0, row, sizeof row), STFS_OK) << stfs_last_error();
  struct {
    stfs_part_info known;
    std::uint64_t newer;
  } measure{};
  measure.known.size = sizeof measure;
  measure.newer = 7;
  ASSERT_EQ(stfs_get_part_info(handle.get(), &part.known, &measure.known), STFS_USAGE);
  ASSERT_EQ(stfs_get_part_info(handle.get(), &older, &measure.known), STFS_OK);
  EXPECT_EQ(measure.newer, 0U);
  measure.known.size = offsetof(stfs_part_info, rank);
  measure.known.rank = 7;
  ASSERT_EQ(stfs_get_part_info(handle.get(), &older, &measure.known), STFS_OK);
  EXPECT_EQ(measure.known.rank, 7U);  // not written, because it is past the size
}

TEST_F(LibStfs, MapsBytesOfFile) {
  const Handle handle = open_with({path()});
  const void* address = nullptr;
  ASSERT_EQ(stfs_map(handle.get(), 1, 0, 96, &address), STFS_OK) << stfs_last_error();
  EXPECT_EQ(std::string_view(static_cast<const char*>(address), 96), b());
  const void* part = nullptr;
  ASSERT_EQ(stfs_map(handle.get(), 1, 24, 8, &part), STFS_OK);
  EXPECT_EQ(part, static_cast<const char*>(address) + 24);
  EXPECT_EQ(stfs_map(handle.get(), 1, 90, 8, &part), STFS_USAGE);
}

TEST_F(LibStfs, WritesToPrivateMappingStayPrivate) {
  const std::string before = file_bytes();
  Handle handle = open_with({path()});
  for (const char* slice : {static_cast<const char*>(nullptr), "1:3", ":,::2"}) {
    const stfs_part part{sizeof part, 1, slice, nullptr};
    const std::string expected = read_part(handle, "b", slice).bytes;
    void *one = nullptr, *other = nullptr;
    stfs_mapping *first = nullptr, *second = nullptr;
    ASSERT_EQ(stfs_map_private(handle.get(), &part, &one, &first), STFS_OK) << stfs_last_error();
    ASSERT_EQ(stfs_map_private(handle.get(), &part, &other, &second), STFS_OK);
    EXPECT_EQ(std::string_view(static_cast<char*>(one), expected.size()), expected);
    std::memset(one, 0, expected.size());
    EXPECT_EQ(std::string_view(static_cast<char*>(other), expected.size()), expected);
    EXPECT_EQ(file_bytes(), before);
    stfs_unmap(first);
    stfs_unmap(second);
  }
  const stfs_part part{sizeof part, 1, nullptr, nullptr};
  void* address = nullptr;
  stfs_mapping* mapping = nullptr;
  ASSERT_EQ(stfs_map_private(handle.get(), &part, &address, &mapping), STFS_OK);
  handle.reset();
  EXPECT_EQ(std::string_view(static_cast<char*>(address), 96), b());
  stfs_unmap(mapping);
}

TEST_F(LibStfs, PrivateMappingOfFileHasTensorsAtTheirOffsets) {
  const std::string before = file_bytes();
  Handle handle = open_with({path()});
  const std::uint64_t offset = table_of(handle)[1].offset;
  void* address = nullptr;
  stfs_mapping* mapping = nullptr;
  ASSERT_EQ(stfs_map_private_file(handle.get(), 1, &address, &mapping), STFS_OK);
  handle.reset();
  const std::span whole(static_cast<char*>(address), before.size());
  EXPECT_EQ(std::string_view(whole.data() + offset, 96), b());
  std::memset(whole.data(), 0, whole.size());
  EXPECT_EQ(file_bytes(), before);
  stfs_unmap(mapping);

  handle = open_with({path()}, {"edits=cast b F64"});  // computed, so it is not in a file
  std::size_t computed = 0;
  ASSERT_EQ(stfs_find(handle.get(), "b", 1, &computed), STFS_OK);
  EXPECT_EQ(stfs_map_private_file(handle.get(), computed, &address, &mapping), STFS_OK);
  EXPECT_EQ(address, nullptr);
  EXPECT_EQ(mapping, nullptr);
}

TEST_F(LibStfs, ChangedSourceIsESTALE) {
  const Handle handle = open_with({path()});
  const std::string version = stfs_checkpoint_version(handle.get());
  const void* address = nullptr;
  std::string other = file_bytes();
  other.back() = static_cast<char>(~other.back());
  std::ofstream(path(), std::ios::binary | std::ios::in | std::ios::out) << other;
  const stfs_part part{sizeof part, 1, nullptr, nullptr};
  void* writable = nullptr;
  stfs_mapping* mapping = nullptr;
  EXPECT_EQ(read_part(handle, "b").status, STFS_UNREADABLE);
  EXPECT_EQ(stfs_last_errno(), ESTALE);
  EXPECT_NE(std::string(stfs_last_error()).find("changed while it was open"), std::string::npos)
      << stfs_last_error();
  EXPECT_EQ(stfs_map(handle.get(), 1, 0, 96, &address), STFS_UNREADABLE);
  EXPECT_EQ(stfs_map_private(handle.get(), &part, &writable, &mapping), STFS_UNREADABLE);
  EXPECT_FALSE(open_with({path()}, {"version=" + version}));
  EXPECT_EQ(stfs_last_errno(), ESTALE);
  EXPECT_TRUE(open_with({path()}));
}

TEST_F(LibStfs, AcceptsNamesWithAnyBytes) {
  const std::string nul("n\0l", 3);
  write_safetensors(path(), {random_tensor(nul, "U8", {1}), random_tensor("", "U8", {2}),
                             random_tensor("ü/\n", "U8", {0})});
  const Handle handle = open_with({path()});
  ASSERT_TRUE(handle) << stfs_last_error();
  EXPECT_EQ(read_part(handle, nul).bytes.size(), 1U);
  EXPECT_EQ(read_part(handle, "").bytes.size(), 2U);
  EXPECT_EQ(read_part(handle, "ü/\n").bytes.size(), 0U);
  std::size_t found[3] = {7, 7, 7}, count = 0;
  ASSERT_EQ(stfs_match(handle.get(), "n*", 2, found, 3, &count), STFS_OK);
  EXPECT_EQ(count, 1U);
  ASSERT_EQ(stfs_match(handle.get(), "*", 1, found, 1, &count), STFS_OK);
  EXPECT_EQ(count, 3U);
  EXPECT_EQ(found[1], 7U) << "written past the buffer of the caller";
}

TEST_F(LibStfs, ReturnsTextsOfMount) {
  const Handle handle = open_with({path()});
  const auto text = [&](int which, std::size_t number) {
    const char* found = nullptr;
    std::size_t bytes = 0;
    const int status = stfs_text(handle.get(), which, number, &found, &bytes);
    return status == STFS_OK ? std::string(found, bytes) : std::to_string(status);
  };
  EXPECT_NE(text(STFS_TEXT_INFO, 0).find("\"tensors\": 2"), std::string::npos)
      << text(STFS_TEXT_INFO, 0);
  EXPECT_NE(text(STFS_TEXT_TENSOR, 1).find("\"name\":\"b\""), std::string::npos);
  EXPECT_EQ(text(STFS_TEXT_INPUTS, 1), "[]");
  EXPECT_EQ(text(STFS_TEXT_KEY, 0), "format");
  EXPECT_EQ(text(STFS_TEXT_METADATA, 0), "pt");
  EXPECT_EQ(text(STFS_TEXT_KEY, 1), "2");
  EXPECT_EQ(text(99, 0), "2");
}

TEST_F(LibStfs, SixteenThreadsShareCheckpoint) {
  const Handle handle = open_with({path()});
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        const void* address = nullptr;
        if (stfs_map(handle.get(), 1, 0, 96, &address) != STFS_OK ||
            std::memcmp(address, b().data(), 96) != 0 || read_part(handle, "a").bytes != a()) {
          ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(LibStfs, ForkedChildReadsAndClosesCheckpointOfParent) {
  Handle handle = open_with({path()});
  const pid_t child = ::fork();
  if (child == 0) {
    const bool is_right = read_part(handle, "b").bytes == b();
    handle.reset();
    ::_exit(is_right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_part(handle, "b").bytes, b());
}

TEST_F(LibStfs, ForkedChildDoesNotSaveOverFilesThatParentRead) {
  const TempDir dir;
  write_safetensors(dir / "one.safetensors", {random_tensor("a", "F32", {4})});
  const std::string index = dir / "model.safetensors.index.json";
  write_index(index, {{"a", "one.safetensors"}});
  const std::string before = read_file(index);
  const Handle handle = open_with({dir.path()});
  const pid_t child = ::fork();
  if (child == 0) {
    const stfs_save_options options{.size = sizeof options, .shard_bytes = 0, .replace = 1};
    ::_exit(stfs_save(handle.get(), index.c_str(), &options, nullptr));
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), STFS_USAGE);
  EXPECT_EQ(read_file(index), before);
}

// A model in the Hub's own cache, offline. A child of fork(2) and a save into a directory open it
// again.
class LibStfsHubCopy : public LibStfs {
 protected:
  void SetUp() override {
    LibStfs::SetUp();
    ::umask(S_IWGRP | S_IWOTH);
    const std::filesystem::path hub = directory_.path() / "hub";
    const std::filesystem::path model = hub / "models--org--name";
    const std::filesystem::path snapshot = model / "snapshots" / std::string(40, 'c');
    std::filesystem::create_directories(model / "blobs");
    std::filesystem::create_directories(snapshot);
    blob_ = model / "blobs" / std::string(64, 'a');
    std::filesystem::rename(path(), blob_);
    std::filesystem::create_symlink(blob_, snapshot / "model.safetensors");
    ::setenv("HF_HUB_CACHE", hub.c_str(), 1);
    handle_ = open_with({"hf://org/name@" + std::string(40, 'c')},
                        {"offline", "cache_dir=" + (directory_.path() / "cache").string()});
    ASSERT_TRUE(handle_) << stfs_last_error();
  }
  void TearDown() override { ::unsetenv("HF_HUB_CACHE"); }

  // Other bytes of the same size, in the file or in another file that takes its place.
  void change() const {
    std::fstream file(blob_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end).put(static_cast<char>(b().back() ^ 1));
  }
  void replace() const {
    const std::filesystem::path other = directory_.path() / "other";
    std::filesystem::copy_file(blob_, other);
    std::filesystem::rename(other, blob_);
    change();
  }
  bool child_reads() {
    const pid_t child = ::fork();
    if (child == 0) {
      const Outcome read = read_part(handle_, "b");
      if (read.status == STFS_OK && read.bytes == b()) ::_exit(0);
      ::_exit(read.status == STFS_UNREADABLE && stfs_last_errno() == ESTALE ? 1 : 2);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_LT(WEXITSTATUS(status), 2) << "other bytes, or another error";
    return WEXITSTATUS(status) == 0;
  }
  bool can_be_saved() {
    const std::string output = (directory_.path() / "saved").string();
    const bool is_saved = stfs_save(handle_.get(), output.c_str(), nullptr, nullptr) == STFS_OK;
    EXPECT_TRUE(is_saved || stfs_last_errno() == ESTALE) << stfs_last_error();
    EXPECT_EQ(std::filesystem::exists(output), is_saved);
    return is_saved;
  }

  std::filesystem::path blob_;
  Handle handle_;
};

TEST_F(LibStfsHubCopy, UnchangedCopyIsReadByChildAndSaved) {
  EXPECT_TRUE(child_reads());
  EXPECT_TRUE(can_be_saved()) << stfs_last_error();
}

TEST_F(LibStfsHubCopy, ChangedBytesAreESTALEInChildAndInSave) {
  change();
  EXPECT_FALSE(child_reads());
  EXPECT_FALSE(can_be_saved());
}

TEST_F(LibStfsHubCopy, ReplacedFileIsESTALEInChildAndInSave) {
  replace();
  EXPECT_EQ(read_part(handle_, "b").bytes, b()) << "the file that was opened is unchanged";
  EXPECT_FALSE(child_reads());
  EXPECT_FALSE(can_be_saved());
}

// A link to a local file changes its token, and a child accepts that, also beside a model of the
// Hub.
TEST_F(LibStfsHubCopy, ForkedChildReadsModelNextToLinkedLocalFile) {
  const std::string local = (directory_.path() / "local.safetensors").string();
  write_safetensors(local, {random_tensor("x", "U8", {3})});
  handle_ = open_with({"hf://org/name@" + std::string(40, 'c'), local},
                      {"offline", "cache_dir=" + (directory_.path() / "cache").string()});
  ASSERT_TRUE(handle_) << stfs_last_error();
  std::filesystem::create_hard_link(local, local + "2");
  EXPECT_TRUE(child_reads());
}

// A remote source: one object of 4 MiB with the tensor "w", which fills nearly all of it.
class LibStfsRemote : public testing::Test {
 protected:
  void SetUp() override {
    const std::filesystem::path file = directory_.path() / "m.safetensors";
    tensor_ = random_tensor("w", "U8", {4, 1 << 20});
    write_safetensors(file, {tensor_});
    objects_["/m.safetensors"].bytes = read_file(file);
    server_ = std::make_unique<HttpServer>([this](const WebRequest& request) {
      is_silent_.wait(true);
      return answer_object(request, objects_);
    });
  }
  void TearDown() override {
    set_silent(false);
    server_.reset();
  }
  void set_silent(bool is_silent) {
    is_silent_ = is_silent;
    is_silent_.notify_all();
  }
  Handle open(const stfs_open_extra* extra = nullptr) const {
    return open_with({server_->url("/m.safetensors")},
                     {"cache_dir=" + (directory_.path() / "cache").string()}, extra);
  }

  TempDir directory_;
  Tensor tensor_;
  std::map<std::string, WebObject> objects_;
  std::atomic<bool> is_silent_ = false;  // responses wait
  std::unique_ptr<HttpServer> server_;
};

TEST_F(LibStfsRemote, FetchesOnlyBytesThatAreReadAndOnlyOnce) {
  const Handle handle = open();
  ASSERT_TRUE(handle) << stfs_last_error();
  EXPECT_EQ(read_part(handle, "w", "3,-10:").bytes, tensor_.bytes.substr((4 << 20) - 10));
  std::size_t fetched = 0;
  for (const WebRequest& request : server_->requests()) {
    std::size_t first = 0, last = 0;
    const std::string range = request.header("range");
    ASSERT_EQ(std::sscanf(range.c_str(), "bytes=%zu-%zu", &first, &last), 2) << range;
    fetched += last - first + 1;
  }
  EXPECT_LT(fetched, std::size_t{4} << 20);
  EXPECT_EQ(read_part(handle, "w").bytes, tensor_.bytes);
  server_->forget_requests();
  EXPECT_EQ(read_part(handle, "w").bytes, tensor_.bytes);
  EXPECT_TRUE(server_->requests().empty());
}

TEST_F(LibStfsRemote, MapsFetchedBytesFromCache) {
  const Handle handle = open();
  ASSERT_TRUE(handle) << stfs_last_error();
  const std::size_t w = index_of(handle, "w");
  const void *address = nullptr, *again = nullptr;
  ASSERT_EQ(stfs_map(handle.get(), w, 1 << 20, 1 << 20, &address), STFS_OK) << stfs_last_error();
  ASSERT_NE(address, nullptr);
  EXPECT_EQ(std::string_view(static_cast<const char*>(address), 1 << 20),
            tensor_.bytes.substr(1 << 20, 1 << 20));
  server_->forget_requests();
  ASSERT_EQ(stfs_map(handle.get(), w, 1 << 20, 1 << 20, &again), STFS_OK);
  EXPECT_EQ(again, address);
  EXPECT_TRUE(server_->requests().empty());
  const stfs_part part{sizeof part, w, nullptr, nullptr};
  void* writable = nullptr;
  stfs_mapping* mapping = nullptr;
  ASSERT_EQ(stfs_map_private(handle.get(), &part, &writable, &mapping), STFS_OK);
  std::memset(writable, 0, tensor_.bytes.size());
  stfs_unmap(mapping);
  EXPECT_EQ(read_part(handle, "w").bytes, tensor_.bytes);
}

TEST_F(LibStfsRemote, ForkedChildOpensItsOwnConnections) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer starts no threads in a child of a process with threads";
#endif
  const Handle handle = open();
  ASSERT_TRUE(handle) << stfs_last_error();
  EXPECT_EQ(read_part(handle, "w", "0").bytes, tensor_.bytes.substr(0, 1 << 20));
  const pid_t child = ::fork();
  if (child == 0) {
    if (read_part(handle, "w").bytes == tensor_.bytes) ::_exit(0);
    std::fprintf(stderr, "%s\n", stfs_last_error());
    ::_exit(1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_part(handle, "w").bytes, tensor_.bytes);
}

TEST_F(LibStfsRemote, CancelEndsWaitingRead) {
  const Handle handle = open();
  ASSERT_TRUE(handle) << stfs_last_error();
  set_silent(true);
  std::atomic<bool> has_ended = false;
  std::thread reader([&] {
    EXPECT_EQ(read_part(handle, "w").status, STFS_UNREADABLE);
    EXPECT_EQ(stfs_last_errno(), ECANCELED);
    has_ended = true;
  });
  while (!has_ended) {  // a cancel before the read waits has no effect
    stfs_cancel(handle.get());
    std::this_thread::yield();
  }
  reader.join();
  set_silent(false);
  EXPECT_EQ(read_part(handle, "w").bytes, tensor_.bytes) << stfs_last_error();
}

// Programs that were built against 0.2.0 may pass a callback in the reserved fields.
TEST_F(LibStfsRemote, RejectsCallback) {
  const stfs_open_extra callback{sizeof callback, {&callback, nullptr}};
  EXPECT_FALSE(open(&callback));
  EXPECT_NE(std::string(stfs_last_error()).find("call stfs_cancel()"), std::string::npos);
  const stfs_open_extra empty{sizeof empty, {}};
  EXPECT_TRUE(open(&empty)) << stfs_last_error();
}

TEST_F(LibStfsRemote, MissingObjectIsENOENT) {
  EXPECT_FALSE(open_with({server_->url("/none.safetensors")}));
  EXPECT_EQ(stfs_last_errno(), ENOENT) << stfs_last_error();
}

TEST(LibStfsFollow, ReturnsNewestVersionAndRejectsUnknownOptions) {
  TempDir dir;
  const std::string run = dir.path().string(), version = run + "/step_1";
  std::filesystem::create_directories(version);
  std::ofstream(version + "/model.safetensors.index.json") << R"({"weight_map":{}})";
  stfs_follower* follower = nullptr;
  const char* found = nullptr;
  const char* options[] = {"latest", "timeout=9"};
  ASSERT_EQ(stfs_follow(run.c_str(), options, 2, &follower), STFS_OK) << stfs_last_error();
  ASSERT_EQ(stfs_next_version(follower, &found), STFS_OK) << stfs_last_error();
  EXPECT_EQ(found, version);
  ASSERT_EQ(stfs_next_version(follower, &found), STFS_OK);
  EXPECT_EQ(found, nullptr);
  stfs_unfollow(follower);

  const char* unknown = "dequantize=bf16";
  EXPECT_EQ(stfs_follow(run.c_str(), &unknown, 1, &follower), STFS_USAGE);
  EXPECT_EQ(follower, nullptr);
  EXPECT_EQ(stfs_follow(nullptr, nullptr, 0, &follower), STFS_USAGE);
  EXPECT_EQ(stfs_next_version(nullptr, &found), STFS_USAGE);
  stfs_unfollow(nullptr);
}

TEST(LibStfsFollow, CancelEndsWaitAndForkedChildCannotUseFollower) {
  TempDir dir;
  stfs_follower* follower = nullptr;
  ASSERT_EQ(stfs_follow(dir.path().c_str(), nullptr, 0, &follower), STFS_OK);
  const pid_t child = ::fork();
  if (child == 0) {
    const char* found = nullptr;
    const int status = stfs_next_version(follower, &found);
    stfs_unfollow(follower);
    ::_exit(status);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), STFS_USAGE);
  std::thread waiting([&] {
    const char* found = "";
    EXPECT_EQ(stfs_next_version(follower, &found), STFS_OK);
    EXPECT_EQ(found, nullptr);
  });
  stfs_follow_cancel(follower);
  waiting.join();
  stfs_unfollow(follower);
}

}  // namespace
}  // namespace stfs::test
