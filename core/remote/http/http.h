// HTTP/1.1 requests: libcurl's multi interface, one thread of its own.
//
// A request follows redirects itself, so that it can look at each target first:
//
//   - secrets go to the origin (scheme, host, port) of the first URL only;
//   - https never leads to http;
//   - http is refused unless the host is a loopback address or Options::insecure_http is set. The
//     link-local addresses that hand out roles speak http alone: a request to them is permitted
//     with `use_proxy` false;
//   - a redirect never leads to an address that hands out roles (169.254/16, fe80::/10 and a few
//     more), to a loopback address only from one, and to a private one (10/8 ...) never from a
//     public one; a connection is checked by the address that it is made to;
//   - the body of a POST or PUT is never redirected to another origin;
//   - more than 10 redirects are an error.
//
// Http asks for no content encoding and passes on answers as they come: the caller judges status
// and headers. Http does not try again: next_try() says what the caller does.
//
// Proxies come from the environment as curl(1) takes them, but none stands before a loopback
// address. CA files come from SSL_CERT_FILE, CURL_CA_BUNDLE and SSL_CERT_DIR. The constructor reads
// these variables, and nothing reads them later: a host program may set others. A netrc file is
// read only where a request says so.
//
// Thread safety: all members. Lifetime: the destructor ends all transfers with ECANCELED and waits
// for their callbacks; what these start ends the same. The thread is started by the first request:
// a process that has sent none may fork.
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

enum class HttpPlace;  // http_rules.h
struct HttpHead;

struct HttpRequest {
  std::string url;
  std::string method = "GET";
  std::string body = {};                  // of POST and PUT
  std::vector<std::string> headers = {};  // "Name: value"
  std::vector<std::string> secrets = {};  // headers for the first origin only
  std::optional<ByteRange> range = {};    // sent as Range: bytes=first-last
  bool follow = true;                     // false: an answer 3xx is passed on
  // Asked of a redirect that may be followed, on the thread of Http: true passes it on.
  std::function<bool(const HttpHead&)> passes_on = {};
  bool use_netrc = false;       // user and password of ~/.netrc ($NETRC) for the first host
  bool use_proxy = true;        // false: for addresses that are this machine's own
  bool new_connection = false;  // none that was kept
  std::string ca_file = {};     // trusted instead of the usual ones; "" for those
  // Ends the transfer: less than 1 KiB a second for this long (a stall), and the time of the whole
  // since it might begin, in which it may also wait for a connection.
  std::chrono::milliseconds stall{20'000};
  std::chrono::milliseconds limit{0};  // 0: none
  // Once it is true and Http::look() was called, the transfer ends with ECANCELED.
  std::shared_ptr<const std::atomic<bool>> is_abandoned = {};
  // Set for the target of a redirect that was passed on: HttpHead::place of that answer. The rules
  // for redirects then hold for this URL.
  std::optional<HttpPlace> redirected_by = {};
};

// The beginning of an answer.
struct HttpHead {
  int status = 0;
  std::string url;  // that gave it, after redirects; may hold secrets
  bool was_redirected = false;
  std::string target = {};  // of a redirect that may be followed: its URL, which may hold secrets
  // Names in lower case; 64 KiB at most, with what comes behind the body.
  std::vector<std::pair<std::string, std::string>> headers;
  HttpPlace place{};  // of the connection; kElsewhere through a proxy
  // The texts that the request carried and no message may show (server_reason.h).
  std::vector<std::string> secrets = {};

  std::string_view header(std::string_view name) const;  // the last of this name; "" for none
};

// How a transfer ended. `error` is 0 when the answer came to its end; ECANCELED when a callback or
// HttpRequest::is_abandoned said so; EIO when the transfer broke or could not begin, ETIMEDOUT when
// it stalled, EACCES when a rule above refuses it (trying again does not help), EPROTO when the
// peer is no server of HTTP or its certificate is not trusted. `text` says what happened, in one
// line, printable, without secrets.
struct HttpEnd {
  int error = 0;
  std::string text;
  // The request was sent over a connection that had carried another. What came may then be bytes
  // that the server sent behind the answer before: a wrong answer is no reason to give up before
  // HttpRequest::new_connection has been tried.
  bool was_kept = false;
};

// Called on the thread of Http, never two at a time. They must not block for long and must not
// throw.
struct HttpCallbacks {
  std::function<bool(const HttpHead&)> head = {};             // false: end the transfer
  std::function<bool(std::span<const std::byte>)> data = {};  // false: end the transfer
  std::function<void(const HttpEnd&)> end;                    // once, last
};

// A whole answer in memory.
struct HttpAnswer {
  HttpHead head;
  std::string body;
};

class Http {
 public:
  struct Options {
    unsigned connections = 8;  // to one host at a time; more transfers wait
    bool insecure_http = false;
    Counters* counters = nullptr;
    std::chrono::milliseconds patience{60'000};  // of get()
  };

  explicit Http(const Options& options);
  Http(const Http&) = delete;
  Http& operator=(const Http&) = delete;
  virtual ~Http();

  // Begins a transfer. Throws std::bad_alloc, and Error kUnreadable when the thread
  // cannot be started; then no callback is called. Virtual, so that a test can answer.
  virtual void start(HttpRequest request, HttpCallbacks callbacks);

  // Ends the transfers that were abandoned. Any thread may call it. Virtual for the same reason.
  virtual void look();

  // Sends a request and waits for the whole answer, of at most `most` bytes, whatever its status.
  // Tries again as next_try() says, until `patience` is over; that of the Options unless it is
  // given. `is_temporary` tells more of an answer than its status does. Throws Error kUnreadable
  // for what HttpEnd calls an error, and for a longer answer; the body of a longer answer from
  // status 300 on is cut instead. Never to be called on the thread of Http.
  HttpAnswer get(const HttpRequest& request, std::size_t most,
                 std::optional<std::chrono::milliseconds> patience = {},
                 const std::function<bool(const HttpAnswer&)>& is_temporary = {});

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
  Counters* counters_;
  std::chrono::milliseconds patience_;
};

// The libraries behind it, as they are loaded: "libcurl 7.88.1, OpenSSL 3.0.22".
std::string http_libraries();

// Whether an answer says that the same request may succeed later: 408, 429, 500, 502, 503, 504 and
// 509.
bool is_temporary(int status);

// Whether a request is sent again: all who send requests ask this. `answer` is what the caller
// thinks of the answer that came, whole or in part.
enum class AnswerIs { kGood, kTemporary, kWrong };
enum class NextTry {
  kNone,
  kNow,    // on a new connection: it may be bytes that were sent behind the answer before
  kLater,  // after Backoff::next()
};
NextTry next_try(const HttpEnd& end, AnswerIs answer);

// Seconds since the epoch of a date as HTTP writes it ("Sun, 06 Nov 1994 08:49:37 GMT", and the two
// obsolete forms); nullopt for what is no date.
std::optional<std::int64_t> parse_http_date(std::string_view text);

// The pause before a request is sent again: full jitter under a bound that doubles from 100 ms to
// 10 s. What Retry-After (seconds or a date) or RateLimit ("api";r=0;t=55) ask for is the least.
class Backoff {
 public:
  std::chrono::milliseconds next(const HttpHead* head = nullptr);
  unsigned tries() const { return tries_; }

 private:
  unsigned tries_ = 0;
};

}  // namespace stfs
