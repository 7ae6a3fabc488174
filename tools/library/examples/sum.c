/* Prints the sum of the values of each floating tensor of a checkpoint.
 *
 *   cc -o sum sum.c $(pkg-config --cflags --libs stfs)
 *   ./sum model.safetensors
 *   ./sum hf://org/model-FP8 dequantize=bf16
 */
#include <stdio.h>
#include <stdlib.h>
#include <stfs.h>

static void sum(stfs_checkpoint* checkpoint, size_t number, const stfs_tensor* tensor) {
  stfs_part part = {sizeof part, number, NULL, "f32"};
  stfs_part_info measure = {.size = sizeof measure};
  if (stfs_get_part_info(checkpoint, &part, &measure) != STFS_OK) return; /* integers */
  float* values = malloc(measure.bytes + 1);
  if (values == NULL || stfs_read(checkpoint, &part, 0, values, measure.bytes) != STFS_OK) {
    fprintf(stderr, "%s\n", values == NULL ? "out of memory" : stfs_last_error());
    exit(1);
  }
  double all = 0;
  for (uint64_t i = 0; i < measure.elements; ++i) all += values[i];
  printf("%-12g %s %s\n", all, tensor->dtype, tensor->name);
  free(values);
}

int main(int argc, char** argv) {
  const char* const* sources = (const char* const*)argv + 1;
  const char* const* options = (const char* const*)argv + 2;
  stfs_checkpoint* checkpoint;
  stfs_table table = {.size = sizeof table};
  if (argc < 2) {
    fprintf(stderr, "usage: sum SOURCE [KEY=VALUE...]\n");
    return 2;
  }
  if (stfs_open(sources, 1, options, (size_t)argc - 2, NULL, &checkpoint) != STFS_OK ||
      stfs_tensors(checkpoint, &table) != STFS_OK) {
    fprintf(stderr, "%s\n", stfs_last_error());
    return 1;
  }
  for (size_t i = 0; i < table.count; ++i) {
    sum(checkpoint, i, (const stfs_tensor*)((const char*)table.first + i * table.stride));
  }
  stfs_close(checkpoint);
  return 0;
}
