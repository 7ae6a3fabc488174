# The CUDA back end of stfs_gpu_core. It is compiled if cuda.h is found, and has kernels if nvcc is found as well. The
# driver is loaded at run time. enable_language(CUDA) is not used, because it fails without nvcc and links a CUDA
# library if there is one.
#
#   -DSTFS_CUDA=OFF   ignore a CUDA Toolkit
option(STFS_CUDA "Build the CUDA back end where the CUDA Toolkit is found" ON)

set(toolkit_hints /usr/local/cuda $ENV{CUDA_HOME} $ENV{CUDA_PATH})
find_path(STFS_CUDA_INCLUDE cuda.h HINTS ${toolkit_hints} PATH_SUFFIXES include)
find_program(STFS_NVCC nvcc HINTS ${toolkit_hints} PATH_SUFFIXES bin)
mark_as_advanced(STFS_CUDA_INCLUDE STFS_NVCC)

if(STFS_CUDA AND STFS_CUDA_INCLUDE)
  # The types of cuda.h, for files that include driver.h. The target exists only if the back end is built.
  add_library(stfs_cuda_types INTERFACE)
  target_include_directories(stfs_cuda_types SYSTEM INTERFACE ${STFS_CUDA_INCLUDE})
  target_link_libraries(stfs_gpu_core PRIVATE stfs_cuda_types ${CMAKE_DL_LIBS})
  target_sources(stfs_gpu_core PRIVATE device/cuda_device.cpp device/cuda_findings.cpp device/cuda_mapping.cpp
                 device/cuda_resources.cpp device/driver.cpp device/kernels.cpp)

  if(STFS_NVCC)
    set(kernels ${CMAKE_CURRENT_BINARY_DIR}/convert.fatbin)
    set(sources ${CMAKE_CURRENT_SOURCE_DIR}/device/convert.cu)
    set(headers ${CMAKE_CURRENT_SOURCE_DIR}/device/convert_element.h ${PROJECT_SOURCE_DIR}/core/format/narrow.h)
    # Machine code for each major architecture that nvcc knows, and PTX for the newest.
    add_custom_command(OUTPUT ${kernels}
      COMMAND ${STFS_NVCC} -std=c++20 -O3 -fatbin -arch=all-major
              -I ${PROJECT_SOURCE_DIR} -o ${kernels} ${sources}
      DEPENDS ${sources} ${headers}
      COMMENT "Compiling the conversion kernels" VERBATIM)
    set_source_files_properties(device/kernels.cpp PROPERTIES
      OBJECT_DEPENDS ${kernels} COMPILE_DEFINITIONS STFS_KERNELS="${kernels}")
    message(STATUS "CUDA: ${STFS_CUDA_INCLUDE}, kernels by ${STFS_NVCC}")
  else()
    message(STATUS "CUDA: ${STFS_CUDA_INCLUDE}, no kernels: there is no nvcc")
  endif()
else()
  message(STATUS "CUDA: none")
  target_sources(stfs_gpu_core PRIVATE device/no_cuda.cpp)
endif()
