#include "core/remote/stores/hub_api.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/remote/http/server_reason.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <functional>

namespace stfs {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kLargestFile = 1ULL << 50;
// Limits of a JSON response. A model with 100,000 files has a million values.
constexpr int kDeepest = 64;
constexpr std::size_t kMostValues = 4'000'000;
constexpr std::size_t kMaxFiles = 250'000;  // in one model

// Returns the seconds after which the Hub accepts requests again, from RateLimit ("api";r=0;t=55)
// or Retry-After, or 0 if neither contains a number.
unsigned seconds_to_wait(const HttpHead& head) {
  std::string_view text = head.header("ratelimit");
  const std::size_t at = text.find(";t=");
  text = at == std::string_view::npos ? head.header("retry-after") : text.substr(at + 3);
  unsigned seconds = 0;
  std::from_chars(text.data(), text.data() + text.size(), seconds);
  return std::min(seconds, 86'400U);
}

constexpr std::size_t kLongestText = 4096;

std::string text_at(const Json& object, const char* key) {
  const auto at = object.find(key);
  const bool is_text = at != object.end() && at->is_string();
  const std::string text = is_text ? at->get<std::string>() : "";
  return text.size() > kLongestText ? "" : text;
}

std::optional<std::uint64_t> size_at(const Json& object) {
  const auto at = object.find("size");
  const bool is_size = at != object.end() && at->is_number_unsigned();
  return is_size && *at <= kLargestFile ? std::optional(at->get<std::uint64_t>()) : std::nullopt;
}

// Returns the first of two texts that is a digest, or "" if neither is.
std::string digest_of(const std::string& one, const std::string& other, std::size_t digits) {
  return is_digest(one, digits) ? one : is_digest(other, digits) ? other : "";
}

// Reads an entry of "siblings" ({"rfilename", "size", "blobId", "lfs": {"size", "sha256"}}), or of
// a tree ({"type", "path", "size", "oid", "lfs": {"size", "oid"}}).
HubFile file_of(const Json& entry) {
  HubFile file;
  file.size = size_at(entry);
  const auto lfs = entry.find("lfs");
  if (lfs == entry.end() || !lfs->is_object()) {
    file.blob = digest_of(text_at(entry, "blobId"), text_at(entry, "oid"), kCommitDigits);
    return file;
  }
  file.sha256 = digest_of(text_at(*lfs, "sha256"), text_at(*lfs, "oid"), kSha256Digits);
  if (!file.size) file.size = size_at(*lfs);
  if (file.size != size_at(*lfs)) file.size.reset();
  return file;
}

// Passes the entries of a response to `take` one by one, and returns the rest of the response, so
// that only one entry is in memory at a time. `list` is the key of the list of entries in the
// top-level object; "" if the list itself is the top level.
Json read_answer(const std::string& text, const std::string& place, const std::string& list,
                 const std::function<void(const Json&)>& take) {
  const int entry_depth = list.empty() ? 1 : 2;
  std::size_t values = 0;
  std::string key;  // the current key in the top-level object
  const auto keep = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kDeepest) throw_not_the_hub(place, "its JSON is nested too deeply");
    if (++values > kMostValues) throw_not_the_hub(place, "its JSON has too many values");
    const bool is_of_list = list.empty() || key == list;
    if (event == Json::parse_event_t::key && depth == 1 && !list.empty()) {
      key = parsed.get<std::string>();
      return key == list || key == "sha" || key == "id" || key == "lastModified";
    }
    if (event != Json::parse_event_t::object_end || depth != entry_depth || !is_of_list) {
      return true;
    }
    take(parsed);
    return false;
  };
  Json json = Json::parse(text, keep, false);
  if (json.is_discarded()) throw_not_the_hub(place, "not JSON");
  const bool is_right = list.empty() ? json.is_array() : json.is_object();
  if (!is_right) throw_not_the_hub(place, list.empty() ? "not a tree" : "not a model");
  return json;
}

void add_file(HubModel& model, const std::string& path, const Json& entry,
              const std::string& place) {
  if (!is_inner_path(path)) return;
  HubFile& file = model.files[path];
  if (!file.is_known()) file = file_of(entry);
  if (model.files.size() > kMaxFiles) throw_not_the_hub(place, "it names too many files");
}

// Parses the API's times, RFC 3339 in UTC: "2025-02-01T10:00:00.000Z". Returns 0 for any other
// text.
timespec time_of(const std::string& text) {
  tm parts{};
  const char* const end = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (end == nullptr || !text.ends_with('Z')) return {};
  return {.tv_sec = ::timegm(&parts), .tv_nsec = 0};
}

}  // namespace

void throw_not_the_hub(const std::string& place, const std::string& what) {
  throw Error(ErrorCode::kUnreadable, place, "unexpected response from the Hub: " + what);
}

HubModel parse_hub_model(const std::string& json, const HubName& asked) {
  const std::string place = asked.text();
  HubModel model;
  const Json top = read_answer(json, place, "siblings", [&](const Json& entry) {
    add_file(model, text_at(entry, "rfilename"), entry, place);
  });
  model.commit = digest_of(text_at(top, "sha"), "", kCommitDigits);
  if (model.commit.empty()) throw_not_the_hub(place, "it names no commit");
  if (asked.has_commit() && model.commit != asked.revision) {
    throw_not_the_hub(place, "it is for another commit");
  }
  model.id = text_at(top, "id");
  if (!is_hub_id(model.id)) model.id = asked.id;
  model.mtime = time_of(text_at(top, "lastModified"));
  return model;
}

void add_hub_tree(const std::string& json, const std::string& place, HubModel& model) {
  read_answer(json, place, "", [&](const Json& entry) {
    if (text_at(entry, "type") == "file") add_file(model, text_at(entry, "path"), entry, place);
  });
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
                       const HubOptions& options, const std::string& body) {
  const std::string_view code = head.header("x-error-code");
  const bool has_token = !options.token.empty();
  const std::string set_token =
      options.is_token_withheld
          ? "the token was not sent, because " + options.endpoint + " is http: use https"
          : "set HF_TOKEN";
  const std::string said =
      "the Hub answered " + std::to_string(head.status) + reason_text({head, body}, head.secrets);
  const auto fail = [&](ErrorCode error, const std::string& rule) {
    throw Error(error, place, rule);
  };
  if (code == "GatedRepo") {
    fail(ErrorCode::kUnreadable, "the model is gated: accept its conditions at " +
                                     options.endpoint + "/" + id +
                                     (has_token                   ? ""
                                      : options.is_token_withheld ? "; " + set_token
                                                                  : ", then set HF_TOKEN"));
  }
  if (code == "RevisionNotFound") fail(ErrorCode::kAbsent, "the model has no such revision");
  if (code == "EntryNotFound") fail(ErrorCode::kAbsent, "the model has no such file");
  if (head.status == 401 &&
      head.header("x-error-message") == "Invalid credentials in Authorization header") {
    fail(ErrorCode::kUnreadable, "the Hub does not accept this token: see HF_TOKEN");
  }
  // The Hub also returns 401 for a model that does not exist.
  if (code == "RepoNotFound" || head.status == 401 || head.status == 404) {
    fail(ErrorCode::kAbsent, said + ": " +
                                 (has_token ? "no such model, or this token may not see it"
                                            : "no such model, or it is private: " + set_token));
  }
  if (head.status == 429) {
    const unsigned seconds = seconds_to_wait(head);
    fail(
        ErrorCode::kUnreadable,
        "the Hub takes no more requests for now: try again " +
            (seconds == 0 ? "later" : "in " + std::to_string(seconds) + " s") +
            (has_token || options.is_token_withheld ? "" : ", or set HF_TOKEN for a higher limit"));
  }
  throw Error(ErrorCode::kUnreadable, place,
              said + (head.status == 403 && options.is_token_withheld ? ": " + set_token : ""));
}

}  // namespace stfs
