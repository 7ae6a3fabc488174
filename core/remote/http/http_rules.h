// Rules for HTTP requests: which addresses and proxies a request may use. The rules need no
// network.
//
// Thread safety: the functions may be called from any thread. environment_of_http() must not run
// while another thread sets an environment variable.
#pragma once

#include "core/remote/http/url.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

struct sockaddr;

namespace stfs {

// Classifies an IP address by the network that it belongs to.
enum class AddressKind {
  kElsewhere,  // any other address
  kLoopback,   // 127.0.0.0/8, ::1; also 0.0.0.0/8 and ::, which Linux connects to itself
  // Networks whose owner assigns the addresses: 10/8, 172.16/12, 192.168/16, 100.64/10, fc00::/7.
  kPrivate,
  // Link-local addresses (169.254/16, fe80::/10), and a few other addresses that clouds use for the
  // same purpose: they hand out the roles of a machine, or belong to its host.
  kRoles,
};
// Classifies an address. An IPv4 address embedded in an IPv6 address (mapped, compatible, NAT64) is
// classified as IPv4.
AddressKind place_of(const sockaddr& address);
// Classifies the host of a URL: an address, including the short forms that inet_aton(3) accepts
// ("127.1", "2130706433"), or "localhost". Returns kElsewhere for any other name.
AddressKind place_of(const std::string& host);

// The environment's settings for connections, as curl(1) reads them.
struct HttpEnvironment {
  std::string http_proxy, https_proxy, no_proxy;
  // The CA file from CURL_CA_BUNDLE or SSL_CERT_FILE, and the directory from SSL_CERT_DIR; "": the
  // default of libcurl.
  std::string ca_file, ca_directory;
  std::string netrc;  // NETRC, or ~/.netrc if it is not set; "" if HOME is not set either

  // Returns the proxy for a URL, or "" if the host must be contacted directly, as every loopback
  // address is.
  std::string proxy_for(const WebUrl& url) const;
};
HttpEnvironment environment_of_http();

// Returns why a redirect to an address is refused, or "" if it is permitted. `by` is the place of
// the connection that the redirect arrived on; kElsewhere for a connection through a proxy.
std::string_view redirect_refusal(AddressKind by, AddressKind to);
// Returns why a redirect from one URL to another is refused, as far as their texts show, or "" if
// it is permitted. The address of the new connection must be checked as well.
std::string_view redirect_refusal(const WebUrl& from, const WebUrl& to, AddressKind by);

// Returns the value of a header without leading and trailing blanks.
std::string without_blanks(std::string_view text);
std::string in_seconds(std::chrono::milliseconds time);  // "20 s", "1500 ms"

}  // namespace stfs
