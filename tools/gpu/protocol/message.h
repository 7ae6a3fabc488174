// The messages between client, holder and copier: JSON objects over a UNIX stream socket, together
// with file descriptors.
//
//   u32 LE: bytes of the body | u32 LE: number of descriptors | the body
//
// Descriptors are sent with the first bytes of the message (SCM_RIGHTS, unix(7)), at most 253 with
// each byte. Text that need not be UTF-8, such as paths, is encoded: each byte becomes the code
// point with the same value.
//
// Each connection begins with a hello, because a holder may keep running while stfs-gpu is
// upgraded. A hello has the same form in every version of the protocol; version 1 sends none.
//
//   client to holder   {"request":"hello","version":N}
//   holder to client   {"version":N,"pid":123}, with an "error" if the versions differ
//   holder to copier   {"hello":N}
//   copier to holder   {"load":0,"hello":N}
//
// N is the kProtocolVersion of the sender. If the versions differ, the user sees version_error().
//
// Input is not trusted: sizes and nesting are checked before memory is allocated, and a peer that
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

// Increase this with every change that an older version would misread.
inline constexpr std::uint64_t kProtocolVersion = 8;

// One answer to a client contains the descriptors of at most this many segments. A client asks
// for the rest in batches and closes each descriptor after it has mapped the segment, because many
// tensors may have more segments than a process may have open files.
inline constexpr std::size_t kSegmentsAtOnce = 64;

// The body is a pointer so that this header need not include the JSON library.
class Message {
 public:
  Message(Json body, std::vector<UniqueFd> received);
  Message(Message&& other) noexcept;
  Message& operator=(Message&& other) noexcept;
  ~Message();

  const Json& body() const { return *body_; }

  std::vector<UniqueFd> descriptors;
  bool lacks_descriptors = false;  // they were lost, because this process has too many open files

 private:
  std::unique_ptr<const Json> body_;
};

// Encodes any bytes as text for JSON, and decodes it. from_json_text() throws Error kUsage for text
// that to_json_text() cannot have made.
std::string to_json_text(std::string_view bytes);
std::string from_json_text(const Json& text);

// Writes and reads the items of a message: "items", and "checkpoints" with the descriptions that
// its computed tensors share (Computation::checkpoint).
void put_items(Json& body, std::span<const Item> items);
std::vector<Item> items_of(const Json& body);  // throws Error kUsage

// Writes and reads one item. `descriptions` has the descriptions of checkpoints that items refer to
// by number; to_json() adds one if it is missing.
using Descriptions = std::vector<std::shared_ptr<const std::string>>;
Json to_json(const Item& item, Descriptions& descriptions);
Item item_from_json(const Json& json, const Descriptions& descriptions);  // throws Error kUsage

// The options for remote sources, without any secret. An absent member has its default.
Json to_json(const SourceOptions& options);
SourceOptions source_options_from_json(const Json& json);  // throws Error kUsage

// How tensors are copied. Client, holder and copier pass these options on. Absent members have
// their defaults.
struct CopyOptions {
  bool verify = false;
  // The bytes to leave free on the device; nullopt: the default.
  std::optional<std::uint64_t> keep_free = {};
  std::uint64_t workers = 0;     // the number of threads; 0: the device's default
  std::uint64_t tile_bytes = 0;  // bytes; 0: the default
  SourceOptions sources = {};    // resolved in the client's environment
};
Json to_json(const CopyOptions& options);
CopyOptions copy_options_from_json(const Json& json);  // throws Error kUsage

// These return members of a received object. Each throws Error kUsage if the member has another
// type or is absent; number_of() with `otherwise` and flag_of() have a default for an absent
// member.
std::uint64_t number_of(const Json& object, const char* name);
std::uint64_t number_of(const Json& object, const char* name, std::uint64_t otherwise);
bool flag_of(const Json& object, const char* name);  // absent: false
std::string text_of(const Json& object, const char* name);
const Json& list_of(const Json& object, const char* name);

// The `peer` of version_error() for a copier. The holder starts the program at its own path, which
// an upgrade may have replaced.
inline constexpr std::string_view kInstalled = "the stfs-gpu that is installed";

// Returns the error text for different versions of the protocol. It asks the user to end the
// holder or, if `holder_stays` and `version` is older than the holder's, to restart the program
// with the newer stfs. `peer` is a noun such as "this program".
std::string version_error(std::uint64_t holder, std::int64_t holder_pid, std::string_view peer,
                          std::uint64_t version, bool holder_stays);

// Returns the address of a UNIX socket. Throws Error kDeviceFailed if the path is too long.
sockaddr_un socket_address(const std::string& path);

// Calls poll(2), again after EINTR. Throws Error kDeviceFailed for any other error, so that no loop
// spins on it.
int poll_events(std::span<pollfd> polled, int timeout_ms);

// One end of a connection. Not thread-safe.
class Channel {
 public:
  struct Limits {
    std::size_t body_bytes = 16 << 20;
    std::size_t descriptors = 65536;  // per message; 0: the peer may not send any
  };
  Channel(UniqueFd socket, Limits limits);

  int fd() const { return socket_.get(); }

  // These do not block. receive() reads at most kMaxAtOnce bytes, so that one busy peer cannot
  // starve the others; send() writes as much as the socket accepts. Both return false if the
  // connection has ended: it was closed, it failed, or the peer broke a rule above.
  static constexpr std::size_t kMaxAtOnce = 1 << 20;
  bool receive();
  bool send();
  std::optional<Message> next();  // the next complete message, or nullopt
  void queue(const Json& body, std::vector<UniqueFd> descriptors = {});
  bool has_output() const { return !output_.empty(); }
  std::size_t buffered_bytes() const { return input_.size() + output_bytes_; }

  // These block. Both throw Error kDeviceFailed if the connection has ended.
  void send_now(const Json& body, std::vector<UniqueFd> descriptors = {});
  Message wait();

  // Sends a message and discards the answer, without allocating memory. The socket must be in
  // blocking mode, and no other answer may be outstanding. Returns false if the connection has
  // ended.
  bool tell(std::string_view body) const noexcept;

 private:
  struct Frame {
    std::string bytes;
    std::size_t sent = 0;
    std::vector<UniqueFd> descriptors;
    std::size_t descriptors_sent = 0;
  };

  bool parse();  // moves complete messages to messages_; returns false if one is malformed
  [[noreturn]] void gone() const;

  UniqueFd socket_;
  Limits limits_;
  std::string input_;
  std::deque<UniqueFd> descriptors_;   // received for messages that are not complete yet
  bool has_lost_descriptors_ = false;  // some of descriptors_ were lost
  std::deque<Message> messages_;
  std::deque<Frame> output_;
  std::size_t output_bytes_ = 0;
};

}  // namespace stfs::gpu
