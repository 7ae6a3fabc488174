// libstfs_gpu has no code: a program that needs it finds the functions in libstfs, which it needs.
