/* stfs_gpu.h: tensors that stfs-gpu keeps in device memory, for any language that can call C.
 *
 *   stfs_gpu_connection *connection;
 *   stfs_gpu_tensors *tensors;
 *   const char *name = "/mnt/w/model.norm.weight";
 *   if (stfs_gpu_connect(NULL, 0, &connection) != STFS_GPU_OK ||
 *       stfs_gpu_acquire(connection, &name, 1, NULL, &tensors) != STFS_GPU_OK)
 *     fprintf(stderr, "%s\n", stfs_gpu_last_error());
 *
 * A process keeps its tensors in device memory, mapped into its address space, until it releases
 * them or exits, for any reason. Pointers to GPU memory are for the device. All memory is read-only
 * and its values never change, because other processes see the same bytes: a store to host memory
 * raises SIGSEGV, and a kernel's store to GPU memory fails where the driver can protect it.
 *
 * Threads: many threads may use a connection and its tensors at once; acquires on one connection
 * take turns. Free a handle once, and not during another thread's call with it.
 *
 * fork(2): a child cannot use its parent's handles: functions that can fail return STFS_GPU_USAGE,
 * functions that free do nothing. Leases last until both processes have ended or called execve(2).
 * The child may connect for itself, but CUDA works in a child only if its parent has not used it.
 *
 * Structs begin with their size, so that programs and libraries of different versions work
 * together: members that the other side lacks count as zero.
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

/* Return values: 0, or the exit status of stfs-gpu for the same failure. */
enum {
  STFS_GPU_OK = 0,
  STFS_GPU_INVALID = 1,    /* the checkpoint breaks its format */
  STFS_GPU_USAGE = 2,      /* the request is invalid */
  STFS_GPU_UNREADABLE = 3, /* the source cannot be read, or has changed */
  STFS_GPU_DEVICE = 5      /* the device, or the holder, failed; not resident; out of memory */
};

/* A connection to the holder. */
typedef struct stfs_gpu_connection stfs_gpu_connection;

/* The tensors of one stfs_gpu_acquire, numbered from 0 in request order. */
typedef struct stfs_gpu_tensors stfs_gpu_tensors;

/* The message of this thread's last failed call, be it of this header or of stfs.h: one line
 * without a newline, safe for a terminal. Empty before the first failure. Valid until the next
 * failed call in this thread. */
STFS_GPU_API const char* stfs_gpu_last_error(void);

/* The version of the library, "0.2.0". Never freed. */
STFS_GPU_API const char* stfs_gpu_version(void);

/* Flags of stfs_gpu_connect. */
#define STFS_GPU_START_HOLDER 1u /* start a holder when there is none */

/* Connects to the holder on the socket at `path`; NULL: this user's. The caller frees the handle
 * with stfs_gpu_disconnect. With STFS_GPU_TENSORS in the environment (set by `stfs-gpu run`), reads
 * the inherited tensors instead, and connects only when another tensor is acquired. After the
 * holder's death mapped tensors stay mapped, and the next stfs_gpu_acquire connects again. */
STFS_GPU_API int stfs_gpu_connect(const char* path, unsigned flags,
                                  stfs_gpu_connection** connection);

/* Frees the handle; NULL is allowed. Acquired tensors stay until they are released. */
STFS_GPU_API void stfs_gpu_disconnect(stfs_gpu_connection* connection);

typedef struct stfs_gpu_acquire_options {
  size_t size;              /* sizeof(stfs_gpu_acquire_options) */
  const char* device;       /* "cuda:0", a UUID, "cpu"; NULL: where they are resident */
  const char* as;           /* "f32", "f16", "bf16"; NULL: in their own type */
  const char* shard;        /* "RANK/WORLD@DIM": a part of each tensor; NULL: whole tensors */
  int32_t load_if_missing;  /* nonzero: load tensors that are not resident; needs `device` */
  int32_t verify;           /* nonzero: compare loaded tensors with the source */
  int32_t pin;              /* nonzero: never evict them to make room */
  const char* dequantize;   /* "bf16", "f16", "f32": quantised weights as their values; NULL: not */
  const size_t* name_bytes; /* of each name, which may then have NULs; NULL: names end at a NUL */
  const char* const* layers; /* "delta=DIR", "lora=[SCALE@]DIR", "edit=FILE", ...; ends with NULL */
} stfs_gpu_acquire_options;

#define STFS_GPU_ACQUIRE_OPTIONS_INIT \
  { sizeof(stfs_gpu_acquire_options), NULL, NULL, NULL, 0, 0, 0, NULL, NULL, NULL }

/* Acquires tensors, all or none. Each of `count` names has a form of stfs-gpu: a path in a mount (a
 * tensor, a slice, a view; a directory means every tensor below it), SOURCE::NAME, SOURCE::GLOB, or
 * SOURCE, a checkpoint, which means all its tensors. Names are bytes: those of a GGUF file need not
 * be UTF-8.
 * If the names mean many tensors, a tensor without the dimension of `shard` is acquired whole, and
 * one without a conversion to `as` in its own type; for a tensor named alone both are errors.
 * With `dequantize` and `layers`, names are those of the checkpoint that a mount with these options
 * shows, and `as` and `shard` apply to its tensors; those of such a mount need no option.
 * `count` 0 with STFS_GPU_TENSORS in the environment means every inherited tensor. All must be on
 * one device: otherwise the call fails with STFS_GPU_USAGE, and the message names the devices.
 * options NULL: all defaults. The caller frees `tensors` with stfs_gpu_release. */
STFS_GPU_API int stfs_gpu_acquire(stfs_gpu_connection* connection, const char* const* names,
                                  size_t count, const stfs_gpu_acquire_options* options,
                                  stfs_gpu_tensors** tensors);

/* Releases the tensors; NULL is allowed. Their pointers become invalid, unless an export of theirs
 * is still in use. Waits for all work of this process on a GPU, which may read them; while a stream
 * captures a graph, they stay mapped until a later call instead. May be called before or after
 * stfs_gpu_disconnect. */
STFS_GPU_API void stfs_gpu_release(stfs_gpu_tensors* tensors);

/* The number of tensors. 0 for NULL. */
STFS_GPU_API size_t stfs_gpu_count(const stfs_gpu_tensors* tensors);

/* Values of DLPack's DLDeviceType. */
#define STFS_GPU_DEVICE_CPU 1
#define STFS_GPU_DEVICE_CUDA 2

typedef struct stfs_gpu_tensor_info {
  size_t size;             /* sizeof(stfs_gpu_tensor_info), set by the caller */
  const char* name;        /* in the checkpoint, "model.norm.weight"; see name_bytes */
  const char* label;       /* with source, slice and type: "/w/m.safetensors::w[0:2,:]" */
  const char* key;         /* equal if and only if the bytes are the same */
  uint64_t pointer;        /* a host address or a CUdeviceptr; 0 when there are no bytes */
  uint64_t bytes;          /* row-major, little-endian, without gaps */
  const char* dtype;       /* as the format names it, "BF16" */
  size_t rank;             /* 0: a scalar */
  const uint64_t* shape;   /* `rank` of them */
  const char* device;      /* "cuda:0" as this process counts its devices, or "cpu" */
  const char* device_uuid; /* "GPU-6f4ed8fb-..." */
  int32_t device_type;     /* STFS_GPU_DEVICE_ */
  int32_t device_ordinal;  /* 0 for cpu */
  size_t name_bytes;       /* of `name`: a name of safetensors may have NULs in it */
  size_t label_bytes;      /* of `label`, likewise */
} stfs_gpu_tensor_info;

/* Fills `info`; the caller sets its size first. Its pointers are valid as long as `tensors`. */
STFS_GPU_API int stfs_gpu_info(const stfs_gpu_tensors* tensors, size_t index,
                               stfs_gpu_tensor_info* info);

/* Returns only the pointer: a host address or a CUdeviceptr of the device's primary context. */
STFS_GPU_API int stfs_gpu_pointer(const stfs_gpu_tensors* tensors, size_t index, uint64_t* pointer);

/* Writes the values of a tensor of any floating type as float to `values`, row-major. `count` is
 * its number of elements. Values of F64 are rounded to nearest. Host memory only. */
STFS_GPU_API int stfs_gpu_read_f32(const stfs_gpu_tensors* tensors, size_t index, float* values,
                                   size_t count);

/* DLPack's structs, version 1, declared in <dlpack/dlpack.h>. */
struct DLManagedTensorVersioned;
struct DLManagedTensor;

/* Flags of exports. */
#define STFS_GPU_EXPORT_COPY 1u  /* a writable private copy; host memory only */
#define STFS_GPU_EXPORT_BYTES 2u /* as U8 of one dimension: the types that DLPack lacks, too */

/* Exports a tensor to another library. Memory and lease live until the consumer calls the deleter,
 * on any thread, even after a release or disconnect. Without STFS_GPU_EXPORT_COPY the struct has
 * the flag READ_ONLY. The consumer need not wait for a stream. */
STFS_GPU_API int stfs_gpu_export(const stfs_gpu_tensors* tensors, size_t index, unsigned flags,
                                 struct DLManagedTensorVersioned** exported);

/* As stfs_gpu_export, for consumers older than DLPack 1.0. This struct has no READ_ONLY flag, so
 * host memory without STFS_GPU_EXPORT_COPY is refused with STFS_GPU_USAGE. */
STFS_GPU_API int stfs_gpu_export_unversioned(const stfs_gpu_tensors* tensors, size_t index,
                                             unsigned flags, struct DLManagedTensor** exported);

#ifdef __cplusplus
}
#endif
