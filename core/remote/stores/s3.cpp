#include "core/remote/stores/s3.h"

#include "core/base/error.h"
#include "core/base/sha256.h"
#include "core/base/text.h"
#include "core/remote/http/server_reason.h"
#include "core/remote/http/url.h"
#include "core/remote/stores/s3_credentials.h"
#include "core/remote/stores/s3_signature.h"

#include <pugixml.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace stfs {
namespace {

constexpr std::uint64_t kFirstBlock = Source::kFetchUnit;
constexpr std::size_t kMaxListing = std::size_t{1} << 24;  // bytes of a page of 1000 keys
constexpr std::size_t kMaxListedNames = 100'000;           // in a directory
constexpr std::size_t kMaxListingPages = 1000;

struct S3Name {
  std::string bucket, key;
};

S3Name parse_s3_name(const std::string& name) {
  constexpr std::string_view kScheme = "s3://";
  if (!name.starts_with(kScheme)) throw Error(ErrorCode::kUsage, name, "not an s3:// URL");
  const std::size_t slash = std::min(name.find('/', kScheme.size()), name.size());
  S3Name parts{name.substr(kScheme.size(), slash - kScheme.size()),
               slash < name.size() ? name.substr(slash + 1) : ""};
  const bool is_bucket = !parts.bucket.empty() && parts.bucket.size() <= 255 &&
                         parts.bucket.find_first_not_of('.') != std::string::npos &&
                         std::ranges::all_of(parts.bucket, [](char c) {
                           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                                  (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
                         });
  if (!is_bucket) {  // the part before an "@" may be an access key and its secret
    const std::size_t at = name.rfind('@');
    throw Error(ErrorCode::kUsage,
                at == std::string::npos ? name : std::string(kScheme) + name.substr(at + 1),
                "not the name of a bucket");
  }
  return parts;
}

// Returns the value of a header if it is short and safe to send again, and "" otherwise.
std::string short_word(std::string_view text) {
  const bool is_word = text.size() <= 1024 &&
                       std::ranges::all_of(text, [](char c) { return c >= ' ' && c < '\x7f'; });
  return is_word ? std::string(text) : "";
}

bool is_region(std::string_view text) {
  return !text.empty() && text.size() <= 32 && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
}

// Returns true if the same request with new credentials may succeed.
bool is_expired(std::string_view code) {
  constexpr std::array kCodes{"ExpiredToken", "ExpiredTokenException", "InvalidToken",
                              "TokenRefreshRequired", "InvalidAccessKeyId"};
  return std::ranges::find(kCodes, code) != kCodes.end();
}

// Returns true for a temporary error whose status does not show that it is temporary.
bool is_slow_down(const HttpResponse& answer) {
  if (answer.head.status != 400 && answer.head.status != 403) return false;
  const std::string code = aws_error_code(answer.body);
  return code == "SlowDown" || code == "RequestTimeout";
}

struct S3Answer {
  HttpResponse answer;
  std::string code = {};    // the code of an error
  std::string reason = {};  // code and message, as reason_text() returns them
  bool is_signed = false;
  bool is_unsigned = false;  // the user has disabled signatures
};

// Returns what the user can do about an error, or "" if the server's own reason is enough.
std::string advice_on(const S3Answer& refused) {
  const std::string& code = refused.code;
  const auto says = [&](std::string_view word) {
    return lower_case(refused.reason).find(word) != std::string::npos;
  };
  const bool is_denied = code.empty() || code == "AccessDenied";
  if (code == "InvalidObjectState") return "the object is archived: restore it first";
  if (code == "RequestTimeTooSkewed") return "set the clock of this machine";
  if (code == "SignatureDoesNotMatch") return "the secret key does not belong to the access key";
  if (code == "InvalidAccessKeyId") return "the server does not know this access key";
  if (is_expired(code)) return "the credentials have expired: get new ones";
  if (says("virtual") && says("style")) return "use -o s3_addressing=virtual";
  if (code == "SecondLevelDomainForbidden") return "use -o s3_addressing=virtual";
  if (says("server side encryption") || says("sse-c") || says("customer-provided")) {
    return "stfs cannot send the customer's key of an object (SSE-C): copy it without one";
  }
  const int status = refused.answer.head.status;
  if (status != 401 && !(status == 403 && is_denied)) return "";
  if (!refused.is_signed) {
    return refused.is_unsigned
               ? "requests are not signed (s3_unsigned, AWS_NO_SIGN_REQUEST)"
               : "no AWS credentials were found: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and"
                 " AWS_SECRET_ACCESS_KEY";
  }
  if (says("not authorized") || says("explicit deny") || says("kms")) return "";
  return "these credentials need s3:GetObject, and s3:ListBucket for a directory; without it, a "
         "missing name also gives this response; if the requester pays, use -o s3_requester_pays";
}

[[noreturn]] void throw_refused(const std::string& name, const S3Answer& refused) {
  const int status = refused.answer.head.status;
  const std::string& code = refused.code;
  const std::string said = "the server answered " + std::to_string(status) + refused.reason;
  if (code == "NoSuchBucket") throw Error(ErrorCode::kAbsent, name, "no such bucket");
  if (status == 404) throw Error(ErrorCode::kAbsent, name, "no such object");
  if (status == 301 || status == 307) {
    throw Error(ErrorCode::kUnreadable, name,
                said +
                    ": the bucket is in another region or place: set AWS_REGION, or"
                    " AWS_ENDPOINT_URL_S3");
  }
  const std::string advice = advice_on(refused);
  const bool is_forbidden =
      status == 401 || (status == 403 && code != "InvalidObjectState") || is_expired(code);
  // Without s3:ListBucket, the server returns 403 for an object that does not exist, too.
  const bool is_hidden = status == 403 && (code.empty() || code == "AccessDenied");
  throw Error(
      is_hidden ? ErrorCode::kHidden : ErrorCode::kUnreadable, name,
      (is_forbidden ? "Permission denied: " : "") + said + (advice.empty() ? "" : ": " + advice));
}

class S3Store;

class S3Remote : public Remote {
 public:
  S3Remote(S3Store& store, RemoteVersion version)
      : store_(store), version_(std::move(version)), name_(parse_s3_name(version_.name)) {}

  HttpRequest request(ByteRange range) override;
  ResponseVerdict judge(const HttpHead& head, ByteRange range) const override;
  bool renew() override;

 private:
  S3Store& store_;
  const RemoteVersion version_;
  const S3Name name_;
  mutable std::atomic<bool> was_forbidden_ = false;  // a response was 403
  std::atomic<bool> by_version_ = true;              // requests contain the version id
  std::mutex mutex_;
  std::optional<S3Credentials> used_;  // the credentials of the last request
};

class S3Store : public Store {
 public:
  S3Store(Http& http, bool insecure_http, S3Options options)
      : http_(http), insecure_http_(insecure_http), options_(std::move(options)) {}

  Found find(const std::string& name, const RemoteVersion* known, Patience patience) override;
  std::optional<std::vector<std::string>> list(const std::string& name) override;
  std::vector<std::string> entries(const std::string& name) override;
  std::unique_ptr<Remote> remote(const RemoteVersion& version) override {
    return std::make_unique<S3Remote>(*this, version);
  }

  using Query = std::vector<std::pair<std::string, std::string>>;
  struct Target {
    S3Name name;
    Query query = {};
    std::optional<ByteRange> range = {};
    std::vector<std::string> headers = {};
  };
  HttpRequest make_request(const Target& target, const std::optional<S3Credentials>& credentials);
  S3CredentialChain& chain();
  // Returns nullopt if no place has credentials, or if requests must not be signed.
  std::optional<S3Credentials> credentials() {
    return is_unsigned() ? std::nullopt : chain().get();
  }
  bool is_unsigned() { return options_.is_unsigned || chain().settings().is_unsigned; }
  // Returns true if a response says that the bucket is in another region. Then remembers the
  // region, and the request should be sent again.
  bool learn_region(const std::string& bucket, const HttpHead& head);

 private:
  S3Answer ask(const Target& target, std::size_t most, Patience patience = {});
  bool is_virtual_host(const std::string& bucket, const std::string& host,
                       const S3Settings& settings) const;
  RemoteVersion version_of(const std::string& name, const HttpHead& head, std::uint64_t size);
  std::string token_of(const RemoteVersion& version);
  // Returns the names directly under a prefix, like entries(), or nullopt for an empty prefix.
  std::optional<std::vector<std::string>> list_prefix(const std::string& name,
                                                      const S3Name& prefix);
  pugi::xml_document parse_page(const std::string& name, const S3Answer& answer);

  Http& http_;
  const bool insecure_http_;
  const S3Options options_;
  std::mutex mutex_;
  std::unique_ptr<S3CredentialChain> chain_;
  std::map<std::string, std::string> regions_;  // regions of buckets, as servers reported them
};

S3CredentialChain& S3Store::chain() {
  const std::lock_guard lock(mutex_);
  if (!chain_) chain_ = std::make_unique<S3CredentialChain>(http_);
  return *chain_;
}

bool S3Store::learn_region(const std::string& bucket, const HttpHead& head) {
  if (head.status != 301 && head.status != 307 && head.status != 400) return false;
  const std::string_view region = head.header("x-amz-bucket-region");
  if (!is_region(region)) return false;
  const std::lock_guard lock(mutex_);
  const auto [at, is_new] = regions_.emplace(bucket, region);
  // Concurrent requests to the old region are sent again as well. If a server later reports another
  // region, the first one is kept.
  return is_new || (head.status == 400 ? false : at->second == region);
}

// Returns true if URLs have the bucket's name in the host, not in the path.
bool S3Store::is_virtual_host(const std::string& bucket, const std::string& host,
                              const S3Settings& settings) const {
  // The name must be valid in a host, and by default must not contain a dot: a certificate covers
  // only one label before "s3", a host has no upper case, and an IP address has no subdomains.
  const bool is_name =
      bucket.size() <= 63 && std::ranges::all_of(bucket, [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
      });
  const bool has_dot = bucket.find('.') != std::string::npos;
  const std::string& style =
      options_.addressing.empty() ? settings.addressing : options_.addressing;
  if (style.empty() || style == "auto") return settings.endpoint.empty() && is_name && !has_dot;
  if (style == "path") return false;
  if (style != "virtual") {
    throw Error(ErrorCode::kUnreadable, "s3://" + bucket,
                "addressing_style " + in_quotes(style) + ": expected path, virtual or auto");
  }
  const bool is_address =
      host.starts_with('[') || host.find_first_not_of("0123456789.:") == std::string::npos;
  if (is_name && !is_address) return true;
  throw Error(ErrorCode::kUnreadable, "s3://" + bucket,
              std::string(is_name ? "the endpoint is an address"
                                  : "the bucket's name is not a valid host name") +
                  ", so virtual-host style is impossible: use -o s3_addressing=path");
}

HttpRequest S3Store::make_request(const Target& target,
                                  const std::optional<S3Credentials>& credentials) {
  const S3Settings& settings = chain().settings();
  const S3Name& name = target.name;
  std::string region = settings.region.empty() ? "us-east-1" : settings.region;
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = regions_.find(name.bucket); at != regions_.end()) region = at->second;
  }
  const std::string url_name = "s3://" + name.bucket + "/" + name.key;
  std::string scheme = "https", host, base;
  if (!settings.endpoint.empty()) {
    const auto endpoint = parse_web_url(settings.endpoint);
    if (!endpoint) {
      throw Error(ErrorCode::kUnreadable, url_name,
                  "the endpoint (AWS_ENDPOINT_URL): not an http or https URL");
    }
    if (endpoint->scheme == "http" && !endpoint->is_loopback() && !insecure_http_) {
      throw Error(ErrorCode::kUnreadable, url_name,
                  "the endpoint is http: use https, or -o insecure_http");
    }
    scheme = endpoint->scheme;
    host = endpoint->authority();
    base = percent_decode(endpoint->path);
    while (base.ends_with('/')) base.pop_back();
  } else {
    if (!is_region(region)) {
      throw Error(ErrorCode::kUnreadable, url_name, "AWS_REGION: not the name of a region");
    }
    host = "s3." + region + ".amazonaws.com" + (region.starts_with("cn-") ? ".cn" : "");
  }
  S3Request request;
  const bool is_virtual = is_virtual_host(name.bucket, host, settings);
  request.path = base + (is_virtual ? "/" : "/" + name.bucket + "/") + name.key;
  // The endpoint's host may already begin with the bucket's name.
  const bool has_bucket = is_virtual && host.starts_with(name.bucket + ".");
  request.host = is_virtual && !has_bucket ? name.bucket + "." + host : host;
  request.query = target.query;
  if (target.range) {
    request.headers.emplace_back(
        "range", "bytes=" + std::to_string(target.range->offset) + "-" +
                     std::to_string(target.range->offset + target.range->length - 1));
  }
  std::vector<std::string> headers = target.headers;
  if (options_.requester_pays || settings.requester_pays) {
    request.headers.emplace_back("x-amz-request-payer", "requester");
    headers.emplace_back("x-amz-request-payer: requester");
  }
  const std::string query = canonical_query(request.query);
  HttpRequest sent{.url = scheme + "://" + request.host + canonical_path(request.path) +
                          (query.empty() ? "" : "?" + query),
                   .headers = std::move(headers),
                   .range = target.range,
                   .follow = false,
                   .ca_file = settings.ca_file};
  if (credentials) {
    sent.secrets = sign(request, *credentials, region, std::chrono::system_clock::now());
  }
  return sent;
}

S3Answer S3Store::ask(const Target& target, std::size_t most, Patience patience) {
  constexpr unsigned kMaxTries = 8;
  bool is_renewed = false;
  for (unsigned tries = 1;; ++tries) {
    const std::optional<S3Credentials> credentials = this->credentials();
    const HttpRequest request = make_request(target, credentials);
    S3Answer result{.answer = http_.get(request, most, patience, &is_slow_down),
                    .is_signed = credentials.has_value(),
                    .is_unsigned = is_unsigned()};
    const HttpHead& head = result.answer.head;
    if (head.status >= 300) {
      // The query contains the name of an object, which is not a secret.
      std::vector<std::string> secrets = secrets_of({.url = "", .secrets = request.secrets});
      if (credentials) secrets.push_back(credentials->secret);
      result.code = aws_error_code(result.answer.body);
      result.reason = reason_text(result.answer, secrets);
    }
    if (tries == kMaxTries) return result;
    if (learn_region(target.name.bucket, head)) continue;
    if (is_renewed || !is_expired(result.code) || !chain().renew(credentials)) return result;
    is_renewed = true;
  }
}

RemoteVersion S3Store::version_of(const std::string& name, const HttpHead& head,
                                  std::uint64_t size) {
  RemoteVersion version;
  version.name = name;
  version.size = size;
  version.last_modified = short_word(head.header("last-modified"));
  version.mtime.tv_sec = parse_http_date(version.last_modified).value_or(0);
  const std::string etag = short_word(head.header("etag"));
  const auto is_tag = [](std::string_view text) {
    return text.size() > 2 && text.front() == '"' && text.back() == '"';
  };
  if (is_tag(etag)) version.etag = etag;
  if (etag.starts_with("W/") && is_tag(etag.substr(2))) version.weak_etag = etag.substr(2);
  version.version_id = short_word(head.header("x-amz-version-id"));
  if (version.version_id == "null") version.version_id.clear();  // the bucket has no versions
  version.is_weak = version.etag.empty() && version.version_id.empty();
  version.token = token_of(version);
  return version;
}

std::string S3Store::token_of(const RemoteVersion& version) {
  // Two endpoints may use the same name and ETag for different bytes.
  std::string identity = chain().settings().endpoint;
  for (const std::string& part :
       {version.name, version.version_id, version.version_id.empty() ? version.etag : "",
        version.is_weak ? version.last_modified : "", std::to_string(version.size)}) {
    identity += '\0' + part;
  }
  if (version.is_weak && !version.weak_etag.empty()) identity += '\0' + version.weak_etag;
  return "s3-" + sha256_hex(identity);
}

Found S3Store::find(const std::string& name, const RemoteVersion* known, Patience patience) {
  Target target{.name = parse_s3_name(name), .range = ByteRange{0, kFirstBlock}};
  if (target.name.key.empty()) {
    throw Error(ErrorCode::kUnreadable, name, "a bucket, not an object");
  }
  // A version of the same name at another endpoint is a different object.
  if (known != nullptr && known->token != token_of(*known)) known = nullptr;
  if (known != nullptr && !known->etag.empty()) {
    target.headers.push_back("If-None-Match: " + known->etag);
  }
  S3Answer found = ask(target, kFirstBlock, patience);
  if (found.answer.head.status == 304 && known != nullptr) {
    const std::string_view id = found.answer.head.header("x-amz-version-id");
    if (id.empty() || id == "null" || id == known->version_id) return {*known, {}};
  }
  if (found.answer.head.status == 304) {  // the same bytes were written again, as a new version
    target.headers.clear();
    found = ask(target, kFirstBlock, patience);
  }
  if (found.answer.head.status == 416) {  // an empty object has no range
    target.range.reset();
    found = ask(target, kFirstBlock, patience);
    if (found.answer.head.status == 200 && found.answer.body.empty()) {
      return {version_of(name, found.answer.head, 0), {}};
    }
    if (found.answer.head.status == 200) {
      throw Error(ErrorCode::kUnreadable, name, "the object changed while it was opened");
    }
  }
  const HttpHead& head = found.answer.head;
  if (head.status == 200) {
    if (found.answer.body.empty() && head.header("content-length") == "0") {
      return {version_of(name, head, 0), {}};
    }
    const std::uint64_t size = found.answer.body.size();
    if (decimal(head.header("content-length")) == size && encoding_refusal(head).empty()) {
      return {version_of(name, head, size), std::move(found.answer.body)};
    }
    throw Error(ErrorCode::kUnreadable, name, "the server does not support range requests");
  }
  if (head.status != 206) throw_refused(name, found);
  const auto range = parse_content_range(head.header("content-range"));
  if (!range || range->range.offset != 0 || range->range.length != found.answer.body.size() ||
      range->range.length != std::min(range->size, kFirstBlock)) {
    throw Error(ErrorCode::kUnreadable, name, "the server answered with another range");
  }
  RemoteVersion version = version_of(name, head, range->size);
  const ResponseVerdict verdict = stfs::judge(version, head, range->range);
  if (verdict.kind != ResponseVerdict::Kind::kAccept) {
    throw Error(ErrorCode::kUnreadable, name, verdict.text);
  }
  return {std::move(version), std::move(found.answer.body)};
}

// Returns a listed key without the prefix, or nullopt if the rest is not a file name.
std::optional<std::string> listed_name(std::string key, const std::string& prefix,
                                       bool is_encoded) {
  if (is_encoded) {
    std::ranges::replace(key, '+', ' ');
    key = percent_decode(key);
  }
  if (!key.starts_with(prefix)) return std::nullopt;
  key.erase(0, prefix.size());
  const bool is_file =
      !key.empty() && key != "." && key != ".." && std::ranges::all_of(key, [](char c) {
        const auto byte = static_cast<unsigned char>(c);
        return byte >= 0x20 && byte != 0x7f && c != '/';
      });
  return is_file ? std::optional(std::move(key)) : std::nullopt;
}

pugi::xml_document S3Store::parse_page(const std::string& name, const S3Answer& answer) {
  if (answer.answer.head.status != 200) throw_refused(name, answer);
  pugi::xml_document document;
  document.load_buffer(answer.answer.body.data(), answer.answer.body.size(),
                       pugi::parse_default | pugi::parse_ws_pcdata_single);
  if (std::string_view(document.document_element().name()) != "ListBucketResult") {
    throw Error(ErrorCode::kUnreadable, name, "the server's response is not a listing");
  }
  return document;
}

std::optional<std::vector<std::string>> S3Store::list_prefix(const std::string& name,
                                                             const S3Name& prefix) {
  std::vector<std::string> names;
  bool is_there = false;
  std::size_t seen = 0;
  std::string token;
  for (std::size_t page = 0; page < kMaxListingPages; ++page) {
    Target target{.name = {prefix.bucket, ""},
                  .query = {{"list-type", "2"},
                            {"delimiter", "/"},
                            {"encoding-type", "url"},
                            {"prefix", prefix.key}}};
    if (!token.empty()) target.query.emplace_back("continuation-token", token);
    const pugi::xml_document document = parse_page(name, ask(target, kMaxListing));
    const pugi::xml_node listing = document.document_element();
    const bool is_encoded = std::string_view(listing.child_value("EncodingType")) == "url";
    for (const pugi::xml_node entry : listing.children()) {
      const std::string_view kind = entry.name();
      if (kind != "Contents" && kind != "CommonPrefixes") continue;
      is_there = true;
      if (++seen > kMaxListedNames) {
        throw Error(ErrorCode::kUnreadable, name, "a directory of more than 100000 names");
      }
      const bool is_file = kind == "Contents";
      std::string key = is_file ? entry.child_value("Key") : entry.child_value("Prefix");
      if (key.ends_with('/') && !is_file) key.pop_back();
      if (key.ends_with("%2F") && !is_file && is_encoded) key.resize(key.size() - 3);
      if (auto listed = listed_name(std::move(key), prefix.key, is_encoded)) {
        names.push_back(*std::move(listed) + (is_file ? "" : "/"));
      }
    }
    const std::string next = listing.child_value("NextContinuationToken");
    if (std::string_view(listing.child_value("IsTruncated")) != "true") {
      if (!is_there) return std::nullopt;
      std::ranges::sort(names);
      names.erase(std::unique(names.begin(), names.end()), names.end());
      return names;
    }
    if (next.empty() || next == token) break;
    token = next;
  }
  throw Error(ErrorCode::kUnreadable, name, "the server's listing does not end");
}

std::optional<std::vector<std::string>> S3Store::list(const std::string& name) {
  const S3Name asked = parse_s3_name(name);
  S3Name prefix = asked;
  if (!asked.key.empty() && !asked.key.ends_with('/')) {
    // Ask for the first key that begins with this name, which is the object itself if it exists.
    // The keys "model/.." may come after thousands of keys "model-..".
    const S3Answer first = ask({.name = {asked.bucket, ""},
                                .query = {{"list-type", "2"},
                                          {"max-keys", "1"},
                                          {"encoding-type", "url"},
                                          {"prefix", asked.key}}},
                               kMaxListing);
    // The user may be permitted to read the object but not to list the bucket.
    if (first.answer.head.status == 403 || first.answer.head.status == 401) return std::nullopt;
    const pugi::xml_document document = parse_page(name, first);
    const pugi::xml_node listing = document.document_element();
    const pugi::xml_node object = listing.child("Contents");
    std::string key = object.child_value("Key");
    if (key.empty()) throw Error(ErrorCode::kAbsent, name, "no such object");
    if (std::string_view(listing.child_value("EncodingType")) == "url") {
      std::ranges::replace(key, '+', ' ');
      key = percent_decode(key);
    }
    prefix.key += '/';
    if (key == asked.key) {
      if (object.child_value("Size") != std::string_view("0")) return std::nullopt;
      if (!list_prefix(name, prefix)) return std::nullopt;  // an empty file
    }
  }
  auto names = list_prefix(name, prefix);
  if (!names && !asked.key.empty()) throw Error(ErrorCode::kAbsent, name, "no such object");
  if (!names) names.emplace();  // an empty bucket
  std::erase_if(*names, [](const std::string& entry) { return entry.ends_with('/'); });
  return names;
}

std::vector<std::string> S3Store::entries(const std::string& name) {
  S3Name prefix = parse_s3_name(name);
  if (!prefix.key.empty() && !prefix.key.ends_with('/')) prefix.key += '/';
  auto names = list_prefix(name, prefix);
  if (!names) throw Error(ErrorCode::kAbsent, name, "no objects below it");
  return *std::move(names);
}

HttpRequest S3Remote::request(ByteRange range) {
  S3Store::Target target{.name = name_, .range = range};
  if (!version_.etag.empty()) target.headers.push_back("If-Match: " + version_.etag);
  if (!version_.version_id.empty() && by_version_) {
    target.query.emplace_back("versionId", version_.version_id);
  }
  const std::optional<S3Credentials> credentials = store_.credentials();
  {
    const std::lock_guard lock(mutex_);
    used_ = credentials;
  }
  return store_.make_request(target, credentials);
}

ResponseVerdict S3Remote::judge(const HttpHead& head, ByteRange range) const {
  if (store_.learn_region(name_.bucket, head))
    return {ResponseVerdict::Kind::kRetry, "another region"};
  if (head.status == 403) was_forbidden_ = true;
  // S3 returns 400 for an expired token, and for other errors.
  if (head.status == 400) return {ResponseVerdict::Kind::kRenew, "the server answered 400"};
  return stfs::judge(version_, head, range);
}

bool S3Remote::renew() {
  std::optional<S3Credentials> used;
  {
    const std::lock_guard lock(mutex_);
    used = used_;
  }
  const bool is_new = store_.chain().renew(used);
  if (!was_forbidden_ || version_.version_id.empty() || version_.etag.empty()) return is_new;
  by_version_ = false;  // the permission s3:GetObjectVersion may be missing
  return true;
}

}  // namespace

std::unique_ptr<Store> make_s3_store(Http& http, bool insecure_http, S3Options options) {
  return std::make_unique<S3Store>(http, insecure_http, std::move(options));
}

}  // namespace stfs
