// Sources opens remote names, and Checkpoint loads them.
#include "core/base/error.h"
#include "core/base/sha256.h"
#include "core/checkpoint/checkpoint.h"
#include "core/remote/cache/cache.h"
#include "core/remote/sources.h"
#include "tests/remote/remote_support.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/files.h"
#include "tests/support/http_server.h"
#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

using Names = std::vector<std::string>;

class RemoteSources : public ::testing::Test {
 protected:
  RemoteSources() {
    add("m.safetensors", {random_tensor("a", "U8", {5}, 1), random_tensor("b", "F32", {3}, 2)});
    add("one.safetensors", {random_tensor("x", "U8", {7}, 3)});
    add("two.safetensors", {random_tensor("y", "U8", {9}, 4)});
    add("three.safetensors", {random_tensor("z", "U8", {2}, 5)});
    add_index("set.safetensors.index.json",
              {{"x", "one.safetensors"}, {"y", "two.safetensors"}, {"z", "three.safetensors"}});
  }

  // Adds or replaces an object of the server.
  void set(const std::string& path, const std::string& bytes) {
    const std::lock_guard lock(mutex_);
    objects_["/" + path] = {.bytes = bytes, .etag = "\"" + std::to_string(++versions_) + "\""};
  }
  void remove(const std::string& path) {
    const std::lock_guard lock(mutex_);
    objects_.erase("/" + path);
  }
  void add(const std::string& path, const std::vector<Tensor>& tensors) {
    write_safetensors(dir_ / "file", tensors);
    set(path, read_file(dir_ / "file"));
  }
  void add_index(const std::string& path, const std::map<std::string, std::string>& map) {
    write_index(dir_ / "index", map);
    set(path, read_file(dir_ / "index"));
  }

  SourceOptions options() {
    return {.cache_dir = (dir_ / "cache").string(),
            .warn = [this](const std::string& line) { warnings_.push_back(line); }};
  }
  std::string url(const std::string& path) const { return server_.url("/" + path); }
  static Checkpoint load(const Names& names, Sources& sources) {
    return Checkpoint(names, {.sources = &sources});
  }

  WebAnswer right(const WebRequest& request) {
    const std::lock_guard lock(mutex_);
    return answer_object(request, objects_);
  }

  // Returns the message of the Error that loading throws, or "" if loading succeeds.
  static std::string refusal(const std::string& name, const LoadOptions& load) {
    try {
      const Checkpoint checkpoint(std::span(&name, 1), load);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }

  TempDir dir_;
  std::mutex mutex_;
  std::map<std::string, WebObject> objects_;
  unsigned versions_ = 0;
  std::vector<std::string> warnings_;
  HttpServer server_{[this](const WebRequest& request) { return right(request); }};
};

Names names_of(const Checkpoint& checkpoint) {
  Names names;
  for (std::uint32_t i = 0; i < checkpoint.tensor_count(); ++i) {
    names.emplace_back(checkpoint.name(i));
  }
  return names;
}

TEST_F(RemoteSources, OpensFileWithOneRequestForOneBlock) {
  Sources sources(options());
  const std::string name = url("m.safetensors");

  const Checkpoint checkpoint(std::span(&name, 1), {.sources = &sources});

  EXPECT_EQ(names_of(checkpoint), (Names{"a", "b"}));
  EXPECT_EQ(checkpoint.origins().front(), name);
  EXPECT_EQ(checkpoint.parts().front().label, "m.safetensors");
  const auto requests = server_.requests();
  ASSERT_EQ(requests.size(), 1U);
  EXPECT_EQ(requests[0].header("range"), "bytes=0-262143");
}

TEST_F(RemoteSources, ReportsWhyHeaderWasNotFetched) {
  const std::string more = R"("__metadata__":{"x":")" + std::string(400'000, 'x') + R"("})";
  set("long.safetensors", safetensors_bytes("{" + more + "}", ""));
  server_.set([this](const WebRequest& request) {
    if (request.header("range") != "bytes=0-262143") return WebAnswer{.status = 403};
    return right(request);
  });
  Sources sources(options());

  const std::string line = refusal(url("long.safetensors"), {.sources = &sources});

  EXPECT_NE(line.find("answers with status 403"), std::string::npos) << line;
}

TEST_F(RemoteSources, LoadingFromBusyServerEndsAtTimeout) {
  server_.set([](const WebRequest&) { return WebAnswer{.status = 503}; });
  SourceOptions options = this->options();
  options.timeout = 1;
  Sources sources(options);
  const auto begin = std::chrono::steady_clock::now();

  EXPECT_NE(refusal(url("m.safetensors"), {.sources = &sources}), "");

  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(50));
}

TEST_F(RemoteSources, ReadsIndexAndEachShardWithOneRequest) {
  Sources sources(options());
  const std::string name = url("set.safetensors.index.json");

  const Checkpoint checkpoint(std::span(&name, 1), {.sources = &sources});

  Names labels;
  for (const Part& part : checkpoint.parts()) labels.push_back(part.label);
  EXPECT_EQ(labels, (Names{"one.safetensors", "three.safetensors", "two.safetensors"}));
  EXPECT_EQ(server_.requests().size(), 4U);
}

TEST_F(RemoteSources, NamesMissingShardAndCanLeaveItOut) {
  remove("two.safetensors");
  Sources sources(options());
  const std::string name = url("set.safetensors.index.json");

  const std::string refused =
      refusal(name, {.missing_hint = "-o allow_missing mounts the rest", .sources = &sources});
  const Checkpoint rest(std::span(&name, 1), {.allow_missing = true, .sources = &sources});

  EXPECT_TRUE(refused.starts_with(name + ": shard \"two.safetensors\": ")) << refused;
  EXPECT_TRUE(refused.ends_with(": -o allow_missing mounts the rest")) << refused;
  EXPECT_EQ(names_of(rest), (Names{"x", "z"}));
  ASSERT_EQ(rest.missing().size(), 1U);
  EXPECT_EQ(rest.missing()[0].name, "y");
}

TEST_F(RemoteSources, PercentEncodesShardName) {
  add("s/a b%20?#.safetensors", {random_tensor("x", "U8", {7}, 3)});
  {
    const std::lock_guard lock(mutex_);
    objects_["/s/a%20b%2520%3F%23.safetensors"] = objects_["/s/a b%20?#.safetensors"];
  }
  add_index("s/i.safetensors.index.json", {{"x", "a b%20?#.safetensors"}});
  Sources sources(options());
  const std::string name = url("s/i.safetensors.index.json");

  const Checkpoint checkpoint(std::span(&name, 1), {.sources = &sources});

  EXPECT_EQ(names_of(checkpoint), Names{"x"});
  EXPECT_EQ(server_.requests().back().target, "/s/a%20b%2520%3F%23.safetensors");
}

TEST_F(RemoteSources, ReopeningSendsOnlyConditionalRequests) {
  const std::string name = url("set.safetensors.index.json");
  {
    Sources sources(options());
    const Checkpoint checkpoint(std::span(&name, 1), {.sources = &sources});
  }
  server_.forget_requests();
  Sources sources(options());

  const Checkpoint checkpoint(std::span(&name, 1), {.sources = &sources});

  EXPECT_EQ(checkpoint.tensor_count(), 3U);
  const auto requests = server_.requests();
  EXPECT_EQ(requests.size(), 4U);
  EXPECT_TRUE(std::ranges::all_of(
      requests, [](const WebRequest& r) { return !r.header("if-none-match").empty(); }));
}

TEST_F(RemoteSources, OfflineOpensOnlyCachedSourcesWithoutRequest) {
  const std::string name = url("set.safetensors.index.json");
  {
    Sources sources(options());
    const Checkpoint checkpoint(std::span(&name, 1), {.sources = &sources});
  }
  server_.forget_requests();
  SourceOptions offline = options();
  offline.offline = true;
  Sources sources(offline);

  const Checkpoint checkpoint(std::span(&name, 1), {.sources = &sources});

  EXPECT_EQ(checkpoint.tensor_count(), 3U);
  EXPECT_EQ(refusal(url("m.safetensors"), {.sources = &sources}),
            url("m.safetensors") + ": offline, and this was never fetched");
  EXPECT_EQ(server_.requests().size(), 0U);
}

// Returns the resolutions that the loading child of a supervisor hands over.
std::string resolutions_of(Sources& sources, const Names& names) {
  const Checkpoint checkpoint(names, {.sources = &sources});
  std::vector<Sources::Beginning> beginnings;
  for (const Part& part : checkpoint.parts()) {
    beginnings.push_back({part.source.get(), part.header.raw.offset + part.header.raw.length});
  }
  return sources.resolutions(beginnings);
}

TEST_F(RemoteSources, ResolutionsAllowLoadingWithoutRequest) {
  const Names names{url("set.safetensors.index.json"), url("m.safetensors") + "?signature=secret"};
  for (const bool has_cache : {true, false}) {
    SourceOptions where = options();
    if (!has_cache) where.cache_dir = (dir_ / "file").string();  // not a directory
    Sources first(where);
    const std::string found = resolutions_of(first, names);
    server_.forget_requests();
    warnings_.clear();
    Sources second(where);
    second.use(found);

    const Checkpoint checkpoint(names, {.sources = &second});

    EXPECT_EQ(checkpoint.tensor_count(), 5U);
    EXPECT_EQ(server_.requests().size(), 0U);
    EXPECT_EQ(warnings_, Names{}) << "the warnings were repeated";
    EXPECT_NE(refusal(url("one.safetensors") + "?other", {.sources = &second}), "");
    EXPECT_EQ(server_.requests().size(), 0U);
  }
}

TEST_F(RemoteSources, UnusableCacheGivesOneWarning) {
  SourceOptions where = options();
  where.cache_dir = (dir_ / "file").string();
  Sources sources(where);

  const Checkpoint checkpoint(Names{url("m.safetensors"), url("one.safetensors")},
                              {.sources = &sources});

  EXPECT_EQ(checkpoint.tensor_count(), 3U);
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_TRUE(warnings_[0].starts_with(where.cache_dir + ": ")) << warnings_[0];
}

TEST_F(RemoteSources, MissingStrongETagGivesWarning) {
  {
    const std::lock_guard lock(mutex_);
    objects_["/m.safetensors"].etag = "";
  }
  Sources sources(options());

  const Checkpoint checkpoint(Names{url("m.safetensors")}, {.sources = &sources});

  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_NE(warnings_[0].find("no strong ETag"), std::string::npos) << warnings_[0];
}

TEST_F(RemoteSources, MessagesAndOriginsShowNoSecretOfUrl) {
  Sources sources(options());
  const Names names{url("m.safetensors") + "?signature=secret"};

  const Checkpoint checkpoint(names, {.sources = &sources});
  const std::string refused =
      refusal(url("no.safetensors") + "?signature=secret", {.sources = &sources});

  EXPECT_EQ(checkpoint.origins().front(), url("m.safetensors"));
  EXPECT_EQ(server_.requests().front().target, "/m.safetensors?signature=secret");
  EXPECT_TRUE(refused.starts_with(url("no.safetensors") + ": ")) << refused;
  EXPECT_EQ(refused.find("secret"), std::string::npos) << refused;
}

TEST_F(RemoteSources, RejectsInvalidSourcesWithoutRequest) {
  Sources sources(options());

  const std::string scheme = refusal("ftp://host/m.safetensors", {.sources = &sources});
  const std::string directory = refusal(url("models/"), {.sources = &sources});

  EXPECT_EQ(scheme, "ftp://host/m.safetensors: unknown URL scheme: stfs supports https, s3 and hf");
  EXPECT_EQ(directory,
            url("models/") + ": a web server has no directories: name the file or the index");
  EXPECT_EQ(server_.requests().size(), 0U);
}

TEST_F(RemoteSources, OpenAllKeepsOrderAndEachError) {
  Sources sources(options());
  const Names names{url("one.safetensors"), (dir_ / "file").string(), url("none"),
                    (dir_ / "none").string(), url("two.safetensors")};

  const auto opened = sources.open_all(names);

  ASSERT_EQ(opened.size(), 5U);
  EXPECT_EQ(opened[0].source->path(), names[0]);
  EXPECT_EQ(opened[1].source->path(), names[1]);
  EXPECT_EQ(opened[2].error->code(), ErrorCode::kAbsent);
  EXPECT_EQ(opened[3].error->code(), ErrorCode::kAbsent);
  EXPECT_EQ(opened[4].source->path(), names[4]);
  EXPECT_TRUE(opened[0].source->has({0, opened[0].source->size()}));
}

// Returns enough tensors for a header of more than two blocks.
std::vector<Tensor> many_tensors(const std::string& prefix) {
  std::vector<Tensor> tensors;
  for (int i = 0; i < 6000; ++i) {
    const std::string number = std::to_string(i);
    tensors.push_back(random_tensor(prefix + std::string(40, '_') + number, "U8", {1}, 1));
  }
  return tensors;
}

bool asks_for_later_block(const WebRequest& request) {
  return !request.header("range").starts_with("bytes=0-");
}

// Holds each arriving thread until `count` threads have arrived.
class Gate {
 public:
  explicit Gate(std::size_t count) : count_(count) {}
  bool arrive() {
    std::unique_lock lock(mutex_);
    ++arrived_;
    all_.notify_all();
    return all_.wait_for(lock, kHang, [&] { return arrived_ >= count_; });
  }

 private:
  const std::size_t count_;
  std::size_t arrived_ = 0;
  std::mutex mutex_;
  std::condition_variable all_;
};

TEST_F(RemoteSources, FetchesLongHeadersOfShardsConcurrently) {
  std::map<std::string, std::string> shards;
  for (const std::string shard : {"one", "two", "three"}) {
    const std::vector<Tensor> tensors = many_tensors(shard);
    add(shard + ".safetensors", tensors);
    for (const Tensor& tensor : tensors) shards[tensor.name] = shard + ".safetensors";
  }
  add_index("set.safetensors.index.json", shards);
  Gate gate(3);
  server_.set([&](const WebRequest& request) {
    const bool is_shard = request.target.find("index") == std::string::npos;
    EXPECT_TRUE(!is_shard || !asks_for_later_block(request) || gate.arrive());
    return right(request);
  });
  Sources sources(options());

  const Checkpoint checkpoint(Names{url("set.safetensors.index.json")}, {.sources = &sources});

  EXPECT_EQ(checkpoint.tensor_count(), 18'000U);
}

TEST_F(RemoteSources, LongHeaderTakesTwoRequests) {
  add("long.safetensors", many_tensors("t"));
  Sources sources(options());

  const Checkpoint checkpoint(Names{url("long.safetensors")}, {.sources = &sources});

  EXPECT_EQ(checkpoint.tensor_count(), 6000U);
  EXPECT_EQ(server_.requests().size(), 2U);
}

TEST_F(RemoteSources, ReportsWhyHeaderIsIncomplete) {
  add("long.safetensors", many_tensors("t"));
  Sources sources(options());
  int status = 403;
  server_.set([&](const WebRequest& request) {
    if (asks_for_later_block(request)) return WebAnswer{.status = status};
    return right(request);
  });
  const std::string place = url("long.safetensors") + ": header: ";

  EXPECT_EQ(refusal(url("long.safetensors"), {.sources = &sources}),
            place + "Permission denied: its server answers with status 403");
  status = 412;
  EXPECT_EQ(refusal(url("long.safetensors"), {.sources = &sources}),
            place + "it has changed on its server");
}

TEST_F(RemoteSources, SilentServerFailsLoadingAtTimeout) {
  server_.set([](const WebRequest&) { return WebAnswer{.delay = std::chrono::hours(1)}; });
  SourceOptions brief = options();
  brief.timeout = 1;
  Sources sources(brief);

  EXPECT_EQ(refusal(url("m.safetensors"), {.sources = &sources}),
            url("m.safetensors") + ": no complete response within 1 s");
}

TEST_F(RemoteSources, UnansweredShardsCostOneTimeout) {
  std::map<std::string, std::string> shards;
  for (int i = 0; i < 64; ++i) {
    shards["t" + std::to_string(i)] = "s" + std::to_string(i) + ".safetensors";
  }
  add_index("set.safetensors.index.json", shards);
  server_.set([&](const WebRequest& request) {
    if (request.target.find("index") == std::string::npos) {
      return WebAnswer{.delay = std::chrono::hours(1)};
    }
    return right(request);
  });
  SourceOptions brief = options();
  brief.timeout = 1;
  Sources sources(brief);

  const std::string refused = refusal(url("set.safetensors.index.json"), {.sources = &sources});

  EXPECT_TRUE(refused.ends_with(": no complete response within 1 s")) << refused;
  EXPECT_LE(server_.requests().size(), 1U + 2 * 16U) << "requests were started after the timeout";
}

TEST_F(RemoteSources, ResolutionsWithoutCachedBytesFailAndStartNoThread) {
  const Names names{url("m.safetensors")};
  Sources first(options());
  const std::string found = resolutions_of(first, names);
  server_.forget_requests();
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_ / "cache")) {
    if (entry.path().filename() == "data") {
      write_file(entry.path(), std::string(entry.file_size(), 'x'));
    }
  }
  Sources second(options());
  second.use(found);
  const auto threads = [] {
    const std::filesystem::directory_iterator all("/proc/self/task");
    return std::distance(all, std::filesystem::directory_iterator{});
  };
  const auto before = threads();

  EXPECT_EQ(refusal(names[0], {.sources = &second}),
            names[0] + ": the cache has lost the fetched bytes: mount it again");

  EXPECT_EQ(threads(), before);
  EXPECT_EQ(server_.requests().size(), 0U);
}

// The Hub with a model of 16 shards, and its CDN.
class ManyShards : public RemoteSources {
 protected:
  static constexpr std::size_t kShards = 16;

  ManyShards() {
    std::map<std::string, std::string> shards;
    for (std::size_t i = 0; i < kShards; ++i) {
      const std::string name = "s" + std::to_string(i) + ".safetensors";
      shards["t" + std::to_string(i)] = name;
      add(name, {random_tensor("t" + std::to_string(i), "U8", {5}, 1)});
    }
    add_index("model.safetensors.index.json", shards);
    hub_.set([this](const WebRequest& request) { return answer_hub(request); });
    environment_.set("HF_ENDPOINT", hub_.url(""));
    environment_.set("HF_HOME", dir_.path().string());
  }

  WebAnswer answer_hub(const WebRequest& request) {
    const std::lock_guard lock(mutex_);
    if (request.target.starts_with("/api/")) {
      std::string siblings;
      for (const auto& [path, object] : objects_) {
        const std::string size = std::to_string(object.bytes.size());
        siblings += (siblings.empty() ? "" : ",") + (R"({"rfilename":")" + path.substr(1)) +
                    R"(","size":)" + size + R"(,"blobId":")" + std::string(40, 'b') +
                    R"(","lfs":{"size":)" + size + R"(,"sha256":")" + sha256_hex(path) + R"("}})";
      }
      return {.body = R"({"id":"org/name","sha":")" + kCommit +
                      R"(","lastModified":"2025-02-01T10:00:00.000Z","siblings":[)" + siblings +
                      "]}"};
    }
    const std::string path = request.target.substr(request.target.rfind('/'));
    return {.status = 302,
            .headers = {{"Location", server_.url(path)},
                        {"X-Repo-Commit", kCommit},
                        {"X-Linked-Etag", "\"" + sha256_hex(path) + "\""},
                        {"X-Linked-Size", std::to_string(objects_[path].bytes.size())}}};
  }

  const std::string kCommit = std::string(40, 'c');
  Environment environment_;
  HttpServer hub_{[](const WebRequest&) { return WebAnswer{.status = 500}; }};
};

// The servers hold each request until all requests that do not depend on its response have arrived.
TEST_F(ManyShards, ResolveAndFetchEightAtOnce) {
  Gate first(8), both(16), last(8);
  std::atomic<std::size_t> resolved = 0;
  std::atomic<std::size_t> fetched = 0;
  const auto is_shard = [](const WebRequest& request) {
    return request.target.find("/s") != std::string::npos &&
           request.target.find("index") == std::string::npos;
  };
  hub_.set([&](const WebRequest& request) {
    EXPECT_TRUE(!is_shard(request) || (resolved++ < 8 ? first : both).arrive());
    return answer_hub(request);
  });
  server_.set([&](const WebRequest& request) {
    EXPECT_TRUE(!is_shard(request) || (fetched++ < 8 ? both : last).arrive());
    return right(request);
  });
  Sources sources(options());

  const Checkpoint checkpoint(Names{"hf://org/name"}, {.sources = &sources});

  EXPECT_EQ(checkpoint.tensor_count(), kShards);
  EXPECT_EQ(hub_.requests().size(), 1 + 1 + kShards) << "revision, index, shards";
  EXPECT_EQ(server_.requests().size(), 1 + kShards);
}

TEST_F(RemoteSources, ReadFileReturnsWholeFileUpToLimit) {
  const std::string text = RandomBytes(1).bytes(600'000);
  set("text", text);
  Sources sources(options());

  EXPECT_EQ(sources.read_file(url("text"), 600'000), text);
  EXPECT_THROW(sources.read_file(url("text"), 599'999), Error);
  EXPECT_EQ(sources.names_in(dir_.path().string()).has_value(), true);
  EXPECT_EQ(sources.names_in(url("text")), std::nullopt);
}

}  // namespace
}  // namespace stfs::test
