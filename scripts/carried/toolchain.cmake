# For scripts/package: Debian 12's compiler with Debian 11's C library; all other libraries are static. The compiler is
# in the sysroot, because at another place GCC would also search the directories of this machine.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES STFS_SYSROOT)
set(CMAKE_SYSROOT ${STFS_SYSROOT})
set(CMAKE_C_COMPILER ${STFS_SYSROOT}/usr/bin/x86_64-linux-gnu-gcc-12)
set(CMAKE_CXX_COMPILER ${STFS_SYSROOT}/usr/bin/x86_64-linux-gnu-g++-12)
set(CMAKE_FIND_ROOT_PATH ${STFS_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(library_directory ${STFS_SYSROOT}/usr/lib/x86_64-linux-gnu)
set(ENV{PKG_CONFIG_LIBDIR} ${library_directory}/pkgconfig:${STFS_SYSROOT}/usr/share/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${STFS_SYSROOT})
set(PKG_CONFIG_ARGN --static)
set(CMAKE_CXX_FLAGS_INIT "-include ${CMAKE_CURRENT_LIST_DIR}/old_glibc.h")
# Not -static-libgcc, because glibc's pthread_cancel loads libgcc_s, and aborts in a program that contains a second
# unwinder.
set(CMAKE_EXE_LINKER_FLAGS_INIT -static-libstdc++)
set(CMAKE_SHARED_LINKER_FLAGS_INIT -static-libstdc++)
