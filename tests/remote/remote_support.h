// Helpers for the tests of remote sources: a restored environment, errors, small disks and rows of
// words.
#pragma once

#include "core/base/error.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs::test {

// Sets environment variables, and restores them when it is destroyed.
class Environment {
 public:
  Environment() = default;
  Environment(const std::string& name, const std::string& value) { set(name, value); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() {
    for (const auto& [name, value] : before_) put(name, value);
  }

  void set(const std::string& name, const std::optional<std::string>& value) {
    const char* const old = std::getenv(name.c_str());
    before_.emplace(name, old == nullptr ? std::nullopt : std::optional<std::string>(old));
    put(name, value);
  }
  // Unsets all variables that begin with one of `beginnings`.
  void clear(std::initializer_list<std::string_view> beginnings) {
    std::vector<std::string> names;
    for (char** at = environ; *at != nullptr; ++at) {
      const std::string text = *at;
      for (const std::string_view beginning : beginnings) {
        if (text.starts_with(beginning)) names.push_back(text.substr(0, text.find('=')));
      }
    }
    for (const std::string& name : names) set(name, std::nullopt);
  }

 private:
  static void put(const std::string& name, const std::optional<std::string>& value) {
    value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
  }

  std::map<std::string, std::optional<std::string>> before_;
};

// An Environment without variables of stores and with an empty directory as HOME.
class StoreEnvironment : public Environment {
 public:
  StoreEnvironment() {
    clear({"AWS_", "HF_", "HUGGING", "XDG_CACHE_HOME="});
    set("HOME", home().string());
    set("AWS_EC2_METADATA_DISABLED", "true");
  }

  std::filesystem::path home() const { return home_.path() / "home"; }
  // Writes a file below HOME, and creates its directories.
  std::filesystem::path write(const std::filesystem::path& name, const std::string& text) const {
    std::filesystem::create_directories((home() / name).parent_path());
    write_file(home() / name, text);
    return home() / name;
  }

 private:
  TempDir home_;
};

// Returns the message of the Error that `act` throws.
inline std::string message_of(const std::function<void()>& act,
                              ErrorCode code = ErrorCode::kUnreadable) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

// Expects an Error with `part` in its message.
inline void expect_error(const std::function<void()>& act, const std::string& part,
                         ErrorCode code = ErrorCode::kUnreadable) {
  const std::string message = message_of(act, code);
  EXPECT_NE(message.find(part), std::string::npos) << message << ", not " << part;
}

// A separate small file system, which is unmounted at the end of the scope.
struct SmallDisk {
  SmallDisk(const std::filesystem::path& at, const char* options) : place(at) {
    std::filesystem::create_directories(place);
    is_mounted = ::mount("tmpfs", place.c_str(), "tmpfs", 0, options) == 0;
  }
  ~SmallDisk() {
    if (is_mounted) ::umount2(place.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  std::filesystem::path place;
  bool is_mounted;
};

#define SKIP_WITHOUT(disk)                                                        \
  if (!(disk).is_mounted) {                                                       \
    if (std::getenv("STFS_REQUIRE_MOUNT") != nullptr) FAIL() << "mounting tmpfs"; \
    GTEST_SKIP() << "this process may not mount";                                 \
  }                                                                               \
  static_assert(true)

// Splits a text at its blanks, for rows of words.
inline std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

}  // namespace stfs::test
