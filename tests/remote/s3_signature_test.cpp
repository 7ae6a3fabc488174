// Checks the examples of "Authenticating Requests: Using the Authorization Header" (Amazon S3 API
// Reference), which S3 and compatible services must accept.
#include "core/remote/stores/s3_signature.h"

#include <gtest/gtest.h>

#include <chrono>

namespace stfs {
namespace {

using namespace std::chrono_literals;

const S3Credentials kExample{.key = "AKIAIOSFODNN7EXAMPLE",
                             .secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
                             .token = {}};
constexpr std::chrono::system_clock::time_point kDay = std::chrono::sys_days(2013y / 5 / 24);
const std::string kHost = "examplebucket.s3.amazonaws.com";

std::string signature(const S3Request& request) {
  const std::string header = sign(request, kExample, "us-east-1", kDay).at(0);
  return header.substr(header.rfind('=') + 1);
}

TEST(S3Signature, MatchesGetObjectExample) {
  const auto headers =
      sign({.host = kHost, .path = "/test.txt", .headers = {{"range", "bytes=0-9"}}}, kExample,
           "us-east-1", kDay);
  EXPECT_EQ(headers.at(0),
            "Authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/"
            "aws4_request,SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,Signature="
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  EXPECT_EQ(headers.at(1),
            "x-amz-content-sha256: "
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(headers.at(2), "x-amz-date: 20130524T000000Z");
  EXPECT_EQ(headers.size(), 3U);
}

TEST(S3Signature, MatchesExamplesWithQuery) {
  EXPECT_EQ(signature({.host = kHost, .path = "/", .query = {{"lifecycle", ""}}}),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  EXPECT_EQ(signature({.host = kHost, .path = "/", .query = {{"prefix", "J"}, {"max-keys", "2"}}}),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST(S3Signature, CoversSessionToken) {
  S3Credentials credentials = kExample;
  credentials.token = "TOKEN";
  const auto headers = sign({.host = kHost, .path = "/test.txt"}, credentials, "us-east-1", kDay);
  EXPECT_EQ(headers.at(3), "x-amz-security-token: TOKEN");
  EXPECT_NE(headers.at(0).find(";x-amz-date;x-amz-security-token,"), std::string::npos);
}

TEST(S3Signature, EncodesPathOnceAndKeepsSlashesAndDots) {
  EXPECT_EQ(canonical_path("/b/a b+c=d'e%20~f?g&h"), "/b/a%20b%2Bc%3Dd%27e%2520~f%3Fg%26h");
  EXPECT_EQ(canonical_path("/b//a/../c/./d"), "/b//a/../c/./d");
  EXPECT_EQ(canonical_path("/b/\xc3\xa4"), "/b/%C3%A4");
}

TEST(S3Signature, SortsQueryByEncodedNames) {
  EXPECT_EQ(canonical_query({{"b", "2 /"}, {"a", ""}, {"B", "="}}), "B=%3D&a=&b=2%20%2F");
}

}  // namespace
}  // namespace stfs
