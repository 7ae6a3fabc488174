// Loads SOURCEs as lists of tensors. stored_tensors.h loads files, directories and URLs. For a
// mount of stfs, the sources and layers of the mount are loaded.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/checkpoint/mount_source.h"
#include "core/layer/layer.h"
#include "core/remote/sources.h"
#include "core/stored/stored_tensors.h"

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace stfs {

struct SourceLists {
  TensorList list;  // the tensors of all SOURCEs, after the layers
  // The SOURCEs as absolute paths, or as pinned URLs without secrets.
  std::vector<std::string> origins;
  Layers layers;  // with resolved arguments
  Layers below;   // the layers of the mounts among the SOURCEs, and of the mounts' own sources
  // The mounts, and the paths in mounts, that were opened, including nested ones. Each is listed
  // twice: the absolute path as it was named, and the path without symbolic links.
  std::vector<std::string> mounts;
  // The SOURCEs are one whole file, directory or URL. This may be the source of a mount.
  bool is_one_checkpoint = true;
  // The directory that was listed last, and the names in it.
  std::optional<std::pair<std::string, std::vector<std::string>>> listed;
};

// Loads SOURCEs and applies the layers. If a SOURCE is a mount, or a tensor or directory in it,
// loads its tensors from the mount's sources, which must be the versions that the mount shows.
// Throws Error.
SourceLists load_sources(std::span<const std::string> sources, const StoredOptions& options,
                         const Layers& layers, Sources& opener);

// Returns all tensors of a mount with this content, after sort_names(). Throws Error, and
// kUnreadable if the sources are not of the version MountContent::version.
TensorList load_content(const MountContent& content, Sources& opener);

}  // namespace stfs
