// Reads a zip archive of tensors: a PyTorch file (torch.h) or NumPy arrays (npz.h). The directory
// of the archive shows which of the two it is.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/format/header.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace stfs {

// Returns true if a file that begins with these bytes is an empty zip archive or one that begins
// with a NumPy array (.npy).
bool begins_as_npz(std::span<const std::byte> first);

// Returns the number of bytes at the beginning of an archive to read first (Format::header_length).
std::uint64_t archive_beginning(std::span<const std::byte> first);

// Reads the header of an archive. `place` begins the messages of errors. Throws Error: kUnreadable,
// kArchive, kPickle or kDuplicateTensor.
Header read_archive(const Source& source, const std::string& place, const ReadBytes& read);

}  // namespace stfs
