#include "core/source/http.h"

#include "core/base/error.h"
#include "tests/support/http_server.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs {
namespace {

using std::chrono::milliseconds;
using test::HttpServer;
using test::WebAnswer;
using test::WebRequest;

struct Outcome {
  HttpHead head;
  std::string body;
  HttpEnd end;
};

Outcome fetch(Http& http, HttpRequest request) {
  Outcome outcome;
  std::promise<void> ended;
  http.start(std::move(request),
             {.head =
                  [&](const HttpHead& head) {
                    outcome.head = head;
                    return true;
                  },
              .data =
                  [&](std::span<const std::byte> bytes) {
                    outcome.body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
                    return true;
                  },
              .end =
                  [&](const HttpEnd& end) {
                    outcome.end = end;
                    ended.set_value();
                  }});
  ended.get_future().wait();
  return outcome;
}

TEST(Http, GivesHeadAndBodyOfAnAnswer) {
  HttpServer server([](const WebRequest&) {
    return WebAnswer{
        .status = 206, .headers = {{"ETag", "\"v1\""}, {"X-A", " b "}}, .body = "bytes"};
  });
  Counters counters;
  Http http({.counters = &counters});
  const Outcome outcome = fetch(
      http, {.url = server.url("/a?x"), .headers = {"X-Mine: yes"}, .range = ByteRange{3, 5}});
  EXPECT_EQ(outcome.end.error, 0) << outcome.end.text;
  EXPECT_EQ(outcome.head.status, 206);
  EXPECT_EQ(outcome.head.url, server.url("/a?x"));
  EXPECT_FALSE(outcome.head.was_redirected);
  EXPECT_EQ(outcome.head.header("etag"), "\"v1\"");
  EXPECT_EQ(outcome.head.header("x-a"), "b");
  EXPECT_EQ(outcome.body, "bytes");
  const WebRequest request = server.requests().at(0);
  EXPECT_EQ(request.target, "/a?x");
  EXPECT_EQ(request.header("range"), "bytes=3-7");
  EXPECT_EQ(request.header("x-mine"), "yes");
  EXPECT_EQ(request.header("accept-encoding"), "identity");
  EXPECT_EQ(counters.requests, 1U);
  EXPECT_EQ(counters.bytes_fetched, 5U);
}

}  // namespace
}  // namespace stfs
