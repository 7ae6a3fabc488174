/* stfs.h: the tensors of a model checkpoint, for any language that can call C, without a mount.
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
 * A checkpoint is one version of all its sources. Bytes that are returned belong to this version,
 * or the call fails: a source that has changed is ESTALE. Memory of stfs_map is the exception; its
 * comment says how.
 *
 * Threads: many threads may use one checkpoint. Close it once, and not during another call with it.
 * The library starts threads only in calls, for reads of many bytes and for remote sources.
 *
 * fork(2): a child may go on using what its parent opened, and closes it too. It leaves the
 * parent's connections alone, and makes its own when it needs the network.
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
#define STFS_API __attribute__((visibility("default")))
#else
#define STFS_API
#endif

/* Return values: 0, or the exit status of stfs-info for the same failure. */
enum {
  STFS_OK = 0,
  STFS_INVALID = 1,   /* the checkpoint breaks its format */
  STFS_USAGE = 2,     /* the request is invalid */
  STFS_UNREADABLE = 3 /* a source cannot be read, has changed, or the call was cancelled */
};

/* One or several sources, opened as one checkpoint. */
typedef struct stfs_checkpoint stfs_checkpoint;

/* The message of this thread's last failed call, be it of this header or of stfs_gpu.h: one line
 * without a newline, safe for a terminal, "place: subject: rule". Empty before the first failure.
 * Valid until the next failed call in this thread. */
STFS_API const char* stfs_last_error(void);

/* The errno behind that failure: ENOENT, EACCES, ESTALE (a source has changed), EIO, ETIMEDOUT,
 * ECANCELED (cancelled), ENOMEM; 0 when there is none. */
STFS_API int stfs_last_errno(void);

/* The version of the library, "0.2.0". Never freed. */
STFS_API const char* stfs_version(void);

/* Room for later additions. Version 0.2.0 had a callback here that ended waits; stfs_open refuses a
 * value other than NULL. stfs_cancel ends waits. */
typedef struct stfs_open_extra {
  size_t size;             /* sizeof(stfs_open_extra) */
  const void* reserved[2]; /* NULL */
} stfs_open_extra;

/* Opens `count` sources as one checkpoint. A source is what the commands take: a file, an index, a
 * directory, a mount of stfs or a path in it, a URL (https://, s3://, hf://).
 *
 * An option is "key=value", or "key" for a switch. The options are those of `stfs -o` (stfs(1)):
 *
 *   delta=VERSION               what changed from one version of a run to the next; several
 *                               times too, the oldest first
 *   dequantize=bf16|f16|f32     the values of quantised weights
 *   lora=[SCALE@]ADAPTER        adds an adapter; several times too
 *   edit=FILE                   lines that change names, types and shapes; several times too
 *   edits=LINES                 such lines in place of a file
 *   allow_missing               the tensors of the files that are there
 *   memory=BYTES                the most memory for what deltas change; 256M if it is not given
 *   cache_dir=DIR, cache_size=BYTES, connections=COUNT, timeout=SECONDS, offline, insecure_http,
 *   s3_addressing=path|virtual|auto, s3_unsigned, s3_requester_pays
 *                               of remote sources, as in stfs(1)
 *   version=HEX                 fails with ESTALE unless stfs_version_of() is this
 *
 * `extra` is NULL. The caller frees the checkpoint with stfs_close. */
STFS_API int stfs_open(const char* const* sources, size_t count, const char* const* options,
                       size_t option_count, const stfs_open_extra* extra,
                       stfs_checkpoint** checkpoint);

/* Frees the checkpoint and all that was borrowed from it; NULL is allowed. */
STFS_API void stfs_close(stfs_checkpoint* checkpoint);

/* Ends the calls with this checkpoint that wait for a network, in any thread, with ECANCELED. Later
 * calls work. */
STFS_API void stfs_cancel(stfs_checkpoint* checkpoint);

/* Nonzero if a source is elsewhere, also behind a mount: reads may wait for a network. */
STFS_API int stfs_is_elsewhere(const stfs_checkpoint* checkpoint);

/* What the sources are: 64 hexadecimal digits, equal for equal versions of the same sources with
 * the same layers. Valid until stfs_close. */
STFS_API const char* stfs_version_of(const stfs_checkpoint* checkpoint);

/* Nonzero if the URL of a source or of a layer has a secret: a query, which signs it, or a user and
 * a password. stfs_source then lacks it, and stfs_option has it: store neither. */
STFS_API int stfs_has_secrets(const stfs_checkpoint* checkpoint);

/* The sources as they can be opened again for the same version: paths are absolute, and the
 * revision of the Hub is a commit. NULL after the last. Valid until stfs_close. */
STFS_API const char* stfs_source(const stfs_checkpoint* checkpoint, size_t index);

/* The options that open the same version from any directory: paths are absolute, and an edit file
 * is its text. NULL after the last. Valid until stfs_close. */
STFS_API const char* stfs_option(const stfs_checkpoint* checkpoint, size_t index);

/* What seems wrong and is no error, one line each, safe for a terminal; stfs_save adds what it
 * finds. NULL after the last. Valid until stfs_close. */
STFS_API const char* stfs_warning(const stfs_checkpoint* checkpoint, size_t index);

typedef struct stfs_tensor {
  const char* name;      /* bytes, which may have NULs; a NUL follows them */
  size_t name_bytes;     /* without that NUL */
  const char* dtype;     /* as the format names it, "BF16"; equal names are equal pointers */
  size_t rank;           /* 0: a scalar */
  const uint64_t* shape; /* `rank` of them */
  uint64_t elements;
  uint64_t bytes;        /* row-major, little-endian, without gaps */
  const char* source;    /* the path or the URL, without secrets, of its bytes; NULL: computed */
  uint64_t offset;       /* of its first byte in the source */
  uint64_t source_bytes; /* of the whole source */
} stfs_tensor;

typedef struct stfs_table {
  size_t size;       /* sizeof(stfs_table), set by the caller */
  size_t count;      /* of tensors, numbered from 0 in the order of their bytes */
  size_t stride;     /* bytes from an entry to the next: sizeof(stfs_tensor) of this library */
  const void* first; /* the entry of tensor 0 */
  const char* names; /* all names in that order, each with a NUL behind it */
  size_t names_bytes;
} stfs_table;

/* All tensors in one call. The table is valid until stfs_close. */
STFS_API int stfs_tensors(const stfs_checkpoint* checkpoint, stfs_table* table);

/* The number of a tensor. STFS_USAGE for a name that the checkpoint lacks; the message says which
 * name is like it. */
STFS_API int stfs_find(const stfs_checkpoint* checkpoint, const char* name, size_t name_bytes,
                       size_t* tensor);

/* The numbers, ascending, of the tensors whose names match a glob, of which `*` matches '/' and '.'
 * too. Writes at most `room` of them, and to `count` how many there are. */
STFS_API int stfs_match(const stfs_checkpoint* checkpoint, const char* glob, size_t glob_bytes,
                        size_t* tensors, size_t room, size_t* count);

/* Texts, as the files of a mount have them. */
enum {
  STFS_TEXT_INFO = 0,    /* .stfs/info.json; `number` is 0 */
  STFS_TEXT_TENSOR = 1,  /* .stfs/json/PATH.json of the tensor `number` */
  STFS_TEXT_FROM = 2,    /* the names of the tensors that it is computed from, a JSON array; [] */
  STFS_TEXT_KEY = 3,     /* the key of the metadata entry `number` */
  STFS_TEXT_METADATA = 4 /* .stfs/metadata/KEY of that entry: a string, a number, a JSON array */
};

/* Sets `text` and `bytes`; a NUL follows. Valid until the next stfs_text in this thread. STFS_USAGE
 * for a number that there is not. */
STFS_API int stfs_text(stfs_checkpoint* checkpoint, int which, size_t number, const char** text,
                       size_t* bytes);

/* A part of a tensor, or all of it, in its own type or in another. */
typedef struct stfs_part {
  size_t size; /* sizeof(stfs_part) */
  size_t tensor;
  const char* slice; /* as between NumPy's brackets, "0:128,:"; NULL: all */
  const char* as;    /* "f32": the values as float32; NULL: the bytes as they are */
} stfs_part;

typedef struct stfs_measure {
  size_t size; /* sizeof(stfs_measure), set by the caller */
  uint64_t bytes;
  uint64_t elements;
  const char* dtype;
  size_t rank;
  uint64_t shape[64];
} stfs_measure;

/* The size, type and shape of a part. Reads nothing. */
STFS_API int stfs_measure_part(const stfs_checkpoint* checkpoint, const stfs_part* part,
                               stfs_measure* measure);

/* Reads `bytes` bytes of a part from its byte `offset` on. Fetches what is not on this machine, and
 * verifies the sources afterwards: on a failure the buffer has no meaning. */
STFS_API int stfs_read(stfs_checkpoint* checkpoint, const stfs_part* part, uint64_t offset,
                       void* buffer, size_t bytes);

/* The address of bytes [offset, offset + bytes) of a tensor as it is stored, in a read-only mapping
 * of its file; NULL, and no failure, for a tensor without such bytes: it is computed, or its source
 * is in no file. Use stfs_read then. Fetches the range first. The address may be unaligned. It is
 * valid until stfs_close.
 *
 * The version is checked by this call, and no more. Afterwards it is a mapping as any other: where
 * somebody truncates the file, a load raises SIGBUS; where somebody rewrites it in place, other
 * bytes appear. */
STFS_API int stfs_map(stfs_checkpoint* checkpoint, size_t tensor, uint64_t offset, uint64_t bytes,
                      const void** address);

/* Private writable memory with the bytes of a part: where many bytes lie in a file, a copy-on-write
 * mapping of it, so that nothing is read before it is used; else a copy. Stores change neither the
 * file nor other memory. Of a mapping the version is checked as for stfs_map. */
typedef struct stfs_mapping stfs_mapping;
STFS_API int stfs_map_private(stfs_checkpoint* checkpoint, const stfs_part* part, void** address,
                              stfs_mapping** mapping);

/* As stfs_map_private, the whole file that holds a tensor's bytes as they are stored: for programs
 * that take all of a checkpoint, one mapping in place of many. A tensor begins at its `offset`.
 * NULL, and no failure, for a tensor without such a file on this machine, or where mmap(2) fails.
 */
STFS_API int stfs_map_private_file(stfs_checkpoint* checkpoint, size_t tensor, void** address,
                                   stfs_mapping** mapping);

/* Frees the memory; NULL is allowed. May be called after stfs_close. */
STFS_API void stfs_unmap(stfs_mapping* mapping);

/* DLPack's structs, version 1, declared in <dlpack/dlpack.h>. */
struct DLManagedTensorVersioned;
struct DLManagedTensor;

/* Flags of exports. */
#define STFS_EXPORT_BYTES 1u /* as U8 of one dimension: the types that DLPack lacks, too */

/* Exports private writable memory, as stfs_map_private, to another library. It lives until the
 * consumer calls the deleter, on any thread, even after stfs_close. */
STFS_API int stfs_export(stfs_checkpoint* checkpoint, const stfs_part* part, unsigned flags,
                         struct DLManagedTensorVersioned** exported);

/* As stfs_export, for consumers older than DLPack 1.0. */
STFS_API int stfs_export_unversioned(stfs_checkpoint* checkpoint, const stfs_part* part,
                                     unsigned flags, struct DLManagedTensor** exported);

/* The destructor of a PyCapsule that owns a "stfs_checkpoint", a "stfs_mapping", a "stfs_follower",
 * or a struct of DLPack ("dltensor", "dltensor_versioned"): frees it, unless a consumer has renamed
 * the capsule. For modules of Python. */
STFS_API void stfs_python_destroy(void* capsule);

/* A new PyCapsule that will own what a call makes: one of the kinds above, by its name. Sets
 * `content` to where the call has to write the address. A module makes the capsule before the call,
 * so that a signal's handler that raises right after the call finds an owner. The caller holds
 * Python's lock. NULL: Python's functions are not there (libpython was loaded with RTLD_LOCAL), or
 * a Python exception is set. */
STFS_API void* stfs_python_slot(const char* name, void*** content);

/* A new PyCapsule with the name and the content of such a capsule, which owns nothing then: a
 * consumer of DLPack looks for a capsule called "dltensor" that points to the struct. The caller
 * holds Python's lock. NULL: a Python exception is set. */
STFS_API void* stfs_python_release(void* capsule);

/* Calls the Python object `start`, without arguments, which begins a call with the checkpoint on
 * another thread, and waits until that thread calls stfs_python_ended(has_ended). Meanwhile
 * Python's handlers of signals run. When one raises, cancels the call and waits for its end, in
 * which no handler runs; NULL in place of the checkpoint: leaves the call behind. Returns -1 where
 * `start` raises RuntimeError, because no thread can start; else 0, and what `start` or a handler
 * raised is set then. In a child that a handler forked, it returns at once. The caller is the main
 * thread, and holds Python's lock. */
STFS_API int stfs_python_wait(stfs_checkpoint* checkpoint, void* start, int* has_ended);
STFS_API void stfs_python_ended(int* has_ended);

/* What stfs_text gives, as a Python `bytes`; sets `status` to the status, and the text is empty if
 * it is not 0. A signal's handler that asks for another text changes nothing in this one. The
 * caller holds Python's lock. NULL: as stfs_python_slot. */
STFS_API void* stfs_python_text(stfs_checkpoint* checkpoint, int which, size_t number, int* status);

/* Begins to fetch tensors of remote sources into the cache, behind what is read. Returns at once.
 */
STFS_API int stfs_prefetch(stfs_checkpoint* checkpoint, const size_t* tensors, size_t count);

typedef struct stfs_save_options {
  size_t size;          /* sizeof(stfs_save_options) */
  uint64_t shard_bytes; /* a directory with shards of at most so many bytes; 0: one file */
  int replaces;         /* nonzero: takes the place of a file that exists */
} stfs_save_options;

/* Writes all tensors as they are shown, whole or not at all: a safetensors or a GGUF file by the
 * ending of `path`, else a new directory with model.safetensors or shards, an index, and the files
 * that loaders look for. Never a file that the checkpoint is read from. Blocks of local files are
 * shared with them where the file system can; `shared` gets those bytes and may be NULL, as
 * `options`. */
STFS_API int stfs_save(stfs_checkpoint* checkpoint, const char* path,
                       const stfs_save_options* options, uint64_t* shared);

/* Writes what changed from `before` to `after`, as trainers publish it, to a new directory, whole
 * or not at all: stfs_open("delta=...") and `stfs -o delta=...` show it, and so do SGLang and
 * slime. Both have the same names, types and shapes. Options are encoding=xor|overwrite,
 * checksum=xxh3-128|adler32, shard_size=BYTES, version=N in place of the number at the end of the
 * directory's name (weight_v000012), and base=N in place of the number before it. `changed` gets
 * the number of tensors that changed, and may be NULL. stfs_cancel(after) ends it. */
STFS_API int stfs_save_delta(stfs_checkpoint* before, stfs_checkpoint* after, const char* directory,
                             const char* const* options, size_t option_count, size_t* changed);

/* A directory whose versions are named as they appear: what a trainer publishes. */
typedef struct stfs_follower stfs_follower;

/* Begins to follow a directory: of this machine, s3://bucket/prefix or hf://org/name/path. Looks at
 * nothing yet. Options are `latest` (the newest complete version alone), marker=NAME (a version is
 * complete once this file is in it too), and those about remote sources (cache_dir, cache_size,
 * connections, timeout, insecure_http, s3_addressing, s3_unsigned, s3_requester_pays). The caller
 * frees the follower with stfs_unfollow. A child of fork(2) makes its own. */
STFS_API int stfs_follow(const char* directory, const char* const* options, size_t option_count,
                         stfs_follower** follower);

/* Waits for the next complete version, the oldest first, and sets `version` to its path or URL,
 * valid until the next call; to NULL after the newest with `latest`, and after stfs_follow_cancel.
 * STFS_UNREADABLE when the directory, or its server, cannot be read: once, and the next call waits
 * until it can be read again; with `latest` also when there is no complete version. One thread at a
 * time. */
STFS_API int stfs_next_version(stfs_follower* follower, const char** version);

/* Ends stfs_next_version, now and later, in any thread. A request to a server goes on. */
STFS_API void stfs_follow_cancel(stfs_follower* follower);

/* Frees the follower; NULL is allowed. Not during a call with it. */
STFS_API void stfs_unfollow(stfs_follower* follower);

#ifdef __cplusplus
}
#endif
