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
  std::string host;  // with the port if it is not the scheme's default
  std::string path;  // not percent-encoded: "/bucket/a b"
  std::vector<std::pair<std::string, std::string>> query = {};  // not percent-encoded
  // Further headers that the signature covers. Names are in lower case, values as they are sent.
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::string service = "s3";
};

// Return the path and the query in the percent-encoded form that is sent and signed.
std::string canonical_path(const std::string& path);
std::string canonical_query(std::vector<std::pair<std::string, std::string>> query);

// Returns the headers that sign a request without a body: Authorization, x-amz-date,
// x-amz-content-sha256 and, for temporary credentials, x-amz-security-token.
std::vector<std::string> sign(const S3Request& request, const S3Credentials& credentials,
                              const std::string& region, std::chrono::system_clock::time_point now);

}  // namespace stfs
