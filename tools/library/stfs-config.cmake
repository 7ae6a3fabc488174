# For find_package(stfs): defines the target stfs::stfs.
include("${CMAKE_CURRENT_LIST_DIR}/stfs-targets.cmake")
