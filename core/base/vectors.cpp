#include "core/base/vectors.h"

#include <hwy/targets.h>

#include <atomic>
#include <cstdint>

#if HWY_ARCH_X86
#include <cpuid.h>
#endif

namespace {

#if HWY_ARCH_X86
// Returns true if CPUID sets `bit` of ecx for `leaf`.
bool has_bit(unsigned leaf, unsigned bit) {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(leaf, &eax, &ebx, &ecx, &edx) != 0 && (ecx >> bit & 1) != 0;
}

// Returns the targets of Highway that this processor and its kernel support with all features.
std::int64_t targets_of_processor() {
  std::int64_t targets = HWY_ENABLED_BASELINE;
  if (!__builtin_cpu_supports("sse4.2") || !has_bit(1, 25) || !has_bit(1, 1)) return targets;
  targets |= HWY_SSSE3 | HWY_SSE4;  // bits 25 and 1 are AES and carry-less multiplication
  // If the compiler's check for AVX2 succeeds, the kernel saves the registers of AVX. Bits 29
  // (F16C) and 5 (LZCNT) need no other registers.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                    has_bit(1, 29) && has_bit(0x80000001, 5);
  if (!avx2) return targets;
  targets |= HWY_AVX2;
  const bool avx3 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
                    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512vl");
  if (avx3) targets |= HWY_AVX3;
  return targets;
}
#else
std::int64_t targets_of_processor() { return HWY_ENABLED_BASELINE; }
#endif

std::atomic<std::int64_t> targets_for_test{0};

}  // namespace

// Highway's headers declare these functions and its library defines them. They are defined here
// instead, because that library also measures a timer whenever a program loads it, which takes
// longer than everything else that a small command does.
namespace hwy {

int64_t SupportedTargets() {
  static const std::int64_t targets = targets_of_processor();
  const std::int64_t chosen = targets_for_test.load();
  return chosen != 0 ? chosen : targets;
}

void SetSupportedTargetsForTest(int64_t targets) { targets_for_test.store(targets); }

ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

}  // namespace hwy

namespace stfs {

void with_each_target(const std::function<void(const char* name)>& use) {
  const auto choose = [](std::int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  };
  for (std::int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    const std::int64_t one = left & -left;
    choose(one);
    use(hwy::TargetName(one));
  }
  choose(0);
}

}  // namespace stfs
