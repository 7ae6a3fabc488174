// libstfs_gpu has no code. A program that is linked with it finds the functions in libstfs, on
// which libstfs_gpu depends.
