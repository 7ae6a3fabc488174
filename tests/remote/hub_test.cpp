#include "core/remote/stores/hub.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/remote/sources.h"
#include "core/remote/stores/hub_api.h"
#include "core/remote/stores/hub_cache.h"
#include "core/remote/stores/hub_name.h"
#include "core/source/local_file.h"
#include "tests/remote/remote_support.h"
#include "tests/support/http_server.h"
#include "tests/support/process.h"

#include <grp.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace stfs::test {
namespace {

using HubJson = nlohmann::json;

const std::string kHubCommit(40, 'c');
const std::string kHubSha256(64, '5');
const std::string kHubBlob(40, 'b');
const std::string kHubWeights(1000, 'w');
const std::string kHubConfig = "{\"model_type\": \"test\"}";
const std::string kHubToken = "hf_a-secret";

HubJson hub_lfs_file(const std::string& name) {
  return {{"rfilename", name},
          {"size", kHubWeights.size()},
          {"blobId", kHubBlob},
          {"lfs", {{"sha256", kHubSha256}, {"size", kHubWeights.size()}, {"pointerSize", 130}}}};
}

HubJson hub_model(HubJson siblings) {
  return {{"id", "org/name"},
          {"sha", kHubCommit},
          {"lastModified", "2025-02-01T10:00:00.000Z"},
          {"config", {{"architectures", {"Any"}}}},
          {"siblings", std::move(siblings)}};
}

// The Hub on 127.0.0.1, and its CDN on 127.0.0.2.
class Hub : public ::testing::Test {
 protected:
  Hub()
      : hub_([this](const WebRequest& r) { return answer(r); }),
        cdn_([this](const WebRequest& r) { return answer_cdn(r); }, "127.0.0.2") {
    environment_.set("HF_ENDPOINT", hub_.url());
  }

  Store& store() {
    if (!store_) store_ = make_hub_store(http_);
    return *store_;
  }
  std::unique_ptr<Remote> remote(const std::string& file = "model.safetensors") {
    return store().remote(store().find("hf://org/name/" + file, nullptr).version);
  }
  // Returns the targets of the requests that the Hub has received.
  std::vector<std::string> asked() const {
    std::vector<std::string> targets;
    for (const WebRequest& request : hub_.requests()) targets.push_back(request.target);
    return targets;
  }
  // Returns the code and the message of the Error that `act` throws.
  static std::pair<ErrorCode, std::string> error_of(const std::function<void()>& act) {
    try {
      act();
    } catch (const Error& error) {
      return {error.code(), error.what()};
    }
    ADD_FAILURE() << "no error";
    return {};
  }

  WebAnswer answer(const WebRequest& request) {
    if (instead_) {
      if (std::optional<WebAnswer> other = instead_(request)) return *other;
    }
    const std::string& target = request.target;
    if (target.starts_with("/api/models/org/name/revision/")) return {.body = model_.dump()};
    if (target == "/org/name/resolve/" + kHubCommit + "/config.json") {
      return {.status = 307, .headers = {{"Location", "/api/resolve-cache/config.json?e=1"}}};
    }
    if (target.starts_with("/api/resolve-cache/")) {
      WebAnswer found = answer_object(
          request, {{"/api/resolve-cache/config.json", {kHubConfig, '"' + kHubBlob + '"'}}});
      found.headers.emplace_back("X-Repo-Commit", kHubCommit);
      return found;
    }
    if (target.find("/resolve/") != std::string::npos) return signed_redirect();
    return {.status = 404, .headers = {{"X-Error-Code", "EntryNotFound"}}};
  }

  WebAnswer signed_redirect() {
    return {.status = 302,
            .headers = {{"Location", cdn_.url("/f?sig=" + std::to_string(++signed_))},
                        {"X-Repo-Commit", commit_},
                        {"X-Linked-Etag", etag_},
                        {"X-Linked-Size", size_}},
            .body = "Found"};
  }

  WebAnswer answer_cdn(const WebRequest& request) {
    if (request.target != "/f?sig=" + std::to_string(signed_)) return {.status = 403};
    return answer_object(request, {{"/f", {kHubWeights, '"' + std::string(64, 'e') + '"'}}});
  }

  StoreEnvironment environment_;
  std::function<std::optional<WebAnswer>(const WebRequest&)> instead_;
  HubJson model_ = hub_model(
      {hub_lfs_file("model.safetensors"),
       hub_lfs_file("part/b.safetensors"),
       hub_lfs_file("part/a.safetensors"),
       hub_lfs_file("part/deep/c.safetensors"),
       {{"rfilename", "config.json"}, {"size", kHubConfig.size()}, {"blobId", kHubBlob}}});
  std::string commit_ = kHubCommit, etag_ = '"' + kHubSha256 + '"', size_ = "1000";
  std::atomic<int> signed_ = 0;
  HttpServer hub_, cdn_;
  Http http_{{}};
  std::unique_ptr<Store> store_;
};

TEST_F(Hub, GetsAllFilesOfRevisionInOneRequest) {
  EXPECT_EQ(store().pinned("hf://org/name"), "hf://org/name@" + kHubCommit);
  EXPECT_EQ(store().pinned("hf://models/org/name@main/part/"),
            "hf://org/name@" + kHubCommit + "/part");
  const RemoteVersion weights = store().find("hf://org/name/model.safetensors", nullptr).version;
  EXPECT_EQ(weights.name, "hf://org/name@" + kHubCommit + "/model.safetensors");
  EXPECT_EQ(weights.size, 1000U);
  EXPECT_EQ(weights.sha256, kHubSha256);
  EXPECT_EQ(weights.token, "hf-" + kHubSha256);
  EXPECT_EQ(weights.mtime.tv_sec, 1'738'404'000);
  EXPECT_EQ(weights.etag, "");
  const RemoteVersion config =
      store().find(store().pinned("hf://org/name/config.json"), nullptr).version;
  EXPECT_EQ(config.sha256, "");
  EXPECT_EQ(config.token, "hf-git-sha1-" + kHubBlob);

  using Names = std::vector<std::string>;
  EXPECT_EQ(store().list("hf://org/name"), (Names{"config.json", "model.safetensors"}));
  EXPECT_EQ(store().list("hf://org/name/part"), (Names{"a.safetensors", "b.safetensors"}));
  EXPECT_EQ(store().list("hf://org/name/config.json"), std::nullopt);
  EXPECT_EQ(store().entries("hf://org/name"), (Names{"config.json", "model.safetensors", "part/"}));
  EXPECT_EQ(store().entries("hf://org/name/part/"),
            (Names{"a.safetensors", "b.safetensors", "deep/"}));
  message_of([&] { store().list("hf://org/name/par"); }, ErrorCode::kAbsent);
  message_of([&] { store().find("hf://org/name/no", nullptr); }, ErrorCode::kAbsent);
  message_of([&] { store().find("hf://org/name/part", nullptr); }, ErrorCode::kUnreadable);
  EXPECT_EQ(asked(), Names{"/api/models/org/name/revision/main?blobs=true"});
  store().forget();
  store().entries("hf://org/name");
  EXPECT_EQ(asked().size(), 2U);
}

TEST_F(Hub, ConcurrentLookupsOfModelSendOneRequest) {
  std::vector<std::jthread> threads;
  store();
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] { store().find("hf://org/name/model.safetensors", nullptr); });
  }
  threads.clear();
  EXPECT_EQ(asked().size(), 1U);
}

TEST_F(Hub, DoesNotCacheFailures) {
  instead_ = [](const WebRequest&) { return WebAnswer{.status = 404}; };
  message_of([&] { store().pinned("hf://org/name"); }, ErrorCode::kAbsent);
  instead_ = nullptr;
  EXPECT_EQ(store().pinned("hf://org/name"), "hf://org/name@" + kHubCommit);
}

TEST_F(Hub, PercentEncodesSlashesOfRevision) {
  store().pinned("hf://org/name@refs%2Fpr%2F1/config.json");
  store().pinned("hf://org/name@refs/pr/2/config.json");
  EXPECT_EQ(asked(),
            (std::vector<std::string>{"/api/models/org/name/revision/refs%2Fpr%2F1?blobs=true",
                                      "/api/models/org/name/revision/refs%2Fpr%2F2?blobs=true"}));
}

TEST_F(Hub, RenamedModelGetsItsNewName) {
  instead_ = [](const WebRequest& request) -> std::optional<WebAnswer> {
    if (!request.target.starts_with("/api/models/old/id/")) return std::nullopt;
    return WebAnswer{.status = 307,
                     .headers = {{"Location", "/api/models/org/name/revision/main?blobs=true"}}};
  };
  EXPECT_EQ(store().pinned("hf://old/id"), "hf://org/name@" + kHubCommit);
}

TEST_F(Hub, DoesNotSendTokenToCdn) {
  environment_.set("HF_TOKEN", kHubToken);
  const auto file = remote();
  const HttpRequest request = file->request({10, 20});
  EXPECT_TRUE(request.secrets.empty());
  EXPECT_TRUE(request.url.starts_with(cdn_.url("/f?sig=")));
  const HttpResponse answer = http_.get(request, 1 << 20);
  EXPECT_EQ(answer.body, kHubWeights.substr(10, 20));
  EXPECT_EQ(file->judge(answer.head, {10, 20}).kind, ResponseVerdict::Kind::kAccept);
  for (const WebRequest& seen : hub_.requests()) {
    EXPECT_EQ(seen.header("authorization"), "Bearer " + kHubToken) << seen.target;
  }
  ASSERT_EQ(cdn_.requests().size(), 1U);
  EXPECT_EQ(cdn_.requests()[0].header("authorization"), "");
}

TEST_F(Hub, ReusesSignedUrlUntilRefused) {
  const auto file = remote();
  const HttpRequest first = file->request({0, 8});
  EXPECT_EQ(file->request({8, 8}).url, first.url);
  EXPECT_EQ(asked().size(), 2U);
  ++signed_;  // expires it
  const HttpHead refused = http_.get(first, 1 << 20).head;
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(file->judge(refused, {0, 8}).kind, ResponseVerdict::Kind::kRenew);
  EXPECT_TRUE(file->renew());
  const HttpRequest second = file->request({0, 8});
  EXPECT_NE(second.url, first.url);
  EXPECT_EQ(http_.get(second, 1 << 20).body, "wwwwwwww");
  // A late response for the first URL does not drop the second URL.
  EXPECT_EQ(file->judge(refused, {8, 8}).kind, ResponseVerdict::Kind::kRenew);
  EXPECT_TRUE(file->renew());
  EXPECT_EQ(file->request({8, 8}).url, second.url);
  EXPECT_EQ(asked().size(), 3U);
}

TEST_F(Hub, ConcurrentReadersRequestOneSignedUrl) {
  const auto file = remote();
  std::vector<std::jthread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] { file->request({0, 1}); });
  }
  threads.clear();
  EXPECT_EQ(asked().size(), 2U);
}

TEST_F(Hub, ResolvesSeveralFilesConcurrently) {
  std::promise<void> both;
  std::atomic<int> under_way = 0;
  const std::shared_future<void> arrived = both.get_future().share();
  instead_ = [&](const WebRequest& request) -> std::optional<WebAnswer> {
    if (request.target.find("/resolve/") == std::string::npos) return std::nullopt;
    if (++under_way == 2) both.set_value();
    arrived.wait_for(std::chrono::seconds(60));
    return std::nullopt;
  };
  const auto a = remote("part/a.safetensors"), b = remote("part/b.safetensors");
  auto other = std::async(std::launch::async, [&] { a->request({0, 1}); });
  b->request({0, 1});
  other.get();
  EXPECT_EQ(hub_.most_at_once(), 2U);
}

TEST_F(Hub, ReadsSmallFileFromHubInOneRequest) {
  environment_.set("HF_TOKEN", kHubToken);
  const auto file = remote("config.json");
  const HttpRequest request = file->request({2, 5});
  EXPECT_EQ(request.url, hub_.url("/org/name/resolve/" + kHubCommit + "/config.json"));
  const HttpResponse answer = http_.get(request, 1 << 20);
  EXPECT_EQ(answer.body, kHubConfig.substr(2, 5));
  EXPECT_EQ(file->judge(answer.head, {2, 5}).kind, ResponseVerdict::Kind::kAccept);
  HttpHead other = answer.head;
  for (auto& [name, value] : other.headers) {
    if (name == "x-repo-commit") value = std::string(40, 'd');
  }
  EXPECT_EQ(file->judge(other, {2, 5}).kind, ResponseVerdict::Kind::kChanged);
}

TEST_F(Hub, RejectsResponsesOfOtherVersion) {
  const auto file = remote();
  const auto why = [&] { return error_of([&] { file->request({0, 1}); }).second; };
  commit_ = std::string(40, 'd');
  EXPECT_NE(why().find("another commit"), std::string::npos);
  commit_ = kHubCommit;
  etag_ = '"' + std::string(64, '6') + '"';
  EXPECT_NE(why().find("SHA-256"), std::string::npos);
  etag_ = '"' + kHubSha256 + '"';
  for (const char* const size : {"999", "", "-1", "01000"}) {
    size_ = size;
    EXPECT_NE(why().find("its size"), std::string::npos) << size;
  }
  size_ = "1000";
  commit_ = "";  // like a mirror; the digest then identifies the file
  EXPECT_NO_THROW(file->request({0, 1}));
}

TEST_F(Hub, FollowsRedirectsToSignedUrl) {
  const auto file = remote();
  instead_ = [&](const WebRequest& request) -> std::optional<WebAnswer> {
    if (!request.target.starts_with("/org/name/resolve/")) return std::nullopt;
    return WebAnswer{.status = 307, .headers = {{"Location", "/new/id/resolve/x/m"}}};
  };
  EXPECT_TRUE(file->request({0, 1}).url.starts_with(cdn_.url("/f?sig=")));
}

TEST_F(Hub, RejectsRedirectLoop) {
  const auto file = remote();
  instead_ = [&](const WebRequest& request) -> std::optional<WebAnswer> {
    return WebAnswer{.status = 302, .headers = {{"Location", request.target}}};
  };
  expect_error([&] { file->request({0, 1}); }, "more than 10 times");
}

// The digest is known from the API. A mirror may send an ETag of another kind, which is not
// compared with the digest.
TEST_F(Hub, RejectsDirectLfsResponseWithOtherDigest) {
  std::string etag;
  instead_ = [&](const WebRequest& request) -> std::optional<WebAnswer> {
    if (request.target.find("/resolve/") == std::string::npos) return std::nullopt;
    return answer_object({"GET", "/f", request.headers}, {{"/f", {kHubWeights, etag}}});
  };
  const std::string url = hub_.url("/org/name/resolve/" + kHubCommit + "/model.safetensors");
  for (const std::string& fits : {kHubSha256, std::string(40, '1'), std::string("v1")}) {
    etag = '"' + fits + '"';
    const auto file = remote();
    const HttpRequest request = file->request({0, 1000});
    EXPECT_EQ(request.url, url);
    EXPECT_EQ(file->judge(http_.get(request, 1 << 20).head, {0, 1000}).kind,
              ResponseVerdict::Kind::kAccept);
    etag = "\"other\"";
    EXPECT_EQ(file->judge(http_.get(request, 1 << 20).head, {0, 1000}).kind,
              ResponseVerdict::Kind::kChanged)
        << fits;
  }
  etag = '"' + std::string(64, '6') + '"';
  expect_error([&] { remote()->request({0, 1}); }, "SHA-256");
}

TEST_F(Hub, ErrorStatusRenewsSignedUrl) {
  const auto file = remote();
  for (const int status : {400, 401, 403, 404, 410}) {
    HttpHead head;
    head.status = status;
    EXPECT_EQ(file->judge(head, {0, 1}).kind, ResponseVerdict::Kind::kRenew) << status;
  }
}

TEST_F(Hub, ReportsGatedModelWhenHubRefusesBytes) {
  HttpHead head{.status = 403, .url = hub_.url("/x"), .headers = {{"x-error-code", "GatedRepo"}}};
  EXPECT_NE(remote()->judge(head, {0, 1}).text.find("the model is gated"), std::string::npos);
  head.url = cdn_.url("/x");
  EXPECT_EQ(remote()->judge(head, {0, 1}).text.find("gated"), std::string::npos);
}

TEST_F(Hub, RefusalsSayWhatToDo) {
  struct Case {
    int status;
    const char *code, *message;
    bool has_token;
    ErrorCode error;
    const char* text;
  };
  const Case cases[] = {
      {401, "RepoNotFound", "Invalid username or password.", false, ErrorCode::kAbsent,
       "no such model, or it is private: set HF_TOKEN"},
      {404, "RepoNotFound", "", true, ErrorCode::kAbsent, "this token may not see it"},
      {401, "", "", false, ErrorCode::kAbsent, "set HF_TOKEN"},
      {401, "", "Invalid credentials in Authorization header", true, ErrorCode::kUnreadable,
       "does not accept this token"},
      {403, "GatedRepo", "", true, ErrorCode::kUnreadable, "accept its conditions at http://"},
      {401, "GatedRepo", "", false, ErrorCode::kUnreadable, "/org/name, then set HF_TOKEN"},
      {404, "RevisionNotFound", "", false, ErrorCode::kAbsent, "no such revision"},
      {404, "EntryNotFound", "", false, ErrorCode::kAbsent, "no such file"},
      {403, "", "Not \x1b[31mallowed", false, ErrorCode::kUnreadable,
       "answered 403: \"Not \\x1b[31mallowed\""},
      {418, "", "", false, ErrorCode::kUnreadable, "the Hub answered 418"},
  };
  for (const Case& c : cases) {
    environment_.set("HF_TOKEN", c.has_token ? std::optional(kHubToken) : std::nullopt);
    instead_ = [&](const WebRequest&) {
      return WebAnswer{.status = c.status,
                       .headers = {{"X-Error-Code", c.code}, {"X-Error-Message", c.message}}};
    };
    const auto store = make_hub_store(http_);
    const auto [code, text] = error_of([&] { store->pinned("hf://org/name"); });
    EXPECT_EQ(code, c.error) << text;
    EXPECT_NE(text.find(c.text), std::string::npos) << text;
    EXPECT_EQ(text.find(kHubToken), std::string::npos);
    EXPECT_TRUE(text.starts_with("hf://org/name@main: ")) << text;
  }
}

TEST_F(Hub, ReportsTokenWithheldOverHttp) {
  environment_.set("HF_ENDPOINT", "http://mirror.test");
  environment_.set("HF_TOKEN", kHubToken);
  const HubOptions options = hub_options();
  EXPECT_EQ(options.token, "");
  HttpHead head;
  head.status = 401;
  EXPECT_EQ(
      error_of([&] {
        refuse_hub_answer(head, "hf://org/name", "org/name", options,
                          R"({"errors":[{"status":401,"message":"Unauthorized"}]})");
      }).second,
      "hf://org/name: the Hub answered 401: \"Unauthorized\": no such model, or it is private: "
      "the token was not sent, because http://mirror.test is http: use https");
}

TEST_F(Hub, MasksTokenEchoedByServer) {
  environment_.set("HF_TOKEN", kHubToken);
  instead_ = [](const WebRequest& request) {
    return WebAnswer{.status = 403,
                     .headers = {{"X-Error-Message", request.header("authorization")}}};
  };
  const std::string text = error_of([&] { store().pinned("hf://org/name"); }).second;
  EXPECT_NE(text.find("the Hub answered 403: \"***\""), std::string::npos) << text;
}

TEST_F(Hub, RateLimitMessageSaysWhenToRetry) {
  HttpHead head;
  head.status = 429;
  head.headers = {{"ratelimit", "\"api\";r=0;t=55"}, {"retry-after", "7"}};
  const HubOptions options = hub_options();
  const auto text = [&] {
    return error_of([&] { refuse_hub_answer(head, "hf://org/name", "org/name", options); }).second;
  };
  EXPECT_EQ(text(),
            "hf://org/name: the Hub takes no more requests for now: try again in 55 s, or "
            "set HF_TOKEN for a higher limit");
  head.headers.erase(head.headers.begin());
  EXPECT_NE(text().find("in 7 s"), std::string::npos);
  head.headers.clear();
  EXPECT_NE(text().find("again later"), std::string::npos);
}

TEST_F(Hub, ReadsPagedTreeIfModelLacksSizes) {
  model_["siblings"] = {{{"rfilename", "a.safetensors"}}, {{"rfilename", "config.json"}}};
  instead_ = [&](const WebRequest& request) -> std::optional<WebAnswer> {
    if (request.target.find("/tree/") == std::string::npos) return std::nullopt;
    EXPECT_TRUE(
        request.target.starts_with("/api/models/org/name/tree/" + kHubCommit + "?recursive=true"));
    if (request.target.find("cursor") == std::string::npos) {
      const HubJson page = {{{"type", "directory"}, {"path", "part"}},
                            {{"type", "file"},
                             {"path", "a.safetensors"},
                             {"size", 1000},
                             {"oid", kHubBlob},
                             {"lfs", {{"oid", kHubSha256}, {"size", 1000}}}}};
      return WebAnswer{.headers = {{"Link", "<" + request.target + "&cursor=x%3D>; rel=\"next\""}},
                       .body = page.dump()};
    }
    const HubJson page = {
        {{"type", "file"}, {"path", "config.json"}, {"size", 2}, {"oid", kHubBlob}},
        {{"type", "file"}, {"path", "part/b"}, {"size", 3}, {"oid", kHubBlob}}};
    return WebAnswer{.body = page.dump()};
  };
  EXPECT_EQ(store().find("hf://org/name/a.safetensors", nullptr).version.sha256, kHubSha256);
  EXPECT_EQ(store().find("hf://org/name/part/b", nullptr).version.size, 3U);
  EXPECT_EQ(asked().size(), 3U);
}

TEST_F(Hub, RejectsTreePagesOfOtherHostAndEndlessPages) {
  model_.erase("siblings");
  std::string next = cdn_.url("/page");
  instead_ = [&](const WebRequest& request) -> std::optional<WebAnswer> {
    if (request.target.find("/tree/") == std::string::npos) return std::nullopt;
    return WebAnswer{.headers = {{"Link", "<" + next + ">; rel=\"next\""}}, .body = "[]"};
  };
  expect_error([&] { store().pinned("hf://org/name"); }, "another host");
  next = "/api/models/org/name/tree/" + kHubCommit + "?recursive=true";
  expect_error([&] { store().pinned("hf://org/name"); }, "does not end");
  EXPECT_TRUE(cdn_.requests().empty());
}

TEST_F(Hub, RejectsMalformedModelInfo) {
  const auto error = [&](const std::string& body) {
    instead_ = [&](const WebRequest&) { return WebAnswer{.body = body}; };
    return error_of([&] { store().pinned("hf://org/name"); });
  };
  HubJson short_commit = model_, no_commit = model_;
  short_commit["sha"] = std::string(39, 'c');
  no_commit.erase("sha");
  for (const std::string& body :
       {std::string(), std::string("<html>"), std::string("[]"), std::string("7"),
        std::string("{\"sha\": 7}"), std::string("{\"siblings\": 7}"), short_commit.dump(),
        no_commit.dump(), "{\"a\":" + std::string(100'000, '['),
        "{\"siblings\":[{\"rfilename\":" + std::string(100'000, '['),
        std::string("{\"sha\":\"\xff\"}")}) {
    const auto [code, text] = error(body);
    EXPECT_EQ(code, ErrorCode::kUnreadable) << text;
    EXPECT_LT(text.size(), 200U);
  }
  // The response describes another commit than the requested one.
  instead_ = nullptr;
  expect_error([&] { store().pinned("hf://org/name@" + std::string(40, 'a')); }, "another commit");
}

TEST_F(Hub, RejectsTooManyValuesOrFiles) {
  const auto error = [&](const std::string& siblings) {
    const std::string body = "{\"sha\":\"" + kHubCommit + "\",\"siblings\":[" + siblings + "]}";
    instead_ = [&](const WebRequest&) { return WebAnswer{.body = body}; };
    return error_of([&] { store().pinned("hf://org/name"); }).second;
  };
  std::string values = "{\"rfilename\":[1", files;
  for (int i = 0; i < 4'000'000; ++i) values += ",1";
  for (int i = 0; i <= 250'000; ++i) {
    files += (i == 0 ? "" : ",") + ("{\"rfilename\":\"f" + std::to_string(i) + "\",\"size\":1,");
    files += "\"blobId\":\"" + kHubBlob + "\"}";
  }
  EXPECT_TRUE(error(values + "]}").ends_with("its JSON has too many values"));
  EXPECT_TRUE(error(files).ends_with("it names too many files"));
}

TEST_F(Hub, DoesNotListUnsafeFileNames) {
  HubJson siblings = HubJson::array();
  for (const char* const name : {"../x", "/etc/passwd", "a/../../b", "a//b", "", ".", "..", "a\nb",
                                 "a\x1b[31m", "a\x7f", "good"}) {
    siblings.push_back(hub_lfs_file(name));
  }
  siblings.push_back({{"rfilename", 7}});
  siblings.push_back(hub_lfs_file(std::string(5000, 'x')));
  model_["siblings"] = siblings;
  EXPECT_EQ(store().list("hf://org/name"), std::vector<std::string>{"good"});
}

TEST_F(Hub, RejectsInvalidSizesAndDigests) {
  const HubJson bad_sizes[] = {
      -1, "1000", 1e300, 1.5, nullptr, true, HubJson::array(), std::uint64_t{1} << 63, 1001};
  HubJson siblings = HubJson::array();
  int count = 0;
  for (const HubJson& size : bad_sizes) {
    HubJson file = hub_lfs_file("f" + std::to_string(count++));
    if (size != 1001) file["lfs"]["size"] = size;
    file["size"] = size;  // 1001 differs from the size in "lfs"
    siblings.push_back(file);
  }
  HubJson file = hub_lfs_file("f" + std::to_string(count++));
  file["lfs"]["sha256"] = "../../../etc";
  siblings.push_back(file);
  model_["siblings"] = siblings;
  instead_ = [&](const WebRequest& request) -> std::optional<WebAnswer> {
    if (request.target.find("/tree/") == std::string::npos) return std::nullopt;
    return WebAnswer{.body = "[]"};
  };
  for (int i = 0; i < count; ++i) {
    const auto [code, text] =
        error_of([&] { store().find("hf://org/name/f" + std::to_string(i), nullptr); });
    EXPECT_EQ(code, ErrorCode::kUnreadable) << i << text;
  }
}

TEST_F(Hub, AcceptsModelWith100000Files) {
  HubJson siblings = HubJson::array();
  for (int i = 0; i < 100'000; ++i) siblings.push_back(hub_lfs_file("f" + std::to_string(i)));
  model_["siblings"] = std::move(siblings);
  EXPECT_EQ(store().list("hf://org/name").value().size(), 100'000U);
  EXPECT_EQ(store().find("hf://org/name/f99999", nullptr).version.size, 1000U);
}

TEST_F(Hub, DoesNotSendTokenAfterRedirectLeftHub) {
  environment_.set("HF_TOKEN", kHubToken);
  const auto file = remote();
  HttpServer mirror(
      [&](const WebRequest&) {
        return WebAnswer{.status = 302, .headers = {{"Location", hub_.url("/back/resolve/")}}};
      },
      "127.0.0.3");
  instead_ = [&](const WebRequest& request) -> std::optional<WebAnswer> {
    if (!request.target.starts_with("/org/")) return std::nullopt;
    return WebAnswer{.status = 308, .headers = {{"Location", mirror.url("/moved")}}};
  };
  hub_.forget_requests();
  EXPECT_TRUE(file->request({0, 1}).url.starts_with(cdn_.url("/f?sig=")));
  EXPECT_EQ(mirror.requests().at(0).header("authorization"), "");
  EXPECT_NE(hub_.requests().at(0).header("authorization"), "");
  EXPECT_EQ(hub_.requests().at(1).header("authorization"), "");
}

TEST_F(Hub, RejectsRedirectToLinkLocalAddress) {
  const auto file = remote();
  for (const char* const target : {"http://169.254.169.254/x", "http://[fe80::1]/x"}) {
    instead_ = [&](const WebRequest&) {
      return WebAnswer{.status = 302,
                       .headers = {{"Location", target},
                                   {"X-Repo-Commit", commit_},
                                   {"X-Linked-Etag", etag_},
                                   {"X-Linked-Size", size_}}};
    };
    message_of([&] { file->request({0, 1}); }, ErrorCode::kUnreadable);
  }
}

// Checks servers/hub.py, which the tests of mounts use as the Hub.
TEST(HubServer, BehavesLikeHub) {
  if (!std::filesystem::exists("/usr/bin/python3")) GTEST_SKIP() << "no Python";
  StoreEnvironment environment;
  const std::filesystem::path model = "models/org/name";
  environment.write(model / "model.safetensors", kHubWeights + kHubWeights);
  environment.write(model / "a b/config.json", kHubConfig);
  const std::string log = environment.home() / "log";
  const Process server({"/usr/bin/python3", STFS_HUB_SERVER, "--token", kHubToken, "--private",
                        "org/name", "--renamed", "old/id=org/name", "--no-sizes", "--page", "1",
                        "--uses", "2", "--log", log, environment.home() / "models"});
  while (server.running() && server.out().find('\n') == std::string::npos)
    std::this_thread::yield();
  ASSERT_NE(server.out().find('\n'), std::string::npos) << server.err();
  environment.set("HF_ENDPOINT", HubJson::parse(server.out()).at("hub").get<std::string>());
  environment.set("HF_TOKEN", kHubToken);
  Http http({});
  const auto store = make_hub_store(http);
  EXPECT_EQ(store->list("hf://old/id"), std::vector<std::string>{"model.safetensors"});
  for (const auto& [name, bytes] : {std::pair{"model.safetensors", kHubWeights + kHubWeights},
                                    {"a b/config.json", kHubConfig}}) {
    const RemoteVersion version = store->find(std::string("hf://old/id/") + name, nullptr).version;
    EXPECT_TRUE(version.name.starts_with("hf://org/name@")) << version.name;
    ASSERT_EQ(version.size, bytes.size());
    const auto file = store->remote(version);
    int renewals = 0;
    for (std::uint64_t at = 0; at < 5;) {
      const HttpResponse answer = http.get(file->request({at, 7}), 1 << 20);
      const ResponseVerdict verdict = file->judge(answer.head, {at, 7});
      if (verdict.kind == ResponseVerdict::Kind::kRenew && file->renew()) {
        ++renewals;
        continue;
      }
      ASSERT_EQ(verdict.kind, ResponseVerdict::Kind::kAccept) << answer.head.status << verdict.text;
      EXPECT_EQ(answer.body, bytes.substr(at, 7));
      ++at;
    }
    EXPECT_EQ(renewals, version.sha256.empty() ? 0 : 2);
  }
  std::size_t at_hub = 0;
  std::istringstream lines(read_file(log));
  for (std::string line; std::getline(lines, line);) {
    const HubJson seen = HubJson::parse(line);
    const bool is_hub = seen.at("server") == "hub";
    at_hub += is_hub ? 1 : 0;
    EXPECT_EQ(seen.at("secrets").size(), is_hub ? 1U : 0U) << line;
  }
  EXPECT_GE(at_hub, 5U);
}

TEST(HubNames, HaveRevisionAndPath) {
  struct Case {
    const char *name, *id, *revision, *path;
  };
  const std::string commit(40, 'a');
  const std::string pinned = "hf://org/name@" + std::string(40, 'A') + "/x";
  const Case cases[] = {
      {"hf://org/name", "org/name", "main", ""},
      {"hf://org/name/", "org/name", "main", ""},
      {"hf://models/org/name", "org/name", "main", ""},
      {"hf://org/name@v1.0", "org/name", "v1.0", ""},
      {"hf://org/name@v1/a/b.safetensors", "org/name", "v1", "a/b.safetensors"},
      {"hf://org/name@a%2Fb/c", "org/name", "a/b", "c"},
      {"hf://org/name@refs/pr/12", "org/name", "refs/pr/12", ""},
      {"hf://org/name@refs/pr/12/a/b", "org/name", "refs/pr/12", "a/b"},
      {"hf://org/name@refs/convert/parquet/a", "org/name", "refs/convert/parquet", "a"},
      {"hf://org/name@refs/x", "org/name", "refs", "x"},
      {"hf://org/name/a@b/c", "org/name", "main", "a@b/c"},
      {"hf://org/name/a b%20", "org/name", "main", "a b%20"},
      {"hf://Qwen/Qwen2.5-0.5B_x", "Qwen/Qwen2.5-0.5B_x", "main", ""},
      {pinned.c_str(), "org/name", commit.c_str(), "x"},
  };
  for (const Case& c : cases) {
    const HubName name = parse_hub_name(c.name);
    EXPECT_EQ(name.id, c.id) << c.name;
    EXPECT_EQ(name.revision, c.revision) << c.name;
    EXPECT_EQ(name.path, c.path) << c.name;
    const HubName again = parse_hub_name(name.text());
    EXPECT_EQ(again.revision, name.revision) << c.name;
    EXPECT_EQ(again.path, name.path) << c.name;
  }
}

TEST(HubNames, InvalidNamesAreRejectedInOneLine) {
  std::vector<std::string> names = words(
      "hf:/org/name hf:// hf://gpt2 hf://gpt2/ hf://gpt2@main hf:///name hf://org//x "
      "hf://datasets/org/name hf://spaces/org/name hf://org/name@ hf://org/name@/x "
      "hf://org/name@.. hf://org/name@..%2F..%2Fetc hf://org/name/../x hf://org/name/a//b "
      "hf://org/name/./a hf://org/na..me hf://org/na--me hf://-org/name hf://org/name. "
      "hf://org/name/a?b hf://org/name#a hf://org/name@a%0Ab hf://../name");
  names.insert(names.end(), {"hf://or g/name", "hf://org/na\nme"});
  for (const std::string& name : names) {
    const std::string line = message_of([&] { parse_hub_name(name); }, ErrorCode::kUsage);
    EXPECT_EQ(line.find('\n'), std::string::npos) << name;
  }
}

// Like the Hub's client, stfs uses the older variable only if the newer one is not set.
TEST(HubVariables, EnableOfflineMode) {
  struct Row {
    const char *hub, *transformers, *says;
  };
  StoreEnvironment environment;
  for (const Row& row : {Row{"", "", ""}, Row{"1", "", "HF_HUB_OFFLINE"}, Row{"0", "", ""},
                         Row{"", "ON", "TRANSFORMERS_OFFLINE"}, Row{"", "no", ""},
                         Row{"0", "1", ""}, Row{"yes", "0", "HF_HUB_OFFLINE"}}) {
    environment.set("HF_HUB_OFFLINE", row.hub);
    environment.set("TRANSFORMERS_OFFLINE", row.transformers);
    EXPECT_STREQ(hub_offline_variable(), row.says) << row.hub << "," << row.transformers;
    EXPECT_EQ(resolved({}).offline, *row.says != '\0');
    Sources sources{{}};
    if (*row.says == '\0') continue;
    expect_error([&] { sources.open("hf://org/name/m"); }, std::string("(") + row.says,
                 ErrorCode::kHidden);
  }
}

TEST(HubToken, ComesFromEnvironmentOrFile) {
  StoreEnvironment environment;
  const auto token = [] { return hub_options().token; };
  EXPECT_EQ(token(), "");
  environment.write(".cache/huggingface/token", " from-home\n");
  EXPECT_EQ(token(), "from-home");
  environment.set("XDG_CACHE_HOME", (environment.home() / "xdg").string());
  EXPECT_EQ(token(), "");
  environment.write("xdg/huggingface/token", "from-xdg");
  EXPECT_EQ(token(), "from-xdg");
  environment.write("hf/token", "from-hf-home\r\n");
  environment.set("HF_HOME", "~/hf");
  EXPECT_EQ(token(), "from-hf-home");
  environment.write("named", "from-path");
  environment.set("HF_TOKEN_PATH", (environment.home() / "named").string());
  EXPECT_EQ(token(), "from-path");
  environment.set("HUGGING_FACE_HUB_TOKEN", "older");
  EXPECT_EQ(token(), "older");
  environment.set("HF_TOKEN", "newer");
  EXPECT_EQ(token(), "newer");
  environment.set("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1");
  EXPECT_EQ(token(), "");
}

TEST(HubToken, EndpointIsNormalised) {
  StoreEnvironment environment;
  for (const char* const endpoint :
       {"https://Hub.example", "https://hub.example/", "https://hub.example:443//"}) {
    environment.set("HF_ENDPOINT", endpoint);
    EXPECT_EQ(hub_options().endpoint, "https://hub.example") << endpoint;
  }
  environment.set("HF_ENDPOINT", "http://127.0.0.1:8080/hf/");
  EXPECT_EQ(hub_options().api_url("a/b"), "http://127.0.0.1:8080/hf/api/models/a/b");
}

TEST(HubToken, GoesOnlyToEndpoint) {
  StoreEnvironment environment;
  environment.set("HF_TOKEN", kHubToken);
  const HubOptions options = hub_options();
  EXPECT_EQ(options.request("https://huggingface.co/x").secrets.size(), 1U);
  for (const char* const url : {"http://huggingface.co/x", "https://huggingface.co:444/x",
                                "https://cdn.huggingface.co/x", "https://huggingface.co.evil/x"}) {
    EXPECT_TRUE(options.request(url).secrets.empty()) << url;
  }
  for (const auto& [endpoint, is_sent] : {std::pair{"http://hub.example", false},
                                          {"https://hub.example/hf/", true},
                                          {"http://localhost:8080", true},
                                          {"http://127.0.0.9:8080", true}}) {
    environment.set("HF_ENDPOINT", endpoint);
    EXPECT_EQ(hub_options().token.empty(), !is_sent) << endpoint;
  }
}

TEST(HubToken, ErrorsDoNotShowInvalidToken) {
  StoreEnvironment environment;
  environment.set("HF_TOKEN", "hf_secret\nX-Other: header");
  EXPECT_EQ(message_of(hub_options, ErrorCode::kUsage).find("secret"), std::string::npos);
  for (const char* const endpoint :
       {"huggingface.co", "ftp://x", "https://user@hub", "https://a/?b"}) {
    environment.set("HF_TOKEN", std::nullopt);
    environment.set("HF_ENDPOINT", endpoint);
    EXPECT_THROW(hub_options(), Error) << endpoint;
  }
}

// A commit of a revision in the Hub's own cache.
std::string cached_commit(const std::string& name) {
  return hub_cached_commit(parse_hub_name(name));
}

TEST(HubCache, FindsFilesByRevision) {
  StoreEnvironment environment;
  const std::filesystem::path model = ".cache/huggingface/hub/models--org--name";
  const std::string commit = "@" + kHubCommit;
  EXPECT_EQ(hub_local_copy("hf://org/name" + commit + "/a/w"), "");
  EXPECT_EQ(cached_commit("hf://org/name"), "");
  environment.write(model / "blobs/5", "weights");
  environment.write(model / "refs/main", kHubCommit);
  environment.write(model / "refs/refs/pr/1", kHubCommit);
  const std::filesystem::path file = environment.home() / model / "snapshots" / kHubCommit / "a/w";
  std::filesystem::create_directories(file.parent_path());
  std::filesystem::create_symlink("../../../blobs/5", file);
  EXPECT_EQ(hub_local_copy("hf://org/name" + commit + "/a/w"), file);
  for (const char* const revision : {"", "@main", "@refs/pr/1"}) {
    EXPECT_EQ(cached_commit("hf://org/name" + std::string(revision)), kHubCommit) << revision;
  }
  EXPECT_EQ(cached_commit("hf://org/name@other"), "");
  EXPECT_EQ(cached_commit("hf://org/name@refs/pr"), "");  // a directory
  EXPECT_EQ(hub_local_copy("hf://org/name" + commit + "/a"), "");
  EXPECT_EQ(hub_local_copy("hf://org/name" + commit), "");
  EXPECT_EQ(hub_local_copy("hf://org/name/a/w"), "") << "no commit";
  EXPECT_EQ(hub_local_copy("hf://org/other" + commit + "/a/w"), "");
  for (const char* const name : {"HUGGINGFACE_HUB_CACHE", "HF_HUB_CACHE"}) {
    environment.set(name, "/nowhere");
    EXPECT_EQ(hub_local_copy("hf://org/name" + commit + "/a/w"), "");
    environment.set(name, (environment.home() / ".cache/huggingface/hub").string());
    EXPECT_EQ(hub_local_copy("hf://org/name" + commit + "/a/w"), file);
  }
  std::filesystem::remove(environment.home() / model / "blobs/5");  // a link to nothing
  EXPECT_EQ(hub_local_copy("hf://org/name" + commit + "/a/w"), "");
}

TEST(HubCache, RejectsNamesAndRefsPointingOutside) {
  StoreEnvironment environment;
  const std::filesystem::path hub = ".cache/huggingface/hub";
  environment.write("secret", "s");
  environment.write(hub / "models--org--name/snapshots/x/f", "f");
  environment.write(hub / "models--org--name/refs/main", "../../../../../..");
  environment.write(hub / "models--org--name/refs/short", "x");
  for (const char* const revision : {"", "@short"}) {
    EXPECT_EQ(cached_commit("hf://org/name" + std::string(revision)), "") << revision;
  }
  for (const std::string& name :
       std::vector<std::string>{"hf://org/name/secret", "hf://org/name@..%2Fsnapshots%2Fx/f",
                                "hf://org/name@" + kHubCommit + "/../../../../../../secret",
                                "hf://org/..", "https://org/name/f", ""}) {
    EXPECT_EQ(hub_local_copy(name), "") << name;
  }
  environment.set("HOME", std::nullopt);
  EXPECT_EQ(hub_local_copy("hf://org/name@" + kHubCommit + "/f"), "");
  EXPECT_EQ(cached_commit("hf://org/name"), "");
}

constexpr auto kOthersWrite = std::filesystem::perms::others_write;
constexpr auto kGroupWrites = std::filesystem::perms::group_write;
constexpr uid_t kOtherUser = 65534;

class HubCopy : public ::testing::Test {
 protected:
  HubCopy() {
    ::umask(S_IWGRP | S_IWOTH);
    write(kHubCommit, "weights");
    environment_.write(kModel / "refs/main", kHubCommit);
    link("../../blobs/" + kDigest);
  }

  // A commit of the model, with one file that is not a link.
  void write(const std::string& commit, const std::string& text) const {
    environment_.write(kModel / "blobs" / kDigest, text);
    environment_.write(kModel / "snapshots" / commit / "w", text);
  }
  std::filesystem::path model() const { return environment_.home() / kModel; }
  std::filesystem::path path() const { return model() / "snapshots" / kHubCommit / "w"; }
  std::filesystem::path blob() const { return model() / "blobs" / kDigest; }
  void link(const std::filesystem::path& target) const {
    std::filesystem::remove(path());
    std::filesystem::create_symlink(target, path());
  }
  std::string refusal() const {
    return message_of([this] { open_in_hub_cache(path()); });
  }
  void expect_refused(const std::string& part) const {
    EXPECT_NE(refusal().find(part), std::string::npos) << refusal();
  }
  SourceOptions offline() {
    return {.cache_dir = (environment_.home() / "cache").string(),
            .offline = true,
            .warn = [this](const std::string& line) { warnings_ += line + "\n"; }};
  }

  const std::filesystem::path kModel = ".cache/huggingface/hub/models--org--name";
  const std::string kDigest = std::string(64, 'a');
  const std::string kName = "hf://org/name@" + kHubCommit + "/w";
  StoreEnvironment environment_;
  std::string warnings_;
};

TEST_F(HubCopy, PathAndBlobGiveNameTokenAndDigest) {
  const auto object = hub_copy_object(kName, open_in_hub_cache(path()).path);
  ASSERT_TRUE(object);
  EXPECT_EQ(object->name, kName);
  EXPECT_EQ(object->token, "hf-" + kDigest);
  EXPECT_EQ(object->sha256, kDigest);
  const std::string sha1(40, 'b');
  environment_.write(kModel / "blobs" / sha1, "weights");
  link("../../blobs/" + sha1);
  const std::string path_of_sha1 = open_in_hub_cache(path()).path;
  EXPECT_EQ(hub_copy_object(kName, path_of_sha1)->token, "hf-git-sha1-" + sha1);
  EXPECT_EQ(hub_copy_object(kName, path_of_sha1)->sha256, "");
  std::filesystem::remove(path());
  write_file(path(), "weights");  // copied without its link
  EXPECT_FALSE(hub_copy_object(kName, open_in_hub_cache(path()).path));
}

TEST_F(HubCopy, RejectsLinkOutOfCache) {
  const std::string rule = "a symbolic link points out of ";
  link(environment_.write("outside", "weights"));
  expect_refused(rule);
  // Out of the cache and back.
  std::filesystem::create_symlink(blob(), environment_.home() / "back");
  link(environment_.home() / "back");
  expect_refused(rule);
  link("../../../../../../back");
  expect_refused(rule);
  link(path());
  expect_refused("Too many levels of symbolic links");
  link("../../blobs/" + kDigest);
  std::filesystem::rename(model(), environment_.home() / "model");
  std::filesystem::create_directory_symlink(environment_.home() / "model", model());
  expect_refused(rule);
}

TEST_F(HubCopy, FollowsLinkInsideCache) {
  for (const std::string& target : std::vector<std::string>{
           "../../blobs/" + kDigest, blob(), "../../../models--org--name/./blobs//" + kDigest}) {
    link(target);
    EXPECT_EQ(open_in_hub_cache(path()).path, std::filesystem::canonical(blob())) << target;
  }
  // The cache itself may have another name.
  std::filesystem::create_directory_symlink(model().parent_path(), environment_.home() / "other");
  environment_.set("HF_HUB_CACHE", (environment_.home() / "other").string());
  EXPECT_EQ(open_in_hub_cache(hub_local_copy(kName)).path, std::filesystem::canonical(blob()));
}

TEST_F(HubCopy, RejectsFileOrDirectoryWritableByOtherUser) {
  const std::filesystem::path through = model() / "through";
  std::filesystem::create_directory(through);
  std::filesystem::create_symlink("../blobs", through / "blobs");
  link("../../through/blobs/" + kDigest);
  for (const std::filesystem::path& part :
       {blob(), blob().parent_path(), through, path().parent_path(), model(),
        environment_.home() / ".cache/huggingface/hub"}) {
    std::filesystem::permissions(part, kOthersWrite, std::filesystem::perm_options::add);
    expect_refused(part.string() + ": other users may write to it");
    std::filesystem::permissions(part, kOthersWrite, std::filesystem::perm_options::remove);
    if (::geteuid() != 0) continue;
    ASSERT_EQ(::chown(part.c_str(), 0, kOtherUser), 0);
    std::filesystem::permissions(part, kGroupWrites, std::filesystem::perm_options::add);
    expect_refused(part.string() + ": other users may write to it");
    std::filesystem::permissions(part, kGroupWrites, std::filesystem::perm_options::remove);
    ASSERT_EQ(::chown(part.c_str(), kOtherUser, 0), 0);
    expect_refused(part.string() + ": belongs to another user");
    ASSERT_EQ(::chown(part.c_str(), 0, 0), 0);
  }
  EXPECT_NO_THROW(open_in_hub_cache(path()));
}

// Whether the group of this process has no other user, as far as /etc/passwd and /etc/group say.
bool has_private_group() {
  const group* const entry = ::getgrgid(::getegid());
  const passwd* const user = ::getpwuid(::geteuid());
  if (entry == nullptr || user == nullptr) return false;
  if (std::string(entry->gr_name) != user->pw_name || *entry->gr_mem != nullptr) return false;
  unsigned users = 0;
  ::setpwent();
  while (const passwd* const other = ::getpwent()) users += other->pw_gid == ::getegid();
  ::endpwent();
  return users == 1;
}

// The umask is 002 where each user has a group.
TEST_F(HubCopy, AcceptsFileWritableByPrivateGroup) {
  if (!has_private_group()) GTEST_SKIP() << "this user's group has other users";
  for (const std::filesystem::path& part : {blob(), blob().parent_path(), model()}) {
    std::filesystem::permissions(part, kGroupWrites, std::filesystem::perm_options::add);
  }
  EXPECT_NO_THROW(open_in_hub_cache(path()));
  // acl(5): version 2, and {tag, rights, user}: the owner, another user, the group, mask, others.
  constexpr std::uint32_t kNone = 0xFFFFFFFF;
  const std::array<std::uint32_t, 11> list{2,          6U << 16 | 1,    kNone, 6U << 16 | 2,
                                           kOtherUser, 4U << 16 | 4,    kNone, 6U << 16 | 0x10,
                                           kNone,      4U << 16 | 0x20, kNone};
  if (::setxattr(blob().c_str(), "system.posix_acl_access", list.data(), sizeof list, 0) != 0) {
    GTEST_SKIP() << "no access control lists on this file system";
  }
  expect_refused(blob().string() + ": other users may write to it");
}

TEST_F(HubCopy, RejectsFileThatReplacedCheckedFile) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root makes files of other users";
  const std::filesystem::path good = model() / "good";
  const std::filesystem::path bad = model() / "bad";
  std::atomic<bool> stop = false;
  std::jthread swaps([&] {
    while (!stop) {
      write_file(bad, "changed");
      EXPECT_EQ(::chown(bad.c_str(), kOtherUser, kOtherUser), 0);
      std::filesystem::rename(bad, blob());
      write_file(good, "weights");
      std::filesystem::rename(good, blob());
    }
  });
  unsigned opened = 0;
  for (unsigned i = 0; i < 5'000; ++i) {
    try {
      const HubCacheFile file = open_in_hub_cache(path());
      ++opened;
      if (stat_of(file.fd.get(), file.path).st_uid == 0) continue;
      ADD_FAILURE() << "a file of another user after " << i << " attempts";
      break;
    } catch (const Error&) {
      // The other file, or a file that was replaced.
    }
  }
  stop = true;
  EXPECT_GT(opened, 0U);
}

TEST_F(HubCopy, OfflineRevisionKeepsItsCommit) {
  const std::string second(40, 'd');
  write(second, "others");
  Sources sources(offline());
  EXPECT_EQ(sources.pinned("hf://org/name"), "hf://org/name@" + kHubCommit);
  environment_.write(kModel / "refs/main", second);
  EXPECT_EQ(sources.pinned("hf://org/name@main/w"), kName);
  EXPECT_EQ(sources.open("hf://org/name/w")->path(), kName);
  // The process that loads again without asking has the same commit.
  Sources other(offline());
  other.use(sources.resolutions({}));
  EXPECT_EQ(other.open("hf://org/name/w")->path(), kName);
  sources.forget();
  EXPECT_EQ(sources.pinned("hf://org/name"), "hf://org/name@" + second);
  EXPECT_EQ(warnings_, "");
}

TEST_F(HubCopy, IgnoresRefWritableByOtherUser) {
  const std::filesystem::path ref = model() / "refs/main";
  for (const std::filesystem::path& part : {ref, ref.parent_path()}) {
    warnings_.clear();
    std::filesystem::permissions(part, kOthersWrite, std::filesystem::perm_options::add);
    Sources sources(offline());
    message_of([&] { sources.open("hf://org/name/w"); }, ErrorCode::kHidden);
    EXPECT_NE(warnings_.find(part.string() + ": the copy in the Hub's own cache is not used"),
              std::string::npos)
        << warnings_;
    EXPECT_EQ(sources.open(kName)->path(), kName) << "a name with a commit needs no ref";
    std::filesystem::permissions(part, kOthersWrite, std::filesystem::perm_options::remove);
  }
}

// A file of the Hub's own cache, of the model that the test's Hub has.
class CopiesOfHub : public Hub {
 protected:
  std::unique_ptr<const Source> open(const std::string& file, const std::string& etag,
                                     const std::string& text) {
    ::umask(S_IWGRP | S_IWOTH);
    const std::filesystem::path model = ".cache/huggingface/hub/models--org--name";
    const std::filesystem::path blob = environment_.write(model / "blobs" / etag, text);
    const std::filesystem::path snapshot =
        environment_.home() / model / "snapshots" / kHubCommit / file;
    std::filesystem::create_directories(snapshot.parent_path());
    std::filesystem::remove(snapshot);
    std::filesystem::create_symlink(blob, snapshot);
    return sources_.open("hf://org/name/" + file);
  }

  std::string warnings_;
  Sources sources_{{.cache_dir = (environment_.home() / "cache").string(),
                    .warn = [this](const std::string& line) { warnings_ += line + "\n"; }}};
};

TEST_F(CopiesOfHub, CopyOfOtherDigestIsIgnored) {
  const struct {
    std::string file, etag, text;
    bool is_used;
  } rows[] = {
      {"model.safetensors", kHubSha256, kHubWeights, true},
      {"model.safetensors", std::string(64, 'a'), kHubWeights, false},
      {"config.json", kHubBlob, kHubConfig, true},
      {"config.json", std::string(40, 'a'), kHubConfig, false},
      // The name of the blob is a digest of another kind: only the size can be compared.
      {"config.json", std::string(64, 'a'), kHubConfig, true},
      {"config.json", kHubBlob, "{}", false},
  };
  for (const auto& row : rows) {
    warnings_.clear();
    const auto source = open(row.file, row.etag, row.text);
    EXPECT_EQ(source->local_file() != nullptr, row.is_used) << row.file << " " << row.etag;
    EXPECT_EQ(warnings_.empty(), row.is_used) << warnings_;
  }
}

// The process that loads again reads the file itself, which may have changed: it must not mix bytes
// of two versions.
TEST_F(CopiesOfHub, ResolutionsContainNoBytesOfCopy) {
  const auto source = open("model.safetensors", kHubSha256, kHubWeights);
  const auto read = [](Sources& sources, const Source& of) {
    std::string bytes(10, '\0');
    EXPECT_EQ(sources.read(of, 5, std::as_writable_bytes(std::span(bytes))), 0);
    return bytes;
  };
  EXPECT_EQ(read(sources_, *source), std::string(10, 'w'));
  EXPECT_EQ(sources_.read_file("hf://org/name/model.safetensors", 1000), kHubWeights);
  const std::string found = sources_.resolutions({});
  EXPECT_EQ(found.find(std::string(10, 'w')), std::string::npos);

  write_file(source->local_file()->file_path(), std::string(1000, 'x'));
  Sources again({.cache_dir = (environment_.home() / "cache").string()});
  again.use(found);
  EXPECT_EQ(read(again, *again.open("hf://org/name/model.safetensors")), std::string(10, 'x'));
}

}  // namespace
}  // namespace stfs::test
