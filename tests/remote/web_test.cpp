#include "core/remote/stores/web.h"

#include "core/base/error.h"
#include "core/remote/cache/cache.h"
#include "tests/remote/remote_support.h"
#include "tests/support/http_server.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace stfs {
namespace {

using test::answer_object;
using test::HttpServer;
using test::WebAnswer;
using test::WebObject;
using test::WebRequest;

class Web : public testing::Test {
 protected:
  static std::map<std::string, WebObject> made() {
    std::string large;
    for (int i = 0; large.size() < 300'000; ++i) large += std::to_string(i) + " ";
    return {{"/a", {.bytes = "0123456789"}},
            {"/large", {.bytes = large}},
            {"/weak", {.bytes = "weak", .etag = "W/\"v1\""}},
            {"/undated", {.bytes = "undated", .last_modified = ""}},
            {"/unpinned", {.bytes = "unpinned", .etag = "", .last_modified = ""}},
            {"/empty", {.bytes = "", .etag = ""}}};
  }

  std::string refusal(const std::string& path, const WebAnswer& answer) {
    server_.set([answer](const WebRequest&) { return answer; });
    return refusal(path, answer.status == 403 ? ErrorCode::kHidden : ErrorCode::kUnreadable);
  }
  std::string refusal(const std::string& path, ErrorCode code = ErrorCode::kUnreadable) {
    try {
      store_->find(server_.url(path), nullptr);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_TRUE(
          std::string(error.what()).starts_with(server_.url(path.substr(0, path.find('?'))) + ": "))
          << error.what();
      return error.message();
    }
    return "no error";
  }

  const std::map<std::string, WebObject> objects_ = made();
  HttpServer server_{
      [this](const WebRequest& request) { return answer_object(request, objects_); }};
  Http http_{{}};
  std::unique_ptr<Store> store_ = make_web_store(http_);
};

TEST_F(Web, FindsVersionAndFirstBytesWithOneRequest) {
  const Found found = store_->find(server_.url("/large"), nullptr);
  const RemoteVersion& version = found.version;
  EXPECT_EQ(version.name, server_.url("/large"));
  EXPECT_EQ(version.url, "");
  EXPECT_EQ(version.size, objects_.at("/large").bytes.size());
  EXPECT_EQ(version.etag, "\"v1\"");
  EXPECT_EQ(version.mtime.tv_sec, 1738404000);
  EXPECT_FALSE(version.is_weak);
  EXPECT_EQ(version.token.size(), 4U + 64);
  EXPECT_TRUE(version.token.starts_with("web-"));
  EXPECT_EQ(found.first, objects_.at("/large").bytes.substr(0, CacheEntry::kBlock));
  EXPECT_EQ(server_.requests().size(), 1U);
  EXPECT_EQ(store_->find(server_.url("/a"), nullptr).first, "0123456789");
}

TEST_F(Web, ConfirmsKnownVersionWithoutBytes) {
  const Found found = store_->find(server_.url("/a?signature"), nullptr);
  const auto known = parse_remote_version(to_json(found.version, false));
  ASSERT_TRUE(known);
  EXPECT_EQ(known->url, "");
  const Found again = store_->find(server_.url("/a?signature"), &*known);
  EXPECT_EQ(server_.requests().back().header("if-none-match"), "\"v1\"");
  EXPECT_EQ(again.first, "");
  EXPECT_EQ(to_json(again.version, true), to_json(found.version, true));
}

TEST_F(Web, DoesNotConfirmVersionOfOtherQuery) {
  const Found one = store_->find(server_.url("/a?1"), nullptr);
  const Found two = store_->find(server_.url("/a?2"), &one.version);
  EXPECT_EQ(server_.requests().back().header("if-none-match"), "");
  EXPECT_EQ(one.version.name, two.version.name);
  EXPECT_NE(one.version.token, two.version.token);
  EXPECT_EQ(one.version.name.find('?'), std::string::npos);
  EXPECT_EQ(two.version.url, server_.url("/a?2"));
}

TEST_F(Web, MarksWeakValidator) {
  const RemoteVersion version = store_->find(server_.url("/weak"), nullptr).version;
  EXPECT_TRUE(version.is_weak);
  EXPECT_EQ(version.etag, "");
  EXPECT_EQ(version.last_modified, "Sat, 01 Feb 2025 10:00:00 GMT");
  const HttpRequest request = store_->remote(version)->request({.offset = 0, .length = 1});
  EXPECT_EQ(request.headers,
            std::vector<std::string>{"If-Unmodified-Since: Sat, 01 Feb 2025 10:00:00 GMT"});
}

TEST_F(Web, OtherWeakTagGivesOtherToken) {
  auto objects = objects_;
  server_.set([&](const WebRequest& request) { return answer_object(request, objects); });
  const RemoteVersion one = store_->find(server_.url("/weak"), nullptr).version;
  objects["/weak"].etag = "W/\"v2\"";
  const RemoteVersion two = store_->find(server_.url("/weak"), nullptr).version;
  EXPECT_EQ(one.weak_etag, "\"v1\"");
  EXPECT_EQ(two.weak_etag, "\"v2\"");
  EXPECT_NE(one.token, two.token);
}

TEST_F(Web, StrongETagNeedsNoDate) {
  const RemoteVersion version = store_->find(server_.url("/undated"), nullptr).version;
  EXPECT_FALSE(version.is_weak);
  EXPECT_EQ(version.mtime.tv_sec, 0);
}

TEST_F(Web, RejectsObjectWithoutValidator) {
  EXPECT_EQ(refusal("/unpinned"),
            "its server sends neither ETag nor Last-Modified, so stfs cannot pin a version: "
            "download the file first");
}

TEST_F(Web, FindsEmptyObject) {
  const Found found = store_->find(server_.url("/empty"), nullptr);
  EXPECT_EQ(found.version.size, 0U);
  EXPECT_FALSE(found.version.is_weak);
  EXPECT_EQ(found.first, "");
  server_.set([](const WebRequest&) { return WebAnswer{}; });
  EXPECT_EQ(store_->find(server_.url("/empty"), nullptr).version.size, 0U);
}

TEST_F(Web, AcceptsRangeOnlyOfItsVersion) {
  const auto remote = store_->remote(store_->find(server_.url("/a"), nullptr).version);
  const HttpRequest request = remote->request({.offset = 2, .length = 3});
  const HttpResponse answer = http_.get(request, 3);
  EXPECT_EQ(answer.body, "234");
  EXPECT_EQ(server_.requests().back().header("if-match"), "\"v1\"");
  EXPECT_EQ(remote->judge(answer.head, {.offset = 2, .length = 3}).kind,
            ResponseVerdict::Kind::kAccept);
  EXPECT_FALSE(remote->renew());
  server_.set([](const WebRequest& asked) {
    return answer_object(asked, {{"/a", {.bytes = "9876543210", .etag = "\"v2\""}}});
  });
  const HttpResponse changed = http_.get(request, 3);
  EXPECT_EQ(remote->judge(changed.head, {.offset = 2, .length = 3}).kind,
            ResponseVerdict::Kind::kChanged);
}

TEST_F(Web, ReportsMissingObjectAsAbsent) {
  EXPECT_EQ(refusal("/none?secret", ErrorCode::kAbsent), "No such object");
}

TEST_F(Web, RefusalSaysWhatToDo) {
  const std::string netrc = ": name a user and a password for its host in ~/.netrc";
  const auto error = [](const std::string& message) {
    return "<Error><Code>AccessDenied</Code><Message>" + message + "</Message></Error>";
  };
  const std::string denied = "Permission denied: its server answered 403";
  EXPECT_EQ(refusal("/a", {.status = 403, .body = std::string(1 << 20, 'x')}),
            denied + ": \"" + std::string(96, 'x') + "..." + std::string(96, 'x') + "\"" + netrc);
  EXPECT_EQ(refusal("/a", {.status = 401, .body = "<html>no</html>"}),
            "Permission denied: its server answered 401" + netrc);
  EXPECT_EQ(refusal("/a", {.status = 401,
                           .headers = {{"WWW-Authenticate", "Bearer realm=\"x\""}},
                           .body = R"({"errors":[{"message":"Unauthorized"}]})"}),
            "Permission denied: its server answered 401: \"Unauthorized\": it requires a bearer "
            "token, which stfs sends only to the Hub (hf://)");
  // Signed URLs.
  const std::string signed_at = "/a?X-Amz-Expires=300&X-Amz-Signature=abcd&X-Amz-Date=";
  EXPECT_EQ(refusal(signed_at + "20250101T000000Z", {.status = 403, .body = error("Denied")}),
            denied +
                " AccessDenied: \"Denied\": its signed URL expired at 2025-01-01T00:05:00Z: get "
                "a new one");
  EXPECT_EQ(refusal("/a?sv=1&se=2025-01-01T00%3A05%3A00Z&sig=abcd", {.status = 403}),
            denied + ": its signed URL expired at 2025-01-01T00:05:00Z: get a new one");
  EXPECT_EQ(refusal("/a?Expires=1735689900&Signature=abcd&Key-Pair-Id=1", {.status = 403}),
            denied + ": its signed URL expired at 2025-01-01T00:05:00Z: get a new one");
  EXPECT_EQ(
      refusal("/a?X-Amz-Signature=abcd", {.status = 403, .body = error("Request has expired")}),
      denied +
          " AccessDenied: \"Request has expired\": its signed URL has expired: get a new "
          "one");
  EXPECT_EQ(refusal(signed_at + "22250101T000000Z", {.status = 403, .body = error("No")}),
            denied +
                " AccessDenied: \"No\": its signed URL does not permit this file; a URL that was "
                "signed for an index permits no shard: get a new one");
  EXPECT_EQ(refusal("/a", {.status = 418}), "its server answered 418");
  EXPECT_EQ(refusal("/a", {.status = 304}), "its server answered 304");
  EXPECT_EQ(refusal("/a", {.status = 503, .headers = {{"Retry-After", "3600"}}}),
            "its server answered 503");
}

TEST_F(Web, RefusalMasksSecretsEchoedByServer) {
  const std::string path = "/a?X-Amz-Signature=abcd%2Bef&v=1&t0k3n";
  EXPECT_EQ(refusal(path, {.status = 403, .body = "no abcd%2Bef, abcd+ef, v=1, 11, t0k3n!"}),
            "Permission denied: its server answered 403: \"no ***, ***, v=***, 11, ***!\": its "
            "signed URL does not permit this file; a URL that was signed for an index permits no "
            "shard: get a new one");
  const test::TempDir directory;
  const std::filesystem::path netrc = directory / "netrc";
  std::ofstream(netrc) << "machine 127.0.0.1 login me password s3cret\n";
  const test::Environment variable("NETRC", netrc.string());
  Http http({});
  std::string sent;
  server_.set([&](const WebRequest& request) {
    sent = request.header("authorization");
    return WebAnswer{.status = 403, .body = "not " + sent + " s3cret"};
  });
  const std::string text = test::message_of(
      [&] { make_web_store(http)->find(server_.url("/a"), nullptr); }, ErrorCode::kHidden);
  EXPECT_EQ(sent, "Basic bWU6czNjcmV0");
  EXPECT_NE(text.find("403: \"not Basic *** ***\""), std::string::npos) << text;
}

TEST_F(Web, SuggestsHubNameForPageOfHub) {
  const test::Environment endpoint("HF_ENDPOINT", server_.url("/hub"));
  const WebAnswer page{.headers = {{"Content-Type", "text/html"}}, .body = "<html>"};
  const auto said = [](const std::string& name) {
    return "a page of the Hub, not a file: name it " + name;
  };
  EXPECT_EQ(refusal("/hub/org/name", page), said("hf://org/name"));
  EXPECT_EQ(refusal("/hub/org/name/tree/main/sub", page), said("hf://org/name/sub"));
  EXPECT_EQ(refusal("/hub/org/name/blob/v%201/a.safetensors", page),
            said("hf://org/name@v%201/a.safetensors"));
  EXPECT_EQ(refusal("/hub/org/name/resolve/main/a.safetensors", {.status = 401}),
            "Permission denied: its server answered 401: name it hf://org/name/a.safetensors, then "
            "stfs sends HF_TOKEN");
  EXPECT_EQ(refusal("/hub/datasets/org", page),
            "its server answers with a web page, as for a directory: name the file or the index");
  const test::Environment other("HF_ENDPOINT", "https://huggingface.co");
  EXPECT_EQ(refusal("/org/name/blob/main/a.safetensors", page),
            said("hf://org/name/a.safetensors with HF_ENDPOINT=" + server_.url("")));
  EXPECT_EQ(refusal("/org/name", page),
            "its server answers with a web page, as for a directory: name the file or the index");
}

TEST_F(Web, ReadWithExpiredUrlSaysSo) {
  const std::string url = server_.url("/a?X-Amz-Expires=300&X-Amz-Signature=abcd&X-Amz-Date=");
  RemoteVersion version;
  version.url = url + "20250101T000000Z";
  HttpHead head;
  head.status = 403;
  EXPECT_EQ(store_->remote(version)->judge(head, {0, 1}).text,
            "Permission denied: its server answers with status 403: its signed URL expired at "
            "2025-01-01T00:05:00Z: get a new one");
}

TEST_F(Web, RejectsServerWithoutRanges) {
  const std::string rule = "its server does not support range requests: download the file first";
  EXPECT_TRUE(refusal("/a", {.body = "0123456789"}).starts_with("its server sends neither ETag"));
  EXPECT_EQ(refusal("/a?secret", {.body = std::string(1 << 20, 'x')}), rule);
  // The URL names a directory without its slash.
  EXPECT_EQ(refusal("/models", {.headers = {{"Content-Type", "text/html; charset=utf-8"}},
                                .body = "<!DOCTYPE html>"}),
            "its server answers with a web page, as for a directory: name the file or the index");
}

// A mirror may answer with a whole small file, whatever the requested range.
TEST_F(Web, AcceptsWholeSmallObject) {
  server_.set([](const WebRequest&) {
    return WebAnswer{.headers = {{"ETag", "\"v1\""}}, .body = "0123456789"};
  });
  const Found found = store_->find(server_.url("/a"), nullptr);
  EXPECT_EQ(found.version.size, 10U);
  EXPECT_EQ(found.version.etag, "\"v1\"");
  EXPECT_EQ(found.first, "0123456789");
  EXPECT_NE(refusal("/a", {.headers = {{"ETag", "\"v1\""}, {"Content-Encoding", "gzip"}},
                           .body = "0123456789"})
                .find("encoded as \"gzip\""),
            std::string::npos);
}

TEST_F(Web, RejectsOtherBytesThanRequested) {
  const auto answer = [](const std::string& range, const std::string& body) {
    return WebAnswer{
        .status = 206, .headers = {{"Content-Range", range}, {"ETag", "\"v1\""}}, .body = body};
  };
  const std::string other = "its server sends other bytes than the requested range";
  EXPECT_EQ(refusal("/a", answer("bytes 0-9/10", "012345678")), other);
  EXPECT_EQ(refusal("/a", answer("bytes 1-9/10", "123456789")), other);
  EXPECT_EQ(refusal("/a", answer("bytes 0-4/10", "01234")), other);
  EXPECT_EQ(refusal("/a", answer("bytes 0-9/10", "0123456789x")), other);
  const std::string unsaid = "its server sends no valid Content-Range header";
  EXPECT_EQ(refusal("/a", answer("bytes 0-9/*", "0123456789")), unsaid);
  EXPECT_EQ(refusal("/a", answer("", "0123456789")), unsaid);
  EXPECT_EQ(refusal("/a", answer("bytes 0-9/9223372036854775808", "0123456789")), unsaid);
  WebAnswer packed = answer("bytes 0-9/10", "0123456789");
  packed.headers.emplace_back("Content-Encoding", "gzip");
  EXPECT_EQ(refusal("/a", packed), "its server sends it encoded as \"gzip\"");
}

TEST_F(Web, DoesNotPinInvalidETag) {
  for (const char* etag : {"v1", "\"v1", "\"v\"1\"", "\"\x1b[31m\"", "\""}) {
    server_.set([etag](const WebRequest& request) {
      return answer_object(request, {{"/a", {.bytes = "bytes", .etag = etag}}});
    });
    EXPECT_TRUE(store_->find(server_.url("/a"), nullptr).version.is_weak) << etag;
  }
}

TEST_F(Web, EachRequestUsesUrlBeforeRedirect) {
  server_.set([this](const WebRequest& request) {
    if (request.target == "/moved?key") {
      return WebAnswer{.status = 302, .headers = {{"Location", "/a"}}};
    }
    return answer_object(request, objects_);
  });
  const RemoteVersion version = store_->find(server_.url("/moved?key"), nullptr).version;
  EXPECT_EQ(version.name, server_.url("/moved"));
  EXPECT_EQ(store_->remote(version)->request({.offset = 0, .length = 1}).url,
            server_.url("/moved?key"));
}

TEST_F(Web, HasNoDirectories) { EXPECT_EQ(store_->list(server_.url("/")), std::nullopt); }

}  // namespace
}  // namespace stfs
