# For find_package(stfs_gpu): defines the target stfs::gpu, another name for stfs::stfs.
include("${CMAKE_CURRENT_LIST_DIR}/../stfs/stfs-config.cmake")
add_library(stfs::gpu INTERFACE IMPORTED)
target_link_libraries(stfs::gpu INTERFACE stfs::stfs)
