// What a test may ask of the fake driver besides the driver's own functions. Found with dlsym.
//
// The environment says how it behaves; it is read when the library is loaded and again by
// stfs_fake_cuda_configure(), which must be called when nothing is in use:
//
//   STFS_FAKE_CUDA_DEVICES=N          devices there are; 1. 0: cuInit fails, as a driver's does
//   CUDA_VISIBLE_DEVICES=1,0          which of them this process sees, in which order
//   STFS_FAKE_CUDA_MEMORY=BYTES       memory of each; 1 GiB
//   STFS_FAKE_CUDA_SPACE=NAME         processes with the same name share that memory; else each
//                                     has its own
//   STFS_FAKE_CUDA_LATE=always        nothing is done before it is waited for; "random": some of
//                                     it (the default); "never": at once, though by another thread
//   STFS_FAKE_CUDA_FAIL=FUNCTION:N[:ERROR],...
//                                     its Nth call fails, with this CUresult (999). One that gives
//                                     something back gives it back all the same, and fails then
//   STFS_FAKE_CUDA_FAULT=N[:ERROR]    the Nth thing that a stream does fails instead (700), and
//                                     with it everything that comes after in its context
//   STFS_FAKE_CUDA_GRANULARITY=BYTES  what it says that sizes of memory are multiples of; 2 MiB, as
//                                     it wants them
//   STFS_FAKE_CUDA_READ_ONLY=refused  cuMemSetAccess knows no access but read and write
//   STFS_FAKE_CUDA_REPORT=FILE        where the report goes when the process exits, at the end
#pragma once

#include <cstddef>

extern "C" {

// Reads the environment again, counts calls from the beginning and forgets what was misused.
void stfs_fake_cuda_configure();

// What is in use that should have been given back, and what was misused: a line each, empty when
// all is well. Cut off at `size`, always terminated.
void stfs_fake_cuda_report(char* text, std::size_t size);

// The most pinned memory that was in use at once since stfs_fake_cuda_configure(), bytes.
std::size_t stfs_fake_cuda_peak_pinned();

// How often a function was called since stfs_fake_cuda_configure().
std::size_t stfs_fake_cuda_calls(const char* function);
}
