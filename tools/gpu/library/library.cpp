// The C ABI over TensorLeases: handles, structs with sizes, and exceptions that become statuses.
#include "core/base/c_abi.h"
#include "core/base/forks.h"
#include "core/base/text.h"
#include "core/command/command.h"
#include "core/opened/open_rows.h"
#include "tools/gpu/device/narrowing.h"
#include "tools/gpu/library/dlpack_export.h"
#include "tools/gpu/library/include/stfs_gpu.h"
#include "tools/gpu/library/tensor_leases.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

using stfs::abi::guarded;
using stfs::abi::prepare;
using stfs::abi::read_sized;
using stfs::abi::refuse;
using stfs::abi::write_sized;

struct stfs_gpu_connection {
  std::uint64_t process;
  std::shared_ptr<stfs::gpu::TensorLeases> leases;
};

struct stfs_gpu_tensors {
  std::uint64_t process;
  std::shared_ptr<stfs::gpu::TensorLeases> leases;
  stfs::gpu::TensorLeases::Tensors tensors;
};

namespace {

stfs::Layers& layers_of(void* to) { return *static_cast<stfs::Layers*>(to); }
constexpr auto kLayerRows = stfs::layer_rows<layers_of>("", true);

template <class Handle>
Handle& checked(Handle* handle, const char* what) {
  if (handle == nullptr) refuse(std::string(what) + ": NULL");
  if (handle->process != stfs::this_process())
    refuse(std::string(what) + ": belongs to the parent process (fork)");
  return *handle;
}

const std::shared_ptr<const stfs::gpu::LeasedTensor>& tensor_at(const stfs_gpu_tensors* tensors,
                                                                std::size_t index) {
  const auto& all = checked(tensors, "tensors").tensors;
  if (index >= all.size()) {
    refuse("tensor " + std::to_string(index) + ": there are only " + std::to_string(all.size()) +
           ", counted from 0");
  }
  return all[index];
}

stfs::DType parse_as(std::string_view text) {
  if (const auto type = stfs::gpu::conversion_target(text)) return *type;
  refuse("as " + stfs::in_quotes(text) + ": not f32, f16 or bf16");
}

stfs::gpu::ExportAs export_as(unsigned flags) {
  if ((flags & ~(STFS_GPU_EXPORT_COPY | STFS_GPU_EXPORT_BYTES)) != 0) {
    refuse("flags: a flag that this version does not support");
  }
  return {.is_copy = (flags & STFS_GPU_EXPORT_COPY) != 0,
          .is_bytes = (flags & STFS_GPU_EXPORT_BYTES) != 0};
}

// Returns the stfs-gpu that was built or installed with this library, or else the one in $PATH.
std::string program() {
  namespace fs = std::filesystem;
  Dl_info self;
  if (::dladdr(reinterpret_cast<const void*>(&stfs_gpu_connect), &self) != 0) {
    std::error_code ignored;
    const fs::path directory = fs::weakly_canonical(self.dli_fname, ignored).parent_path();
    for (const char* relative : {STFS_BINDIR_FROM_LIBDIR, "../gpu"}) {  // installed, built
      fs::path candidate = directory / relative / "stfs-gpu";
      if (fs::is_regular_file(candidate, ignored)) return candidate.lexically_normal();
    }
  }
  return "stfs-gpu";
}

}  // namespace

const char* stfs_gpu_last_error() { return stfs::abi::last_error.text(); }

const char* stfs_gpu_version() { return STFS_VERSION; }

int stfs_gpu_connect(const char* path, unsigned flags, stfs_gpu_connection** connection) {
  return guarded<STFS_GPU_DEVICE>([&] {
    prepare(connection);
    if ((flags & ~STFS_GPU_START_HOLDER) != 0)
      refuse("flags: a flag that this version does not support");
    auto handle = std::make_unique<stfs_gpu_connection>();
    handle->process = stfs::this_process();
    handle->leases = stfs::gpu::TensorLeases::connect(
        path == nullptr ? "" : path, (flags & STFS_GPU_START_HOLDER) != 0 ? program() : "");
    *connection = handle.release();
  });
}

void stfs_gpu_disconnect(stfs_gpu_connection* connection) {
  if (connection != nullptr && connection->process == stfs::this_process()) delete connection;
}

int stfs_gpu_acquire(stfs_gpu_connection* connection, const char* const* names, size_t count,
                     const stfs_gpu_acquire_options* options, stfs_gpu_tensors** tensors) {
  return guarded<STFS_GPU_DEVICE>([&] {
    prepare(tensors);
    stfs_gpu_connection& connected = checked(connection, "the connection");
    const stfs_gpu_acquire_options given = read_sized(options, "the options");
    stfs::gpu::AcquireRequest request;
    if (count > 0 && names == nullptr) refuse("names: NULL");
    for (std::size_t i = 0; i < count; ++i) {
      if (names[i] == nullptr) refuse("name " + std::to_string(i) + ": NULL");
      if (given.name_bytes == nullptr) {
        request.names.emplace_back(names[i]);
      } else {
        request.names.emplace_back(names[i], given.name_bytes[i]);
      }
    }
    if (given.device != nullptr) request.device = given.device;
    if (given.as != nullptr) request.selection.as = parse_as(given.as);
    if (given.shard != nullptr) request.selection.shard = stfs::gpu::parse_shard(given.shard);
    std::vector<std::string> layers;
    if (given.dequantize != nullptr)
      layers.push_back("dequantize=" + std::string(given.dequantize));
    for (const char* const* at = given.layers; at != nullptr && *at != nullptr; ++at) {
      layers.emplace_back(*at);
    }
    for (const std::string& layer : layers) {
      const bool is_own = given.dequantize != nullptr && &layer == layers.data();
      const std::string place = is_own ? "" : "layer " + stfs::in_quotes(layer) + ": ";
      try {
        if (set_word(kLayerRows, layer, &request.selection.layers)) continue;
      } catch (const stfs::Error& error) {
        refuse(place + error.message());
      }
      refuse(place + "not an option of `stfs -o`, such as delta=DIR");
    }
    request.load_if_missing = given.load_if_missing != 0;
    request.verify = given.verify != 0;
    request.pin = given.pin != 0;

    auto handle = std::make_unique<stfs_gpu_tensors>();
    handle->process = stfs::this_process();
    handle->leases = connected.leases;
    handle->tensors = connected.leases->acquire(request);
    *tensors = handle.release();
  });
}

void stfs_gpu_release(stfs_gpu_tensors* tensors) {
  if (tensors == nullptr || tensors->process != stfs::this_process()) return;
  tensors->leases->release(std::move(tensors->tensors));
  delete tensors;
}

size_t stfs_gpu_count(const stfs_gpu_tensors* tensors) {
  return tensors == nullptr ? 0 : tensors->tensors.size();
}

int stfs_gpu_info(const stfs_gpu_tensors* tensors, size_t index, stfs_gpu_tensor_info* info) {
  return guarded<STFS_GPU_DEVICE>([&] {
    const stfs::gpu::LeasedTensor& tensor = *tensor_at(tensors, index);
    stfs_gpu_tensor_info known{};
    known.name = tensor.name.c_str();
    known.label = tensor.label.c_str();
    known.key = tensor.key.c_str();
    known.pointer = tensor.address();
    known.bytes = tensor.bytes;
    known.dtype = stfs::dtype_name(tensor.dtype).data();  // the literal ends in a NUL
    known.rank = tensor.shape.size();
    known.shape = tensor.shape.data();
    known.device = tensor.device().id.c_str();
    known.device_uuid = tensor.device().uuid.c_str();
    known.device_type = tensor.is_on_host() ? STFS_GPU_DEVICE_CPU : STFS_GPU_DEVICE_CUDA;
    known.device_ordinal = tensor.ordinal();
    known.name_bytes = tensor.name.size();
    known.label_bytes = tensor.label.size();
    write_sized(known, info, "the info");
  });
}

int stfs_gpu_pointer(const stfs_gpu_tensors* tensors, size_t index, uint64_t* pointer) {
  return guarded<STFS_GPU_DEVICE>([&] {
    prepare(pointer);
    *pointer = tensor_at(tensors, index)->address();
  });
}

int stfs_gpu_read_f32(const stfs_gpu_tensors* tensors, size_t index, float* values, size_t count) {
  return guarded<STFS_GPU_DEVICE>([&] {
    const stfs::gpu::LeasedTensor& tensor = *tensor_at(tensors, index);
    const auto refuse_tensor = [&](const std::string& rule) {
      refuse(stfs::in_quotes(tensor.label) + ": " + rule);
    };
    if (!tensor.is_on_host())
      refuse_tensor("on " + tensor.device().id + ": only host memory is converted here");
    if (!stfs::gpu::converts(tensor.dtype, stfs::DType::kF32))
      refuse_tensor(std::string(stfs::dtype_name(tensor.dtype)) + " is not a floating-point type");
    const std::uint64_t elements = stfs::type_info(tensor.dtype).elements_in(tensor.bytes);
    if (count != elements)
      refuse_tensor("has " + std::to_string(elements) + " elements, not " + std::to_string(count));
    if (count == 0) return;
    if (values == nullptr) refuse("values: NULL");
    stfs::gpu::convert_elements(tensor.dtype, stfs::DType::kF32, count,
                                {reinterpret_cast<const std::byte*>(tensor.address()),
                                 static_cast<std::size_t>(tensor.bytes)},
                                {reinterpret_cast<std::byte*>(values), count * sizeof(float)});
  });
}

int stfs_gpu_export(const stfs_gpu_tensors* tensors, size_t index, unsigned flags,
                    DLManagedTensorVersioned** exported) {
  return guarded<STFS_GPU_DEVICE>([&] {
    prepare(exported);
    *exported = stfs::gpu::export_dlpack(tensor_at(tensors, index), export_as(flags));
  });
}

int stfs_gpu_export_unversioned(const stfs_gpu_tensors* tensors, size_t index, unsigned flags,
                                DLManagedTensor** exported) {
  return guarded<STFS_GPU_DEVICE>([&] {
    prepare(exported);
    *exported = stfs::gpu::export_dlpack_unversioned(tensor_at(tensors, index), export_as(flags));
  });
}
