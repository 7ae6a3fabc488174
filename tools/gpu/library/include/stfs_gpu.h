/* stfs_gpu.h: reads tensors that stfs-gpu keeps in device memory, from any language that can call
 * C.
 *
 *   stfs_gpu_connection *connection;
 *   stfs_gpu_tensors *tensors;
 *   const char *name = "/mnt/w/model.norm.weight";
 *   if (stfs_gpu_connect(NULL, 0, &connection) != STFS_GPU_OK ||
 *       stfs_gpu_acquire(connection, &name, 1, NULL, &tensors) != STFS_GPU_OK)
 *     fprintf(stderr, "%s\n", stfs_gpu_last_error());
 *
 * Acquired tensors stay in device memory, mapped into the address space of the process, until the
 * process releases them or exits, for any reason. A pointer to GPU memory can be used only on that
 * device. All memory is read-only and its values never change, because other processes see the same
 * bytes: a store to host memory raises SIGSEGV, and a kernel's store to GPU memory fails if the
 * driver can protect it.
 *
 * Threads: several threads may use a connection and its tensors at the same time; acquires on one
 * connection take turns. Free a handle once, while no other thread uses it.
 *
 * fork(2): a child cannot use its parent's handles: functions that can fail return STFS_GPU_USAGE,
 * and functions that free do nothing. The parent's leases last until both processes have ended or
 * called execve(2). The child may open its own connection, but CUDA works in a child only if its
 * parent has not used CUDA.
 *
 * Structs begin with their size, so that a program and a library of different versions can work
 * together. A member that one side does not know counts as zero.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define STFS_GPU_API __attribute__((visibility("default")))
#else
#define STFS_GPU_API
#endif

/* The return values of functions that can fail: 0, or the exit status of stfs-gpu for the same
 * failure. */
enum {
  STFS_GPU_OK = 0,
  STFS_GPU_INVALID = 1,    /* the checkpoint breaks its format */
  STFS_GPU_USAGE = 2,      /* the request is invalid */
  STFS_GPU_UNREADABLE = 3, /* the source cannot be read, or has changed */
  STFS_GPU_DEVICE = 5      /* the device or the holder failed; or not resident, or out of memory */
};

/* A connection to the holder. */
typedef struct stfs_gpu_connection stfs_gpu_connection;

/* The tensors of one stfs_gpu_acquire(), numbered from 0 in the order of the request. */
typedef struct stfs_gpu_tensors stfs_gpu_tensors;

/* Returns the message of the last failed call in this thread, which may be a call of this header or
 * of stfs.h: one line without a newline, safe to print on a terminal. Returns "" if no call of this
 * thread has failed. The text is valid until the next failed call in this thread. */
STFS_GPU_API const char* stfs_gpu_last_error(void);

/* Returns the version of the library, such as "0.2.0". Do not free it. */
STFS_GPU_API const char* stfs_gpu_version(void);

/* Flags for stfs_gpu_connect(). */
#define STFS_GPU_START_HOLDER 1u /* start a holder if none is running */

/* Connects to the holder that listens on the socket at `path`, or to this user's holder if `path`
 * is NULL. The caller frees the handle with stfs_gpu_disconnect().
 *
 * If the environment contains STFS_GPU_TENSORS, which `stfs-gpu run` sets, reads the list of
 * inherited tensors instead, and connects only when another tensor is acquired. If the holder ends,
 * mapped tensors stay mapped, and the next stfs_gpu_acquire() connects again. */
STFS_GPU_API int stfs_gpu_connect(const char* path, unsigned flags,
                                  stfs_gpu_connection** connection);

/* Frees the handle. NULL is allowed. Acquired tensors stay valid until they are released. */
STFS_GPU_API void stfs_gpu_disconnect(stfs_gpu_connection* connection);

typedef struct stfs_gpu_acquire_options {
  size_t size;             /* sizeof(stfs_gpu_acquire_options) */
  const char* device;      /* "cuda:0", a UUID, "cpu"; NULL: the device that has them */
  const char* as;          /* convert to "f32", "f16" or "bf16"; NULL: keep their types */
  const char* shard;       /* "RANK/WORLD@DIM": a part of each tensor; NULL: whole tensors */
  int32_t load_if_missing; /* nonzero: load tensors that are not resident; needs `device` */
  int32_t verify;          /* nonzero: compare loaded tensors with the source */
  int32_t pin;             /* nonzero: never evict them to make room for others */
  const char* dequantize;  /* "bf16", "f16", "f32": the values of quantised weights */
  /* The length of each name, which may then contain NULs; NULL: each name ends at a NUL. */
  const size_t* name_bytes;
  const char* const* layers; /* "delta=DIR", "lora=[SCALE@]DIR", "edit=FILE", ...; ends with NULL */
} stfs_gpu_acquire_options;

#define STFS_GPU_ACQUIRE_OPTIONS_INIT \
  { sizeof(stfs_gpu_acquire_options), NULL, NULL, NULL, 0, 0, 0, NULL, NULL, NULL }

/* Acquires tensors, all or none. Each of `count` names has a form that stfs-gpu accepts: a path in
 * a mount (a tensor, a slice, a view, or a directory for every tensor below it), SOURCE::NAME,
 * SOURCE::GLOB, or SOURCE for all tensors of a checkpoint. Names are bytes: names in a GGUF file
 * need not be UTF-8. The caller frees `tensors` with stfs_gpu_release(). If `options` is NULL, all
 * members have their defaults.
 *
 * A name that means several tensors may include some that `shard` or `as` does not apply to: a
 * tensor without the dimension of `shard` is acquired whole, and a tensor that cannot be converted
 * to `as` keeps its type. If a name means a single tensor, both are errors.
 *
 * With `dequantize` or `layers`, the names are names of the checkpoint that a mount with these
 * options shows, and `as` and `shard` apply to its tensors. A path in such a mount needs no option.
 *
 * If `count` is 0 and the environment contains STFS_GPU_TENSORS, acquires every inherited tensor.
 * All tensors must be on one device; otherwise the call fails with STFS_GPU_USAGE, and the message
 * names the devices. */
STFS_GPU_API int stfs_gpu_acquire(stfs_gpu_connection* connection, const char* const* names,
                                  size_t count, const stfs_gpu_acquire_options* options,
                                  stfs_gpu_tensors** tensors);

/* Releases the tensors. NULL is allowed. Their pointers become invalid, except while an export of a
 * tensor is in use. Waits for all work of this process on the GPU, because it may read the tensors.
 * While a stream captures a graph, the call does not wait, and the tensors stay mapped until a
 * later call. May be called before or after stfs_gpu_disconnect(). */
STFS_GPU_API void stfs_gpu_release(stfs_gpu_tensors* tensors);

/* Returns the number of tensors, or 0 if `tensors` is NULL. */
STFS_GPU_API size_t stfs_gpu_count(const stfs_gpu_tensors* tensors);

/* The values of DLPack's DLDeviceType. */
#define STFS_GPU_DEVICE_CPU 1
#define STFS_GPU_DEVICE_CUDA 2

typedef struct stfs_gpu_tensor_info {
  size_t size;             /* sizeof(stfs_gpu_tensor_info), set by the caller */
  const char* name;        /* the name in the checkpoint, "model.norm.weight" */
  const char* label;       /* includes source, slice and type: "/w/m.safetensors::w[0:2,:]" */
  const char* key;         /* tensors with equal keys have the same bytes */
  uint64_t pointer;        /* a host address or a CUdeviceptr; 0 if it has no bytes */
  uint64_t bytes;          /* the size: row-major, little-endian, without gaps */
  const char* dtype;       /* the format's name, "BF16" */
  size_t rank;             /* the number of dimensions; 0 for a scalar */
  const uint64_t* shape;   /* `rank` dimensions */
  const char* device;      /* "cuda:0" as this process numbers its devices, or "cpu" */
  const char* device_uuid; /* "GPU-6f4ed8fb-..." */
  int32_t device_type;     /* STFS_GPU_DEVICE_CPU or STFS_GPU_DEVICE_CUDA */
  int32_t device_ordinal;  /* 0 for cpu */
  size_t name_bytes;       /* the length of `name`, which may contain NULs */
  size_t label_bytes;      /* the length of `label`, which may contain NULs */
} stfs_gpu_tensor_info;

/* Fills `info`. The caller sets its size first. Its pointers are valid until the tensors are
 * released. */
STFS_GPU_API int stfs_gpu_info(const stfs_gpu_tensors* tensors, size_t index,
                               stfs_gpu_tensor_info* info);

/* Sets `pointer` to the address only: a host address, or a CUdeviceptr of the device's primary
 * context. */
STFS_GPU_API int stfs_gpu_pointer(const stfs_gpu_tensors* tensors, size_t index, uint64_t* pointer);

/* Writes the values of a tensor of any floating type as float to `values`, row-major. `count` must
 * be the number of elements. Values of F64 are rounded to nearest. The tensor must be in host
 * memory. */
STFS_GPU_API int stfs_gpu_read_f32(const stfs_gpu_tensors* tensors, size_t index, float* values,
                                   size_t count);

/* DLPack's structs, version 1, declared in <dlpack/dlpack.h>. */
struct DLManagedTensorVersioned;
struct DLManagedTensor;

/* Flags for stfs_gpu_export(). */
#define STFS_GPU_EXPORT_COPY 1u  /* export a writable private copy; host memory only */
#define STFS_GPU_EXPORT_BYTES 2u /* export the bytes as one-dimensional U8; allows every type */

/* Exports a tensor to another library. The memory and the lease live until the consumer calls the
 * deleter, on any thread, even after stfs_gpu_release() or stfs_gpu_disconnect(). Without
 * STFS_GPU_EXPORT_COPY the struct has the flag READ_ONLY. The consumer need not wait for a stream.
 */
STFS_GPU_API int stfs_gpu_export(const stfs_gpu_tensors* tensors, size_t index, unsigned flags,
                                 struct DLManagedTensorVersioned** exported);

/* Like stfs_gpu_export(), for consumers older than DLPack 1.0. This struct has no READ_ONLY flag,
 * so host memory without STFS_GPU_EXPORT_COPY is refused with STFS_GPU_USAGE. */
STFS_GPU_API int stfs_gpu_export_unversioned(const stfs_gpu_tensors* tensors, size_t index,
                                             unsigned flags, struct DLManagedTensor** exported);

#ifdef __cplusplus
}
#endif
