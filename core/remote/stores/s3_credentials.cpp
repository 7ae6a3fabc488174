#include "core/remote/stores/s3_credentials.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/spawn.h"
#include "core/base/text.h"
#include "core/remote/http/http_rules.h"
#include "core/remote/http/server_reason.h"
#include "core/remote/http/url.h"
#include "core/remote/stores/s3_signature.h"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <pugixml.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <ctime>
#include <initializer_list>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace stfs {
namespace {

using WallClock = std::chrono::system_clock;
using namespace std::chrono_literals;

// The maximum size of a text that contains credentials.
constexpr std::size_t kMaxCredentialBytes = std::size_t{1} << 16;
constexpr auto kExpiryMargin = 5min;  // credentials are renewed this long before they expire
constexpr auto kLookPause = 30s;      //  minimum pause between two searches
constexpr auto kProcessLimit = 60s;

// Returns true if a text is safe in a header.
bool is_header_word(std::string_view text) {
  return text.size() <= kMaxCredentialBytes &&
         std::ranges::all_of(text, [](char c) { return c > ' ' && c < '\x7f'; });
}

// Parses "2026-01-31T08:00:00Z", also with a fraction of a second, and with an offset such as
// "+00:00".
std::optional<WallClock::time_point> parse_expiry(const std::string& text) {
  std::tm parts{};
  const char* rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (rest == nullptr) return std::nullopt;
  auto seconds = std::chrono::seconds(::timegm(&parts));
  if (*rest == '.') {
    do ++rest;
    while (*rest >= '0' && *rest <= '9');
  }
  const std::string_view zone = rest;
  if (zone.size() == 6 && (zone[0] == '+' || zone[0] == '-')) {
    const auto offset = std::chrono::hours(std::strtol(rest + 1, nullptr, 10)) +
                        std::chrono::minutes(std::strtol(rest + 4, nullptr, 10));
    seconds -= zone[0] == '+' ? offset : -offset;
  } else if (zone != "Z" && !zone.empty()) {
    return std::nullopt;
  }
  return WallClock::time_point(seconds);
}

// Returns the credentials, or throws Error if they are not valid. The message does not contain
// them.
S3Credentials checked_credentials(S3Credentials credentials, const std::string& from) {
  if (credentials.key.empty() || credentials.secret.empty()) {
    fail_credentials(from + ": did not give an access key and a secret key");
  }
  for (const std::string* text : {&credentials.key, &credentials.secret, &credentials.token}) {
    if (!is_header_word(*text))
      fail_credentials(from + ": gave a key with a space or a control character");
  }
  return credentials;
}

S3Credentials credentials_of_json(const std::string& text, const char* token,
                                  const std::string& from) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) fail_credentials(from + ": did not give a JSON object");
  const auto value = [&](const char* name) {
    const auto at = json.find(name);
    return at != json.end() && at->is_string() ? at->get<std::string>() : "";
  };
  S3Credentials credentials{value("AccessKeyId"), value("SecretAccessKey"), value(token)};
  if (const std::string expires = value("Expiration"); !expires.empty()) {
    credentials.expires = parse_expiry(expires);
    if (!credentials.expires) fail_credentials(from + ": gave an Expiration that is not a time");
  }
  return checked_credentials(std::move(credentials), from);
}

S3Credentials credentials_of_xml(const std::string& text, const std::string& from) {
  pugi::xml_document document;
  document.load_buffer(text.data(), text.size());
  const pugi::xml_node node = document.find_node(
      [](pugi::xml_node any) { return std::string_view(any.name()) == "Credentials"; });
  const auto value = [&](const char* name) { return std::string(node.child_value(name)); };
  return checked_credentials({value("AccessKeyId"), value("SecretAccessKey"), value("SessionToken"),
                              parse_expiry(value("Expiration"))},
                             from);
}

// Returns the output of a command that /bin/sh runs, as in the AWS tools. The command may take a
// minute and print 64 KiB.
std::string process_output(const std::string& command) {
  const std::string from = "credential_process of the profile";
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail_credentials(from + ": " + errno_text(errno));
  const UniqueFd out(ends[0]);
  UniqueFd in(ends[1]);
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!nothing) fail_credentials(from + ": /dev/null: " + errno_text(errno));
  pid_t pid = -1;
  // The command gets a process group of its own, so that its children can be killed as well.
  const SpawnOptions options{.descriptors = {{nothing.get(), 0}, {in.get(), 1}},
                             .leads_group = true};
  if (const int error = spawn({"/bin/sh", "-c", command}, options, pid))
    fail_credentials(from + ": " + errno_text(error));
  in = UniqueFd();
  std::string output;
  const auto end = std::chrono::steady_clock::now() + kProcessLimit;
  bool is_whole = false;
  while (output.size() <= kMaxCredentialBytes) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    pollfd ready{out.get(), POLLIN, 0};
    const int polled = ::poll(&ready, 1, static_cast<int>(std::max<long>(0, left.count())));
    if (polled < 0 && errno == EINTR) continue;
    if (polled <= 0) break;
    std::array<char, 4096> buffer{};
    const ssize_t n = ::read(out.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    is_whole = n == 0;
    if (n <= 0) break;
    output.append(buffer.data(), static_cast<std::size_t>(n));
  }
  // The program may continue to run after it has closed its output. Wait until it ends.
  int status = 0;
  pid_t waited = 0;
  while (is_whole && (waited = ::waitpid(pid, &status, WNOHANG)) == 0) {
    is_whole = std::chrono::steady_clock::now() < end;
    if (is_whole) std::this_thread::sleep_for(5ms);
  }
  if (!is_whole) {
    ::kill(-pid, SIGKILL);
    do waited = ::waitpid(pid, &status, 0);
    while (waited < 0 && errno == EINTR);
  }
  if (output.size() > kMaxCredentialBytes) fail_credentials(from + ": printed more than 64 KiB");
  if (!is_whole) fail_credentials(from + ": did not end within a minute");
  if (waited == pid && (!WIFEXITED(status) || WEXITSTATUS(status) != 0)) {
    fail_credentials(from + ": failed");  // its arguments may contain a secret
  }
  return output;
}

// One search of all places.
class CredentialLook {
 public:
  CredentialLook(Http& http, const S3Settings& settings, const AwsVariables& variables)
      : http_(http), settings_(settings), variables_(variables), files_(variables) {}

  std::optional<S3Credentials> find() const {
    if (auto found = from_environment()) return found;
    if (const std::string file = variables_["AWS_WEB_IDENTITY_TOKEN_FILE"],
        role = variables_["AWS_ROLE_ARN"];
        !file.empty() && !role.empty()) {
      return from_web_identity(file, role, variables_["AWS_ROLE_SESSION_NAME"]);
    }
    if (auto found = from_profile(files_.profile, 0)) return found;
    if (auto found = from_container()) return found;
    return from_instance();
  }

 private:
  std::optional<S3Credentials> from_environment() const {
    S3Credentials found{variables_["AWS_ACCESS_KEY_ID"], variables_["AWS_SECRET_ACCESS_KEY"],
                        variables_["AWS_SESSION_TOKEN"]};
    if (found.key.empty() || found.secret.empty()) return std::nullopt;
    return checked_credentials(std::move(found), "AWS_ACCESS_KEY_ID");
  }

  std::optional<S3Credentials> from_profile(const std::string& name, int depth) const;
  S3Credentials from_role(const std::string& name, const std::string& role, int depth) const;
  S3Credentials from_web_identity(const std::string& file, const std::string& role,
                                  const std::string& session) const;
  std::optional<S3Credentials> from_container() const;
  std::optional<S3Credentials> from_instance() const;

  // The identities that are sent to STS are secrets too, so STS is always contacted over https,
  // even with -o insecure_http.
  WebUrl sts() const {
    std::string text = variables_["AWS_ENDPOINT_URL_STS"];
    if (text.empty()) {
      text = settings_.region.empty() ? "https://sts.amazonaws.com"
                                      : "https://sts." + settings_.region + ".amazonaws.com" +
                                            (settings_.region.starts_with("cn-") ? ".cn" : "");
    }
    const auto url = parse_web_url(text);
    if (!url || (url->scheme != "https" && !url->is_loopback())) {
      fail_credentials("AWS_ENDPOINT_URL_STS or AWS_REGION: does not give an https URL of STS");
    }
    return *url;
  }
  S3Credentials of_sts(const HttpRequest& request, const std::string& from) const {
    const HttpResponse answer = http_.get(request, kMaxCredentialBytes);
    if (answer.head.status == 200) return credentials_of_xml(answer.body, from);
    fail_credentials(
        from + ": STS answered " + std::to_string(answer.head.status) +
        reason_text(answer,
                    secrets_of({.url = "", .body = request.body, .secrets = request.secrets})));
  }

  Http& http_;
  const S3Settings& settings_;
  const AwsVariables& variables_;
  const AwsFiles files_;
};

std::optional<S3Credentials> CredentialLook::from_profile(const std::string& name,
                                                          int depth) const {
  const std::string place = "profile " + in_quotes(name);
  if (const std::string role = files_.value(name, "role_arn"); !role.empty()) {
    if (depth > 4) fail_credentials(place + ": its chain of source_profile is a loop or too long");
    return from_role(name, role, depth);
  }
  S3Credentials found{files_.value(name, "aws_access_key_id"),
                      files_.value(name, "aws_secret_access_key"),
                      files_.value(name, "aws_session_token")};
  if (!found.key.empty()) return checked_credentials(std::move(found), place);
  if (const std::string command = files_.value(name, "credential_process"); !command.empty()) {
    return credentials_of_json(process_output(command), "SessionToken", "credential_process");
  }
  for (const char* const key : {"sso_session", "sso_start_url", "login_session"}) {
    if (files_.value(name, key).empty()) continue;
    fail_credentials(place + ": " +
                     (key == std::string_view("login_session") ? "`aws login`" : "single sign-on") +
                     " is not supported; write a second profile with credential_process = aws"
                     " configure export-credentials --profile " +
                     printable(name) + " --format process");
  }
  return std::nullopt;
}

S3Credentials CredentialLook::from_role(const std::string& name, const std::string& role,
                                        int depth) const {
  const std::string place = "profile " + in_quotes(name) + ": role_arn";
  if (!files_.value(name, "mfa_serial").empty()) {
    fail_credentials(place + ": mfa_serial is not supported; set AWS_SESSION_TOKEN instead");
  }
  const std::string session = files_.value(name, "role_session_name");
  if (const std::string file = files_.value(name, "web_identity_token_file"); !file.empty()) {
    return from_web_identity(file, role, session);
  }
  std::optional<S3Credentials> source;
  if (const std::string other = files_.value(name, "source_profile"); !other.empty()) {
    // A profile that names itself as its source has the keys next to role_arn.
    source = other == name ? S3Credentials{files_.value(name, "aws_access_key_id"),
                                           files_.value(name, "aws_secret_access_key"),
                                           files_.value(name, "aws_session_token")}
                           : from_profile(other, depth + 1);
  } else if (const std::string kind = files_.value(name, "credential_source");
             kind == "Environment") {
    source = from_environment();
  } else if (kind == "EcsContainer") {
    source = from_container();
  } else if (kind == "Ec2InstanceMetadata") {
    source = from_instance();
  }
  if (!source || source->key.empty()) {
    fail_credentials(place + ": its source_profile or credential_source has no credentials");
  }
  const WebUrl url = sts();
  S3Request request{.host = url.authority(), .path = "/", .service = "sts"};
  request.query = {{"Action", "AssumeRole"},
                   {"Version", "2011-06-15"},
                   {"RoleArn", role},
                   {"RoleSessionName", session.empty() ? "stfs" : session}};
  if (const std::string id = files_.value(name, "external_id"); !id.empty()) {
    request.query.emplace_back("ExternalId", id);
  }
  const std::string region = settings_.region.empty() ? "us-east-1" : settings_.region;
  return of_sts({.url = url.scheme + "://" + request.host + "/?" + canonical_query(request.query),
                 .secrets = sign(request, *source, region, WallClock::now()),
                 .follow = false,
                 .ca_file = settings_.ca_file},
                place);
}

S3Credentials CredentialLook::from_web_identity(const std::string& file, const std::string& role,
                                                const std::string& session) const {
  const WebUrl url = sts();
  return of_sts({.url = url.scheme + "://" + url.authority() + "/",
                 .method = "POST",
                 .body = canonical_query(
                     {{"Action", "AssumeRoleWithWebIdentity"},
                      {"Version", "2011-06-15"},
                      {"RoleArn", role},
                      {"RoleSessionName", session.empty() ? "stfs" : session},
                      {"WebIdentityToken", without_blanks(read_file(file, kMaxCredentialBytes))}}),
                 .headers = {"Content-Type: application/x-www-form-urlencoded"},
                 .follow = false,
                 .ca_file = settings_.ca_file},
                "web identity");
}

std::optional<S3Credentials> CredentialLook::from_container() const {
  std::string url;
  if (const std::string path = variables_["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"];
      !path.empty()) {
    if (path[0] != '/') fail_credentials("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI: not a path");
    url = "http://169.254.170.2" + path;
  } else {
    url = variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"];
    if (url.empty()) return std::nullopt;
    const auto parts = parse_web_url(url);
    if (!parts ||
        (parts->scheme == "http" && !parts->is_loopback() && parts->host != "169.254.170.2" &&
         parts->host != "169.254.170.23" && parts->host != "fd00:ec2::23")) {
      fail_credentials(
          "AWS_CONTAINER_CREDENTIALS_FULL_URI: neither https nor a host of ECS, EKS or loopback");
    }
  }
  HttpRequest request{.url = url, .follow = false, .use_proxy = false};
  const std::string file = variables_["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"];
  const std::string token = file.empty() ? variables_["AWS_CONTAINER_AUTHORIZATION_TOKEN"]
                                         : without_blanks(read_file(file, kMaxCredentialBytes));
  if (!token.empty()) {
    if (std::ranges::any_of(token, [](char c) { return c < ' ' || c == '\x7f'; })) {
      fail_credentials("AWS_CONTAINER_AUTHORIZATION_TOKEN: has a control character");
    }
    request.secrets.push_back("Authorization: " + token);
  }
  const HttpResponse answer = http_.get(request, kMaxCredentialBytes, 10s);
  if (answer.head.status != 200) {
    fail_credentials("role of the container: its endpoint answered " +
                     std::to_string(answer.head.status) + reason_text(answer, secrets_of(request)));
  }
  return credentials_of_json(answer.body, "Token", "role of the container");
}

std::optional<S3Credentials> CredentialLook::from_instance() const {
  if (aws_true(variables_["AWS_EC2_METADATA_DISABLED"])) return std::nullopt;
  std::string endpoint = variables_["AWS_EC2_METADATA_SERVICE_ENDPOINT"];
  if (endpoint.empty()) endpoint = "http://169.254.169.254";
  while (endpoint.ends_with('/')) endpoint.pop_back();
  const std::string roles = "/latest/meta-data/iam/security-credentials/";
  const auto ask = [&](const std::string& path, std::string method,
                       std::vector<std::string> headers, std::vector<std::string> secrets) {
    return http_.get({.url = endpoint + path,
                      .method = std::move(method),
                      .headers = std::move(headers),
                      .secrets = std::move(secrets),
                      .follow = false,
                      .use_proxy = false,
                      .limit = 1s},
                     kMaxCredentialBytes, 2s);
  };
  std::string token;
  try {
    const HttpResponse answer =
        ask("/latest/api/token", "PUT", {"X-aws-ec2-metadata-token-ttl-seconds: 21600"}, {});
    if (answer.head.status == 200) token = without_blanks(answer.body);
  } catch (const Error&) {  // most machines are not instances
  }
  if (token.empty() || !is_header_word(token)) return std::nullopt;
  const std::string secret = "X-aws-ec2-metadata-token: " + token;
  const HttpResponse named = ask(roles, "GET", {}, {secret});
  if (named.head.status == 404) return std::nullopt;
  const std::string role = without_blanks(named.body.substr(0, named.body.find('\n')));
  const HttpResponse answer = ask(roles + percent_encode(role), "GET", {}, {secret});
  if (named.head.status != 200 || role.empty() || answer.head.status != 200) {
    fail_credentials("role of the instance: its endpoint answered " +
                     std::to_string(answer.head.status));
  }
  return credentials_of_json(answer.body, "Token", "role of the instance");
}

S3Settings read_settings(const AwsVariables& variables) {
  const AwsFiles files(variables);
  const auto first = [](std::initializer_list<std::string> texts) {
    for (const std::string& text : texts) {
      if (!text.empty()) return text;
    }
    return std::string();
  };
  S3Settings settings;
  settings.region = first({variables["AWS_REGION"], variables["AWS_DEFAULT_REGION"],
                           files.value(files.profile, "region")});
  std::string configured;
  if (!aws_true(variables["AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"])) {
    const std::string services = "services " + files.of_config(files.profile, "services");
    if (const auto at = files.config.find(services); at != files.config.end()) {
      if (const auto url = at->second.find("s3.endpoint_url"); url != at->second.end()) {
        configured = url->second;
      }
    }
    configured = first({variables["AWS_ENDPOINT_URL_S3"], variables["AWS_ENDPOINT_URL"], configured,
                        files.value(files.profile, "endpoint_url")});
  }
  settings.endpoint = configured;
  settings.ca_file = first({variables["AWS_CA_BUNDLE"], files.value(files.profile, "ca_bundle")});
  settings.addressing = lower_case(files.value(files.profile, "s3.addressing_style"));
  constexpr std::array<std::string_view, 4> kYes{"yes", "true", "on", "1"};
  settings.is_unsigned =
      std::ranges::find(kYes, lower_case(variables["AWS_NO_SIGN_REQUEST"])) != kYes.end();
  settings.requester_pays = lower_case(variables["AWS_REQUEST_PAYER"]) == "requester";
  return settings;
}

}  // namespace

std::string aws_error_code(const std::string& xml) { return reason_in(xml).code; }

S3CredentialChain::S3CredentialChain(Http& http, Clock now)
    : http_(http), now_(std::move(now)), settings_(read_settings(variables_)) {}

bool S3CredentialChain::has_just_looked() const {
  const auto now = now_();  // the clock may have been set back
  return last_look_ <= now && now < last_look_ + kLookPause;
}

bool S3CredentialChain::may_go_on() const {
  if (!is_known_ || !current_ || !current_->expires) return is_known_;
  const auto left = *current_->expires - now_();
  if (left > kExpiryMargin) return true;
  return left > std::chrono::seconds(0) && (is_looking_ || has_just_looked());
}

std::optional<S3Credentials> S3CredentialChain::get() {
  std::unique_lock lock(mutex_);
  while (!may_go_on()) {
    if (is_looking_) {
      const std::uint64_t seen = looks_;
      looked_.wait(lock, [&] { return looks_ != seen; });
      if (failure_) std::rethrow_exception(failure_);
      if (is_known_) return current_;
      continue;
    }
    is_looking_ = true;
    lock.unlock();
    std::optional<S3Credentials> found;
    std::exception_ptr failure;
    try {
      found = CredentialLook(http_, settings_, variables_).find();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    is_looking_ = false;
    ++looks_;
    failure_ = failure;
    last_look_ = now_();
    if (!failure) {
      current_ = found;
      is_known_ = true;
    }
    looked_.notify_all();
    if (!failure) return found;
    if (!may_go_on()) std::rethrow_exception(failure);
  }
  return current_;
}

bool S3CredentialChain::renew(const std::optional<S3Credentials>& refused) {
  if (!refused) return false;
  const auto is_refused = [&](const std::optional<S3Credentials>& other) {
    return other && other->key == refused->key && other->secret == refused->secret &&
           other->token == refused->token;
  };
  const std::lock_guard lock(mutex_);
  if (!is_refused(current_)) return true;
  // A search has just found the same credentials. A new one for each read of each file would find
  // them again.
  if (is_known_ && is_refused(refused_) && has_just_looked()) return false;
  refused_ = refused;
  is_known_ = false;
  return true;
}

}  // namespace stfs
