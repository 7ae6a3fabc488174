# What `cpack` makes from an installed tree: stfs_VERSION_ARCH.deb in the build directory.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME stfs)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_VENDOR stfs)
set(CPACK_PACKAGE_CONTACT "stfs maintainers <stfs@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "mount a safetensors checkpoint: every tensor is a file")
set(CPACK_PACKAGE_DESCRIPTION
"stfs mounts a checkpoint of model weights in the safetensors format, one file
or many shards, on the disk, on the Hub, in S3 or on a web server, as a read-only file system. Each tensor is a file that holds
its raw bytes; name, dtype, shape and place in the source are extended
attributes.
.
stfs-info lists, checks and reads the same checkpoints without a mount.
.
stfs-gpu copies tensors into the memory of a GPU, or of the host, and keeps
them there for every process that asks.")
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
# Install like `DESTDIR=... cmake --install --prefix /usr`, so that the unit names /usr/bin.
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
# dpkg-shlibdeps finds the libraries except libcurl, which is loaded when a URL is read. fusermount3 and mount.fuse3 are
# run, not linked. Without ca-certificates no https server is trusted.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "fuse3, libcurl4")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS ca-certificates)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
