/* The public header is valid C99 by itself: this file is compiled with -std=c99 -pedantic. */
#include "tools/library/include/stfs.h"

#include <stddef.h>

/* The ABI of the structs, which may only grow at the end. */
#define LAYOUT(name, condition) typedef char name[(condition) ? 1 : -1]
LAYOUT(extra_reserved, offsetof(stfs_open_extra, reserved) == 8 && sizeof(stfs_open_extra) >= 24);
LAYOUT(tensor_offset, offsetof(stfs_tensor, offset) == 64 && sizeof(stfs_tensor) >= 72);
LAYOUT(table_names_bytes, offsetof(stfs_table, names_bytes) == 40 && sizeof(stfs_table) >= 48);
LAYOUT(part_as, offsetof(stfs_part, as) == 24 && sizeof(stfs_part) >= 32);
LAYOUT(measure_shape, offsetof(stfs_part_info, shape) == 40 && sizeof(stfs_part_info) >= 552);

int header_test_uses_all(void);
int header_test_uses_all(void) { return STFS_OK + STFS_TEXT_INFO + (int)STFS_EXPORT_BYTES; }
