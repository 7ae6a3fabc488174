// Names of the Hub, and what the environment says about it: the endpoint, the token, the cache.
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

constexpr std::size_t kCommitDigits = 40;  // of git's SHA-1

// Whether a variable says yes, as the Hub's client reads it.
bool is_set_for_hub(const char* variable);
// Returns the name of the variable that sets the Hub's client offline: HF_HUB_OFFLINE, or
// TRANSFORMERS_OFFLINE where that is not set; "" if it is not offline.
const char* hub_offline_variable();
// Whether a path stays below the directory that it is relative to, and has no control characters.
bool is_inner_path(std::string_view path);
// Whether a text is "org/name" after the Hub's rules.
bool is_hub_id(std::string_view id);

// hf://[models/]org/name[@revision][/path] in its parts.
struct HubName {
  std::string id;                 // "org/name"
  std::string revision = "main";  // a branch, a tag or a commit; decoded
  std::string path = {};          // in the repository; "" for its root

  bool has_commit() const { return is_digest(revision, kCommitDigits); }
  std::string text() const;
};
HubName parse_hub_name(const std::string& name);  // throws Error kUsage

// The environment's settings: HF_ENDPOINT, HF_TOKEN and the files that hold a token.
struct HubOptions {
  std::string endpoint;            // "https://huggingface.co", without a slash at its end
  std::string origin;              // of it
  std::string token;               // "" for none, or when it may not be sent to this endpoint
  bool is_token_withheld = false;  // there is one, and the endpoint is http

  std::string resolve_url(const HubName& name) const;
  std::string api_url(const std::string& id) const;  // /api/models/ID
  // A request that carries the token if its URL is of the endpoint.
  HttpRequest request(std::string url) const;
};
// Throws Error kUsage; kUnreadable for a file that HF_TOKEN_PATH names.
HubOptions hub_options();

// "hf://org/name[@revision][/path]" for the URL of a page or a file of the Hub, or of a mirror of
// it; "" for any other URL. What it names is not asked for.
std::string hub_name_of(const WebUrl& url);

// The directory of the Hub's own cache; "" when there is no home directory.
std::string hub_cache_directory();

}  // namespace stfs
