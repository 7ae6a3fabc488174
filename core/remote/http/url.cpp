#include "core/remote/http/url.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

namespace stfs {
namespace {

bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }

char lower_letter(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string lower_text(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), lower_letter);
  return lower;
}

int hex_digit_value(char c) {
  if (is_ascii_digit(c)) return c - '0';
  c = lower_letter(c);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool is_url_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

std::uint16_t default_port(std::string_view scheme) { return scheme == "https" ? 443 : 80; }

// The length of the scheme before the first ":"; 0 for none.
std::size_t leading_scheme(std::string_view url) {
  const std::size_t colon = url.find(':');
  if (colon == std::string_view::npos || colon == 0 || !is_ascii_letter(url[0])) return 0;
  const auto is_of_a_scheme = [](char c) {
    return is_ascii_letter(c) || is_ascii_digit(c) || c == '+' || c == '-' || c == '.';
  };
  return std::ranges::all_of(url.substr(0, colon), is_of_a_scheme) ? colon : 0;
}

// A URL cut where its grammar cuts it (RFC 3986, appendix B). `authority` has a value when "//"
// stands before it; `query` when "?" does.
struct Pieces {
  std::string_view scheme;
  std::optional<std::string_view> authority;
  std::string_view path;
  std::optional<std::string_view> query;
};

Pieces cut_url(std::string_view url) {
  Pieces pieces;
  url = url.substr(0, url.find('#'));
  if (const std::size_t length = leading_scheme(url); length != 0) {
    pieces.scheme = url.substr(0, length);
    url.remove_prefix(length + 1);
  }
  if (url.starts_with("//")) {
    const std::size_t end = std::min(url.find_first_of("/?", 2), url.size());
    pieces.authority = url.substr(2, end - 2);
    url.remove_prefix(end);
  }
  if (const std::size_t mark = url.find('?'); mark != std::string_view::npos) {
    pieces.query = url.substr(mark + 1);
    url = url.substr(0, mark);
  }
  pieces.path = url;
  return pieces;
}

// Path and query without spaces and bytes over 127, which no request line may hold.
std::string sendable(std::string_view text) {
  std::string sent;
  for (const char c : text) {
    if (c > ' ' && c < 0x7f) {
      sent += c;
    } else {
      sent += percent_encode({&c, 1});
    }
  }
  return sent;
}

// RFC 3986, 5.2.4, of a path that begins with "/".
std::string without_dot_segments(std::string_view path) {
  std::string out;
  while (!path.empty()) {
    const std::size_t end = std::min(path.find('/', 1), path.size());
    const std::string_view segment = path.substr(0, end);
    path.remove_prefix(end);
    if (segment == "/." || segment == "/..") {
      if (segment == "/..") out.resize(std::min(out.rfind('/'), out.size()));
      if (path.empty()) out += '/';
    } else {
      out += segment;
    }
  }
  return out;
}

// Host and port of `authority`.
bool parse_authority(std::string_view authority, WebUrl& url) {
  std::string_view port;
  bool has_port = false;
  if (authority.starts_with('[')) {
    const std::size_t close = authority.find(']');
    if (close == std::string_view::npos) return false;
    url.host = lower_text(authority.substr(1, close - 1));
    in6_addr address{};
    if (::inet_pton(AF_INET6, url.host.c_str(), &address) != 1) return false;
    port = authority.substr(close + 1);
    has_port = port.starts_with(':');
    if (!port.empty() && !has_port) return false;
  } else {
    const std::size_t colon = std::min(authority.find(':'), authority.size());
    url.host = lower_text(authority.substr(0, colon));
    const auto is_of_a_name = [](char c) {
      return is_ascii_letter(c) || is_ascii_digit(c) || c == '-' || c == '.' || c == '_';
    };
    if (url.host.empty() || url.host.size() > 253 || !std::ranges::all_of(url.host, is_of_a_name) ||
        url.host.find("..") != std::string::npos || url.host.starts_with('.')) {
      return false;
    }
    port = authority.substr(colon);
    has_port = !port.empty();
  }
  if (has_port) port.remove_prefix(1);
  url.port = default_port(url.scheme);
  if (port.empty()) return true;  // "host:" is "host"
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), url.port);
  return error == std::errc() && end == port.data() + port.size() && url.port != 0;
}

// Where the name of a web server's object ends and its query begins. A "?" in the name of another
// store is a letter like any other.
std::size_t end_of_path(std::string_view name) {
  const std::string_view scheme = scheme_of(name);
  const bool is_web = scheme == "http" || scheme == "https";
  return is_web ? std::min(name.find_first_of("?#"), name.size()) : name.size();
}

// The query with its "?", without the fragment.
std::string_view query_of(std::string_view name) {
  const std::string_view rest = name.substr(end_of_path(name));
  return rest.starts_with('?') ? rest.substr(0, rest.find('#')) : std::string_view();
}

// Where the path begins: behind "scheme://host".
std::size_t begin_of_path(std::string_view url) {
  return std::min(url.find('/', scheme_of(url).size() + 3), end_of_path(url));
}

bool is_web_name(std::string_view name) {
  const std::string_view scheme = scheme_of(name);
  return scheme == "http" || scheme == "https";
}

}  // namespace

std::string_view scheme_of(std::string_view url) {
  const std::size_t length = leading_scheme(url);
  if (length == 0 || !url.substr(length).starts_with("://")) return "";
  const std::string lower = lower_text(url.substr(0, length));
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
  if (scheme == "hf") return beginning + std::string(rest);  // its "@" is a revision
  const std::string_view authority = rest.substr(0, rest.find_first_of("/?#"));
  if (const std::size_t at = authority.rfind('@'); at != std::string_view::npos) {
    rest.remove_prefix(at + 1);
  } else if (WebUrl url; is_web_name(name) && !parse_authority(authority, url)) {
    // Perhaps a password with "/" or "?" in it.
    const std::size_t last = rest.rfind('@');
    if (last != std::string_view::npos) rest.remove_prefix(last + 1);
  }
  if (is_web_name(name)) rest = rest.substr(0, rest.find_first_of("?#"));
  return beginning + std::string(rest);
}

std::string without_signature(std::string_view name) {
  const std::string_view query = query_of(name);
  if (query.empty()) return std::string(name);
  // Parameters that a signature brings, by the one that has it. Others of these stores choose a
  // version or change the answer: they stay.
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
  std::vector<std::pair<std::string, std::string_view>> parameters;  // by name in lower case
  for (std::string_view rest = query.substr(1); !rest.empty();) {
    const std::string_view one = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(one.size() + 1, rest.size()));
    parameters.emplace_back(lower_text(percent_decode(one.substr(0, one.find('=')))), one);
  }
  const auto has = [&](std::string_view parameter) {
    return std::ranges::find(parameters, parameter, [](const auto& one) {
             return std::string_view(one.first);
           }) != parameters.end();
  };
  for (const Scheme& scheme : schemes) {
    const bool is_of_azure = scheme.signature == "sig";  // a word that others use: it needs "sv"
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

std::string WebUrl::text() const {
  std::string text = origin();
  if (port == default_port(scheme)) text.resize(text.rfind(':'));
  text += path;
  if (!query.empty()) text += "?" + query;
  return text;
}

bool WebUrl::is_loopback() const {
  if (host == "localhost") return true;
  in_addr v4{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6{};
  return ::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

std::optional<WebUrl> parse_web_url(std::string_view url) {
  if (std::ranges::any_of(url, is_url_control)) return std::nullopt;
  const Pieces pieces = cut_url(url);
  WebUrl parsed;
  parsed.scheme = lower_text(pieces.scheme);
  if (parsed.scheme != "http" && parsed.scheme != "https") return std::nullopt;
  if (!pieces.authority || !parse_authority(*pieces.authority, parsed)) return std::nullopt;
  parsed.path = pieces.path.empty() ? "/" : sendable(pieces.path);
  parsed.query = sendable(pieces.query.value_or(""));
  return parsed;
}

std::optional<WebUrl> resolve_url(const WebUrl& base, std::string_view location) {
  if (std::ranges::any_of(location, is_url_control)) return std::nullopt;
  const Pieces pieces = cut_url(location);
  std::optional<WebUrl> target;
  if (!pieces.scheme.empty()) {
    target = parse_web_url(location);
  } else if (pieces.authority) {
    target = parse_web_url(base.scheme + ":" + std::string(location));
  } else {
    target = base;
    if (pieces.path.starts_with('/')) {
      target->path = sendable(pieces.path);
    } else if (!pieces.path.empty()) {
      target->path.resize(target->path.rfind('/') + 1);
      target->path += sendable(pieces.path);
    }
    if (pieces.query || !pieces.path.empty()) target->query = sendable(pieces.query.value_or(""));
  }
  if (target) target->path = without_dot_segments(target->path);
  return target;
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
