// Lets a suite run over a network: if STFS_TESTS_OVER is in the environment, the tests' local
// sources are named by URLs. tests/remote/over_test.py sets it.
#pragma once

#include <string>
#include <vector>

namespace stfs::test {

// Returns `source` unchanged if STFS_TESTS_OVER is not set, or if it is not a file or directory
// with a checkpoint. Otherwise returns its URL below the value of STFS_TESTS_OVER. For a directory
// and https, this is the URL of its index or of its only file. If STFS_TESTS_PUT is set, first runs
// that program with the path, so that it uploads the file or directory.
std::string elsewhere(const std::string& source);

// Returns true if STFS_TESTS_OVER is set. Tests that apply only to local files then skip.
bool is_remote();

}  // namespace stfs::test
