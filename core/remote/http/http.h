// HTTP/1.1 requests, sent with libcurl's multi interface by one thread per Http.
//
// A request follows redirects itself, so that it can check each target first:
//
//   - Secrets are sent only to the origin (scheme, host, port) of the first URL.
//   - A redirect from https to http is refused.
//   - http is refused unless the host is a loopback address or Options::insecure_http is set. One
//     exception: the link-local addresses that hand out roles support only http, so a request with
//     `use_proxy` false may use http for them.
//   - A redirect to an address that hands out roles (169.254/16, fe80::/10 and a few more) is
//     refused. A redirect to a loopback address is followed only if it comes from a loopback
//     address, and a redirect to a private address (10/8 ...) is refused if it comes from a public
//     one. The address that the connection is actually made to is checked as well.
//   - The body of a POST or PUT is never sent to another origin.
//   - More than 10 redirects are an error.
//
// Http requests no content encoding and passes on every response as it arrives; the caller checks
// status and headers. start() does not retry: next_try() says whether the caller should.
//
// Proxies are taken from the environment, as curl(1) takes them, but a loopback address is never
// contacted through a proxy. CA files are taken from SSL_CERT_FILE, CURL_CA_BUNDLE and
// SSL_CERT_DIR. Only the constructor reads these variables, so the host program may change them
// later. A netrc file is read only if a request asks for it.
//
// Thread safety: all members may be called from any thread. Lifetime: the destructor ends all
// transfers with ECANCELED and waits for their callbacks; a transfer that such a callback starts
// also ends with ECANCELED. The first request starts the thread; until then the process may fork.
#pragma once

#include "core/source/counters.h"
#include "core/source/source.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs {

enum class AddressKind;  // http_rules.h
struct HttpHead;

struct HttpRequest {
  std::string url;
  std::string method = "GET";
  std::string body = {};                  // the body of a POST or PUT
  std::vector<std::string> headers = {};  // "Name: value"
  std::vector<std::string> secrets = {};  // headers that are sent only to the first origin
  std::optional<ByteRange> range = {};    // sent as Range: bytes=first-last
  bool follow = true;                     // false: a 3xx response is passed on
  // Called on the thread of Http for each redirect that the rules permit. If it returns true, the
  // 3xx response is passed on and the redirect is not followed.
  std::function<bool(const HttpHead&)> returns_redirect = {};
  bool use_netrc = false;  // send the user and password for the first host in ~/.netrc ($NETRC)
  bool use_proxy = true;   // false: connect directly, as to the role addresses of this machine
  bool new_connection = false;  // do not reuse a connection
  std::string ca_file = {};     // the CA file to use instead of the default one; "" for the default
  // The transfer ends with ETIMEDOUT if less than 1 KiB per second arrives for `stall`, or if it
  // takes longer than `limit` from start() on, including the wait for a connection.
  std::chrono::milliseconds stall{20'000};
  std::chrono::milliseconds limit{0};  // 0: no limit
  // If the flag becomes true, the transfer ends with ECANCELED at the next Http::look().
  std::shared_ptr<const std::atomic<bool>> is_abandoned = {};
  // Set if the caller follows a redirect that was passed on: HttpHead::place of that response. The
  // rules for redirects then apply to `url`.
  std::optional<AddressKind> redirected_by = {};
};

// The status and headers of a response.
struct HttpHead {
  int status = 0;
  std::string url;  // the URL that sent the response, after redirects; may contain secrets
  bool was_redirected = false;
  // The absolute URL that a permitted redirect points to; may contain secrets. "" for any other
  // response.
  std::string target = {};
  // Names are in lower case. The head and the trailer of a response have at most 64 KiB together.
  std::vector<std::pair<std::string, std::string>> headers;
  AddressKind place{};  // the address of the connection; kElsewhere through a proxy
  // Texts of the request that messages must not show (server_reason.h).
  std::vector<std::string> secrets = {};

  // Returns the value of the last header with this name (in lower case), or "" if the head has
  // none.
  std::string_view header(std::string_view name) const;
};

// How a transfer ended. `error` is
//   0           the response is complete
//   ECANCELED   a callback returned false, or HttpRequest::is_abandoned became true
//   EIO         the connection broke or could not be made
//   ETIMEDOUT   the transfer stalled, or took longer than HttpRequest::limit
//   EACCES      the request is invalid, or a rule above or a proxy refuses it: a retry is useless
//   EPROTO      the peer does not speak HTTP, or its certificate is not trusted
// `text` describes the error in one printable line without secrets.
struct TransferResult {
  int error = 0;
  std::string text;
  // The request reused a connection. The bytes received may then be left over from the previous
  // response. Before the caller gives up because of a wrong response, it should retry with
  // HttpRequest::new_connection.
  bool was_kept = false;
};

// Called on the thread of Http, one at a time. The callbacks must not block for long and must not
// throw.
struct HttpCallbacks {
  // `head` and `data` return false to end the transfer with ECANCELED.
  std::function<bool(const HttpHead&)> head = {};
  std::function<bool(std::span<const std::byte>)> data = {};
  std::function<void(const TransferResult&)> end;  // called once, after all other callbacks
};

// A complete response in memory.
struct HttpResponse {
  HttpHead head;
  std::string body;
};

class Http {
 public:
  struct Options {
    unsigned connections = 8;  // the maximum per origin; further transfers wait
    bool insecure_http = false;
    Counters* counters = nullptr;
    std::chrono::milliseconds patience{60'000};  // the default time limit of get()
  };

  explicit Http(const Options& options);
  Http(const Http&) = delete;
  Http& operator=(const Http&) = delete;
  virtual ~Http();

  // Begins a transfer. Throws std::bad_alloc, or Error kUnreadable if the thread cannot be started;
  // in both cases no callback is called. An invalid request fails through HttpCallbacks::end.
  // Virtual, so that a test can answer.
  virtual void start(HttpRequest request, HttpCallbacks callbacks);

  // Ends the transfers whose HttpRequest::is_abandoned has become true. Virtual, so that a test can
  // replace it.
  virtual void look();

  // Sends a request and returns the complete response, with any status. The body may have at most
  // `most` bytes; a longer one is cut if the status is 300 or higher, and is an error otherwise.
  // Retries as next_try() says until `patience` (by default Options::patience) is over; then a
  // response with a temporary status is returned as well. `is_temporary` may classify further
  // responses as temporary. Throws Error kUnreadable if no complete response arrives. Must not be
  // called on the thread of Http.
  HttpResponse get(const HttpRequest& request, std::size_t most,
                   std::optional<std::chrono::milliseconds> patience = {},
                   const std::function<bool(const HttpResponse&)>& is_temporary = {});

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
  Counters* counters_;
  std::chrono::milliseconds patience_;
};

// Returns the versions of the libraries that are loaded: "libcurl 7.88.1, OpenSSL 3.0.22".
std::string http_libraries();

// Returns true if the status means that the same request may succeed later: 408, 429, 500, 502,
// 503, 504 or 509.
bool is_temporary(int status);

// Decides whether to send a request again; every sender of requests uses this function. `answer` is
// the caller's verdict on the part of the response that has arrived.
enum class ResponseQuality { kGood, kTemporary, kWrong };
enum class NextTry {
  kNone,
  kNow,    // on a new connection, because the bytes may be left over from the previous response
  kLater,  // after Backoff::next()
};
NextTry next_try(const TransferResult& end, ResponseQuality answer);

// Parses an HTTP date ("Sun, 06 Nov 1994 08:49:37 GMT", or one of the two obsolete forms). Returns
// seconds since the epoch, or nullopt if `text` is not a date.
std::optional<std::int64_t> parse_http_date(std::string_view text);

// Computes the pause before a request is sent again: full jitter below a bound that doubles from
// 100 ms to 10 s, plus the time that a response asks for with Retry-After (seconds or a date) or
// RateLimit ("api";r=0;t=55), which counts as at most a day.
class Backoff {
 public:
  // Returns the next pause. `head` is the head of the response to the last try; null if there was
  // none.
  std::chrono::milliseconds next(const HttpHead* head = nullptr);
  unsigned tries() const { return tries_; }

 private:
  unsigned tries_ = 0;
};

}  // namespace stfs
