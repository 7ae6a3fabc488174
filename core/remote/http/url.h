// Names of sources: a path of the local file system, or a URL.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace stfs {

// Whether a name is a URL ("https://..", "s3://..", any scheme). A name that is a file on the local
// disk too is a URL all the same: name the file "./s3:/..".
bool is_url(std::string_view name);
// "https"; "" for a path. Those of stfs are in lower case, whatever the URL has.
std::string_view scheme_of(std::string_view url);

// A name without secrets, for messages, attributes and the cache: no user and password, no query
// (a signed URL has its signature there), no fragment. Only http and https have a query: a "?" or
// "#" of another name is a letter of an object's name.
std::string public_name(std::string_view name);

// As the functions of std::filesystem::path do, and of a URL's path: the name of the directory that
// holds a file, a file of a directory, the last component. A query of `directory` is kept behind
// the new path, since it may hold what permits to read it. Of http and https, `relative` is
// percent-encoded in the URL, and a last component is decoded.
std::string parent_name(const std::string& name);
std::string child_name(const std::string& directory, const std::string& relative);
std::string last_component(const std::string& name);

// A URL of http or https without the parameters of its query that sign it (S3, Google, Azure,
// CloudFront, OSS): the rest names the object, whoever signed it and when. Any other name is
// returned as it stands.
std::string without_signature(std::string_view name);
// The time at which the signature in a URL's query expires, in seconds since the epoch; nullopt
// when the query does not say it.
std::optional<std::int64_t> signature_expiry(std::string_view name);

// An absolute http or https URL in its parts, as libcurl understands it: the parser that judges is
// the one that connects. Percent-encoding of path and query is left as it stands; spaces and bytes
// outside of ASCII are encoded. Addresses of IPv4 are written in full ("127.1" is 127.0.0.1).
struct WebUrl {
  std::string scheme, host;  // lower case; an IPv6 address without brackets
  std::uint64_t port = 0;    // the scheme's own when the URL names none
  std::string path, query;   // "/a/b"; without "?"

  std::string origin() const;     // "https://host:443": where a secret may go
  std::string authority() const;  // "host", "host:8080"
  std::string text() const;
  bool is_loopback() const;  // 127.0.0.0/8, ::1, localhost, *.localhost
};
// nullopt for any other text: another scheme, no host, a control character, a user before the host,
// a host that is not ASCII. Throws Error where this machine has no libcurl.
std::optional<WebUrl> parse_web_url(std::string_view url);
// The target of a redirect: an absolute URL, or one relative to `base`.
std::optional<WebUrl> resolve_url(const WebUrl& base, std::string_view location);

// Percent-encodes every byte but letters, digits, "-._~" and those of `keep` (RFC 3986, 2.3).
std::string percent_encode(std::string_view text, std::string_view keep = "");
std::string percent_decode(std::string_view text);  // a "%" without two digits stays
// A number of decimal digits alone; nullopt for any other text.
std::optional<std::uint64_t> decimal(std::string_view text);

}  // namespace stfs
