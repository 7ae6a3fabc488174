// Reads an archive of NumPy arrays, as numpy.savez and savez_compressed write it: a zip archive
// with a .npy file a member (zip.h, npy_header.h).
//
// A stored member is an array that stands in the source; a deflated one is decompressed when it is
// read (inflate.h). What is no array of a type that stfs knows is refused with a warning, and the
// rest is shown.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/format/header.h"
#include "core/format/npy_header.h"
#include "core/format/zip.h"

#include <string>
#include <string_view>

namespace stfs {

inline constexpr std::string_view kNpzName = "NumPy";

// Whether the archive is one of arrays.
bool is_npz(const ZipDirectory& zip);

// Throws Error: kUnreadable, kArchive or kDuplicateTensor.
Header read_npz(const ZipDirectory& zip, const Source& source, const std::string& place,
                const ReadBytes& read);

// Adds a tensor to a header: `from` says where the bytes of the .npy file are.
void add_array(const NpyHeader& array, std::string_view name, Description from, Header& header);

}  // namespace stfs
