// Where a request of HTTP may go: rules about names, addresses and proxies, without the network.
//
// Thread safety: the functions may be called from any thread; environment_of_http() must not run
// while another thread sets a variable.
#pragma once

#include "core/remote/http/url.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

struct sockaddr;

namespace stfs {

// Whom an address belongs to.
enum class HttpPlace {
  kElsewhere,
  kLoopback,  // 127.0.0.0/8, ::1; also 0.0.0.0/8 and ::, which Linux connects to itself
  kPrivate,   // of a network that its owner numbers: 10/8, 172.16/12, 192.168/16, 100.64/10,
              // fc00::/7
  // Link-local addresses (169.254/16, fe80::/10), and those of clouds that are not: they hand out
  // the roles of a machine, or belong to its host.
  kRoles,
};
// An IPv4 address inside of an IPv6 one (mapped, compatible, NAT64) counts as itself.
HttpPlace place_of(const sockaddr& address);
// The place of a host as it is written: an address, also in one of the short forms that
// inet_aton(3) takes ("127.1", "2130706433"), or "localhost". Any other name is kElsewhere.
HttpPlace place_of(const std::string& host);

// The environment's settings for connections, as curl(1) reads them.
struct HttpEnvironment {
  std::string http_proxy, https_proxy, no_proxy;
  std::string ca_file, ca_directory;  // CURL_CA_BUNDLE, SSL_CERT_FILE; SSL_CERT_DIR; "": libcurl's
  std::string netrc;                  // NETRC, else ~/.netrc; "" without a HOME

  // The proxy for a URL; "" for none. Loopback addresses never have one.
  std::string proxy_for(const WebUrl& url) const;
};
HttpEnvironment environment_of_http();

// Why a redirect must not lead to an address; "" when it may. `by` is the place of the connection
// that the redirect came over; kElsewhere for that of a proxy.
std::string_view redirect_refusal(HttpPlace by, HttpPlace to);
// Why a redirect from one URL must not lead to another, as far as their texts tell; "" when it may.
// The address of the connection is checked as well.
std::string_view redirect_refusal(const WebUrl& from, const WebUrl& to, HttpPlace by);

// The value of a header without the blanks around it.
std::string without_blanks(std::string_view text);
std::string in_seconds(std::chrono::milliseconds time);  // "20 s", "1500 ms"

}  // namespace stfs
