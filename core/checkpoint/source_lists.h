// SOURCEs as lists of tensors: files, directories and URLs as stored_tensors.h loads them, and
// mounts of stfs, which mean their own sources and layers.
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
  TensorList list;  // of all SOURCEs, with the layers
  // The SOURCEs, with absolute paths, or with URLs that are pinned and without secrets.
  std::vector<std::string> origins;
  Layers layers;  // with resolved arguments
  Layers below;   // of the mounts among the SOURCEs, and of those below them
  // The mounts, and parts of mounts, that were opened at any depth: as they were named, made
  // absolute, and again without symbolic links.
  std::vector<std::string> mounts;
  bool is_one_checkpoint = true;  // one file, directory or URL, through mounts too, with all of it
  // The directory that was read last, and the names in it.
  std::optional<std::pair<std::string, std::vector<std::string>>> listed;
};

// A mount, or a tensor or directory in it, means its tensors in the mount's sources, which must be
// the versions that it shows. Throws Error.
SourceLists load_sources(std::span<const std::string> sources, const StoredOptions& options,
                         const Layers& layers, Sources& opener);

// All tensors of a mount of these sources (MountContent), by name. Throws Error; kUnreadable when
// the sources are not of the version.
TensorList load_content(const MountContent& content, Sources& opener);

}  // namespace stfs
