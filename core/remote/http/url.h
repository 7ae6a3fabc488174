// Names of sources: paths in the local file system, and URLs.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace stfs {

// Returns true if a name is a URL ("https://..", "s3://..", any scheme), even if a local file has
// the same name. To name such a file, write "./s3:/..".
bool is_url(std::string_view name);
// Returns the scheme, such as "https", or "" for a path. The schemes that stfs supports are
// returned in lower case, however the URL spells them.
std::string_view scheme_of(std::string_view url);

// Returns a name without secrets, for messages, attributes and the cache: without user and
// password, without the query (a signed URL has its signature there), and without the fragment.
// Only http and https URLs have queries and fragments: in other names "?" and "#" are ordinary
// characters.
std::string public_name(std::string_view name);

// Like the functions of std::filesystem::path, also for URLs: the directory that contains a file, a
// file in a directory, and the last component. parent_name() and child_name() keep the query of a
// URL after the new path, because it may contain the permission to read. In http and https URLs,
// child_name() percent-encodes `relative`, and last_component() decodes its result.
std::string parent_name(const std::string& name);
std::string child_name(const std::string& directory, const std::string& relative);
std::string last_component(const std::string& name);

// Returns an http or https URL without the query parameters that sign it (S3, Google, Azure,
// CloudFront, OSS), so that the same object has the same name, regardless of the signature.
// Returns any other name unchanged.
std::string without_signature(std::string_view name);
// Returns the time at which the signature in a URL's query expires, in seconds since the epoch, or
// nullopt if the query does not contain it.
std::optional<std::int64_t> signature_expiry(std::string_view name);

// The parts of an absolute http or https URL. libcurl parses it, so that the host that is checked
// is the host that is connected to. Percent-encoding in path and query is unchanged; spaces and
// bytes outside ASCII become percent-encoded. IPv4 addresses are written in full ("127.1" is
// 127.0.0.1).
struct WebUrl {
  std::string scheme, host;  // lower case; an IPv6 address without brackets
  std::uint64_t port = 0;    // the default port of the scheme if the URL has none
  std::string path, query;   // "/a/b"; without "?"

  std::string origin() const;     // "https://host:443": the scope of a secret
  std::string authority() const;  // "host", "host:8080"
  std::string text() const;
  bool is_loopback() const;  // 127.0.0.0/8, ::1, localhost, *.localhost
};
// Parses a URL. Returns nullopt if the text is not a URL of http or https, or contains a control
// character, a user before the host, or a host that is not ASCII. Throws Error kUnreadable if
// libcurl() does.
std::optional<WebUrl> parse_web_url(std::string_view url);
// Returns the target of a redirect from `base`. `location` is an absolute or relative URL. Returns
// nullopt like parse_web_url().
std::optional<WebUrl> resolve_url(const WebUrl& base, std::string_view location);

// Percent-encodes every byte except letters, digits, "-._~" (RFC 3986, 2.3) and the characters in
// `keep`.
std::string percent_encode(std::string_view text, std::string_view keep = "");
// Decodes percent-encoded bytes. A "%" without two hexadecimal digits is unchanged.
std::string percent_decode(std::string_view text);
// Parses a number that consists only of decimal digits. Returns nullopt for any other text.
std::optional<std::uint64_t> decimal(std::string_view text);

}  // namespace stfs
