// Objects of S3: which requests are sent, how responses are interpreted, and which hosts get
// credentials. real_servers_test.py checks the same with Ceph's gateway.
#include "core/remote/stores/s3.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/remote/stores/aws_profiles.h"
#include "core/remote/stores/s3_credentials.h"
#include "tests/remote/remote_support.h"
#include "tests/support/http_server.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace stfs::test {
namespace {

constexpr std::uint64_t kBlock = 256 * 1024;
const std::string kSecret = "sEcReT/of+the=key";
const std::string kToken = "ToKeN/of+the=session";

class AwsEnvironment : public StoreEnvironment {
 public:
  void set_keys(const std::string& token = "") {
    set("AWS_ACCESS_KEY_ID", "AKID");
    set("AWS_SECRET_ACCESS_KEY", kSecret);
    if (!token.empty()) set("AWS_SESSION_TOKEN", token);
  }
};

// Answers requests without a network, so that a test can use remote hosts.
class AnsweringHttp : public Http {
 public:
  using Answer = std::function<HttpResponse(const HttpRequest&)>;
  explicit AnsweringHttp(Answer answer) : Http(Options{}), answer_(std::move(answer)) {}

  void start(HttpRequest request, HttpCallbacks callbacks) override {
    HttpResponse answer;
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
      answer = answer_(request);
    }
    answer.head.url = request.url;
    bool is_wanted = !callbacks.head || callbacks.head(answer.head);
    if (is_wanted && callbacks.data) {
      is_wanted = callbacks.data(std::as_bytes(std::span(answer.body)));
    }
    callbacks.end({.error = is_wanted ? 0 : ECANCELED, .text = {}});
  }
  std::vector<HttpRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  Answer answer_;
  mutable std::mutex mutex_;
  std::vector<HttpRequest> requests_;
};

HttpResponse object(const std::string& bytes, const std::string& etag = "\"e1\"",
                    const std::string& version_id = "") {
  HttpResponse answer;
  const std::size_t length = std::min<std::size_t>(bytes.size(), kBlock);
  answer.head.status = 206;
  answer.head.headers = {{"content-range", "bytes 0-" + std::to_string(length - 1) + "/" +
                                               std::to_string(bytes.size())},
                         {"content-length", std::to_string(length)},
                         {"last-modified", "Sat, 01 Feb 2025 10:00:00 GMT"}};
  if (!etag.empty()) answer.head.headers.emplace_back("etag", etag);
  if (!version_id.empty()) answer.head.headers.emplace_back("x-amz-version-id", version_id);
  answer.body = bytes.substr(0, length);
  return answer;
}

HttpResponse text_answer(const std::string& body, int status = 200) {
  HttpResponse answer;
  answer.head.status = status;
  answer.body = body;
  return answer;
}

HttpResponse refused(int status, const std::string& code, const std::string& message = "") {
  return text_answer("<?xml version=\"1.0\"?>\n<Error><Code>" + code + "</Code><Message>" +
                         message + "</Message></Error>",
                     status);
}

bool has_secret(const HttpRequest& request, const std::string& name) {
  return std::ranges::any_of(
      request.secrets, [&](const std::string& header) { return header.starts_with(name + ": "); });
}

TEST(S3, FindsObjectWithOneSignedRequestForFirstBlock) {
  AwsEnvironment environment;
  environment.set_keys(kToken);
  environment.set("AWS_CA_BUNDLE", "/ca.pem");
  const std::string bytes(kBlock + 100, 'x');
  AnsweringHttp http([&](const HttpRequest&) { return object(bytes, "\"e1\"", "v.1"); });
  const auto store = make_s3_store(http, false);
  const Found found = store->find("s3://bucket/a/model.safetensors", nullptr);
  EXPECT_EQ(found.version.name, "s3://bucket/a/model.safetensors");
  EXPECT_EQ(found.version.size, bytes.size());
  EXPECT_EQ(found.version.mtime.tv_sec, 1738404000);
  EXPECT_EQ(found.version.etag, "\"e1\"");
  EXPECT_EQ(found.version.version_id, "v.1");
  EXPECT_FALSE(found.version.is_weak);
  EXPECT_EQ(found.version.token.size(), 3 + 64);
  EXPECT_TRUE(found.version.token.starts_with("s3-"));
  EXPECT_EQ(found.first, bytes.substr(0, kBlock));
  ASSERT_EQ(http.requests().size(), 1U);
  const HttpRequest request = http.requests()[0];
  EXPECT_EQ(request.url, "https://bucket.s3.us-east-1.amazonaws.com/a/model.safetensors");
  EXPECT_EQ(request.range->length, kBlock);
  EXPECT_TRUE(has_secret(request, "Authorization"));
  EXPECT_TRUE(has_secret(request, "x-amz-security-token"));
  EXPECT_TRUE(request.headers.empty());
  EXPECT_FALSE(request.follow);
  EXPECT_EQ(request.ca_file, "/ca.pem");
}

TEST(S3, TokenDistinguishesObjectsVersionsAndEndpoints) {
  AwsEnvironment environment;
  std::string etag = "\"e1\"", version_id;
  AnsweringHttp http([&](const HttpRequest&) { return object("bytes", etag, version_id); });
  std::set<std::string> tokens;
  const auto add = [&](const std::string& name) {
    tokens.insert(make_s3_store(http, false)->find(name, nullptr).version.token);
  };
  add("s3://bucket/a");
  add("s3://bucket/a");
  EXPECT_EQ(tokens.size(), 1U);
  add("s3://bucket/b");
  etag = "\"e2\"";
  add("s3://bucket/a");
  version_id = "v1";
  add("s3://bucket/a");
  environment.set("AWS_ENDPOINT_URL_S3", "https://other.test");
  add("s3://bucket/a");
  EXPECT_EQ(tokens.size(), 5U);
}

TEST(S3, IgnoresWeakETagAndVersionNull) {
  AwsEnvironment environment;
  AnsweringHttp http([&](const HttpRequest&) { return object("bytes", "W/\"e1\"", "null"); });
  const auto found = make_s3_store(http, false)->find("s3://bucket/a", nullptr);
  EXPECT_EQ(found.version.etag, "");
  EXPECT_EQ(found.version.version_id, "");
  EXPECT_TRUE(found.version.is_weak);
}

TEST(S3, FindsEmptyObjectWithoutRange) {
  AwsEnvironment environment;
  AnsweringHttp http([&](const HttpRequest& request) {
    if (request.range) return refused(416, "InvalidRange");
    HttpResponse answer = text_answer("");
    answer.head.headers = {{"etag", "\"e\""}, {"content-length", "0"}};
    return answer;
  });
  const Found found = make_s3_store(http, false)->find("s3://bucket/empty", nullptr);
  EXPECT_EQ(found.version.size, 0U);
  EXPECT_EQ(found.version.etag, "\"e\"");
}

TEST(S3, ConfirmsKnownVersionWithoutBytes) {
  AwsEnvironment environment;
  std::string now = "v1";
  AnsweringHttp http([&](const HttpRequest& request) {
    const bool is_conditional = !request.headers.empty();
    if (is_conditional) {
      EXPECT_EQ(request.headers[0], "If-None-Match: \"e1\"");
      HttpResponse answer = text_answer("", 304);
      answer.head.headers = {{"etag", "\"e1\""}, {"x-amz-version-id", now}};
      return answer;
    }
    return object("bytes", "\"e1\"", now);
  });
  const auto store = make_s3_store(http, false);
  const RemoteVersion known = store->find("s3://bucket/a", nullptr).version;
  const Found again = store->find("s3://bucket/a", &known);
  EXPECT_EQ(again.version.token, known.token);
  EXPECT_EQ(again.first, "");
  EXPECT_EQ(http.requests().size(), 2U);
  now = "v2";  // rewritten with the same bytes
  EXPECT_EQ(store->find("s3://bucket/a", &known).version.version_id, "v2");
}

TEST(S3, DoesNotConfirmVersionOfOtherEndpoint) {
  AwsEnvironment environment;
  AnsweringHttp http([&](const HttpRequest& request) {
    EXPECT_TRUE(request.headers.empty());
    return object("bytes");
  });
  const RemoteVersion known = make_s3_store(http, false)->find("s3://bucket/a", nullptr).version;
  environment.set("AWS_ENDPOINT_URL", "https://other.test");
  EXPECT_NE(make_s3_store(http, false)->find("s3://bucket/a", &known).version.token, known.token);
}

TEST(S3, FollowsBucketToItsRegion) {
  AwsEnvironment environment;
  environment.set_keys();
  AnsweringHttp http([&](const HttpRequest& request) {
    if (request.url.find("eu-west-3") != std::string::npos) return object("bytes");
    HttpResponse answer = refused(301, "PermanentRedirect");
    answer.head.headers = {{"x-amz-bucket-region", "eu-west-3"}, {"location", "https://evil.test"}};
    return answer;
  });
  const auto store = make_s3_store(http, false);
  const Found found = store->find("s3://bucket/a", nullptr);
  ASSERT_EQ(http.requests().size(), 2U);
  EXPECT_NE(http.requests()[1].secrets.at(0).find("/eu-west-3/s3/aws4_request"), std::string::npos);
  // Another process has not sent a request yet.
  const auto other = make_s3_store(http, false);
  const auto remote = other->remote(found.version);
  HttpHead head;
  head.status = 301;
  head.headers = {{"x-amz-bucket-region", "eu-west-3"}};
  EXPECT_EQ(remote->judge(head, {0, 5}).kind, ResponseVerdict::Kind::kRetry);
  EXPECT_TRUE(
      remote->request({0, 5}).url.starts_with("https://bucket.s3.eu-west-3.amazonaws.com/"));
}

TEST(S3, RejectsInvalidRegionOfServer) {
  AwsEnvironment environment;
  AnsweringHttp http([&](const HttpRequest&) {
    HttpResponse answer = refused(301, "PermanentRedirect");
    answer.head.headers = {{"x-amz-bucket-region", "evil.test/"}};
    return answer;
  });
  expect_error([&] { make_s3_store(http, false)->find("s3://bucket/a", nullptr); },
               "set AWS_REGION");
  EXPECT_EQ(http.requests().size(), 1U);
}

TEST(S3, BuildsUrlFromBucketAndEndpoint) {
  AwsEnvironment environment;
  AnsweringHttp http([&](const HttpRequest&) { return object("bytes"); });
  const auto url = [&](const std::string& name) {
    make_s3_store(http, true)->find(name, nullptr);
    return http.requests().back().url;
  };
  environment.set("AWS_REGION", "eu-central-1");
  EXPECT_EQ(url("s3://a-b/k"), "https://a-b.s3.eu-central-1.amazonaws.com/k");
  EXPECT_EQ(url("s3://a.b/k"), "https://s3.eu-central-1.amazonaws.com/a.b/k");
  EXPECT_EQ(url("s3://A_b/k"), "https://s3.eu-central-1.amazonaws.com/A_b/k");
  environment.set("AWS_REGION", "cn-north-1");
  EXPECT_EQ(url("s3://a-b/k"), "https://a-b.s3.cn-north-1.amazonaws.com.cn/k");
  environment.set("AWS_ENDPOINT_URL", "https://minio.test:9000/s3/");
  EXPECT_EQ(url("s3://a-b/k"), "https://minio.test:9000/s3/a-b/k");
  environment.set("AWS_ENDPOINT_URL_S3", "http://store.test");
  EXPECT_EQ(url("s3://a-b/k"), "http://store.test/a-b/k");
}

TEST(S3, AddressingStyleOfOptionOverridesProfile) {
  struct Case {
    const char *option, *profile, *endpoint, *bucket, *url;
  };
  const Case cases[] = {
      {"virtual", "", "https://oss.test:9000", "b", "https://b.oss.test:9000/k"},
      {"virtual", "path", "https://oss.test/base/", "b", "https://b.oss.test/base/k"},
      {"virtual", "", "https://b.oss.test", "b", "https://b.oss.test/k"},
      {"virtual", "", "http://localhost:90", "b", "http://b.localhost:90/k"},
      {"virtual", "", "", "a.b", "https://a.b.s3.us-east-1.amazonaws.com/k"},
      {"path", "virtual", "", "b", "https://s3.us-east-1.amazonaws.com/b/k"},
      {"auto", "virtual", "https://oss.test", "b", "https://oss.test/b/k"},
      {"", "virtual", "https://oss.test", "b", "https://b.oss.test/k"},
      {"", "Auto", "", "b", "https://b.s3.us-east-1.amazonaws.com/k"},
      {"virtual", "", "https://127.0.0.1:9000", "b", "the endpoint is an address"},
      {"virtual", "", "https://[::1]:9000", "b", "the endpoint is an address"},
      {"virtual", "", "https://oss.test", "A_b", "the bucket's name is not a valid host name"},
      {"", "dns", "https://oss.test", "b",
       "addressing_style \"dns\": expected path, virtual or auto"},
  };
  for (const Case& c : cases) {
    AwsEnvironment environment;
    environment.write(".aws/config",
                      std::string("[default]\ns3 =\n  addressing_style = ") + c.profile + "\n");
    environment.set("AWS_ENDPOINT_URL", c.endpoint);
    AnsweringHttp http([&](const HttpRequest&) { return object("bytes"); });
    const auto store = make_s3_store(http, false, {.addressing = c.option});
    const std::string name = std::string("s3://") + c.bucket + "/k";
    if (std::string_view(c.url).starts_with("http")) {
      EXPECT_EQ(store->remote(store->find(name, nullptr).version)->request({0, 1}).url, c.url);
      EXPECT_EQ(http.requests().at(0).url, c.url);
    } else {
      expect_error([&] { store->find(name, nullptr); }, c.url);
      EXPECT_TRUE(http.requests().empty());
    }
  }
}

TEST(S3, HonoursUnsignedAndRequesterPaysSettings) {
  struct Case {
    S3Options options;
    const char *no_sign, *payer;
    bool is_signed, pays;
  };
  const Case cases[] = {{{}, "", "", true, false},
                        {{.is_unsigned = true}, "", "", false, false},
                        {{}, "YES", "", false, false},
                        {{}, "no", "bucketowner", true, false},
                        {{.requester_pays = true}, "", "", true, true},
                        {{}, "", "requester", true, true}};
  for (const Case& c : cases) {
    AwsEnvironment environment;
    environment.set_keys(kToken);
    environment.set("AWS_NO_SIGN_REQUEST", c.no_sign);
    environment.set("AWS_REQUEST_PAYER", c.payer);
    AnsweringHttp http([&](const HttpRequest& request) {
      return request.range ? object("bytes") : text_answer("<ListBucketResult/>");
    });
    const auto store = make_s3_store(http, false, c.options);
    store->remote(store->find("s3://b/k", nullptr).version)->request({0, 1});
    store->list("s3://b");
    for (const HttpRequest& request : http.requests()) {
      EXPECT_EQ(has_secret(request, "Authorization"), c.is_signed);
      EXPECT_EQ(has_secret(request, "x-amz-security-token"), c.is_signed);
      EXPECT_EQ(std::ranges::count(request.headers, "x-amz-request-payer: requester"), c.pays);
      if (!c.is_signed) continue;
      EXPECT_EQ(request.secrets[0].find(";x-amz-request-payer") != std::string::npos, c.pays)
          << request.secrets[0];
    }
    EXPECT_EQ(http.requests().size(), 2U);
  }
}

TEST(S3, WholeTextAfterBucketIsKey) {
  AwsEnvironment environment;
  AnsweringHttp http([&](const HttpRequest&) { return object("bytes"); });
  const auto store = make_s3_store(http, false);
  const std::string host = "https://b.s3.us-east-1.amazonaws.com";
  for (const auto& [key, path] :
       std::map<std::string, std::string>{{"a?versionId=1#x", "a%3FversionId%3D1%23x"},
                                          {"100%25", "100%2525"},
                                          {"/a//b", "/a//b"},
                                          {"a/../b", "a/../b"}}) {
    store->find("s3://b/" + key, nullptr);
    EXPECT_EQ(http.requests().back().url, host + "/" + path);
  }
}

TEST(S3, RejectsNameWithoutBucket) {
  AwsEnvironment environment;
  AnsweringHttp http([&](const HttpRequest&) { return object("bytes"); });
  const auto store = make_s3_store(http, false);
  for (const std::string name : {"s3://", "s3:///k", "s3://a:b/k", "s3://a b/k", "s3://../k"}) {
    message_of([&] { store->find(name, nullptr); }, ErrorCode::kUsage);
  }
  const std::string refusal =
      message_of([&] { store->find("s3://AKIA:sec/ret@bucket/k", nullptr); }, ErrorCode::kUsage);
  EXPECT_EQ(refusal.find("ret"), std::string::npos) << refusal;
  expect_error([&] { store->find("s3://b/", nullptr); }, "a bucket, not an object");
  EXPECT_TRUE(http.requests().empty());
}

TEST(S3, RefusalQuotesServerAndSaysWhatToDo) {
  struct Case {
    int status;
    const char *code, *message;
    bool has_keys;
    ErrorCode kind;
    const char* text;  // after "s3://b/k: "
  };
  constexpr const char* kKeys =
      "these credentials need s3:GetObject, and s3:ListBucket for a directory; without it, a "
      "missing name also gives this response; if the requester pays, use -o s3_requester_pays";
  const std::string denied = R"(Permission denied: the server answered 403 AccessDenied: )";
  const std::string keys = denied + "\"Access Denied\": " + kKeys;
  const Case cases[] = {
      {404, "NoSuchKey", "", false, ErrorCode::kAbsent, "no such object"},
      {404, "NoSuchBucket", "", false, ErrorCode::kAbsent, "no such bucket"},
      {403, "AccessDenied", "", false, ErrorCode::kHidden,
       "Permission denied: the server answered 403 AccessDenied: no AWS credentials were found: "
       "set "
       "AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"},
      {403, "AccessDenied", "Access Denied", true, ErrorCode::kHidden, keys.c_str()},
      {403, "AccessDenied",
       "User: me is not authorized to perform: kms:Decrypt on resource: k because no policy allows",
       true, ErrorCode::kHidden,
       "Permission denied: the server answered 403 AccessDenied: \"User: me is not authorized to "
       "perform: kms:Decrypt on resource: k because no policy allows\""},
      {403, "AccessDenied", "with an explicit deny in a VPC endpoint policy", true,
       ErrorCode::kHidden,
       "Permission denied: the server answered 403 AccessDenied: \"with an explicit deny in a VPC "
       "endpoint policy\""},
      {400, "InvalidRequest", "The object was stored using a form of Server Side Encryption.", true,
       ErrorCode::kUnreadable,
       "the server answered 400 InvalidRequest: \"The object was stored using a form of Server "
       "Side "
       "Encryption.\": stfs cannot send the customer's key of an object (SSE-C): copy it without "
       "one"},
      {403, "AccountProblem", "Contact billing.", true, ErrorCode::kUnreadable,
       "Permission denied: the server answered 403 AccountProblem: \"Contact billing.\""},
      {403, "SecondLevelDomainForbidden", "Please use virtual hosted style to access.", true,
       ErrorCode::kUnreadable,
       "Permission denied: the server answered 403 SecondLevelDomainForbidden: \"Please use "
       "virtual "
       "hosted style to access.\": use -o s3_addressing=virtual"},
      {400, "PathStyleDomainForbidden", "must use COS virtual-styled domain.", true,
       ErrorCode::kUnreadable,
       "the server answered 400 PathStyleDomainForbidden: \"must use COS virtual-styled domain.\": "
       "use -o s3_addressing=virtual"},
      {403, "SignatureDoesNotMatch", "m", true, ErrorCode::kUnreadable,
       "Permission denied: the server answered 403 SignatureDoesNotMatch: \"m\": the secret key "
       "does not belong to the access key"},
      {403, "RequestTimeTooSkewed", "m", true, ErrorCode::kUnreadable,
       "Permission denied: the server answered 403 RequestTimeTooSkewed: \"m\": set the clock of "
       "this machine"},
      {403, "InvalidObjectState", "m", true, ErrorCode::kUnreadable,
       "the server answered 403 InvalidObjectState: \"m\": the object is archived: restore it "
       "first"},
      {405, "MethodNotAllowed", "", true, ErrorCode::kUnreadable,
       "the server answered 405 MethodNotAllowed"},
      {405, "\x1b]0;x", "a\x1b[31m\n\n b\x9b", true, ErrorCode::kUnreadable,
       "the server answered 405: \"a\\x1b[31m b\\x9b\""},
  };
  for (const Case& c : cases) {
    AwsEnvironment environment;
    if (c.has_keys) environment.set_keys();
    AnsweringHttp http([&](const HttpRequest&) { return refused(c.status, c.code, c.message); });
    EXPECT_EQ(message_of([&] { make_s3_store(http, false)->find("s3://b/k", nullptr); }, c.kind),
              std::string("s3://b/k: ") + c.text);
  }
}

// A server may echo the request in its response.
TEST(S3, RefusalMasksSecretsEchoedByServer) {
  AwsEnvironment environment;
  environment.set_keys(kToken);
  AnsweringHttp http([&](const HttpRequest& request) {
    std::string all = kSecret + " " + kToken;
    for (const std::string& header : request.secrets) all += " " + header;
    return refused(400, "InvalidRequest", all.substr(0, 190));
  });
  const std::string text =
      message_of([&] { make_s3_store(http, false)->find("s3://b/k", nullptr); });
  EXPECT_NE(text.find("400 InvalidRequest: \"*** ***"), std::string::npos) << text;
  for (const HttpRequest& request : http.requests()) {
    const std::string signature = request.secrets[0].substr(request.secrets[0].rfind('=') + 1);
    EXPECT_EQ(text.find(signature.substr(0, 20)), std::string::npos) << text;
  }
  EXPECT_EQ(text.find(kSecret), std::string::npos) << text;
  EXPECT_EQ(text.find(kToken), std::string::npos) << text;
}

TEST(S3, RejectsResponseOtherThanFirstBlock) {
  AwsEnvironment environment;
  HttpResponse answer;
  AnsweringHttp http([&](const HttpRequest&) { return answer; });
  const auto message = [&] {
    return message_of([&] { make_s3_store(http, false)->find("s3://b/k", nullptr); });
  };
  answer = object(std::string(1000, 'x'));
  answer.head.headers[0].second = "bytes 1-1000/1001";
  EXPECT_NE(message().find("another range"), std::string::npos);
  answer.head.headers[0].second = "bytes 0-999/18446744073709551616";
  EXPECT_NE(message().find("another range"), std::string::npos);
  answer.head.headers[0].second = "bytes 0-999/1001";
  EXPECT_NE(message().find("another range"), std::string::npos);
  answer = text_answer("whole object");
  EXPECT_NE(message().find("does not support range requests"), std::string::npos);
  answer.head.headers = {{"content-length", "11"}, {"etag", "\"e1\""}};
  EXPECT_NE(message().find("does not support range requests"), std::string::npos);
  answer.head.headers[0].second = "12";
  EXPECT_EQ(make_s3_store(http, false)->find("s3://b/k", nullptr).first, "whole object");
}

TEST(S3, RemoteRequestsOnlyItsVersion) {
  AwsEnvironment environment;
  environment.set_keys();
  AnsweringHttp http([&](const HttpRequest&) { return object("bytes", "\"e1\"", "v/1"); });
  const auto store = make_s3_store(http, false);
  const auto remote = store->remote(store->find("s3://b/k", nullptr).version);
  const HttpRequest request = remote->request({1, 2});
  EXPECT_EQ(request.url, "https://b.s3.us-east-1.amazonaws.com/k?versionId=v%2F1");
  EXPECT_EQ(request.headers, std::vector<std::string>{"If-Match: \"e1\""});
  HttpHead head;
  head.status = 412;
  EXPECT_EQ(remote->judge(head, {1, 2}).kind, ResponseVerdict::Kind::kChanged);
  head.status = 404;
  EXPECT_EQ(remote->judge(head, {1, 2}).kind, ResponseVerdict::Kind::kChanged);
  head.status = 503;
  EXPECT_EQ(remote->judge(head, {1, 2}).kind, ResponseVerdict::Kind::kRetry);
  head.status = 400;  // an expired token
  EXPECT_EQ(remote->judge(head, {1, 2}).kind, ResponseVerdict::Kind::kRenew);
  EXPECT_TRUE(remote->renew());
  EXPECT_NE(remote->request({1, 2}).url.find("?versionId="), std::string::npos);
}

TEST(S3, ETagPinsLatestWithoutPermissionForVersions) {
  AwsEnvironment environment;  // without credentials, as for a public bucket
  AnsweringHttp http([&](const HttpRequest&) { return object("bytes", "\"e1\"", "v1"); });
  const auto store = make_s3_store(http, false);
  const auto remote = store->remote(store->find("s3://b/k", nullptr).version);
  HttpHead head;
  head.status = 403;
  EXPECT_EQ(remote->judge(head, {0, 5}).kind, ResponseVerdict::Kind::kRenew);
  EXPECT_TRUE(remote->renew());
  const HttpRequest request = remote->request({0, 5});
  EXPECT_EQ(request.url, "https://b.s3.us-east-1.amazonaws.com/k");
  EXPECT_EQ(request.headers, std::vector<std::string>{"If-Match: \"e1\""});
}

TEST(S3, RenewsNothingWithoutCredentials) {
  AwsEnvironment environment;
  AnsweringHttp http([&](const HttpRequest&) { return object("bytes"); });
  const auto store = make_s3_store(http, false);
  const auto remote = store->remote(store->find("s3://b/k", nullptr).version);
  EXPECT_TRUE(remote->request({0, 5}).secrets.empty());
  EXPECT_FALSE(remote->renew());
}

TEST(S3, SendsKeysOverHttpOnlyToLoopbackOrOnRequest) {
  AwsEnvironment environment;
  environment.set_keys();
  environment.set("AWS_ENDPOINT_URL", "http://store.test");
  AnsweringHttp http([&](const HttpRequest&) { return object("bytes"); });
  expect_error([&] { make_s3_store(http, false)->find("s3://b/k", nullptr); },
               "the endpoint is http: use https, or -o insecure_http");
  EXPECT_TRUE(http.requests().empty());
  make_s3_store(http, true)->find("s3://b/k", nullptr);
  EXPECT_TRUE(has_secret(http.requests().back(), "Authorization"));
  environment.set("AWS_ENDPOINT_URL", "http://127.0.0.1:9000");
  make_s3_store(http, false)->find("s3://b/k", nullptr);
  EXPECT_TRUE(has_secret(http.requests().back(), "Authorization"));
}

TEST(S3, DoesNotFollowRedirectToOtherHost) {
  AwsEnvironment environment;
  environment.set_keys(kToken);
  HttpServer second([](const WebRequest&) { return WebAnswer{}; }, "127.0.0.2");
  HttpServer first([&](const WebRequest&) {
    return WebAnswer{.status = 307, .headers = {{"Location", second.url("/b/k")}}};
  });
  environment.set("AWS_ENDPOINT_URL", first.url(""));
  Http http(Http::Options{});
  const auto store = make_s3_store(http, false);
  message_of([&] { store->find("s3://b/k", nullptr); });
  message_of([&] { store->list("s3://b/k/"); });
  EXPECT_TRUE(second.requests().empty());
}

// Returns a page of a listing.
std::string page(const std::vector<std::string>& keys,
                 const std::vector<std::string>& prefixes = {}, const std::string& next = "") {
  std::string xml =
      "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
      "<EncodingType>url</EncodingType><IsTruncated>" +
      std::string(next.empty() ? "false" : "true") + "</IsTruncated>";
  if (!next.empty()) xml += "<NextContinuationToken>" + next + "</NextContinuationToken>";
  for (const std::string& key : keys) xml += "<Contents><Key>" + key + "</Key></Contents>";
  for (const std::string& prefix : prefixes) {
    xml += "<CommonPrefixes><Prefix>" + prefix + "</Prefix></CommonPrefixes>";
  }
  return xml + "</ListBucketResult>";
}

// Answers the listings of a store by their query.
class Listings {
 public:
  using Answer = std::function<std::string(const std::string& query)>;
  explicit Listings(Answer answer)
      : http_([answer = std::move(answer)](const HttpRequest& request) {
          return text_answer(answer(request.url.substr(request.url.find('?') + 1)));
        }) {}
  std::optional<std::vector<std::string>> list(const std::string& name) {
    return make_s3_store(http_, false)->list(name);
  }
  std::vector<std::string> entries(const std::string& name) {
    return make_s3_store(http_, false)->entries(name);
  }
  std::size_t requests() const { return http_.requests().size(); }

 private:
  AwsEnvironment environment_;
  AnsweringHttp http_;
};

using Names = std::vector<std::string>;

TEST(S3, ListsObjectsDirectlyUnderPrefix) {
  Listings listings([](const std::string& query) {
    if (query.find("max-keys") != std::string::npos) return page({"m-2/x"});
    EXPECT_EQ(query, "delimiter=%2F&encoding-type=url&list-type=2&prefix=m%2F");
    return page({"m/", "m/b+c", "m/a%2Bb", "m/%C3%A4"}, {"m/sub/"});
  });
  EXPECT_EQ(listings.list("s3://b/m"), (Names{"a+b", "b c", "\xc3\xa4"}));
  EXPECT_EQ(listings.requests(), 2U);
  EXPECT_EQ(listings.list("s3://b/m/"), (Names{"a+b", "b c", "\xc3\xa4"}));
  EXPECT_EQ(listings.requests(), 3U);
}

TEST(S3, EntriesAreObjectsAndSubprefixes) {
  Listings listings([](const std::string& query) {
    EXPECT_EQ(query, "delimiter=%2F&encoding-type=url&list-type=2&prefix=m%2F");
    return page({"m/", "m/a.b"}, {"m/sub%2F", "m/s+u/", "m/../", "other/"});
  });
  EXPECT_EQ(listings.entries("s3://b/m"), (Names{"a.b", "s u/", "sub/"}));
  EXPECT_EQ(listings.requests(), 1U);
  Listings none([](const std::string&) { return page({}); });
  message_of([&] { none.entries("s3://b/m"); }, ErrorCode::kAbsent);
}

TEST(S3, ObjectTakesPrecedenceOverPrefix) {
  Listings listings([](const std::string&) { return page({"m"}); });
  EXPECT_EQ(listings.list("s3://b/m"), std::nullopt);
  EXPECT_EQ(listings.requests(), 1U);
}

TEST(S3, EmptyObjectWithObjectsBelowIsDirectory) {
  bool has_more = true;
  std::string size = "0";
  Listings listings([&](const std::string& query) {
    if (query.find("max-keys") != std::string::npos) {
      return "<ListBucketResult><Contents><Key>m</Key><Size>" + size +
             "</Size></Contents></ListBucketResult>";
    }
    return has_more ? page({"m/", "m/a"}) : page({});
  });
  EXPECT_EQ(listings.list("s3://b/m"), Names{"a"});
  size = "10";
  EXPECT_EQ(listings.list("s3://b/m"), std::nullopt);
  size = "0";
  has_more = false;
  EXPECT_EQ(listings.list("s3://b/m"), std::nullopt);
}

TEST(S3, EmptyPrefixIsAbsent) {
  Listings listings([](const std::string&) { return page({}); });
  message_of([&] { listings.list("s3://b/m"); }, ErrorCode::kAbsent);
  message_of([&] { listings.list("s3://b/m/"); }, ErrorCode::kAbsent);
  EXPECT_EQ(listings.list("s3://b"), Names{});
}

TEST(S3, ListingContinuesOverPages) {
  Listings listings([](const std::string& query) {
    if (query.find("continuation-token=1%2F%26%3D&") != std::string::npos) {
      return page({"m/b"}, {}, "2");
    }
    if (query.find("continuation-token=2&") != std::string::npos) return page({"m/c"});
    return page({"m/a"}, {}, "1/&amp;=");
  });
  EXPECT_EQ(listings.list("s3://b/m/"), (Names{"a", "b", "c"}));
}

TEST(S3, ListingIsBounded) {
  Listings same([](const std::string&) { return page({"m/a"}, {}, "again"); });
  expect_error([&] { same.list("s3://b/m/"); }, "does not end");
  int number = 0;
  Listings endless([&](const std::string&) { return page({}, {}, std::to_string(++number)); });
  expect_error([&] { endless.list("s3://b/m/"); }, "does not end");
  Listings large(
      [&](const std::string&) { return page(Names(60000, "m/a"), {}, std::to_string(++number)); });
  expect_error([&] { large.list("s3://b/m/"); }, "more than 100000");
  Listings none([](const std::string&) { return std::string("<html>"); });
  expect_error([&] { none.list("s3://b/m/"); }, "not a listing");
}

TEST(S3, ListingOmitsUnsafeNames) {
  Listings listings([](const std::string&) {
    return page({"m/", "m/.", "m/..", "m/a%0Ab", "m/%1B", "other/x", "m/x/y", "m/%2Fetc", "m/ok"});
  });
  EXPECT_EQ(listings.list("s3://b/m/"), Names{"ok"});
}

TEST(S3, TreatsNameAsFileIfListingIsForbidden) {
  AwsEnvironment environment;
  AnsweringHttp http([](const HttpRequest&) { return refused(403, "AccessDenied"); });
  const auto store = make_s3_store(http, false);
  EXPECT_EQ(store->list("s3://b/m"), std::nullopt);
  expect_error([&] { store->list("s3://b/m/"); }, "Permission denied", ErrorCode::kHidden);
}

TEST(S3, RenewsExpiredTokenOnce) {
  AwsEnvironment environment;
  const auto count = environment.write("count", "");
  environment.write(".aws/config", "[default]\ncredential_process = echo x >> '" + count.string() +
                                       "'; printf '{\"Version\":1,\"AccessKeyId\":\"K%s\","
                                       "\"SecretAccessKey\":\"S\"}' $(wc -l < '" +
                                       count.string() + "')\n");
  std::string accepted = "Credential=K2/";
  AnsweringHttp http([&](const HttpRequest& request) {
    return request.secrets.at(0).find(accepted) != std::string::npos ? object("bytes")
                                                                     : refused(400, "ExpiredToken");
  });
  EXPECT_EQ(make_s3_store(http, false)->find("s3://b/k", nullptr).first, "bytes");
  EXPECT_EQ(http.requests().size(), 2U);
  accepted = "never";
  expect_error([&] { make_s3_store(http, false)->find("s3://b/k", nullptr); }, "have expired");
  EXPECT_EQ(http.requests().size(), 4U);
}

// Credentials

std::string keys_json(const std::string& key, const char* token_name, const std::string& expires) {
  return "{\"Code\":\"Success\",\"Version\":1,\"AccessKeyId\":\"" + key +
         "\",\"SecretAccessKey\":\"" + kSecret + "\",\"" + token_name + "\":\"" + kToken +
         "\",\"Expiration\":\"" + expires + "\"}";
}
const std::string kLater = "2099-01-01T00:00:00Z";

AnsweringHttp::Answer no_network() {
  return [](const HttpRequest& request) {
    ADD_FAILURE() << request.url;
    return HttpResponse{};
  };
}

TEST(S3Credentials, ParseProfilesLikeAwsTools) {
  const AwsProfiles profiles = parse_aws_profiles(
      "ignored = 1\n# a comment\n[default]\r\nregion = eu-west-1 \r\n; another\n"
      "[profile  a b]\nkey=a=b\ns3 =\n  addressing_style = path\nother = 1\n"
      "[services x]\ns3 =\n  endpoint_url = http://h\nsts =\n  endpoint_url = http://t\n[open");
  EXPECT_EQ(profiles.at("default").at("region"), "eu-west-1");
  EXPECT_EQ(profiles.at("profile a b").at("key"), "a=b");
  EXPECT_EQ(profiles.at("profile a b").at("s3.addressing_style"), "path");
  EXPECT_EQ(profiles.at("profile a b").at("other"), "1");
  EXPECT_EQ(profiles.at("services x").at("s3.endpoint_url"), "http://h");
  EXPECT_EQ(profiles.at("services x").at("sts.endpoint_url"), "http://t");
}

TEST(S3Credentials, FirstSourceDecides) {
  AwsEnvironment environment;
  AnsweringHttp http(no_network());
  EXPECT_EQ(S3CredentialChain(http).get(), std::nullopt);
  environment.write(".aws/config", "[default]\naws_access_key_id = C\naws_secret_access_key = s\n");
  EXPECT_EQ(S3CredentialChain(http).get()->key, "C");
  environment.write(".aws/credentials",
                    "[default]\naws_access_key_id = D\naws_secret_access_key = s\n"
                    "[p]\naws_access_key_id = P\naws_secret_access_key = s\n"
                    "aws_session_token = t\n");
  EXPECT_EQ(S3CredentialChain(http).get()->key, "D");
  environment.set("AWS_PROFILE", "p");
  EXPECT_EQ(S3CredentialChain(http).get()->key, "P");
  EXPECT_EQ(S3CredentialChain(http).get()->token, "t");
  environment.set_keys();
  EXPECT_EQ(S3CredentialChain(http).get()->key, "AKID");
  environment.set("AWS_PROFILE", "absent");
  expect_error([&] { S3CredentialChain chain(http); }, "no profile \"absent\"");
}

TEST(S3Credentials, SettingsComeFromEnvironmentThenProfile) {
  AwsEnvironment environment;
  AnsweringHttp http(no_network());
  environment.write(".aws/config",
                    "[default]\nregion = r1\nendpoint_url = http://profile\nca_bundle = /ca\n"
                    "services = x\n");
  EXPECT_EQ(S3CredentialChain(http).settings().region, "r1");
  EXPECT_EQ(S3CredentialChain(http).settings().endpoint, "http://profile");
  EXPECT_EQ(S3CredentialChain(http).settings().ca_file, "/ca");
  environment.write(".aws/config",
                    "[default]\nendpoint_url = http://profile\nservices = x\n"
                    "[services x]\ns3 =\n  endpoint_url = http://services\n");
  EXPECT_EQ(S3CredentialChain(http).settings().endpoint, "http://services");
  environment.set("AWS_ENDPOINT_URL", "http://all");
  EXPECT_EQ(S3CredentialChain(http).settings().endpoint, "http://all");
  environment.set("AWS_ENDPOINT_URL_S3", "http://s3");
  EXPECT_EQ(S3CredentialChain(http).settings().endpoint, "http://s3");
  environment.set("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true");
  EXPECT_EQ(S3CredentialChain(http).settings().endpoint, "");
  environment.set("AWS_DEFAULT_REGION", "r2");
  EXPECT_EQ(S3CredentialChain(http).settings().region, "r2");
  environment.set("AWS_REGION", "r3");
  EXPECT_EQ(S3CredentialChain(http).settings().region, "r3");
}

TEST(S3Credentials, ComeFromCredentialProcess) {
  AwsEnvironment environment;
  AnsweringHttp http(no_network());
  const auto get = [&](const std::string& command) {
    environment.write(".aws/config", "[default]\ncredential_process = " + command + "\n");
    return S3CredentialChain(http).get();
  };
  const auto json = environment.write("keys.json", keys_json("P", "SessionToken", kLater));
  EXPECT_EQ(get("cat '" + json.string() + "'")->token, kToken);
  expect_error([&] { get("exit 3"); }, "failed");
  EXPECT_EQ(message_of([&] { get("false --password=" + kSecret); }).find(kSecret),
            std::string::npos);
  // The output of this process ends before the process does.
  const std::string late = "cat '" + json.string() + "'; exec >/dev/null; cat /proc/self/environ";
  EXPECT_EQ(get(late)->token, kToken);
  expect_error([&] { get(late + "; exit 3"); }, "failed");
  expect_error([&] { get("echo " + kSecret); }, "did not give a JSON object");
  EXPECT_EQ(message_of([&] { get("cat '" + json.string() + "' no-such-file"); }).find(kSecret),
            std::string::npos);
  expect_error([&] { get("cat /dev/zero"); }, "more than 64 KiB");
  environment.write("keys.json", keys_json("A\\nB: c", "SessionToken", kLater));
  expect_error([&] { get("cat '" + json.string() + "'"); }, "control character");
}

TEST(S3Credentials, WebIdentityIsExchangedAtSts) {
  AwsEnvironment environment;
  const auto token = environment.write("token", "jwt+token\n");
  environment.set("AWS_WEB_IDENTITY_TOKEN_FILE", token);
  environment.set("AWS_ROLE_ARN", "arn:aws:iam::1:role/r");
  environment.set("AWS_REGION", "eu-west-1");
  int status = 200;
  AnsweringHttp http([&](const HttpRequest& request) {
    EXPECT_EQ(request.url, "https://sts.eu-west-1.amazonaws.com/");
    EXPECT_EQ(request.method, "POST");
    EXPECT_NE(request.body.find("WebIdentityToken=jwt%2Btoken"), std::string::npos);
    EXPECT_NE(request.body.find("RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr"), std::string::npos);
    EXPECT_FALSE(request.follow);
    if (status != 200) {
      return text_answer(
          "<ErrorResponse><Error><Code>InvalidIdentityToken</Code></Error>"
          "</ErrorResponse>",
          status);
    }
    return text_answer(
        "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">"
        "<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>W</AccessKeyId>"
        "<SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>"
        "<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>"
        "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>");
  });
  const auto found = S3CredentialChain(http).get();
  EXPECT_EQ(found->key, "W");
  EXPECT_EQ(found->token, "t");
  EXPECT_TRUE(found->expires.has_value());
  status = 400;
  EXPECT_EQ(message_of([&] { S3CredentialChain(http).get(); }),
            "AWS credentials: web identity: STS answered 400 InvalidIdentityToken");
}

TEST(S3Credentials, WebIdentityIsNotSentOverHttp) {
  AwsEnvironment environment;
  environment.set("AWS_WEB_IDENTITY_TOKEN_FILE", environment.write("token", "jwt"));
  environment.set("AWS_ROLE_ARN", "arn:r");
  environment.set("AWS_ENDPOINT_URL_STS", "http://sts.test");
  AnsweringHttp http(no_network());
  expect_error([&] { S3CredentialChain(http).get(); }, "does not give an https URL of STS");
}

TEST(S3Credentials, RoleIsAssumedWithKeysOfSourceProfile) {
  AwsEnvironment environment;
  environment.write(".aws/config",
                    "[default]\nrole_arn = arn:r\nsource_profile = base\nexternal_id = id\n"
                    "[profile base]\naws_access_key_id = B\naws_secret_access_key = s\n"
                    "[profile circle]\nrole_arn = arn:r\nsource_profile = circle2\n"
                    "[profile circle2]\nrole_arn = arn:r\nsource_profile = circle\n");
  AnsweringHttp http([&](const HttpRequest& request) {
    EXPECT_EQ(request.url,
              "https://sts.amazonaws.com/?Action=AssumeRole&ExternalId=id&RoleArn=arn%3Ar&"
              "RoleSessionName=stfs&Version=2011-06-15");
    EXPECT_NE(request.secrets.at(0).find("Credential=B/"), std::string::npos);
    EXPECT_NE(request.secrets.at(0).find("/us-east-1/sts/aws4_request"), std::string::npos);
    return text_answer(
        "<r><Credentials><AccessKeyId>R</AccessKeyId><SecretAccessKey>s"
        "</SecretAccessKey></Credentials></r>");
  });
  EXPECT_EQ(S3CredentialChain(http).get()->key, "R");
  environment.set("AWS_PROFILE", "circle");
  expect_error([&] { S3CredentialChain(http).get(); }, "circle");
}

TEST(S3Credentials, SingleSignOnIsRejectedWithAdvice) {
  AwsEnvironment environment;
  AnsweringHttp http(no_network());
  for (const auto& [key, what] :
       std::map<std::string, std::string>{{"sso_session", "single sign-on"},
                                          {"sso_start_url", "single sign-on"},
                                          {"login_session", "`aws login`"}}) {
    environment.write(".aws/config", "[default]\n" + key + " = corp\n");
    expect_error([&] { S3CredentialChain(http).get(); },
                 "profile \"default\": " + what +
                     " is not supported; write a second profile with credential_process = aws "
                     "configure export-credentials --profile default --format process");
  }
}

TEST(S3Credentials, ComeFromRoleOfContainer) {
  AwsEnvironment environment;
  HttpServer server([](const WebRequest& request) {
    if (request.header("authorization") != "Bearer x") return WebAnswer{.status = 401};
    return WebAnswer{.body = keys_json("ECS", "Token", kLater)};
  });
  Http http(Http::Options{});
  environment.set("AWS_CONTAINER_CREDENTIALS_FULL_URI", server.url("/role"));
  expect_error([&] { S3CredentialChain(http).get(); }, "answered 401");
  environment.set("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", environment.write("t", "Bearer x\n"));
  const auto found = S3CredentialChain(http).get();
  EXPECT_EQ(found->key, "ECS");
  EXPECT_EQ(found->token, kToken);
  // Neither the target of a redirect nor another host gets the token.
  HttpServer second([](const WebRequest&) { return WebAnswer{}; }, "127.0.0.2");
  server.set([&](const WebRequest&) {
    return WebAnswer{.status = 302, .headers = {{"Location", second.url()}}};
  });
  message_of([&] { S3CredentialChain(http).get(); });
  EXPECT_TRUE(second.requests().empty());
  for (const std::string url :
       {"http://store.test/role", "http://169.254.169.254/role", "ftp://x"}) {
    environment.set("AWS_CONTAINER_CREDENTIALS_FULL_URI", url);
    expect_error([&] { S3CredentialChain(http).get(); }, "neither https nor");
  }
}

TEST(S3Credentials, EcsEndpointIsRequestedWithoutProxy) {
  AwsEnvironment environment;
  environment.set("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/credentials/1");
  AnsweringHttp http([](const HttpRequest& request) {
    EXPECT_EQ(request.url, "http://169.254.170.2/v2/credentials/1");
    EXPECT_FALSE(request.use_proxy);
    EXPECT_FALSE(request.follow);
    return text_answer(keys_json("ECS", "Token", kLater));
  });
  EXPECT_EQ(S3CredentialChain(http).get()->key, "ECS");
}

TEST(S3Credentials, ComeFromRoleOfInstance) {
  AwsEnvironment environment;
  environment.set("AWS_EC2_METADATA_DISABLED", std::nullopt);
  bool has_role = true;
  HttpServer server([&](const WebRequest& request) {
    if (request.target == "/latest/api/token") {
      return WebAnswer{.status = request.method == "PUT" ? 200 : 405, .body = "imds-token"};
    }
    if (request.header("x-aws-ec2-metadata-token") != "imds-token") return WebAnswer{.status = 401};
    const std::string roles = "/latest/meta-data/iam/security-credentials/";
    if (request.target == roles && has_role) return WebAnswer{.body = "my-role"};
    if (request.target == roles + "my-role") {
      return WebAnswer{.body = keys_json("EC2", "Token", kLater)};
    }
    return WebAnswer{.status = 404};
  });
  environment.set("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url());
  Http http(Http::Options{});
  EXPECT_EQ(S3CredentialChain(http).get()->key, "EC2");
  EXPECT_EQ(server.requests().size(), 3U);
  EXPECT_EQ(server.requests()[0].header("x-aws-ec2-metadata-token-ttl-seconds"), "21600");
  has_role = false;
  EXPECT_EQ(S3CredentialChain(http).get(), std::nullopt);
  server.set([](const WebRequest&) { return WebAnswer{.drop = true}; });
  EXPECT_EQ(S3CredentialChain(http).get(), std::nullopt);
}

TEST(S3Credentials, RefusedKeysAreRenewedOnceForAllCallers) {
  AwsEnvironment environment;
  // The keys expire in two minutes, so they are still valid, but within the margin for renewal.
  const auto soon = std::chrono::system_clock::now() + std::chrono::minutes(2);
  const std::string expires =
      rfc3339(std::chrono::duration_cast<std::chrono::seconds>(soon.time_since_epoch()).count(), 0);
  environment.set("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/");
  std::atomic<int> fetches = 0;
  AnsweringHttp http([&](const HttpRequest&) {
    return text_answer(keys_json("K" + std::to_string(++fetches), "Token", expires));
  });
  S3CredentialChain chain(http);
  EXPECT_EQ(chain.get()->key, "K1");
  EXPECT_EQ(chain.get()->key, "K1");  // not fetched again immediately
  // After a refusal, the keys are fetched once for all callers.
  chain.renew(chain.get());
  std::vector<std::future<std::string>> all;
  for (int i = 0; i < 8; ++i) {
    all.push_back(std::async(std::launch::async, [&] { return chain.get()->key; }));
  }
  for (auto& one : all) EXPECT_EQ(one.get(), "K2");
  EXPECT_EQ(fetches, 2);
  // A late refusal of the old keys does not fetch again.
  S3Credentials old = *chain.get();
  old.key = "K1";
  EXPECT_TRUE(chain.renew(old));
  EXPECT_EQ(chain.get()->key, "K2");
}

TEST(S3Credentials, RenewalStarts5MinutesBeforeExpiry) {
  AwsEnvironment environment;
  environment.set("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/");
  using std::chrono::seconds;
  const std::chrono::sys_seconds expires(seconds(2'000'000'000));
  std::chrono::system_clock::time_point now = expires - seconds(400);
  int fetches = 0;
  bool is_down = false;
  AnsweringHttp http([&](const HttpRequest&) {
    ++fetches;
    if (is_down) return text_answer("", 404);
    const auto until = (expires + seconds(fetches - 1)).time_since_epoch().count();
    return text_answer(keys_json("K" + std::to_string(fetches), "Token", rfc3339(until, 0)));
  });
  S3CredentialChain chain(http, [&] { return now; });
  EXPECT_EQ(chain.get()->key, "K1");
  now = expires - seconds(301);
  EXPECT_EQ(chain.get()->key, "K1");
  EXPECT_EQ(fetches, 1);
  now = expires - seconds(300);
  EXPECT_EQ(chain.get()->key, "K2");
  // Keys that are still valid are used while new ones are not available.
  is_down = true;
  now = expires;
  EXPECT_EQ(chain.get()->key, "K2");
  EXPECT_EQ(fetches, 3);
  EXPECT_EQ(chain.get()->key, "K2");  // not fetched again immediately
  EXPECT_EQ(fetches, 3);
  now = expires + seconds(1);
  EXPECT_THROW(chain.get(), Error);
}

TEST(S3Credentials, EnvironmentIsReadOnce) {
  AwsEnvironment environment;
  environment.set("AWS_ACCESS_KEY_ID", "first");
  environment.set("AWS_SECRET_ACCESS_KEY", "secret");
  Http http(Http::Options{});
  S3CredentialChain chain(http);
  environment.set("AWS_ACCESS_KEY_ID", "second");
  EXPECT_EQ(chain.get()->key, "first");
  chain.renew(chain.get());
  EXPECT_EQ(chain.get()->key, "first");
}

TEST(S3Credentials, RepeatedlyRefusedKeysAreNotFetchedEachTime) {
  AwsEnvironment environment;
  environment.set("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/");
  int fetches = 0;
  AnsweringHttp http([&](const HttpRequest&) {
    ++fetches;
    return text_answer(keys_json("K", "Token", kLater));
  });
  S3CredentialChain chain(http);
  EXPECT_TRUE(chain.renew(chain.get()));
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(chain.renew(chain.get()));
  EXPECT_EQ(fetches, 2);
}

}  // namespace
}  // namespace stfs::test
