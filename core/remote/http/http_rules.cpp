#include "core/remote/http/http_rules.h"

#include "core/base/carried.h"
#include "core/base/posix.h"
#include "core/base/text.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>

namespace stfs {
namespace {

struct Network4 {
  std::uint32_t address;  // in host byte order
  unsigned bits;
  AddressKind place;
};
// The first network that contains an address determines its place.
constexpr std::array<Network4, 11> kNetworks4{{
    {0x7F000000, 8, AddressKind::kLoopback},
    {0x00000000, 8, AddressKind::kLoopback},
    {0xA9FE0000, 16, AddressKind::kRoles},    // 169.254.0.0/16
    {0x646464C8, 32, AddressKind::kRoles},    // 100.100.100.200: Alibaba
    {0xA83F8110, 32, AddressKind::kRoles},    // 168.63.129.16: Azure
    {0xC00000C0, 32, AddressKind::kRoles},    // 192.0.0.192: Oracle
    {0x0A000000, 8, AddressKind::kPrivate},   // 10.0.0.0/8
    {0xAC100000, 12, AddressKind::kPrivate},  // 172.16.0.0/12
    {0xC0A80000, 16, AddressKind::kPrivate},  // 192.168.0.0/16
    {0x64400000, 10, AddressKind::kPrivate},  // 100.64.0.0/10
    {0xC0000000, 24, AddressKind::kPrivate},  // 192.0.0.0/24
}};

AddressKind place_of_v4(std::uint32_t address) {  // in host byte order
  for (const Network4& network : kNetworks4) {
    if ((address ^ network.address) >> (32 - network.bits) == 0) return network.place;
  }
  return AddressKind::kElsewhere;
}

AddressKind place_of_v6(const in6_addr& address) {
  constexpr std::array<std::uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  constexpr std::array<std::uint8_t, 12> kCompatible{};  // :: and ::1 are 0.0.0.0 and 0.0.0.1
  constexpr std::array<std::uint8_t, 12> kNat64{0, 0x64, 0xff, 0x9b};
  constexpr std::array<std::uint8_t, 6> kLocalNat64{0, 0x64, 0xff, 0x9b, 0, 1};
  constexpr std::array<std::uint8_t, 14> kRolesOfEc2{0xfd, 0, 0x0e, 0xc2, 0, 0, 0,
                                                     0,    0, 0,    0,    0, 0, 0};
  for (const auto& prefix : {kMapped, kCompatible, kNat64}) {
    if (std::memcmp(&address, prefix.data(), prefix.size()) != 0) continue;
    std::uint32_t v4 = 0;
    std::memcpy(&v4, address.s6_addr + prefix.size(), sizeof v4);
    return place_of_v4(ntohl(v4));
  }
  const std::uint8_t first = address.s6_addr[0], second = address.s6_addr[1] & 0xc0;
  const bool is_of_ec2 = std::memcmp(&address, kRolesOfEc2.data(), kRolesOfEc2.size()) == 0;
  if (is_of_ec2 || (first == 0xfe && second == 0x80)) return AddressKind::kRoles;
  const bool is_unique_local = (first & 0xfe) == 0xfc;
  const bool is_site_local = first == 0xfe && second == 0xc0;
  const bool is_local_nat64 = std::memcmp(&address, kLocalNat64.data(), kLocalNat64.size()) == 0;
  return is_unique_local || is_site_local || is_local_nat64 ? AddressKind::kPrivate
                                                            : AddressKind::kElsewhere;
}

// Returns the file in which the distribution keeps its trusted certificates. A portable build does
// not know on which distribution it runs.
std::string system_ca_file() {
  for (const char* const path :
       {"/etc/ssl/certs/ca-certificates.crt",                          // Debian, Arch
        "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",           // Red Hat
        "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",  // older Red Hat, SUSE
        "/etc/ssl/cert.pem"}) {                                        // Alpine
    if (::access(path, R_OK) == 0) return path;
  }
  return "";
}

// Returns the value of the first variable that is set and not empty, or "".
std::string variable(std::initializer_list<const char*> names) {
  for (const char* const name : names) {
    if (std::string value = environment(name); !value.empty()) return value;
  }
  return "";
}

std::optional<std::array<std::uint8_t, 16>> bytes_of(int family, const std::string& text) {
  std::array<std::uint8_t, 16> bytes{};
  return ::inet_pton(family, text.c_str(), bytes.data()) == 1 ? std::optional(bytes) : std::nullopt;
}

// Returns true if the address `host` is in a network "10.0.0.0/8", or is the address "10.1.2.3".
bool is_in_network(const std::string& host, std::string_view network) {
  const std::size_t slash = network.find('/');
  const std::string base(network.substr(0, slash));
  for (const int family : {AF_INET, AF_INET6}) {
    const auto a = bytes_of(family, host), b = bytes_of(family, base);
    if (!a || !b) continue;
    unsigned bits = family == AF_INET ? 32 : 128;
    if (slash != std::string_view::npos) {
      const auto given = decimal(network.substr(slash + 1));
      if (!given || *given > bits) return false;
      bits = static_cast<unsigned>(*given);
    }
    const unsigned whole = bits / 8, rest = bits % 8;
    return std::equal(a->begin(), a->begin() + whole, b->begin()) &&
           (rest == 0 || ((*a)[whole] ^ (*b)[whole]) >> (8 - rest) == 0);
  }
  return false;
}

// Returns true if a list in the form of NO_PROXY contains the host. The list has names, which
// include their subdomains, addresses, networks, and "*".
bool is_listed(const std::string& host, std::string_view list) {
  while (!list.empty()) {
    const std::size_t end = std::min(list.find_first_of(", "), list.size());
    std::string entry(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
    if (entry == "*") return true;
    if (entry.starts_with('[') && entry.ends_with(']')) entry = entry.substr(1, entry.size() - 2);
    if (entry.starts_with('.')) entry.erase(0, 1);
    if (entry.ends_with('.')) entry.pop_back();
    entry = lower_case(entry);
    if (entry.empty()) continue;
    if (host == entry || host.ends_with("." + entry) || is_in_network(host, entry)) return true;
  }
  return false;
}

}  // namespace

AddressKind place_of(const sockaddr& address) {
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
  return AddressKind::kElsewhere;
}

AddressKind place_of(const std::string& host) {
  in6_addr v6{};
  if (::inet_pton(AF_INET6, host.c_str(), &v6) == 1) return place_of_v6(v6);
  in_addr v4{};
  if (::inet_aton(host.c_str(), &v4) != 0) return place_of_v4(ntohl(v4.s_addr));
  return host == "localhost" || host.ends_with(".localhost") ? AddressKind::kLoopback
                                                             : AddressKind::kElsewhere;
}

std::string HttpEnvironment::proxy_for(const WebUrl& url) const {
  const std::string& proxy = url.scheme == "https" ? https_proxy : http_proxy;
  return place_of(url.host) == AddressKind::kLoopback || is_listed(url.host, no_proxy) ? "" : proxy;
}

HttpEnvironment environment_of_http() {
  HttpEnvironment environment;
  // HTTP_PROXY is not read, because a web server passes a client's header "Proxy" to its CGI
  // programs in that variable.
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

std::string_view redirect_refusal(AddressKind by, AddressKind to) {
  if (to == AddressKind::kRoles) return "redirects to a cloud metadata address";
  if (to == AddressKind::kLoopback && by != AddressKind::kLoopback)
    return "redirects to a loopback address";
  if (to == AddressKind::kPrivate && by == AddressKind::kElsewhere)
    return "redirects to a private address";
  return "";
}

std::string_view redirect_refusal(const WebUrl& from, const WebUrl& to, AddressKind by) {
  if (from.scheme == "https" && to.scheme == "http") return "redirects from https to http";
  return redirect_refusal(by, place_of(to.host));
}

std::string without_blanks(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1));
}

std::string in_seconds(std::chrono::milliseconds time) {
  return time.count() % 1000 == 0 ? std::to_string(time.count() / 1000) + " s"
                                  : std::to_string(time.count()) + " ms";
}

}  // namespace stfs
