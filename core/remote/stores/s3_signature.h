// Signatures of S3 requests: AWS Signature Version 4 ("Authenticating Requests: Using the
// Authorization Header").
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/remote/http/url.h"
#include "core/remote/stores/s3_credentials.h"

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace stfs {

struct S3Request {
  std::string method = "GET";
  std::string host;  // with the port unless it is 80 or 443
  std::string path;  // decoded: "/bucket/a b"
  std::vector<std::pair<std::string, std::string>> query = {};  // decoded
  // Further headers that the signature covers: names in lower case, values as they are sent.
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::string service = "s3";
};

// The path and query as they are sent and signed.
std::string canonical_path(const std::string& path);
std::string canonical_query(std::vector<std::pair<std::string, std::string>> query);

// The headers that sign a request without a body: Authorization, x-amz-date,
// x-amz-content-sha256, and x-amz-security-token.
std::vector<std::string> sign(const S3Request& request, const S3Credentials& credentials,
                              const std::string& region, std::chrono::system_clock::time_point now);

}  // namespace stfs
