// A mount of stfs as a source: what the root of a mount says that it was opened with, and how a
// path in a mount is recognised.
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

// The extended attribute of a mount's root: mount_json(), unless that is longer than
// XATTR_SIZE_MAX.
inline constexpr const char* kMountAttribute = "user.stfs.mount";
inline constexpr unsigned kMaxMounts = 16;  // a mount of a mount of ...
inline constexpr std::string_view kTreeView = ".stfs/tree";
inline constexpr std::string_view kSafetensorsView = ".stfs/safetensors";

// What a mount was opened with, and the version that it shows.
struct MountContent {
  std::vector<std::string> sources = {};  // absolute paths, and URLs without secrets
  bool allow_missing = false;
  Layers layers = {};   // with resolved arguments
  std::string version;  // version_of()
};

// {"sources":["/a","/b"],"allow_missing":false,"version":"<64 hex digits>"}, and of a mount with
// layers, "OPTION":"ARGUMENT" of each behind allow_missing: "dequantize":"bf16". A text that is not
// UTF-8 is an object {"hex":".."}. No URL has secrets.
std::string mount_json(const MountContent& content);

// Parses mount_json(). nullopt for any other text, also for one with more keys: a later stfs may
// mean something else by it.
std::optional<MountContent> parse_mount_json(std::string_view json);

// SHA-256 in hex over the paths and version tokens of all parts, in their order, over the names of
// the tensors of a part that is not whole, and over TensorList::texts().
std::string version_of(const TensorList& list);

// What identifies the bytes of the computed tensors of a list, also where its sources have other
// paths: SHA-256 in hex over the list's texts, the tensor's name, and the version tokens and
// extents of its inputs.
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

// Whether `source` is a mount of stfs, or a tensor or directory in it. nullopt for any other path,
// also for a file in a mount that is read as a file (merged.safetensors). Throws Error kUnreadable
// for a mount that has died, belongs to another user, or says more than an attribute holds, and
// kUsage for a directory of another view or a file with a tensor in another form.
std::optional<MountSource> find_mount_source(const std::string& source);

// Whether a file with a tensor's attributes holds exactly the bytes of the tensor. On a view's file
// the attributes describe the tensor, and the file may hold a part of it or other bytes.
bool shows_tensor_bytes(const std::string& path);

// The mountpoint of the file system in user space that a file is in; nullopt for any other file.
std::optional<std::string> mountpoint_around(const std::string& path);

// The files that a mount of stfs shows, as its `.stfs/info.json` says; none for any other mount.
// Throws Error kUsage if one of them has a name that is not UTF-8.
std::vector<std::string> files_of_mount(const std::string& mountpoint);

// Throws Error kUnreadable: the sources are not the versions that the mount shows, or cannot be
// loaded (`cause`).
[[noreturn]] void refuse_changed(const MountSource& mounted);
[[noreturn]] void refuse_lost(const MountSource& mounted, const Error& cause);

// Whether a mount has a layer already, so that applying it again changes nothing. Throws Error
// kUsage where it has it with another argument, or where the path shows a part of a checkpoint and
// LayerRow::needs lie outside of it.
bool has_layer(const MountSource& mounted, const Layer& layer);

// Whether `path` is `directory` or lies in it. Both without a slash at the end.
bool is_at_or_below(std::string_view path, std::string_view directory);

}  // namespace stfs
