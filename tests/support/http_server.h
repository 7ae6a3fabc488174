// An HTTP/1.1 server in the test's own process, on a free port of a loopback address. Each
// connection has a thread. A handler decides the responses, including faults; answer_object()
// answers requests for ranges of objects like a web server.
//
// Thread safety: all members may be called from any thread. Several threads call the handler.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stfs::test {

struct WebRequest {
  std::string method, target;                       // "GET", "/path?query" as sent
  std::map<std::string, std::string> headers = {};  // names in lower case
  std::string body = {};
  bool is_first = true;  // the first request of its connection
  std::string header(const std::string& name) const {
    const auto at = headers.find(name);
    return at == headers.end() ? "" : at->second;
  }
};

struct WebAnswer {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> headers =
      {};  // a Content-Length of the body is added unless there is one
  std::string body = {};
  // Faults: end the connection after this many bytes of the body; stall there instead, until the
  // server ends; or send no response at all.
  std::size_t cut_after = std::numeric_limits<std::size_t>::max();
  bool stall = false;
  bool drop = false;
  std::chrono::milliseconds delay{0};  // before the response, to simulate latency
  std::uint64_t bytes_per_second = 0;  // 0: as fast as possible
  // From this byte of the body on, send one byte at a time, with the pause `drip` after each.
  std::size_t drip_after = std::numeric_limits<std::size_t>::max();
  std::chrono::milliseconds drip{0};
  std::string endless = {};  // sent after the body again and again, with the pause `drip`
};

class HttpServer {
 public:
  using Handler = std::function<WebAnswer(const WebRequest&)>;

  explicit HttpServer(Handler handler, const std::string& address = "127.0.0.1");
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();  // ends all connections

  std::string url(const std::string& path = "/") const;  // "http://127.0.0.1:PORT/path"
  std::uint16_t port() const { return port_; }
  void set(Handler handler);  // for all later requests

  std::vector<WebRequest> requests() const;  // so far, in the order of their arrival
  void forget_requests();
  // The maximum number of requests that were answered at the same time.
  std::size_t most_at_once() const;

 private:
  void accept_all();
  void serve(int fd);
  bool answer(int fd, const WebRequest& request);

  struct State;
  std::unique_ptr<State> state_;
  std::uint16_t port_ = 0;
  std::string address_;
};

// An object of a web server.
struct WebObject {
  std::string bytes;
  std::string etag = "\"v1\"";  // "": none
  std::string last_modified = "Sat, 01 Feb 2025 10:00:00 GMT";
};

// Answers GET and HEAD requests for the objects by path: ranges (206, 416), If-Match (412),
// If-None-Match (304), 404. Change the objects before requests are sent, or under a lock of the
// test.
WebAnswer answer_object(const WebRequest& request, const std::map<std::string, WebObject>& objects);

}  // namespace stfs::test
