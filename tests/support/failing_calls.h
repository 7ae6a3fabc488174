// Runs programs with failing calls; failing_calls.cpp has the settings.
#pragma once

#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace stfs::test {

// Returns the environment for RunOptions in which calls of `kind` fail, with settings "NAME=value",
// including the options of a sanitized program.
inline std::vector<std::string> failing(const std::string& call, std::vector<std::string> settings,
                                        const std::string& options = "") {
  settings.push_back(std::string("LD_PRELOAD=") + STFS_FAILING_CALLS);
  settings.push_back("STFS_FAIL_CALL=" + call);
  for (const std::string& option : sanitizer_options("verify_asan_link_order=0:" + options))
    settings.push_back(option);
  return settings;
}

// Call this in SetUp().
inline void skip_where_calls_cannot_fail() {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer must be the first library, and these calls are its own";
#endif
}

}  // namespace stfs::test
