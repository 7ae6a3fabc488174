#include "core/remote/stores/remote.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace stfs {
namespace {

using VerdictKind = ResponseVerdict::Kind;
using AnswerHeaders = std::vector<std::pair<std::string, std::string>>;

RemoteVersion example_version() {
  RemoteVersion version;
  version.name = "https://host/a";
  version.url = "https://host/a?signature";
  version.size = 100;
  version.mtime = {.tv_sec = 12, .tv_nsec = 34};
  version.token = "web-1";
  version.etag = "\"v1\"";
  version.last_modified = "Sat, 01 Feb 2025 10:00:00 GMT";
  version.version_id = "id";
  version.sha256 = std::string(64, 'a');
  return version;
}

// Returns the verdict on a response to a request of bytes 10 to 29. Headers in `other` replace the
// right ones, and "-" removes one.
ResponseVerdict verdict_of(int status, const AnswerHeaders& other = {},
                           const RemoteVersion& version = example_version()) {
  HttpHead head{.status = status, .url = {}, .headers = {}};
  std::vector<std::pair<std::string, std::string>> headers{
      {"content-range", "bytes 10-29/100"},
      {"content-length", "20"},
      {"etag", "\"v1\""},
      {"last-modified", "Sat, 01 Feb 2025 10:00:00 GMT"}};
  for (const auto& [name, value] : other) {
    std::erase_if(headers, [&name = name](const auto& header) { return header.first == name; });
    if (value != "-") headers.emplace_back(name, value);
  }
  head.headers = headers;
  return judge(version, head, {.offset = 10, .length = 20});
}

TEST(RemoteVersionJson, RoundTripsWithoutSecret) {
  const RemoteVersion version = example_version();
  const std::string json = to_json(version, false);
  EXPECT_EQ(json.find("signature"), std::string::npos);
  EXPECT_EQ(json.find('\n'), std::string::npos);
  const auto back = parse_remote_version(json);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->url, "");
  EXPECT_EQ(to_json(*back, true), json);
  EXPECT_EQ(back->size, 100U);
  EXPECT_EQ(back->mtime.tv_nsec, 34);
  EXPECT_EQ(back->sha256, version.sha256);
}

TEST(RemoteVersionJson, RoundTripsWithSecretOnRequest) {
  EXPECT_EQ(parse_remote_version(to_json(example_version(), true))->url, example_version().url);
}

TEST(RemoteVersionJson, RejectsMalformedText) {
  std::string json = to_json(example_version(), false);
  for (std::size_t i = 0; i < json.size(); ++i) {
    EXPECT_FALSE(parse_remote_version(json.substr(0, i))) << i;
  }
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string other = json;
    const std::size_t at = other.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return other.replace(at, from.size(), to);
  };
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"\"size\":100", "\"size\":-1"},
           {"\"size\":100", "\"size\":1e2"},
           {"\"size\":100", "\"size\":18446744073709551615"},
           {"\"size\":100", "\"size\":\"100\""},
           {"[12,34]", "[12]"},
           {"[12,34]", "[12,1000000000]"},
           {"[12,34]", "[12,-1]"},
           {"[12,34]", "{}"},
           {"\"token\":\"web-1\"", "\"token\":\"\""},
           {"\"token\":\"web-1\"", "\"token\":\"a\\u001b\""},
           {"\"token\":\"web-1\"", "\"token\":1"},
           {"\"name\":\"https://host/a\"", "\"name\":\"\""},
           {std::string(64, 'a'), std::string(64, 'A')},
           {std::string(64, 'a'), "abc"},
           {"\"is_weak\":false", "\"is_weak\":0"}}) {
    EXPECT_FALSE(parse_remote_version(with(from, to))) << to;
  }
  EXPECT_FALSE(parse_remote_version("[]"));
  EXPECT_FALSE(parse_remote_version(std::string(100'000, '[')));
}

TEST(RemoteVerdict, AcceptsExactRangeOfSameVersion) {
  EXPECT_EQ(verdict_of(206).kind, VerdictKind::kAccept);
  EXPECT_EQ(verdict_of(206, {{"content-length", "-"}}).kind, VerdictKind::kAccept);
  EXPECT_EQ(verdict_of(206, {{"content-encoding", "Identity"}}).kind, VerdictKind::kAccept);
  EXPECT_EQ(verdict_of(206, {{"content-encoding", ""}}).kind, VerdictKind::kAccept);
}

TEST(RemoteVerdict, FollowsFromStatus) {
  for (const int status : {408, 429, 500, 502, 503, 504, 509}) {
    EXPECT_EQ(verdict_of(status).kind, VerdictKind::kRetry) << status;
  }
  for (const int status : {401, 403})
    EXPECT_EQ(verdict_of(status).kind, VerdictKind::kRenew) << status;
  for (const int status : {404, 410, 412, 416}) {
    EXPECT_EQ(verdict_of(status).kind, VerdictKind::kChanged) << status;
  }
  for (const int status : {204, 207, 302, 304, 400, 418, 501}) {
    EXPECT_EQ(verdict_of(status).kind, VerdictKind::kRefused) << status;
    EXPECT_EQ(verdict_of(status).text, "its server answers with status " + std::to_string(status));
  }
  EXPECT_EQ(verdict_of(200).kind, VerdictKind::kRefused);
  EXPECT_EQ(verdict_of(200).text,
            "its server does not support range requests: download the file first");
}

TEST(RemoteVerdict, DetectsChangedSizeOrValidator) {
  for (const AnswerHeaders& other :
       std::vector<AnswerHeaders>{{{"content-range", "bytes 10-29/101"}},
                                  {{"content-range", "bytes 10-19/20"}},
                                  {{"etag", "\"v2\""}},
                                  {{"etag", "W/\"v1\""}},
                                  {{"etag", "v1"}}}) {
    EXPECT_EQ(verdict_of(206, other).kind, VerdictKind::kChanged) << other[0].second;
  }
}

TEST(RemoteVerdict, ComparesTimeOnlyWithoutStrongValidator) {
  const AnswerHeaders later{{"last-modified", "Sat, 01 Feb 2025 10:00:01 GMT"}};
  const AnswerHeaders none{{"last-modified", "-"}};
  RemoteVersion weak = example_version();
  weak.etag = weak.version_id = "";

  EXPECT_EQ(verdict_of(206, later).kind, VerdictKind::kAccept);  // rewritten with the same bytes
  EXPECT_EQ(verdict_of(206, {}, weak).kind, VerdictKind::kAccept);
  EXPECT_EQ(verdict_of(206, later, weak).kind, VerdictKind::kChanged);
  EXPECT_EQ(verdict_of(206, none, weak).kind, VerdictKind::kRefused);
}

TEST(RemoteVerdict, DetectsChangedWeakETag) {
  RemoteVersion weak = example_version();
  weak.etag = weak.version_id = "";
  weak.weak_etag = "\"1\"";

  EXPECT_EQ(verdict_of(206, {{"etag", "W/\"1\""}}, weak).kind, VerdictKind::kAccept);
  EXPECT_EQ(verdict_of(206, {{"etag", "\"1\""}}, weak).kind, VerdictKind::kAccept);  // the same tag
  EXPECT_EQ(verdict_of(206, {{"etag", "W/\"2\""}}, weak).kind, VerdictKind::kChanged);
  EXPECT_EQ(verdict_of(206, {{"etag", "\"2\""}}, weak).kind, VerdictKind::kChanged);
  EXPECT_EQ(verdict_of(206, {{"etag", "-"}}, weak).kind, VerdictKind::kRefused);
  EXPECT_EQ(parse_remote_version(to_json(weak, false))->weak_etag, "\"1\"");
}

TEST(RemoteVerdict, RejectsMissingOrContradictoryHeaders) {
  for (const AnswerHeaders& other :
       std::vector<AnswerHeaders>{{{"content-range", "-"}},
                                  {{"content-range", "bytes 10-29/*"}},
                                  {{"content-range", "bytes */100"}},
                                  {{"content-range", "bytes 10-30/100"}},
                                  {{"content-range", "bytes 9-29/100"}},
                                  {{"content-range", "bytes 11-30/100"}},
                                  {{"content-range", "bytes 29-10/100"}},
                                  {{"content-range", "bytes 10-100/100"}},
                                  {{"content-range", "Bytes 10-29/100"}},
                                  {{"content-range", "bytes=10-29/100"}},
                                  {{"content-range", "bytes 10-29/100 "}},
                                  {{"content-range", "bytes 10-29/100,bytes 10-29/100"}},
                                  {{"content-range", "bytes +10-29/100"}},
                                  {{"content-range", "bytes 10-29/-100"}},
                                  {{"content-range", "bytes 10-29"}},
                                  {{"content-range", "bytes 10-29/99999999999999999999999"}},
                                  {{"content-length", "21"}},
                                  {{"content-length", "19"}},
                                  {{"content-length", "0x14"}},
                                  {{"content-encoding", "gzip"}},
                                  {{"content-type", "Multipart/byteranges; boundary=x"}},
                                  {{"etag", "-"}}}) {
    EXPECT_EQ(verdict_of(206, other).kind, VerdictKind::kRefused)
        << other[0].first << " " << other[0].second;
    EXPECT_NE(verdict_of(206, other).text, "");
  }
}

TEST(RemoteVerdict, ChecksEveryContentEncodingHeader) {
  HttpHead head{.status = 206,
                .url = {},
                .headers = {{"content-encoding", "gzip"}, {"content-encoding", "identity"}}};
  EXPECT_EQ(judge(example_version(), head, {.offset = 0, .length = 1}).kind, VerdictKind::kRefused);
}

TEST(RemoteVerdict, IgnoresContentEncodingAwsChunked) {
  for (const char* const value : {"aws-chunked", "AWS-Chunked", "aws-chunked, identity", ","}) {
    EXPECT_EQ(verdict_of(206, {{"content-encoding", value}}).kind, VerdictKind::kAccept) << value;
  }
  for (const char* const value : {"aws-chunked,gzip", "zstd, aws-chunked", "chunked"}) {
    EXPECT_EQ(verdict_of(206, {{"content-encoding", value}}).kind, VerdictKind::kRefused) << value;
  }
}

TEST(RemoteVerdict, AcceptsStatus200OnlyForWholeObject) {
  const auto whole = [](const AnswerHeaders& other,
                        ByteRange range = {.offset = 0, .length = 100}) {
    HttpHead head{.status = 200, .url = {}, .headers = {{"etag", "\"v1\""}}};
    for (const auto& header : other) {
      std::erase_if(head.headers, [&](const auto& each) { return each.first == header.first; });
      head.headers.push_back(header);
    }
    return judge(example_version(), head, range);
  };
  EXPECT_EQ(whole({{"content-length", "100"}}).kind, VerdictKind::kAccept);
  EXPECT_EQ(whole({}).kind, VerdictKind::kAccept) << "the length is checked while bytes arrive";
  for (const char* const length : {"99", "101", "0", "x"}) {
    EXPECT_EQ(whole({{"content-length", length}}).kind, VerdictKind::kRefused) << length;
  }
  EXPECT_EQ(whole({{"content-length", "100"}, {"content-encoding", "gzip"}}).kind,
            VerdictKind::kRefused);
  EXPECT_EQ(whole({{"content-length", "100"}, {"etag", "\"v2\""}}).kind, VerdictKind::kChanged);
  EXPECT_EQ(whole({{"content-length", "100"}, {"etag", ""}}).kind, VerdictKind::kRefused);
  for (const ByteRange part : {ByteRange{.offset = 0, .length = 99}, {.offset = 1, .length = 99}}) {
    EXPECT_EQ(whole({{"content-length", "100"}}, part).kind, VerdictKind::kRefused) << part.offset;
  }
}

TEST(RemoteVerdict, EscapesTextOfServer) {
  const ResponseVerdict verdict = verdict_of(206, {{"content-encoding", "\x1b[31m"}});
  EXPECT_EQ(verdict.text.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace stfs
