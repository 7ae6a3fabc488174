// ggml's own library, which a test loads when it runs. STFS_GGML is the path of a libggml-base.so
// (install_ggml gets one). If it is not set, tests skip; with STFS_REQUIRE_GGML=1 they fail.
//
// Thread safety: none. Lifetime: the library stays loaded until the process ends.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace stfs::test {

// The parts of ggml's interface (ggml.h, gguf.h) that tests call.
struct Ggml {
  struct Traits {
    const char* name;
    std::int64_t block_elements;
    std::int64_t interleave;
    std::size_t block_bytes;
    bool is_quantized;
    void (*to_float)(const void*, float*, std::int64_t);
    void (*from_float)(const float*, void*, std::int64_t);
  };
  struct InitParams {
    std::size_t memory;
    void* buffer;
    bool no_alloc;
  };
  struct GgufParams {
    bool no_alloc;
    void** context;
  };

  const Traits* (*get_type_traits)(int type);
  std::size_t (*quantize_chunk)(int type, const float* from, void* to, std::int64_t start,
                                std::int64_t rows, std::int64_t row_elements, const float* weights);
  void (*dequantize_row_q8_K)(const void*, float*, std::int64_t);
  void* (*init)(InitParams);
  void (*free)(void*);
  void* (*new_tensor)(void* context, int type, int rank, const std::int64_t* dims);
  void* (*set_name)(void* tensor, const char* name);
  void* (*get_data)(const void* tensor);
  std::size_t (*nbytes)(const void* tensor);
  std::int64_t (*nelements)(const void* tensor);
  std::int64_t (*nrows)(const void* tensor);
  int (*n_dims)(const void* tensor);
  void* (*get_tensor)(void* context, const char* name);

  void* (*gguf_init_empty)();
  void* (*gguf_init_from_file)(const char* path, GgufParams);
  void (*gguf_free)(void*);
  std::int64_t (*gguf_get_n_tensors)(const void*);
  std::int64_t (*gguf_get_n_kv)(const void*);
  const char* (*gguf_get_key)(const void*, std::int64_t);
  const char* (*gguf_get_tensor_name)(const void*, std::int64_t);
  int (*gguf_get_tensor_type)(const void*, std::int64_t);
  std::size_t (*gguf_get_tensor_offset)(const void*, std::int64_t);
  std::size_t (*gguf_get_tensor_size)(const void*, std::int64_t);
  std::size_t (*gguf_get_data_offset)(const void*);
  const std::int64_t* (*gguf_get_tensor_ne)(const void*, std::int64_t);
  std::size_t (*gguf_get_alignment)(const void*);
  std::uint32_t (*gguf_get_version)(const void*);
  int (*gguf_get_kv_type)(const void*, std::int64_t);
  const void* (*gguf_get_val_data)(const void*, std::int64_t);  // only for scalars
  const char* (*gguf_get_val_str)(const void*, std::int64_t);
  int (*gguf_get_arr_type)(const void*, std::int64_t);
  std::size_t (*gguf_get_arr_n)(const void*, std::int64_t);
  const void* (*gguf_get_arr_data)(const void*,
                                   std::int64_t);  // only for elements that are not strings
  const char* (*gguf_get_arr_str)(const void*, std::int64_t, std::size_t);
  void (*gguf_set_val_str)(void*, const char* key, const char* value);
  void (*gguf_set_val_u32)(void*, const char* key, std::uint32_t value);
  void (*gguf_set_arr_str)(void*, const char* key, const char** values, std::size_t count);
  void (*gguf_add_tensor)(void*, const void* tensor);
  bool (*gguf_write_to_file)(const void*, const char* path, bool only_header);
};

// Returns the library, or null and the reason in `why`.
const Ggml* ggml(std::string& why);

// Loads the library. If this fails, skips the test or lets it fail. Called by SetUp().
void find_ggml(const Ggml*& found);

class GgmlTest : public ::testing::Test {
 protected:
  void SetUp() override;
  const Ggml* ggml_ = nullptr;
};

}  // namespace stfs::test
