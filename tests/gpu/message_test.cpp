// The protocol: messages arrive complete, and malformed messages end the connection.
#include "tools/gpu/protocol/message.h"

#include "core/base/error.h"
#include "core/base/sha256.h"
#include "tests/gpu/wire.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace stfs::gpu::test {

using namespace stfs::test;

namespace {

struct Ends {
  UniqueFd a;
  UniqueFd b;
};

Ends connected() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

UniqueFd numbered_file(std::size_t number) {
  UniqueFd fd(::memfd_create("numbered", MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(number)), 0);
  return fd;
}

std::size_t number_of_file(const UniqueFd& fd) {
  struct stat status {};
  EXPECT_EQ(::fstat(fd.get(), &status), 0);
  return static_cast<std::size_t>(status.st_size);
}

void write_raw(const UniqueFd& fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ASSERT_GT(n, 0);
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

// Sends bytes together with descriptors.
void write_rights(const UniqueFd& fd, std::string bytes, const std::vector<int>& descriptors) {
  iovec piece{bytes.data(), bytes.size()};
  std::vector<char> control(CMSG_SPACE(descriptors.size() * sizeof(int)));
  msghdr header{};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  cmsghdr* c = CMSG_FIRSTHDR(&header);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
  std::memcpy(CMSG_DATA(c), descriptors.data(), descriptors.size() * sizeof(int));
  ASSERT_EQ(::sendmsg(fd.get(), &header, MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
}

// Returns the number of messages that a channel reads from `bytes`, or -1 if it ends the
// connection.
int messages_in(const std::string& bytes, Channel::Limits limits = {}) {
  Ends ends = connected();
  std::jthread writer([&] {
    std::string_view rest = bytes;
    while (!rest.empty()) {
      const ssize_t n = ::send(ends.a.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
      if (n <= 0) break;  // disconnected
      rest.remove_prefix(static_cast<std::size_t>(n));
    }
    ::shutdown(ends.a.get(), SHUT_WR);
  });
  Channel channel(std::move(ends.b), limits);
  // The connection ends in either case, because the writer closes it. A channel that has accepted
  // everything has read to the end and buffers nothing.
  int count = 0;
  std::size_t taken = 0;
  bool is_open = true;
  while (is_open) {
    pollfd wanted{channel.fd(), POLLIN, 0};
    ::poll(&wanted, 1, -1);
    is_open = channel.receive();
    while (channel.next()) ++count;
    taken = channel.buffered_bytes();
  }
  char c = 0;
  const bool was_read = ::recv(channel.fd(), &c, 1, MSG_DONTWAIT) == 0;
  return was_read && taken == 0 ? count : -1;
}

TEST(GpuText, JsonPreservesAllBytes) {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  const Json json = to_json_text(all);

  const Json back = Json::parse(json.dump());

  EXPECT_EQ(from_json_text(back), all);
}

TEST(GpuText, RejectsTextThatCannotEncodeBytes) {
  for (const char* text : {"\u0100", "\u20ac", "\U0001f600"}) {
    EXPECT_THROW(from_json_text(Json(text)), Error) << text;
  }
  EXPECT_THROW(from_json_text(Json(5)), Error);
  EXPECT_THROW(from_json_text(Json()), Error);
  EXPECT_THROW(from_json_text(Json(std::string("\xc3"))), Error) << "invalid UTF-8";
}

Item some_item(const std::string& path = "/w/m\xff\n.safetensors") {
  return Item({.path = path,
               .tensor = std::string("\0 t \xc3\xa4", 6),
               .version = "a \"token\"",
               .source_size = 5000,
               .offset = 8,
               .dtype = DType::kF32,
               .shape = {3, 4},
               .slice = "::2",
               .as = DType::kBF16});
}

Json json_of(const Item& item) {
  Descriptions descriptions;
  return to_json(item, descriptions);
}
Item item_of(const Json& json) {
  return item_from_json(json, {std::make_shared<const std::string>("{}")});
}

TEST(GpuItemJson, RejectsMissingMembersAndWrongTypes) {
  const Json good = json_of(some_item());
  const std::vector<Json> wrong{
      nullptr, -1, 1.5, true, "x", Json::array({-1}), Json::object(), Json::array({Json::array()})};
  for (const auto& [name, value] : good.items()) {
    Json without = good;
    without.erase(name);
    EXPECT_THROW(item_of(without), Error) << name;
    for (const Json& other : wrong) {
      if (other.type() == value.type()) continue;
      Json changed = good;
      changed[name] = other;
      EXPECT_THROW(item_of(changed), Error) << name << " " << other;
    }
  }
  for (const Json& other : wrong) EXPECT_THROW(item_of(other), Error) << other;
}

Item computed_item(const std::string& tensor, std::shared_ptr<const std::string> checkpoint) {
  ItemRequest request{.path = "/w",
                      .tensor = tensor,
                      .version = "v",
                      .source_size = 5000,
                      .offset = 8,
                      .dtype = DType::kF16,
                      .shape = {3, 4}};
  request.computed = {.checkpoint = std::move(checkpoint),
                      .identity = std::string(kSha256Digits, 'a'),
                      .scheme = "a \xff scheme"};
  return Item(std::move(request));
}

TEST(GpuItemJson, PreservesItemsAndSharesDescriptions) {
  const auto checkpoint = std::make_shared<const std::string>("{\"sources\":[\"/\xff\"]}");
  const std::vector<Item> items{
      some_item(), computed_item("a", checkpoint), computed_item("b", checkpoint),
      computed_item("c", std::make_shared<const std::string>("{}")),
      computed_item("d", std::make_shared<const std::string>(*checkpoint))};
  Json body;
  put_items(body, items);
  EXPECT_EQ(body["checkpoints"].size(), 2u);

  const std::vector<Item> back = items_of(Json::parse(body.dump()));

  ASSERT_EQ(back.size(), items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    EXPECT_EQ(back[i].key(), items[i].key());
    EXPECT_EQ(back[i].label(), items[i].label());
    EXPECT_EQ(back[i].bytes(), items[i].bytes());
    EXPECT_EQ(back[i].request().path, items[i].request().path);
    EXPECT_EQ(back[i].request().tensor, items[i].request().tensor);
    ASSERT_EQ(back[i].request().computed.has_value(), items[i].request().computed.has_value());
    if (i == 0) continue;
    EXPECT_EQ(*back[i].request().computed->checkpoint, *items[i].request().computed->checkpoint);
  }
  Json again;
  put_items(again, back);
  EXPECT_EQ(again, body);
}

TEST(GpuItemJson, RejectsMalformedComputation) {
  Json good = json_of(computed_item("t", std::make_shared<const std::string>("{}")));
  EXPECT_NO_THROW(item_of(good));
  for (const Json& value : {Json(), Json(1), Json("x"), Json::array({1})}) {
    Json json = good;
    json["computed"] = value;
    EXPECT_THROW(item_of(json), Error) << value;
    for (const char* member : {"checkpoint", "identity", "scheme"}) {
      if (value.is_string() && std::string_view(member) == "scheme") continue;
      json = good;
      json["computed"][member] = value;
      EXPECT_THROW(item_of(json), Error) << member << " " << value;
    }
  }
  EXPECT_THROW(items_of({{"items", Json::array()}, {"checkpoints", {1}}}), Error);
}

// The holder sends the version as a part of a key, and JSON must be UTF-8.
TEST(GpuItemJson, RejectsUnprintableVersion) {
  for (const char* version : {"\xc3\xbf", "a\n", "\x7f"}) {
    Json json = json_of(some_item());
    json["version"] = version;
    EXPECT_THROW(item_of(json), Error) << version;
  }
}

TEST(GpuItemJson, PreservesSourceOptionsAndRejectsInvalidOptions) {
  SourceOptions options;
  options.cache_dir = "/c\xff";
  options.cache_size = 1ULL << 40;
  options.connections = 3;
  options.timeout = 7;
  options.offline = options.insecure_http = true;
  options.s3 = {.addressing = "virtual", .is_unsigned = true, .requester_pays = true};

  const Json json = to_json(options);
  const SourceOptions back = source_options_from_json(json);

  EXPECT_EQ(to_json(back), json);
  EXPECT_EQ(back.cache_dir, options.cache_dir);
  EXPECT_EQ(back.s3.addressing, "virtual");
  EXPECT_TRUE(back.s3.is_unsigned && back.s3.requester_pays);
  EXPECT_EQ(to_json(source_options_from_json(Json::object())), to_json(SourceOptions{}));
  for (const Json& wrong : {Json(1), Json{{"timeout", 0}}, Json{{"timeout", 3601}},
                            Json{{"connections", 65}}, Json{{"offline", 1}}}) {
    EXPECT_THROW(source_options_from_json(wrong), Error) << wrong;
  }
}

TEST(GpuChannel, MessagesArriveInOrderWithTheirDescriptors) {
  Ends ends = connected();
  Channel a(std::move(ends.a), {});
  Channel b(std::move(ends.b), {});
  const std::size_t before = open_descriptors();

  for (std::size_t i = 0; i < 5; ++i) {
    std::vector<UniqueFd> descriptors;
    for (std::size_t j = 0; j < i; ++j) descriptors.push_back(numbered_file(10 * i + j));
    a.send_now({{"number", i}}, std::move(descriptors));
  }
  for (std::size_t i = 0; i < 5; ++i) {
    const Message message = b.wait();
    EXPECT_EQ(message.body()["number"], i);
    ASSERT_EQ(message.descriptors.size(), i);
    for (std::size_t j = 0; j < i; ++j) {
      EXPECT_EQ(number_of_file(message.descriptors[j]), 10 * i + j);
    }
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(GpuChannel, SendsMoreDescriptorsThanOneSendmsgAllows) {
  for (const std::size_t count : {252u, 253u, 254u, 506u, 507u, 700u}) {
    Ends ends = connected();
    Channel a(std::move(ends.a), {});
    Channel b(std::move(ends.b), {});
    std::vector<UniqueFd> descriptors;
    for (std::size_t i = 0; i < count; ++i) descriptors.push_back(numbered_file(i));
    std::jthread sender([&] { a.send_now({{"n", 1}}, std::move(descriptors)); });

    const Message message = b.wait();

    ASSERT_EQ(message.descriptors.size(), count);
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(number_of_file(message.descriptors[i]), i);
  }
}

TEST(GpuChannel, SendsLargeMessageThroughSmallSocketBuffer) {
  Ends ends = connected();
  const int size = 4096;
  ASSERT_EQ(::setsockopt(ends.a.get(), SOL_SOCKET, SO_SNDBUF, &size, sizeof size), 0);
  Channel a(std::move(ends.a), {});
  Channel b(std::move(ends.b), {});
  const std::string text(3 << 20, 'x');
  std::jthread sender([&] { a.send_now({{"text", text}}); });

  const Message message = b.wait();

  EXPECT_TRUE(message.body()["text"] == text);
}

TEST(GpuChannel, ReceivesMessageByteByByte) {
  Ends ends = connected();
  Channel channel(std::move(ends.b), {});
  const std::string bytes = frame("{\"a\":1}") + frame("{\"b\":2}");

  std::vector<Json> seen;
  for (const char c : bytes) {
    write_raw(ends.a, {&c, 1});
    ASSERT_TRUE(channel.receive());
    while (auto message = channel.next()) seen.push_back(message->body());
  }

  EXPECT_EQ(seen, (std::vector<Json>{{{"a", 1}}, {{"b", 2}}}));
}

TEST(GpuChannel, SendDoesNotBlockAndKeepsUnsentBytes) {
  Ends ends = connected();
  Channel channel(std::move(ends.a), {});
  channel.queue({{"text", std::string(8 << 20, 'x')}});

  ASSERT_TRUE(channel.send());

  EXPECT_TRUE(channel.has_output());
  EXPECT_GT(channel.buffered_bytes(), 0u);
  EXPECT_LT(channel.buffered_bytes(), 8u << 20);
}

TEST(GpuChannel, InvalidMessageEndsConnection) {
  EXPECT_EQ(messages_in(frame("{}")), 1);
  EXPECT_EQ(messages_in(frame(" {} \n")), 1);
  for (const char* body : {"", "[]", "1", "null", "\"x\"", "{", "}", "{}{}", "{}x", "{\"a\":}",
                           "{'a':1}", "nan", "{\"a\":01}", "\xef\xbb\xbf"}) {
    EXPECT_EQ(messages_in(frame(body)), -1) << body;
  }
  EXPECT_EQ(messages_in(frame("{\"a\":\"\xff\"}")), -1);
  EXPECT_EQ(messages_in(frame("{}", 1)), -1)
      << "the frame announces a descriptor that was not sent";
}

TEST(GpuChannel, SizeBeyondLimitEndsConnection) {
  EXPECT_EQ(messages_in(std::string("\xff\xff\xff\xff\0\0\0\0", 8)), -1);
  EXPECT_EQ(messages_in(std::string("\x65\0\0\0\0\0\0\0", 8), {.body_bytes = 100}), -1);
  EXPECT_EQ(messages_in(frame("{" + std::string(98, ' ') + "}"), {.body_bytes = 100}), 1);
  EXPECT_EQ(messages_in(std::string("\x02\0\0\0\xff\xff\xff\xff{}", 10)), -1);
}

TEST(GpuChannel, DeepNestingEndsConnection) {
  const auto nested = [](std::size_t depth) {
    return frame("{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + "}");
  };

  EXPECT_EQ(messages_in(nested(3)), 1);
  EXPECT_EQ(messages_in(nested(100)), -1);
  EXPECT_EQ(messages_in(nested(1'000'000)), -1);
  EXPECT_EQ(messages_in(frame("{\"a\":" + std::string(1'000'000, '['))), -1);
}

TEST(GpuChannel, RejectsMillionsOfValuesInLimitedMemory) {
  std::string body = "{\"a\":[{}";
  for (int i = 0; i < 5'000'000; ++i) body += ",{}";
  body += "]}";
  rusage before{};
  rusage after{};
  ::getrusage(RUSAGE_SELF, &before);

  const int count = messages_in(frame("{}"), {});
  Ends ends = connected();
  Channel channel(std::move(ends.b), {.body_bytes = std::size_t{64} << 20});
  std::jthread sender([&] { write_raw(ends.a, frame(body)); });
  bool is_open = true;
  while (is_open && !channel.next()) is_open = channel.receive();
  ::getrusage(RUSAGE_SELF, &after);

  EXPECT_EQ(count, 1);
  EXPECT_FALSE(is_open);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 450'000) << "memory in kilobytes";
}

TEST(GpuChannel, UnexpectedDescriptorsEndConnection) {
  const std::size_t before = open_descriptors();
  {
    Ends ends = connected();
    Channel channel(std::move(ends.b), {.descriptors = 0});
    write_rights(ends.a, frame("{}"), {0, 0, 0});
    EXPECT_FALSE(channel.receive());
    EXPECT_FALSE(channel.next().has_value()) << "their message is ignored";
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(GpuChannel, ClosesDescriptorsFromIncompleteMessage) {
  const std::size_t before = open_descriptors();
  {
    Ends ends = connected();
    Channel channel(std::move(ends.b), {});
    write_rights(ends.a, frame("{\"a\":1}", 2).substr(0, 9), {0, 0});
    EXPECT_TRUE(channel.receive());
    EXPECT_FALSE(channel.next().has_value());
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(GpuChannel, LimitsDescriptorsBeforeMessageIsComplete) {
  const std::size_t before = open_descriptors();
  Ends ends = connected();
  Channel channel(std::move(ends.b), {.descriptors = 10});
  const std::string half = frame("{\"a\":1}", 10);
  bool is_open = true;
  for (std::size_t i = 0; is_open && i < 12; ++i) {
    write_rights(ends.a, half.substr(i, 1), {0});
    is_open = channel.receive();
  }

  EXPECT_FALSE(is_open);
  EXPECT_LE(open_descriptors(), before + 2 + 11);
}

TEST(GpuChannel, ReceiveReturnsDespiteEndlessInput) {
  Ends ends = connected();
  Channel channel(std::move(ends.b), {});
  std::atomic<bool> stop = false;
  std::jthread flood([&] {
    std::string bytes;
    while (bytes.size() < 60'000) bytes += frame("{}");
    while (!stop) ::send(ends.a.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  });

  std::size_t max_count = 0;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(channel.receive());
    std::size_t count = 0;
    while (channel.next()) ++count;
    max_count = std::max(max_count, count);
  }
  stop = true;
  while (channel.receive() && channel.next()) {
  }

  EXPECT_LT(max_count, 250'000u) << "messages received in one call";
}

TEST(GpuChannel, ClosedConnectionFailsWaitAndSend) {
  Ends ends = connected();
  Channel channel(std::move(ends.b), {});
  write_raw(ends.a, frame("{\"last\":1}") + "half");
  ends.a = UniqueFd();

  EXPECT_EQ(channel.wait().body()["last"], 1);
  EXPECT_THROW(channel.wait(), Error);
  EXPECT_THROW(channel.send_now({{"x", 1}}), Error);
}

TEST(GpuChannel, OpenFileLimitLosesOnlyDescriptorsFromOneMessage) {
#ifdef STFS_SANITIZED
  GTEST_SKIP() << "the sanitizer needs descriptors to find an exception's type";
#endif
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  Ends ends = connected();
  Channel a(std::move(ends.a), {});
  Channel b(std::move(ends.b), {});
  std::vector<UniqueFd> descriptors;
  for (std::size_t i = 0; i < 100; ++i) descriptors.push_back(numbered_file(i));
  a.send_now({{"n", 1}}, std::move(descriptors));
  descriptors.clear();
  rlimit lowered = limit;
  lowered.rlim_cur = open_descriptors() + 10;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &lowered), 0);

  const Message lacking = b.wait();
  ::setrlimit(RLIMIT_NOFILE, &limit);
  descriptors.push_back(numbered_file(7));
  a.send_now({{"n", 2}}, std::move(descriptors));
  const Message whole = b.wait();

  EXPECT_EQ(lacking.body()["n"], 1);
  EXPECT_TRUE(lacking.lacks_descriptors);
  EXPECT_TRUE(lacking.descriptors.empty());
  EXPECT_EQ(whole.body()["n"], 2);
  EXPECT_FALSE(whole.lacks_descriptors);
  ASSERT_EQ(whole.descriptors.size(), 1u);
  EXPECT_EQ(number_of_file(whole.descriptors[0]), 7u);
}

}  // namespace
}  // namespace stfs::gpu::test
