// Reads a zip archive of tensors: a PyTorch file (torch.h) or arrays of NumPy (npz.h). Its
// directory tells which.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/format/header.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace stfs {

// Whether a file that begins so is a zip archive whose first member is an array.
bool begins_as_npz(std::span<const std::byte> first);

// The bytes at the beginning of an archive that are read first.
std::uint64_t archive_beginning(std::span<const std::byte> first);

// Throws Error: kUnreadable, kArchive, kPickle or kDuplicateTensor.
Header read_archive(const Source& source, const std::string& place, const ReadBytes& read);

}  // namespace stfs
