#include "core/remote/http/url.h"

#include "core/base/text.h"
#include "core/remote/http/libcurl.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <ctime>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

namespace stfs {
namespace {

bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }

int hex_digit_value(char c) {
  if (is_ascii_digit(c)) return c - '0';
  c = static_cast<char>(c | 0x20);  // in lower case
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool is_url_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

// Returns the length of the scheme before the first ":", or 0 if the text has none.
std::size_t leading_scheme(std::string_view url) {
  const std::size_t colon = url.find(':');
  if (colon == std::string_view::npos || colon == 0 || !is_ascii_letter(url[0])) return 0;
  const auto is_of_a_scheme = [](char c) {
    return is_ascii_letter(c) || is_ascii_digit(c) || c == '+' || c == '-' || c == '.';
  };
  return std::ranges::all_of(url.substr(0, colon), is_of_a_scheme) ? colon : 0;
}

struct CurlUrlDeleter {
  void operator()(CURLU* url) const { libcurl().url_cleanup(url); }
};
using CurlUrl = std::unique_ptr<CURLU, CurlUrlDeleter>;

// Sets `url` to a URL, or, if it is set already, to the target of a relative URL. With
// CURLU_PATH_AS_IS the segments "." and ".." of the path are kept.
bool set_url(CURLU* url, std::string_view text, unsigned flags) {
  constexpr unsigned kFlags = CURLU_DISALLOW_USER | CURLU_URLENCODE | CURLU_ALLOW_SPACE;
  return std::ranges::none_of(text, is_url_control) &&
         libcurl().url_set(url, CURLUPART_URL, std::string(text).c_str(), kFlags | flags) ==
             CURLUE_OK;
}

std::string part_of(CURLU* url, CURLUPart part) {
  char* text = nullptr;
  if (libcurl().url_get(url, part, &text, CURLU_DEFAULT_PORT) != CURLUE_OK) return "";
  const std::unique_ptr<char, decltype(libcurl().free)> owner(text, libcurl().free);
  return text;
}

std::optional<WebUrl> parts_of(CURLU* url) {
  const std::string port = part_of(url, CURLUPART_PORT);
  WebUrl parts{.scheme = part_of(url, CURLUPART_SCHEME),
               .host = lower_case(part_of(url, CURLUPART_HOST)),
               .port = decimal(port).value_or(0),
               .path = part_of(url, CURLUPART_PATH),
               .query = part_of(url, CURLUPART_QUERY)};
  if (parts.host.starts_with('[')) parts.host = parts.host.substr(1, parts.host.size() - 2);
  // libcurl has decoded the host once. If a "%" is left, it would be decoded again when libcurl
  // connects.
  const bool is_plain =
      std::ranges::all_of(parts.host, [](char c) { return c > ' ' && c < 0x7f && c != '%'; });
  const bool is_web = parts.scheme == "http" || parts.scheme == "https";
  if (!is_web || !is_plain || parts.port == 0) return std::nullopt;
  if (!part_of(url, CURLUPART_ZONEID).empty()) return std::nullopt;
  return parts;
}

// Returns true for "https:///path" and "///path", because libcurl would take the first component of
// the path for the host.
bool has_no_authority(std::string_view url) {
  const std::size_t begin = url.find("//");
  const bool is_first = begin == 0 || (!scheme_of(url).empty() && begin == url.find("://") + 1);
  return is_first && url.substr(begin + 2).starts_with('/');
}

bool is_web_name(std::string_view name) {
  const std::string_view scheme = scheme_of(name);
  return scheme == "http" || scheme == "https";
}

// Returns where the path of an http or https URL ends and its query or fragment begins. In the
// names of other stores "?" and "#" are ordinary characters, so the path is the rest of the name.
std::size_t end_of_path(std::string_view name) {
  return is_web_name(name) ? std::min(name.find_first_of("?#"), name.size()) : name.size();
}

// Returns the query with its "?", without the fragment.
std::string_view query_of(std::string_view name) {
  const std::string_view rest = name.substr(end_of_path(name));
  return rest.starts_with('?') ? rest.substr(0, rest.find('#')) : std::string_view();
}

// The parameters of a query, unchanged, each after its name in lower case.
using Parameters = std::vector<std::pair<std::string, std::string_view>>;
Parameters parameters_of(std::string_view query) {
  Parameters parameters;
  for (std::string_view rest = query.substr(std::min<std::size_t>(1, query.size()));
       !rest.empty();) {
    const std::string_view one = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(one.size() + 1, rest.size()));
    parameters.emplace_back(lower_case(percent_decode(one.substr(0, one.find('=')))), one);
  }
  return parameters;
}

// Parses "20250201T100000Z" or "2025-02-01T10:00:00Z" into seconds since the epoch.
std::optional<std::int64_t> signed_time(const std::string& text) {
  for (const char* const format : {"%Y%m%dT%H%M%SZ", "%Y-%m-%dT%H:%M:%SZ"}) {
    std::tm parts{};
    const char* const end = ::strptime(text.c_str(), format, &parts);
    if (end != nullptr && *end == '\0') return ::timegm(&parts);
  }
  return std::nullopt;
}

// Returns where the path begins, which is after "scheme://host".
std::size_t begin_of_path(std::string_view url) {
  return std::min(url.find('/', scheme_of(url).size() + 3), end_of_path(url));
}

}  // namespace

std::string_view scheme_of(std::string_view url) {
  const std::size_t length = leading_scheme(url);
  if (length == 0 || !url.substr(length).starts_with("://")) return "";
  const std::string lower = lower_case(url.substr(0, length));
  for (const std::string_view known : {"http", "https", "s3", "hf"}) {
    if (lower == known) return known;
  }
  return url.substr(0, length);
}

bool is_url(std::string_view name) { return !scheme_of(name).empty(); }

std::string public_name(std::string_view name) {
  const std::string_view scheme = scheme_of(name);
  if (scheme.empty()) return std::string(name);
  const std::string beginning = std::string(scheme) + "://";
  std::string_view rest = name.substr(beginning.size());
  if (scheme == "hf") return beginning + std::string(rest);  // the "@" precedes a revision
  const std::string_view authority = rest.substr(0, rest.find_first_of("/?#"));
  if (const std::size_t at = authority.rfind('@'); at != std::string_view::npos) {
    rest.remove_prefix(at + 1);
  } else if (is_web_name(name) && rest.find('@') < rest.size() &&
             !parse_web_url(beginning + std::string(authority))) {
    // The URL may contain a password with "/" or "?" in it.
    const std::size_t last = rest.rfind('@');
    if (last != std::string_view::npos) rest.remove_prefix(last + 1);
  }
  if (is_web_name(name)) rest = rest.substr(0, rest.find_first_of("?#"));
  return beginning + std::string(rest);
}

std::string without_signature(std::string_view name) {
  const std::string_view query = query_of(name);
  if (query.empty()) return std::string(name);
  // The parameters of each kind of signature, with the one that shows its presence. All other
  // parameters are kept, because they may choose a version or change the response.
  struct Scheme {
    std::string_view signature;
    std::vector<std::string_view> names;
  };
  static const std::vector<Scheme> schemes{
      {"x-amz-signature",
       {"x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-expires", "x-amz-signedheaders",
        "x-amz-signature", "x-amz-security-token"}},
      {"x-goog-signature",
       {"x-goog-algorithm", "x-goog-credential", "x-goog-date", "x-goog-expires",
        "x-goog-signedheaders", "x-goog-signature"}},
      {"x-oss-signature",
       {"x-oss-signature-version", "x-oss-credential", "x-oss-date", "x-oss-expires",
        "x-oss-signature", "x-oss-additional-headers", "x-oss-security-token"}},
      {"awsaccesskeyid", {"awsaccesskeyid", "signature", "expires", "x-amz-security-token"}},
      {"googleaccessid", {"googleaccessid", "signature", "expires"}},
      {"ossaccesskeyid", {"ossaccesskeyid", "signature", "expires", "security-token"}},
      {"key-pair-id", {"key-pair-id", "signature", "expires", "policy"}},
      {"sig", {"sig",   "sv",    "ss",  "srt", "sr",  "sp",  "st",  "se",    "sip",   "spr", "si",
               "skoid", "sktid", "skt", "ske", "sks", "skv", "sdd", "saoid", "suoid", "scid"}},
  };
  Parameters parameters = parameters_of(query);
  const auto has = [&](std::string_view parameter) {
    return std::ranges::find(parameters, parameter, [](const auto& one) {
             return std::string_view(one.first);
           }) != parameters.end();
  };
  for (const Scheme& scheme : schemes) {
    const bool is_of_azure = scheme.signature == "sig";  // a common word, so "sv" is required
    if (!has(scheme.signature) || (is_of_azure && !has("sv"))) continue;
    std::erase_if(parameters, [&](const auto& one) {
      return std::ranges::find(scheme.names, std::string_view(one.first)) != scheme.names.end();
    });
  }
  std::string kept(name.substr(0, end_of_path(name)));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    kept.append(i == 0 ? "?" : "&").append(parameters[i].second);
  }
  return kept;
}

std::optional<std::int64_t> signature_expiry(std::string_view name) {
  const Parameters parameters = parameters_of(query_of(name));
  const auto value = [&](const std::string& parameter) {
    for (const auto& [each, text] : parameters) {
      if (each == parameter) return percent_decode(text.substr(text.find('=') + 1));
    }
    return std::string();
  };
  constexpr std::uint64_t kMost = std::uint64_t{1} << 40;
  for (const char* const store : {"x-amz-", "x-goog-", "x-oss-"}) {
    const auto begin = signed_time(value(std::string(store) + "date"));
    const auto seconds = decimal(value(std::string(store) + "expires"));
    if (begin && seconds && *seconds < kMost) return *begin + static_cast<std::int64_t>(*seconds);
  }
  if (!value("sig").empty()) return signed_time(value("se"));  // Azure
  const auto end = decimal(value("expires"));
  if (!end || *end >= kMost || without_signature(name) == name) return std::nullopt;
  return static_cast<std::int64_t>(*end);
}

std::string parent_name(const std::string& name) {
  if (!is_url(name)) return std::filesystem::path(name).parent_path().string();
  const std::size_t begin = begin_of_path(name);
  const std::string_view path = std::string_view(name).substr(0, end_of_path(name));
  const std::size_t slash = path.rfind('/');
  const std::size_t end = slash == std::string_view::npos || slash < begin ? begin : slash;
  return name.substr(0, end).append(query_of(name));
}

std::string child_name(const std::string& directory, const std::string& relative) {
  if (!is_url(directory)) return (std::filesystem::path(directory) / relative).string();
  std::string name = directory.substr(0, end_of_path(directory));
  if (!name.ends_with('/')) name += '/';
  name += is_web_name(directory) ? percent_encode(relative, "/") : relative;
  return name.append(query_of(directory));
}

std::string last_component(const std::string& name) {
  if (!is_url(name)) return std::filesystem::path(name).filename().string();
  const std::size_t begin = begin_of_path(name);
  const std::string path = name.substr(begin, end_of_path(name) - begin);
  std::string last = path.substr(std::min(path.rfind('/') + 1, path.size()));
  if (!is_web_name(name)) return last;
  std::string decoded = percent_decode(last);
  const bool is_name =
      decoded.find('/') == std::string::npos && !std::ranges::any_of(decoded, is_url_control);
  return is_name ? decoded : last;
}

std::string WebUrl::origin() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return scheme + "://" + (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::string WebUrl::authority() const {
  const std::string all = origin().substr(scheme.size() + 3);
  return port == (scheme == "https" ? 443U : 80U) ? all.substr(0, all.rfind(':')) : all;
}

std::string WebUrl::text() const {
  return scheme + "://" + authority() + path + (query.empty() ? "" : "?" + query);
}

bool WebUrl::is_loopback() const {
  if (host == "localhost" || host.ends_with(".localhost")) return true;
  in_addr v4{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6{};
  return ::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

std::optional<WebUrl> parse_web_url(std::string_view url) {
  if (scheme_of(url).empty()) return std::nullopt;  // libcurl would accept "https:/host"
  if (has_no_authority(url)) return std::nullopt;
  const CurlUrl parsed(libcurl().url());
  return set_url(parsed.get(), url, CURLU_PATH_AS_IS) ? parts_of(parsed.get()) : std::nullopt;
}

std::optional<WebUrl> resolve_url(const WebUrl& base, std::string_view location) {
  if (has_no_authority(location)) return std::nullopt;
  const CurlUrl resolved(libcurl().url());
  return set_url(resolved.get(), base.text(), CURLU_PATH_AS_IS) &&
                 set_url(resolved.get(), location, 0)
             ? parts_of(resolved.get())
             : std::nullopt;
}

std::string percent_encode(std::string_view text, std::string_view keep) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    if (is_ascii_letter(c) || is_ascii_digit(c) ||
        std::string_view("-._~").find(c) != std::string_view::npos ||
        keep.find(c) != std::string_view::npos) {
      encoded += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      encoded += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return encoded;
}

std::optional<std::uint64_t> decimal(std::string_view text) {
  std::uint64_t value = 0;
  // cppcheck-suppress invalidLifetime  // the view is of a caller's string, which lives
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

std::string percent_decode(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? hex_digit_value(text[i + 1]) : -1;
    const int low = high < 0 ? -1 : hex_digit_value(text[i + 2]);
    if (low < 0) {
      decoded += text[i];
    } else {
      decoded += static_cast<char>((high << 4) | low);
      i += 2;
    }
  }
  return decoded;
}

}  // namespace stfs
