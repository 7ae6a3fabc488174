#include "core/remote/stores/remote.h"

#include "core/base/sha256.h"
#include "core/base/text.h"
#include "core/remote/http/http_rules.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <initializer_list>
#include <limits>
#include <utility>

namespace stfs {
namespace {

constexpr std::size_t kLongestJson = 64 << 10;  // bytes of the JSON of one version
constexpr std::int64_t kNanoseconds = 1'000'000'000;
constexpr const char* kChangedText = "it has changed on its server";

struct TextField {
  const char* name;
  std::string RemoteVersion::*member;
};
constexpr std::array<TextField, 7> kTextFields{{{"name", &RemoteVersion::name},
                                                {"token", &RemoteVersion::token},
                                                {"etag", &RemoteVersion::etag},
                                                {"weak_etag", &RemoteVersion::weak_etag},
                                                {"last_modified", &RemoteVersion::last_modified},
                                                {"version_id", &RemoteVersion::version_id},
                                                {"sha256", &RemoteVersion::sha256}}};

// Returns true if the text may be a Version::token, which is printed.
bool is_stored_token(const std::string& text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7f; });
}

}  // namespace

std::string to_json(const RemoteVersion& version, bool with_secrets) {
  nlohmann::ordered_json json;
  for (const TextField& field : kTextFields) json[field.name] = version.*field.member;
  json["size"] = version.size;
  json["mtime"] = {static_cast<std::int64_t>(version.mtime.tv_sec),
                   static_cast<std::int64_t>(version.mtime.tv_nsec)};
  json["is_weak"] = version.is_weak;
  if (with_secrets && !version.url.empty()) json["url"] = version.url;
  // A byte that is not UTF-8 becomes U+FFFD. The version then equals no other, so the server is
  // asked again.
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::optional<RemoteVersion> parse_remote_version(std::string_view text) {
  if (text.size() > kLongestJson) return std::nullopt;
  try {
    const auto json = nlohmann::json::parse(text);
    RemoteVersion version;
    for (const TextField& field : kTextFields) {
      version.*field.member = json.at(field.name).get_ref<const std::string&>();
    }
    if (const auto url = json.find("url"); url != json.end()) {
      version.url = url->get_ref<const std::string&>();
    }
    const auto& size = json.at("size");
    const auto& mtime = json.at("mtime");
    if (!size.is_number_unsigned() || !mtime.is_array() || mtime.size() != 2 ||
        !mtime[0].is_number_integer() || !mtime[1].is_number_unsigned()) {
      return std::nullopt;
    }
    version.size = size.get<std::uint64_t>();
    version.mtime = {.tv_sec = mtime[0].get<std::int64_t>(),
                     .tv_nsec = mtime[1].get<std::int64_t>()};
    version.is_weak = json.at("is_weak").get_ref<const bool&>();
    constexpr auto kMostBytes = std::uint64_t{std::numeric_limits<std::int64_t>::max()};
    const bool is_valid = !version.name.empty() && is_stored_token(version.token) &&
                          (version.sha256.empty() || is_digest(version.sha256, kSha256Digits)) &&
                          version.size <= kMostBytes && version.mtime.tv_nsec >= 0 &&
                          version.mtime.tv_nsec < kNanoseconds;
    return is_valid ? std::optional(std::move(version)) : std::nullopt;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

std::optional<ContentRange> parse_content_range(std::string_view text) {
  if (!text.starts_with("bytes ")) return std::nullopt;
  text.remove_prefix(6);
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const std::optional<std::uint64_t> size = decimal(text.substr(slash + 1));
  if (!size) return std::nullopt;
  const std::string_view range = text.substr(0, slash);
  if (range == "*") return ContentRange{.range = {}, .size = *size};
  const std::size_t dash = range.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const auto first = decimal(range.substr(0, dash)), last = decimal(range.substr(dash + 1));
  if (!first || !last || *first > *last || *last >= *size) return std::nullopt;
  return ContentRange{.range = {.offset = *first, .length = *last - *first + 1}, .size = *size};
}

std::string encoding_refusal(const HttpHead& head) {
  for (const auto& [name, value] : head.headers) {
    if (name != "content-encoding") continue;
    for (std::size_t begin = 0; begin <= value.size();) {
      const std::size_t end = std::min(value.find(',', begin), value.size());
      const std::string coding = lower_case(without_blanks(value.substr(begin, end - begin)));
      if (!coding.empty() && coding != "identity" && coding != "aws-chunked") {
        return "its server sends it encoded as " + in_quotes(value);
      }
      begin = end + 1;
    }
  }
  if (lower_case(head.header("content-type")).starts_with("multipart/")) {
    return "its server sends several parts in one response";
  }
  return "";
}

ResponseVerdict judge(const RemoteVersion& version, const HttpHead& head, ByteRange range) {
  using Kind = ResponseVerdict::Kind;
  const int status = head.status;
  const std::string with_status = "its server answers with status " + std::to_string(status);
  if (is_temporary(status)) return {Kind::kRetry, with_status};
  if (status == 401 || status == 403) return {Kind::kRenew, "Permission denied: " + with_status};
  if (status == 404 || status == 410) return {Kind::kChanged, "its server no longer has it"};
  if (status == 412 || status == 416) return {Kind::kChanged, kChangedText};
  const bool is_whole = status == 200 && range.offset == 0 && range.length == version.size;
  if (status == 200 && !is_whole) {
    return {Kind::kRefused, "its server does not support range requests: download the file first"};
  }
  if (status != 206 && !is_whole) {
    return {Kind::kRefused, with_status};
  }
  if (std::string text = encoding_refusal(head); !text.empty()) {
    return {Kind::kRefused, std::move(text)};
  }
  const std::string_view text = head.header("content-range");
  const auto content =
      is_whole ? ContentRange{.range = range, .size = version.size} : parse_content_range(text);
  if (!content || content->range.length == 0) {
    return {Kind::kRefused, "its server sends no valid Content-Range header"};
  }
  // Compare sizes before ranges, because an object that became smaller cannot return the same
  // range.
  if (content->size != version.size) return {Kind::kChanged, kChangedText};
  // The validators are compared as text: if a strong ETag has become weak, it no longer proves that
  // the bytes are the same. If a weak ETag differs, the bytes may differ as well. A time is
  // compared only if nothing better identifies the version, because the same bytes may be written
  // again.
  const bool is_pinned = !version.version_id.empty() || !version.etag.empty();
  const std::string_view etag = head.header("etag");
  struct Validator {
    std::string_view pinned, now;
  };
  const auto if_nothing_better = [&](std::string_view pin) { return is_pinned ? "" : pin; };
  for (const Validator& validator : std::initializer_list<Validator>{
           {version.etag, etag},
           {if_nothing_better(version.weak_etag), etag.substr(etag.starts_with("W/") ? 2 : 0)},
           {if_nothing_better(version.last_modified), head.header("last-modified")}}) {
    if (validator.pinned.empty() || validator.now == validator.pinned) continue;
    if (!validator.now.empty()) return {Kind::kChanged, kChangedText};
    return {Kind::kRefused,
            "its server no longer sends the ETag or Last-Modified of the version that was opened"};
  }
  const std::string_view length = head.header("content-length");
  if (content->range.offset != range.offset || content->range.length != range.length ||
      (!length.empty() && decimal(length) != range.length)) {
    return {Kind::kRefused, "its server sends other bytes than the requested range"};
  }
  return {Kind::kAccept};
}

}  // namespace stfs
