// What the processes of stfs-gpu say to each other: JSON objects over a UNIX stream socket, with
// file descriptors beside them.
//
//   u32 LE: bytes of the body | u32 LE: descriptors that belong to it | the body
//
// Descriptors travel with the first bytes of the body (SCM_RIGHTS, unix(7)), 253 to a byte at most.
// Text that need not be UTF-8 (paths) travels as the UTF-8 of as many code points under 256.
//
// Each connection begins with a hello, so that an upgrade in place is noticed: a holder may outlive
// the stfs-gpu that it was started from. The form of a hello is the same in every version; version
// 1 says none.
//
//   client to holder   {"request":"hello","version":2}
//   holder to client   {"version":2,"pid":123}, with an "error" when the versions differ
//   holder to copier   {"hello":2}
//   copier to holder   {"load":0,"hello":2}
//
// When the versions differ, the user sees the line of version_error().
//
// Nothing that arrives is trusted: sizes are limited before anything is allocated, nesting is, and
// a peer that may not send descriptors is cut off when it does.
#pragma once

#include "core/base/posix.h"
#include "tools/gpu/copier/item.h"

#include <nlohmann/json_fwd.hpp>
#include <poll.h>

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

// Another one whenever a message changes in such a way that another version would misread it.
inline constexpr std::uint64_t kProtocolVersion = 3;

// The body lies behind a pointer: files that include this header need not compile the JSON library.
class Message {
 public:
  Message(Json body, std::vector<UniqueFd> received);
  Message(Message&& other) noexcept;
  Message& operator=(Message&& other) noexcept;
  ~Message();

  const Json& body() const { return *body_; }

  std::vector<UniqueFd> descriptors;
  bool lacks_descriptors = false;  // they came, and this process has too many open files already

 private:
  std::unique_ptr<const Json> body_;
};

// Text of any bytes to text that JSON can hold, and back; back throws Error kUsage for what cannot
// have been made so.
std::string to_json_text(std::string_view bytes);
std::string from_json_text(const Json& text);

Json to_json(const Item& item);
Item item_from_json(const Json& json);  // throws Error kUsage

// Members of an object that came from a peer. Each throws Error kUsage when it is not there, or not
// of its type; the second form has a value for what is not there.
std::uint64_t number_of(const Json& object, const char* name);
std::uint64_t number_of(const Json& object, const char* name, std::uint64_t otherwise);
bool flag_of(const Json& object, const char* name);  // false when it is not there
std::string text_of(const Json& object, const char* name);
const Json& list_of(const Json& object, const char* name);

// The `peer` of version_error() when it is a copier. A copier is started from the holder's path,
// where an upgrade may have put another program since.
inline constexpr std::string_view kInstalled = "the stfs-gpu that is installed";

// The line that says which versions differ, and what to do: end the holder, or use a newer `peer`
// ("this program") when that is the older one and `holder_stays`.
std::string version_error(std::uint64_t holder, std::int64_t holder_pid, std::string_view peer,
                          std::uint64_t version, bool holder_stays);

// poll(2), again after EINTR. Throws Error kDeviceFailed for any other failure: a loop that went on
// would never rest.
int poll_events(std::span<pollfd> polled, int timeout_ms);

// One end of a connection. Not thread-safe.
class Channel {
 public:
  struct Limits {
    std::size_t body_bytes = 16 << 20;
    std::size_t descriptors = 65536;  // a message; 0: none may come
  };
  Channel(UniqueFd socket, Limits limits);

  int fd() const { return socket_.get(); }

  // For a loop that must not wait. receive() takes in what is there, kMostAtOnce bytes at most, so
  // that a peer that never stops cannot keep it; send() sends what it can. Both return false when
  // the connection is at its end: closed, failed, or misused.
  static constexpr std::size_t kMostAtOnce = 1 << 20;
  bool receive();
  bool send();
  std::optional<Message> next();  // a message that has come in whole
  void queue(const Json& body, std::vector<UniqueFd> descriptors = {});
  bool has_output() const { return !output_.empty(); }
  std::size_t buffered_bytes() const { return input_.size() + output_bytes_; }

  // For those who wait. Both throw Error kDeviceFailed at the connection's end.
  void send_now(const Json& body, std::vector<UniqueFd> descriptors = {});
  Message wait();

  // Sends a message and drops its answer, without allocating anything, on a socket that blocks and
  // on which no other answer is due. False when the connection has ended.
  bool tell(std::string_view body) const noexcept;

 private:
  struct Frame {
    std::string bytes;
    std::size_t sent = 0;
    std::vector<UniqueFd> descriptors;
    std::size_t descriptors_sent = 0;
  };

  bool parse();  // moves whole messages from input_; false for what breaks the rules
  [[noreturn]] void gone() const;

  UniqueFd socket_;
  Limits limits_;
  std::string input_;
  std::deque<UniqueFd> descriptors_;   // that came in and belong to messages not whole yet
  bool has_lost_descriptors_ = false;  // likewise
  std::deque<Message> messages_;
  std::deque<Frame> output_;
  std::size_t output_bytes_ = 0;
};

}  // namespace stfs::gpu
