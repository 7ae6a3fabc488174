#include "core/base/text.h"
#include "core/values/digest.h"
#include "fs/view/families.h"

#include <array>
#include <cstdio>

namespace stfs {

int compute_sha256(const ViewFile& file, const std::atomic<bool>& stop, std::string& text) {
  std::string hex;
  if (const int error = sha256(file.tensor().content(), stop, hex)) return error;
  text = sha256sum_line(hex, file.tensor().path);
  return 0;
}

namespace {

// Returns the number of timeouts by server as JSON: "\"https://host\": 2, ...".
std::string timeouts_by_server(const Counters& counters) {
  std::string text;
  for (const Counters::Server& server : counters.servers) {
    if (server.state.load(std::memory_order_acquire) != Counters::Server::kNamed) continue;
    text += (text.empty() ? "" : ", ") + json_string(server.name) + ": " +
            std::to_string(server.timeouts.load(std::memory_order_relaxed));
  }
  return text;
}

}  // namespace

std::string counters_json(const Counters& counters) {
  const auto field = [](const char* name, const Counters::Count& count) {
    return "  \"" + std::string(name) +
           "\": " + std::to_string(count.load(std::memory_order_relaxed)) + ",\n";
  };
  std::array<char, 32> seconds{};
  std::snprintf(
      seconds.data(), seconds.size(), "%.3f",
      static_cast<double>(counters.nanoseconds_waited.load(std::memory_order_relaxed)) / 1e9);
  return "{\n" + field("reads", counters.reads) + field("bytes_returned", counters.bytes_returned) +
         field("requests", counters.requests) + field("bytes_fetched", counters.bytes_fetched) +
         field("retries", counters.retries) + field("cache_hits", counters.cache_hits) +
         field("cache_corrupt", counters.cache_corrupt) + field("waits", counters.waits) +
         field("timeouts", counters.timeouts) + "  \"timeouts_by_server\": {" +
         timeouts_by_server(counters) + "},\n  \"seconds_waited\": " + seconds.data() + "\n}\n";
}

}  // namespace stfs
