// The credentials and settings for S3, from the same places and in the same order as in the AWS
// tools:
//
//   1. AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
//   2. AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN (STS AssumeRoleWithWebIdentity)
//   3. the profile AWS_PROFILE of ~/.aws/credentials and ~/.aws/config: a role (role_arn with
//      source_profile or web_identity_token_file), keys, credential_process
//   4. AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or .._FULL_URI (ECS, EKS)
//   5. the role of an EC2 instance (IMDSv2)
//
// The first place that has credentials is used; later ones are not tried.
//
// Thread safety: all members may be called from any thread.
#pragma once

#include "core/remote/http/http.h"
#include "core/remote/stores/aws_profiles.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace stfs {

struct S3Credentials {
  std::string key, secret, token;  // `token` is "" for long-lived keys
  std::optional<std::chrono::system_clock::time_point> expires = {};
};

struct S3Settings {
  std::string region;      // "" if no place sets it
  std::string endpoint;    // "" for AWS
  std::string ca_file;     // AWS_CA_BUNDLE, or the profile's ca_bundle; "" if not set
  std::string addressing;  // the profile's s3.addressing_style in lower case; "" if not set
  bool is_unsigned;        // AWS_NO_SIGN_REQUEST
  bool requester_pays;     // AWS_REQUEST_PAYER
};

// Returns the <Code> in an error response of S3 or STS (letters and digits), or "".
std::string aws_error_code(const std::string& xml);

class S3CredentialChain {
 public:
  using Clock = std::function<std::chrono::system_clock::time_point()>;

  // `http` must outlive the chain. The constructor reads the settings and the environment; they are
  // not read again. Throws Error kUnreadable if the profile AWS_PROFILE does not exist.
  explicit S3CredentialChain(Http& http, Clock now = std::chrono::system_clock::now);
  S3CredentialChain(const S3CredentialChain&) = delete;
  S3CredentialChain& operator=(const S3CredentialChain&) = delete;

  // Returns the current credentials, or nullopt if no place has any; requests are then sent
  // unsigned. One caller renews credentials five minutes before they expire, while other callers
  // get the old ones while these are valid. Blocks. Throws Error kUnreadable if a place is
  // configured but does not provide credentials.
  std::optional<S3Credentials> get();
  // Reports credentials that a server refused, so that the next get() looks for new ones. Returns
  // false if `refused` is nullopt, or if the last search was less than 30 seconds ago and found
  // them again.
  bool renew(const std::optional<S3Credentials>& refused);

  const S3Settings& settings() const { return settings_; }

 private:
  Http& http_;
  const Clock now_;
  const AwsVariables variables_;
  const S3Settings settings_;

  // The caller of these functions holds mutex_.
  bool may_go_on() const;  // get() may return current_ without a new search
  bool has_just_looked() const;

  std::mutex mutex_;
  std::condition_variable looked_;
  bool is_known_ = false;    // current_ is the result of a search, which may have found nothing
  bool is_looking_ = false;  // a caller of get() is searching
  std::optional<S3Credentials> current_;
  std::optional<S3Credentials> refused_;  // the credentials that a server refused last
  std::uint64_t looks_ = 0;               // number of searches
  std::exception_ptr failure_;            // the error of the last search
  std::chrono::system_clock::time_point last_look_{};
};

}  // namespace stfs
