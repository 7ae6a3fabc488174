// The messages between client, holder and copier: JSON objects over a UNIX stream socket, with
// file descriptors beside them.
//
//   u32 LE: bytes of the body | u32 LE: number of descriptors | the body
//
// Descriptors travel with the first bytes of the body (SCM_RIGHTS, unix(7)), at most 253 per byte.
// Text that need not be UTF-8 (paths) is encoded: each byte becomes the code point of its value.
//
// Each connection begins with a hello, because a holder may outlive an upgrade of stfs-gpu. A hello
// has the same form in every version; version 1 sends none.
//
//   client to holder   {"request":"hello","version":6}
//   holder to client   {"version":6,"pid":123}, with an "error" when the versions differ
//   holder to copier   {"hello":6}
//   copier to holder   {"load":0,"hello":6}
//
// When the versions differ, the user sees version_error().
//
// Input is not trusted: sizes and nesting are limited before anything is allocated, and a peer that
// may not send descriptors is disconnected when it sends one.
#pragma once

#include "core/base/posix.h"
#include "core/remote/sources.h"
#include "tools/gpu/protocol/item.h"

#include <nlohmann/json_fwd.hpp>
#include <poll.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::gpu {

using Json = nlohmann::json;

// Increase it with every change that an older version would misread.
inline constexpr std::uint64_t kProtocolVersion = 8;

// The most segments whose descriptors one answer to a client has. A client asks for the rest in
// batches and closes each after it has mapped it: many tensors are more segments than a process may
// open files.
inline constexpr std::size_t kSegmentsAtOnce = 64;

// A pointer holds the body, so that this header need not include the JSON library.
class Message {
 public:
  Message(Json body, std::vector<UniqueFd> received);
  Message(Message&& other) noexcept;
  Message& operator=(Message&& other) noexcept;
  ~Message();

  const Json& body() const { return *body_; }

  std::vector<UniqueFd> descriptors;
  bool lacks_descriptors = false;  // lost: this process has too many open files

 private:
  std::unique_ptr<const Json> body_;
};

// Encodes any bytes as text for JSON, and back. from_json_text throws Error kUsage for text that
// to_json_text cannot have made.
std::string to_json_text(std::string_view bytes);
std::string from_json_text(const Json& text);

// Items in a message: "items", and "checkpoints", the descriptions that its computed tensors share
// (Computation::checkpoint).
void put_items(Json& body, std::span<const Item> items);
std::vector<Item> items_of(const Json& body);  // throws Error kUsage

// One of them; its description stands in, or is added to, `descriptions`.
using Descriptions = std::vector<std::shared_ptr<const std::string>>;
Json to_json(const Item& item, Descriptions& descriptions);
Item item_from_json(const Json& json, const Descriptions& descriptions);  // throws Error kUsage

// The options of sources elsewhere, none of them a secret. An absent member has its default.
Json to_json(const SourceOptions& options);
SourceOptions source_options_from_json(const Json& json);  // throws Error kUsage

// How tensors are copied: client, holder and copier pass it on. Absent members have their defaults.
struct CopyOptions {
  bool verify = false;
  std::optional<std::uint64_t> keep_free = {};  // bytes to leave free; empty: the default
  std::uint64_t workers = 0;                    // 0: the device's default
  std::uint64_t tile_bytes = 0;                 // 0: the default
  SourceOptions sources = {};                   // with what the client's environment adds
};
Json to_json(const CopyOptions& options);
CopyOptions copy_options_from_json(const Json& json);  // throws Error kUsage

// Members of a received object. Each throws Error kUsage when the member is absent or has another
// type; number_of with `otherwise` and flag_of have a default for an absent member.
std::uint64_t number_of(const Json& object, const char* name);
std::uint64_t number_of(const Json& object, const char* name, std::uint64_t otherwise);
bool flag_of(const Json& object, const char* name);  // absent: false
std::string text_of(const Json& object, const char* name);
const Json& list_of(const Json& object, const char* name);

// The `peer` of version_error() for a copier: the holder starts the program at its own path, which
// an upgrade may have replaced.
inline constexpr std::string_view kInstalled = "the stfs-gpu that is installed";

// The error text for different protocol versions. It tells the user to end the holder, or, when
// `peer` ("this program") is older and `holder_stays`, to use a newer peer.
std::string version_error(std::uint64_t holder, std::int64_t holder_pid, std::string_view peer,
                          std::uint64_t version, bool holder_stays);

// The address of a UNIX socket. Throws Error kDeviceFailed for a path that is too long.
sockaddr_un socket_address(const std::string& path);

// poll(2), repeated after EINTR. Throws Error kDeviceFailed for any other error, so that no loop
// spins on it.
int poll_events(std::span<pollfd> polled, int timeout_ms);

// One end of a connection. Not thread-safe.
class Channel {
 public:
  struct Limits {
    std::size_t body_bytes = 16 << 20;
    std::size_t descriptors = 65536;  // of one message; 0: the peer may send none
  };
  Channel(UniqueFd socket, Limits limits);

  int fd() const { return socket_.get(); }

  // Without blocking. receive() reads at most kMostAtOnce bytes, so that one busy peer cannot
  // starve the others; send() writes what the socket takes. Both return false when the connection
  // ends: closed, failed, or the peer broke a rule above.
  static constexpr std::size_t kMostAtOnce = 1 << 20;
  bool receive();
  bool send();
  std::optional<Message> next();  // the next complete message, if any
  void queue(const Json& body, std::vector<UniqueFd> descriptors = {});
  bool has_output() const { return !output_.empty(); }
  std::size_t buffered_bytes() const { return input_.size() + output_bytes_; }

  // Blocking. Both throw Error kDeviceFailed when the connection ends.
  void send_now(const Json& body, std::vector<UniqueFd> descriptors = {});
  Message wait();

  // Sends a message and discards its answer, without allocating. The socket must block, and no
  // other answer may be outstanding. Returns false when the connection has ended.
  bool tell(std::string_view body) const noexcept;

 private:
  struct Frame {
    std::string bytes;
    std::size_t sent = 0;
    std::vector<UniqueFd> descriptors;
    std::size_t descriptors_sent = 0;
  };

  bool parse();  // moves complete messages to messages_; false: malformed
  [[noreturn]] void gone() const;

  UniqueFd socket_;
  Limits limits_;
  std::string input_;
  std::deque<UniqueFd> descriptors_;   // received for incomplete messages
  bool has_lost_descriptors_ = false;  // some of descriptors_ were lost
  std::deque<Message> messages_;
  std::deque<Frame> output_;
  std::size_t output_bytes_ = 0;
};

}  // namespace stfs::gpu
