#include "core/source/hub_api.h"

#include "core/base/error.h"
#include "core/base/text.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <functional>

namespace stfs {
namespace {

constexpr std::uint64_t kLargestFile = 1ULL << 50;
constexpr int kDeepest = 64;  // nesting of the JSON

// The seconds after which the Hub takes requests again: RateLimit ("api";r=0;t=55), or Retry-After;
// 0 when neither says so.
unsigned seconds_to_wait(const HttpHead& head) {
  std::string_view text = head.header("ratelimit");
  const std::size_t at = text.find(";t=");
  text = at == std::string_view::npos ? head.header("retry-after") : text.substr(at + 3);
  unsigned seconds = 0;
  std::from_chars(text.data(), text.data() + text.size(), seconds);
  return std::min(seconds, 86'400U);
}

using HubJson = nlohmann::json;

std::string text_of(const HubJson& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : "";
}

std::string digest_of(const HubJson& object, const char* key, std::size_t length) {
  std::string text = text_of(object, key);
  return is_digest(text, length) ? text : "";
}

std::optional<std::uint64_t> size_of(const HubJson& object) {
  const auto at = object.find("size");
  if (at == object.end() || !at->is_number_unsigned()) return std::nullopt;
  const auto size = at->get<std::uint64_t>();
  return size <= kLargestFile ? std::optional(size) : std::nullopt;
}

// An entry of "siblings" ({"rfilename", "size", "blobId", "lfs": {"size", "sha256"}}), or of a tree
// ({"path", "size", "oid", "lfs": {"size", "oid"}}).
HubFile file_of(const HubJson& entry) {
  HubFile file;
  file.size = size_of(entry);
  const auto lfs = entry.find("lfs");
  if (lfs == entry.end() || !lfs->is_object()) {
    file.blob = digest_of(entry, "blobId", kCommitDigits);
    if (file.blob.empty()) file.blob = digest_of(entry, "oid", kCommitDigits);
    return file;
  }
  file.sha256 = digest_of(*lfs, "sha256", kSha256Digits);
  if (file.sha256.empty()) file.sha256 = digest_of(*lfs, "oid", kSha256Digits);
  if (!file.size) file.size = size_of(*lfs);
  if (file.size != size_of(*lfs)) file.size.reset();
  return file;
}

// Parses an answer, and hands over each object of the list at a depth of the JSON. These are not
// kept: an answer of 100,000 files would take ten times its size.
HubJson parse_api(const std::string& text, int depth, const std::string& place,
                  const std::function<void(const HubJson&)>& entry) {
  std::string key;
  const auto filter = [&](int at, HubJson::parse_event_t event, HubJson& value) {
    if (at > kDeepest) throw_not_the_hub(place, "its JSON is nested too deeply");
    const bool is_model = depth == 2;
    if (is_model && at == 1 && event == HubJson::parse_event_t::key) {
      key = value.get<std::string>();
      return key == "siblings" || key == "sha" || key == "id" || key == "lastModified";
    }
    if (at != depth || event != HubJson::parse_event_t::object_end) return true;
    if (!is_model || key == "siblings") entry(value);
    return false;
  };
  HubJson answer = HubJson::parse(text, filter, /*allow_exceptions=*/false);
  if (answer.is_discarded()) throw_not_the_hub(place, "not JSON");
  return answer;
}

// RFC 3339 in UTC, as the API writes times: "2025-02-01T10:00:00.000Z". 0 for any other text.
timespec time_of(const std::string& text) {
  tm parts{};
  const char* const end = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (end == nullptr || !text.ends_with('Z')) return {};
  return {.tv_sec = ::timegm(&parts), .tv_nsec = 0};
}

}  // namespace

void throw_not_the_hub(const std::string& place, const std::string& what) {
  throw Error(ErrorCode::kUnreadable, place, "the Hub's answer breaks its rule: " + what);
}

HubModel parse_hub_model(const std::string& json, const HubName& asked) {
  const std::string place = asked.text();
  HubModel model;
  const HubJson answer = parse_api(json, 2, place, [&](const HubJson& entry) {
    const std::string path = text_of(entry, "rfilename");
    if (is_inner_path(path)) model.files.try_emplace(path, file_of(entry));
  });
  if (!answer.is_object()) throw_not_the_hub(place, "not a model");
  model.commit = digest_of(answer, "sha", kCommitDigits);
  if (model.commit.empty()) throw_not_the_hub(place, "it tells no commit");
  if (asked.has_commit() && model.commit != asked.revision) {
    throw_not_the_hub(place, "it is of another commit");
  }
  model.id = text_of(answer, "id");
  if (!is_hub_id(model.id)) model.id = asked.id;
  model.mtime = time_of(text_of(answer, "lastModified"));
  return model;
}

void add_hub_tree(const std::string& json, const std::string& place, HubModel& model) {
  const HubJson tree = parse_api(json, 1, place, [&](const HubJson& entry) {
    const std::string path = text_of(entry, "path");
    if (text_of(entry, "type") != "file" || !is_inner_path(path)) return;
    HubFile& file = model.files[path];
    if (!file.is_known()) file = file_of(entry);
  });
  if (!tree.is_array()) throw_not_the_hub(place, "not a tree");
}

std::string next_hub_page(std::string_view link) {
  while (!link.empty()) {
    const std::size_t begin = link.find('<'), end = link.find('>');
    if (begin == std::string_view::npos || end == std::string_view::npos || end < begin) return "";
    const std::string_view target = link.substr(begin + 1, end - begin - 1);
    link.remove_prefix(end + 1);
    const std::string_view parameters = link.substr(0, link.find('<'));
    if (parameters.find("rel=\"next\"") != std::string_view::npos) {
      return std::string(target);
    }
  }
  return "";
}

void refuse_hub_answer(const HttpHead& head, const std::string& place, const std::string& id,
                       const HubOptions& options) {
  const std::string_view code = head.header("x-error-code");
  const std::string_view message = head.header("x-error-message");
  const bool has_token = !options.token.empty();
  const auto fail = [&](ErrorCode error, const std::string& rule) {
    throw Error(error, place, rule);
  };
  if (code == "GatedRepo") {
    fail(ErrorCode::kUnreadable, "the model is gated: accept its conditions at " +
                                     options.endpoint + "/" + id +
                                     (has_token ? "" : ", then set HF_TOKEN"));
  }
  if (code == "RevisionNotFound") fail(ErrorCode::kAbsent, "the model has no such revision");
  if (code == "EntryNotFound") fail(ErrorCode::kAbsent, "the model has no such file");
  if (head.status == 401 && message == "Invalid credentials in Authorization header") {
    fail(ErrorCode::kUnreadable, "the Hub does not accept this token: see HF_TOKEN");
  }
  // The Hub answers 401 for a model that is not there, too.
  if (code == "RepoNotFound" || head.status == 401 || head.status == 404) {
    fail(ErrorCode::kAbsent, has_token ? "no such model, or this token may not see it"
                                       : "no such model, or it is private: set HF_TOKEN");
  }
  if (head.status == 429) {
    const unsigned seconds = seconds_to_wait(head);
    fail(ErrorCode::kUnreadable,
         "the Hub takes no more requests for now: try again " +
             (seconds == 0 ? "later" : "in " + std::to_string(seconds) + " s") +
             (has_token ? "" : ", or set HF_TOKEN for a higher limit"));
  }
  fail(ErrorCode::kUnreadable, "the Hub answers " + std::to_string(head.status) +
                                   (message.empty() ? "" : ": " + in_quotes(message)));
  std::abort();  // fail() throws
}

}  // namespace stfs
