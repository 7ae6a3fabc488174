// The credentials and settings of S3, from the places where the AWS tools look, in their order.
//
// Thread safety: all members.
#pragma once

#include "core/source/http.h"

#include <chrono>
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
  std::string region;    // "" when nothing says it
  std::string endpoint;  // "" for AWS
  bool path_style = false;
};

class S3CredentialChain {
 public:
  explicit S3CredentialChain(Http& http);

  // The current credentials, renewed before they expire; nullopt when no place has any: requests
  // are then sent unsigned. Blocks. Throws Error kUnreadable when a place has some and they cannot
  // be had.
  std::optional<S3Credentials> get();
  // What was given is refused: get() looks again.
  void renew();

  const S3Settings& settings() const { return settings_; }

 private:
  Http& http_;
  S3Settings settings_;
  std::mutex mutex_;
  std::optional<S3Credentials> current_;
};

}  // namespace stfs
