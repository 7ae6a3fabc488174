/* The public header is valid C99 by itself. Compiled with -std=c99 -pedantic. */
#include "tools/gpu/library/include/stfs_gpu.h"

#include <stddef.h>

/* The ABI of the structs: they may only grow at their ends. */
#define LAYOUT(name, condition) typedef char name[(condition) ? 1 : -1]
LAYOUT(options_begin_with_size, offsetof(stfs_gpu_acquire_options, size) == 0);
LAYOUT(options_pin, offsetof(stfs_gpu_acquire_options, pin) == 4 * sizeof(void*) + 8);
LAYOUT(info_begins_with_size, offsetof(stfs_gpu_tensor_info, size) == 0);
LAYOUT(info_ordinal, offsetof(stfs_gpu_tensor_info, device_ordinal) == 92);

LAYOUT(options_name_bytes, offsetof(stfs_gpu_acquire_options, name_bytes) == 56);
LAYOUT(options_layers, offsetof(stfs_gpu_acquire_options, layers) == 64);
LAYOUT(info_name_bytes, offsetof(stfs_gpu_tensor_info, name_bytes) == 96);
LAYOUT(info_label_bytes, offsetof(stfs_gpu_tensor_info, label_bytes) == 104);

int header_test_uses_all(void);
int header_test_uses_all(void) {
  stfs_gpu_acquire_options options = STFS_GPU_ACQUIRE_OPTIONS_INIT;
  stfs_gpu_tensor_info info = {sizeof info, NULL, NULL, NULL, 0, 0, NULL, 0,
                               NULL,        NULL, NULL, 0,    0, 0, 0};
  return options.size == sizeof options && info.size == sizeof info;
}
