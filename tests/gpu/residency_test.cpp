// Residency. The test acts as the copier and as the clients.
#include "tools/gpu/holder/residency.h"

#include "core/base/error.h"
#include "tests/support/files.h"
#include "tests/support/sizes.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <new>
#include <string>
#include <vector>

namespace stfs::gpu::test {

using namespace stfs::test;

namespace {

constexpr std::uint64_t kLarge = 32 * kMiB;  // such a tensor has a separate segment
const std::string kUuid = "CPU-test";

// Returns the message as the receiver parses it.
Json wire(const Json& body) { return Json::parse(body.dump()); }

// Records the messages to clients and copiers.
class Record : public MessageSink {
 public:
  struct Reply {
    ClientId client;
    Json body;
    std::vector<UniqueFd> descriptors;
  };
  struct Order {
    std::string uuid;
    std::string device;
    Json body;
  };

  void reply(ClientId client, const Json& body, std::vector<UniqueFd> descriptors) override {
    EXPECT_NO_THROW(body.dump()) << "the message must be valid JSON text";
    replies.push_back({client, body, std::move(descriptors)});
  }
  void order(const std::string& uuid, const std::string& device, const Json& body) override {
    if (throws_at_orders) throw std::bad_alloc();
    EXPECT_NO_THROW(body.dump());
    orders.push_back({uuid, device, body});
  }

  void discard(std::vector<UniqueFd> descriptors) override { discarded += descriptors.size(); }

  std::vector<Reply> replies;
  std::vector<Order> orders;
  std::size_t discarded = 0;  // descriptors
  bool throws_at_orders = false;
};

class ResidencyTest : public ::testing::Test {
 protected:
  void start(std::uint64_t limit = 0) {
    residency_ = std::make_unique<Residency>(record_, limit);
    for (ClientId client = 1; client <= 4; ++client) {
      residency_->connected(client, static_cast<pid_t>(1000 + client));
      residency_->request(client, {{"request", "hello"}, {"version", kProtocolVersion}});
    }
    record_.replies.clear();
  }

  void SetUp() override { start(); }

  static Item item(int number, std::uint64_t bytes = kLarge, int version = 1) {
    return Item({.path = "/w/m.safetensors",
                 .tensor = "t" + std::to_string(number),
                 .version = "v" + std::to_string(version),
                 .source_size = std::uint64_t{1} << 50,
                 .offset = (std::uint64_t{1} << 40) * static_cast<std::uint64_t>(number),
                 .dtype = DType::kU8,
                 .shape = {bytes},
                 .slice = "",
                 .as = std::nullopt});
  }

  void ask(ClientId client, const std::vector<Item>& items, const Json& more = Json::object()) {
    Json body{{"request", "load"}, {"uuid", kUuid}, {"device", "cpu"}};
    put_items(body, items);
    if (!more.is_null()) body.update(more);
    residency_->request(client, wire(body));
  }

  void request(ClientId client, const Json& body) { residency_->request(client, wire(body)); }

  // Answers an order as a copier that has completed it.
  void done(std::size_t order) {
    const Json body = record_.orders.at(order).body;
    std::vector<std::uint64_t> sizes;
    Json counts = Json::array();
    for (const Item& item : items_of(body)) {
      sizes.push_back(item.bytes());
      counts.push_back({{"out_of_range", 0}, {"nan", 0}});
    }
    std::vector<UniqueFd> segments;
    for (const std::uint64_t bytes : lay_out(sizes).segment_bytes) {
      segments.emplace_back(::memfd_create("segment", MFD_CLOEXEC));
      EXPECT_EQ(::ftruncate(segments.back().get(), static_cast<off_t>(bytes)), 0);
    }
    residency_->answer(
        std::string(record_.orders.at(order).uuid),
        {wire({{"load", body.at("load")}, {"counts", counts}}), std::move(segments)});
  }
  void done() { done(record_.orders.size() - 1); }

  // Sends an answer to the last order.
  void answer_last(const Json& more) {
    Json body{{"load", record_.orders.back().body.at("load")}};
    body.update(more);
    residency_->answer(kUuid, {wire(body), {}});
  }

  void loaded(const std::vector<Item>& items, const Json& more = Json::object(),
              ClientId client = 1) {
    ask(client, items, more);
    done();
    ASSERT_FALSE(last(client).contains("error")) << last(client);
  }

  std::vector<Json> replies_to(ClientId client) const {
    std::vector<Json> found;
    for (const auto& reply : record_.replies) {
      if (reply.client == client) found.push_back(reply.body);
    }
    return found;
  }
  Json last(ClientId client) const {
    const auto all = replies_to(client);
    return all.empty() ? Json() : all.back();
  }
  std::string error(ClientId client) const {
    const Json body = last(client);
    return body.contains("error") ? body["error"]["message"].get<std::string>() : "";
  }

  // Returns the tensor ids in the last answer to a client.
  Json leased(ClientId client) const {
    Json ids = Json::array();
    const Json reply = last(client);
    for (const Json& row : reply["tensors"]) ids.push_back(row["id"]);
    return ids;
  }

  // Returns the sorted names of resident tensors.
  std::vector<std::string> resident() {
    request(4, {{"request", "list"}});
    std::vector<std::string> names;
    const Json reply = last(4);
    for (const Json& row : reply["tensors"]) {
      const auto label = row["label"].get<std::string>();
      names.push_back(label.substr(label.find("::") + 2));
    }
    std::ranges::sort(names);
    return names;
  }
  std::uint64_t held() {
    request(4, {{"request", "status"}});
    const Json devices = last(4)["devices"];
    return devices.contains(kUuid) ? devices[kUuid]["held"].get<std::uint64_t>() : 0;
  }
  Json all() const { return {{"all", true}, {"labels", Json::array()}}; }
  Json evict(const Json& filter, bool force = false) {
    Json body = filter;
    body["request"] = "evict";
    body["force"] = force;
    request(4, body);
    return last(4);
  }
  Json named(const Item& item) const {
    return {{"all", false}, {"labels", {to_json_text(item.label())}}};
  }

  Record record_;
  std::unique_ptr<Residency> residency_;
};

using Names = std::vector<std::string>;

TEST_F(ResidencyTest, TensorsAppearWhenLoadCompletesAndOnlyRequesterGetsProgress) {
  ask(1, {item(1), item(2)});
  ask(2, {item(1)});
  EXPECT_EQ(resident(), Names{});
  answer_last({{"progress", 5}, {"total", 10}});
  EXPECT_EQ(resident(), Names{});
  EXPECT_EQ(last(1)["progress"], 5);
  EXPECT_TRUE(replies_to(2).empty());

  done();

  EXPECT_EQ(resident(), (Names{"t1", "t2"}));
  EXPECT_EQ(last(1)["copied_bytes"], 2 * kLarge);
  EXPECT_EQ(last(1)["tensors"].size(), 2u);
}

TEST_F(ResidencyTest, CopiesTensorRequestedTwiceOnce) {
  ask(1, {item(1), item(2), item(1)});
  EXPECT_EQ(record_.orders[0].body["items"].size(), 2u);
  ask(2, {item(2), item(3)});
  ask(3, {item(1)});
  done();

  EXPECT_EQ(record_.orders.size(), 2u);
  EXPECT_EQ(record_.orders[1].body["items"].size(), 1u)
      << "only the tensor that the first load does not copy";
  done();
  EXPECT_EQ(record_.orders.size(), 2u);
  EXPECT_EQ(last(2)["copied_bytes"], kLarge);
  EXPECT_EQ(last(2)["tensors"].size(), 2u);
  EXPECT_EQ(last(3)["copied_bytes"], 0u);
  EXPECT_EQ(held(), 3 * kLarge);
}

TEST_F(ResidencyTest, ResidentTensorDoesNotWaitForLoad) {
  loaded({item(1)});
  ask(1, {item(2)});

  ask(2, {item(1)}, {{"lease", true}});

  EXPECT_EQ(last(2)["tensors"].size(), 1u);
  EXPECT_EQ(record_.replies.back().descriptors.size(), 1u);
}

TEST_F(ResidencyTest, ReportsOtherDeviceWithResidentTensor) {
  loaded({item(1)}, {{"uuid", "GPU-1"}, {"device", "cuda:0"}});
  EXPECT_EQ(record_.orders[0].uuid, "GPU-1");
  EXPECT_EQ(record_.orders[0].device, "cuda:0");

  ask(1, {item(1)}, {{"only_resident", true}});

  EXPECT_NE(error(1).find("it is on GPU-1"), std::string::npos) << error(1);
}

// --- memory limits

TEST_F(ResidencyTest, EvictsLeastRecentlyUsedTensor) {
  start(3 * kLarge);
  loaded({item(1)});
  loaded({item(2)});
  loaded({item(3)});
  ask(1, {item(1)});  // used again

  loaded({item(4)});

  EXPECT_EQ(resident(), (Names{"t1", "t3", "t4"}));
  EXPECT_LE(held(), 3 * kLarge);
}

TEST_F(ResidencyTest, EvictsSmallTensorsTogetherWithTheirSegment) {
  start(4 * kMiB);
  loaded({item(1, kMiB / 2), item(2, kMiB / 2)});
  loaded({item(3, kMiB)});
  ask(1, {item(2, kMiB / 2)});  // in the first segment

  loaded({item(4, kMiB)});

  EXPECT_EQ(resident(), (Names{"t1", "t2", "t4"}));
}

TEST_F(ResidencyTest, DoesNotEvictPinnedOrLeasedTensorsForLoad) {
  for (const char* how : {"pin", "lease"}) {
    start(2 * kLarge);
    loaded({item(1)}, {{how, true}});
    loaded({item(2)});

    loaded({item(3)}, {}, 2);

    EXPECT_EQ(resident(), (Names{"t1", "t3"})) << how;
    request(1, {{"request", "pin"}, {"all", true}, {"labels", Json::array()}, {"pinned", false}});
    residency_->disconnected(1);
    loaded({item(4)}, {}, 2);
    EXPECT_EQ(resident(), (Names{"t3", "t4"}))
        << "a tensor that is neither pinned nor leased is evicted: " << how;
  }
}

TEST_F(ResidencyTest, OutOfMemoryReportsNeededFreeHeldAndEvictableBytes) {
  start(3 * kLarge);
  loaded({item(1)}, {{"pin", true}});
  loaded({item(2)});

  ask(2, {item(3, 3 * kLarge)});

  EXPECT_EQ(record_.orders.size(), 2u) << "the load was not started";
  for (const char* part : {"needed 96", "free 32", "held 64", "evictable 32", "limit 96"}) {
    EXPECT_NE(error(2).find(part), std::string::npos) << error(2);
  }
  EXPECT_EQ(last(2)["error"]["status"], 5);
  EXPECT_EQ(resident(), (Names{"t1", "t2"})) << "nothing is evicted for a load that cannot succeed";
}

TEST_F(ResidencyTest, OverflowingSizesDoNotPassLimit) {
  start(2 * kLarge);
  const auto huge = [](int number) {
    return Item({.path = "/w/m",
                 .tensor = "h",
                 .version = "v1",
                 .source_size = ~std::uint64_t{0},
                 .offset = static_cast<std::uint64_t>(number),
                 .dtype = DType::kF4,
                 .shape = {(std::uint64_t{1} << 62) - 2},
                 .slice = "",
                 .as = DType::kF32});
  };

  ask(1, {huge(0)});
  ask(2, {huge(0), huge(1), huge(2), huge(3), huge(4)});

  EXPECT_TRUE(record_.orders.empty());
  EXPECT_NE(error(1), "");
  EXPECT_NE(error(2), "");
}

TEST_F(ResidencyTest, FullDeviceEvictsOldestAndRepeatsOrder) {
  loaded({item(1)});
  loaded({item(2)});
  ask(2, {item(3)});

  answer_last({{"needed", kLarge}, {"free", kLarge - 1}});

  ASSERT_EQ(record_.orders.size(), 4u);
  EXPECT_EQ(resident(), Names{"t2"});
  done();
  EXPECT_EQ(resident(), (Names{"t2", "t3"}));
}

TEST_F(ResidencyTest, FullDeviceWithoutEvictableTensorFailsLoad) {
  loaded({item(1)}, {{"pin", true}});
  ask(2, {item(3)});

  answer_last({{"needed", kLarge}, {"free", 0}});

  EXPECT_NE(error(2).find("out of memory"), std::string::npos);
  EXPECT_NE(error(2).find("held 32"), std::string::npos) << error(2);
  EXPECT_EQ(record_.orders.size(), 2u);
}

TEST_F(ResidencyTest, FailedGpuAllocationEvictsDespiteReportedFreeMemory) {
  const Json gpu{{"uuid", "GPU-1"}, {"device", "cuda:0"}};
  loaded({item(1)}, gpu);
  ask(2, {item(3)}, gpu);

  residency_->answer("GPU-1", {wire({{"load", record_.orders.back().body["load"]},
                                     {"needed", kLarge},
                                     {"free", 3 * kLarge}}),
                               {}});

  ASSERT_EQ(record_.orders.size(), 3u);
  EXPECT_EQ(record_.orders.back().body["wait_for_room"], true);
  EXPECT_EQ(resident(), Names{});
}

TEST_F(ResidencyTest, CopierWaitsOnceForLateFreedGpuMemory) {
  const Json gpu{{"uuid", "GPU-1"}, {"device", "cuda:0"}};
  ask(2, {item(3)}, gpu);
  EXPECT_EQ(record_.orders.back().body["wait_for_room"], false);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(error(2), "");
    residency_->answer(
        "GPU-1",
        {wire({{"load", record_.orders.back().body["load"]}, {"needed", kLarge}, {"free", 0}}),
         {}});
  }

  EXPECT_EQ(record_.orders.size(), 2u);
  EXPECT_NE(error(2).find("out of memory"), std::string::npos) << error(2);
}

TEST_F(ResidencyTest, DoesNotEvictTensorsFromSameLoad) {
  start(2 * kLarge);
  loaded({item(1)});
  loaded({item(2)});

  ask(2, {item(1), item(3)});
  done();

  EXPECT_EQ(resident(), (Names{"t1", "t3"}));
  EXPECT_EQ(last(2)["tensors"].size(), 2u);
}

// --- eviction, pins and leases

TEST_F(ResidencyTest, EvictionFreesMemory) {
  loaded({item(1), item(2, 1000), item(3, 1000)});
  const std::size_t before = open_descriptors();

  EXPECT_EQ(evict(named(item(2, 1000)))["count"], 1u);
  EXPECT_EQ(open_descriptors(), before) << "the segment still holds another tensor";
  EXPECT_EQ(evict(named(item(3, 1000)))["count"], 1u);
  EXPECT_EQ(open_descriptors(), before - 1);
  EXPECT_EQ(evict(all())["count"], 1u);

  EXPECT_EQ(open_descriptors(), before - 2);
  EXPECT_EQ(held(), 0u);
}

TEST_F(ResidencyTest, EvictedTensorStaysInMemoryWhileLeased) {
  loaded({item(1)}, {{"lease", true}});
  loaded({item(1)}, {{"lease", true}}, 2);

  EXPECT_EQ(evict(all())["used"], 1u);

  EXPECT_EQ(resident(), Names{});
  EXPECT_EQ(held(), kLarge);
  residency_->disconnected(1);
  EXPECT_EQ(held(), kLarge);
  residency_->disconnected(2);
  EXPECT_EQ(held(), 0u);
}

TEST_F(ResidencyTest, ReleaseDoesNotEndLeaseOnSuccessor) {
  loaded({item(1)}, {{"lease", true}});
  const Json evicted = leased(1);
  evict(all());
  loaded({item(1)}, {{"lease", true}});

  request(1, {{"request", "release"}, {"ids", evicted}});

  EXPECT_EQ(held(), kLarge);
  request(4, {{"request", "list"}});
  EXPECT_EQ(last(4)["tensors"][0]["users"], Json{1001}) << "the successor is still leased";
  request(1, {{"request", "release"}, {"ids", evicted}});
  EXPECT_EQ(last(1)["count"], 0u) << "the lease was released before";
}

TEST_F(ResidencyTest, CountsRepeatedLeases) {
  start(kLarge);
  loaded({item(1)}, {{"lease", true}});
  const Json ids = leased(1);
  ask(1, {item(1)}, {{"lease", true}});
  const auto release = [&] {
    request(1, {{"request", "release"}, {"ids", ids}});
    return last(1)["count"];
  };
  EXPECT_EQ(release(), 1u);
  ask(2, {item(2)});
  EXPECT_NE(error(2), "") << "the second lease remains";
  EXPECT_EQ(release(), 1u);
  EXPECT_EQ(release(), 0u) << "the lease was released before";

  loaded({item(2)}, {}, 2);

  EXPECT_EQ(resident(), Names{"t2"});
}

TEST_F(ResidencyTest, DisconnectEndsAllLeasesOfClient) {
  loaded({item(1), item(2)}, {{"lease", true}});
  ask(1, {item(1), item(1)}, {{"lease", true}});
  ask(2, {item(1)}, {{"lease", true}});
  evict(all());

  residency_->disconnected(1);

  EXPECT_EQ(held(), kLarge) << "another client leases the tensor";
  EXPECT_EQ(record_.discarded, 1U);
  residency_->disconnected(2);
  EXPECT_EQ(held(), 0U);
  EXPECT_EQ(record_.discarded, 2U);
}

TEST_F(ResidencyTest, CountsLoadsAndLeasesAsUse) {
  EXPECT_FALSE(residency_->is_in_use());
  ask(1, {item(1)}, {{"lease", true}});
  EXPECT_TRUE(residency_->is_in_use());
  done();
  EXPECT_TRUE(residency_->is_in_use());

  request(1, {{"request", "release"}, {"ids", leased(1)}});

  EXPECT_FALSE(residency_->is_in_use()) << "a connected client without a lease is not a use";
  evict(all());
  EXPECT_FALSE(residency_->is_idle()) << "clients are connected";
  for (ClientId client = 1; client <= 4; ++client) residency_->disconnected(client);
  EXPECT_TRUE(residency_->is_idle());
}

TEST_F(ResidencyTest, ClientCannotReleaseLeaseOfAnother) {
  loaded({item(1)}, {{"lease", true}});

  request(2, {{"request", "release"}, {"ids", leased(1)}});

  EXPECT_EQ(last(2)["count"], 0u);
  evict(all());
  EXPECT_EQ(held(), kLarge);
}

TEST_F(ResidencyTest, EvictionDuringLoadGivesAllTensorsOrError) {
  loaded({item(1)});
  ask(2, {item(1), item(2)});

  evict(all());
  done();

  // The load either fails with an error or has all its tensors.
  const bool failed = !error(2).empty();
  if (!failed) {
    EXPECT_EQ(last(2)["tensors"].size(), 2u);
  }
  residency_->disconnected(2);
  evict(all());
  EXPECT_EQ(held(), 0u) << "all memory is freed";
}

// --- clients and copiers that end

TEST_F(ResidencyTest, DisconnectDropsQueuedLoad) {
  ask(1, {item(1)});
  ask(2, {item(2)});
  ask(3, {item(3)});

  residency_->disconnected(2);
  done();

  ASSERT_EQ(record_.orders.size(), 2u);
  EXPECT_EQ(items_of(record_.orders[1].body).at(0).key(), item(3).key());
}

TEST_F(ResidencyTest, DisconnectDuringLoadStopsItAndPublishesNothing) {
  ask(1, {item(1)});
  const Json load = record_.orders[0].body["load"];
  ask(2, {item(2)});

  residency_->disconnected(1);
  ASSERT_EQ(record_.orders.size(), 2u);
  EXPECT_EQ(record_.orders[1].body["stop"], load);
  residency_->answer(kUuid,
                     {wire({{"load", load}, {"error", {{"status", 5}, {"message", "no"}}}}), {}});

  ASSERT_EQ(record_.orders.size(), 3u) << "the next load begins";
  EXPECT_TRUE(replies_to(1).empty());
  done();
  EXPECT_EQ(resident(), Names{"t2"});
}

TEST_F(ResidencyTest, LoadCompletedAfterDisconnectLeavesNothing) {
  const std::size_t before = open_descriptors();
  ask(1, {item(1)});
  residency_->disconnected(1);

  done(0);

  EXPECT_EQ(resident(), Names{});
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(ResidencyTest, DisconnectDuringLoadMakesItsTensorsEvictable) {
  start(2 * kLarge);
  loaded({item(1)});
  ask(1, {item(1), item(2)});
  const Json load = record_.orders.back().body["load"];
  residency_->disconnected(1);
  residency_->answer(
      kUuid, {wire({{"load", load}, {"error", {{"status", 5}, {"message", "given up"}}}}), {}});

  loaded({item(3, 2 * kLarge)}, {}, 2);

  EXPECT_EQ(resident(), Names{"t3"});
}

TEST_F(ResidencyTest, DeadCopierFailsLoadAndNextIsServed) {
  ask(1, {item(1)});
  ask(2, {item(2)});
  answer_last({{"progress", 1}, {"total", 2}});

  residency_->copier_gone(kUuid, "killed by signal 9");

  EXPECT_NE(error(1).find("killed by signal 9"), std::string::npos);
  EXPECT_EQ(last(1)["error"]["status"], 5);
  EXPECT_EQ(record_.orders.size(), 2u);
  done();
  EXPECT_EQ(resident(), Names{"t2"});
}

TEST_F(ResidencyTest, RestartsExitedCopierOnlyFewTimes) {
  ask(1, {item(1)});
  residency_->copier_gone(kUuid, "");
  ASSERT_EQ(record_.orders.size(), 2u);
  done();
  EXPECT_EQ(last(1)["tensors"].size(), 1u);
  ask(1, {item(2)});

  for (int i = 0; i < 10; ++i) residency_->copier_gone(kUuid, "");

  EXPECT_LE(record_.orders.size(), 7u);
  EXPECT_NE(error(1), "");
}

TEST_F(ResidencyTest, CopierErrorFailsOnlyItsClient) {
  ask(1, {item(1)});
  ask(2, {item(2)});

  answer_last({{"error", {{"status", 3}, {"message", "changed while it was copied"}}}});

  EXPECT_EQ(last(1)["error"]["status"], 3);
  EXPECT_EQ(error(1), "changed while it was copied");
  done();
  EXPECT_EQ(resident(), Names{"t2"});
}

// --- invalid messages

TEST_F(ResidencyTest, InvalidRequestsGetAnError) {
  Descriptions none;
  const Json items = Json::array({to_json(item(1), none)});
  const std::vector<Json> wrong{
      Json::object(),
      {{"request", 5}},
      {{"request", "nothing"}},
      {{"request", "\u20ac"}},
      {{"request", "load"}},
      {{"request", "load"}, {"uuid", "u"}, {"device", "cpu"}, {"items", 5}},
      {{"request", "load"}, {"uuid", "u"}, {"device", "cpu"}, {"items", {1, 2}}},
      {{"request", "load"}, {"uuid", "u"}, {"device", "cpu"}, {"items", items}, {"pin", 1}},
      {{"request", "load"}, {"uuid", "u"}, {"device", "cpu"}, {"items", items}, {"workers", -1}},
      {{"request", "load"}, {"uuid", 5}, {"device", "cpu"}, {"items", items}},
      {{"request", "load"}, {"uuid", "GPU-1"}, {"device", "cpu"}, {"items", items}},
      {{"request", "load"}, {"uuid", kUuid}, {"device", "cuda:0"}, {"items", items}},
      {{"request", "load"}, {"uuid", kUuid}, {"device", "other"}, {"items", items}},
      {{"request", "release"}, {"ids", 5}},
      {{"request", "release"}, {"ids", {-5}}},
      {{"request", "evict"}},
      {{"request", "evict"}, {"labels", {5}}},
      {{"request", "pin"}, {"labels", Json::array()}, {"pinned", "yes"}}};
  for (const Json& body : wrong) {
    const std::size_t before = replies_to(1).size();
    request(1, body);
    ASSERT_EQ(replies_to(1).size(), before + 1) << body;
    EXPECT_EQ(last(1)["error"]["status"], 2) << body << last(1);
  }
  EXPECT_TRUE(record_.orders.empty());
}

TEST_F(ResidencyTest, RefusesClientWithOtherVersionAndSaysWhatToDo) {
  const std::string begin = "the holder (process " + std::to_string(::getpid()) +
                            ") speaks version " + std::to_string(kProtocolVersion) +
                            " of the protocol, this program version ";
  const std::string end =
      ": end the holder (kill " + std::to_string(::getpid()) + "), and load again";
  residency_->connected(5, 1005);
  request(5, {{"request", "list"}});
  EXPECT_EQ(error(5), begin + "1: start this program again, with the newer stfs");
  EXPECT_EQ(last(5)["error"]["status"], 5);

  request(5, {{"request", "hello"}, {"version", kProtocolVersion + 1}});
  EXPECT_EQ(error(5), begin + std::to_string(kProtocolVersion + 1) + end);
  EXPECT_EQ(last(5)["version"], kProtocolVersion);
  EXPECT_EQ(last(5)["pid"], ::getpid());

  request(5, {{"request", "list"}});
  EXPECT_NE(error(5), "");
}

TEST_F(ResidencyTest, LimitsCopiersForUnknownDevices) {
  for (int i = 0; i < 1000; ++i) {
    ask(1, {item(1)}, {{"uuid", "GPU-" + std::to_string(i)}, {"device", "cuda:0"}});
  }

  EXPECT_LE(record_.orders.size(), 128u);
}

TEST_F(ResidencyTest, MalformedCopierAnswerFailsLoadAndLeavesNothing) {
  const std::size_t before = open_descriptors();
  const std::vector<Json> wrong{{{"counts", Json::array()}},
                                {{"counts", 5}},
                                {{"counts", {{{"out_of_range", 0}, {"nan", 0}}}}},
                                {{"counts", {{{"out_of_range", 0}, {"nan", 0}}, {{"nan", -1}}}}},
                                {{"counts", {5, 6}}},
                                {{"needed", "x"}},
                                {{"error", 5}},
                                {{"error", {{"status", 5}}}},
                                {{"progress", "x"}}};
  for (const Json& body : wrong) {
    ask(1, {item(1), item(2)});
    Json answer{{"load", record_.orders.back().body["load"]}};
    answer.update(body);
    std::vector<UniqueFd> segments;
    for (int i = 0; i < 2; ++i) segments.emplace_back(::memfd_create("segment", MFD_CLOEXEC));
    residency_->answer(kUuid, {wire(answer), std::move(segments)});

    EXPECT_EQ(last(1)["error"]["status"], 5) << body << last(1);
    EXPECT_EQ(resident(), Names{}) << body;
    EXPECT_EQ(held(), 0u) << body;
    EXPECT_EQ(open_descriptors(), before) << body;
    evict(all());
  }
}

TEST_F(ResidencyTest, IgnoresUnexpectedAnswers) {
  residency_->answer(kUuid, {wire({{"load", 1}, {"counts", Json::array()}}), {}});
  residency_->answer("GPU-none", {Json::object(), {}});
  residency_->copier_gone("GPU-none", "killed");
  ask(1, {item(1)});
  residency_->answer(kUuid, {wire({{"load", 99}, {"counts", Json::array()}}), {}});
  residency_->request(99, {{"request", "list"}});
  residency_->disconnected(99);

  EXPECT_TRUE(replies_to(1).empty());
  done();
  EXPECT_EQ(resident(), Names{"t1"});
}

TEST_F(ResidencyTest, SendsLeasedDescriptorsInBatchesOnlyToLeasingClient) {
  std::vector<Item> items;
  for (int i = 1; i <= 100; ++i) items.push_back(item(i));
  loaded(items, {{"lease", true}});
  const Json numbers = last(1)["segments"];
  ASSERT_EQ(numbers.size(), 100u);
  EXPECT_EQ(record_.replies.back().descriptors.size(), kSegmentsAtOnce);
  const Json rest = std::vector(numbers.begin() + kSegmentsAtOnce, numbers.end());

  request(1, {{"request", "segments"}, {"numbers", rest}});
  EXPECT_EQ(record_.replies.back().descriptors.size(), 100 - kSegmentsAtOnce);

  request(2, {{"request", "segments"}, {"numbers", rest}});
  EXPECT_NE(error(2), "") << "this client has no lease";
  request(1, {{"request", "segments"}, {"numbers", numbers}});
  EXPECT_NE(error(1), "") << "too many in one request";
  request(1, {{"request", "segments"}, {"numbers", {"x", -1, 0}}});
  EXPECT_NE(error(1), "");
}

TEST_F(ResidencyTest, OrderHasSourceOptionsOfItsClient) {
  SourceOptions offline;
  offline.cache_dir = "/cache";
  offline.offline = true;
  ask(1, {item(1)}, {{"sources", to_json(offline)}});
  ask(2, {item(2)});
  EXPECT_EQ(record_.orders.back().body["sources"], to_json(offline));
  done();
  EXPECT_EQ(record_.orders.back().body["sources"], to_json(SourceOptions{}));

  ask(3, {item(3)}, {{"sources", {{"timeout", 0}}}});
  EXPECT_EQ(error(3), "malformed message: timeout");
}

TEST_F(ResidencyTest, OutOfMemoryForOrderFailsOnlyThatLoad) {
  record_.throws_at_orders = true;
  ask(1, {item(1)});
  EXPECT_EQ(last(1)["error"]["message"], "the holder is out of memory");

  record_.throws_at_orders = false;
  loaded({item(1)});
  EXPECT_EQ(record_.orders.size(), 1u);
}

}  // namespace
}  // namespace stfs::gpu::test
