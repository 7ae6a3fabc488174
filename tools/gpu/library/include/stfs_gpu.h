/* stfs_gpu.h: tensors that stfs-gpu keeps in device memory, for any language that can call C.
 *
 *   stfs_gpu_connection *connection;
 *   stfs_gpu_tensors *tensors;
 *   const char *name = "/mnt/w/model.norm.weight";
 *   if (stfs_gpu_connect(NULL, 0, &connection) != STFS_GPU_OK ||
 *       stfs_gpu_acquire(connection, &name, 1, NULL, &tensors) != STFS_GPU_OK)
 *     fprintf(stderr, "%s\n", stfs_gpu_last_error());
 *
 * What was acquired stays where it is, and its memory mapped, until it is released, or the process
 * ends, however it ends. Pointers into device memory are for the device. All of it is for reading,
 * since others see the same bytes: a store to host memory is a fault (SIGSEGV), and a kernel's
 * store to device memory is one where the driver can protect it. The values never change.
 *
 * Threads: a connection, and what was acquired on it, may be used by many threads at once; acquires
 * on one connection take turns. Freeing is as free(3): once, and when no other thread is in a call
 * with the same handle.
 *
 * fork(2): in the child the handles of its parent are of no use, and harmless: functions that can
 * fail say STFS_GPU_USAGE, those that free do nothing. Leases last while either process has not
 * ended or executed another program. The child may connect for itself, but CUDA works in a child
 * only when its parent had not begun to use it.
 *
 * Structs begin with their size, so that a program works with later versions of the library and
 * with earlier ones: what the other side does not know is as if it were zero.
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

/* What functions return: the exit status of stfs-gpu for the same failure. */
enum {
  STFS_GPU_OK = 0,
  STFS_GPU_INVALID = 1,    /* the checkpoint breaks its format */
  STFS_GPU_USAGE = 2,      /* what was asked cannot be meant */
  STFS_GPU_UNREADABLE = 3, /* the source cannot be read, or has changed */
  STFS_GPU_DEVICE = 5      /* the device, or the holder, failed; not resident; out of memory */
};

/* A connection to the holder. */
typedef struct stfs_gpu_connection stfs_gpu_connection;

/* What one call of stfs_gpu_acquire gave: tensors, numbered from 0 in the order asked for. */
typedef struct stfs_gpu_tensors stfs_gpu_tensors;

/* The message of the last call of this thread that failed: one line without its end, safe for a
 * terminal. Empty before the first. Valid until the next call that fails in this thread. */
STFS_GPU_API const char* stfs_gpu_last_error(void);

/* The version of stfs that the library is of, "0.1.0". */
STFS_GPU_API const char* stfs_gpu_version(void);

/* Flags of stfs_gpu_connect. */
#define STFS_GPU_START_HOLDER 1u /* start a holder when there is none */

/* Connects to the holder that listens on the socket at `path`; NULL: this user's. When
 * STFS_GPU_TENSORS is in the environment (this process was started by `stfs-gpu run`) the tensors
 * that it was given are read, and the holder is looked for only when another is asked for. When the
 * holder has died, what is mapped stays mapped, and the next stfs_gpu_acquire connects again. */
STFS_GPU_API int stfs_gpu_connect(const char* path, unsigned flags,
                                  stfs_gpu_connection** connection);

/* Gives the handle back; NULL is allowed. What was acquired stays until it is released. */
STFS_GPU_API void stfs_gpu_disconnect(stfs_gpu_connection* connection);

typedef struct stfs_gpu_acquire_options {
  size_t size;             /* sizeof(stfs_gpu_acquire_options) */
  const char* device;      /* "cuda:0", a UUID, "cpu"; NULL: where they are resident */
  const char* as;          /* "f32", "f16", "bf16"; NULL: in their own type */
  const char* shard;       /* "RANK/WORLD@DIM": a part of each; NULL: all of it */
  int32_t load_if_missing; /* nonzero: copy what is not resident; `device` must be named */
  int32_t verify;          /* nonzero: compare what is copied with the source */
  int32_t pin;             /* nonzero: keep them resident when no one uses them any more */
} stfs_gpu_acquire_options;

#define STFS_GPU_ACQUIRE_OPTIONS_INIT \
  { sizeof(stfs_gpu_acquire_options), NULL, NULL, NULL, 0, 0, 0 }

/* Acquires tensors, all of them or none. Each of `count` names is what stfs-gpu takes: a path in a
 * mount (a tensor, a slice, a view; a directory names every tensor below it), SOURCE::NAME, or
 * SOURCE::GLOB. `count` 0 with STFS_GPU_TENSORS in the environment means all that this process was
 * given. All must be on one device: otherwise the call fails with STFS_GPU_USAGE, and the message
 * says which are where. options NULL: every one its default. */
STFS_GPU_API int stfs_gpu_acquire(stfs_gpu_connection* connection, const char* const* names,
                                  size_t count, const stfs_gpu_acquire_options* options,
                                  stfs_gpu_tensors** tensors);

/* Releases them; NULL is allowed. Their pointers are invalid from then on, unless an export of
 * theirs is still in use. May be called before or after stfs_gpu_disconnect. */
STFS_GPU_API void stfs_gpu_release(stfs_gpu_tensors* tensors);

/* How many there are. 0 for NULL. */
STFS_GPU_API size_t stfs_gpu_count(const stfs_gpu_tensors* tensors);

/* Numbers of DLPack's DLDeviceType. */
#define STFS_GPU_DEVICE_CPU 1
#define STFS_GPU_DEVICE_CUDA 2

typedef struct stfs_gpu_tensor_info {
  size_t size;             /* sizeof(stfs_gpu_tensor_info), set by the caller */
  const char* name;        /* its name in the checkpoint, "model.norm.weight" */
  const char* label;       /* and with its source, slice and type: "/w/m.safetensors::w[0:2,:]" */
  const char* key;         /* equal exactly when the bytes are the same */
  uint64_t pointer;        /* a host address or a CUdeviceptr; 0 when there are no bytes */
  uint64_t bytes;          /* row-major, little-endian, without gaps */
  const char* dtype;       /* as the format names it, "BF16" */
  size_t rank;             /* 0: a scalar */
  const uint64_t* shape;   /* `rank` of them */
  const char* device;      /* "cuda:0" as this process counts its devices, or "cpu" */
  const char* device_uuid; /* "GPU-6f4ed8fb-..." */
  int32_t device_type;     /* STFS_GPU_DEVICE_ */
  int32_t device_ordinal;  /* 0 for cpu */
} stfs_gpu_tensor_info;

/* Fills `info`, whose size is set. What it points to lives as long as `tensors`. */
STFS_GPU_API int stfs_gpu_info(const stfs_gpu_tensors* tensors, size_t index,
                               stfs_gpu_tensor_info* info);

/* The pointer alone: a host address or a CUdeviceptr (of the device's primary context). */
STFS_GPU_API int stfs_gpu_pointer(const stfs_gpu_tensors* tensors, size_t index, uint64_t* pointer);

/* DLPack's structs, of version 1: see <dlpack/dlpack.h>, which this header does not need. */
struct DLManagedTensorVersioned;
struct DLManagedTensor;

/* Flags of exports. */
#define STFS_GPU_EXPORT_COPY 1u /* a copy that the consumer may write to; of host memory alone */

/* The tensor for another library. The memory and the lease live until the consumer has called the
 * deleter, from any thread, whatever was released or disconnected by then. What is not a copy has
 * the flag READ_ONLY. No stream has to be waited for. */
STFS_GPU_API int stfs_gpu_export(const stfs_gpu_tensors* tensors, size_t index, unsigned flags,
                                 struct DLManagedTensorVersioned** exported);

/* The same for consumers older than DLPack 1.0. That struct cannot say that memory is read-only, so
 * host memory is refused with STFS_GPU_USAGE unless it is a copy. */
STFS_GPU_API int stfs_gpu_export_unversioned(const stfs_gpu_tensors* tensors, size_t index,
                                             unsigned flags, struct DLManagedTensor** exported);

#ifdef __cplusplus
}
#endif
