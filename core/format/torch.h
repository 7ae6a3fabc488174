// Reads a file as torch.save writes it since PyTorch 1.6: a zip archive (zip.h) with a pickle
// (pickle.h) that describes tensors, and a member for each storage:
//
//   NAME/data.pkl     dictionaries, lists and objects that hold tensors
//   NAME/data/KEY     the bytes of a storage
//   NAME/byteorder    "little", where it is there
//
// A tensor is a storage, an offset in it, a shape and strides; several may share a storage. Its
// name is the path of keys that leads to it, joined by dots; of a tensor alone, `tensor`. Objects
// whose code stfs does not know are walked through: their arguments, their state, and their items.
// What pickles as a tensor and is not one of those is refused with a warning, and the rest is
// shown.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/format/header.h"
#include "core/format/zip.h"

#include <string>
#include <string_view>

namespace stfs {

inline constexpr std::string_view kTorchName = "PyTorch";

// Whether the archive has a pickle of tensors.
bool is_torch(const ZipDirectory& zip);

// Throws Error: kUnreadable, kArchive, kPickle or kDuplicateTensor.
Header read_torch(const ZipDirectory& zip, const Source& source, const std::string& place,
                  const ReadBytes& read);

}  // namespace stfs
