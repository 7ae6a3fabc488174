#include "core/remote/stores/web.h"

#include "core/base/error.h"
#include "core/base/sha256.h"
#include "core/base/text.h"
#include "core/remote/http/server_reason.h"
#include "core/remote/http/url.h"
#include "core/remote/stores/hub_name.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs {
namespace {

constexpr std::size_t kLongestValidator = 512;  // bytes

// Returns true for a text that is safe in a header, in JSON and on a terminal.
bool is_plain_validator(std::string_view text) {
  return !text.empty() && text.size() <= kLongestValidator &&
         std::ranges::all_of(text, [](char c) { return c >= ' ' && c < 0x7f; });
}

// Returns true for a strong ETag, which is quoted. A weak one has the prefix "W/" (RFC 9110,
// 8.8.3).
bool is_strong_etag(std::string_view etag) {
  return is_plain_validator(etag) && etag.size() >= 2 && etag.starts_with('"') &&
         etag.find('"', 1) == etag.size() - 1;
}

// Returns the token of a version. Two URLs that differ only in their query are two objects with the
// same public name, but parameters that sign a URL do not count.
std::string web_token(const WebUrl& url, const RemoteVersion& version) {
  std::string identity = without_signature(url.text()) + '\0';  // no part contains a NUL
  if (!version.etag.empty()) {
    identity += version.etag + '\0';
  } else {
    identity += version.last_modified + '\0' + std::to_string(version.size) + '\0';
    if (!version.weak_etag.empty()) identity += version.weak_etag + '\0';
  }
  return "web-" + sha256_hex(identity);
}

// Returns ": its signed URL expired at TIME: get a new one", or "" if the query contains no time or
// a future one.
std::string expired_text(const std::string& url) {
  const auto now = std::chrono::duration_cast<std::chrono::seconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
  const std::optional<std::int64_t> end = signature_expiry(url);
  if (!end || *end > now) return "";
  return ": its signed URL expired at " + rfc3339(*end, 0).substr(0, 19) + "Z: get a new one";
}

class WebRemote final : public Remote {
 public:
  explicit WebRemote(RemoteVersion version) : version_(std::move(version)) {}

  HttpRequest request(ByteRange range) override {
    HttpRequest request{.url = version_.url.empty() ? version_.name : version_.url};
    request.range = range;
    request.use_netrc = true;
    if (!version_.etag.empty()) {
      request.headers.push_back("If-Match: " + version_.etag);
    } else if (!version_.last_modified.empty()) {
      request.headers.push_back("If-Unmodified-Since: " + version_.last_modified);
    }
    return request;
  }
  ResponseVerdict judge(const HttpHead& head, ByteRange range) const override {
    ResponseVerdict verdict = stfs::judge(version_, head, range);
    if (verdict.kind == ResponseVerdict::Kind::kRenew) verdict.text += expired_text(version_.url);
    return verdict;
  }
  bool renew() override { return false; }

 private:
  const RemoteVersion version_;
};

class WebStore final : public Store {
 public:
  explicit WebStore(Http& http) : http_(http) {}

  Found find(const std::string& name, const RemoteVersion* known, Patience patience) override;
  std::optional<std::vector<std::string>> list(const std::string&) override { return std::nullopt; }
  std::vector<std::string> entries(const std::string& name) override {
    throw Error(
        ErrorCode::kUsage, public_name(name),
        "a web server does not list its directories: name a directory of this machine, of S3 "
        "or of the Hub");
  }
  std::unique_ptr<Remote> remote(const RemoteVersion& version) override {
    return std::make_unique<WebRemote>(version);
  }

 private:
  Http& http_;
};

[[noreturn]] void refuse_object(const std::string& name, std::string_view rule) {
  throw Error(ErrorCode::kUnreadable, public_name(name), rule);
}

// Returns the version that a response describes. `size` is the size of the object in bytes.
RemoteVersion web_version(const std::string& name, const WebUrl& url, const HttpHead& head,
                          std::uint64_t size) {
  RemoteVersion version;
  version.name = public_name(name);
  if (!url.query.empty()) version.url = url.text();
  version.size = size;
  const std::string_view etag = head.header("etag");
  const std::string_view last_modified = head.header("last-modified");
  if (is_strong_etag(etag)) version.etag = etag;
  if (etag.starts_with("W/") && is_strong_etag(etag.substr(2))) version.weak_etag = etag.substr(2);
  if (is_plain_validator(last_modified)) version.last_modified = last_modified;
  if (version.etag.empty() && version.last_modified.empty() && size > 0) {
    refuse_object(name,
                  "its server sends neither ETag nor Last-Modified, so stfs cannot pin a version: "
                  "download the file first");
  }
  version.is_weak = version.etag.empty() && size > 0;
  version.mtime.tv_sec = parse_http_date(version.last_modified).value_or(0);
  version.token = web_token(url, version);
  return version;
}

// Returns what the user can do about a 401, 403 or 400 response, as the end of a message.
std::string advice_on(const WebUrl& url, const HttpResponse& answer, const std::string& reason) {
  const std::string said = lower_case(reason);
  if (std::string text = expired_text(url.text()); !text.empty()) return text;
  if (without_signature(url.text()) != url.text()) {
    return said.find("expired") != std::string::npos
               ? ": its signed URL has expired: get a new one"
               : ": its signed URL does not permit this file; a URL that was signed for an index "
                 "permits no shard: get a new one";
  }
  if (answer.head.status == 400) return "";
  std::string name = hub_name_of(url);
  if (name.empty() && url.host == "huggingface.co") name = "hf://org/name/path";
  if (!name.empty()) return ": name it " + name + ", then stfs sends HF_TOKEN";
  if (lower_case(answer.head.header("www-authenticate")).starts_with("bearer")) {
    return ": it requires a bearer token, which stfs sends only to the Hub (hf://)";
  }
  if (url.scheme == "http" && !url.is_loopback()) {
    return ": a user and a password of ~/.netrc are not sent over http: use https";
  }
  return ": name a user and a password for its host in ~/.netrc";
}

// Throws the Error for a response that does not contain the object.
[[noreturn]] void refuse_web_answer(const std::string& name, const WebUrl& url,
                                    const HttpResponse& answer) {
  const HttpHead& head = answer.head;
  const int status = head.status;
  const std::string hub_name = hub_name_of(url);
  const bool is_page = !hub_name.empty() && url.path.find("/resolve/") == std::string::npos;
  const std::string page = "a page of the Hub, not a file: name it " + hub_name;
  if (status == 404 || status == 410) {
    throw Error(ErrorCode::kAbsent, public_name(name), is_page ? page : "No such object");
  }
  const std::string reason = status >= 400 ? reason_text(answer, head.secrets) : "";
  const std::string said = "its server answered " + std::to_string(status) + reason;
  if (status == 401 || status == 403) {
    // Storage services return 403 for an object that does not exist, too.
    throw Error(status == 403 ? ErrorCode::kHidden : ErrorCode::kUnreadable, public_name(name),
                "Permission denied: " + said + advice_on(url, answer, reason));
  }
  if (status == 200 && head.header("content-type").starts_with("text/html")) {
    refuse_object(name, is_page
                            ? page
                            : "its server answers with a web page, as for a directory: name the "
                              "file or the index");
  }
  if (status == 200)
    refuse_object(name, "its server does not support range requests: download the file first");
  refuse_object(name, said + (status == 400 ? advice_on(url, answer, reason) : ""));
}

Found WebStore::find(const std::string& name, const RemoteVersion* known, Patience patience) {
  const std::optional<WebUrl> url = parse_web_url(name);
  if (!url) {
    const std::size_t begin = scheme_of(name).size() + 3;
    const bool has_user = name.find('@', begin) < name.find_first_of("/?#", begin);
    refuse_object(name, has_user ? "a user and a password are not taken from a URL: name them in "
                                   "~/.netrc"
                                 : "not a URL of http or https");
  }
  HttpRequest request{.url = url->text()};
  request.range = ByteRange{.offset = 0, .length = Source::kFetchUnit};
  request.use_netrc = true;
  // Another object may have the same public name, because the name has no query.
  const bool asks =
      known != nullptr && is_strong_etag(known->etag) && known->token == web_token(*url, *known);
  if (asks) request.headers.push_back("If-None-Match: " + known->etag);
  HttpResponse answer = http_.get(request, Source::kFetchUnit, patience);
  const HttpHead& head = answer.head;
  if (asks && head.status == 304) {
    RemoteVersion version = *known;
    version.url = url->query.empty() ? "" : url->text();
    return {.version = std::move(version)};
  }
  const std::optional<ContentRange> content = parse_content_range(head.header("content-range"));
  const bool is_empty = (head.status == 416 && content && content->size == 0) ||
                        (head.status == 200 && head.header("content-length") == "0");
  if (is_empty) return {.version = web_version(name, *url, head, 0)};
  // A server without range requests may send a small object whole.
  const bool is_whole = head.status == 200 &&
                        decimal(head.header("content-length")) == answer.body.size() &&
                        !lower_case(head.header("content-type")).starts_with("text/html");
  if (head.status != 206 && !is_whole) refuse_web_answer(name, *url, answer);
  if (const std::string text = encoding_refusal(head); !text.empty()) refuse_object(name, text);
  if (is_whole) {
    return {.version = web_version(name, *url, head, answer.body.size()),
            .first = std::move(answer.body)};
  }
  if (!content || content->size > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
    refuse_object(name, "its server sends no valid Content-Range header");
  }
  if (content->range.offset != 0 || content->range.length != answer.body.size() ||
      content->range.length != std::min(content->size, Source::kFetchUnit)) {
    refuse_object(name, "its server sends other bytes than the requested range");
  }
  return {.version = web_version(name, *url, head, content->size), .first = std::move(answer.body)};
}

}  // namespace

std::unique_ptr<Store> make_web_store(Http& http) { return std::make_unique<WebStore>(http); }

}  // namespace stfs
