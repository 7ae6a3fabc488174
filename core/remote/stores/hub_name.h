// Names of the Hub, and the environment's settings for it: the endpoint, the token and the cache.
//
// Thread safety: the functions may be called from any thread; the types are plain values.
#pragma once

#include "core/base/sha256.h"
#include "core/remote/http/http.h"
#include "core/remote/http/url.h"

#include <cstddef>
#include <string>
#include <string_view>

namespace stfs {

constexpr std::size_t kCommitDigits = 40;  // hex digits of git's SHA-1

// Returns true if the environment variable is set to 1, on, yes or true, like the Hub's client.
bool is_set_for_hub(const char* variable);
// Returns the name of the variable that makes the Hub's client work offline: HF_HUB_OFFLINE or, if
// that is not set, TRANSFORMERS_OFFLINE. Returns "" if the client is not offline.
const char* hub_offline_variable();
// Returns true if a relative path stays inside its directory and has no control characters.
bool is_inner_path(std::string_view path);
// Returns true if a text is "org/name" by the Hub's rules.
bool is_hub_id(std::string_view id);

// The parts of hf://[models/]org/name[@revision][/path].
struct HubName {
  std::string id;                 // "org/name"
  std::string revision = "main";  // a branch, a tag or a commit; decoded
  std::string path = {};          // path in the repository; "" for its root

  bool has_commit() const { return is_digest(revision, kCommitDigits); }
  std::string text() const;
};
HubName parse_hub_name(const std::string& name);  // throws Error kUsage

// The environment's settings: HF_ENDPOINT, HF_TOKEN and the files that contain a token.
struct HubOptions {
  std::string endpoint;  // "https://huggingface.co", without a trailing slash
  std::string origin;    // the origin of `endpoint`
  std::string token;     // "" if none was found, or if it must not be sent to this endpoint
  bool is_token_withheld = false;  // there is a token, but the endpoint is http

  std::string resolve_url(const HubName& name) const;
  std::string api_url(const std::string& id) const;  // /api/models/ID
  // Returns a request that carries the token if the URL has the endpoint's origin.
  HttpRequest request(std::string url) const;
};
// Throws Error kUsage, or kUnreadable for a file that HF_TOKEN_PATH names and that cannot be read.
HubOptions hub_options();

// Returns "hf://org/name[@revision][/path]" for the URL of a page or file of the Hub or of a
// mirror, and "" for any other URL. Sends no request. For a mirror that HF_ENDPOINT does not name,
// the text continues with " with HF_ENDPOINT=ENDPOINT".
std::string hub_name_of(const WebUrl& url);

// Returns the token of a version. `digest` is SHA-256, or git's SHA-1 of a blob.
std::string hub_token(const std::string& digest);

// Returns the directory of the Hub's own cache, or "" if HOME is not set.
std::string hub_cache_directory();

}  // namespace stfs
