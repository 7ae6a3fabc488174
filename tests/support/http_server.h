// A server of HTTP/1.1 in the test's own process, on a free port of a loopback address. Each
// connection has a thread. A handler says what is answered, faults included; serve() answers ranges
// of objects as a web server does.
//
// Thread safety: all members. The handler is called by many threads.
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
  bool is_first = true;  // of its connection
  std::string header(const std::string& name) const {
    const auto at = headers.find(name);
    return at == headers.end() ? "" : at->second;
  }
};

struct WebAnswer {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> headers =
      {};  // Content-Length unless named: the body's
  std::string body = {};
  // Faults: end the connection after so many bytes of the body; stall there instead, until the
  // server ends; or answer nothing at all.
  std::size_t cut_after = std::numeric_limits<std::size_t>::max();
  bool stall = false;
  bool drop = false;
  std::chrono::milliseconds delay{0};  // before the answer: the latency of a line
  std::uint64_t bytes_per_second = 0;  // 0: as fast as possible
  // From this byte of the body on, a byte at a time, with a pause after each.
  std::size_t drip_after = std::numeric_limits<std::size_t>::max();
  std::chrono::milliseconds drip{0};
  std::string endless = {};  // sent behind the body for ever, with the same pause after each
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
  void set(Handler handler);  // for the requests from now on

  std::vector<WebRequest> requests() const;  // so far, in the order of their arrival
  void forget_requests();
  std::size_t most_at_once() const;  // requests that were being answered at the same time

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
  std::string etag = "\"v1\"";  // "" for none
  std::string last_modified = "Sat, 01 Feb 2025 10:00:00 GMT";
};

// Answers GET and HEAD of the objects by path: ranges (206, 416), If-Match (412), If-None-Match
// (304), 404. Set objects before requests are sent, or under a lock of the test's own.
WebAnswer answer_object(const WebRequest& request, const std::map<std::string, WebObject>& objects);

}  // namespace stfs::test
