// Follower on the versions of a run in a bucket and on the Hub.
#include "core/base/error.h"
#include "core/checkpoint/follow.h"
#include "core/remote/sources.h"
#include "tests/remote/remote_support.h"
#include "tests/support/http_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

using Versions = std::vector<std::string>;

std::string one_tensor(const std::string& name) {
  const std::string header = "{\"" + name + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  return static_cast<char>(header.size()) + std::string(7, '\0') + header + "x";
}

// A bucket "b" on 127.0.0.1.
class FollowedBucket : public ::testing::Test {
 protected:
  FollowedBucket() : server_([this](const WebRequest& request) { return answer(request); }) {
    environment_.set("AWS_ENDPOINT_URL", server_.url(""));
    environment_.set("AWS_ACCESS_KEY_ID", "K");
    environment_.set("AWS_SECRET_ACCESS_KEY", "S");
  }

  void put(const std::string& key, const std::string& bytes) {
    const std::lock_guard lock(mutex_);
    objects_["/b/" + key] = {.bytes = bytes, .etag = "\"" + std::to_string(++etag_) + "\""};
  }
  void remove(const std::string& key) {
    const std::lock_guard lock(mutex_);
    objects_.erase("/b/" + key);
  }
  void publish(const std::string& version) {
    put("run/" + version + "/model-00000-of-00001.safetensors", one_tensor("a"));
    put("run/" + version + "/model.safetensors.index.json",
        R"({"weight_map":{"a":"model-00000-of-00001.safetensors"}})");
  }

  std::atomic<int> refusal_ = 0;  // the status of all responses; 0: answers normally
  std::mutex mutex_;              // guards objects_
  std::map<std::string, WebObject> objects_;
  int etag_ = 0;
  StoreEnvironment environment_;
  TempDir dir_;
  HttpServer server_;
  Sources sources_{{.cache_dir = (dir_ / "cache").string(), .timeout = 5}};

 private:
  WebAnswer answer(const WebRequest& request) {
    const std::lock_guard lock(mutex_);
    if (refusal_ != 0) return {.status = refusal_};
    const std::size_t at = request.target.find("prefix=");
    if (at == std::string::npos) return answer_object(request, objects_);
    std::string prefix = "/b/" + request.target.substr(at + 7);
    for (std::size_t slash = 0; (slash = prefix.find("%2F")) != std::string::npos;) {
      prefix.replace(slash, 3, "/");
    }
    std::string page = "<ListBucketResult>";
    std::set<std::string> prefixes;
    for (const auto& [path, object] : objects_) {
      if (!path.starts_with(prefix)) continue;
      const std::size_t slash = path.find('/', prefix.size());
      if (slash == std::string::npos)
        page += "<Contents><Key>" + path.substr(3) + "</Key></Contents>";
      if (slash != std::string::npos) prefixes.insert(path.substr(3, slash - 2));
    }
    for (const std::string& each : prefixes) {
      page += "<CommonPrefixes><Prefix>" + each + "</Prefix></CommonPrefixes>";
    }
    return {.body = page + "</ListBucketResult>"};
  }
};

TEST_F(FollowedBucket, ReportsVersionsOnceComplete) {
  publish("weight_v000001");
  put("run/weight_v000002/model.safetensors.index.json",
      R"({"weight_map":{"a":"model-00000-of-00001.safetensors"}})");
  put("run/step_3.safetensors", one_tensor("a"));
  put("run/tmp-checkpoint-4/model.safetensors", one_tensor("a"));
  Follower follower("s3://b/run/", sources_, {});
  EXPECT_EQ(follower.look(), Versions());
  EXPECT_EQ(follower.look(),
            (Versions{"s3://b/run/step_3.safetensors", "s3://b/run/weight_v000001"}));
  const std::string shard = "run/weight_v000002/model-00000-of-00001.safetensors";
  put(shard, one_tensor("b"));  // the index names another tensor
  EXPECT_EQ(follower.look(), Versions());
  EXPECT_EQ(follower.look(), Versions());
  put(shard, one_tensor("a").substr(0, 60));
  EXPECT_EQ(follower.look(), Versions());
  EXPECT_EQ(follower.look(), Versions());
  put(shard, one_tensor("a"));
  EXPECT_EQ(follower.look(), Versions());
  put(shard, one_tensor("a"));  // the same bytes with another ETag
  EXPECT_EQ(follower.look(), Versions());
  EXPECT_EQ(follower.look(), Versions{"s3://b/run/weight_v000002"});
  EXPECT_EQ(follower.look(), Versions());
}

TEST_F(FollowedBucket, WaitsForMarkerAndFindsLatestVersion) {
  publish("step_9");
  publish("step_10");
  put("run/step_9/STABLE", "");
  Follower marked("s3://b/run", sources_, {.marker = "STABLE", .latest = true});
  marked.look();
  EXPECT_EQ(marked.look(), Versions{"s3://b/run/step_9"});
  Follower newest("s3://b/run", sources_, {.latest = true});
  newest.look();
  EXPECT_EQ(newest.look(), Versions{"s3://b/run/step_10"});
}

TEST_F(FollowedBucket, CleanupAndRefusalsLoseNoLaterVersion) {
  publish("step_1");
  publish("step_2");
  Follower follower("s3://b/run", sources_, {.pause = std::chrono::milliseconds(5)});
  follower.look();
  remove("run/step_1/model-00000-of-00001.safetensors");
  EXPECT_EQ(follower.look(), Versions{"s3://b/run/step_2"});
  refusal_ = 403;
  message_of([&] { follower.look(); }, ErrorCode::kHidden);
  message_of([&] { follower.next(); }, ErrorCode::kHidden);
  refusal_ = 0;
  publish("step_3");
  EXPECT_EQ(follower.look(), Versions());
  EXPECT_EQ(follower.look(), Versions{"s3://b/run/step_3"});
}

// The API describes one commit per response, so the follower asks for the branch at every look().
TEST(FollowedHub, ReportsNewVersionsWhenBranchMoves) {
  StoreEnvironment environment;
  TempDir dir;
  std::atomic<int> commits = 1;
  const std::string index = R"({"weight_map":{}})";
  HttpServer hub([&](const WebRequest& request) -> WebAnswer {
    if (request.target.starts_with("/api/")) {
      std::string siblings;
      for (int i = 1; i <= commits; ++i) {
        siblings += std::string(i > 1 ? "," : "") + R"({"rfilename":"v/weight_v00000)" +
                    std::to_string(i) + R"(/model.safetensors.index.json","size":)" +
                    std::to_string(index.size()) + R"(,"blobId":")" + std::string(40, 'b') + "\"}";
      }
      return {.body = R"({"id":"org/name","sha":")" +
                      std::string(40, static_cast<char>('0' + commits)) +
                      R"(","lastModified":"2026-02-01T10:00:00.000Z","siblings":[)" + siblings +
                      "]}"};
    }
    const std::string path = request.target.substr(0, request.target.find('?'));
    return answer_object(request, {{path, {.bytes = index}}});
  });
  environment.set("HF_ENDPOINT", hub.url(""));
  Sources sources({.cache_dir = (dir / "cache").string(), .timeout = 5});
  Follower follower("hf://org/name/v", sources, {});
  EXPECT_EQ(follower.look(), Versions());
  EXPECT_EQ(follower.look(), Versions{"hf://org/name/v/weight_v000001"});
  commits = 2;
  EXPECT_EQ(follower.look(), Versions());
  EXPECT_EQ(follower.look(), Versions{"hf://org/name/v/weight_v000002"});
}

}  // namespace
}  // namespace stfs::test
