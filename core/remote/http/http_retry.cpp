// The parts of http.h that send a request again, and know nothing of libcurl.
#include "core/base/error.h"
#include "core/remote/http/http.h"
#include "core/remote/http/http_rules.h"
#include "core/remote/http/url.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <future>
#include <memory>
#include <random>
#include <utility>

namespace stfs {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Tries of get() when no answer came: a name that cannot be resolved, a refused connection.
constexpr unsigned kMostSilent = 5;

}  // namespace

std::string_view HttpHead::header(std::string_view name) const {
  std::string_view last;
  for (const auto& [each, value] : headers) {
    if (each == name) last = value;
  }
  return last;
}

HttpAnswer Http::get(const HttpRequest& request, std::size_t most,
                     std::optional<milliseconds> patience) {
  const milliseconds time = patience.value_or(patience_);
  const Clock::time_point deadline = Clock::now() + time;
  const std::string place = public_name(request.url);
  Backoff backoff;
  unsigned silent = 0;
  bool needs_new = request.new_connection;
  std::string reason;  // why the last try failed
  for (milliseconds pause{0};;) {
    HttpRequest one = request;
    one.new_connection = needs_new;
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()) - pause;
    one.limit =
        std::max(milliseconds(1), one.limit.count() == 0 ? left : std::min(one.limit, left));
    HttpAnswer answer;
    bool is_too_long = false;
    const auto ended = std::make_shared<std::promise<HttpEnd>>();  // which outlives set_value()
    start(std::move(one),
          {.head =
               [&](const HttpHead& head) {
                 answer.head = head;
                 return true;
               },
           .data =
               [&](std::span<const std::byte> bytes) {
                 is_too_long = bytes.size() > most - answer.body.size();
                 if (is_too_long) return false;
                 answer.body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
                 return true;
               },
           .end = [ended](const HttpEnd& end) { ended->set_value(end); }},
          pause);
    const HttpEnd end = ended->get_future().get();
    const bool is_wrong =
        end.error == EPROTO || end.error == EACCES || (is_too_long && answer.head.status < 300);
    if (is_wrong && end.was_kept && !std::exchange(needs_new, true)) {
      pause = milliseconds(0);
      if (counters_ != nullptr) counters_->retries.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    if (is_too_long && answer.head.status < 300) {
      throw Error(ErrorCode::kUnreadable, place,
                  request.range && answer.head.status == 200
                      ? "its server does not answer ranges: download it first"
                      : "its server sends more than it must");
    }
    const bool is_answer = end.error == 0 || is_too_long;
    if (is_answer && !is_temporary(answer.head.status)) return answer;
    const bool has_broken = end.error == EIO || end.error == ETIMEDOUT;
    if (end.error == EIO && answer.head.status == 0) ++silent;
    pause = backoff.next(answer.head.status == 0 ? nullptr : &answer.head);
    if (!(is_answer || has_broken) || silent >= kMostSilent || Clock::now() + pause >= deadline) {
      if (is_answer) return answer;
      const bool is_over = end.error == ETIMEDOUT && Clock::now() >= deadline;
      throw Error(ErrorCode::kUnreadable, place,
                  is_over ? "no whole answer within " + in_seconds(time) +
                                (reason.empty() ? "" : ": " + reason)
                          : end.text);
    }
    if (end.error != 0) reason = end.text;
    if (counters_ != nullptr) {
      counters_->retries.fetch_add(1, std::memory_order_relaxed);
    }
  }
}

bool is_temporary(int status) {
  constexpr std::array<int, 7> kTemporary{408, 429, 500, 502, 503, 504, 509};
  return std::ranges::find(kTemporary, status) != kTemporary.end();
}

std::optional<std::int64_t> parse_http_date(std::string_view text) {
  // "Sun, 06 Nov 1994 08:49:37 GMT": the one form that may be sent (RFC 9110, 5.6.7).
  constexpr std::string_view kMonths = "JanFebMarAprMayJunJulAugSepOctNovDec";
  constexpr std::string_view kForm = "Www, 00 Mmm 0000 00:00:00 GMT";
  if (text.size() != kForm.size()) return std::nullopt;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_fixed = i > 2 && (i < 8 || i > 10) && kForm[i] != '0';
    if (is_fixed && text[i] != kForm[i]) return std::nullopt;
  }
  const auto number = [&](std::size_t at, std::size_t count) {
    const auto value = decimal(text.substr(at, count));
    return value ? static_cast<int>(*value) : -1;
  };
  const std::size_t month = kMonths.find(text.substr(8, 3));
  const int day = number(5, 2), year = number(12, 4);
  const int hour = number(17, 2), minute = number(20, 2), second = number(23, 2);
  if (month == std::string_view::npos || month % 3 != 0 || day < 0 || year < 0 || hour < 0 ||
      hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 60) {
    return std::nullopt;
  }
  const std::chrono::year_month_day date{std::chrono::year(year),
                                         std::chrono::month(static_cast<unsigned>(month / 3 + 1)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (!date.ok()) return std::nullopt;
  return std::chrono::sys_seconds(std::chrono::sys_days(date)).time_since_epoch().count() +
         std::int64_t{hour} * 3600 + std::int64_t{minute} * 60 + second;
}

namespace {

// The seconds for which `RateLimit: "api";r=0;t=55` asks: those of a quota that is used up.
std::uint64_t seconds_of_rate_limit(std::string_view text) {
  std::uint64_t longest = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    std::string_view item = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    std::uint64_t rest = 1, time = 0;
    while (!item.empty()) {
      const std::size_t semicolon = std::min(item.find(';'), item.size());
      const std::string_view part = without_blanks(item.substr(0, semicolon));
      item.remove_prefix(std::min(semicolon + 1, item.size()));
      if (part.starts_with("r=")) rest = decimal(part.substr(2)).value_or(1);
      if (part.starts_with("t=")) time = decimal(part.substr(2)).value_or(0);
    }
    if (rest == 0) longest = std::max(longest, time);
  }
  return longest;
}

std::uint64_t seconds_of_retry_after(std::string_view text) {
  if (const auto seconds = decimal(text)) return *seconds;
  const std::optional<std::int64_t> date = parse_http_date(text);
  const std::int64_t now = std::chrono::duration_cast<std::chrono::seconds>(
                               std::chrono::system_clock::now().time_since_epoch())
                               .count();
  return date && *date > now ? static_cast<std::uint64_t>(*date - now) : 0;
}

}  // namespace

milliseconds Backoff::next(const HttpHead* head) {
  constexpr std::uint64_t kMostAsked = 86'400;  // seconds
  const std::int64_t bound = std::min<std::int64_t>(10'000, 100LL << std::min(tries_++, 10U));
  std::random_device random;
  const milliseconds jitter(std::uniform_int_distribution<std::int64_t>(0, bound)(random));
  if (head == nullptr) return jitter;
  const std::uint64_t asked = std::max(seconds_of_retry_after(head->header("retry-after")),
                                       seconds_of_rate_limit(head->header("ratelimit")));
  return std::chrono::seconds(std::min(asked, kMostAsked)) + jitter;
}

}  // namespace stfs
