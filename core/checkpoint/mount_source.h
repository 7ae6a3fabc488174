// A mount of stfs as a source: the root of a mount has an attribute that says what was mounted, and
// find_mount_source() recognises a path in a mount.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/base/error.h"
#include "core/base/sha256.h"
#include "core/layer/layer.h"
#include "core/stored/tensor_list.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// The extended attribute of a mount's root. Its value is mount_json(), unless the text is longer
// than XATTR_SIZE_MAX.
inline constexpr const char* kMountAttribute = "user.stfs.mount";
// The maximum number of nested mounts: a mount of a mount of ...
inline constexpr unsigned kMaxMounts = 16;
inline constexpr std::string_view kTreeView = ".stfs/tree";
inline constexpr std::string_view kSafetensorsView = ".stfs/safetensors";

// The sources and options that a mount was made with, and the version that it shows.
struct MountContent {
  std::vector<std::string> sources = {};  // absolute paths, and URLs without secrets
  bool allow_missing = false;
  Layers layers = {};   // with resolved arguments
  std::string version;  // version_of()
};

// Returns the content as JSON:
// {"sources":["/a","/b"],"allow_missing":false,"version":"<64 hex digits>"}. If the mount has
// layers, each adds "OPTION":"ARGUMENT" after allow_missing: "dequantize":"bf16". A text that is
// not UTF-8 is written as an object {"hex":".."}. The URLs contain no secrets.
std::string mount_json(const MountContent& content);

// Parses the result of mount_json(). Returns nullopt for any other text. A text with additional
// keys is refused too, because they may change the meaning in a later version of stfs.
std::optional<MountContent> parse_mount_json(std::string_view json);

// Returns the version of a list. It is the SHA-256 in hex of the paths and version tokens of all
// parts, in their order, of the tensors' names in each part that is not whole, and of
// TensorList::texts(). If the list has layers or lacks stored tensors, the names of all its tensors
// are included too.
std::string version_of(const TensorList& list);

// Identifies the bytes of the computed tensors of a list. The identity does not depend on the paths
// of the sources: it is the SHA-256 in hex of the list's texts, the tensor's name, and the version
// tokens and extents of the tensor's inputs.
class Identities {
 public:
  explicit Identities(const TensorList& list);
  std::string of(const Tensor& tensor) const;

 private:
  Sha256 texts_;
};

// A path in a mount of stfs.
struct MountSource {
  std::string source;      // as the user named it
  std::string mountpoint;  // absolute, without symbolic links
  std::string within;      // relative to the mountpoint; "" for all tensors
  MountContent content;    // of the whole mount
};

// Returns the mount if `source` is a mount of stfs, or a tensor or directory in it. Returns nullopt
// for any other path, including a file in a mount that is loaded like any file
// (merged.safetensors). Throws Error kUnreadable if the process of the mount has died, if the mount
// belongs to another user, or if its mount_json() is too long for an attribute. Throws Error kUsage
// for a directory of another view, and for a file that shows a tensor in another form.
std::optional<MountSource> find_mount_source(const std::string& source);

// Returns true if a file that has the attributes of a tensor contains exactly the tensor's bytes.
// The files of views have these attributes too, but may contain only a part of the tensor, or its
// values in another form.
bool shows_tensor_bytes(const std::string& path);

// Returns the mountpoint of the FUSE file system that contains a file. Returns nullopt for a file
// in any other file system.
std::optional<std::string> mountpoint_around(const std::string& path);

// Returns the source files that a mount of stfs lists in its `.stfs/info.json`. Returns an empty
// list for any other mount. Throws Error kUsage if the name of a file is not UTF-8.
std::vector<std::string> files_of_mount(const std::string& mountpoint);

// Throw Error kUnreadable. refuse_changed() says that the sources are not the versions that the
// mount shows, and refuse_lost() that they could not be loaded, because of `cause`.
[[noreturn]] void refuse_changed(const MountSource& mounted);
[[noreturn]] void refuse_lost(const MountSource& mounted, const Error& cause);

// Returns true if a mount already has a layer, so that applying the layer again changes nothing.
// Throws Error kUsage if the mount has the layer with another argument, or if the path shows only a
// part of a checkpoint and the layer needs tensors outside of this part (LayerRow::needs).
bool has_layer(const MountSource& mounted, const Layer& layer);

// Returns true if `path` is `directory` or is inside it. Neither may end with a slash.
bool is_at_or_below(std::string_view path, std::string_view directory);

}  // namespace stfs
