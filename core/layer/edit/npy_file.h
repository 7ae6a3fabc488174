// Reads a NumPy file (numpy/lib/format.py) as a source of one tensor.
//
// Thread safety: the function may be called from any thread.
#pragma once

#include "core/stored/tensor_list.h"

#include <string>

namespace stfs {

class Sources;

// Returns the array in the file as a part with one tensor. The tensor's name is the file's name
// without ".npy". Checks the header and the file's size. Throws Error kUnreadable if the file
// cannot be read, and Error kEdit if it is not a NumPy file or if safetensors lacks its type.
Part read_npy(const std::string& path, Sources& sources);

}  // namespace stfs
