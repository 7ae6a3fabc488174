# For find_package(stfs_gpu): defines the target stfs::gpu.
include("${CMAKE_CURRENT_LIST_DIR}/stfs_gpu-targets.cmake")
