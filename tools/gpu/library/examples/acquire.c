/* acquire.c: prints the first values of tensors that stfs-gpu keeps in device memory.
 *
 *   cc acquire.c $(pkg-config --cflags --libs stfs) -o acquire
 *   stfs-gpu load --device cpu /mnt/w/model.norm.weight
 *   ./acquire /mnt/w/model.norm.weight
 *
 * acquire [--device DEVICE] NAME...: with --device, loads tensors that are not resident. Without
 * names, prints every tensor that `stfs-gpu run` gave to this process.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stfs_gpu.h>
#include <string.h>

static int failed(int status) {
  fprintf(stderr, "acquire: %s\n", stfs_gpu_last_error());
  return status;
}

/* Prints the first values of a tensor in host memory: numbers for F32 and BF16, bytes for other
 * types. */
static void print_values(const stfs_gpu_tensor_info* info) {
  const unsigned char* bytes = (const unsigned char*)(uintptr_t)info->pointer;
  const int is_f32 = strcmp(info->dtype, "F32") == 0;
  const int is_bf16 = strcmp(info->dtype, "BF16") == 0;
  const size_t width = is_f32 ? 4 : is_bf16 ? 2 : 1;
  for (size_t i = 0; i < 4 && (i + 1) * width <= info->bytes; ++i) {
    uint32_t bits = 0;
    float value;
    memcpy((char*)&bits + (is_bf16 ? 2 : 0), bytes + i * width, width);
    memcpy(&value, &bits, sizeof value);
    if (is_f32 || is_bf16) {
      printf(" %g", (double)value);
    } else {
      printf(" %02x", bytes[i]);
    }
  }
}

int main(int argc, char** argv) {
  stfs_gpu_connection* connection;
  stfs_gpu_tensors* tensors;
  stfs_gpu_acquire_options options = STFS_GPU_ACQUIRE_OPTIONS_INIT;
  const char* const* names = (const char* const*)argv + 1;
  size_t count = (size_t)argc - 1;
  int status;

  if (count >= 2 && strcmp(names[0], "--device") == 0) {
    options.device = names[1];
    options.load_if_missing = 1;
    names += 2;
    count -= 2;
  }

  status = stfs_gpu_connect(NULL, STFS_GPU_START_HOLDER, &connection);
  if (status != STFS_GPU_OK) return failed(status);
  status = stfs_gpu_acquire(connection, names, count, &options, &tensors);
  if (status != STFS_GPU_OK) {
    stfs_gpu_disconnect(connection);
    return failed(status);
  }

  for (size_t i = 0; i < stfs_gpu_count(tensors); ++i) {
    stfs_gpu_tensor_info info;
    info.size = sizeof info;
    if ((status = stfs_gpu_info(tensors, i, &info)) != STFS_GPU_OK) break;
    printf("%s %s [", info.name, info.dtype);
    for (size_t d = 0; d < info.rank; ++d) printf(d == 0 ? "%" PRIu64 : ",%" PRIu64, info.shape[d]);
    printf("] %" PRIu64 " bytes on %s (%s)", info.bytes, info.device, info.device_uuid);
    if (info.device_type == STFS_GPU_DEVICE_CPU) print_values(&info);
    printf("\n");
  }

  stfs_gpu_release(tensors);
  stfs_gpu_disconnect(connection);
  return status == STFS_GPU_OK ? 0 : failed(status);
}
