// The part of http.h that sends requests again.
#include "core/base/error.h"
#include "core/remote/http/http.h"
#include "core/remote/http/http_rules.h"
#include "core/remote/http/libcurl.h"
#include "core/remote/http/url.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <ctime>
#include <future>
#include <memory>
#include <random>
#include <thread>
#include <utility>

namespace stfs {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// The maximum number of tries in get() without any response: the name cannot be resolved, or the
// connection is refused.
constexpr unsigned kMaxSilent = 5;

}  // namespace

std::string_view HttpHead::header(std::string_view name) const {
  std::string_view last;
  for (const auto& [each, value] : headers) {
    if (each == name) last = value;
  }
  return last;
}

HttpResponse Http::get(const HttpRequest& request, std::size_t most,
                       std::optional<milliseconds> patience,
                       const std::function<bool(const HttpResponse&)>& is_temporary) {
  const milliseconds time = patience.value_or(patience_);
  const Clock::time_point deadline = Clock::now() + time;
  const std::string place = public_name(request.url);
  Backoff backoff;
  unsigned silent = 0;
  bool needs_new = request.new_connection;
  std::string reason;  // why the last try failed
  for (milliseconds pause{0};; tally(counters_, &Counters::retries)) {
    std::this_thread::sleep_for(pause);
    HttpRequest one = request;
    one.new_connection = needs_new;
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    one.limit =
        std::max(milliseconds(1), one.limit.count() == 0 ? left : std::min(one.limit, left));
    HttpResponse answer;
    bool is_cut = false;
    const auto ended =
        std::make_shared<std::promise<TransferResult>>();  // must outlive set_value()
    start(std::move(one), {.head =
                               [&](const HttpHead& head) {
                                 answer.head = head;
                                 return true;
                               },
                           .data =
                               [&](std::span<const std::byte> bytes) {
                                 is_cut = bytes.size() > most - answer.body.size();
                                 if (is_cut) return false;
                                 answer.body.append(reinterpret_cast<const char*>(bytes.data()),
                                                    bytes.size());
                                 return true;
                               },
                           .end = [ended](const TransferResult& end) { ended->set_value(end); }});
    TransferResult end = ended->get_future().get();
    const int status = answer.head.status;
    const bool is_too_long = is_cut && status < 300;
    if (is_cut && !is_too_long) end.error = 0;
    const bool is_later =
        end.error == 0 && (stfs::is_temporary(status) || (is_temporary && is_temporary(answer)));
    const NextTry next = next_try(end, is_too_long ? ResponseQuality::kWrong
                                       : is_later  ? ResponseQuality::kTemporary
                                                   : ResponseQuality::kGood);
    if (next == NextTry::kNow && !std::exchange(needs_new, true)) {
      pause = milliseconds(0);
      continue;
    }
    if (is_too_long) {
      throw Error(ErrorCode::kUnreadable, place,
                  request.range && status == 200
                      ? "its server does not support range requests: download the file first"
                      : "its server sends more bytes than expected");
    }
    if (end.error == EIO && status == 0) ++silent;
    pause = backoff.next(status == 0 ? nullptr : &answer.head);
    const bool is_over = Clock::now() + pause >= deadline || silent >= kMaxSilent;
    if (next == NextTry::kLater && !is_over) {
      if (end.error != 0) reason = end.text;
      continue;
    }
    if (end.error == 0) return answer;
    const bool was_late = end.error == ETIMEDOUT && Clock::now() >= deadline;
    throw Error(ErrorCode::kUnreadable, place,
                was_late ? "no complete response within " + in_seconds(time) +
                               (reason.empty() ? "" : ": " + reason)
                         : end.text);
  }
}

NextTry next_try(const TransferResult& end, ResponseQuality answer) {
  const bool is_refused = end.error == EPROTO || end.error == EACCES;
  if (answer == ResponseQuality::kWrong || (answer == ResponseQuality::kGood && is_refused)) {
    return end.was_kept ? NextTry::kNow : NextTry::kNone;
  }
  const bool has_broken = end.error == EIO || end.error == ETIMEDOUT;
  return answer == ResponseQuality::kTemporary || has_broken ? NextTry::kLater : NextTry::kNone;
}

bool is_temporary(int status) {
  constexpr std::array<int, 7> kTemporary{408, 429, 500, 502, 503, 504, 509};
  return std::ranges::find(kTemporary, status) != kTemporary.end();
}

std::optional<std::int64_t> parse_http_date(std::string_view text) {
  const std::time_t time = libcurl().getdate(std::string(text).c_str(), nullptr);
  return time == -1 ? std::nullopt : std::optional<std::int64_t>(time);
}

namespace {

// Returns the pause that `RateLimit: "api";r=0;t=55` asks for, in seconds: the longest of all
// quotas that are used up.
std::uint64_t seconds_of_rate_limit(std::string_view text) {
  std::uint64_t longest = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    std::string_view item = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    std::uint64_t rest = 1, time = 0;
    while (!item.empty()) {
      const std::size_t semicolon = std::min(item.find(';'), item.size());
      const std::string part = without_blanks(item.substr(0, semicolon));
      item.remove_prefix(std::min(semicolon + 1, item.size()));
      if (part.starts_with("r=")) rest = decimal(std::string_view(part).substr(2)).value_or(1);
      if (part.starts_with("t=")) time = decimal(std::string_view(part).substr(2)).value_or(0);
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
  constexpr std::uint64_t kMaxAsked = 86'400;  // seconds
  const std::int64_t bound = std::min<std::int64_t>(10'000, 100LL << std::min(tries_++, 10U));
  std::random_device random;
  const milliseconds jitter(std::uniform_int_distribution<std::int64_t>(0, bound)(random));
  if (head == nullptr) return jitter;
  const std::uint64_t asked = std::max(seconds_of_retry_after(head->header("retry-after")),
                                       seconds_of_rate_limit(head->header("ratelimit")));
  return std::chrono::seconds(std::min(asked, kMaxAsked)) + jitter;
}

}  // namespace stfs
