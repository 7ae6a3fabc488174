// The environment variables and files in which the AWS tools keep settings and credentials.
//
// Thread safety: the functions may be called from any thread, and the classes are immutable. The
// constructor of AwsVariables must not run while another thread sets an environment variable.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace stfs {

// A copy of HOME and of the variables whose names begin with AWS_, made by the constructor.
class AwsVariables {
 public:
  AwsVariables();
  std::string operator[](const std::string& name) const;  // "" if it is not set

 private:
  std::map<std::string, std::string> values_;
};

bool aws_true(std::string_view text);  // returns true for "true" in upper or lower case
// Throws Error kUnreadable about "AWS credentials".
[[noreturn]] void fail_credentials(const std::string& what);

// The sections of a file such as ~/.aws/config. A nested value, such as endpoint_url below `s3 =`
// in [services x], has the name "s3.endpoint_url".
using AwsProfiles = std::map<std::string, std::map<std::string, std::string>>;
AwsProfiles parse_aws_profiles(const std::string& text);

// ~/.aws/credentials and ~/.aws/config, or the files that the environment names. A missing file has
// no profiles.
struct AwsFiles {
  // Throws Error kUnreadable if a file cannot be read, or if no file has the profile AWS_PROFILE.
  explicit AwsFiles(const AwsVariables& variables);

  // Returns a profile of the config file, or nullptr. Valid as long as this.
  const std::map<std::string, std::string>* section(const std::string& name) const;
  // Return a value of a profile, or "". of_config() reads only the config file; value() reads the
  // credentials file first.
  std::string of_config(const std::string& name, const std::string& key) const;
  std::string value(const std::string& name, const std::string& key) const;

  AwsProfiles credentials, config;
  std::string profile;  // AWS_PROFILE, else AWS_DEFAULT_PROFILE, else "default"
};

}  // namespace stfs
