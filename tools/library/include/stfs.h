/* stfs.h: reads the tensors of a model checkpoint without a mount, from any language that can call
 * C.
 *
 *   const char* source = "hf://org/model";
 *   const char* option = "dequantize=bf16";
 *   stfs_checkpoint* checkpoint;
 *   size_t tensor;
 *   float values[128];
 *   stfs_part part = {sizeof part, 0, "0,:128", "f32"};
 *   if (stfs_open(&source, 1, &option, 1, NULL, &checkpoint) != STFS_OK ||
 *       stfs_find(checkpoint, "lm_head.weight", 14, &part.tensor) != STFS_OK ||
 *       stfs_read(checkpoint, &part, 0, values, sizeof values) != STFS_OK)
 *     fprintf(stderr, "%s\n", stfs_last_error());
 *
 * A checkpoint is one version of all its sources. The bytes that a call returns belong to this
 * version, or the call fails: if a source has changed, it fails with ESTALE. Mapped memory is the
 * exception: see stfs_map.
 *
 * Threads: several threads may use one checkpoint at the same time. Close it once, while no other
 * call uses it. The library starts threads only inside calls: for large reads and for remote
 * sources.
 *
 * fork(2): a child may continue to use what its parent opened, and must close it as well. It does
 * not touch the parent's connections; if it needs the network, it opens its own.
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
#define STFS_API __attribute__((visibility("default")))
#else
#define STFS_API
#endif

/* The return values of functions that can fail: 0, or the exit status of stfs-info for the same
 * failure. */
enum {
  STFS_OK = 0,
  STFS_INVALID = 1,   /* the checkpoint breaks its format */
  STFS_USAGE = 2,     /* the request is invalid */
  STFS_UNREADABLE = 3 /* a source cannot be read, has changed, or the call was cancelled */
};

/* One or several sources, opened as one checkpoint. */
typedef struct stfs_checkpoint stfs_checkpoint;

/* Returns the message of the last failed call in this thread, which may be a call of this header or
 * of stfs_gpu.h: one line, "place: subject: rule", without a newline and safe to print on a
 * terminal. Returns "" if no call of this thread has failed. The text is valid until the next
 * failed call in this thread. */
STFS_API const char* stfs_last_error(void);

/* Returns the errno that caused that failure: ENOENT, EACCES, ESTALE (a source has changed), EIO,
 * ETIMEDOUT, ECANCELED (the call was cancelled) or ENOMEM; 0 if there is none. */
STFS_API int stfs_last_errno(void);

/* Returns the version of the library, such as "0.2.0". Do not free it. */
STFS_API const char* stfs_version(void);

/* Reserved for later additions. In version 0.2.0 `reserved` held a callback that could end a wait.
 * stfs_open() refuses the struct if reserved[0] is not NULL; call stfs_cancel() instead. */
typedef struct stfs_open_extra {
  size_t size;             /* sizeof(stfs_open_extra) */
  const void* reserved[2]; /* must be NULL */
} stfs_open_extra;

/* Opens `count` sources as one checkpoint. A source has any form that the commands accept: a file,
 * an index of shards, a directory, a mount of stfs or a path in one, or a URL (https://, s3://,
 * hf://).
 *
 * Each option is "key=value", or "key" for a switch. The options, as in `stfs -o` (stfs(1)):
 *
 *   delta=VERSION               show the checkpoint after an update that a trainer published; may
 *                               be repeated, oldest first
 *   dequantize=bf16|f16|f32     show the values of quantised weights
 *   lora=[SCALE@]ADAPTER        merge a LoRA adapter; may be repeated
 *   edit=FILE                   apply the edits in a file, which change names, types and shapes;
 *                               may be repeated
 *   edits=LINES                 apply these lines of edits
 *   allow_missing               open the rest if shards or tensors are missing
 *   delta_memory=BYTES          the maximum memory for the changes of deltas; 256M by default
 *   cache_dir=DIR, cache_size=BYTES, connections=COUNT, timeout=SECONDS, offline, insecure_http,
 *   s3_addressing=path|virtual|auto, s3_unsigned, s3_requester_pays
 *                               options for remote sources, as in stfs(1)
 *   version=HEX                 fail with ESTALE unless stfs_checkpoint_version() returns HEX
 *
 * `extra` may be NULL. The caller frees the checkpoint with stfs_close(). */
STFS_API int stfs_open(const char* const* sources, size_t count, const char* const* options,
                       size_t option_count, const stfs_open_extra* extra,
                       stfs_checkpoint** checkpoint);

/* Frees the checkpoint and everything that was borrowed from it. NULL is allowed. */
STFS_API void stfs_close(stfs_checkpoint* checkpoint);

/* Makes every call with this checkpoint that is waiting for the network, in any thread, fail with
 * ECANCELED. Later calls work. */
STFS_API void stfs_cancel(stfs_checkpoint* checkpoint);

/* Returns nonzero if a source is remote, so that reads may wait for the network. This includes
 * sources of a mount. */
STFS_API int stfs_is_remote(const stfs_checkpoint* checkpoint);

/* Returns 64 hexadecimal digits that identify the content. They are equal for the same versions of
 * the same sources with the same layers. Valid until stfs_close(). */
STFS_API const char* stfs_checkpoint_version(const stfs_checkpoint* checkpoint);

/* Returns nonzero if the URL of a source or of a layer contains a secret: a user and a password, or
 * a query, which may be a signature. Do not store the results of stfs_source() and stfs_option()
 * then: stfs_source() omits the secret, so its result does not open the source again, and
 * stfs_option() returns the secret. */
STFS_API int stfs_has_secrets(const stfs_checkpoint* checkpoint);

/* Returns source number `index` in a form that opens the same version again from any directory:
 * paths are absolute, and a revision on the Hub is a commit. A mount is named by its path, so it
 * must still be mounted then. Returns NULL after the last one. Valid until stfs_close(). */
STFS_API const char* stfs_source(const stfs_checkpoint* checkpoint, size_t index);

/* Returns option number `index` in a form that opens the same version again from any directory:
 * paths are absolute, and an edit file is replaced by its text. Returns NULL after the last one.
 * Valid until stfs_close(). */
STFS_API const char* stfs_option(const stfs_checkpoint* checkpoint, size_t index);

/* Returns warning number `index`: one line, safe to print on a terminal, about something that looks
 * wrong but does not prevent reading. stfs_save() may add warnings. Returns NULL after the last
 * one. Valid until stfs_close(). */
STFS_API const char* stfs_warning(const stfs_checkpoint* checkpoint, size_t index);

typedef struct stfs_tensor {
  const char* name;      /* may contain NULs; a terminating NUL follows */
  size_t name_bytes;     /* the length of `name` without the terminating NUL */
  const char* dtype;     /* the format's name, "BF16"; equal names have equal pointers */
  size_t rank;           /* the number of dimensions; 0 for a scalar */
  const uint64_t* shape; /* `rank` dimensions */
  uint64_t elements;
  uint64_t bytes;        /* the size: row-major, little-endian, without gaps */
  const char* source;    /* the path, or the URL without secrets; NULL if the tensor is computed */
  uint64_t offset;       /* the position of the first byte in the source */
  uint64_t source_bytes; /* the size of the source */
} stfs_tensor;

typedef struct stfs_table {
  size_t size;       /* sizeof(stfs_table), set by the caller */
  size_t count;      /* the number of tensors, numbered from 0 in the order of their bytes */
  size_t stride;     /* bytes between entries: sizeof(stfs_tensor) in the library's version */
  const void* first; /* the entry of tensor 0 */
  const char* names; /* all names in the same order, each followed by a NUL */
  size_t names_bytes;
} stfs_table;

/* Describes all tensors in one call. The table's pointers are valid until stfs_close(). */
STFS_API int stfs_tensors(const stfs_checkpoint* checkpoint, stfs_table* table);

/* Sets `tensor` to the number of the tensor with this name. Fails with STFS_USAGE if there is none;
 * the message then suggests a similar name. */
STFS_API int stfs_find(const stfs_checkpoint* checkpoint, const char* name, size_t name_bytes,
                       size_t* tensor);

/* Writes the numbers of the tensors whose names match a glob to `tensors`, in ascending order and
 * at most `capacity` of them. Sets `count` to the number of matches. `*` also matches '/' and '.'.
 */
STFS_API int stfs_match(const stfs_checkpoint* checkpoint, const char* glob, size_t glob_bytes,
                        size_t* tensors, size_t capacity, size_t* count);

/* The texts that stfs_text() returns. Most of them equal files of a mount. */
enum {
  STFS_TEXT_INFO = 0,    /* .stfs/info.json; `number` is 0 */
  STFS_TEXT_TENSOR = 1,  /* .stfs/json/PATH.json of tensor `number` */
  STFS_TEXT_INPUTS = 2,  /* a JSON array: the names of the tensors that it is computed from; [] */
  STFS_TEXT_KEY = 3,     /* the key of metadata entry `number` */
  STFS_TEXT_METADATA = 4 /* .stfs/metadata/KEY of that entry: a string, a number, a JSON array */
};

/* Sets `text` to a text and `bytes` to its length without the terminating NUL. Fails with
 * STFS_USAGE if there is no such tensor or entry. Valid until the next stfs_text() in this thread.
 */
STFS_API int stfs_text(stfs_checkpoint* checkpoint, int which, size_t number, const char** text,
                       size_t* bytes);

/* A tensor or a slice of one, in its own type or converted. */
typedef struct stfs_part {
  size_t size; /* sizeof(stfs_part) */
  size_t tensor;
  const char* slice; /* an index as in NumPy's brackets, "0:128,:"; NULL: the whole tensor */
  const char* as;    /* "f32": the values as float32; NULL: the bytes as they are stored */
} stfs_part;

typedef struct stfs_part_info {
  size_t size; /* sizeof(stfs_part_info), set by the caller */
  uint64_t bytes;
  uint64_t elements;
  const char* dtype;
  size_t rank;
  uint64_t shape[64];
} stfs_part_info;

/* Returns the size, type and shape of a part in `info`. Reads no bytes of the tensor. */
STFS_API int stfs_get_part_info(const stfs_checkpoint* checkpoint, const stfs_part* part,
                                stfs_part_info* info);

/* Reads `bytes` bytes of a part, starting at its byte `offset`. Fetches bytes that are not on this
 * machine. Verifies the sources after reading: if the call fails, the content of `buffer` is
 * undefined. */
STFS_API int stfs_read(stfs_checkpoint* checkpoint, const stfs_part* part, uint64_t offset,
                       void* buffer, size_t bytes);

/* Sets `address` to bytes [offset, offset + bytes) of a stored tensor, in a read-only mapping of
 * its file. Fetches the range first. The address may be unaligned, and is valid until stfs_close().
 *
 * Succeeds and sets `address` to NULL if the bytes are in no file that can be mapped, for instance
 * because the tensor is computed. Use stfs_read() then.
 *
 * Only this call verifies the version; later loads do not. If the file is truncated afterwards, a
 * load raises SIGBUS. If it is modified in place, the new bytes appear. */
STFS_API int stfs_map(stfs_checkpoint* checkpoint, size_t tensor, uint64_t offset, uint64_t bytes,
                      const void** address);

/* Sets `address` to private writable memory with the bytes of a part, and `mapping` to its owner,
 * which the caller frees with stfs_unmap(). A part of 256 KiB or more that is contiguous in a file
 * becomes a copy-on-write mapping, which reads nothing before it is used; any other part is copied.
 * Stores change neither the file nor other memory. The version of a mapping is verified only by
 * this call, as with stfs_map(). */
typedef struct stfs_mapping stfs_mapping;
STFS_API int stfs_map_private(stfs_checkpoint* checkpoint, const stfs_part* part, void** address,
                              stfs_mapping** mapping);

/* Like stfs_map_private(), but maps the whole local file in which a tensor is stored, so that a
 * program that uses all tensors needs one mapping per file. Each tensor begins at its `offset`.
 * Succeeds and sets `address` to NULL if the tensor is not stored in a local file, or if mmap(2)
 * fails. */
STFS_API int stfs_map_private_file(stfs_checkpoint* checkpoint, size_t tensor, void** address,
                                   stfs_mapping** mapping);

/* Frees the memory. NULL is allowed. May be called after stfs_close(). */
STFS_API void stfs_unmap(stfs_mapping* mapping);

/* DLPack's structs, version 1, declared in <dlpack/dlpack.h>. */
struct DLManagedTensorVersioned;
struct DLManagedTensor;

/* Flags for stfs_export(). */
#define STFS_EXPORT_BYTES 1u /* export the bytes as one-dimensional U8; allows every type */

/* Exports private writable memory, as stfs_map_private() makes it, to another library. The memory
 * lives until the consumer calls the deleter, on any thread, even after stfs_close(). */
STFS_API int stfs_export(stfs_checkpoint* checkpoint, const stfs_part* part, unsigned flags,
                         struct DLManagedTensorVersioned** exported);

/* Like stfs_export(), for consumers older than DLPack 1.0. */
STFS_API int stfs_export_unversioned(stfs_checkpoint* checkpoint, const stfs_part* part,
                                     unsigned flags, struct DLManagedTensor** exported);

/* A destructor for PyCapsules, for Python modules: frees the object in a capsule that is named
 * "stfs_checkpoint", "stfs_mapping", "stfs_follower", "stfs_gpu_connection", "stfs_gpu_tensors",
 * "dltensor" or "dltensor_versioned", or that stfs_python_slot() made. Does nothing if a consumer
 * has renamed the capsule. */
STFS_API void stfs_python_destroy(void* capsule);

/* Returns a new PyCapsule that will own an object that a later call creates. `name` is one of the
 * names above. Sets `content` to the address to which that call has to write the pointer. Make the
 * capsule before the call, because a signal handler may raise an exception as soon as the call has
 * returned; the capsule then frees the object. The caller holds the GIL. Returns NULL if `name` is
 * another name, if Python's functions cannot be found because libpython was loaded with RTLD_LOCAL,
 * or with a Python exception set. */
STFS_API void* stfs_python_slot(const char* name, void*** content);

/* Moves the object of such a capsule into a new PyCapsule with the object's own name, and returns
 * it. The old capsule then owns nothing. Consumers of DLPack need this, because they expect a
 * capsule that is named "dltensor" and points to the struct. The caller holds the GIL. Returns NULL
 * with a Python exception set on failure. */
STFS_API void* stfs_python_release(void* capsule);

/* Runs a call on another thread and runs Python's signal handlers on this one until the call ends.
 * Calls the Python object `start`, without arguments, which starts a thread that makes the call.
 * Then waits until that thread calls stfs_python_ended(has_ended). `*has_ended` must be 0 before.
 * The caller is the main thread and holds the GIL, which is released while it waits.
 *
 * If a handler raises an exception, cancels the calls with `checkpoint` and waits until the call
 * has ended, without running another handler. If `checkpoint` is NULL, returns without waiting, and
 * the call continues. If a handler forks, returns at once in the child.
 *
 * Returns -1 if `start` raises RuntimeError because no thread can be started, or if Python's
 * functions cannot be found; no exception is set then. Otherwise returns 0, with the exception set
 * that `start` or a handler raised, if any. */
STFS_API int stfs_python_wait(stfs_checkpoint* checkpoint, void* start, int* has_ended);
STFS_API void stfs_python_ended(int* has_ended);

/* Returns the text of stfs_text() as a Python `bytes`, and sets `status` to the result of that
 * call. The object is empty if `status` is not 0. A signal handler that asks for another text does
 * not change this one. The caller holds the GIL. Returns NULL if Python's functions cannot be
 * found, or with a Python exception set. */
STFS_API void* stfs_python_text(stfs_checkpoint* checkpoint, int which, size_t number, int* status);

/* Starts to fetch tensors of remote sources into the cache and returns at once. Reads have priority
 * over these fetches. */
STFS_API int stfs_prefetch(stfs_checkpoint* checkpoint, const size_t* tensors, size_t count);

typedef struct stfs_save_options {
  size_t size;          /* sizeof(stfs_save_options) */
  uint64_t shard_bytes; /* the maximum size of a shard, in a new directory; 0: no shards */
  int replace;          /* nonzero: replace an existing file */
} stfs_save_options;

/* Writes all tensors as this checkpoint shows them. If `path` ends in .safetensors or .gguf, writes
 * a file of that format; otherwise a new directory with model.safetensors or shards, their index,
 * and the files that loaders look for. The output appears complete or not at all. Fails with
 * STFS_USAGE if `path` is a file that the checkpoint is read from.
 *
 * If the file system can share blocks, the output shares them with local sources. Sets `shared` to
 * the number of shared bytes. `options` and `shared` may be NULL. */
STFS_API int stfs_save(stfs_checkpoint* checkpoint, const char* path,
                       const stfs_save_options* options, uint64_t* shared);

/* Writes the changes from `before` to `after` to a new directory, in the form in which trainers
 * publish them. stfs_open("delta=..."), `stfs -o delta=...`, SGLang and slime can read it. Both
 * checkpoints must have the same names, types and shapes. The output appears complete or not at
 * all.
 *
 * The options are encoding=xor|overwrite, checksum=xxh3-128|adler32, shard_size=BYTES, version=N
 * (by default the number at the end of the directory's name, as in weight_v000012), and base=N (by
 * default the number before that). Sets `changed`, which may be NULL, to the number of tensors that
 * changed. stfs_cancel(after) ends the call. */
STFS_API int stfs_save_delta(stfs_checkpoint* before, stfs_checkpoint* after, const char* directory,
                             const char* const* options, size_t option_count, size_t* changed);

/* Watches a directory in which a trainer publishes versions, and reports each complete one. */
typedef struct stfs_follower stfs_follower;

/* Creates a follower for a directory: a local path, s3://bucket/prefix or hf://org/name/path. Does
 * not read the directory yet. The options are `latest` (report only the newest complete version),
 * marker=NAME (a version is complete only if it also contains this file), and the options for
 * remote sources (cache_dir, cache_size, connections, timeout, insecure_http, s3_addressing,
 * s3_unsigned, s3_requester_pays). The caller frees the follower with stfs_unfollow(). After
 * fork(2) a child creates its own. */
STFS_API int stfs_follow(const char* directory, const char* const* options, size_t option_count,
                         stfs_follower** follower);

/* Waits for the next complete version, oldest first, and sets `version` to its path or URL, which
 * is valid until the next call. Sets `version` to NULL if there will be no further version: with
 * `latest` after the newest one, and after stfs_follow_cancel().
 *
 * Fails with STFS_UNREADABLE once if the directory or its server cannot be read; the next call then
 * waits until it can be read again. With `latest` it also fails if there is no complete version.
 * One thread at a time may call this. */
STFS_API int stfs_next_version(stfs_follower* follower, const char** version);

/* Makes the current and all later calls of stfs_next_version() return NULL. May be called from any
 * thread. A request that is in flight is not aborted. */
STFS_API void stfs_follow_cancel(stfs_follower* follower);

/* Frees the follower. NULL is allowed. No other call may use the follower at the same time. */
STFS_API void stfs_unfollow(stfs_follower* follower);

#ifdef __cplusplus
}
#endif
