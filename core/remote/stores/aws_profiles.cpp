#include "core/remote/stores/aws_profiles.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/remote/http/http_rules.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>

namespace stfs {
namespace {

constexpr std::uint64_t kMaxProfileBytes = std::uint64_t{1} << 20;

AwsProfiles profiles_of(const AwsVariables& variables, const char* name, const char* usual) {
  std::string path = variables[name];
  const std::string home = variables["HOME"];
  if (path.empty() && !home.empty()) path = home + usual;
  if (path.starts_with("~/")) path.replace(0, 1, home);
  if (path.empty()) return {};
  try {
    return parse_aws_profiles(read_file(path, kMaxProfileBytes));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kAbsent) return {};
    throw;
  }
}

}  // namespace

AwsVariables::AwsVariables() {
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view line = *at;
    const std::size_t equals = std::min(line.find('='), line.size());
    const std::string_view name = line.substr(0, equals);
    if (equals == line.size() || (name != "HOME" && !name.starts_with("AWS_"))) continue;
    values_.try_emplace(std::string(name), line.substr(equals + 1));
  }
}

std::string AwsVariables::operator[](const std::string& name) const {
  const auto at = values_.find(name);
  return at == values_.end() ? "" : at->second;
}

bool aws_true(std::string_view text) { return lower_case(text) == "true"; }

void fail_credentials(const std::string& what) {
  throw Error(ErrorCode::kUnreadable, "AWS credentials", what);
}

AwsProfiles parse_aws_profiles(const std::string& text) {
  AwsProfiles profiles;
  std::map<std::string, std::string>* section = nullptr;
  std::string outer;  // the key that nested values belong to; its own value is empty
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    const std::string content = without_blanks(line);
    if (content.empty() || content[0] == '#' || content[0] == ';') continue;
    if (content[0] == '[') {
      std::string name = without_blanks(std::string_view(content).substr(1, content.find(']') - 1));
      // "profile  x" becomes "profile x".
      if (const std::size_t space = name.find_first_of(" \t"); space != std::string::npos) {
        name.replace(space, std::string::npos, " " + without_blanks(name.substr(space)));
      }
      section = &profiles[name];
      outer.clear();
      continue;
    }
    const std::size_t equals = content.find('=');
    if (section == nullptr || equals == std::string::npos) continue;
    const std::string name = without_blanks(std::string_view(content).substr(0, equals));
    const std::string value = without_blanks(std::string_view(content).substr(equals + 1));
    const bool is_nested = (line[0] == ' ' || line[0] == '\t') && !outer.empty();
    (*section)[is_nested ? outer + "." + name : name] = value;
    if (!is_nested) outer = value.empty() ? name : "";
  }
  return profiles;
}

AwsFiles::AwsFiles(const AwsVariables& variables)
    : credentials(profiles_of(variables, "AWS_SHARED_CREDENTIALS_FILE", "/.aws/credentials")),
      config(profiles_of(variables, "AWS_CONFIG_FILE", "/.aws/config")),
      profile(variables["AWS_PROFILE"]) {
  if (profile.empty()) profile = variables["AWS_DEFAULT_PROFILE"];
  if (profile.empty()) {
    profile = "default";
  } else if (!credentials.contains(profile) && section(profile) == nullptr) {
    fail_credentials("AWS_PROFILE: there is no profile " + in_quotes(profile));
  }
}

const std::map<std::string, std::string>* AwsFiles::section(const std::string& name) const {
  auto at = config.find("profile " + name);
  if (at == config.end() && name == "default") at = config.find(name);
  return at == config.end() ? nullptr : &at->second;
}
std::string AwsFiles::of_config(const std::string& name, const std::string& key) const {
  const auto* const values = section(name);
  if (values == nullptr) return "";
  const auto at = values->find(key);
  return at == values->end() ? "" : at->second;
}
std::string AwsFiles::value(const std::string& name, const std::string& key) const {
  if (const auto at = credentials.find(name); at != credentials.end()) {
    if (const auto found = at->second.find(key); found != at->second.end()) return found->second;
  }
  return of_config(name, key);
}

}  // namespace stfs
