#include "core/source/hub.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/source/url.h"

#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <utility>

namespace stfs {
namespace hub {
namespace {

constexpr std::size_t kLongestAnswer = 64 << 20;   // of the API: 100,000 files take 30 MB
constexpr std::size_t kLongestRedirect = 1 << 20;  // of /resolve/, asked for one byte
constexpr std::uint64_t kLargestFile = 1ULL << 50;
constexpr int kDeepest = 64;  // nesting of the API's JSON
constexpr int kMostPages = 2000;
constexpr int kMostHops = 10;
constexpr std::size_t kCommitDigits = 40;  // SHA-1
constexpr std::size_t kSha256Digits = 64;

bool is_hex(std::string_view text, std::size_t length) {
  return text.size() == length && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
  });
  return result;
}

// Whether a path stays below the directory that it is relative to.
bool is_inner_path(std::string_view path) {
  if (path.empty() || path.size() > 4096) return false;
  if (std::ranges::any_of(path, [](unsigned char c) { return c < 0x20 || c == 0x7f; })) {
    return false;
  }
  while (true) {
    const std::size_t end = std::min(path.find('/'), path.size());
    const std::string_view part = path.substr(0, end);
    if (part.empty() || part == "." || part == "..") return false;
    if (end == path.size()) return true;
    path.remove_prefix(end + 1);
  }
}

// The Hub's rule for an organisation, and for the name of a model.
bool is_id_part(std::string_view part) {
  const auto may_end = [](char c) { return c != '-' && c != '.'; };
  return !part.empty() && part.size() <= 96 && may_end(part.front()) && may_end(part.back()) &&
         part.find("--") == part.npos && part.find("..") == part.npos &&
         std::ranges::all_of(part, [](unsigned char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  c == '-' || c == '_' || c == '.';
         });
}

bool is_id(std::string_view id) {
  const std::size_t slash = id.find('/');
  return slash != std::string_view::npos && is_id_part(id.substr(0, slash)) &&
         is_id_part(id.substr(slash + 1));
}

// --- names ---------------------------------------------------------------------------------------

struct HubName {
  std::string id;                 // "org/name"
  std::string revision = "main";  // a branch, a tag or a commit
  std::string path = {};          // in the repository; "" for its root

  bool has_commit() const { return is_hex(revision, kCommitDigits); }
  std::string text() const {
    return "hf://" + id + "@" + percent_encode(revision) + (path.empty() ? "" : "/" + path);
  }
};

// The length of the revision that `text` begins with, up to a slash or the end. The Hub's own refs
// have slashes.
std::size_t revision_length(std::string_view text) {
  for (const std::string_view ref : {"refs/pr/", "refs/convert/"}) {
    if (!text.starts_with(ref)) continue;
    const std::size_t end = std::min(text.find('/', ref.size()), text.size());
    if (end > ref.size()) return end;
  }
  return std::min(text.find('/'), text.size());
}

// Throws Error kUsage.
HubName parse_hub_name(const std::string& name) {
  const auto refuse = [&](std::string_view rule) { throw Error(ErrorCode::kUsage, name, rule); };
  std::string_view rest = name;
  if (!rest.starts_with("hf://")) refuse("not a name of the Hub: write hf://org/name");
  rest.remove_prefix(5);
  if (rest.find_first_of("?#") != std::string_view::npos) {
    refuse("'?' and '#' cannot stand in a name of the Hub");
  }
  for (const std::string_view kind : {"datasets/", "spaces/", "kernels/", "buckets/"}) {
    if (rest.starts_with(kind)) refuse("not a model: stfs mounts models of the Hub, hf://org/name");
  }
  if (rest.starts_with("models/")) rest.remove_prefix(7);

  HubName result;
  const std::size_t slash = rest.find('/');
  if (slash == std::string_view::npos || slash + 1 == rest.size()) {
    refuse("no organisation: write hf://org/name (gpt2 is hf://openai-community/gpt2)");
  }
  const std::size_t end = std::min(rest.find_first_of("@/", slash + 1), rest.size());
  result.id = rest.substr(0, end);
  if (!is_id(result.id)) {
    refuse("not a name of the Hub: write hf://org/name[@revision][/path]");
  }
  rest.remove_prefix(end);
  if (rest.starts_with('@')) {
    rest.remove_prefix(1);
    const std::size_t length = revision_length(rest);
    result.revision = percent_decode(rest.substr(0, length));
    rest.remove_prefix(length);
    if (!is_inner_path(result.revision)) {
      refuse("no revision after '@': a branch, a tag or a commit stands there");
    }
    if (is_hex(lower(result.revision), kCommitDigits)) result.revision = lower(result.revision);
  }
  if (rest.starts_with('/')) rest.remove_prefix(1);
  if (rest.ends_with('/')) rest.remove_suffix(1);
  result.path = rest;
  if (!rest.empty() && !is_inner_path(rest)) refuse("its path does not stay inside the model");
  return result;
}

// --- options -------------------------------------------------------------------------------------

// An environment variable; "" when it is not set.
std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_true(const std::string& value) {
  const std::string low = lower(value);
  return low == "1" || low == "on" || low == "yes" || low == "true";
}

// As the Hub's client takes paths of the environment: "~" is the home directory.
std::string expanded(const std::string& path) {
  if (path != "~" && !path.starts_with("~/")) return path;
  const std::string home = environment("HOME");
  return home.empty() ? path : home + path.substr(1);
}

// The directory of the Hub's client; "" when there is no home directory.
std::string hub_home() {
  if (const std::string home = environment("HF_HOME"); !home.empty()) return expanded(home);
  if (const std::string cache = environment("XDG_CACHE_HOME"); !cache.empty()) {
    return expanded(cache) + "/huggingface";
  }
  const std::string home = environment("HOME");
  return home.empty() ? "" : home + "/.cache/huggingface";
}

// A token without the white space around it. `place` is where it was found.
std::string clean_token(std::string_view text, const std::string& place) {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return "";
  text = text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
  if (!std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7f; })) {
    throw Error(ErrorCode::kUsage, place, "no token: it has a character that no token has");
  }
  return std::string(text);
}

std::string find_token() {
  if (is_true(environment("HF_HUB_DISABLE_IMPLICIT_TOKEN"))) return "";
  for (const char* const name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    const std::string value = environment(name);
    if (!value.empty()) return clean_token(value, name);
  }
  const std::string named = expanded(environment("HF_TOKEN_PATH"));
  const std::string home = hub_home();
  if (named.empty() && home.empty()) return "";
  const std::string path = named.empty() ? home + "/token" : named;
  std::string text;
  try {
    text = read_file(path, 64 << 10);
  } catch (const Error& error) {
    if (!named.empty() && error.code() != ErrorCode::kAbsent) throw;
    return "";
  }
  return clean_token(text, path);
}

struct HubOptions {
  std::string endpoint;  // "https://huggingface.co", without a slash at its end
  std::string origin;    // of it
  std::string token;     // "" for none, or when it may not be sent to this endpoint

  std::string resolve_url(const HubName& name) const {
    return endpoint + "/" + name.id + "/resolve/" + percent_encode(name.revision) + "/" +
           percent_encode(name.path, "/");
  }
  std::string api_url(const std::string& id) const { return endpoint + "/api/models/" + id; }

  HttpRequest request(std::string url) const {
    HttpRequest result{.url = std::move(url)};
    const std::optional<WebUrl> parsed = parse_web_url(result.url);
    if (!token.empty() && parsed && parsed->origin() == origin) {
      result.secrets.push_back("Authorization: Bearer " + token);
    }
    return result;
  }
};

HubOptions options_from_environment() {
  HubOptions result;
  result.endpoint = environment("HF_ENDPOINT");
  if (result.endpoint.empty()) result.endpoint = "https://huggingface.co";
  while (result.endpoint.ends_with('/')) result.endpoint.pop_back();
  const std::optional<WebUrl> url = parse_web_url(result.endpoint);
  if (!url || !url->query.empty() || result.endpoint.find('#') != std::string::npos) {
    throw Error(ErrorCode::kUsage, "HF_ENDPOINT", "not a URL, such as https://huggingface.co");
  }
  result.origin = url->origin();
  result.token = find_token();
  if (url->scheme != "https" && !url->is_loopback()) result.token.clear();
  return result;
}

// --- refusals ------------------------------------------------------------------------------------

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

// Throws the Error that an answer other than 2xx means.
[[noreturn]] void refuse(const HttpHead& head, const std::string& place, const std::string& id,
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

// --- the API -------------------------------------------------------------------------------------

using Json = nlohmann::json;

struct HubFile {
  std::optional<std::uint64_t> size;
  std::string sha256;  // of Git LFS and Xet
  std::string blob;    // git's SHA-1, of other files

  bool is_known() const { return size && (!sha256.empty() || !blob.empty()); }
};

struct Repository {
  std::string id;      // as the Hub writes it now
  std::string commit;  // 40 hex digits
  timespec mtime{};    // of the commit
  std::map<std::string, HubFile> files;
};

std::string text_of(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : "";
}

std::string digest_of(const Json& object, const char* key, std::size_t length) {
  std::string text = text_of(object, key);
  return is_hex(text, length) ? text : "";
}

std::optional<std::uint64_t> size_of(const Json& object) {
  const auto at = object.find("size");
  if (at == object.end() || !at->is_number_unsigned()) return std::nullopt;
  const auto size = at->get<std::uint64_t>();
  return size <= kLargestFile ? std::optional(size) : std::nullopt;
}

// An entry of "siblings" ({"rfilename", "size", "blobId", "lfs": {"size", "sha256"}}), or of a tree
// ({"path", "size", "oid", "lfs": {"size", "oid"}}).
HubFile file_of(const Json& entry) {
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

[[noreturn]] void not_the_hub(const std::string& place, const std::string& what) {
  throw Error(ErrorCode::kUnreadable, place, "the Hub's answer breaks its rule: " + what);
}

// Parses an answer, and hands over each object of the list at a depth of the JSON. These are not
// kept: an answer of 100,000 files would take ten times its size.
Json parse_api(const std::string& text, int depth, const std::string& place,
               const std::function<void(const Json&)>& entry) {
  std::string key;
  const auto filter = [&](int at, Json::parse_event_t event, Json& value) {
    if (at > kDeepest) not_the_hub(place, "its JSON is nested too deeply");
    const bool is_model = depth == 2;
    if (is_model && at == 1 && event == Json::parse_event_t::key) {
      key = value.get<std::string>();
      return key == "siblings" || key == "sha" || key == "id" || key == "lastModified";
    }
    if (at != depth || event != Json::parse_event_t::object_end) return true;
    if (!is_model || key == "siblings") entry(value);
    return false;
  };
  Json answer = Json::parse(text, filter, /*allow_exceptions=*/false);
  if (answer.is_discarded()) not_the_hub(place, "not JSON");
  return answer;
}

// RFC 3339 in UTC, as the API writes times: "2025-02-01T10:00:00.000Z". 0 for any other text.
timespec time_of(const std::string& text) {
  tm parts{};
  const char* const end = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (end == nullptr || !text.ends_with('Z')) return {};
  return {.tv_sec = ::timegm(&parts), .tv_nsec = 0};
}

// The target of `Link: <URL>; rel="next"`; "" when this page is the last.
std::string next_page(std::string_view link) {
  while (!link.empty()) {
    const std::size_t begin = link.find('<'), end = link.find('>');
    if (begin == std::string_view::npos || end == std::string_view::npos || end < begin) return "";
    const std::string_view target = link.substr(begin + 1, end - begin - 1);
    link.remove_prefix(end + 1);
    const std::string_view parameters = link.substr(0, link.find('<'));
    if (parameters.find("rel=\"next\"") != parameters.npos) {
      return std::string(target);
    }
  }
  return "";
}

// --- bytes ---------------------------------------------------------------------------------------

std::string unquoted(std::string_view etag) {
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') {
    etag = etag.substr(1, etag.size() - 2);
  }
  return lower(etag);
}

// Whether a redirect may lead from one URL to another: the rules of http.h, for a redirect that is
// followed by hand.
bool may_lead(const WebUrl& from, const WebUrl& to) {
  return (from.scheme != "https" || to.scheme == "https") &&
         (from.is_loopback() || !to.is_loopback());
}

class HubRemote final : public Remote {
 public:
  HubRemote(Http& http, const HubOptions& options, RemoteVersion version)
      : http_(http),
        options_(options),
        version_(std::move(version)),
        name_(parse_hub_name(version_.name)) {}

  HttpRequest request(ByteRange range) override {
    HttpRequest request = version_.sha256.empty() ? options_.request(options_.resolve_url(name_))
                                                  : options_.request(location());
    request.range = range;
    return request;
  }

  Verdict judge(const HttpHead& head, ByteRange range) const override {
    switch (head.status) {
      case 400:  // some stores say so of a signed URL that expired
      case 401:
      case 403:
      case 404:  // the commit is not gone with a URL: resolve() knows
      case 410: {
        const std::lock_guard lock(mutex_);
        if (head.was_redirected || head.url == location_) refused_ = location_;
        return {.kind = Verdict::Kind::kRenew, .text = {}};
      }
      default:
        break;
    }
    const std::string_view commit = head.header("x-repo-commit");
    if (!commit.empty() && commit != name_.revision) {
      return {.kind = Verdict::Kind::kChanged, .text = "the Hub answers with another commit"};
    }
    return stfs::judge(version_, head, range);
  }

  // Several requests may be refused with one URL: the one that came in its place is kept.
  bool renew() override {
    const std::lock_guard lock(mutex_);
    if (location_ == refused_) location_.clear();
    return true;
  }

 private:
  // The URL that has the bytes: one that is kept, or a new one. A thread asks, others wait for it.
  std::string location() {
    const std::lock_guard asking(asking_);
    {
      const std::lock_guard lock(mutex_);
      if (!location_.empty()) return location_;
    }
    std::string found = resolve();
    const std::lock_guard lock(mutex_);
    location_ = found;
    return found;
  }

  // Follows /resolve/ to the URL that has the bytes, and checks what the Hub tells of them.
  std::string resolve() const {
    std::string url = options_.resolve_url(name_);
    bool is_checked = false;
    for (int hop = 0; hop < kMostHops; ++hop) {
      HttpRequest request = options_.request(url);
      request.follow = false;
      request.range = ByteRange{.offset = 0, .length = 1};
      const HttpHead head = http_.get(request, kLongestRedirect).head;
      is_checked = check(head) || is_checked;
      if (head.status / 100 == 2) {
        if (!is_checked && unquoted(head.header("etag")) != version_.sha256) {
          not_the_hub(version_.name, "it does not tell the SHA-256 of the file");
        }
        return url;
      }
      if (head.status / 100 != 3) refuse(head, version_.name, name_.id, options_);
      const std::optional<WebUrl> from = parse_web_url(url);
      const std::optional<WebUrl> to =
          from ? stfs::resolve_url(*from, head.header("location")) : std::nullopt;
      if (!to || !may_lead(*from, *to)) {
        not_the_hub(version_.name, "it redirects to where no redirect may lead");
      }
      url = to->text();
      if (is_checked && to->origin() != from->origin()) return url;
    }
    not_the_hub(version_.name, "it redirects for ever");
  }

  // Whether an answer says of which file it is. Throws Error when that is another one.
  bool check(const HttpHead& head) const {
    const std::string_view etag = head.header("x-linked-etag");
    if (etag.empty() || head.status >= 400) return false;
    if (head.header("x-repo-commit") != name_.revision) {
      not_the_hub(version_.name, "it is of another commit");
    }
    if (unquoted(etag) != version_.sha256) {
      not_the_hub(version_.name, "its SHA-256 is not the one of this commit");
    }
    if (head.header("x-linked-size") != std::to_string(version_.size)) {
      not_the_hub(version_.name, "its size is not the one of this commit");
    }
    return true;
  }

  Http& http_;
  const HubOptions& options_;
  const RemoteVersion version_;
  const HubName name_;  // its revision is the commit
  std::mutex asking_;   // held while a request is under way; judge() and renew() do not take it
  mutable std::mutex mutex_;
  std::string location_;         // "" for none; holds a signature
  mutable std::string refused_;  // the one that was refused last
};

// --- the store -----------------------------------------------------------------------------------

class HubStore final : public Store {
 public:
  explicit HubStore(Http& http) : http_(http), options_(options_from_environment()) {}

  Found find(const std::string& name, const RemoteVersion*) override {
    const HubName asked = parse_hub_name(name);
    const Known known = repository(asked);
    const auto at = known->files.find(asked.path);
    if (at == known->files.end()) {
      if (is_directory(*known, asked.path)) {
        throw Error(ErrorCode::kUnreadable, name, "a directory of the Hub, not a file");
      }
      absent(name);
    }
    const HubFile& file = at->second;
    if (!file.is_known()) not_the_hub(name, "it tells no valid size and digest of the file");
    RemoteVersion version;
    version.name = pinned_name(*known, asked.path);
    version.size = *file.size;
    version.mtime = known->mtime;
    version.sha256 = file.sha256;
    version.token = "hf-" + (file.sha256.empty() ? "git-sha1-" + file.blob : file.sha256);
    return {.version = std::move(version)};
  }

  std::optional<std::vector<std::string>> list(const std::string& name) override {
    const HubName asked = parse_hub_name(name);
    const Known known = repository(asked);
    if (known->files.contains(asked.path)) return std::nullopt;
    if (!is_directory(*known, asked.path)) absent(name);
    const std::string prefix = asked.path.empty() ? "" : asked.path + "/";
    std::vector<std::string> names;
    for (auto at = known->files.lower_bound(prefix);
         at != known->files.end() && at->first.starts_with(prefix); ++at) {
      std::string rest = at->first.substr(prefix.size());
      if (rest.find('/') == std::string::npos) names.push_back(std::move(rest));
    }
    return names;
  }

  std::unique_ptr<Remote> remote(const RemoteVersion& version) override {
    return std::make_unique<HubRemote>(http_, options_, version);
  }

  std::string pinned(const std::string& name) override {
    const HubName asked = parse_hub_name(name);
    return pinned_name(*repository(asked), asked.path);
  }

 private:
  using Known =
      std::shared_ptr<const Repository>;  // shared by the threads that wait for one answer

  [[noreturn]] static void absent(const std::string& name) {
    throw Error(ErrorCode::kAbsent, name, "the model has no such file");
  }

  static bool is_directory(const Repository& repository, const std::string& path) {
    if (path.empty()) return true;
    const auto at = repository.files.lower_bound(path + "/");
    return at != repository.files.end() && at->first.starts_with(path + "/");
  }

  static std::string pinned_name(const Repository& repository, const std::string& path) {
    return HubName{.id = repository.id, .revision = repository.commit, .path = path}.text();
  }

  // What is known of a revision: from the first answer on, always the same. Threads that ask at the
  // same time send one request.
  Known repository(const HubName& name) {
    const std::string key = name.id + "@" + name.revision;
    std::promise<Known> promise;
    std::shared_future<Known> answer;
    bool is_first = false;
    {
      const std::lock_guard lock(mutex_);
      const auto [at, is_new] = repositories_.try_emplace(key);
      if (is_new) at->second = promise.get_future().share();
      answer = at->second;
      is_first = is_new;
    }
    if (!is_first) return answer.get();
    try {
      const auto known = std::make_shared<const Repository>(ask(name));
      {
        const std::lock_guard lock(mutex_);
        repositories_.try_emplace(known->id + "@" + known->commit, answer);
      }
      promise.set_value(known);
    } catch (...) {
      {
        const std::lock_guard lock(mutex_);
        repositories_.erase(key);
      }
      promise.set_exception(std::current_exception());
    }
    return answer.get();
  }

  HttpAnswer get(const std::string& url, const HubName& name) {
    HttpAnswer answer = http_.get(options_.request(url), kLongestAnswer);
    if (answer.head.status != 200) refuse(answer.head, name.text(), name.id, options_);
    return answer;
  }

  Repository ask(const HubName& name) {
    const std::string place = name.text();
    const HttpAnswer answer = get(
        options_.api_url(name.id) + "/revision/" + percent_encode(name.revision) + "?blobs=true",
        name);
    Repository result;
    bool is_whole = true;
    const Json model = parse_api(answer.body, 2, place, [&](const Json& entry) {
      const std::string path = text_of(entry, "rfilename");
      if (!is_inner_path(path)) return;
      is_whole &= result.files.try_emplace(path, file_of(entry)).first->second.is_known();
    });
    if (!model.is_object()) not_the_hub(place, "not a model");
    result.commit = digest_of(model, "sha", kCommitDigits);
    if (result.commit.empty()) not_the_hub(place, "it tells no commit");
    if (name.has_commit() && result.commit != name.revision) {
      not_the_hub(place, "it is of another commit");
    }
    result.id = text_of(model, "id");
    if (!is_id(result.id)) result.id = name.id;
    result.mtime = time_of(text_of(model, "lastModified"));
    if (!is_whole || result.files.empty()) read_tree(name, result);
    return result;
  }

  // The files with their sizes, a page at a time: for an answer that lacks them.
  void read_tree(const HubName& name, Repository& result) {
    std::string url = options_.api_url(result.id) + "/tree/" + result.commit + "?recursive=true";
    for (int page = 0; page < kMostPages; ++page) {
      const HttpAnswer answer = get(url, name);
      const std::size_t before = result.files.size();
      bool is_news = page == 0;
      const Json tree = parse_api(answer.body, 1, name.text(), [&](const Json& entry) {
        const std::string path = text_of(entry, "path");
        if (text_of(entry, "type") == "directory") is_news = true;
        if (text_of(entry, "type") != "file" || !is_inner_path(path)) return;
        HubFile& file = result.files[path];
        if (file.is_known()) return;
        file = file_of(entry);
        is_news |= file.is_known();
      });
      if (!tree.is_array()) not_the_hub(name.text(), "not a tree");
      const std::string next = next_page(answer.head.header("link"));
      if (next.empty()) return;
      const std::optional<WebUrl> from = parse_web_url(answer.head.url);
      const std::optional<WebUrl> to = from ? resolve_url(*from, next) : std::nullopt;
      if (!to || to->origin() != from->origin() ||
          (!is_news && result.files.size() == before && to->text() == url)) {
        not_the_hub(name.text(), "the next page is none of its own");
      }
      url = to->text();
    }
    not_the_hub(name.text(), "its pages have no end");
  }

  Http& http_;
  const HubOptions options_;
  std::mutex mutex_;
  std::map<std::string, std::shared_future<Known>> repositories_;  // by ID@REVISION
};

}  // namespace
}  // namespace hub

std::unique_ptr<Store> make_hub_store(Http& http) { return std::make_unique<hub::HubStore>(http); }

// --- the Hub's own cache -------------------------------------------------------------------------

std::string hub_local_copy(const std::string& name) try {
  using namespace hub;
  const HubName asked = parse_hub_name(name);
  if (asked.path.empty()) return "";
  std::string cache = expanded(environment("HF_HUB_CACHE"));
  if (cache.empty()) cache = expanded(environment("HUGGINGFACE_HUB_CACHE"));
  if (cache.empty()) {
    cache = hub_home();
    if (cache.empty()) return "";
    cache += "/hub";
  }
  const std::size_t slash = asked.id.find('/');
  const std::string model =
      cache + "/models--" + asked.id.substr(0, slash) + "--" + asked.id.substr(slash + 1);
  std::string commit = asked.revision;
  if (!asked.has_commit()) {
    commit = clean_token(read_file(model + "/refs/" + asked.revision, 4096), model);
    if (!is_hex(commit, kCommitDigits)) return "";
  }
  const std::string path = model + "/snapshots/" + commit + "/" + asked.path;
  struct stat file {};
  return ::stat(path.c_str(), &file) == 0 && S_ISREG(file.st_mode) ? path : "";
} catch (const Error&) {
  return "";
}

}  // namespace stfs
