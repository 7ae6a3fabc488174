// The credentials and settings of S3, from the places where the AWS tools look, in their order:
//
//   1. AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
//   2. AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN (STS AssumeRoleWithWebIdentity)
//   3. the profile AWS_PROFILE of ~/.aws/credentials and ~/.aws/config: a role (role_arn with
//      source_profile or web_identity_token_file), keys, credential_process
//   4. AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or .._FULL_URI (ECS, EKS)
//   5. the role of an EC2 instance (IMDSv2)
//
// The first place that has some decides.
//
// Thread safety: all members.
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
  std::string key, secret, token;  // token "" for long-lived keys
  std::optional<std::chrono::system_clock::time_point> expires = {};
};

struct S3Settings {
  std::string region;      // "" when nothing says it
  std::string endpoint;    // "" for AWS
  std::string ca_file;     // AWS_CA_BUNDLE, or the profile's ca_bundle; "" for none
  std::string addressing;  // the profile's s3.addressing_style; "" for none
  bool is_unsigned;        // AWS_NO_SIGN_REQUEST
  bool requester_pays;     // AWS_REQUEST_PAYER
};

// The <Code> of an error of S3 or STS: letters and digits; "" when there is none.
std::string aws_error_code(const std::string& xml);

class S3CredentialChain {
 public:
  using Clock = std::function<std::chrono::system_clock::time_point()>;

  // `http` outlives it. Reads the settings and the environment, which it does not read again.
  // Throws Error kUnreadable when there is no profile AWS_PROFILE.
  explicit S3CredentialChain(Http& http, Clock now = std::chrono::system_clock::now);
  S3CredentialChain(const S3CredentialChain&) = delete;
  S3CredentialChain& operator=(const S3CredentialChain&) = delete;

  // The current credentials, renewed five minutes before they expire by one caller, while the
  // others go on with the old ones as long as those are valid; nullopt when no place has any:
  // requests are then sent unsigned. Blocks. Throws Error kUnreadable when a place has some and
  // they cannot be had.
  std::optional<S3Credentials> get();
  // These were refused: get() looks again instead of giving the same. False when there was nothing
  // to refuse, or when it has just looked for that reason and found the same.
  bool renew(const std::optional<S3Credentials>& refused);

  const S3Settings& settings() const { return settings_; }

 private:
  Http& http_;
  const Clock now_;
  const AwsVariables variables_;
  const S3Settings settings_;

  bool may_go_on() const;        // with current_, mutex_ held
  bool has_just_looked() const;  // with mutex_ held

  std::mutex mutex_;
  std::condition_variable looked_;
  bool is_known_ = false;    // current_ is what was found, maybe nothing
  bool is_looking_ = false;  // a caller of get()
  std::optional<S3Credentials> current_;
  std::optional<S3Credentials> refused_;  // by a server, last
  std::uint64_t looks_ = 0;
  std::exception_ptr failure_;  // of the last look
  std::chrono::system_clock::time_point last_look_{};
};

}  // namespace stfs
