// Transfers with libcurl.
#include "core/remote/http/http.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/remote/http/http_rules.h"
#include "core/remote/http/libcurl.h"
#include "core/remote/http/server_reason.h"
#include "core/remote/http/url.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <exception>
#include <limits>
#include <list>
#include <map>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

namespace stfs {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A request that was started, with all its redirects.
struct HttpTransfer {
  static constexpr std::uint64_t kLowestRate = 1024;  // bytes per second

  struct EasyDeleter {
    void operator()(CURL* handle) const { libcurl().easy_cleanup(handle); }
  };
  struct ListDeleter {
    void operator()(curl_slist* list) const { libcurl().slist_free_all(list); }
  };

  HttpRequest request;
  HttpCallbacks callbacks;
  const HttpEnvironment* environment = nullptr;  // owned by Http::Impl
  Clock::time_point began = Clock::now();
  bool insecure_http = false;
  Counters* counters = nullptr;

  WebUrl at;                // the URL that is requested now
  std::string origin;       // the origin of `at`
  bool is_at_first = true;  // no redirect has left the first origin: secrets may be sent
  unsigned redirects = 0;   // number of redirects so far
  AddressKind by = AddressKind::kLoopback;  // the place of the connection that redirected to `at`
  bool was_kept = false;                    // TransferResult::was_kept
  std::vector<std::string> secrets;         // HttpHead::secrets

  // The pool that the connection belongs to. The transfers of a pool own it together.
  std::shared_ptr<CURLSH> pool = {};

  // State of the request to `at`. `easy` is null while libcurl has no request.
  std::unique_ptr<CURL, EasyDeleter> easy = {};
  std::unique_ptr<curl_slist, ListDeleter> headers = {};
  std::array<char, CURL_ERROR_SIZE> curl_text{};
  Clock::time_point since{};  // the start of the period in which a stall is measured
  std::uint64_t came = 0;     // bytes received since then
  bool has_socket = false;    // a socket was opened, so the connection was not reused
  bool has_proxy = false;
  AddressKind peer = AddressKind::kElsewhere;
  HttpHead head = {};
  std::size_t header_bytes = 0;
  bool has_head = false;
  std::optional<WebUrl> next = {};  // the target, if the response is a redirect to be followed
  std::size_t unread = 0;           // bytes received of a body that is discarded
  TransferResult failure = {};      // set by a callback, which then ends the transfer

  void restart_stall() {
    since = Clock::now();
    came = 0;
  }
  // Returns the number of bytes that must arrive within `stall`.
  std::uint64_t least() const {
    const auto time = static_cast<std::uint64_t>(request.stall.count());
    return std::max<std::uint64_t>(1, time * kLowestRate / 1000);
  }
  // Returns the time at which HttpRequest::limit is reached.
  Clock::time_point end() const {
    return request.limit.count() == 0 ? Clock::time_point::max() : began + request.limit;
  }
  bool is_abandoned() const { return request.is_abandoned && *request.is_abandoned; }
  AddressKind place() const { return has_proxy ? AddressKind::kElsewhere : peer; }
  // Records the first error. Returns false, so that callbacks can return the result.
  bool fail(int error, std::string text) {
    if (failure.error == 0) failure = {error, std::move(text)};
    return false;
  }
};

namespace {

using Transfer = HttpTransfer;
using HeaderList = std::unique_ptr<curl_slist, Transfer::ListDeleter>;

constexpr std::size_t kMaxHeaders = 64 << 10;  // bytes of all headers of a response
// If the body of a redirect has more bytes, a new connection costs less than reading the body.
constexpr std::size_t kMaxUnread = 16 << 10;
constexpr unsigned kMaxRedirects = 10;

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

// Returns why a URL must not be requested, or "" if it may.
std::string_view refusal_of(const Transfer& transfer, const WebUrl& url) {
  if (url.scheme == "https" || transfer.insecure_http || url.is_loopback()) return "";
  // The addresses that hand out roles support only http.
  const bool is_asked_directly = transfer.redirects == 0 && !transfer.request.use_proxy;
  if (is_asked_directly && place_of(url.host) == AddressKind::kRoles) return "";
  return "http is not encrypted: use https, or permit it with insecure_http (-o insecure_http, "
         "--insecure-http)";
}

// Returns true if the transfer may connect to an address of this place. Otherwise fails the
// transfer. Checks the address itself, because any name may resolve to any address.
bool may_connect(Transfer& transfer, AddressKind place) {
  if (transfer.has_proxy) return true;
  const std::string_view why =
      transfer.redirects > 0 ? redirect_refusal(transfer.by, place) : std::string_view();
  if (!why.empty()) return transfer.fail(EACCES, std::string(why));
  const bool is_role = place == AddressKind::kRoles;
  if (transfer.at.scheme == "http" && !transfer.insecure_http && place != AddressKind::kLoopback &&
      !(is_role && !transfer.request.use_proxy)) {
    return transfer.fail(EACCES,
                         "its name is a loopback name, but it resolves to an address of another "
                         "machine: http is permitted only to this machine (or with insecure_http)");
  }
  return true;
}

// The functions that libcurl calls are noexcept: if memory runs out, the process is terminated.
curl_socket_t open_socket(void* data, curlsocktype, curl_sockaddr* address) noexcept {
  auto& transfer = *static_cast<Transfer*>(data);
  transfer.has_socket = true;
  if (address->family != AF_INET && address->family != AF_INET6) return CURL_SOCKET_BAD;
  if (!may_connect(transfer, place_of(address->addr))) return CURL_SOCKET_BAD;
  return ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

// libcurl calls this before each request is sent, including requests on a reused connection.
int before_request(void* data, char* ip, char*, int, int) noexcept {
  auto& transfer = *static_cast<Transfer*>(data);
  transfer.peer = place_of(std::string(ip));
  // If an address of the host was refused, libcurl tries its other addresses. Forget that failure.
  transfer.failure = {};
  transfer.was_kept = transfer.was_kept || !transfer.has_socket;
  return may_connect(transfer, transfer.peer) ? CURL_PREREQFUNC_OK : CURL_PREREQFUNC_ABORT;
}

// Handles a redirect response. Sets `next` if the redirect is to be followed, and leaves it empty
// if the response is to be passed on. Fails the transfer if a rule refuses the redirect.
bool redirect(Transfer& transfer) {
  const std::string_view location = transfer.head.header("location");
  if (location.empty()) return transfer.fail(EPROTO, "redirects without a Location header");
  const std::optional<WebUrl> target = resolve_url(transfer.at, location);
  if (!target)
    return transfer.fail(EACCES, "redirects to an address that is not an http or https URL");
  if (++transfer.redirects > kMaxRedirects) {
    return transfer.fail(EACCES, "redirects more than 10 times");
  }
  std::string_view why = redirect_refusal(transfer.at, *target, transfer.place());
  if (why.empty()) why = refusal_of(transfer, *target);
  const bool is_elsewhere = target->origin() != transfer.origin;
  const bool has_body = transfer.head.status != 303 && transfer.request.method != "GET" &&
                        transfer.request.method != "HEAD";
  if (why.empty() && is_elsewhere && has_body)
    why = "redirects a request with a body to another host";
  if (!why.empty()) return transfer.fail(EACCES, std::string(why));
  transfer.head.target = target->text();
  if (transfer.request.returns_redirect && transfer.request.returns_redirect(transfer.head))
    return true;
  transfer.by = transfer.place();
  transfer.next = target;
  return true;
}

// Returns why a proxy cannot be used. `status` is its response to CONNECT, or 407 to any request.
std::string proxy_refusal(const Transfer& transfer, long status) {
  return "the proxy answered " + std::to_string(status) + ": " +
         (status == 407 ? "it requires a user and a password: name them in " + transfer.at.scheme +
                              "_proxy, as USER:PASSWORD@HOST:PORT"
          : status == 403 ? "it does not permit " + transfer.at.host +
                                ": ask its administrator, or name this host in no_proxy"
                          : "it does not connect to " + transfer.at.host);
}

// Handles the empty line after the headers of a response.
bool end_of_head(Transfer& transfer) {
  HttpHead& head = transfer.head;
  if (head.status < 200) {
    if (head.status == 101) return transfer.fail(EPROTO, "its server switches to another protocol");
    return true;  // 100 or 103: another head follows
  }
  transfer.has_head = true;
  transfer.restart_stall();
  std::string_view length;
  for (const auto& [name, value] : head.headers) {
    if (name != "content-length") continue;
    if (!length.empty() && length != value) {
      return transfer.fail(EPROTO, "its server sends two different Content-Length headers");
    }
    length = value;
  }
  head.url = transfer.at.text();
  head.was_redirected = transfer.redirects > (transfer.request.redirected_by ? 1U : 0U);
  head.place = transfer.place();
  head.secrets = transfer.secrets;
  if (transfer.has_proxy && head.status == 407) {
    return transfer.fail(EACCES, proxy_refusal(transfer, head.status));
  }
  if (transfer.request.follow && is_redirect(head.status) && !redirect(transfer)) return false;
  if (transfer.next) {
    const std::optional<std::uint64_t> body = decimal(length);
    return body && *body <= kMaxUnread;  // otherwise the connection is closed, see kMaxUnread
  }
  if (transfer.callbacks.head && !transfer.callbacks.head(head)) {
    return transfer.fail(ECANCELED, "cancelled");
  }
  return true;
}

// Handles one line of a response's head. The name of a header is a token (RFC 9110, 5.6.2).
bool add_header(Transfer& transfer, std::string_view line) {
  transfer.header_bytes += line.size();
  if (transfer.header_bytes > kMaxHeaders) {
    return transfer.fail(EPROTO, "its server sends more than 64 KiB of headers");
  }
  if (transfer.has_head) return true;  // a trailer after the body of a chunked response
  HttpHead& head = transfer.head;
  if (line.starts_with("HTTP/")) {
    const std::uint64_t status = line.size() > 12 ? decimal(line.substr(9, 3)).value_or(0) : 0;
    const bool is_http = line.starts_with("HTTP/1.0 ") || line.starts_with("HTTP/1.1 ");
    if (!is_http || status < 100 || status > 599 || !without_blanks(line.substr(12, 1)).empty()) {
      return transfer.fail(EPROTO, "its server does not speak HTTP/1.1");
    }
    head.status = static_cast<int>(status);
    head.headers.clear();
    return true;
  }
  if (without_blanks(line).empty()) return end_of_head(transfer);
  if (line.starts_with(' ') || line.starts_with('\t')) {  // continues the previous line
    if (!head.headers.empty()) head.headers.back().second.append(" ").append(without_blanks(line));
    return true;
  }
  const std::size_t colon = line.find(':');
  const std::string_view name = line.substr(0, colon);
  if (colon == std::string_view::npos || name.find_first_of(" \t") != std::string_view::npos) {
    return true;
  }
  head.headers.emplace_back(lower_case(name), without_blanks(line.substr(colon + 1)));
  return true;
}

bool add_data(Transfer& transfer, std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  tally(transfer.counters, &Counters::bytes_fetched, bytes.size());
  if (transfer.next) return (transfer.unread += bytes.size()) <= kMaxUnread;
  if (!transfer.has_head) return transfer.fail(EPROTO, "its server does not speak HTTP/1.1");
  if (transfer.callbacks.data && !transfer.callbacks.data(bytes)) {
    return transfer.fail(ECANCELED, "cancelled");
  }
  return true;
}

// The signature that libcurl requires. A result other than the number of bytes ends the transfer.
template <auto kTake>
std::size_t take(char* data, std::size_t size, std::size_t count, void* user) noexcept {
  auto& transfer = *static_cast<Transfer*>(user);
  transfer.came += size * count;
  if (transfer.came >= transfer.least()) transfer.restart_stall();
  try {
    return kTake(transfer, {data, size * count}) ? size * count : 0;
  } catch (const std::bad_alloc&) {
    transfer.failure.error = EIO;
    return 0;
  }
}

void add_line(HeaderList& list, const std::string& line) {
  curl_slist* const longer = libcurl().slist_append(list.get(), line.c_str());
  if (longer == nullptr) throw std::bad_alloc();
  static_cast<void>(list.release());
  list.reset(longer);
}

bool is_header(const std::string& line, std::string_view name) {
  return lower_case(line.substr(0, line.find(':'))) == name;
}

void set_headers(Transfer& transfer) {
  const HttpRequest& request = transfer.request;
  transfer.headers.reset();
  std::vector<std::string> lines = request.headers;
  if (transfer.is_at_first) {
    lines.insert(lines.end(), request.secrets.begin(), request.secrets.end());
  }
  if (request.range) {
    lines.push_back("Range: bytes=" + std::to_string(request.range->offset) + "-" +
                    std::to_string(request.range->offset + request.range->length - 1));
  }
  const auto has = [&](std::string_view name) {
    return std::ranges::any_of(lines,
                               [&](const std::string& line) { return is_header(line, name); });
  };
  if (!has("accept-encoding")) lines.emplace_back("Accept-Encoding: identity");
  if (!has("user-agent")) lines.emplace_back("User-Agent: stfs/" STFS_VERSION);
  if (request.method == "PUT" && !has("content-type")) lines.emplace_back("Content-Type:");  // none
  if (!has("expect")) lines.emplace_back("Expect:");
  for (const std::string& line : lines) add_line(transfer.headers, line);
}

// Records the secrets that libcurl takes from a netrc file: the base64 text in the header
// Authorization, and the password in it.
int keep_password(CURL*, curl_infotype kind, char* data, std::size_t size, void* user) noexcept {
  constexpr std::string_view kBegin = "\r\nAuthorization: Basic ";
  const std::string_view sent(data, size);
  const std::size_t at = sent.find(kBegin);
  if (kind != CURLINFO_HEADER_OUT || at == std::string_view::npos) return 0;
  std::string code(sent.substr(at + kBegin.size()));
  code.resize(std::min(code.find('\r'), code.size()));
  std::string both(code.size(), '\0');
  const int length = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(both.data()),
                                     reinterpret_cast<const unsigned char*>(code.data()),
                                     static_cast<int>(code.size()));
  if (length > 0) both.resize(std::min(both.find('\0'), both.size()));  // padding follows
  std::vector<std::string>& secrets = static_cast<Transfer*>(user)->secrets;
  secrets.push_back(std::move(code));
  secrets.push_back(both.substr(both.find(':') + 1));
  return 0;
}

void set_method(CURL* easy, const HttpRequest& request) {
  if (request.method == "HEAD") {
    libcurl().easy_setopt(easy, CURLOPT_NOBODY, 1L);
  } else if (request.method != "GET") {
    libcurl().easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE,
                          static_cast<curl_off_t>(request.body.size()));
    libcurl().easy_setopt(easy, CURLOPT_POSTFIELDS, request.body.data());
    if (request.method != "POST") {
      libcurl().easy_setopt(easy, CURLOPT_CUSTOMREQUEST, request.method.c_str());
    }
  }
}

const std::string& ca_file_of(const Transfer& transfer) {
  const std::string& own = transfer.request.ca_file;
  return own.empty() ? transfer.environment->ca_file : own;
}

// Sets the URL, the proxy, the CA files and the netrc file of a request.
void set_route(CURL* easy, Transfer& transfer) {
  const HttpRequest& request = transfer.request;
  const HttpEnvironment& environment = *transfer.environment;
  const auto text = [&](CURLoption option, const std::string& value) {
    const CURLcode code = libcurl().easy_setopt(easy, option, value.c_str());
    if (code == CURLE_OUT_OF_MEMORY) throw std::bad_alloc();
    if (code != CURLE_OK) {
      throw Error(ErrorCode::kUnreadable, "libcurl",
                  std::string(libcurl().easy_strerror(code)) + ": version 7.88 or newer is needed");
    }
  };
  text(CURLOPT_URL, transfer.at.text());
  const std::string proxy = request.use_proxy ? environment.proxy_for(transfer.at) : "";
  transfer.has_proxy = !proxy.empty();
  text(CURLOPT_PROXY, proxy);  // "": no proxy, even if the environment has one
  text(CURLOPT_NOPROXY, "");
  text(CURLOPT_PROTOCOLS_STR, "http,https");
  if (const std::string& file = ca_file_of(transfer); !file.empty()) text(CURLOPT_CAINFO, file);
  if (!environment.ca_directory.empty()) text(CURLOPT_CAPATH, environment.ca_directory);
  // Do not send a password over an unencrypted connection.
  const bool is_private = transfer.at.scheme == "https" || transfer.at.is_loopback();
  if (request.use_netrc && transfer.is_at_first && is_private) {
    libcurl().easy_setopt(easy, CURLOPT_NETRC, static_cast<long>(CURL_NETRC_OPTIONAL));
    if (!environment.netrc.empty()) text(CURLOPT_NETRC_FILE, environment.netrc);
    libcurl().easy_setopt(easy, CURLOPT_VERBOSE, 1L);
    libcurl().easy_setopt(easy, CURLOPT_DEBUGFUNCTION, &keep_password);
    libcurl().easy_setopt(easy, CURLOPT_DEBUGDATA, &transfer);
  }
}

// Prepares the request to `at`. Throws std::bad_alloc, or Error kUnreadable if libcurl is too old.
void set_up(Transfer& transfer) {
  transfer.easy.reset(libcurl().easy_init());
  CURL* const easy = transfer.easy.get();
  if (easy == nullptr) throw std::bad_alloc();
  for (const std::string& secret : secrets_of({.url = transfer.at.text(),
                                   .body = transfer.request.body,
                                   .secrets = transfer.request.secrets})) {
    transfer.secrets.push_back(secret);
  }
  transfer.head = {};
  transfer.header_bytes = transfer.unread = 0;
  transfer.has_head = transfer.has_socket = false;
  transfer.next.reset();
  transfer.failure = {};
  transfer.curl_text[0] = '\0';
  set_headers(transfer);
  set_method(easy, transfer.request);
  set_route(easy, transfer);
  const auto number = [&](CURLoption option, long value) {
    libcurl().easy_setopt(easy, option, value);
  };
  libcurl().easy_setopt(easy, CURLOPT_SHARE, transfer.pool.get());
  number(CURLOPT_NOSIGNAL, 1);
  number(CURLOPT_QUICK_EXIT, 1);  // do not wait for the resolver when a transfer is aborted
  number(CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
  number(CURLOPT_HTTP09_ALLOWED, 0);
  number(CURLOPT_HTTP_CONTENT_DECODING, 0);
  number(CURLOPT_FOLLOWLOCATION, 0);
  number(CURLOPT_PATH_AS_IS, 1);
  number(CURLOPT_FRESH_CONNECT, transfer.request.new_connection ? 1 : 0);
  number(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1);
  number(CURLOPT_SSLVERSION, CURL_SSLVERSION_TLSv1_2);
  number(CURLOPT_SSL_VERIFYPEER, 1);
  number(CURLOPT_SSL_VERIFYHOST, 2);
  number(CURLOPT_TCP_KEEPALIVE, 1);
  number(CURLOPT_BUFFERSIZE, 512 << 10);
  // libcurl divides the timeout among the addresses of a host, so an unreachable address delays
  // less.
  number(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(transfer.request.stall.count()));
  libcurl().easy_setopt(easy, CURLOPT_HTTPHEADER, transfer.headers.get());
  libcurl().easy_setopt(easy, CURLOPT_ERRORBUFFER, transfer.curl_text.data());
  libcurl().easy_setopt(easy, CURLOPT_PRIVATE, &transfer);
  libcurl().easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, &open_socket);
  libcurl().easy_setopt(easy, CURLOPT_OPENSOCKETDATA, &transfer);
  libcurl().easy_setopt(easy, CURLOPT_PREREQFUNCTION, &before_request);
  libcurl().easy_setopt(easy, CURLOPT_PREREQDATA, &transfer);
  libcurl().easy_setopt(easy, CURLOPT_HEADERFUNCTION, &take<add_header>);
  libcurl().easy_setopt(easy, CURLOPT_HEADERDATA, &transfer);
  libcurl().easy_setopt(easy, CURLOPT_WRITEFUNCTION, &take<add_data>);
  libcurl().easy_setopt(easy, CURLOPT_WRITEDATA, &transfer);
}

// Makes a pool of kept connections and resolved host names. Throws std::bad_alloc.
std::shared_ptr<CURLSH> make_pool() {
  std::shared_ptr<CURLSH> pool(libcurl().share_init(),
                               [](CURLSH* share) { libcurl().share_cleanup(share); });
  if (!pool) throw std::bad_alloc();
  libcurl().share_setopt(pool.get(), CURLSHOPT_SHARE, CURL_LOCK_DATA_CONNECT);
  libcurl().share_setopt(pool.get(), CURLSHOPT_SHARE, CURL_LOCK_DATA_DNS);
  return pool;
}

// Returns true if a handshake failed because the connection broke, as when a server restarts.
// libcurl has one code for all failed handshakes. Its text contains OpenSSL's error or, if OpenSSL
// reports none, the error of the system call.
bool has_broken_off(std::string_view said) {
  return said.find("SSL_connect: ") != std::string_view::npos ||
         said.find("unexpected eof") != std::string_view::npos;
}

// Returns ": checked with the certificates of FILE and DIRECTORY". The names are the configured
// ones, or libcurl's defaults.
std::string authorities_of(Transfer& transfer) {
  std::string names;
  const auto add = [&](const std::string& given, CURLINFO built_in) {
    const char* name = nullptr;
    libcurl().easy_getinfo(transfer.easy.get(), built_in, &name);
    if (!given.empty()) name = given.c_str();
    if (name != nullptr) names += (names.empty() ? "" : " and ") + printable(name);
  };
  add(ca_file_of(transfer), CURLINFO_CAINFO);
  add(transfer.environment->ca_directory, CURLINFO_CAPATH);
  return names.empty() ? "" : ": checked with the certificates of " + names;
}

// Returns libcurl's reason why a transfer broke. Some reasons are replaced by texts of ours,
// because libcurl's text may contain a URL.
TransferResult end_of(CURLcode code, Transfer& transfer) {
  if (code == CURLE_OK && !transfer.has_head) {
    return transfer.head.status != 0 ? TransferResult{EIO, "its response was cut off"}
                                     : TransferResult{EPROTO, "its server does not speak HTTP/1.1"};
  }
  if (code != CURLE_OK && transfer.failure.error != 0) return transfer.failure;
  long connect_errno = 0;
  libcurl().easy_getinfo(transfer.easy.get(), CURLINFO_OS_ERRNO, &connect_errno);
  const std::string host = transfer.origin.substr(transfer.at.scheme.size() + 3);
  const std::string said = printable(transfer.curl_text[0] != '\0' ? transfer.curl_text.data()
                                                                   : libcurl().easy_strerror(code));
  const std::string to = transfer.has_proxy ? "the proxy" : host;
  const std::string because =
      connect_errno == 0 ? "" : ": " + errno_text(static_cast<int>(connect_errno));
  long connect_status = 0;
  libcurl().easy_getinfo(transfer.easy.get(), CURLINFO_HTTP_CONNECTCODE, &connect_status);
  if (code != CURLE_OK && connect_status >= 300) {
    return {is_temporary(static_cast<int>(connect_status)) ? EIO : EACCES,
            proxy_refusal(transfer, connect_status)};
  }
  switch (code) {
    case CURLE_OK: return {};
    case CURLE_COULDNT_RESOLVE_HOST: return {EIO, "cannot find the address of " + transfer.at.host};
    case CURLE_COULDNT_RESOLVE_PROXY: return {EIO, "cannot find the address of the proxy"};
    case CURLE_COULDNT_CONNECT: return {EIO, "cannot connect to " + to + because};
    case CURLE_OPERATION_TIMEDOUT: return {ETIMEDOUT, "cannot connect to " + to + " in time"};
    case CURLE_PARTIAL_FILE: return {EIO, "the response of " + host + " was cut off"};
    case CURLE_GOT_NOTHING: return {EIO, host + " closed the connection without a response"};
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR: return {EIO, "the connection to " + host + " broke" + because};
    case CURLE_PEER_FAILED_VERIFICATION:
      return {EPROTO, "cannot trust " + host + ": " + said + authorities_of(transfer)};
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM: return {EPROTO, "cannot trust " + host + ": " + said};
    case CURLE_SSL_CONNECT_ERROR:
      if (has_broken_off(said))
        return {EIO, "the connection to " + host + " broke in its handshake"};
      return {EPROTO, "no secure connection to " + host + ": " + said};
    case CURLE_READ_ERROR:  // only the netrc file is read, because bodies are in memory
      return {EACCES, printable(transfer.environment->netrc) +
                          ": not a valid netrc file: is a quote not closed?"};
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_WEIRD_SERVER_REPLY:
      return {EPROTO, "the server of " + host + " does not speak HTTP/1.1"};
    case CURLE_OUT_OF_MEMORY:
    case static_cast<CURLcode>(100):  // CURLE_TOO_LARGE of newer versions
      // libcurl returns the same code for a header that is too long for it.
      if (transfer.header_bytes > 0 && !transfer.has_head) {
        return {EPROTO, "the server of " + host + " sends more than 64 KiB of headers"};
      }
      return {EIO, "no memory"};
    default: return {EIO, host + ": " + libcurl().easy_strerror(code)};
  }
}

}  // namespace

class Http::Impl {
 public:
  explicit Impl(const Options& options) : options_(options) {}
  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      is_ending_ = true;
      if (multi_) libcurl().multi_wakeup(multi_.get());
    }
    if (thread_.joinable()) thread_.join();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const Options& options() const { return options_; }
  const HttpEnvironment& environment() const { return environment_; }
  void start(std::unique_ptr<Transfer> transfer);
  void look();

 private:
  struct MultiDeleter {
    void operator()(CURLM* multi) const { libcurl().multi_cleanup(multi); }
  };
  using Transfers = std::list<std::unique_ptr<Transfer>>;

  void start_thread_once();
  void run();
  bool take_started();  // returns true if the thread has to end
  void begin_waiting();
  void begin(std::unique_ptr<Transfer> transfer);
  void take_ended();
  void end_late();
  int next_deadline() const;  // in milliseconds from now
  std::unique_ptr<Transfer> remove(Transfer& transfer);
  bool is_full(const Transfer& transfer) const;
  void finish(std::unique_ptr<Transfer> transfer, TransferResult end);
  void end_all();

  const Options options_;
  const HttpEnvironment environment_ = environment_of_http();

  std::mutex mutex_;
  // mutex_ guards started_ and is_ending_, and is held while multi_ and thread_ are set.
  Transfers started_;
  bool is_ending_ = false;
  std::unique_ptr<CURLM, MultiDeleter> multi_;
  std::thread thread_;

  // Used only by the thread:
  Transfers waiting_;                        // in the order in which they were started
  Transfers active_;                         // transfers that libcurl has
  std::shared_ptr<CURLSH> pool_;             // the pool for new transfers; null: begin() makes one
  std::map<std::string, unsigned> at_once_;  // number of active transfers per origin
};

void Http::Impl::start(std::unique_ptr<Transfer> transfer) {
  const std::lock_guard lock(mutex_);
  if (!multi_) start_thread_once();
  started_.push_back(std::move(transfer));
  libcurl().multi_wakeup(multi_.get());
}

void Http::Impl::start_thread_once() {
  static const CURLcode initialised = libcurl().global_init(CURL_GLOBAL_DEFAULT);
  if (initialised == CURLE_OK) multi_.reset(libcurl().multi_init());
  // multi_init() succeeds even if it cannot create the descriptors that wake the thread; only
  // multi_wakeup() reports it.
  if (multi_ && libcurl().multi_wakeup(multi_.get()) != CURLM_OK) multi_.reset();
  if (!multi_) {
    throw Error(ErrorCode::kUnreadable, "",
                "libcurl cannot start: no memory, or too many open files");
  }
  libcurl().multi_setopt(multi_.get(), CURLMOPT_PIPELINING, static_cast<long>(CURLPIPE_NOTHING));
  libcurl().multi_setopt(multi_.get(), CURLMOPT_MAXCONNECTS,
                         static_cast<long>(std::max(options_.connections, 1U)) * 4);
  try {
    thread_ = start_thread([this] { run(); });
  } catch (const Error& error) {
    multi_.reset();
    throw Error(ErrorCode::kUnreadable, "", error.message());
  }
}

void Http::Impl::run() {
  while (!take_started()) {
    begin_waiting();
    int running = 0;
    libcurl().multi_perform(multi_.get(), &running);
    take_ended();
    end_late();
    libcurl().multi_poll(multi_.get(), nullptr, 0, next_deadline(), nullptr);
  }
  end_all();
}

bool Http::Impl::take_started() {
  const std::lock_guard lock(mutex_);
  waiting_.splice(waiting_.end(), started_);
  return is_ending_;
}

bool Http::Impl::is_full(const Transfer& transfer) const {
  const auto active = at_once_.find(transfer.origin);
  return active != at_once_.end() && active->second >= std::max(options_.connections, 1U);
}

void Http::Impl::begin_waiting() {
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    if (is_full(**at) && !(*at)->is_abandoned()) {
      ++at;
      continue;
    }
    std::unique_ptr<Transfer> transfer = std::move(*at);
    at = waiting_.erase(at);
    begin(std::move(transfer));
  }
}

void Http::Impl::begin(std::unique_ptr<Transfer> transfer) {
  TransferResult& failure = transfer->failure;
  if (failure.error == 0 && transfer->is_abandoned()) failure = {ECANCELED, "abandoned"};
  if (failure.error == 0) {  // start() may have set a failure
    try {
      if (!pool_) pool_ = make_pool();
      transfer->pool = pool_;
      set_up(*transfer);
    } catch (const Error& error) {
      return finish(std::move(transfer), {EIO, error.what()});
    } catch (const std::bad_alloc&) {
      return finish(std::move(transfer), {EIO, "no memory"});
    }
    transfer->restart_stall();
    tally(options_.counters, &Counters::requests);
    CURL* const easy = transfer->easy.get();
    ++at_once_[transfer->origin];
    active_.push_back(std::move(transfer));
    if (libcurl().multi_add_handle(multi_.get(), easy) == CURLM_OK) return;
    transfer = remove(*active_.back());
    transfer->failure = {EIO, "libcurl accepts no request"};
  }
  TransferResult end = std::move(transfer->failure);
  finish(std::move(transfer), std::move(end));
}

// Removes a transfer from libcurl and from active_.
std::unique_ptr<Transfer> Http::Impl::remove(Transfer& transfer) {
  libcurl().multi_remove_handle(multi_.get(), transfer.easy.get());
  const auto at = std::ranges::find_if(
      active_, [&](const std::unique_ptr<Transfer>& one) { return one.get() == &transfer; });
  std::unique_ptr<Transfer> removed = std::move(*at);
  active_.erase(at);
  const auto count = at_once_.find(transfer.origin);
  if (--count->second == 0) at_once_.erase(count);
  return removed;
}

void Http::Impl::take_ended() {
  int left = 0;
  while (const CURLMsg* const message = libcurl().multi_info_read(multi_.get(), &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    const CURLcode code = message->data.result;  // the message is freed together with its handle
    char* user = nullptr;
    libcurl().easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &user);
    auto& ended = *reinterpret_cast<Transfer*>(user);
    TransferResult end = end_of(code, ended);
    std::unique_ptr<Transfer> removed = remove(ended);
    ended.easy.reset();
    if (!ended.next) {
      finish(std::move(removed), std::move(end));
      continue;
    }
    // The response was a redirect, so it does not matter how its body ended.
    if (ended.head.status == 303 && ended.request.method != "HEAD") {
      ended.request.method = "GET";
      ended.request.body.clear();
    }
    const std::string origin = ended.next->origin();
    ended.is_at_first = ended.is_at_first && origin == ended.origin;
    ended.at = *std::exchange(ended.next, std::nullopt);
    ended.origin = origin;
    ended.failure = {};
    waiting_.push_front(std::move(removed));
  }
}

void Http::Impl::end_late() {
  const Clock::time_point now = Clock::now();
  for (auto at = active_.begin(); at != active_.end();) {
    Transfer& one = **at++;
    const bool has_stalled = one.since + one.request.stall <= now;
    if (one.is_abandoned()) {
      finish(remove(one), {ECANCELED, "abandoned"});
    } else if (has_stalled) {
      finish(remove(one), {ETIMEDOUT, std::string("its server sent ") +
                                          (one.came == 0 ? "nothing" : "almost nothing") + " for " +
                                          in_seconds(one.request.stall)});
    } else if (one.end() <= now) {
      finish(remove(one), {ETIMEDOUT, "it took longer than " + in_seconds(one.request.limit)});
    }
  }
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    if ((*at)->end() > now) {
      ++at;
      continue;
    }
    std::unique_ptr<Transfer> transfer = std::move(*at);
    at = waiting_.erase(at);
    const char* const what =
        transfer->redirects > 0 ? "it took longer than " : "no connection was free for ";
    TransferResult end{ETIMEDOUT, what + in_seconds(transfer->request.limit)};
    finish(std::move(transfer), std::move(end));
  }
}

int Http::Impl::next_deadline() const {
  const Clock::time_point now = Clock::now();
  Clock::time_point next = now + std::chrono::hours(1);
  for (const auto& transfer : active_) {
    next = std::min({next, transfer->since + transfer->request.stall, transfer->end()});
  }
  for (const auto& transfer : waiting_) {
    next = std::min(next, is_full(*transfer) ? transfer->end() : now);
  }
  const auto left = std::chrono::ceil<milliseconds>(next - now);
  return static_cast<int>(std::max<milliseconds::rep>(left.count(), 0));
}

void Http::Impl::finish(std::unique_ptr<Transfer> transfer, TransferResult end) {
  transfer->easy.reset();
  end.was_kept = transfer->was_kept;
  // After a laptop has slept or changed its network, the kept connections no longer respond. So
  // if a transfer stalls or breaks, no connection of its pool is reused: the next request opens a
  // new one.
  const bool was_silent = end.error == ECANCELED && end.was_kept && !transfer->has_head;
  const bool has_failed = end.error == EIO || end.error == ETIMEDOUT || was_silent;
  if (has_failed && transfer->pool == pool_) pool_.reset();
  transfer->pool.reset();
  transfer->callbacks.end(end);
}

// A callback may start another transfer, which has to end as well.
void Http::Impl::end_all() {
  do {
    Transfers all;
    while (!active_.empty()) all.push_back(remove(*active_.front()));
    all.splice(all.end(), waiting_);
    for (auto& transfer : all) finish(std::move(transfer), {ECANCELED, "cancelled"});
    take_started();
  } while (!waiting_.empty());
}

void Http::Impl::look() {
  const std::lock_guard lock(mutex_);
  if (multi_) libcurl().multi_wakeup(multi_.get());
}

std::string http_libraries() {
  return std::string("libcurl " LIBCURL_VERSION ", OpenSSL ") +
         OpenSSL_version(OPENSSL_VERSION_STRING);
}

Http::Http(const Options& options)
    : impl_(std::make_unique<Impl>(options)),
      counters_(options.counters),
      patience_(options.patience) {}
Http::~Http() = default;

void Http::look() { impl_->look(); }

void Http::start(HttpRequest request, HttpCallbacks callbacks) {
  auto transfer = std::make_unique<Transfer>();
  const std::optional<WebUrl> url = parse_web_url(request.url);
  transfer->request = std::move(request);
  transfer->callbacks = std::move(callbacks);
  transfer->environment = &impl_->environment();
  transfer->insecure_http = impl_->options().insecure_http;
  transfer->counters = impl_->options().counters;
  const auto is_broken = [](const std::string& line) {
    return line.find_first_of(std::string_view("\r\n\0", 3)) != std::string::npos;
  };
  const HttpRequest& asked = transfer->request;
  if (asked.redirected_by) {
    transfer->redirects = 1;
    transfer->by = *asked.redirected_by;
  }
  const auto& range = asked.range;
  if (!url) {
    transfer->fail(EACCES, "not a URL of http or https, or one with a user and password");
  } else if (transfer->at = *url, transfer->origin = url->origin();
             !refusal_of(*transfer, *url).empty()) {
    transfer->fail(EACCES, std::string(refusal_of(*transfer, *url)));
  } else if (std::ranges::any_of(asked.headers, is_broken) ||
             std::ranges::any_of(asked.secrets, is_broken) || is_broken(asked.method)) {
    transfer->fail(EACCES, "a header of the request contains a line end");
  } else if (range &&
             (range->length == 0 ||
              range->length - 1 > std::numeric_limits<std::uint64_t>::max() - range->offset)) {
    transfer->fail(EACCES, "the request asks for no bytes");
  }
  impl_->start(std::move(transfer));
}

}  // namespace stfs
