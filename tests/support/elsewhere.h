// Runs a suite over a network: with STFS_TESTS_OVER in the environment, the tests' local sources
// are named by URLs. tests/remote/over_test.py sets it.
#pragma once

#include <string>
#include <vector>

namespace stfs::test {

// `source` if STFS_TESTS_OVER is not set, or if it is no file or directory with a checkpoint. Else
// its URL below the value of STFS_TESTS_OVER: of a directory, for https, that of its index or only
// file. STFS_TESTS_PUT names a program that is first called with the path, to bring it there.
std::string elsewhere(const std::string& source);

// Whether the environment asks for it. A test of what only local files do skips then.
bool is_elsewhere();

}  // namespace stfs::test
