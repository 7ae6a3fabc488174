#include "tests/support/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <set>
#include <stdexcept>
#include <thread>

namespace stfs::test {
namespace {

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

const char* reason(int status) { return status < 400 ? "OK" : "Refused"; }

}  // namespace

struct HttpServer::State {
  Handler handler;
  mutable std::mutex mutex;
  std::vector<WebRequest> requests;
  std::size_t at_once = 0;
  std::size_t most_at_once = 0;
  std::set<int> open;
  std::vector<std::thread> threads;
  std::thread accepting;
  int listening = -1;
  int stop = -1;  // eventfd, which stays readable after the server has begun to end
  bool is_ending = false;

  // Waits for `time`. Returns false if the server ends during the wait.
  bool pause(std::chrono::milliseconds time) const {
    pollfd ended{stop, POLLIN, 0};
    return ::poll(&ended, 1, static_cast<int>(time.count())) == 0;
  }
};

HttpServer::HttpServer(Handler handler, const std::string& address)
    : state_(std::make_unique<State>()), address_(address) {
  state_->handler = std::move(handler);
  state_->stop = ::eventfd(0, EFD_CLOEXEC);
  state_->listening = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in where{};
  where.sin_family = AF_INET;
  ::inet_pton(AF_INET, address.c_str(), &where.sin_addr);
  auto* const name = reinterpret_cast<sockaddr*>(&where);
  socklen_t length = sizeof where;
  if (::bind(state_->listening, name, length) != 0 || ::listen(state_->listening, 128) != 0 ||
      ::getsockname(state_->listening, name, &length) != 0) {
    throw std::runtime_error("HttpServer: " + std::string(std::strerror(errno)));
  }
  port_ = ntohs(where.sin_port);
  state_->accepting = std::thread([this] { accept_all(); });
}

HttpServer::~HttpServer() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_ending = true;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(state_->stop, &one, sizeof one);
    ::shutdown(state_->listening, SHUT_RDWR);
    for (const int fd : state_->open) ::shutdown(fd, SHUT_RDWR);
  }
  state_->accepting.join();
  for (std::thread& thread : state_->threads) thread.join();
  ::close(state_->listening);
  ::close(state_->stop);
}

std::string HttpServer::url(const std::string& path) const {
  return "http://" + address_ + ":" + std::to_string(port_) + path;
}

void HttpServer::set(Handler handler) {
  const std::lock_guard lock(state_->mutex);
  state_->handler = std::move(handler);
}

std::vector<WebRequest> HttpServer::requests() const {
  const std::lock_guard lock(state_->mutex);
  return state_->requests;
}

void HttpServer::forget_requests() {
  const std::lock_guard lock(state_->mutex);
  state_->requests.clear();
  state_->most_at_once = 0;
}

std::size_t HttpServer::most_at_once() const {
  const std::lock_guard lock(state_->mutex);
  return state_->most_at_once;
}

void HttpServer::accept_all() {
  while (true) {
    const int fd = ::accept4(state_->listening, nullptr, nullptr, SOCK_CLOEXEC);
    const std::lock_guard lock(state_->mutex);
    if (state_->is_ending) {
      if (fd >= 0) ::close(fd);
      return;
    }
    if (fd < 0) continue;
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    state_->open.insert(fd);
    state_->threads.emplace_back([this, fd] {
      serve(fd);
      const std::lock_guard closing(state_->mutex);
      state_->open.erase(fd);
      ::close(fd);
    });
  }
}

void HttpServer::serve(int fd) {
  std::string buffer;
  char chunk[16384];
  for (bool is_first = true;; is_first = false) {
    std::size_t end = 0;
    while ((end = buffer.find("\r\n\r\n")) == std::string::npos) {
      const ssize_t n = ::recv(fd, chunk, sizeof chunk, 0);
      if (n <= 0) return;
      buffer.append(chunk, static_cast<std::size_t>(n));
    }
    WebRequest request;
    request.is_first = is_first;
    std::size_t at = buffer.find("\r\n");
    const std::string line = buffer.substr(0, at);
    request.method = line.substr(0, line.find(' '));
    request.target = line.substr(line.find(' ') + 1);
    request.target.resize(request.target.rfind(' '));
    while (at < end) {
      at += 2;
      const std::size_t next = buffer.find("\r\n", at);
      const std::string header = buffer.substr(at, next - at);
      const std::size_t colon = header.find(':');
      const std::size_t value = header.find_first_not_of(' ', colon + 1);
      request.headers[lower(header.substr(0, colon))] =
          value == std::string::npos ? "" : header.substr(value);
      at = next;
    }
    buffer.erase(0, end + 4);
    const std::string length = request.header("content-length");
    const std::size_t body = length.empty() ? 0 : std::stoul(length);
    while (buffer.size() < body) {
      const ssize_t n = ::recv(fd, chunk, sizeof chunk, 0);
      if (n <= 0) return;
      buffer.append(chunk, static_cast<std::size_t>(n));
    }
    request.body = buffer.substr(0, body);
    buffer.erase(0, body);
    if (!answer(fd, request)) return;
  }
}

// Returns true if the connection stays open.
bool HttpServer::answer(int fd, const WebRequest& request) {
  Handler handler;
  {
    const std::lock_guard lock(state_->mutex);
    state_->requests.push_back(request);
    state_->most_at_once = std::max(state_->most_at_once, ++state_->at_once);
    handler = state_->handler;
  }
  struct Leave {
    ~Leave() {
      const std::lock_guard lock(state.mutex);
      --state.at_once;
    }
    State& state;
  } const leave{*state_};
  WebAnswer answer = handler(request);
  if (answer.delay.count() > 0 && !state_->pause(answer.delay)) return false;
  if (answer.drop) return false;
  std::string head =
      "HTTP/1.1 " + std::to_string(answer.status) + " " + reason(answer.status) + "\r\n";
  bool has_length = false;
  for (const auto& [name, value] : answer.headers) {
    has_length =
        has_length || lower(name) == "content-length" || lower(name) == "transfer-encoding";
    head += name + ": " + value + "\r\n";
  }
  if (!has_length && answer.status != 304) {
    head += "Content-Length: " + std::to_string(answer.body.size()) + "\r\n";
  }
  head += "\r\n";
  const auto send = [&](const char* data, std::size_t size) {
    while (size > 0) {
      const ssize_t n = ::send(fd, data, size, MSG_NOSIGNAL);
      if (n <= 0) return false;
      data += n;
      size -= static_cast<std::size_t>(n);
    }
    return true;
  };
  if (!send(head.data(), head.size())) return false;
  if (request.method == "HEAD") return true;
  const std::size_t length = std::min(answer.body.size(), answer.cut_after);
  const std::size_t step = answer.bytes_per_second == 0
                               ? length
                               : std::max<std::size_t>(1, answer.bytes_per_second / 100);
  const std::size_t whole = std::min(length, answer.drip_after);
  for (std::size_t at = 0; at < whole; at += step) {
    if (!send(answer.body.data() + at, std::min(step, whole - at))) return false;
    if (answer.bytes_per_second != 0 && !state_->pause(std::chrono::milliseconds(10))) return false;
  }
  for (std::size_t at = whole; at < length; ++at) {
    if (!send(answer.body.data() + at, 1) || !state_->pause(answer.drip)) return false;
  }
  while (!answer.endless.empty()) {
    if (!send(answer.endless.data(), answer.endless.size()) || !state_->pause(answer.drip)) {
      return false;
    }
  }
  if (answer.stall) {
    while (state_->pause(std::chrono::hours(1))) {
    }
  }
  return !answer.stall && length == answer.body.size();
}

WebAnswer answer_object(const WebRequest& request,
                        const std::map<std::string, WebObject>& objects) {
  const auto found = objects.find(request.target.substr(0, request.target.find('?')));
  if (found == objects.end()) return {.status = 404, .body = "no such object\n"};
  const WebObject& object = found->second;
  WebAnswer answer;
  if (!object.etag.empty()) answer.headers.emplace_back("ETag", object.etag);
  if (!object.last_modified.empty()) {
    answer.headers.emplace_back("Last-Modified", object.last_modified);
  }
  answer.headers.emplace_back("Accept-Ranges", "bytes");
  if (const std::string match = request.header("if-match");
      !match.empty() && match != object.etag) {
    answer.status = 412;
    return answer;
  }
  if (const std::string match = request.header("if-none-match");
      !match.empty() && match == object.etag) {
    answer.status = 304;
    return answer;
  }
  const std::string range = request.header("range");
  if (range.empty()) {
    answer.body = object.bytes;
    return answer;
  }
  const std::string size = std::to_string(object.bytes.size());
  const std::size_t dash = range.find('-');
  const std::uint64_t first = std::stoull(range.substr(6, dash - 6));
  const std::string last_text = range.substr(dash + 1);
  if (first >= object.bytes.size()) {
    answer.status = 416;
    answer.headers.emplace_back("Content-Range", "bytes */" + size);
    return answer;
  }
  const std::uint64_t last =
      std::min<std::uint64_t>(last_text.empty() ? object.bytes.size() - 1 : std::stoull(last_text),
                              object.bytes.size() - 1);
  answer.status = 206;
  answer.headers.emplace_back(
      "Content-Range", "bytes " + std::to_string(first) + "-" + std::to_string(last) + "/" + size);
  answer.body = object.bytes.substr(first, last - first + 1);
  return answer;
}

}  // namespace stfs::test
