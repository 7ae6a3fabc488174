// Sends requests to an object store like stfs, for tests against real servers:
//   store_tool find NAME           JSON of the version, with "first", the number of bytes that were
//                                  fetched with it, and "retries"
//   store_tool list NAME           JSON of the names, or null for a file
//   store_tool get NAME OFFSET LENGTH [VERSION]   bytes of VERSION (from find); default: latest
// Exits with the statuses of stfs. STFS_INSECURE_HTTP=1 permits http to other hosts.
#include "core/base/error.h"
#include "core/remote/http/http.h"
#include "core/remote/stores/remote.h"
#include "core/remote/stores/s3.h"
#include "core/source/counters.h"

#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace {

using stfs::ResponseVerdict;

// Fetches the bytes of a range like a fetcher.
std::string get(stfs::Http& http, stfs::Remote& remote, stfs::ByteRange range) {
  bool is_renewed = false;
  stfs::Backoff backoff;
  while (backoff.tries() < 20) {
    const stfs::HttpResponse answer = http.get(remote.request(range), range.length + 65536);
    const ResponseVerdict verdict = remote.judge(answer.head, range);
    switch (verdict.kind) {
      case ResponseVerdict::Kind::kAccept:
        if (answer.body.size() != range.length) {
          throw stfs::Error(stfs::ErrorCode::kUnreadable, "", "another length");
        }
        return answer.body;
      case ResponseVerdict::Kind::kRetry:
        std::this_thread::sleep_for(backoff.next(&answer.head));
        continue;
      case ResponseVerdict::Kind::kRenew:
        if (!is_renewed && remote.renew()) {
          is_renewed = true;
          continue;
        }
        throw stfs::Error(stfs::ErrorCode::kUnreadable, "", "EACCES: " + verdict.text);
      case ResponseVerdict::Kind::kChanged:
        throw stfs::Error(stfs::ErrorCode::kUnreadable, "", "ESTALE: " + verdict.text);
      case ResponseVerdict::Kind::kRefused:
        throw stfs::Error(stfs::ErrorCode::kUnreadable, "", "EIO: " + verdict.text);
    }
  }
  throw stfs::Error(stfs::ErrorCode::kUnreadable, "", "ETIMEDOUT");
}

int run(const std::vector<std::string>& words) {
  const bool insecure = std::getenv("STFS_INSECURE_HTTP") != nullptr;
  static stfs::Counters counters;
  stfs::Http http({.insecure_http = insecure, .counters = &counters});
  const auto store = stfs::make_s3_store(http, insecure);
  const std::string& name = words.at(1);
  if (words[0] == "find") {
    const stfs::Found found = store->find(name, nullptr);
    auto json = nlohmann::json::parse(stfs::to_json(found.version, true));
    json["first"] = found.first.size();
    json["retries"] = counters.retries.load();
    std::puts(json.dump().c_str());
  } else if (words[0] == "list") {
    const auto names = store->list(name);
    const nlohmann::json json = names ? nlohmann::json(*names) : nlohmann::json();
    std::puts(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else if (words[0] == "get") {
    const stfs::ByteRange range{std::stoull(words.at(2)), std::stoull(words.at(3))};
    const auto version = words.size() > 4 ? stfs::parse_remote_version(words[4]).value()
                                          : store->find(name, nullptr).version;
    const std::string bytes = get(http, *store->remote(version), range);
    std::fwrite(bytes.data(), 1, bytes.size(), stdout);
  } else {
    return 2;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 3) return 2;
    return run({argv + 1, argv + argc});
  } catch (const stfs::Error& error) {
    std::fprintf(stderr, "store_tool: %s\n", error.what());
    return stfs::exit_status(error.code());
  }
}
