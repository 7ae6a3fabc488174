#include "tests/gguf/ggml.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string_view>
#include <type_traits>

namespace stfs::test {
namespace {

// Loads all functions. Sets `why` if one is missing.
Ggml load(std::string& why) {
  Ggml api{};
  const char* const path = std::getenv("STFS_GGML");
  if (path == nullptr || *path == '\0') {
    why = "STFS_GGML does not name a libggml-base.so (tests/gguf/install_ggml gets one)";
    return api;
  }
  void* const library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    why = ::dlerror();
    return api;
  }
  const auto get = [&](auto& function, const char* name) {
    void* const symbol = ::dlsym(library, name);
    if (symbol == nullptr) why = std::string("no ") + name + " in " + path;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
  };
  get(api.get_type_traits, "ggml_get_type_traits");
  get(api.quantize_chunk, "ggml_quantize_chunk");
  get(api.dequantize_row_q8_K, "dequantize_row_q8_K");
  get(api.init, "ggml_init");
  get(api.free, "ggml_free");
  get(api.new_tensor, "ggml_new_tensor");
  get(api.set_name, "ggml_set_name");
  get(api.get_data, "ggml_get_data");
  get(api.nbytes, "ggml_nbytes");
  get(api.nelements, "ggml_nelements");
  get(api.nrows, "ggml_nrows");
  get(api.n_dims, "ggml_n_dims");
  get(api.get_tensor, "ggml_get_tensor");
  get(api.gguf_init_empty, "gguf_init_empty");
  get(api.gguf_init_from_file, "gguf_init_from_file");
  get(api.gguf_free, "gguf_free");
  get(api.gguf_get_n_tensors, "gguf_get_n_tensors");
  get(api.gguf_get_n_kv, "gguf_get_n_kv");
  get(api.gguf_get_key, "gguf_get_key");
  get(api.gguf_get_tensor_name, "gguf_get_tensor_name");
  get(api.gguf_get_tensor_type, "gguf_get_tensor_type");
  get(api.gguf_get_tensor_offset, "gguf_get_tensor_offset");
  get(api.gguf_get_tensor_size, "gguf_get_tensor_size");
  get(api.gguf_get_data_offset, "gguf_get_data_offset");
  get(api.gguf_get_tensor_ne, "gguf_get_tensor_ne");
  get(api.gguf_get_alignment, "gguf_get_alignment");
  get(api.gguf_get_version, "gguf_get_version");
  get(api.gguf_get_key, "gguf_get_key");
  get(api.gguf_get_kv_type, "gguf_get_kv_type");
  get(api.gguf_get_val_data, "gguf_get_val_data");
  get(api.gguf_get_val_str, "gguf_get_val_str");
  get(api.gguf_get_arr_type, "gguf_get_arr_type");
  get(api.gguf_get_arr_n, "gguf_get_arr_n");
  get(api.gguf_get_arr_data, "gguf_get_arr_data");
  get(api.gguf_get_arr_str, "gguf_get_arr_str");
  get(api.gguf_set_val_str, "gguf_set_val_str");
  get(api.gguf_set_val_u32, "gguf_set_val_u32");
  get(api.gguf_set_arr_str, "gguf_set_arr_str");
  get(api.gguf_add_tensor, "gguf_add_tensor");
  get(api.gguf_write_to_file, "gguf_write_to_file");
  void (*log_set)(void (*)(int, const char*, void*), void*) = nullptr;
  get(log_set, "ggml_log_set");
  if (!why.empty()) return api;
  log_set([](int, const char*, void*) {}, nullptr);
  // ggml fills its tables when the first context is created.
  api.free(api.init({1 << 20, nullptr, true}));
  return api;
}

}  // namespace

const Ggml* ggml(std::string& why) {
  static std::string reason;
  static const Ggml api = load(reason);
  why = reason;
  return reason.empty() ? &api : nullptr;
}

void find_ggml(const Ggml*& found) {
  std::string why;
  found = ggml(why);
  if (found != nullptr) return;
  const char* const required = std::getenv("STFS_REQUIRE_GGML");
  if (required != nullptr && std::string_view(required) == "1") {
    FAIL() << "STFS_REQUIRE_GGML=1, and ggml cannot be loaded: " << why;
  }
  GTEST_SKIP() << why;
}

void GgmlTest::SetUp() { find_ggml(ggml_); }

}  // namespace stfs::test
