#include "core/remote/stores/hub_api.h"

#include "core/base/error.h"
#include "core/base/text.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <functional>
#include <initializer_list>

namespace stfs {
namespace {

constexpr std::uint64_t kLargestFile = 1ULL << 50;
// Of an answer. A model of 100,000 files has a million values.
constexpr std::size_t kDeepest = 64;
constexpr std::size_t kMostValues = 4'000'000;
constexpr std::size_t kMostFiles = 250'000;  // of a model

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

std::string digest_or_none(const std::string& text, std::size_t length) {
  return is_digest(text, length) ? text : "";
}

// An entry of "siblings" ({"rfilename", "size", "blobId", "lfs": {"size", "sha256"}}), or of a tree
// ({"type", "path", "size", "oid", "lfs": {"size", "oid"}}).
struct HubEntry {
  std::map<std::string, std::string> texts = {};  // by key; those of "lfs" by "lfs.KEY"
  std::optional<std::uint64_t> size = {}, lfs_size = {};
  bool has_lfs = false;

  std::string text(const char* key) const {
    const auto at = texts.find(key);
    return at == texts.end() ? "" : at->second;
  }
  HubFile file() const {
    HubFile file;
    file.size = size;
    if (!has_lfs) {
      file.blob = digest_or_none(text("blobId"), kCommitDigits);
      if (file.blob.empty()) file.blob = digest_or_none(text("oid"), kCommitDigits);
      return file;
    }
    file.sha256 = digest_or_none(text("lfs.sha256"), kSha256Digits);
    if (file.sha256.empty()) file.sha256 = digest_or_none(text("lfs.oid"), kSha256Digits);
    if (!file.size) file.size = lfs_size;
    if (file.size != lfs_size) file.size.reset();
    return file;
  }
};

// Receives the SAX events of an answer: hands over its entries one by one, and keeps the texts at
// its top. So an answer takes no memory but that of the files in it.
class HubReader {
 public:
  // `list` is the key of the list of entries in an object at the top; "" when the top is the list.
  HubReader(std::string list, std::function<void(const HubEntry&)> take)
      : list_(std::move(list)), take_(std::move(take)) {}

  std::map<std::string, std::string> texts;  // of the object at the top
  std::string error;

  bool null() { return value(); }
  bool boolean(bool) { return value(); }
  bool number_integer(std::int64_t) { return value(); }
  bool number_float(double, const std::string&) { return value(); }
  bool number_unsigned(std::uint64_t number) {
    const auto size = number <= kLargestFile ? std::optional(number) : std::nullopt;
    if (in_entry() && key_ == "size") entry_.size = size;
    if (in_lfs() && key_ == "size") entry_.lfs_size = size;
    return value();
  }
  bool string(std::string& text) {
    if (text.size() > kLongestText) return value();
    if (depth_ == 1 && !list_.empty() && is_one_of(key_, {"sha", "id", "lastModified"})) {
      texts[key_] = std::move(text);
    } else if (in_entry() && is_one_of(key_, {"rfilename", "path", "type", "blobId", "oid"})) {
      entry_.texts[key_] = std::move(text);
    } else if (in_lfs() && is_one_of(key_, {"sha256", "oid"})) {
      entry_.texts["lfs." + key_] = std::move(text);
    }
    return value();
  }
  bool binary(nlohmann::json::binary_t&) { return value(); }
  bool key(std::string& text) {
    key_ = text.size() > kLongestText ? std::string() : std::move(text);
    if (depth_ == 1) is_list_ = key_ == list_;
    return true;
  }
  bool start_object(std::size_t) {
    if (depth_ == 0 && list_.empty()) return refuse("not a tree");
    if (in_entry()) is_lfs_ = key_ == "lfs";
    if (in_entry() && is_lfs_) entry_.has_lfs = true;
    if (depth_ + 1 == entry_depth()) entry_ = {};
    return enter();
  }
  bool start_array(std::size_t) {
    if (depth_ == 0 && !list_.empty()) return refuse("not a model");
    if (in_entry()) is_lfs_ = false;
    return enter();
  }
  bool end_object() {
    if (in_entry()) take_(entry_);
    --depth_;
    return true;
  }
  bool end_array() {
    --depth_;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) {
    return refuse("not JSON");
  }

 private:
  static constexpr std::size_t kLongestText = 4096;

  static bool is_one_of(const std::string& key, std::initializer_list<const char*> keys) {
    return std::ranges::find(keys, key) != keys.end();
  }
  std::size_t entry_depth() const { return list_.empty() ? 2 : 3; }
  bool in_entry() const { return depth_ == entry_depth() && (list_.empty() || is_list_); }
  bool in_lfs() const {
    return depth_ == entry_depth() + 1 && (list_.empty() || is_list_) && is_lfs_;
  }
  bool value() {
    if (depth_ == 0) return refuse(list_.empty() ? "not a tree" : "not a model");
    return ++values_ <= kMostValues || refuse("its JSON has too many values");
  }
  bool enter() {
    if (++depth_ > kDeepest) return refuse("its JSON is nested too deeply");
    return ++values_ <= kMostValues || refuse("its JSON has too many values");
  }
  bool refuse(const char* rule) {
    error = rule;
    return false;
  }

  const std::string list_;
  const std::function<void(const HubEntry&)> take_;
  std::size_t depth_ = 0, values_ = 0;
  std::string key_;
  bool is_list_ = false, is_lfs_ = false;
  HubEntry entry_;
};

void read_answer(const std::string& json, const std::string& place, HubReader& reader) {
  const bool is_whole = nlohmann::json::sax_parse(json, &reader);
  if (!is_whole) throw_not_the_hub(place, reader.error);
}

void add_file(HubModel& model, const std::string& path, const HubEntry& entry,
              const std::string& place) {
  if (!is_inner_path(path)) return;
  HubFile& file = model.files[path];
  if (!file.is_known()) file = entry.file();
  if (model.files.size() > kMostFiles) throw_not_the_hub(place, "it names too many files");
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
  HubReader reader("siblings", [&](const HubEntry& entry) {
    add_file(model, entry.text("rfilename"), entry, place);
  });
  read_answer(json, place, reader);
  model.commit = digest_or_none(reader.texts["sha"], kCommitDigits);
  if (model.commit.empty()) throw_not_the_hub(place, "it tells no commit");
  if (asked.has_commit() && model.commit != asked.revision) {
    throw_not_the_hub(place, "it is of another commit");
  }
  model.id = reader.texts["id"];
  if (!is_hub_id(model.id)) model.id = asked.id;
  model.mtime = time_of(reader.texts["lastModified"]);
  return model;
}

void add_hub_tree(const std::string& json, const std::string& place, HubModel& model) {
  HubReader reader("", [&](const HubEntry& entry) {
    if (entry.text("type") == "file") add_file(model, entry.text("path"), entry, place);
  });
  read_answer(json, place, reader);
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
  throw Error(ErrorCode::kUnreadable, place,
              "the Hub answers " + std::to_string(head.status) +
                  (message.empty() ? "" : ": " + in_quotes(message)));
}

}  // namespace stfs
