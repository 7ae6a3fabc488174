// A mount of stfs as a source: what the root of a mount says about its sources, and how a path in a
// mount is recognised.
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

class Checkpoint;

// The extended attribute of a mount's root: mount_json().
inline constexpr const char* kMountAttribute = "user.stfs.mount";
inline constexpr std::string_view kTreeView = ".stfs/tree";
inline constexpr std::string_view kSafetensorsView = ".stfs/safetensors";

// A recipe for loading some tensors: the source at `path`; or, if `path` is empty, the tensors that
// a mount of `sources` shows at or below `within`.
struct Origin {
  std::string path = {};  // absolute, or a URL
  std::vector<Origin> sources = {};
  bool allow_missing = false;
  std::string within = {};  // relative to the mount's root; "" for all tensors
  Layers layers = {};       // of the mount

  bool operator==(const Origin&) const = default;
};

// The parsed attribute of a mount's root.
struct MountContent {
  Origin origin;        // without path and within
  std::string version;  // version_of() what is mounted
};

// {"sources":["/a","/b"],"allow_missing":false,"version":"<64 hex digits>"}. A source that was
// itself a part of a mount is an object {"sources":[..],"allow_missing":..,"within":".."}; a path
// that is not UTF-8 is an object {"hex":".."}. Of a mount with layers, also "OPTION":"ARGUMENT" of
// each behind allow_missing, in the object of a source too: "dequantize":"bf16".
std::string mount_json(const Checkpoint& checkpoint, bool allow_missing, const Layers& layers = {});

// Whether mount_json() is longer than the kernel lets an attribute be. The attribute is then
// long_description(): the digest of the text, and that it stands in `.stfs/mount.json`.
bool has_long_description(const Checkpoint& checkpoint);
std::string long_description(std::string_view json);

// mount_json() of the mount with this root, from the attribute or the file; nullopt where there is
// no attribute. Throws Error kUnreadable for a file that the attribute does not describe.
std::optional<std::string> description_of(const std::string& root);

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
struct MountedPath {
  std::string source;      // as the user named it
  std::string mountpoint;  // absolute, without symbolic links
  Origin origin;           // `within` is the path in the mount
  std::string version;     // of the whole mount
};

// Whether `source` is a mount of stfs, or a tensor or directory in it. nullopt for any other path,
// also for a file in a mount that is read as a file (merged.safetensors). Throws Error kUnreadable
// for a mount that has died or belongs to another user, and kUsage for a directory of another view
// or a file with a tensor in another form.
std::optional<MountedPath> find_mounted(const std::string& source);

// Whether a file with a tensor's attributes holds exactly the bytes of the tensor. On a view's file
// the attributes describe the tensor, and the file may hold a part of it or other bytes.
bool shows_tensor_bytes(const std::string& path);

// Throws Error kUnreadable: the sources are not the versions that the mount shows, or cannot be
// loaded (`cause`).
[[noreturn]] void refuse_changed(const MountedPath& mounted);
[[noreturn]] void refuse_lost(const MountedPath& mounted, const Error& cause);

// Throws Error kUsage unless a layer can be applied to all that is mounted: the mount may have it
// with another argument, or show a part of a checkpoint, while LayerRow::needs lie outside of it.
void refuse_unfit_layer(const MountedPath& mounted, const Layer& layer);

// Whether `path` is `directory` or lies in it. Both without a slash at the end.
bool is_at_or_below(std::string_view path, std::string_view directory);

}  // namespace stfs
