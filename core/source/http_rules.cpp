#include "core/source/http_rules.h"

#include "core/source/build.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <system_error>

namespace stfs {
namespace {

Place place_of_v4(std::uint32_t address) {  // in host order
  if (address >> 24 == 127 || address >> 24 == 0) return Place::kLoopback;
  return address >> 16 == 0xA9FE ? Place::kLinkLocal : Place::kElsewhere;
}

Place place_of_v6(const in6_addr& address) {
  constexpr std::array<std::uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  constexpr std::array<std::uint8_t, 12> kCompatible{};  // holds :: and ::1 as 0.0.0.0 and 0.0.0.1
  constexpr std::array<std::uint8_t, 12> kNat64{0, 0x64, 0xff, 0x9b};
  constexpr std::array<std::uint8_t, 16> kRolesOfEc2{0xfd, 0, 0x0e, 0xc2, 0, 0, 0,    0,
                                                     0,    0, 0,    0,    0, 0, 0x02, 0x54};
  for (const auto& prefix : {kMapped, kCompatible, kNat64}) {
    if (std::memcmp(&address, prefix.data(), prefix.size()) != 0) continue;
    std::uint32_t v4 = 0;
    std::memcpy(&v4, address.s6_addr + prefix.size(), sizeof v4);
    return place_of_v4(ntohl(v4));
  }
  const bool is_link_local = address.s6_addr[0] == 0xfe && (address.s6_addr[1] & 0xc0) == 0x80;
  return is_link_local || std::memcmp(&address, kRolesOfEc2.data(), kRolesOfEc2.size()) == 0
             ? Place::kLinkLocal
             : Place::kElsewhere;
}

// Where distributions keep the certificates that they trust. A build to carry does not know on
// which one it runs.
std::string system_ca_file() {
  for (const char* const path :
       {"/etc/ssl/certs/ca-certificates.crt",                          // Debian, Arch
        "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",           // Red Hat
        "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",  // older ones, SUSE
        "/etc/ssl/cert.pem"}) {                                        // Alpine
    if (::access(path, R_OK) == 0) return path;
  }
  return "";
}

std::string variable(std::initializer_list<const char*> names) {
  for (const char* const name : names) {
    const char* const value = std::getenv(name);
    if (value != nullptr && *value != '\0') return value;
  }
  return "";
}

std::optional<std::array<std::uint8_t, 16>> bytes_of(int family, const std::string& text) {
  std::array<std::uint8_t, 16> bytes{};
  return ::inet_pton(family, text.c_str(), bytes.data()) == 1 ? std::optional(bytes) : std::nullopt;
}

// Whether an address lies in "10.0.0.0/8", or is "10.1.2.3".
bool is_in_network(const std::string& host, std::string_view network) {
  const std::size_t slash = network.find('/');
  const std::string base(network.substr(0, slash));
  for (const int family : {AF_INET, AF_INET6}) {
    const auto a = bytes_of(family, host), b = bytes_of(family, base);
    if (!a || !b) continue;
    unsigned bits = family == AF_INET ? 32 : 128;
    if (slash != std::string_view::npos) {
      const std::string_view text = network.substr(slash + 1);
      unsigned given = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), given);
      if (error != std::errc() || end != text.data() + text.size() || given > bits) return false;
      bits = given;
    }
    const unsigned whole = bits / 8, rest = bits % 8;
    return std::equal(a->begin(), a->begin() + whole, b->begin()) &&
           (rest == 0 || ((*a)[whole] ^ (*b)[whole]) >> (8 - rest) == 0);
  }
  return false;
}

// As NO_PROXY lists hosts: names, which mean their subdomains too, addresses, networks, "*".
bool is_listed(const std::string& host, std::string_view list) {
  while (!list.empty()) {
    const std::size_t end = std::min(list.find_first_of(", "), list.size());
    std::string entry(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
    if (entry == "*") return true;
    if (entry.starts_with('[') && entry.ends_with(']')) entry = entry.substr(1, entry.size() - 2);
    if (entry.starts_with('.')) entry.erase(0, 1);
    if (entry.ends_with('.')) entry.pop_back();
    std::ranges::transform(entry, entry.begin(), [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    if (entry.empty()) continue;
    if (host == entry || host.ends_with("." + entry) || is_in_network(host, entry)) return true;
  }
  return false;
}

}  // namespace

Place place_of(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &address, sizeof v4);
    return place_of_v4(ntohl(v4.sin_addr.s_addr));
  }
  if (address.sa_family == AF_INET6) {
    sockaddr_in6 v6{};
    std::memcpy(&v6, &address, sizeof v6);
    return place_of_v6(v6.sin6_addr);
  }
  return Place::kElsewhere;
}

Place place_of(const std::string& host) {
  in6_addr v6{};
  if (::inet_pton(AF_INET6, host.c_str(), &v6) == 1) return place_of_v6(v6);
  in_addr v4{};
  if (::inet_aton(host.c_str(), &v4) != 0) return place_of_v4(ntohl(v4.s_addr));
  return host == "localhost" || host.ends_with(".localhost") ? Place::kLoopback : Place::kElsewhere;
}

std::string HttpEnvironment::proxy_for(const WebUrl& url) const {
  const std::string& proxy = url.scheme == "https" ? https_proxy : http_proxy;
  return place_of(url.host) == Place::kLoopback || is_listed(url.host, no_proxy) ? "" : proxy;
}

HttpEnvironment environment_of_http() {
  HttpEnvironment environment;
  // Not HTTP_PROXY: a web server hands a client's header "Proxy" to its programs under that name.
  environment.http_proxy = variable({"http_proxy", "all_proxy", "ALL_PROXY"});
  environment.https_proxy = variable({"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"});
  environment.no_proxy = variable({"no_proxy", "NO_PROXY"});
  environment.ca_file = variable({"CURL_CA_BUNDLE", "SSL_CERT_FILE"});
  if (kIsCarried && environment.ca_file.empty()) environment.ca_file = system_ca_file();
  environment.ca_directory = variable({"SSL_CERT_DIR"});
  environment.netrc = variable({"NETRC"});
  if (const std::string home = variable({"HOME"}); environment.netrc.empty() && !home.empty()) {
    environment.netrc = home + "/.netrc";
  }
  return environment;
}

std::string_view redirect_refusal(const WebUrl& from, const WebUrl& to, bool from_loopback) {
  if (from.scheme == "https" && to.scheme == "http") return "redirects from https to http";
  const Place place = place_of(to.host);
  if (place == Place::kLinkLocal) return "redirects to a link-local address";
  if (place == Place::kLoopback && !from_loopback) return "redirects to a loopback address";
  return "";
}

std::string_view without_blanks(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

std::optional<std::uint64_t> decimal(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

}  // namespace stfs
