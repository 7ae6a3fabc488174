// What glibc 2.31 lacks. scripts/package adds it to the sysroot's libc_nonshared.a.
#define _GNU_SOURCE
#include "old_glibc.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HIDDEN __attribute__((visibility("hidden")))

// glibc 2.34
HIDDEN int close_range(unsigned first, unsigned last, int flags) {
  return (int)syscall(__NR_close_range, first, last, flags);
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

// glibc 2.32: whether atomic instructions may be left out.
HIDDEN char __libc_single_threaded = 0;
