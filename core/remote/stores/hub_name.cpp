#include "core/remote/stores/hub_name.h"

#include "core/base/error.h"
#include "core/base/home.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/remote/http/http_rules.h"
#include "core/remote/http/url.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

namespace stfs {
namespace {

// The Hub's rule for the name of an organisation and of a model.
bool is_id_part(std::string_view part) {
  const auto may_end = [](char c) { return c != '-' && c != '.'; };
  return !part.empty() && part.size() <= 96 && may_end(part.front()) && may_end(part.back()) &&
         part.find("--") == std::string_view::npos && part.find("..") == std::string_view::npos &&
         std::ranges::all_of(part, [](unsigned char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  c == '-' || c == '_' || c == '.';
         });
}

// Returns the length of the revision at the start of `text`. A revision ends at a slash or at the
// end, but the Hub's own refs contain slashes.
std::size_t revision_length(std::string_view text) {
  for (const std::string_view ref : {"refs/pr/", "refs/convert/"}) {
    if (!text.starts_with(ref)) continue;
    const std::size_t end = std::min(text.find('/', ref.size()), text.size());
    if (end > ref.size()) return end;
  }
  return std::min(text.find('/'), text.size());
}

// Returns the directory of the Hub's client, or "" if HOME is not set.
std::string hub_home() {
  if (const std::string home = environment("HF_HOME"); !home.empty()) return with_home(home);
  if (const std::string cache = environment("XDG_CACHE_HOME"); !cache.empty()) {
    return with_home(cache) + "/huggingface";
  }
  const std::string home = environment("HOME");
  return home.empty() ? "" : home + "/.cache/huggingface";
}

// Returns a token without leading and trailing blanks. `place` is the place of the token, for
// messages.
std::string clean_token(std::string_view text, const std::string& place) {
  std::string token = without_blanks(text);
  if (!std::ranges::all_of(token, [](char c) { return c > ' ' && c < 0x7f; })) {
    throw Error(ErrorCode::kUsage, place,
                "not a valid token: it contains a blank or another character that no token has");
  }
  return token;
}

std::string find_token() {
  if (is_set_for_hub("HF_HUB_DISABLE_IMPLICIT_TOKEN")) return "";
  for (const char* const name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    const std::string value = environment(name);
    if (!value.empty()) return clean_token(value, name);
  }
  const std::string named = with_home(environment("HF_TOKEN_PATH"));
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

}  // namespace

bool is_set_for_hub(const char* variable) {
  const std::string text = lower_case(environment(variable));
  return text == "1" || text == "on" || text == "yes" || text == "true";
}

const char* hub_offline_variable() {
  const char* const name =
      environment("HF_HUB_OFFLINE").empty() ? "TRANSFORMERS_OFFLINE" : "HF_HUB_OFFLINE";
  return is_set_for_hub(name) ? name : "";
}

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

bool is_hub_id(std::string_view id) {
  const std::size_t slash = id.find('/');
  return slash != std::string_view::npos && is_id_part(id.substr(0, slash)) &&
         is_id_part(id.substr(slash + 1));
}

std::string HubName::text() const {
  return "hf://" + id + "@" + percent_encode(revision) + (path.empty() ? "" : "/" + path);
}

HubName parse_hub_name(const std::string& name) {
  const auto refuse = [&](std::string_view rule) { throw Error(ErrorCode::kUsage, name, rule); };
  std::string_view rest = name;
  if (!rest.starts_with("hf://")) refuse("not a name of the Hub: write hf://org/name");
  rest.remove_prefix(5);
  if (rest.find_first_of("?#") != std::string_view::npos) {
    refuse("a name of the Hub cannot contain '?' or '#'");
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
  if (!is_hub_id(result.id)) {
    refuse("not a name of the Hub: write hf://org/name[@revision][/path]");
  }
  rest.remove_prefix(end);
  if (rest.starts_with('@')) {
    rest.remove_prefix(1);
    const std::size_t length = revision_length(rest);
    result.revision = percent_decode(rest.substr(0, length));
    rest.remove_prefix(length);
    if (!is_inner_path(result.revision)) {
      refuse("no revision after '@': write a branch, a tag or a commit");
    }
    const std::string low = lower_case(result.revision);
    if (is_digest(low, kCommitDigits)) result.revision = low;
  }
  if (rest.starts_with('/')) rest.remove_prefix(1);
  if (rest.ends_with('/')) rest.remove_suffix(1);
  result.path = rest;
  if (!rest.empty() && !is_inner_path(rest)) refuse("its path does not stay inside the model");
  return result;
}

std::string HubOptions::resolve_url(const HubName& name) const {
  return endpoint + "/" + name.id + "/resolve/" + percent_encode(name.revision) + "/" +
         percent_encode(name.path, "/");
}

std::string HubOptions::api_url(const std::string& id) const {
  return endpoint + "/api/models/" + id;
}

HttpRequest HubOptions::request(std::string url) const {
  HttpRequest result{.url = std::move(url)};
  const std::optional<WebUrl> parsed = parse_web_url(result.url);
  if (!token.empty() && parsed && parsed->origin() == origin) {
    result.secrets.push_back("Authorization: Bearer " + token);
  }
  return result;
}

HubOptions hub_options() {
  HubOptions result;
  result.endpoint = environment("HF_ENDPOINT");
  if (result.endpoint.empty()) result.endpoint = "https://huggingface.co";
  const std::optional<WebUrl> url = parse_web_url(result.endpoint);
  if (!url || !url->query.empty() || result.endpoint.find('#') != std::string::npos) {
    throw Error(ErrorCode::kUsage, "HF_ENDPOINT", "not a URL, such as https://huggingface.co");
  }
  result.endpoint = url->text();
  while (result.endpoint.ends_with('/')) result.endpoint.pop_back();
  result.origin = url->origin();
  result.token = find_token();
  if (url->scheme != "https" && !url->is_loopback() && !result.token.empty()) {
    result.token.clear();
    result.is_token_withheld = true;
  }
  return result;
}

std::string hub_name_of(const WebUrl& url) try {
  const std::string set = environment("HF_ENDPOINT");
  const auto endpoint = parse_web_url(set.empty() ? "https://huggingface.co" : set);
  std::string path = url.path;
  const bool is_set = endpoint && endpoint->origin() == url.origin();
  const bool is_hub = is_set || url.host == "huggingface.co" || url.host == "hf.co" ||
                      url.host == "www.huggingface.co";
  if (is_set && endpoint->path.size() > 1 && path.starts_with(endpoint->path)) {
    path.erase(0, endpoint->path.size() - (endpoint->path.ends_with('/') ? 1 : 0));
  }
  // /org/name[/(blob|tree|resolve|raw)/revision[/path]]
  const auto take = [&] {
    path.erase(0, std::min(path.find_first_not_of('/'), path.size()));
    std::string part = path.substr(0, path.find('/'));
    path.erase(0, part.size());
    return part;
  };
  HubName name;
  name.id = take();
  name.id += "/" + take();
  const std::string kind = take();
  const bool has_revision = kind == "blob" || kind == "tree" || kind == "resolve" || kind == "raw";
  if (has_revision) name.revision = percent_decode(take());
  while (path.starts_with('/')) path.erase(0, 1);
  const bool is_page = has_revision ? !name.revision.empty() : is_hub && kind.empty();
  if (!is_page || !is_hub_id(name.id)) return "";
  std::string text = "hf://" + name.id;
  if (has_revision && name.revision != "main") text += "@" + percent_encode(name.revision, "/");
  if (has_revision && !path.empty()) text += "/" + percent_decode(path);
  static_cast<void>(parse_hub_name(text));
  return text + (is_hub ? "" : " with HF_ENDPOINT=" + url.scheme + "://" + url.authority());
} catch (const Error&) {
  return "";
}

std::string hub_token(const std::string& digest) {
  return (is_digest(digest, kSha256Digits) ? "hf-" : "hf-git-sha1-") + digest;
}

std::string hub_cache_directory() {
  for (const char* const name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const std::string value = environment(name); !value.empty()) return with_home(value);
  }
  const std::string home = hub_home();
  return home.empty() ? "" : home + "/hub";
}

}  // namespace stfs
