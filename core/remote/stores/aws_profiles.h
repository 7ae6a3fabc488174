// The environment and the files in which the AWS tools keep settings and credentials.
//
// Thread safety: the functions may be called from any thread; the classes are immutable. The
// constructor of AwsVariables must not run while another thread sets a variable.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace stfs {

// HOME and the variables whose names begin with AWS_, as they are when it is made.
class AwsVariables {
 public:
  AwsVariables();
  std::string operator[](const std::string& name) const;  // "" when it is not set

 private:
  std::map<std::string, std::string> values_;
};

bool aws_true(std::string_view text);  // "true", in any case
// Throws Error kUnreadable about "AWS credentials".
[[noreturn]] void fail_credentials(const std::string& what);

// The sections of a file such as ~/.aws/config. A nested value, as of `s3 =` in [services x], has
// the name "s3.endpoint_url".
using AwsProfiles = std::map<std::string, std::map<std::string, std::string>>;
AwsProfiles parse_aws_profiles(const std::string& text);

// ~/.aws/credentials and ~/.aws/config, or those that the environment names. A file that is not
// there has no profiles.
struct AwsFiles {
  // Throws Error kUnreadable for a file that cannot be read, and when AWS_PROFILE is in none.
  explicit AwsFiles(const AwsVariables& variables);

  const std::map<std::string, std::string>* section(const std::string& name) const;  // of config
  // A value of a profile, or "": of config alone, or of credentials first.
  std::string of_config(const std::string& name, const std::string& key) const;
  std::string value(const std::string& name, const std::string& key) const;

  AwsProfiles credentials, config;
  std::string profile;  // AWS_PROFILE, or "default"
};

}  // namespace stfs
