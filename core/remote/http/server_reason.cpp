#include "core/remote/http/server_reason.h"

#include "core/base/text.h"
#include "core/remote/http/http_rules.h"
#include "core/remote/http/url.h"

#include <nlohmann/json.hpp>
#include <pugixml.hpp>

#include <algorithm>
#include <cstddef>

namespace stfs {
namespace {

constexpr std::size_t kMaxReason = std::size_t{1} << 16;  // bytes of a body that are searched
constexpr std::size_t kMaxQuoted = 200;                   // characters
// A secret with fewer bytes is hidden only if it is a whole word.
constexpr std::size_t kLeastSecret = 4;

bool is_of_a_code(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

void add_parameters(std::string_view query, std::vector<std::string>& secrets) {
  while (!query.empty()) {
    const std::string_view one = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(one.size() + 1, query.size()));
    const std::string value(one.substr(one.find('=') + 1));  // the whole parameter if it has no "="
    secrets.push_back(percent_decode(value));
    secrets.push_back(value);
  }
}

void hide(std::string& text, const std::string& secret) {
  for (std::size_t at = 0; (at = text.find(secret, at)) != std::string::npos;) {
    const std::size_t end = at + secret.size();
    const bool is_inside =
        (at > 0 && is_of_a_code(text[at - 1]) && is_of_a_code(secret.front())) ||
        (end < text.size() && is_of_a_code(text[end]) && is_of_a_code(secret.back()));
    if (secret.size() < kLeastSecret && is_inside) {
      ++at;
      continue;
    }
    text.replace(at, secret.size(), "***");
    at += 3;
  }
}

using Json = nlohmann::json;

std::string message_in(const Json& json, int depth = 0) {
  if (json.is_string()) return json.get<std::string>();
  if (depth > 4) return "";
  if (json.is_array() && !json.empty()) return message_in(json.front(), depth + 1);
  if (!json.is_object()) return "";
  for (const char* const key : {"error", "errors", "message", "detail"}) {
    const auto at = json.find(key);
    if (at == json.end()) continue;
    if (std::string text = message_in(*at, depth + 1); !text.empty()) return text;
  }
  return "";
}

}  // namespace

std::vector<std::string> secrets_of(const HttpRequest& request) {
  std::vector<std::string> secrets;
  for (const std::string& header : request.secrets) {
    const std::string value = without_blanks(header.substr(header.find(':') + 1));
    secrets.push_back(value);
    secrets.push_back(value.substr(value.rfind(' ') + 1));  // after "Bearer"
    secrets.push_back(value.substr(value.rfind('=') + 1));  // after "Signature"
  }
  if (const auto url = parse_web_url(request.url)) add_parameters(url->query, secrets);
  add_parameters(request.body, secrets);
  return secrets;
}

std::string quoted(std::string_view said, std::vector<std::string> secrets) {
  std::string text;
  for (const char c : said) {  // replaces each run of blanks by a space
    const bool is_blank = c == ' ' || c == '\t' || c == '\r' || c == '\n';
    if (!is_blank) text += c;
    if (is_blank && !text.empty() && text.back() != ' ') text += ' ';
  }
  if (text.ends_with(' ')) text.pop_back();
  std::ranges::sort(secrets, std::ranges::greater(), &std::string::size);
  for (const std::string& secret : secrets) {
    if (!secret.empty()) hide(text, secret);
  }
  while (in_quotes(text).size() > kMaxQuoted + 2)
    text.resize(utf8_floor(text, text.size() * 3 / 4));
  return in_quotes(text);
}

ServerReason reason_in(const std::string& body) {
  const std::string text = without_blanks(std::string_view(body).substr(0, kMaxReason));
  ServerReason reason;
  if (text.find('<') < 4) {  // a byte order mark may precede it
    pugi::xml_document document;
    document.load_buffer(text.data(), text.size());  // parses the part before the cut
    pugi::xml_node node = document.document_element();
    if (node.child("Error")) node = node.child("Error");  // STS
    reason.code = node.child_value("Code");
    reason.message = node.child_value("Message");
    if (reason.code.size() > 64 || !std::ranges::all_of(reason.code, is_of_a_code))
      reason.code.clear();
  } else if (text.starts_with('{') || text.starts_with('[')) {
    reason.message = message_in(Json::parse(text, nullptr, false));
  } else if (is_utf8(text)) {
    reason.message = text;
  }
  return reason;
}

std::string reason_text(const HttpResponse& answer, const std::vector<std::string>& secrets) {
  ServerReason reason = reason_in(answer.body);
  const std::string_view header = answer.head.header("x-error-message");
  if (!header.empty()) reason.message = header;
  std::string text = reason.code.empty() ? "" : " " + reason.code;
  for (const std::string& secret : secrets) {
    if (!reason.code.empty() && secret.find(reason.code) != std::string::npos) text.clear();
  }
  return text + (reason.message.empty() ? "" : ": " + quoted(reason.message, secrets));
}

}  // namespace stfs
