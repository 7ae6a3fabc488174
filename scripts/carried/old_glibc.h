// Names of newer C libraries that stfs uses, for the build against glibc 2.31. Included before each
// file of that build.
#pragma once

#define MADV_POPULATE_READ 22  // glibc 2.35

#ifdef __cplusplus
extern "C" {
#endif

int close_range(unsigned first, unsigned last, int flags);  // glibc 2.34

#ifdef __cplusplus
}
#endif
