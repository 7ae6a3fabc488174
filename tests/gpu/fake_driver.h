// Functions of the fake driver that CUDA does not have. Tests find them with dlsym(3).
//
// Environment variables configure the driver. It reads them when it is loaded and in
// stfs_fake_cuda_configure(), which tests call while no resource of the driver is in use:
//
//   STFS_FAKE_CUDA_DEVICES=N          number of devices; default 1. 0: cuInit fails
//   CUDA_VISIBLE_DEVICES=1,0          devices that this process sees, in order; numbers or UUIDs
//   STFS_FAKE_CUDA_MIG=N              each GPU is divided into N instances. A process sees one: the
//                                     first, or the one in CUDA_VISIBLE_DEVICES
//   STFS_FAKE_CUDA_MEMORY=BYTES       memory of each device; default 4 GiB
//   STFS_FAKE_CUDA_HIDDEN=BYTES       memory that is reported free and cannot be allocated
//   STFS_FAKE_CUDA_CONTEXT=BYTES      memory that the context of a process takes
//   STFS_FAKE_CUDA_LAG=N              memory that other processes freed stays unavailable for N
//                                     calls of cuMemGetInfo or an allocating function
//   STFS_FAKE_CUDA_SPACE=NAME         processes with the same name share device memory; default:
//                                     each process has its own
//   STFS_FAKE_CUDA_LATE=always        operations run only when a caller waits; "random" (default):
//                                     some run earlier; "never": all run at once, on another thread
//   STFS_FAKE_CUDA_FAIL=FUNCTION:N[:ERROR],...
//                                     the Nth call fails with this CUresult (default 999). A
//                                     function that frees something frees it and then fails
//   STFS_FAKE_CUDA_FAULT=N[:ERROR]    the Nth operation of any stream fails (default 700), and so
//                                     does every later call of the process
//   STFS_FAKE_CUDA_GRANULARITY=BYTES  the reported allocation granularity; default 2 MiB, which it
//                                     also enforces
//   STFS_FAKE_CUDA_READ_ONLY=refused  cuMemSetAccess refuses read-only access
//   STFS_FAKE_CUDA_CODE=none          no binary has machine code for the device
//   STFS_FAKE_CUDA_MODE=exclusive     the compute mode: one process at a time
//   STFS_FAKE_CUDA_END=FILE           a process that had a context exits only after this file is
//                                     removed
//   STFS_FAKE_CUDA_REPORT=FILE        file to which the report is appended at process exit
#pragma once

#include <cstddef>

extern "C" {

// Reads the environment again, and resets call counts, misuse and a fault.
void stfs_fake_cuda_configure();

// Writes leaks and misuse, one per line, or "". The text is truncated to `size`
// bytes including the terminating zero.
void stfs_fake_cuda_report(char* text, std::size_t size);

// Returns a number since stfs_fake_cuda_configure(): for "peak reads back", the largest number of
// queued copies to the host; for "spinning waits", the waits that keep a processor busy; for the
// name of a function, its calls.
std::size_t stfs_fake_cuda_count(const char* what);
}
