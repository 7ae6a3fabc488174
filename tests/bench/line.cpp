// A web server on a simulated line: each response begins after a latency, each connection has a
// rate limit, and all connections together have a rate limit. It serves ranges of the files in a
// directory.
//
//   stfs_bench_line DIRECTORY [--latency MS] [--rate MB/S] [--total MB/S]
//
// Prints its port, and serves until standard input ends.
#include "core/base/posix.h"

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <mutex>
#include <string>
#include <thread>

namespace stfs::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Limits a rate: wait_for() returns when the next bytes may be sent.
class Rate {
 public:
  explicit Rate(double bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  void wait_for(std::size_t bytes) {
    if (bytes_per_second_ <= 0) return;
    Clock::time_point begin;
    {
      const std::lock_guard lock(mutex_);
      begin = std::max(next_, Clock::now());
      next_ = begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
                          static_cast<double>(bytes) / bytes_per_second_));
    }
    std::this_thread::sleep_until(begin);
  }

 private:
  double bytes_per_second_;
  std::mutex mutex_;
  Clock::time_point next_{};
};

struct Line {
  std::string directory;
  double latency = 0;  // milliseconds
  double rate = 0;     // megabytes per second of each connection
  double total = 0;    // megabytes per second of all connections together
};

bool send_all(int to, const std::string& text) {
  return ::send(to, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

bool send_range(int to, int file, std::uint64_t begin, std::uint64_t end, Rate& own, Rate& total) {
  constexpr std::uint64_t kStep = 256 << 10;
  auto offset = static_cast<off_t>(begin);
  while (static_cast<std::uint64_t>(offset) < end) {
    const std::uint64_t step = std::min(kStep, end - static_cast<std::uint64_t>(offset));
    own.wait_for(step);
    total.wait_for(step);
    const auto until = offset + static_cast<off_t>(step);
    while (offset < until) {
      if (::sendfile(to, file, &offset, static_cast<std::size_t>(until - offset)) <= 0)
        return false;
    }
  }
  return true;
}

// Answers one request. Returns true if the connection can be used again.
bool answer(int to, const std::string& request, const Line& line, Rate& own, Rate& total) {
  std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(line.latency));
  const std::size_t path = request.find(' ') + 1;
  const std::string name = request.substr(path, request.find(' ', path) - path);
  const UniqueFd file(::open((line.directory + name).c_str(), O_RDONLY | O_CLOEXEC));
  if (!file || name.find("..") != std::string::npos) {
    return send_all(to, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
  }
  const auto size = static_cast<std::uint64_t>(stat_of(file.get(), name).st_size);
  std::uint64_t first = 0;
  std::uint64_t last = size - 1;
  const std::size_t range = request.find("ange: bytes=");
  if (range != std::string::npos) {
    char* end = nullptr;
    first = std::strtoull(request.c_str() + range + 12, &end, 10);
    if (*end == '-' && end[1] >= '0' && end[1] <= '9') {
      last = std::min<std::uint64_t>(last, std::strtoull(end + 1, nullptr, 10));
    }
  }
  std::string head =
      range == std::string::npos ? "HTTP/1.1 200 OK\r\n" : "HTTP/1.1 206 Partial\r\n";
  head += "ETag: \"" + std::to_string(size) +
          "\"\r\nContent-Length: " + std::to_string(last + 1 - first) + "\r\n";
  if (range != std::string::npos) {
    head += "Content-Range: bytes " + std::to_string(first) + "-" + std::to_string(last) + "/" +
            std::to_string(size) + "\r\n";
  }
  if (!send_all(to, head + "\r\n")) return false;
  return request.starts_with("HEAD") || send_range(to, file.get(), first, last + 1, own, total);
}

void serve(UniqueFd connection, const Line& line, Rate& total) {
  const int on = 1;
  ::setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  Rate own(line.rate * 1e6);
  std::string buffer;
  char chunk[4096];
  while (true) {
    const std::size_t end = buffer.find("\r\n\r\n");
    if (end != std::string::npos) {
      if (!answer(connection.get(), buffer.substr(0, end), line, own, total)) return;
      buffer.erase(0, end + 4);
      continue;
    }
    const ssize_t n = ::recv(connection.get(), chunk, sizeof chunk, 0);
    if (n <= 0) return;
    buffer.append(chunk, static_cast<std::size_t>(n));
  }
}

int run(const Line& line) {
  const UniqueFd listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const name = reinterpret_cast<sockaddr*>(&where);
  socklen_t length = sizeof where;
  if (::bind(listening.get(), name, length) != 0 || ::listen(listening.get(), 128) != 0 ||
      ::getsockname(listening.get(), name, &length) != 0) {
    std::perror("stfs_bench_line");
    return 1;
  }
  std::printf("%u\n", static_cast<unsigned>(ntohs(where.sin_port)));
  std::fflush(stdout);
  Rate total(line.total * 1e6);
  std::thread([&] {
    while (true) {
      UniqueFd connection(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!connection) continue;
      std::thread(serve, std::move(connection), std::cref(line), std::ref(total)).detach();
    }
  }).detach();
  while (std::cin.get() != std::istream::traits_type::eof()) {
  }
  std::_Exit(0);
}

}  // namespace
}  // namespace stfs::bench

int main(int argc, char** argv) {
  CLI::App app("A web server at the end of a line.");
  stfs::bench::Line line;
  app.add_option("DIRECTORY", line.directory)->required();
  app.add_option("--latency", line.latency, "milliseconds before each answer");
  app.add_option("--rate", line.rate, "megabytes a second, of a connection");
  app.add_option("--total", line.total, "megabytes a second, of all connections");
  CLI11_PARSE(app, argc, argv);
  std::signal(SIGPIPE, SIG_IGN);  // a client may close the connection during a response
  return stfs::bench::run(line);
}
