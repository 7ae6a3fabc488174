#include "tools/gpu/device/kernels.h"

#ifdef STFS_KERNELS  // the path of the fat binary

// clang-format off
asm(".pushsection .rodata\n"
    ".balign 16\n"
    ".globl stfs_kernels_begin\n"
    ".hidden stfs_kernels_begin\n"
    "stfs_kernels_begin:\n"
    ".incbin \"" STFS_KERNELS "\"\n"
    ".globl stfs_kernels_end\n"
    ".hidden stfs_kernels_end\n"
    "stfs_kernels_end:\n"
    ".byte 0\n"
    ".popsection\n");
// clang-format on

extern "C" {
[[gnu::visibility("hidden")]] extern const std::byte stfs_kernels_begin[];
[[gnu::visibility("hidden")]] extern const std::byte stfs_kernels_end[];
}

std::span<const std::byte> stfs::gpu::embedded_kernels() {
  return {stfs_kernels_begin, stfs_kernels_end};
}

#else

std::span<const std::byte> stfs::gpu::embedded_kernels() { return {}; }

#endif
