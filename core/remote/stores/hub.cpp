#include "core/remote/stores/hub.h"

#include "core/base/error.h"
#include "core/base/sha256.h"
#include "core/base/text.h"
#include "core/remote/http/url.h"
#include "core/remote/stores/hub_api.h"

#include <algorithm>
#include <exception>
#include <future>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace stfs {
namespace {

// The maximum bytes of a response of the API. A response about 100,000 files has 30 MB.
constexpr std::size_t kLongestAnswer = 64 << 20;
// The maximum bytes of a response of /resolve/ to a request for one byte.
constexpr std::size_t kLongestRedirect = 1 << 20;
constexpr std::size_t kMaxTreePages = 2000;
constexpr const char* kOtherDigest = "its SHA-256 differs from the one in this commit";

std::string_view unquoted(std::string_view etag) {
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') {
    etag = etag.substr(1, etag.size() - 2);
  }
  return etag;
}

// A URL of the bytes of a file, and how it was found.
struct HubLocation {
  std::string url = {};         // may contain a signature; "": not known
  bool may_have_token = false;  // requests may carry the user's token
  std::optional<AddressKind> redirected_by = {};
  std::string etag = {};  // the ETag of all responses; "" if X-Linked-Etag gave the digest
};

class HubRemote final : public Remote {
 public:
  HubRemote(Http& http, const HubOptions& options, RemoteVersion version)
      : http_(http),
        options_(options),
        version_(std::move(version)),
        name_(parse_hub_name(version_.name)) {}

  HttpRequest request(ByteRange range) override {
    HttpRequest request = request_to(version_.sha256.empty() ? first_location() : location());
    request.range = range;
    return request;
  }

  ResponseVerdict judge(const HttpHead& head, ByteRange range) const override {
    switch (head.status) {
      case 400:  // some stores return 400 for an expired signed URL
      case 401:
      case 403:
      case 404:  // the commit may still exist if a signed URL does not; resolve() finds out
      case 410: {
        const std::lock_guard lock(mutex_);
        if (head.was_redirected || head.url == location_.url) refused_ = location_.url;
        return {.kind = ResponseVerdict::Kind::kRenew, .text = refusal_of(head)};
      }
      default: break;
    }
    const std::string_view commit = head.header("x-repo-commit");
    if (!commit.empty() && commit != name_.revision) {
      return {.kind = ResponseVerdict::Kind::kChanged, .text = "the Hub returned another commit"};
    }
    if (head.status / 100 == 2) {
      const std::lock_guard lock(mutex_);
      if (!location_.etag.empty() && head.header("etag") != location_.etag) {
        return {.kind = ResponseVerdict::Kind::kChanged, .text = "it has changed on its server"};
      }
    }
    return stfs::judge(version_, head, range);
  }

  // Several requests may be refused with the same URL. If another URL has replaced it since, that
  // URL is kept.
  bool renew() override {
    const std::lock_guard lock(mutex_);
    if (location_.url == refused_) location_ = {};
    return true;
  }

 private:
  // Returns the reason for a refusing response. Only responses of the Hub itself are explained,
  // because the other host has no information about models.
  std::string refusal_of(const HttpHead& head) const {
    if (!is_of_the_hub(head.url)) {
      return "the server of its signed URL answered " + std::to_string(head.status);
    }
    try {
      refuse_hub_answer(head, version_.name, name_.id, options_);
    } catch (const Error& error) {
      return error.message();
    }
  }

  HubLocation first_location() const {
    return {.url = options_.resolve_url(name_), .may_have_token = true};
  }

  HttpRequest request_to(const HubLocation& at) const {
    HttpRequest request = options_.request(at.url);
    if (!at.may_have_token) request.secrets.clear();
    request.redirected_by = at.redirected_by;
    return request;
  }

  // Returns the kept location of the bytes, or else asks the Hub. One thread sends the request, and
  // the others wait for its result.
  HubLocation location() {
    const std::lock_guard asking(asking_);
    {
      const std::lock_guard lock(mutex_);
      if (!location_.url.empty()) return location_;
    }
    HubLocation found = resolve();
    const std::lock_guard lock(mutex_);
    location_ = found;
    return found;
  }

  // Requests the URL of the bytes from /resolve/, and checks the Hub's headers about the file.
  HubLocation resolve() const {
    HubLocation at = first_location();
    HttpRequest request = request_to(at);
    request.range = ByteRange{.offset = 0, .length = 1};
    std::vector<HttpHead> heads;
    request.returns_redirect = [&](const HttpHead& head) {
      if (!head.was_redirected) heads.clear();  // remove the responses of an earlier try
      heads.push_back(head);
      return !head.header("x-linked-etag").empty() && !is_of_the_hub(head.target);
    };
    HttpHead answer = http_.get(request, kLongestRedirect).head;
    if (!answer.was_redirected) heads.clear();
    heads.push_back(std::move(answer));
    bool is_checked = false;
    for (const HttpHead& head : heads) {
      is_checked = check(head) || is_checked;
      if (head.target.empty()) continue;
      at = {.url = head.target,
            .may_have_token = at.may_have_token && is_of_the_hub(head.target),
            .redirected_by = head.place};
    }
    const HttpHead& last = heads.back();
    if (last.status / 100 != 2 && last.target.empty()) {
      refuse_hub_answer(last, version_.name, name_.id, options_);
    }
    // A mirror may have other ETags, such as SHA-1. If the ETag is a SHA-256, it must be the digest
    // that the API has returned for the commit's file.
    if (!is_checked) {
      at.etag = last.header("etag");
      const std::string digest = lower_case(unquoted(at.etag));
      if (is_digest(digest, kSha256Digits) && digest != version_.sha256) {
        throw_not_the_hub(version_.name, kOtherDigest);
      }
    }
    return at;
  }

  bool is_of_the_hub(const std::string& url) const {
    const std::optional<WebUrl> parsed = parse_web_url(url);
    return parsed && parsed->origin() == options_.origin;
  }

  // Returns true if a response says which file it is about. Throws Error if it is another file.
  bool check(const HttpHead& head) const {
    const std::string_view etag = head.header("x-linked-etag");
    if (etag.empty() || head.status >= 400) return false;
    const std::string_view commit = head.header("x-repo-commit");
    if (!commit.empty() && commit != name_.revision) {  // a mirror may leave it out
      throw_not_the_hub(version_.name, "it is for another commit");
    }
    if (unquoted(etag) != version_.sha256) {
      throw_not_the_hub(version_.name, kOtherDigest);
    }
    if (head.header("x-linked-size") != std::to_string(version_.size)) {
      throw_not_the_hub(version_.name, "its size differs from the one in this commit");
    }
    return true;
  }

  Http& http_;
  const HubOptions& options_;
  const RemoteVersion version_;
  const HubName name_;  // its revision is the commit
  std::mutex asking_;   // held during a request; judge() and renew() do not take it
  mutable std::mutex mutex_;
  HubLocation location_;         // the kept location
  mutable std::string refused_;  // the URL that was refused last
};

class HubStore final : public Store {
 public:
  explicit HubStore(Http& http) : http_(http), options_(hub_options()) {}

  Found find(const std::string& name, const RemoteVersion*, Patience) override {
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
    if (!file.is_known()) throw_not_the_hub(name, "it gives no valid size and digest of the file");
    RemoteVersion version;
    version.name = pinned_name(*known, asked.path);
    version.size = *file.size;
    version.mtime = known->mtime;
    version.sha256 = file.sha256;
    version.token = hub_token(file.sha256.empty() ? file.blob : file.sha256);
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

  std::vector<std::string> entries(const std::string& name) override {
    HubName asked = parse_hub_name(name);
    while (asked.path.ends_with('/')) asked.path.pop_back();
    const Known known = repository(asked);
    if (!is_directory(*known, asked.path)) absent(name);
    const std::string prefix = asked.path.empty() ? "" : asked.path + "/";
    std::vector<std::string> names;
    for (auto at = known->files.lower_bound(prefix);
         at != known->files.end() && at->first.starts_with(prefix); ++at) {
      std::string entry = at->first.substr(prefix.size());
      entry.resize(std::min(entry.size(), entry.find('/')) +
                   (entry.find('/') != std::string::npos));
      if (names.empty() || names.back() != entry) names.push_back(std::move(entry));
    }
    std::ranges::sort(names);
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return names;
  }

  void forget() override {
    const std::lock_guard lock(mutex_);
    repositories_.clear();  // threads that wait for a response share its state, and still get it
  }

  std::unique_ptr<Remote> remote(const RemoteVersion& version) override {
    return std::make_unique<HubRemote>(http_, options_, version);
  }

  std::string pinned(const std::string& name) override {
    const HubName asked = parse_hub_name(name);
    return pinned_name(*repository(asked), asked.path);
  }

 private:
  using Known = std::shared_ptr<const HubModel>;  // shared by the threads that wait for a response

  [[noreturn]] static void absent(const std::string& name) {
    throw Error(ErrorCode::kAbsent, name, "the model has no such file");
  }

  static bool is_directory(const HubModel& repository, const std::string& path) {
    if (path.empty()) return true;
    const auto at = repository.files.lower_bound(path + "/");
    return at != repository.files.end() && at->first.starts_with(path + "/");
  }

  static std::string pinned_name(const HubModel& repository, const std::string& path) {
    return HubName{.id = repository.id, .revision = repository.commit, .path = path}.text();
  }

  // Returns the facts about a revision. They stay the same after the first response, until
  // forget(). Threads that call it at the same time send only one request.
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
      const auto known = std::make_shared<const HubModel>(ask(name));
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

  HttpResponse get(const std::string& url, const HubName& name) {
    HttpResponse answer = http_.get(options_.request(url), kLongestAnswer);
    if (answer.head.status != 200) {
      refuse_hub_answer(answer.head, name.text(), name.id, options_, answer.body);
    }
    return answer;
  }

  HubModel ask(const HubName& name) {
    const HttpResponse answer = get(
        options_.api_url(name.id) + "/revision/" + percent_encode(name.revision) + "?blobs=true",
        name);
    HubModel model = parse_hub_model(answer.body, name);
    const bool is_whole =
        std::ranges::all_of(model.files, [](const auto& file) { return file.second.is_known(); });
    if (!is_whole || model.files.empty()) read_tree(name, model);
    return model;
  }

  // Reads the files and their sizes page by page, for a model whose response lacks them.
  void read_tree(const HubName& name, HubModel& model) {
    std::string url = options_.api_url(model.id) + "/tree/" + model.commit + "?recursive=true";
    std::set<std::string> seen;
    while (seen.insert(url).second && seen.size() <= kMaxTreePages) {
      const HttpResponse answer = get(url, name);
      add_hub_tree(answer.body, name.text(), model);
      const std::string next = next_hub_page(answer.head.header("link"));
      if (next.empty()) return;
      const std::optional<WebUrl> from = parse_web_url(answer.head.url);
      const std::optional<WebUrl> to = from ? resolve_url(*from, next) : std::nullopt;
      if (!to || to->origin() != from->origin()) {
        throw_not_the_hub(name.text(), "the next page is on another host");
      }
      url = to->text();
    }
    throw_not_the_hub(name.text(), "its list of files does not end");
  }

  Http& http_;
  const HubOptions options_;
  std::mutex mutex_;
  std::map<std::string, std::shared_future<Known>> repositories_;  // by ID@REVISION
};

}  // namespace

std::unique_ptr<Store> make_hub_store(Http& http) { return std::make_unique<HubStore>(http); }

}  // namespace stfs
