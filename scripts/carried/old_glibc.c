// Functions that glibc 2.31 lacks. scripts/package adds them to the sysroot's libc_nonshared.a.
#define _GNU_SOURCE
#include "old_glibc.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HIDDEN __attribute__((visibility("hidden")))

// glibc 2.34. Systems with an old C library may have a kernel before Linux 5.9, which lacks the
// system call.
HIDDEN int close_range(unsigned first, unsigned last, int flags) {
  if (syscall(__NR_close_range, first, last, flags) == 0) return 0;
  if (errno != ENOSYS || flags != 0) return -1;
  const long limit = sysconf(_SC_OPEN_MAX);
  for (long fd = first; fd < limit && fd <= (long)last; ++fd) close((int)fd);
  return 0;
}

// Debian 12's libstdc++ calls these two.

// glibc 2.36
HIDDEN uint32_t arc4random(void);
uint32_t arc4random(void) {
  uint32_t number = 0;
  while (getrandom(&number, sizeof number, 0) != sizeof number) {
    if (errno != EINTR) abort();
  }
  return number;
}

// glibc 2.32: nonzero if atomic instructions may be avoided.
HIDDEN char __libc_single_threaded = 0;
