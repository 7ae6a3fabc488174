#include "core/remote/stores/s3_signature.h"

#include "core/base/sha256.h"
#include "core/base/text.h"
#include "core/remote/http/url.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <ctime>
#include <new>
#include <span>
#include <string_view>

namespace stfs {
namespace {

// HMAC() initialises OpenSSL, like the first https request.
std::string hmac_sha256(std::string_view key, std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned length = 0;
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(),
           &length) == nullptr) {
    throw std::bad_alloc();  // the only reason for which HMAC() fails here
  }
  return {reinterpret_cast<const char*>(digest.data()), length};
}

std::string amz_time(std::chrono::system_clock::time_point now) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y%m%dT%H%M%SZ", &parts)};
}

}  // namespace

// Unlike other services, S3 encodes a path once and keeps "//" and "..".
std::string canonical_path(const std::string& path) { return percent_encode(path, "/"); }

std::string canonical_query(std::vector<std::pair<std::string, std::string>> query) {
  for (auto& [name, value] : query) {
    name = percent_encode(name);
    value = percent_encode(value);
  }
  std::ranges::sort(query);
  std::string text;
  for (const auto& [name, value] : query) {
    if (!text.empty()) text += '&';
    text.append(name).append("=").append(value);
  }
  return text;
}

std::vector<std::string> sign(const S3Request& request, const S3Credentials& credentials,
                              const std::string& region,
                              std::chrono::system_clock::time_point now) {
  const std::string time = amz_time(now);
  const std::string day = time.substr(0, 8);
  const std::string body_hash = sha256_hex("");
  auto headers = request.headers;
  headers.emplace_back("host", request.host);
  headers.emplace_back("x-amz-content-sha256", body_hash);
  headers.emplace_back("x-amz-date", time);
  if (!credentials.token.empty()) headers.emplace_back("x-amz-security-token", credentials.token);
  std::ranges::sort(headers);
  std::string lines, names;
  for (const auto& [name, value] : headers) {
    lines.append(name).append(":").append(value).append("\n");
    if (!names.empty()) names += ';';
    names += name;
  }
  const std::string canonical = request.method + "\n" + canonical_path(request.path) + "\n" +
                                canonical_query(request.query) + "\n" + lines + "\n" + names +
                                "\n" + body_hash;
  const std::string scope = day + "/" + region + "/" + request.service + "/aws4_request";
  const std::string to_sign =
      "AWS4-HMAC-SHA256\n" + time + "\n" + scope + "\n" + sha256_hex(canonical);
  std::string key = hmac_sha256("AWS4" + credentials.secret, day);
  for (const std::string& part : {region, request.service, std::string("aws4_request")}) {
    key = hmac_sha256(key, part);
  }
  std::vector<std::string> signed_headers{
      "Authorization: AWS4-HMAC-SHA256 Credential=" + credentials.key + "/" + scope +
          ",SignedHeaders=" + names + ",Signature=" + hex(hmac_sha256(key, to_sign)),
      "x-amz-content-sha256: " + body_hash, "x-amz-date: " + time};
  if (!credentials.token.empty()) {
    signed_headers.push_back("x-amz-security-token: " + credentials.token);
  }
  return signed_headers;
}

}  // namespace stfs
