// Mounts of a server that fails, hangs or sends invalid responses. A read returns the right bytes
// or fails, and no fault ends the mount.
#include "tests/remote/scripted_mount.h"
#include "tests/support/daemon_figures.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

class FailingServer : public ScriptedMount {
 protected:
  // Reads a part of a file on another thread and returns the errno.
  static std::future<int> reader(const std::filesystem::path& path, std::uint64_t offset,
                                 std::size_t length = 4096, int flags = 0) {
    return std::async(std::launch::async,
                      [=] { return read_part(path, offset, length, nullptr, flags); });
  }
  // Starts readers of one page of a file each, `apart` bytes apart.
  static std::vector<std::future<int>> readers(const std::filesystem::path& path, unsigned count,
                                               std::uint64_t apart) {
    std::vector<std::future<int>> all;
    for (unsigned i = 0; i < count; ++i) all.push_back(reader(path, i * apart));
    return all;
  }
  static bool is_waiting(const std::future<int>& reader) {
    return reader.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  }
  static std::uint64_t counter(const Mounted& mount, const std::string& name) {
    const std::string text = read_file(mount / ".stfs/counters.json");
    const std::size_t at = text.find('"' + name + "\":");
    return at == std::string::npos ? 0 : std::stoull(text.substr(at + name.size() + 3));
  }
  static std::size_t lines_with(const std::string& text, const std::string& part) {
    std::size_t lines = 0;
    for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++lines) {
      at = text.find('\n', at);
      if (at == std::string::npos) return lines + 1;
    }
    return lines;
  }
};

TEST_F(FailingServer, BrokenTransferIsResumed) {
  const Mounted mount({url()}, options());
  server_.forget_requests();
  std::atomic<bool> is_cut = false;
  std::atomic<std::uint64_t> cut_block = 0;
  set_fault([&](const WebRequest& request) -> std::optional<WebAnswer> {
    WebAnswer answer = right(request);
    const auto range = asked_range(request);
    if (range->length() <= 2 * kFetchBlock || is_cut.exchange(true)) return answer;
    cut_block = range->first / kFetchBlock;
    answer.cut_after = 2 * kFetchBlock + 1000;
    return answer;
  });

  EXPECT_EQ(read_file(mount / "w"), bytes_of("w"));

  ASSERT_TRUE(is_cut);
  std::map<std::uint64_t, unsigned> asked = asked_blocks();
  EXPECT_EQ(asked[cut_block], 1U);
  EXPECT_EQ(asked[cut_block + 1], 1U);
  EXPECT_EQ(asked[cut_block + 2], 2U);
}

TEST_F(FailingServer, StalledReadGivesEIOAndNextReadRetries) {
  const Mounted mount({url()}, options("timeout=1"));
  set_change([](WebAnswer& answer) {
    answer.cut_after = 100'000;
    answer.stall = true;
  });

  EXPECT_EQ(read_part(mount / "w", 1 << 20, 4096), EIO);
  mend();

  EXPECT_EQ(read_file(mount / "w"), bytes_of("w"));
}

// The log shows why a read waited, and the counters show the server.
TEST_F(FailingServer, TimeoutNamesServer) {
  ForegroundMount mount({url()}, options("timeout=1"));
  const std::string server = server_.url("");
  fall_silent();
  EXPECT_EQ(read_part(mount / "w", 1 << 20, 4096), EIO);
  set_change([](WebAnswer& answer) {
    answer.cut_after = 1000;
    answer.stall = true;
  });
  EXPECT_EQ(read_part(mount / "x", 0, 4096), EIO);
  const std::string err = mount.process().err();
  const std::string counters = read_file(mount / ".stfs/counters.json");

  EXPECT_GE(lines_with(err, "no bytes within 1 s from " + server + ": it "), 1U) << err;
  const auto timeouts = nlohmann::json::parse(counters);
  EXPECT_GE(timeouts["timeouts"], 1U) << counters;
  EXPECT_EQ(timeouts["timeouts_by_server"].size(), 1U) << counters;
  EXPECT_EQ(timeouts["timeouts_by_server"][server], timeouts["timeouts"]) << counters;
}

TEST_F(FailingServer, RecoversForNextReadAfterDripping) {
  const Mounted mount({url()}, options("timeout=1"));
  set_change([](WebAnswer& answer) {
    answer.drip_after = 1000;
    answer.drip = std::chrono::milliseconds(50);
  });
  std::vector<std::future<int>> stuck;
  for (std::uint64_t i = 0; i < 16; ++i) {
    stuck.push_back(reader(mount / (i % 2 == 0 ? "w" : "x"), i / 2 * kFetchBlock));
  }
  for (std::future<int>& one : stuck) EXPECT_EQ(one.get(), EIO);
  mend();

  EXPECT_EQ(read_file(mount / "w"), bytes_of("w"));
  EXPECT_EQ(read_file(mount / "x"), bytes_of("x"));
}

TEST_F(FailingServer, RecoversForNextReadAfterEndlessTrailers) {
  const Mounted mount({url()}, options("timeout=1,connections=2"));
  set_change([](WebAnswer& answer) {
    answer.headers.emplace_back("Transfer-Encoding", "chunked");
    answer.body = "3e8\r\n" + answer.body.substr(0, 1000) + "\r\n0\r\n";
    answer.endless = "X-Trailer: 1\r\n";
    answer.drip = std::chrono::milliseconds(50);
  });
  auto stuck = readers(mount / "w", 4, kFetchBlock);
  for (std::future<int>& one : stuck) EXPECT_EQ(one.get(), EIO);
  mend();

  EXPECT_EQ(read_file(mount / "w"), bytes_of("w"));
}

TEST_F(FailingServer, UnansweredReadCostsOneTimeout) {
  const Mounted mount({url()}, options("timeout=1"));
  const auto waits = [&] { return counter(mount, "waits"); };
  const std::uint64_t before = waits();
  fall_silent();

  // The kernel requests a page again if it could not be read.
  EXPECT_EQ(read_part(mount / "w", 0, 100'000), EIO);
  EXPECT_EQ(waits(), before + 1);
  // The next read waits for its own timeout.
  EXPECT_EQ(read_part(mount / "w", 0, 100'000), EIO);
  EXPECT_EQ(waits(), before + 2);
  mend();
  std::string bytes;
  EXPECT_EQ(read_part(mount / "w", 0, 100'000, &bytes), 0);
  EXPECT_EQ(bytes, bytes_of("w").substr(0, 100'000));
}

TEST_F(FailingServer, ReadSucceedsThoughEachConnectionBreaksInBlock) {
  const Mounted mount({url()}, options("timeout=20"));
  set_change([](WebAnswer& answer) { answer.cut_after = 200'000; });

  EXPECT_EQ(read_file(mount / "w"), bytes_of("w"));
}

TEST_F(FailingServer, ChangedWeakETagGivesESTALE) {
  WebObject object{.bytes = read_file(local()), .etag = "W/\"1\""};
  put("/m.safetensors", object);
  const Mounted mount({url()}, options());
  object.etag = "W/\"2\"";
  for (char& byte : object.bytes) byte = static_cast<char>(~byte);
  put("/m.safetensors", object);

  EXPECT_EQ(read_part(mount / "x", 1 << 20, 4096), ESTALE);
}

TEST_F(FailingServer, SilentServerDelaysNoReadOfCachedBytes) {
  const Mounted mount({url()}, options());
  EXPECT_EQ(read_file(mount / "v"), bytes_of("v"));
  server_.forget_requests();
  fall_silent();
  std::vector<std::future<int>> stuck;
  for (std::uint64_t i = 0; i < 64; ++i) {
    stuck.push_back(reader(mount / (i % 2 == 0 ? "w" : "x"), kFetchBlock + i / 2 * (48 << 10)));
  }
  ASSERT_TRUE(was_asked(1));

  EXPECT_EQ(read_file(mount / ".stfs/npy/v.npy").substr(128), bytes_of("v"));
  EXPECT_EQ(read_file(mount / "small"), bytes_of("small"));
  EXPECT_EQ(names_in(mount.path()), (std::vector<std::string>{"small", "v", "w", "x"}));
  EXPECT_EQ(names_in(mount / ".stfs/slice"), (std::vector<std::string>{"small", "v", "w", "x"}));
  EXPECT_NE(read_file(mount / ".stfs/sha256/small"), "");
  EXPECT_EQ(read_file(mount / ".stfs/f32/v"), bytes_of("v"));
  EXPECT_TRUE(std::ranges::all_of(stuck, is_waiting));

  ASSERT_EQ(run({STFS_BINARY, "-u", "-z", mount.path().string()}).status, 0);
  EXPECT_EQ(read_part(mount / "small", 0, 1), ENOENT);
  const std::vector<pid_t> daemons = processes_with(mount.path().string());
  for (const pid_t daemon : daemons) ::kill(daemon, SIGTERM);
  for (std::future<int>& one : stuck) EXPECT_NE(one.get(), 0);
}

TEST_F(FailingServer, SilentServerGivesEIOAtDeadline) {
  const Mounted mount({url()}, options("timeout=1"));
  fall_silent();
  auto stuck = readers(mount / "w", 32, 64 << 10);

  for (std::future<int>& one : stuck) EXPECT_EQ(one.get(), EIO);
  mend();

  EXPECT_EQ(read_file(mount / "w"), bytes_of("w"));
}

TEST_F(FailingServer, SilentServerDelaysNoTensorOfOtherServer) {
  std::vector<Tensor> others{random_tensor("other", "U8", {2 << 20}, 9)};
  write_safetensors(dir_ / "o.safetensors", others);
  const WebObject object{.bytes = read_file(dir_ / "o.safetensors")};
  HttpServer healthy(
      [&](const WebRequest& request) {
        return answer_object(request, {{"/o.safetensors", object}});
      },
      "127.0.0.2");
  const Mounted mount({url(), healthy.url("/o.safetensors")}, options("connections=2"));
  fall_silent();
  server_.forget_requests();
  auto stuck = readers(mount / "w", 4, 512 << 10);
  stuck.push_back(reader(mount / "x", 0));
  ASSERT_TRUE(was_asked(2));

  EXPECT_EQ(read_file(mount / "other"), others[0].bytes);

  EXPECT_TRUE(is_waiting(stuck.front()));
  const std::vector<pid_t> daemons = processes_with(mount.path().string());
  for (const pid_t daemon : daemons) ::kill(daemon, SIGTERM);
  for (std::future<int>& one : stuck) EXPECT_NE(one.get(), 0);
}

TEST_F(FailingServer, TemporaryRefusalsAreRetriedAfterRequestedPause) {
  using Clock = std::chrono::steady_clock;
  struct Refusal {
    int status;
    const char *name, *value;
    std::chrono::milliseconds pause;
  };
  const Mounted mount({url()}, options());
  std::uint64_t at = 0;
  for (const Refusal& refusal :
       {Refusal{503, "Retry-After", "1", std::chrono::seconds(1)},
        Refusal{429, "RateLimit", "\"api\";r=0;t=1", std::chrono::seconds(1)},
        Refusal{500, "X", "", {}}, Refusal{408, "X", "", {}}}) {
    SCOPED_TRACE(refusal.status);
    std::mutex mutex;
    std::map<std::uint64_t, Clock::time_point> refused;  // the time of refusal by block
    bool is_early = false;
    unsigned refusals = 0;
    set_fault([&](const WebRequest& request) -> std::optional<WebAnswer> {
      const std::lock_guard lock(mutex);
      const auto range = asked_range(request);
      for (std::uint64_t b = range->first / kFetchBlock; b <= range->last / kFetchBlock; ++b) {
        const auto before = refused.find(b);
        if (before == refused.end()) continue;
        is_early = is_early || Clock::now() < before->second + refusal.pause;
        return std::nullopt;
      }
      for (std::uint64_t b = range->first / kFetchBlock; b <= range->last / kFetchBlock; ++b) {
        refused[b] = Clock::now();
      }
      ++refusals;
      return WebAnswer{.status = refusal.status,
                       .headers = {{refusal.name, refusal.value}},
                       .body = "<html>later</html>"};
    });
    std::string bytes;
    EXPECT_EQ(read_part(mount / "x", at, 4096, &bytes), 0);
    EXPECT_EQ(bytes, bytes_of("x").substr(at, 4096));
    EXPECT_GE(refusals, 1U);
    EXPECT_FALSE(is_early);
    mend();
    at += 512 << 10;
  }
}

TEST_F(FailingServer, ExpiredUrlIsRenewedByRedirect) {
  // Like a server that signs a URL for each request.
  put("/signed-2", {.bytes = read_file(local())});
  std::atomic<unsigned> signature = 1;
  put("/signed-1", {.bytes = read_file(local())});
  set_fault([&](const WebRequest& request) -> std::optional<WebAnswer> {
    const std::string current = "/signed-" + std::to_string(signature);
    if (request.target == "/m.safetensors") {
      return WebAnswer{.status = 302, .headers = {{"Location", current}}};
    }
    if (request.target != current) return WebAnswer{.status = 403, .body = "expired"};
    return std::nullopt;
  });
  const Mounted mount({url()}, options());
  EXPECT_EQ(read_part(mount / "v", 1 << 20, 4096), 0);

  signature = 2;

  EXPECT_EQ(read_file(mount / "w"), bytes_of("w"));
}

TEST_F(FailingServer, RefusedReadGivesEACCESAndNextReadRetries) {
  const Mounted mount({url()}, options());
  for (const int status : {401, 403}) {
    set_fault([=](const WebRequest&) { return WebAnswer{.status = status}; });
    EXPECT_EQ(read_part(mount / "w", 1 << 20, 4096), EACCES) << status;
  }
  mend();
  EXPECT_EQ(read_file(mount / "w"), bytes_of("w"));
}

TEST_F(FailingServer, ChangedObjectGivesESTALEForUncachedBytes) {
  for (const char* how : {"changed", "404", "410", "412", "another size"}) {
    SCOPED_TRACE(how);
    std::filesystem::remove_all(cache());
    mend();
    put("/m.safetensors", {.bytes = read_file(local())});
    ForegroundMount mount({url()}, options());
    EXPECT_EQ(read_file(mount / "v"), bytes_of("v"));
    const std::string name = how;
    std::string other = read_file(local());
    std::ranges::fill(other, '\xee');
    if (name == "another size") other.resize(other.size() + 1);
    if (name == "changed") put("/m.safetensors", {.bytes = other, .etag = "\"v2\""});
    if (name == "another size") put("/m.safetensors", {.bytes = other});
    if (name[0] == '4') {
      set_fault([=](const WebRequest&) { return WebAnswer{.status = std::stoi(name)}; });
    }

    EXPECT_EQ(read_part(mount / "x", 1 << 20, 4096), ESTALE);
    mend();
    put("/m.safetensors", {.bytes = read_file(local())});
    server_.forget_requests();
    EXPECT_EQ(read_part(mount / "x", 1 << 20, 4096), ESTALE) << "the object stays stale";
    EXPECT_EQ(read_part(mount / ".stfs/slice/x/2000,:", 0, 100), ESTALE);
    EXPECT_EQ(read_part(mount / ".stfs/sha256/x", 0, 100), ESTALE);

    EXPECT_EQ(read_file(mount / ".stfs/npy/v.npy").substr(128), bytes_of("v"));
    EXPECT_EQ(read_file(mount / ".stfs/slice/v/0:3"), bytes_of("v").substr(0, 3 * 4096));
    EXPECT_EQ(server_.requests().size(), 0U);
    mount.process().signal(SIGTERM);
    const Outcome end = mount.process().wait();
    EXPECT_EQ(end.status, 0);
    EXPECT_EQ(std::ranges::count(end.err, '\n'), 1) << end.err;
    EXPECT_EQ(lines_with(end.err, "changed since it was mounted"), 1U) << end.err;
  }
}

TEST_F(FailingServer, WeakETagGivesWarningAtMount) {
  put("/m.safetensors", {.bytes = read_file(local()), .etag = "W/\"v1\""});
  ForegroundMount mount({url()}, options());
  EXPECT_EQ(read_file(mount / "w"), bytes_of("w"));
  EXPECT_EQ(lines_with(mount.process().err(), "stfs: warning: "), 1U) << mount.process().err();

  put("/m.safetensors", {.bytes = read_file(local()),
                         .etag = "W/\"v1\"",
                         .last_modified = "Sat, 01 Feb 2025 10:00:01 GMT"});
  EXPECT_EQ(read_part(mount / "x", 1 << 20, 4096), ESTALE);
}

TEST_F(FailingServer, InvalidResponseGivesEIOAndIsNotCached) {
  const std::string size = std::to_string(read_file(local()).size());
  struct BadResponse {
    const char* name;
    std::function<void(WebAnswer&)> change;
  };
  const auto content_range = [](const std::string& value) {
    return [value](WebAnswer& answer) { set_header(answer, "Content-Range", value); };
  };
  const auto without = [](const std::string& name) {
    return [name](WebAnswer& answer) {
      std::erase_if(answer.headers, [&](const auto& header) { return header.first == name; });
    };
  };
  const std::vector<BadResponse> responses{
      {"ignores ranges", [](WebAnswer& answer) { answer.status = 200; }},
      {"gzips", [](WebAnswer& answer) { set_header(answer, "Content-Encoding", "gzip"); }},
      {"several parts",
       [](WebAnswer& answer) {
         set_header(answer, "Content-Type", "multipart/byteranges; boundary=x");
       }},
      {"another range", content_range("bytes 0-262143/" + size)},
      {"garbage", content_range("bytes \x1b[31m")},
      {"no size", content_range("bytes 0-262143/*")},
      {"no range", without("Content-Range")},
      {"too much", [](WebAnswer& answer) { answer.body += std::string(1000, '\xee'); }},
      {"too little", [](WebAnswer& answer) { answer.body.resize(answer.body.size() - 1); }},
      {"no validator", without("ETag")},
      {"too many headers",
       [](WebAnswer& answer) {
         for (int i = 0; i < 100; ++i) {
           answer.headers.emplace_back("X-" + std::to_string(i), std::string(1'000'000, 'x'));
         }
       }},
      {"no HTTP",
       [](WebAnswer& answer) {
         answer.headers = {{"\r\n\r\n", "\r\n\r\n"}};
       }},
  };
  ForegroundMount mount({url()}, options("timeout=1"));
  std::string err;
  for (const BadResponse& response : responses) {
    SCOPED_TRACE(response.name);
    set_change([&](WebAnswer& answer) {
      std::ranges::fill(answer.body, '\xee');
      response.change(answer);
    });
    EXPECT_EQ(read_part(mount / "w", 1 << 20, 4096), EIO);
    EXPECT_TRUE(mount.process().running());
    err = mount.process().err();
    EXPECT_EQ(err.find('\x1b'), std::string::npos);
  }
  // The log shows the administrator the cause.
  EXPECT_EQ(lines_with(err, "its server does not support range requests"), 1U) << err;
  EXPECT_EQ(lines_with(err, "gzip"), 1U) << err;
  mend();
  EXPECT_EQ(read_file(mount / "w"), bytes_of("w"));
  EXPECT_LT(DaemonFigures(mount.process().pid()).most_resident, 256U << 20);
}

TEST_F(FailingServer, BytesAfterResponseDoNotAnswerNextRequest) {
  const Mounted mount({url()}, options());
  set_change([](WebAnswer& answer) {
    set_header(answer, "Content-Length", std::to_string(answer.body.size()));
    answer.body += "HTTP/1.1 206 OK\r\nContent-Length: 3\r\n\r\nbad";
  });
  for (const char* name : {"v", "w", "x"}) EXPECT_EQ(read_file(mount / name), bytes_of(name));
}

TEST_F(FailingServer, LateBytesDoNotAnswerNextRequest) {
  // Surplus bytes that arrive after the next request was sent look like its response.
  const std::vector<WebAnswer> late{
      {.status = 206, .body = "bad"},
      {.status = 200, .body = "bad"},
      {.status = 206, .headers = {{"Content-Range", "bytes 0-2/3"}}, .body = "bad"},
      {.status = 206, .headers = {{"\r\n\r\n", "\r\n\r\n"}}, .body = "bad"},
      {.status = 302, .headers = {{"Location", "ftp://127.0.0.1/"}}},
      {.status = 302, .headers = {{"Location", "/absent"}}},
      {.status = 401},
      {.status = 403},
      {.status = 404},
      {.status = 412},
      {.status = 416},
      {.status = 999},
  };
  for (const WebAnswer& garbage : late) {
    SCOPED_TRACE(testing::Message() << garbage.status << " number " << &garbage - late.data());
    std::filesystem::remove_all(cache());
    mend();
    ForegroundMount mount({url()}, options("connections=1"));
    std::atomic<unsigned> sent = 0;
    set_fault([&](const WebRequest& request) -> std::optional<WebAnswer> {
      if (request.is_first || request.target == "/absent") return std::nullopt;
      ++sent;
      return garbage;
    });
    for (const char* name : {"v", "w", "x"}) {
      std::string bytes;
      EXPECT_EQ(read_part(mount / name, 0, bytes_of(name).size(), &bytes), 0) << name;
      EXPECT_TRUE(bytes == bytes_of(name)) << name;
    }
    EXPECT_GE(sent, 1U);
    EXPECT_EQ(mount.process().err(), "");
    mend();
  }
}

TEST_F(FailingServer, RedirectSendsNoSecretToOtherHost) {
  write_file(dir_ / "netrc", "machine 127.0.0.1 login user password hunter2\n");
  std::filesystem::permissions(dir_ / "netrc", std::filesystem::perms::owner_read);
  HttpServer second([this](const WebRequest& request) { return right(request); }, "127.0.0.2");
  set_fault([&](const WebRequest&) {
    return WebAnswer{.status = 302, .headers = {{"Location", second.url("/m.safetensors")}}};
  });
  {
    ForegroundMount mount({url() + "?signature=hunter2"}, options(),
                          {.environment = {"NETRC=" + (dir_ / "netrc").string()}});
    EXPECT_EQ(read_file(mount / "w"), bytes_of("w"));
  }
  ASSERT_FALSE(server_.requests().empty());
  for (const WebRequest& request : server_.requests()) {
    EXPECT_TRUE(request.header("authorization").starts_with("Basic ")) << request.target;
  }
  ASSERT_FALSE(second.requests().empty());
  for (const WebRequest& request : second.requests()) {
    EXPECT_EQ(request.target, "/m.safetensors");
    for (const auto& [name, value] : request.headers) {
      EXPECT_NE(name, "authorization");
      EXPECT_EQ(value.find("hunter2"), std::string::npos) << name;
    }
  }
}

TEST_F(FailingServer, ForbiddenRedirectFailsOnlyItsRead) {
  ForegroundMount mount({url()}, options("timeout=1"));
  for (const std::string& to :
       {std::string("http://169.254.169.254/latest"), std::string("http://[fe80::1]/"),
        std::string("http://192.0.2.1/m.safetensors"), std::string("file:///etc/passwd"),
        std::string("/m.safetensors"), std::string("ftp://127.0.0.1/"), std::string("")}) {
    SCOPED_TRACE(to);
    set_fault([=](const WebRequest&) {
      return WebAnswer{.status = 302, .headers = {{"Location", to}}};
    });
    const int error = read_part(mount / "w", 1 << 20, 4096);
    EXPECT_TRUE(error == EIO || error == EACCES) << error;
  }
  mend();
  EXPECT_EQ(read_file(mount / "w"), bytes_of("w"));
}

TEST_F(FailingServer, SigtermEndsWaitingReadersAndMount) {
  for (const char* more : {"", "supervise"}) {
    SCOPED_TRACE(more);
    std::filesystem::remove_all(cache());
    mend();
    ForegroundMount mount({url()}, options(more));
    server_.forget_requests();
    fall_silent();
    std::vector<std::future<int>> stuck;
    stuck.push_back(reader(mount / "w", 1 << 20));
    stuck.push_back(reader(mount / "x", 1 << 20, 4096, O_DIRECT));
    stuck.push_back(reader(mount / ".stfs/sha256/v", 0));
    ASSERT_TRUE(was_asked(1));

    mount.process().signal(SIGTERM);

    for (std::future<int>& one : stuck) EXPECT_NE(one.get(), 0);
    const Outcome end = mount.process().wait();
    EXPECT_EQ(end.status, 0) << end.err;
    EXPECT_TRUE(mounts_at(mount.path()).empty());
  }
}

TEST_F(FailingServer, KilledReaderExitsAndMountKeepsServing) {
  const Mounted mount({url()}, options());
  server_.forget_requests();
  fall_silent();
  for (const char* name : {"w", ".stfs/f32/w", ".stfs/stats/w.json"}) {
    Process cat({"cat", (mount / name).string()});
    ASSERT_TRUE(was_asked(1));
    cat.signal(SIGKILL);
    EXPECT_EQ(cat.wait().status, 128 + SIGKILL) << name;
  }
  EXPECT_EQ(read_file(mount / "small"), bytes_of("small"));
  EXPECT_TRUE(eventually([&] { return mount.daemon() > 0; }));
}

TEST_F(FailingServer, CommandKilledWhileLoadingUnlocksMountpoint) {
  const std::filesystem::path mountpoint = dir_ / "mnt";
  std::filesystem::create_directories(mountpoint);
  for (const char* const more : {"timeout=3600", "timeout=3600,supervise"}) {
    server_.forget_requests();
    fall_silent();
    std::vector<std::string> argv = options(more);
    argv.insert(argv.begin(), STFS_BINARY);
    argv.push_back(url());
    argv.push_back(mountpoint.string());
    Process command(argv);
    ASSERT_TRUE(was_asked(1));
    command.signal(SIGTERM);
    EXPECT_EQ(command.wait().status, 128 + SIGTERM);
    mend();
    // The command has released its lock on the mountpoint.
    EXPECT_TRUE(eventually([&] {
      return run({STFS_BINARY, local().string(), mountpoint.string()}).status == 0;
    }));
    EXPECT_EQ(run({STFS_BINARY, "-u", mountpoint.string()}).status, 0);
  }
}

TEST_F(FailingServer, DirectReadsWaitUntilDeadline) {
  const Mounted mount({url()}, options("timeout=1"));
  set_change([](WebAnswer& answer) { answer.delay = std::chrono::milliseconds(20); });
  std::string bytes;
  EXPECT_EQ(read_part(mount / "w", 4096, 1 << 20, &bytes, O_DIRECT), 0);
  EXPECT_EQ(bytes, bytes_of("w").substr(4096, 1 << 20));
  fall_silent();
  EXPECT_EQ(read_part(mount / "x", 1 << 20, 4096, nullptr, O_DIRECT), EIO);
}

TEST_F(FailingServer, MappedReadGetsSIGBUSAtDeadlineAndNextAccessWorks) {
  const Mounted mount({url()}, options("timeout=1"));
  const std::string path = mount / "w";
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  const auto* const bytes =
      static_cast<const char*>(::mmap(nullptr, 2 << 20, PROT_READ, MAP_SHARED, fd, 0));
  ASSERT_NE(bytes, MAP_FAILED);
  // Reads from the mapping in a child process and returns its signal or exit status.
  const auto touch = [&] {
    const pid_t child = ::fork();
    if (child == 0) {
      ::signal(SIGBUS, SIG_DFL);
      ::_exit(bytes[1 << 20] == bytes_of("w")[1 << 20] ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
  };
  set_change([](WebAnswer& answer) { answer.delay = std::chrono::milliseconds(50); });
  fall_silent();
  EXPECT_EQ(touch(), SIGBUS);
  mend();
  EXPECT_EQ(touch(), 0);
  ::munmap(const_cast<char*>(bytes), 2 << 20);
  ::close(fd);
}

TEST_F(FailingServer, DaemonWithoutDescriptorsRecovers) {
#ifdef STFS_SANITIZED
  GTEST_SKIP() << "UndefinedBehaviorSanitizer checks memory through a pipe";
#endif
  ForegroundMount mount({url()}, options("timeout=1"));
  rlimit limit{};
  ASSERT_EQ(::prlimit(mount.process().pid(), RLIMIT_NOFILE, nullptr, &limit), 0);
  const rlimit none{3, limit.rlim_max};
  ASSERT_EQ(::prlimit(mount.process().pid(), RLIMIT_NOFILE, &none, nullptr), 0);
  set_change([](WebAnswer& answer) { set_header(answer, "Connection", "close"); });

  const int error = read_part(mount / "w", 1 << 20, 4096);
  EXPECT_TRUE(error == 0 || error == EIO) << error;
  EXPECT_EQ(read_file(mount / "small"), bytes_of("small"));
  ASSERT_EQ(::prlimit(mount.process().pid(), RLIMIT_NOFILE, &limit, nullptr), 0);

  EXPECT_EQ(read_file(mount / "w"), bytes_of("w"));
  EXPECT_EQ(read_file(mount / "x"), bytes_of("x"));
}

TEST_F(FailingServer, HangingDigestDelaysNoOtherDigest) {
  write_safetensors(dir_ / "h.safetensors", {random_tensor("hangs", "U8", {2 << 20}, 9)});
  put("/h.safetensors", {.bytes = read_file(dir_ / "h.safetensors")});
  const Mounted mount({url(), server_.url("/h.safetensors")}, options());
  server_.forget_requests();
  set_fault([](const WebRequest& request) -> std::optional<WebAnswer> {
    if (request.target == "/m.safetensors") return std::nullopt;
    return WebAnswer{.delay = std::chrono::hours(1)};
  });
  std::future<int> digest = reader(mount / ".stfs/sha256/hangs", 0);
  std::future<int> stats = reader(mount / ".stfs/stats/hangs.json", 0);
  ASSERT_TRUE(was_asked(1));

  const Mounted near({local().string()});
  for (const char* path : {".stfs/sha256/v", ".stfs/stats/w.json", ".stfs/stats/v.json"}) {
    EXPECT_EQ(read_file(mount / path), read_file(near / path)) << path;
  }

  EXPECT_TRUE(is_waiting(digest) && is_waiting(stats));
  ::kill(mount.daemon(), SIGTERM);
  EXPECT_NE(digest.get(), 0);
  EXPECT_NE(stats.get(), 0);
}

}  // namespace
}  // namespace stfs::test
