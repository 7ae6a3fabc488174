// Reads a file as torch.save writes it since PyTorch 1.6: a zip archive (zip.h) with a pickle
// (pickle.h) that describes tensors, and a member for each storage:
//
//   NAME/data.pkl     dictionaries, lists and objects that contain tensors
//   NAME/data/KEY     the bytes of a storage
//   NAME/byteorder    "little"; newer files have it
//
// A tensor consists of a storage, an offset in it, a shape and strides; several tensors may share a
// storage. The name of a tensor is the path of keys to it, joined by dots, or `tensor` if the
// pickle is only a tensor. In objects of unknown classes, stfs searches the arguments, the state
// and the items. A tensor in a form that stfs cannot show is refused with a warning, and the rest
// is shown.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/format/header.h"
#include "core/format/zip.h"

#include <string>
#include <string_view>

namespace stfs {

inline constexpr std::string_view kTorchName = "PyTorch";

// Returns true if the archive has a member NAME/data.pkl.
bool is_torch(const ZipDirectory& zip);

// Reads the header of such an archive. `place` begins the messages of errors. Throws Error:
// kUnreadable, kArchive, kPickle or kDuplicateTensor.
Header read_torch(const ZipDirectory& zip, const Source& source, const std::string& place,
                  const ReadBytes& read);

}  // namespace stfs
