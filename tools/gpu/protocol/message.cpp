#include "tools/gpu/protocol/message.h"

#include "core/base/error.h"
#include "core/base/sha256.h"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

namespace stfs::gpu {
namespace {

constexpr std::size_t kHeaderBytes = 8;
constexpr std::size_t kMaxRights = 253;  // SCM_MAX_FD
constexpr int kMaxDepth = 8;             // the nesting of JSON values; our messages need six
constexpr std::size_t kMaxValues =
    3 << 20;  // per message: a parsed value takes far more memory than its text

[[noreturn]] void malformed(const std::string& what) {
  throw Error(ErrorCode::kUsage, "", "malformed message: " + what);
}

using Header = std::array<char, kHeaderBytes>;

Header header_of(std::uint64_t body_bytes, std::uint64_t descriptors) {
  Header header;
  for (unsigned i = 0; i < 4; ++i) {
    header[i] = static_cast<char>((body_bytes >> (8 * i)) & 0xff);
    header[4 + i] = static_cast<char>((descriptors >> (8 * i)) & 0xff);
  }
  return header;
}

std::uint32_t get_u32(std::string_view in) {
  std::uint32_t value = 0;
  for (unsigned i = 0; i < 4; ++i) {
    value |= std::uint32_t{static_cast<unsigned char>(in[i])} << (8 * i);
  }
  return value;
}

bool send_all(int fd, std::string_view bytes) noexcept {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno != EINTR) return false;
    if (n > 0) bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

bool receive_all(int fd, std::span<char> bytes) noexcept {
  while (!bytes.empty()) {
    const ssize_t n = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (n == 0 || (n < 0 && errno != EINTR)) return false;
    if (n > 0) bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return true;
}

// Returns true if JSON text exceeds kMaxDepth or kMaxValues. Checked before parsing, because the
// parsed tree takes many times the memory of the text.
bool exceeds_limits(std::string_view text) {
  int depth = 0;
  std::size_t values = 0;
  bool is_quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_quoted && c == '\\') {
      ++i;
    } else if (c == '"') {
      is_quoted = !is_quoted;
    } else if (!is_quoted && (c == ',' || c == '[' || c == '{')) {
      ++values;
      if (c != ',' && ++depth > kMaxDepth) return true;
    } else if (!is_quoted && (c == ']' || c == '}')) {
      --depth;
    }
  }
  return values > kMaxValues;
}

std::optional<DType> dtype_member(const Json& object, const char* name) {
  const std::string text = text_of(object, name);
  if (text.empty()) return std::nullopt;
  const std::optional<DType> dtype = dtype_from_name(text);
  if (!dtype) malformed(name);
  return dtype;
}

// Returns the version of a source. It becomes a part of the key, which is sent and printed
// unescaped, so it must be printable ASCII.
std::string version_of(const Json& object) {
  std::string version = text_of(object, "version");
  const auto is_printable = [](char c) { return c >= ' ' && c <= '~'; };
  if (!std::ranges::all_of(version, is_printable)) malformed("version");
  return version;
}

// Returns the number of a description in the list, and adds it if it is missing. Searches
// backwards, because the last one is the likeliest.
std::size_t place_of(const std::shared_ptr<const std::string>& description,
                     Descriptions& descriptions) {
  const auto is_it = [&](const auto& known) {
    return known == description || *known == *description;
  };
  const auto known = std::find_if(descriptions.rbegin(), descriptions.rend(), is_it);
  if (known != descriptions.rend()) {
    return static_cast<std::size_t>(descriptions.rend() - known) - 1;
  }
  descriptions.push_back(description);
  return descriptions.size() - 1;
}

Computation computation_from_json(const Json& json, const Descriptions& descriptions) {
  if (!json.is_object()) malformed("computed");
  const std::uint64_t number = number_of(json, "checkpoint");
  if (number >= descriptions.size()) malformed("checkpoint");
  Computation computed{.checkpoint = descriptions[static_cast<std::size_t>(number)],
                       .identity = text_of(json, "identity"),
                       .scheme = text_of(json, "scheme")};
  if (!is_digest(computed.identity, kSha256Digits)) malformed("identity");
  return computed;
}

}  // namespace

Message::Message(Json body, std::vector<UniqueFd> received)
    : descriptors(std::move(received)), body_(std::make_unique<const Json>(std::move(body))) {}

Message::Message(Message&& other) noexcept = default;
Message& Message::operator=(Message&& other) noexcept = default;
Message::~Message() = default;

std::string to_json_text(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      text += c;
    } else {
      text += static_cast<char>(0xc0 | (byte >> 6));
      text += static_cast<char>(0x80 | (byte & 0x3f));
    }
  }
  return text;
}

std::string from_json_text(const Json& text) {
  if (!text.is_string()) malformed("text");
  const auto& encoded = text.get_ref<const std::string&>();
  std::string bytes;
  for (std::size_t i = 0; i < encoded.size(); ++i) {
    const auto first = static_cast<unsigned char>(encoded[i]);
    if (first < 0x80) {
      bytes += encoded[i];
      continue;
    }
    if ((first != 0xc2 && first != 0xc3) || i + 1 == encoded.size()) malformed("text");
    const auto second = static_cast<unsigned char>(encoded[++i]);
    bytes += static_cast<char>(((first & 3) << 6) | (second & 0x3f));
  }
  return bytes;
}

std::uint64_t number_of(const Json& object, const char* name) {
  const auto member = object.find(name);
  if (member == object.end() || !member->is_number_unsigned()) malformed(name);
  return member->get<std::uint64_t>();
}

std::uint64_t number_of(const Json& object, const char* name, std::uint64_t otherwise) {
  return object.contains(name) ? number_of(object, name) : otherwise;
}

bool flag_of(const Json& object, const char* name) {
  const auto member = object.find(name);
  if (member == object.end()) return false;
  if (!member->is_boolean()) malformed(name);
  return member->get<bool>();
}

std::string text_of(const Json& object, const char* name) {
  const auto member = object.find(name);
  if (member == object.end()) malformed(name);
  return from_json_text(*member);
}

const Json& list_of(const Json& object, const char* name) {
  const auto member = object.find(name);
  if (member == object.end() || !member->is_array()) malformed(name);
  return *member;
}

Json to_json(const Item& item, Descriptions& descriptions) {
  const ItemRequest& request = item.request();
  Json json{{"path", to_json_text(request.path)},
            {"tensor", to_json_text(request.tensor)},
            {"version", request.version},
            {"size", request.source_size},
            {"offset", request.offset},
            {"dtype", dtype_name(request.dtype)},
            {"shape", request.shape},
            {"slice", request.slice},
            {"as", request.as ? dtype_name(*request.as) : ""}};
  if (const auto& computed = request.computed) {
    json["computed"] = {{"checkpoint", place_of(computed->checkpoint, descriptions)},
                        {"identity", computed->identity},
                        {"scheme", to_json_text(computed->scheme)}};
  }
  return json;
}

Item item_from_json(const Json& json, const Descriptions& descriptions) {
  if (!json.is_object()) malformed("item");
  ItemRequest request;
  request.path = text_of(json, "path");
  request.tensor = text_of(json, "tensor");
  request.version = version_of(json);
  request.source_size = number_of(json, "size");
  request.offset = number_of(json, "offset");
  request.dtype = dtype_member(json, "dtype").value_or(DType::kU8);
  for (const Json& dimension : list_of(json, "shape")) {
    if (!dimension.is_number_unsigned()) malformed("shape");
    request.shape.push_back(dimension.get<std::uint64_t>());
  }
  request.slice = text_of(json, "slice");
  request.as = dtype_member(json, "as");
  if (json.contains("computed")) {
    request.computed = computation_from_json(json.at("computed"), descriptions);
  }
  return Item(std::move(request));
}

void put_items(Json& body, std::span<const Item> items) {
  Json list = Json::array();
  Descriptions descriptions;
  for (const Item& item : items) list.push_back(to_json(item, descriptions));
  body["items"] = std::move(list);
  for (const auto& description : descriptions) {
    body["checkpoints"].push_back(to_json_text(*description));
  }
}

std::vector<Item> items_of(const Json& body) {
  Descriptions descriptions;
  if (body.contains("checkpoints")) {
    for (const Json& text : list_of(body, "checkpoints")) {
      descriptions.push_back(std::make_shared<const std::string>(from_json_text(text)));
    }
  }
  std::vector<Item> items;
  for (const Json& item : list_of(body, "items")) {
    items.push_back(item_from_json(item, descriptions));
  }
  return items;
}

Json to_json(const SourceOptions& options) {
  return {{"cache_dir", to_json_text(options.cache_dir)},
          {"cache_size", options.cache_size},
          {"connections", options.connections},
          {"timeout", options.timeout},
          {"offline", options.offline},
          {"insecure_http", options.insecure_http},
          {"s3_addressing", options.s3.addressing},
          {"s3_unsigned", options.s3.is_unsigned},
          {"s3_requester_pays", options.s3.requester_pays}};
}

SourceOptions source_options_from_json(const Json& json) {
  if (!json.is_object()) malformed("sources");
  SourceOptions options;
  const auto number = [&](const char* name, unsigned otherwise, unsigned most) {
    const std::uint64_t value = number_of(json, name, otherwise);
    if (value == 0 || value > most) malformed(name);
    return static_cast<unsigned>(value);
  };
  if (json.contains("cache_dir")) options.cache_dir = text_of(json, "cache_dir");
  options.cache_size = number_of(json, "cache_size", 0);
  options.connections = number("connections", options.connections, 64);
  options.timeout = number("timeout", options.timeout, 3600);
  options.offline = flag_of(json, "offline");
  options.insecure_http = flag_of(json, "insecure_http");
  if (json.contains("s3_addressing")) options.s3.addressing = text_of(json, "s3_addressing");
  options.s3.is_unsigned = flag_of(json, "s3_unsigned");
  options.s3.requester_pays = flag_of(json, "s3_requester_pays");
  return options;
}

Json to_json(const CopyOptions& options) {
  Json json{{"verify", options.verify},
            {"workers", options.workers},
            {"tile_bytes", options.tile_bytes},
            {"sources", to_json(options.sources)}};
  if (options.keep_free) json["keep_free"] = *options.keep_free;
  return json;
}

CopyOptions copy_options_from_json(const Json& json) {
  CopyOptions options{.verify = flag_of(json, "verify"),
                      .workers = number_of(json, "workers", 0),
                      .tile_bytes = number_of(json, "tile_bytes", 0)};
  if (json.contains("keep_free")) options.keep_free = number_of(json, "keep_free");
  if (json.contains("sources")) options.sources = source_options_from_json(json.at("sources"));
  return options;
}

std::string version_error(std::uint64_t holder, std::int64_t holder_pid, std::string_view peer,
                          std::uint64_t version, bool holder_stays) {
  const std::string pid = std::to_string(holder_pid);
  const std::string text = "the holder (process " + pid + ") speaks version " +
                           std::to_string(holder) + " of the protocol, " + std::string(peer) +
                           " version " + std::to_string(version) + ": ";
  if (holder_stays && version < holder)
    return text + "start this program again, with the newer stfs";
  return text + "end the holder (kill " + pid + "), and load again";
}

sockaddr_un socket_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    throw_errno(ErrorCode::kDeviceFailed, path, "", ENAMETOOLONG);
  }
  path.copy(address.sun_path, path.size());
  return address;
}

int poll_events(std::span<pollfd> polled, int timeout_ms) {
  for (;;) {
    const int ready = ::poll(polled.data(), polled.size(), timeout_ms);
    if (ready >= 0) return ready;
    if (errno != EINTR) throw_errno(ErrorCode::kDeviceFailed, "poll", "", errno);
  }
}

Channel::Channel(UniqueFd socket, Limits limits) : socket_(std::move(socket)), limits_(limits) {}

void Channel::gone() const {
  throw Error(ErrorCode::kDeviceFailed, "",
              "the connection to the holder has ended: load again (stfs-gpu doctor shows more)");
}

bool Channel::receive() {
  std::array<char, 65536> bytes;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxRights * sizeof(int))> control;
  for (std::size_t taken = 0; taken < kMaxAtOnce;) {
    iovec piece{bytes.data(), bytes.size()};
    msghdr header{};
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    if (limits_.descriptors > 0) {
      header.msg_control = control.data();
      header.msg_controllen = control.size();
    }
    const ssize_t n = ::recvmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN;
    if (n == 0) return false;
    for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
        descriptors_.emplace_back(fd);
      }
    }
    if ((header.msg_flags & MSG_CTRUNC) != 0) {
      if (limits_.descriptors == 0) return false;
      has_lost_descriptors_ = true;
    }
    taken += static_cast<std::size_t>(n);
    input_.append(bytes.data(), static_cast<std::size_t>(n));
    if (!parse()) return false;
  }
  return true;
}

bool Channel::parse() {
  std::size_t at = 0;
  while (input_.size() - at >= kHeaderBytes) {
    const std::string_view rest = std::string_view(input_).substr(at);
    const std::size_t length = get_u32(rest);
    const std::size_t descriptors = get_u32(rest.substr(4));
    if (length > limits_.body_bytes || descriptors > limits_.descriptors) return false;
    if (rest.size() < kHeaderBytes + length) break;
    const bool lacks = descriptors > 0 && has_lost_descriptors_;
    if (descriptors_.size() < descriptors && !lacks)
      return false;  // descriptors arrive with the first bytes of the message
    const std::string_view body = rest.substr(kHeaderBytes, length);
    if (exceeds_limits(body)) return false;
    Message message(Json::parse(body, nullptr, false), {});
    if (!message.body().is_object()) return false;
    message.lacks_descriptors = lacks;
    if (lacks) {
      descriptors_.clear();
      has_lost_descriptors_ = false;
    }
    for (std::size_t i = 0; i < descriptors && !lacks; ++i) {
      message.descriptors.push_back(std::move(descriptors_.front()));
      descriptors_.pop_front();
    }
    messages_.push_back(std::move(message));
    at += kHeaderBytes + length;
  }
  input_.erase(0, at);
  return descriptors_.size() <= limits_.descriptors;
}

std::optional<Message> Channel::next() {
  if (messages_.empty()) return std::nullopt;
  std::optional<Message> message = std::move(messages_.front());
  messages_.pop_front();
  return message;
}

void Channel::queue(const Json& body, std::vector<UniqueFd> descriptors) {
  std::string text = body.dump();
  // Pad with spaces, because each batch of descriptors needs a byte to be sent with.
  text.resize(std::max(text.size(), descriptors.size() / kMaxRights + 1), ' ');
  const Header header = header_of(text.size(), descriptors.size());
  Frame frame;
  frame.bytes.assign(header.data(), header.size());
  frame.bytes += text;
  frame.descriptors = std::move(descriptors);
  output_bytes_ += frame.bytes.size();
  output_.push_back(std::move(frame));
}

bool Channel::send() {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxRights * sizeof(int))> control;
  while (!output_.empty()) {
    Frame& frame = output_.front();
    const std::size_t left = frame.descriptors.size() - frame.descriptors_sent;
    const std::size_t rights = std::min(left, kMaxRights);
    msghdr header{};
    // Send one byte with each full batch, so that all descriptors arrive before the end of the
    // body.
    const std::size_t length = left > kMaxRights ? 1 : frame.bytes.size() - frame.sent;
    iovec piece{frame.bytes.data() + frame.sent, length};
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    if (rights > 0) {
      header.msg_control = control.data();
      header.msg_controllen = CMSG_SPACE(rights * sizeof(int));
      cmsghdr* c = CMSG_FIRSTHDR(&header);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(rights * sizeof(int));
      for (std::size_t i = 0; i < rights; ++i) {
        const int fd = frame.descriptors[frame.descriptors_sent + i].get();
        std::memcpy(CMSG_DATA(c) + i * sizeof fd, &fd, sizeof fd);
      }
    }
    const ssize_t n = ::sendmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN;
    frame.descriptors_sent += rights;
    frame.sent += static_cast<std::size_t>(n);
    output_bytes_ -= static_cast<std::size_t>(n);
    if (frame.sent == frame.bytes.size()) output_.pop_front();
  }
  return true;
}

void Channel::send_now(const Json& body, std::vector<UniqueFd> descriptors) {
  queue(body, std::move(descriptors));
  while (true) {
    if (!send()) gone();
    if (!has_output()) return;
    pollfd wanted{socket_.get(), POLLOUT, 0};
    poll_events({&wanted, 1}, -1);
  }
}

Message Channel::wait() {
  while (true) {
    if (std::optional<Message> message = next()) return std::move(*message);
    pollfd wanted{socket_.get(), POLLIN, 0};
    poll_events({&wanted, 1}, -1);
    const bool is_open = receive();
    if (!is_open && messages_.empty()) gone();
  }
}

bool Channel::tell(std::string_view body) const noexcept {
  Header header = header_of(body.size(), 0);
  if (!send_all(fd(), {header.data(), header.size()}) || !send_all(fd(), body)) return false;
  if (!receive_all(fd(), header)) return false;
  const std::string_view received(header.data(), header.size());
  if (get_u32(received.substr(4)) != 0) return false;
  std::array<char, 256> dropped;
  for (std::size_t left = get_u32(received); left > 0;) {
    const std::size_t next = std::min(left, dropped.size());
    if (!receive_all(fd(), std::span(dropped).first(next))) return false;
    left -= next;
  }
  return true;
}

}  // namespace stfs::gpu
