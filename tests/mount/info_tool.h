// Runs stfs-info.
#pragma once

#include "tests/support/elsewhere.h"
#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <sstream>
#include <string>
#include <vector>

namespace stfs::test {

inline Outcome info(std::vector<std::string> arguments) {
  // A test server may serve the sources, but the output file stays local.
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (i == 0 || arguments[i - 1] != "-o") arguments[i] = elsewhere(arguments[i]);
  }
  arguments.insert(arguments.begin(), STFS_INFO_BINARY);
  return run(arguments);
}

// Expects exit status `status`, no output, and one line on standard error that contains `part`.
inline void expect_one_line(const Outcome& result, int status, const std::string& part = "") {
  EXPECT_EQ(result.status, status) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(result.err.starts_with("stfs-info: ")) << result.err;
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace stfs::test
