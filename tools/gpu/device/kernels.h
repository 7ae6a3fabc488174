// The kernels that nvcc compiled into this build: a fat binary for cuModuleLoadData(), with machine
// code for each major architecture and PTX for later ones. Empty if the build had no nvcc.
#pragma once

#include <cstddef>
#include <span>

namespace stfs::gpu {

std::span<const std::byte> embedded_kernels();

}  // namespace stfs::gpu
