// Reads an archive of NumPy arrays, as numpy.savez and savez_compressed write it: a zip archive in
// which each member is a .npy file (zip.h, npy_header.h).
//
// An array in a stored member is read directly from the source. A deflated member is decompressed
// when it is read (inflate.h). Members that stfs cannot show are refused with a warning, and the
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

// Returns true if the archive has a .npy file, or no members at all.
bool is_npz(const ZipDirectory& zip);

// Reads the header of an archive. `place` begins the messages of errors. Throws Error: kUnreadable,
// kArchive or kDuplicateTensor.
Header read_npz(const ZipDirectory& zip, const Source& source, const std::string& place,
                const ReadBytes& read);

// Adds a tensor to a header. `from` describes the bytes of the whole .npy file; this function sets
// its `begin` and its strides. The caller adds the name of the member to Header::members.
void add_array(const NpyHeader& array, std::string_view name, Description from, Header& header);

}  // namespace stfs
