# Found by find_package(stfs_gpu): the library is the target stfs::gpu.
include("${CMAKE_CURRENT_LIST_DIR}/stfs_gpu-targets.cmake")
