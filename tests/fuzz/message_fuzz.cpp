// Sends any bytes to the socket of the holder, and any answers of a copier. They are messages or
// end the connection. The holder may reply, but it never throws and never allocates unneeded
// memory.
//
//   input   frames of a client, up to the first byte 0xff; the rest of the input goes to the holder
//           as answers of a copier
#include "tests/fuzz/check.h"
#include "tools/gpu/holder/residency.h"
#include "tools/gpu/protocol/message.h"

#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs::fuzz {

using namespace stfs::gpu;

namespace {

constexpr ClientId kClient = 1;

class Sink : public MessageSink {
 public:
  void reply(ClientId client, const Json& body, std::vector<UniqueFd>) override {
    check(client == kClient && body.is_object());
    body.dump();  // throws if it cannot be sent
    ++replies;
  }
  void order(const std::string& uuid, const std::string&, const Json& body) override {
    body.dump();
    last_uuid = uuid;
    last_load = body.contains("load") ? body["load"] : Json();
  }

  void discard(std::vector<UniqueFd>) override {}

  std::size_t replies = 0;
  std::string last_uuid;
  Json last_load;
};

// Returns the messages that a channel parses from bytes.
std::vector<Message> messages_of(std::string_view bytes) {
  int ends[2];
  check(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const UniqueFd mine(ends[0]);
  Channel channel(UniqueFd(ends[1]), {.body_bytes = 4096, .descriptors = 0});
  std::vector<Message> messages;
  while (!bytes.empty()) {
    const std::size_t n = std::min<std::size_t>(bytes.size(), 1000);
    check(::send(mine.get(), bytes.data(), n, MSG_NOSIGNAL) == static_cast<ssize_t>(n));
    bytes.remove_prefix(n);
    const bool is_open = channel.receive();
    while (std::optional<Message> message = channel.next()) {
      check(message->body().is_object() && message->descriptors.empty());
      messages.push_back(std::move(*message));
    }
    check(channel.buffered_bytes() <= 4096 + 8 + 1000);
    if (!is_open) break;
  }
  return messages;
}

void run(std::string_view input) {
  const std::size_t split = input.find('\xff');
  const std::string_view answers =
      split == std::string_view::npos ? std::string_view() : input.substr(split + 1);
  Sink sink;
  Residency residency(sink, 1 << 30);
  residency.connected(kClient, 1);
  residency.request(kClient, {{"request", "hello"}, {"version", kProtocolVersion}});
  for (const Message& message : messages_of(input.substr(0, split))) {
    residency.request(kClient, message.body());
  }
  for (Message& message : messages_of(answers)) {
    if (message.body().contains("request")) {
      residency.request(kClient, message.body());
      continue;
    }
    // Most answers are about the current load and have a segment. The holder ignores other answers.
    Json body = message.body();
    if (!body.contains("load")) body["load"] = sink.last_load;
    if (body.contains("counts")) {
      message.descriptors.emplace_back(::memfd_create("segment", MFD_CLOEXEC));
    }
    residency.answer(sink.last_uuid, {std::move(body), std::move(message.descriptors)});
  }
  residency.copier_gone(sink.last_uuid, "killed");
  residency.request(kClient, {{"request", "status"}});
  residency.request(
      kClient, {{"request", "evict"}, {"all", true}, {"force", true}, {"labels", Json::array()}});
  check(sink.replies >= 2);
  for (int i = 0; i < 1000; ++i) residency.copier_gone(sink.last_uuid, "killed");
  residency.disconnected(kClient);
}

}  // namespace
}  // namespace stfs::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  stfs::fuzz::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
