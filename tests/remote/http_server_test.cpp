// Tests of the test server itself, because the other tests rely on it.
#include "tests/support/http_server.h"

#include <gtest/gtest.h>

namespace stfs::test {
namespace {

TEST(HttpServer, AnswersRangesLikeWebServer) {
  const std::map<std::string, WebObject> objects{{"/a", {.bytes = "0123456789"}}};
  const auto ask = [&](std::map<std::string, std::string> headers) {
    return answer_object({.method = "GET", .target = "/a?x", .headers = std::move(headers)},
                         objects);
  };
  EXPECT_EQ(ask({}).body, "0123456789");
  const WebAnswer part = ask({{"range", "bytes=2-4"}});
  EXPECT_EQ(part.status, 206);
  EXPECT_EQ(part.body, "234");
  EXPECT_EQ(part.headers.back().second, "bytes 2-4/10");
  EXPECT_EQ(ask({{"range", "bytes=8-99"}}).body, "89");
  EXPECT_EQ(ask({{"range", "bytes=10-99"}}).status, 416);
  EXPECT_EQ(ask({{"if-match", "\"v2\""}}).status, 412);
  EXPECT_EQ(ask({{"if-none-match", "\"v1\""}}).status, 304);
  EXPECT_EQ(answer_object({.method = "GET", .target = "/b"}, objects).status, 404);
}

}  // namespace
}  // namespace stfs::test
