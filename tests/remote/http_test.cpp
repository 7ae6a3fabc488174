#include "core/remote/http/http.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/remote/http/http_rules.h"
#include "tests/remote/remote_support.h"
#include "tests/support/http_server.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <latch>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace stfs {
namespace {

using std::chrono::milliseconds;
using test::HttpServer;
using test::WebAnswer;
using test::WebRequest;

struct HttpOutcome {
  HttpHead head;
  std::string body;
  TransferResult end;
};

HttpOutcome http_fetch(Http& http, HttpRequest request) {
  HttpOutcome outcome;
  std::promise<void> ended;
  http.start(std::move(request),
             {.head =
                  [&](const HttpHead& head) {
                    outcome.head = head;
                    return true;
                  },
              .data =
                  [&](std::span<const std::byte> bytes) {
                    outcome.body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
                    return true;
                  },
              .end =
                  [&](const TransferResult& end) {
                    outcome.end = end;
                    ended.set_value();
                  }});
  ended.get_future().wait();
  return outcome;
}

WebAnswer redirect_to(const std::string& location, int status = 302) {
  return {.status = status, .headers = {{"Location", location}}, .body = "elsewhere"};
}

// Answers each connection with an unchanged text and closes it. With nullopt, the server never
// accepts a connection.
class RawServer {
 public:
  explicit RawServer(std::optional<std::string> text) {
    listening_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof where;
    auto* const name = reinterpret_cast<sockaddr*>(&where);
    EXPECT_EQ(::bind(listening_.get(), name, length), 0);
    EXPECT_EQ(::listen(listening_.get(), text ? 16 : 0), 0);
    EXPECT_EQ(::getsockname(listening_.get(), name, &length), 0);
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(where.sin_port)) + "/";
    if (text) {
      thread_ = std::thread([this, text = *text] { serve(text); });
    } else {
      for (UniqueFd& fd : waiting_) {  // fills the backlog
        fd = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        ::connect(fd.get(), name, length);
      }
    }
  }
  RawServer(const RawServer&) = delete;
  RawServer& operator=(const RawServer&) = delete;
  ~RawServer() {
    is_ending_ = true;
    ::shutdown(listening_.get(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
  }

  const std::string& url() const { return url_; }

 private:
  static constexpr char kTls = 0x16;  // the first byte of a client that speaks TLS

  void serve(const std::string& text) {
    while (!is_ending_) {
      const UniqueFd fd(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      std::string request;
      std::array<char, 4096> chunk{};
      while (request.find("\r\n\r\n") == std::string::npos && !request.starts_with(kTls)) {
        const ssize_t n = ::recv(fd.get(), chunk.data(), chunk.size(), 0);
        if (n <= 0) break;
        request.append(chunk.data(), static_cast<std::size_t>(n));
      }
      ::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
      ::shutdown(fd.get(), SHUT_WR);
      // Avoids a reset before the client has read the text.
      while (::recv(fd.get(), chunk.data(), chunk.size(), 0) > 0) {
      }
    }
  }

  UniqueFd listening_;
  std::array<UniqueFd, 4> waiting_;
  std::atomic<bool> is_ending_ = false;
  std::string url_;
  std::thread thread_;
};

// Returns the outcome of a request to a server that always answers `answer`.
HttpOutcome fetched(const WebAnswer& answer, HttpRequest request = {},
                    const Http::Options& options = {}) {
  HttpServer server([&](const WebRequest&) { return answer; });
  Http http(options);
  request.url = server.url();
  return http_fetch(http, std::move(request));
}

HttpOutcome answered(const std::string& raw) {
  const RawServer server(raw);
  Http http({});
  return http_fetch(http, {.url = server.url()});
}

TEST(Http, ReturnsHeadAndBodyOfResponse) {
  HttpServer server([](const WebRequest&) {
    return WebAnswer{
        .status = 206, .headers = {{"ETag", "\"v1\""}, {"X-A", " b "}}, .body = "bytes"};
  });
  Counters counters;
  Http http({.counters = &counters});
  const HttpOutcome outcome = http_fetch(
      http, {.url = server.url("/a?x"), .headers = {"X-Mine: yes"}, .range = ByteRange{3, 5}});
  EXPECT_EQ(outcome.end.error, 0) << outcome.end.text;
  EXPECT_EQ(outcome.head.status, 206);
  EXPECT_EQ(outcome.head.url, server.url("/a?x"));
  EXPECT_FALSE(outcome.head.was_redirected);
  EXPECT_EQ(outcome.head.header("etag"), "\"v1\"");
  EXPECT_EQ(outcome.head.header("x-a"), "b");
  EXPECT_EQ(outcome.body, "bytes");
  const WebRequest request = server.requests().at(0);
  EXPECT_EQ(request.target, "/a?x");
  EXPECT_EQ(request.header("range"), "bytes=3-7");
  EXPECT_EQ(request.header("x-mine"), "yes");
  EXPECT_EQ(request.header("accept-encoding"), "identity");
  EXPECT_EQ(counters.requests, 1U);
  EXPECT_EQ(counters.bytes_fetched, 5U);
}

TEST(Http, FollowsRelativeRedirect) {
  HttpServer server([](const WebRequest& request) {
    if (request.target == "/a/b?q") return redirect_to("../c?x#f");
    return WebAnswer{.body = request.target};
  });
  Http http({});
  const HttpOutcome outcome = http_fetch(http, {.url = server.url("/a/b?q")});
  EXPECT_EQ(outcome.end.error, 0) << outcome.end.text;
  EXPECT_EQ(outcome.body, "/c?x");
  EXPECT_EQ(outcome.head.url, server.url("/c?x"));
  EXPECT_TRUE(outcome.head.was_redirected);
}

TEST(Http, ReturnsRedirectWithoutFollow) {
  HttpServer server([](const WebRequest&) { return redirect_to("http://169.254.169.254/"); });
  Http http({});
  const HttpOutcome outcome = http_fetch(http, {.url = server.url(), .follow = false});
  EXPECT_EQ(outcome.end.error, 0) << outcome.end.text;
  EXPECT_EQ(outcome.head.status, 302);
  EXPECT_EQ(outcome.head.header("location"), "http://169.254.169.254/");
  EXPECT_EQ(outcome.body, "elsewhere");
}

TEST(Http, StopsAfterTenRedirects) {
  HttpServer server([](const WebRequest&) { return redirect_to("/again"); });
  Http http({});
  const HttpOutcome outcome = http_fetch(http, {.url = server.url()});
  EXPECT_EQ(outcome.end.error, EACCES);
  EXPECT_EQ(outcome.end.text, "redirects more than 10 times");
  EXPECT_EQ(server.requests().size(), 11U);
}

TEST(Http, RedirectSendsNoSecretToOtherHost) {
  HttpServer second([](const WebRequest&) { return WebAnswer{.body = "bytes"}; }, "127.0.0.2");
  HttpServer first([&](const WebRequest& request) {
    if (request.target == "/1") return redirect_to("/2");
    return redirect_to(second.url("/3"), 307);
  });
  const test::TempDir directory;
  const std::filesystem::path netrc = directory / "netrc";
  std::ofstream(netrc) << "machine 127.0.0.1 login me password s3cret\n"
                          "machine 127.0.0.2 login me password other\n";
  const test::Environment variable("NETRC", netrc.string());
  Http http({});
  const HttpOutcome outcome = http_fetch(http, {.url = first.url("/1"),
                                                .headers = {"X-Public: 1"},
                                                .secrets = {"X-Token: t0ken"},
                                                .use_netrc = true});
  EXPECT_EQ(outcome.body, "bytes") << outcome.end.text;
  ASSERT_EQ(first.requests().size(), 2U);
  for (const WebRequest& request : first.requests()) {
    EXPECT_EQ(request.header("x-token"), "t0ken");
    EXPECT_EQ(request.header("authorization"), "Basic bWU6czNjcmV0");
  }
  ASSERT_EQ(second.requests().size(), 1U);
  const WebRequest request = second.requests()[0];
  EXPECT_EQ(request.header("x-public"), "1");
  EXPECT_EQ(request.header("x-token"), "");
  EXPECT_EQ(request.header("authorization"), "");
  EXPECT_EQ(request.header("referer"), "");
}

TEST(Http, SendsNoNetrcPasswordUnencrypted) {
  HttpServer proxy([](const WebRequest& request) { return WebAnswer{.body = request.target}; });
  const test::TempDir directory;
  const std::filesystem::path netrc = directory / "netrc";
  std::ofstream(netrc) << "machine model.example login me password s3cret\n";
  const test::Environment variable("NETRC", netrc.string());
  const test::Environment through("http_proxy", proxy.url());
  const test::Environment none("no_proxy", "");
  Http http({.insecure_http = true});
  const HttpOutcome outcome =
      http_fetch(http, {.url = "http://model.example/a", .use_netrc = true});
  EXPECT_EQ(outcome.body, "http://model.example/a") << outcome.end.text;
  ASSERT_EQ(proxy.requests().size(), 1U);
  EXPECT_EQ(proxy.requests()[0].header("authorization"), "");
}

TEST(Http, ReportsMalformedNetrc) {
  HttpServer server([](const WebRequest&) { return WebAnswer{}; });
  const test::TempDir directory;
  const std::filesystem::path netrc = directory / "netrc";
  std::ofstream(netrc) << "machine 127.0.0.1 login me password \"s3cret\n";
  const test::Environment variable("NETRC", netrc.string());
  Http http({});
  const TransferResult end = http_fetch(http, {.url = server.url(), .use_netrc = true}).end;
  EXPECT_EQ(end.error, EACCES);  // trying again does not help
  EXPECT_TRUE(end.text.starts_with(netrc.string() + ": ")) << end.text;
  EXPECT_EQ(end.text.find("s3cret"), std::string::npos);
}

TEST(Http, RedirectBackFromOtherHostGetsNoSecret) {
  std::string back;
  HttpServer second([&](const WebRequest&) { return redirect_to(back); }, "127.0.0.2");
  HttpServer first([&](const WebRequest& request) {
    return request.target == "/1" ? redirect_to(second.url()) : WebAnswer{};
  });
  back = first.url("/chosen-by-second");
  Http http({});
  http_fetch(http, {.url = first.url("/1"), .secrets = {"X-Token: t0ken"}});
  ASSERT_EQ(first.requests().size(), 2U);
  EXPECT_EQ(first.requests()[1].header("x-token"), "");
}

TEST(Http, RequestBodyIsNotRedirectedToOtherHost) {
  HttpServer second([](const WebRequest&) { return WebAnswer{}; }, "127.0.0.2");
  HttpServer first([&](const WebRequest& request) {
    if (request.target == "/same") return redirect_to("/end", 308);
    if (request.target == "/other") return redirect_to(second.url(), 307);
    if (request.target == "/see") return redirect_to(second.url("/seen"), 303);
    return WebAnswer{};
  });
  Http http({});
  const auto post = [&](const std::string& path) {
    return http_fetch(http, {.url = first.url(path), .method = "POST", .body = "web-identity"});
  };
  EXPECT_EQ(post("/same").end.error, 0);
  EXPECT_EQ(first.requests().back().method, "POST");
  EXPECT_EQ(first.requests().back().body, "web-identity");
  EXPECT_EQ(post("/other").end.text, "redirects a request with a body to another host");
  EXPECT_TRUE(second.requests().empty());
  EXPECT_EQ(post("/see").end.error, 0);
  EXPECT_EQ(second.requests().at(0).method, "GET");
  EXPECT_EQ(second.requests().at(0).body, "");
  EXPECT_EQ(second.requests().at(0).header("content-length"), "");
}

TEST(Http, RejectsForbiddenRedirects) {
  const std::string roles = "redirects to a cloud metadata address";
  const std::string no_url = "redirects to an address that is not an http or https URL";
  for (const auto& [target, text] : std::vector<std::pair<std::string, std::string>>{
           {"http://169.254.169.254/latest/meta-data/", roles},
           {"http://2852039166/", roles},
           {"http://0xa9fea9fe/", roles},
           {"http://[::ffff:169.254.169.254]/", roles},
           {"http://[fe80::1]/", roles},
           {"//169.254.170.2/v2/credentials", roles},
           {"http://100.100.100.200/latest/meta-data/", roles},
           {"http://168.63.129.16/", roles},
           {"file:///etc/passwd", no_url},
           {"ftp://127.0.0.1/", no_url},
           {"gopher:x", no_url},
           {"http://user:pass@127.0.0.1/", no_url},
           {"http://127.0.0.1:99999/", no_url}}) {
    const TransferResult end = fetched(redirect_to(target), {}, {.insecure_http = true}).end;
    EXPECT_EQ(end.error, EACCES) << target;
    EXPECT_EQ(end.text, text) << target;
  }
  EXPECT_EQ(fetched({.status = 301}).end.text, "redirects without a Location header");
}

TEST(Http, RejectsPublicRedirectToPrivateAddressOnConnect) {
  Http http({.insecure_http = true});
  const HttpOutcome outcome =
      http_fetch(http, {.url = "http://10.255.255.1/", .redirected_by = AddressKind::kElsewhere});
  EXPECT_EQ(outcome.end.error, EACCES);
  EXPECT_EQ(outcome.end.text, "redirects to a private address");
}

TEST(Http, DrippingResponseTimesOut) {
  for (const std::size_t from : {0U, 5000U}) {
    const HttpOutcome outcome =
        fetched({.body = std::string(100'000, 'x'), .drip_after = from, .drip = milliseconds(5)},
                {.url = "", .stall = milliseconds(2000), .limit = milliseconds(30'000)});
    EXPECT_EQ(outcome.end.error, ETIMEDOUT);
    EXPECT_EQ(outcome.end.text, "its server sent almost nothing for 2 s");
    EXPECT_GT(outcome.body.size(), from);
  }
}

TEST(Http, EndlessTrailersEndTransfer) {
  for (const auto& [line, pause, error] :
       {std::tuple{"X-Trailer: " + std::string(1000, 'x') + "\r\n", 0, EPROTO},
        {"X: y\r\n", 50, ETIMEDOUT}}) {
    const HttpOutcome outcome =
        fetched({.headers = {{"Transfer-Encoding", "chunked"}},
                 .body = "5\r\nbytes\r\n0\r\n",
                 .drip = milliseconds(pause),
                 .endless = line},
                {.url = "", .stall = milliseconds(1000), .limit = milliseconds(30'000)});
    EXPECT_EQ(outcome.end.error, error) << outcome.end.text;
    EXPECT_EQ(outcome.body, "bytes");
  }
}

TEST(Http, EndsAbandonedTransfersIncludingQueuedOnes) {
  HttpServer server([](const WebRequest&) {
    return WebAnswer{.headers = {{"Content-Length", "9"}}, .body = "x", .stall = true};
  });
  std::array<std::shared_ptr<std::atomic<bool>>, 2> is_abandoned;
  std::array<std::promise<TransferResult>, 2> ended;
  Http http({.connections = 1});
  for (std::size_t i = 0; i < 2; ++i) {
    is_abandoned[i] = std::make_shared<std::atomic<bool>>(false);
    http.start({.url = server.url(), .is_abandoned = is_abandoned[i]},
               {.end = [&, i](const TransferResult& end) { ended[i].set_value(end); }});
  }
  for (const std::size_t i : {1U, 0U}) {
    *is_abandoned[i] = true;
    http.look();
    std::future<TransferResult> end = ended[i].get_future();
    ASSERT_EQ(end.wait_for(std::chrono::seconds(15)), std::future_status::ready) << i;
    EXPECT_EQ(end.get().error, ECANCELED);
  }
}

TEST(Http, AllowsPlainHttpOnlyToLoopback) {
  Http http({});
  for (const char* url : {"http://model.example/a", "http://10.1/", "http://169.254.169.254/"}) {
    const HttpOutcome outcome = http_fetch(http, {.url = url});
    EXPECT_EQ(outcome.end.error, EACCES) << url;
    EXPECT_NE(outcome.end.text.find("-o insecure_http"), std::string::npos) << outcome.end.text;
  }
  HttpServer server([](const WebRequest&) { return redirect_to("http://model.example/a?secret"); });
  const HttpOutcome outcome = http_fetch(http, {.url = server.url()});
  EXPECT_EQ(outcome.end.error, EACCES);
  EXPECT_EQ(outcome.end.text.find("secret"), std::string::npos);
}

TEST(Http, UsesProxyForRemoteHostsButNotItsRedirectToLoopback) {
  HttpServer local([](const WebRequest&) { return WebAnswer{.body = "private"}; });
  HttpServer proxy([&](const WebRequest& request) {
    if (request.target == "http://model.example/there") return redirect_to(local.url());
    return WebAnswer{.body = request.target};
  });
  const test::Environment variable("http_proxy", proxy.url());
  const test::Environment none("no_proxy", "");
  Http http({.insecure_http = true});
  EXPECT_EQ(http_fetch(http, {.url = "http://model.example/a"}).body, "http://model.example/a");
  EXPECT_EQ(http_fetch(http, {.url = local.url()}).body, "private");
  {
    // Has no effect, because Http has already read the environment.
    const test::Environment later("http_proxy", "http://127.0.0.1:1");
    EXPECT_EQ(http_fetch(http, {.url = "http://model.example/b"}).body, "http://model.example/b");
  }
  const HttpOutcome outcome = http_fetch(http, {.url = "http://model.example/there"});
  EXPECT_EQ(outcome.end.error, EACCES);
  EXPECT_EQ(outcome.end.text, "redirects to a loopback address");
  EXPECT_EQ(local.requests().size(), 1U);
}

TEST(Http, ReportsStatusOfProxyRefusal) {
  struct Case {
    int status;
    int error;
    const char* text;
  };
  for (const Case& c :
       {Case{407, EACCES,
             "the proxy answered 407: it requires a user and a password: name them in https_proxy, "
             "as USER:PASSWORD@HOST:PORT"},
        Case{403, EACCES,
             "the proxy answered 403: it does not permit model.example: ask its administrator, or "
             "name this host in no_proxy"},
        Case{502, EIO, "the proxy answered 502: it does not connect to model.example"}}) {
    HttpServer proxy([&](const WebRequest& request) {
      EXPECT_EQ(request.method, "CONNECT");
      return WebAnswer{.status = c.status, .body = "<html>"};
    });
    const test::Environment variable("https_proxy", proxy.url());
    const test::Environment none("no_proxy", "");
    Http http({});
    const TransferResult end = http_fetch(http, {.url = "https://model.example/a"}).end;
    EXPECT_EQ(end.error, c.error);
    EXPECT_EQ(end.text, c.text);
  }
}

TEST(Http, DoesNotWaitForBodyOfRedirect) {
  HttpServer server([](const WebRequest& request) {
    if (request.target != "/") return WebAnswer{.body = "bytes"};
    WebAnswer answer = redirect_to("/end");
    answer.headers.emplace_back("Content-Length", "100000000000");
    answer.stall = true;
    return answer;
  });
  Http http({});
  EXPECT_EQ(http_fetch(http, {.url = server.url()}).body, "bytes");
}

TEST(Http, RejectsMoreThan64KiBOfHeaders) {
  WebAnswer answer;
  answer.headers.assign(1000, {"X", std::string(1000, 'x')});
  const HttpOutcome outcome = fetched(answer);
  EXPECT_EQ(outcome.end.error, EPROTO);
  EXPECT_EQ(outcome.end.text, "its server sends more than 64 KiB of headers");
  EXPECT_EQ(outcome.head.status, 0);
}

TEST(Http, SkipsInformationalResponse) {
  const HttpOutcome outcome = answered(
      "HTTP/1.1 103 Early Hints\r\nETag: \"early\"\r\n\r\n"
      "HTTP/1.1 200 OK\r\nX:  a\r\n b\r\nContent-Length: 1\r\n\r\nx");
  EXPECT_EQ(outcome.end.error, 0) << outcome.end.text;
  EXPECT_EQ(outcome.head.status, 200);
  EXPECT_EQ(outcome.head.header("etag"), "");
  EXPECT_EQ(outcome.head.header("x"), "a b");
}

TEST(Http, MalformedResponseGivesEPROTOAndCutResponseEIO) {
  const std::string ok = "HTTP/1.1 200 OK\r\n";
  std::string heads;
  for (int i = 0; i < 10'000; ++i) heads += "HTTP/1.1 103 Early Hints\r\n\r\n";
  for (const auto& [raw, error] : std::vector<std::pair<std::string, int>>{
           {"hello, this is HTTP/0.9\n", EPROTO},
           {std::string("\0\0\0\0\r\n\r\n", 8), EPROTO},
           {"SSH-2.0-OpenSSH_9.2\r\n", EPROTO},
           {"HTTP/2 200\r\n\r\n", EPROTO},
           {"HTTP/1.1 99 No\r\n\r\n", EPROTO},
           {"HTTP/1.1 2000 No\r\n\r\n", EPROTO},
           {"HTTP/1.1 999 No\r\n\r\n", EPROTO},
           {"HTTP/1.1 101 Other\r\n\r\n", EPROTO},
           {ok + "Content-Length: -5\r\n\r\nhello", EPROTO},
           {ok + "Content-Length: 5\r\nContent-Length: 3\r\n\r\nhello", EPROTO},
           {ok + "X: " + std::string(1 << 20, 'x'), EPROTO},
           {heads, EPROTO},
           {ok + "Content-Length: 10\r\n\r\nhello", EIO},
           {ok + "Content-Le", EIO},
           {ok + "Transfer-Encoding: chunked\r\n\r\n5\r\nhel", EIO},
           {ok + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", EIO},
           {"", EIO}}) {
    const HttpOutcome outcome = answered(raw);
    EXPECT_EQ(outcome.end.error, error) << raw.substr(0, 80) << ": " << outcome.end.text;
    EXPECT_TRUE(error == EIO || outcome.body.empty()) << raw.substr(0, 80);
  }
}

TEST(Http, IgnoresBytesAfterContentLength) {
  EXPECT_EQ(fetched({.headers = {{"Content-Length", "5"}}, .body = "hello, world"}).body, "hello");
}

TEST(Http, ReportsReusedConnectionAndOpensNewOneOnRequest) {
  HttpServer server([](const WebRequest& request) {
    return request.target == "/there" ? redirect_to("/") : WebAnswer{.body = "hello"};
  });
  Http http({});
  struct Case {
    const char* target;
    bool new_connection, was_kept;
  };
  for (const Case& one : {Case{"/", false, false}, Case{"/", false, true}, Case{"/", true, false},
                          Case{"/there", false, true}, Case{"/there", true, false}}) {
    const HttpOutcome outcome =
        http_fetch(http, {.url = server.url(one.target), .new_connection = one.new_connection});
    EXPECT_EQ(outcome.body, "hello") << outcome.end.text;
    EXPECT_EQ(outcome.end.was_kept, one.was_kept) << one.target << one.new_connection;
  }
}

// Opens four connections, which then stop answering, like connections after a laptop's sleep.
class SilentConnections : public testing::Test {
 protected:
  SilentConnections() {
    std::vector<std::thread> readers;
    for (int i = 0; i < 4; ++i) readers.emplace_back([&] { http_.get({.url = server_.url()}, 9); });
    for (std::thread& reader : readers) reader.join();
    is_silent_ = true;
  }

  WebAnswer answer(const WebRequest& request) {
    if (is_silent_ && request.is_first)
      return {.headers = {{"Connection", "close"}}, .body = "new"};
    if (is_silent_) {
      if (++silent_ == 1) was_asked_.count_down();
      return {.delay = std::chrono::hours(1)};
    }
    together_.arrive_and_wait();  // so that no reader reuses the connection of another
    return {.body = "old"};
  }
  std::string get() { return http_.get({.url = server_.url(), .stall = milliseconds(50)}, 9).body; }

  std::atomic<bool> is_silent_ = false;
  std::atomic<int> silent_ = 0;
  std::latch together_{4}, was_asked_{1};
  HttpServer server_{[this](const WebRequest& request) { return answer(request); }};
  Http http_{{}};
};

TEST_F(SilentConnections, CostOneStallInTotal) {
  for (int i = 0; i < 5; ++i) EXPECT_EQ(get(), "new");
  EXPECT_EQ(silent_, 1);
}

// Like a reader with a deadline that ends the transfer before it stalls.
TEST_F(SilentConnections, AbandonedTransferPreventsReuse) {
  const auto is_abandoned = std::make_shared<std::atomic<bool>>(false);
  std::promise<int> ended;
  http_.start({.url = server_.url(), .stall = std::chrono::hours(1), .is_abandoned = is_abandoned},
              {.end = [&](const TransferResult& end) { ended.set_value(end.error); }});
  was_asked_.wait();
  *is_abandoned = true;
  http_.look();
  EXPECT_EQ(ended.get_future().get(), ECANCELED);
  EXPECT_EQ(get(), "new");
  EXPECT_EQ(silent_, 1);
}

TEST(Http, DoesNotDecodeContent) {
  EXPECT_EQ(fetched({.headers = {{"Content-Encoding", "gzip"}}, .body = "\x1f\x8b no gzip"}).body,
            "\x1f\x8b no gzip");
}

TEST(Http, DoesNotKeepCookies) {
  HttpServer server([](const WebRequest&) {
    return WebAnswer{.headers = {{"Set-Cookie", "a=b"}}};
  });
  Http http({});
  http_fetch(http, {.url = server.url()});
  http_fetch(http, {.url = server.url()});
  EXPECT_EQ(server.requests().at(1).header("cookie"), "");
}

TEST(Http, ConnectionErrorNamesServer) {
  std::string url;
  {
    const RawServer server("");
    url = server.url();
  }
  Http http({});
  const HttpOutcome outcome = http_fetch(http, {.url = url + "a?secret"});
  EXPECT_EQ(outcome.end.error, EIO);
  EXPECT_EQ(outcome.end.text,
            "cannot connect to " + url.substr(7, url.size() - 8) + ": Connection refused");
  const HttpOutcome unknown = http_fetch(http, {.url = "https://nowhere.invalid/a?secret"});
  EXPECT_EQ(unknown.end.error, EIO);
  EXPECT_EQ(unknown.end.text, "cannot find the address of nowhere.invalid");
}

TEST(Http, HttpsToServerWithoutTlsFails) {
  const RawServer server("HTTP/1.1 400 Bad Request\r\n\r\n");
  Http http({});
  const HttpOutcome outcome =
      http_fetch(http, {.url = "https" + server.url().substr(4) + "?secret"});
  EXPECT_EQ(outcome.end.error, EPROTO);
  EXPECT_EQ(outcome.end.text.find("secret"), std::string::npos) << outcome.end.text;
}

// This happens while a server restarts. The request is retried, as after a refused connection.
TEST(Http, BrokenTlsHandshakeIsRetryable) {
  const RawServer server("");
  Http http({});
  const HttpOutcome outcome = http_fetch(http, {.url = "https" + server.url().substr(4)});
  EXPECT_EQ(outcome.end.error, EIO);
  EXPECT_TRUE(outcome.end.text.ends_with(" broke in its handshake")) << outcome.end.text;
  EXPECT_EQ(next_try(outcome.end, ResponseQuality::kGood), NextTry::kLater);
}

TEST(Http, StallEndsTransfer) {
  HttpServer server([](const WebRequest& request) {
    return WebAnswer{.headers = {{"Content-Length", "9"}},
                     .body = request.target == "/silent" ? "" : "hello",
                     .stall = true};
  });
  Http http({});
  for (const char* path : {"/", "/silent"}) {
    const HttpOutcome outcome =
        http_fetch(http, {.url = server.url(path), .stall = milliseconds(50)});
    EXPECT_EQ(outcome.end.error, ETIMEDOUT);
    EXPECT_EQ(outcome.end.text, std::string("its server sent ") +
                                    (outcome.body.empty() ? "" : "almost ") + "nothing for 50 ms");
  }
}

TEST(Http, UnansweredConnectTimesOut) {
  const RawServer server(std::nullopt);
  Http http({});
  EXPECT_EQ(http_fetch(http, {.url = server.url(), .stall = milliseconds(50)}).end.error,
            ETIMEDOUT);
}

TEST(Http, SlowResponseEndsAtTimeLimit) {
  const HttpOutcome outcome = fetched({.body = std::string(100'000, 'x'), .bytes_per_second = 1000},
                                      {.url = "", .limit = milliseconds(100)});
  EXPECT_EQ(outcome.end.error, ETIMEDOUT);
  EXPECT_EQ(outcome.end.text, "it took longer than 100 ms");
}

TEST(Http, CallbackCanEndTransfer) {
  HttpServer server([](const WebRequest&) { return WebAnswer{.body = std::string(1 << 20, 'x')}; });
  Http http({});
  for (const bool at_head : {true, false}) {
    std::promise<TransferResult> ended;
    http.start({.url = server.url()},
               {.head = [&](const HttpHead&) { return !at_head; },
                .data = [&](std::span<const std::byte>) { return false; },
                .end = [&](const TransferResult& end) { ended.set_value(end); }});
    EXPECT_EQ(ended.get_future().get().error, ECANCELED);
  }
}

TEST(Http, DoesNotSendInvalidRequest) {
  HttpServer server([](const WebRequest&) { return WebAnswer{}; });
  Http http({});
  const auto error = [&](HttpRequest request) {
    const HttpOutcome outcome = http_fetch(http, std::move(request));
    EXPECT_EQ(outcome.end.text.find("s3cret"), std::string::npos) << outcome.end.text;
    return outcome.end.error;
  };
  EXPECT_EQ(error({.url = "s3cret"}), EACCES);
  EXPECT_EQ(error({.url = "http://me:s3cret@127.0.0.1/"}), EACCES);
  EXPECT_EQ(error({.url = server.url(), .secrets = {"X-Token: s3cret\nX-Other: 1"}}), EACCES);
  EXPECT_EQ(error({.url = server.url(), .headers = {"X: \r\nY: s3cret"}}), EACCES);
  EXPECT_EQ(error({.url = server.url(), .range = ByteRange{0, 0}}), EACCES);
  EXPECT_EQ(error({.url = server.url(), .range = ByteRange{2, ~std::uint64_t{0}}}), EACCES);
  EXPECT_TRUE(server.requests().empty());
}

TEST(Http, LimitsConnectionsPerHost) {
  HttpServer server([](const WebRequest&) {
    return WebAnswer{.body = std::string(1000, 'x'), .delay = milliseconds(2)};
  });
  Http http({.connections = 2});
  std::array<std::promise<TransferResult>, 12> ended;
  for (auto& one : ended) {
    http.start({.url = server.url()},
               {.end = [&](const TransferResult& end) { one.set_value(end); }});
  }
  for (auto& one : ended) EXPECT_EQ(one.get_future().get().error, 0);
  EXPECT_EQ(server.most_at_once(), 2U);
}

TEST(Http, CallbackCanStartTransfer) {
  HttpServer server([](const WebRequest& request) { return WebAnswer{.body = request.target}; });
  Http http({});
  std::promise<TransferResult> ended;
  http.start({.url = server.url("/1")}, {.end = [&](const TransferResult&) {
               http.start({.url = server.url("/2")},
                          {.end = [&](const TransferResult& end) { ended.set_value(end); }});
             }});
  EXPECT_EQ(ended.get_future().get().error, 0);
  EXPECT_EQ(server.requests().size(), 2U);
}

TEST(Http, DestructionCancelsTransfers) {
  HttpServer server([](const WebRequest&) {
    return WebAnswer{.headers = {{"Content-Length", "9"}}, .body = "x", .stall = true};
  });
  std::vector<int> errors;
  std::promise<void> under_way;
  const auto note = [&](const TransferResult& end) { errors.push_back(end.error); };
  {
    Http http({.connections = 1});
    http.start({.url = server.url()}, {.data =
                                           [&](std::span<const std::byte>) {
                                             under_way.set_value();
                                             return true;
                                           },
                                       .end =
                                           [&](const TransferResult& end) {
                                             note(end);
                                             http.start({.url = server.url()},
                                                        {.end = note});  // is cancelled too
                                           }});
    http.start({.url = server.url()}, {.end = note});  // waits for a connection
    under_way.get_future().wait();
  }
  EXPECT_EQ(errors, (std::vector<int>{ECANCELED, ECANCELED, ECANCELED}));
}

TEST(Http, CanBeUsedByManyThreads) {
  HttpServer server([](const WebRequest& request) { return WebAnswer{.body = request.target}; });
  Http http({});
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const std::string path = "/" + std::to_string(i);
      for (int k = 0; k < 20; ++k) EXPECT_EQ(http.get({.url = server.url(path)}, 100).body, path);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Http, ThrowsWithoutFileDescriptors) {
#ifdef STFS_SANITIZED
  GTEST_SKIP() << "UndefinedBehaviorSanitizer checks memory through a pipe";
#endif
  Http http({});
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_THROW(http.start({.url = "http://127.0.0.1:1/"}, {.end = [](const TransferResult&) {}}),
               Error);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
  EXPECT_EQ(http_fetch(http, {.url = "http://127.0.0.1:1/"}).end.error, EIO);
}

TEST(HttpGet, RetriesTemporaryFailures) {
  std::atomic<int> asked = 0;
  HttpServer server([&](const WebRequest&) {
    switch (asked++) {
      case 0:  // over a new connection, because libcurl itself retries over a reused one
        return WebAnswer{.drop = true};
      case 1: return WebAnswer{.status = 503, .headers = {{"Retry-After", "0"}}};
      case 2: return WebAnswer{.status = 429, .body = std::string(10'000, 'x')};
      case 3: return WebAnswer{.body = "hello", .cut_after = 2};
      default: return WebAnswer{.body = "hello"};
    }
  });
  Counters counters;
  Http http({.counters = &counters});
  EXPECT_EQ(http.get({.url = server.url()}, 100).body, "hello");
  EXPECT_EQ(counters.retries, 4U);
  EXPECT_EQ(asked, 5);
}

TEST(HttpGet, ReturnsTemporaryFailureWhenPatienceIsOver) {
  HttpServer server([](const WebRequest&) {
    return WebAnswer{.status = 503, .headers = {{"Retry-After", "3600"}}, .body = "SlowDown"};
  });
  Http http({});
  const HttpResponse answer = http.get({.url = server.url()}, 100);
  EXPECT_EQ(answer.head.status, 503);
  EXPECT_EQ(answer.body, "SlowDown");
  EXPECT_EQ(server.requests().size(), 1U);
}

std::string message_of(Http& http, const HttpRequest& request, milliseconds patience) {
  try {
    http.get(request, 100, patience);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnreadable);
    return error.what();
  }
  return "no error";
}

TEST(HttpGet, ErrorNamesUrlWithoutSecrets) {
  HttpServer server([](const WebRequest&) {
    return WebAnswer{.headers = {{"Content-Length", "9"}}, .body = "x", .stall = true};
  });
  Http http({});
  EXPECT_EQ(
      message_of(http, {.url = "http://model.example/a?secret"}, milliseconds(1)),
      "http://model.example/a: http is not encrypted: use https, or permit it with insecure_http "
      "(-o insecure_http, --insecure-http)");
  const std::string message = message_of(http, {.url = server.url("/a?secret")}, milliseconds(50));
  EXPECT_TRUE(message.starts_with(server.url("/a") + ": no complete response within ")) << message;
}

// The deadline of a request also runs while other requests use all connections.
TEST(HttpGet, TimeoutIncludesWaitForConnection) {
  HttpServer server([](const WebRequest&) {
    return WebAnswer{.headers = {{"Content-Length", "9"}}, .body = "x", .stall = true};
  });
  std::promise<TransferResult> first;
  Http http({.connections = 1});
  http.start({.url = server.url("/first")},
             {.end = [&](const TransferResult& end) { first.set_value(end); }});
  while (server.requests().empty()) std::this_thread::yield();

  const std::string message = message_of(http, {.url = server.url("/a")}, milliseconds(50));

  EXPECT_TRUE(message.starts_with(server.url("/a") + ": no complete response within ")) << message;
  const auto ended = first.get_future();
  EXPECT_EQ(ended.wait_for(milliseconds(0)), std::future_status::timeout)
      << "the first request has a longer timeout";
  EXPECT_EQ(server.requests().size(), 1U);
}

TEST(HttpGet, RejectsTooLongResponse) {
  HttpServer server([](const WebRequest& request) {
    return WebAnswer{.status = request.target == "/404" ? 404 : 200,
                     .body = std::string(1000, 'x')};
  });
  Http http({});
  EXPECT_EQ(message_of(http, {.url = server.url()}, std::chrono::hours(1)),
            server.url() + ": its server sends more bytes than expected");
  EXPECT_EQ(
      message_of(http, {.url = server.url(), .range = ByteRange{0, 10}}, std::chrono::hours(1)),
      server.url() + ": its server does not support range requests: download the file first");
  EXPECT_EQ(http.get({.url = server.url("/404")}, 100).head.status, 404);
}

TEST(HttpGet, RetriesBadResponseOfReusedConnectionOverNewOne) {
  const std::vector<WebAnswer> late{
      {.headers = {{"\r\n\r\n", "\r\n\r\n"}}, .body = std::string(1000, 'x')},
      {.body = std::string(1000, 'x')},
      {.status = 302, .headers = {{"Location", "ftp://127.0.0.1/"}}}};
  for (const WebAnswer& garbage : late) {
    HttpServer server([&](const WebRequest& request) {
      return request.is_first ? WebAnswer{.body = "hello"} : garbage;
    });
    Counters counters;
    Http http({.counters = &counters});
    EXPECT_EQ(http.get({.url = server.url()}, 100).body, "hello");
    EXPECT_EQ(http.get({.url = server.url()}, 100).body, "hello");
    EXPECT_EQ(counters.retries, 1U);
  }
}

TEST(HttpGet, ReportsRefusedConnectionBeforePatienceEnds) {
  Http http({});
  EXPECT_EQ(message_of(http, {.url = "http://127.0.0.1:1/"}, std::chrono::hours(1)),
            "http://127.0.0.1:1/: cannot connect to 127.0.0.1:1: Connection refused");
}

TEST(Backoff, DoublesBoundOfPauses) {
  Backoff backoff;
  std::int64_t bound = 100;
  for (int i = 0; i < 40; ++i) {
    const auto pause = backoff.next();
    EXPECT_GE(pause, milliseconds(0));
    EXPECT_LE(pause, milliseconds(std::min<std::int64_t>(bound, 10'000)));
    bound = std::min<std::int64_t>(bound * 2, 10'000);
  }
  EXPECT_EQ(backoff.tries(), 40U);
}

TEST(Backoff, HonoursRetryAfterAndRateLimit) {
  const auto pause = [](const std::string& name, const std::string& value) {
    const HttpHead head{.status = 429, .url = {}, .headers = {{name, value}}};
    return std::chrono::floor<std::chrono::seconds>(Backoff().next(&head)).count();
  };
  EXPECT_EQ(pause("retry-after", "7"), 7);
  EXPECT_EQ(pause("retry-after", "99999999999"), 86'400);
  EXPECT_EQ(pause("ratelimit", "\"api\";r=0;t=55"), 55);
  EXPECT_EQ(pause("ratelimit", "\"api\";r=3;t=55, \"resolvers\"; r=0; t=12"), 12);
  EXPECT_EQ(pause("retry-after", "Fri, 01 Jan 2100 00:00:00 GMT"), 86'400);
  for (const char* none : {"Sun, 06 Nov 1994 08:49:37 GMT", "-5", "soon", "", "7.5"}) {
    EXPECT_EQ(pause("retry-after", none), 0) << none;
  }
  for (const char* none : {"\"api\";r=1;t=55", "r=0", "t=55", ";;;,,", ""}) {
    EXPECT_EQ(pause("ratelimit", none), 0) << none;
  }
}

TEST(HttpDate, ParsesAllThreeForms) {
  for (const char* date : {"Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT",
                           "Sun Nov  6 08:49:37 1994"}) {
    EXPECT_EQ(parse_http_date(date), 784111777) << date;
  }
  EXPECT_EQ(parse_http_date("Thu, 01 Jan 1970 00:00:00 GMT"), 0);
  EXPECT_EQ(parse_http_date("Thu, 29 Feb 2024 23:59:60 GMT"), 1709251200);
  for (const char* none : {"", "0", "soon", "Sun, 32 Nov 1994 08:49:37 GMT",
                           "Sun, 06 ovD 1994 08:49:37 GMT", "Sun, 06 Nov 1994 24:00:00 GMT"}) {
    EXPECT_FALSE(parse_http_date(none)) << none;
  }
}

}  // namespace
}  // namespace stfs
