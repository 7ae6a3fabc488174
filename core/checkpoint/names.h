// Encodes tensor names as paths and decodes them.
//
// A `/` in a name separates directories. Percent-encoding in upper-case hex (as in RFC 3986)
// replaces the bytes that a path cannot hold:
//
//   - `%`, and the control characters C0 and DEL
//   - the dots of a component `.` or `..`, and the dot of a first component `.stfs`
//   - a `/` at the beginning or the end, after another `/`, or after the name of a tensor
//
// The empty name is `%`. Other bytes are unchanged. A component over 240 bytes is cut to 223 bytes
// or a little less, followed by `~` and 16 hex digits of the SHA-256 of the whole encoded
// component. A shorter component that already ends in `~` and 16 hex digits is treated in the same
// way: no name can imitate a cut one.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace stfs {

inline constexpr std::size_t kMaxComponent = 240;  // bytes; with a view's suffix under NAME_MAX

// The characters that separate directories.
enum class PathStyle {
  kSlashes,      // `/`: the root of the mount
  kDots,         // `/` and `.`: the tree view. A `.` stays where a `/` would be encoded
  kDotsEscaped,  // `/`; each `.` becomes `%2E`. For a name whose kDots path another name has too
};

struct EncodedPath {
  std::string path;
  bool cut = false;  // a component was cut, so decode_path() does not return the name
};

// The path of the tensor `name`. `tensor_prefixes` are the lengths, ascending, of the proper
// prefixes of `name` that are names of tensors too; for kDots and kDotsEscaped, `.` equals `/` in
// prefixes.
EncodedPath encode_path(std::string_view name, std::span<const std::size_t> tensor_prefixes = {},
                        PathStyle style = PathStyle::kSlashes);

// A fast check for most names: true only if the path of `name` is `name` itself, without a
// directory. May return false for such a name.
bool is_plain_name(std::string_view name);

// `name` as one component: encodes each `/`. For the entries of header/ and metadata/.
std::string encode_component(std::string_view name);

// The name of a path. Returns nullopt for an escape that encode_path() never writes. Returns a cut
// component unchanged.
std::optional<std::string> decode_path(std::string_view path);

}  // namespace stfs
