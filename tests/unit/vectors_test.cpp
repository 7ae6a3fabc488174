// Compares the instruction sets that stfs finds with the kernel's list.
#include "core/base/vectors.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <fstream>
#include <initializer_list>
#include <set>
#include <sstream>
#include <string>

namespace stfs::test {
namespace {

TEST(Vectors, MatchInstructionSetsInProcCpuinfo) {
#if HWY_ARCH_X86
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line) && !line.starts_with("flags")) {
  }
  std::istringstream words(line);
  std::set<std::string> flags;
  for (std::string word; words >> word;) flags.insert(word);
  ASSERT_TRUE(flags.contains("fpu"));
  const auto all = [&](std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (!flags.contains(name)) return false;
    }
    return true;
  };
  const bool sse4 = all({"sse4_1", "sse4_2", "ssse3", "pclmulqdq", "aes"});
  // Not "abm" (LZCNT): each processor with AVX2 has it, and some kernels do not list it.
  const bool avx2 = sse4 && all({"avx", "avx2", "fma", "f16c", "bmi1", "bmi2"});
  const bool avx3 = avx2 && all({"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"});
  const std::int64_t found = hwy::SupportedTargets();
  EXPECT_EQ((found & HWY_SSE4) != 0, sse4);
  EXPECT_EQ((found & HWY_AVX2) != 0, avx2);
  EXPECT_EQ((found & HWY_AVX3) != 0, avx3);
#else
  GTEST_SKIP() << "on other processors the compiler's options decide";
#endif
}

}  // namespace
}  // namespace stfs::test
