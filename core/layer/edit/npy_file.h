// A NumPy file as a source of one tensor (numpy/lib/format.py): its header, read and checked.
//
// Thread safety: the function may be called from any thread.
#pragma once

#include "core/stored/tensor_list.h"

#include <string>

namespace stfs {

class Sources;

// The array in the file as a part with one tensor whose name is that of the file
// without ".npy". Throws Error: kUnreadable, or kEdit for a file that is none and for a type that
// safetensors lacks.
Part read_npy(const std::string& path, Sources& sources);

}  // namespace stfs
